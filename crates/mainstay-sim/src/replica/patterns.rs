//! Somebody asks a node for another pattern of a region, again and again, while everything else goes wrong.

use super::world::{Next, World};
use crate::group::setup::BEAT_NS;
use crate::properties::Violation;
use crate::reach::Reach;
use mainstay_group::ballot::Proposal;
use mainstay_region::patterns::Pattern;
use mainstay_replica::definition::RegionId;
use mainstay_replica::event::Event;
use mainstay_replica::packed::Cuts;
use mainstay_replica::redefining::RedefineError;
use mainstay_types::view::ViewId;

/// A pattern that a node was asked for, and has not answered.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    /// The view in which it was first.
    view: ViewId,
    asked_at_ns: u64,
}

impl World {
    /// Asks, and will again.
    pub(crate) fn ask_for_pattern(&mut self) {
        let pause = self.random.between(5, 30) * BEAT_NS;
        self.schedule(pause, Next::Redefine);
        let at = self.random.index(self.nodes.len());
        let region =
            RegionId(u16::try_from(self.random.index(self.setup.regions.len()) + 1).expect("they are few"));
        let pattern = *self.random.pick(&Pattern::VERSIONED);
        let node = &mut self.nodes[at];
        let Some(running) = &node.running else { return };
        let view = running.group().record().view_id();
        node.wishes.entry((region, pattern)).or_insert(Wish { view, asked_at_ns: self.now_ns });
        self.definitions.asks(region, pattern);
        self.trace_line(format_args!("n{at} is asked for {} in {region}", pattern.name()));
        self.step(at, Event::Redefine { region, pattern }, None);
    }

    /// What regions are in a view that was decided.
    pub(crate) fn look_at_definitions(&mut self, proposal: &Proposal) -> Result<(), Violation> {
        let cuts = Cuts::decode(&proposal.cut).expect("what nodes agree on reads back");
        for cut in cuts.regions {
            if self.definitions.decided(cut.region, proposal.view.id, cut.definition)? {
                self.reached.hit(Reach::PatternChanged);
            }
        }
        Ok(())
    }

    /// A node says what came of it.
    pub(crate) fn redefined(
        &mut self,
        at: usize,
        (region, pattern): (RegionId, Pattern),
        ended: Result<ViewId, RedefineError>,
    ) -> Result<(), Violation> {
        let now_ns = self.now_ns;
        let wishes = &mut self.nodes[at].wishes;
        let wish = wishes.get(&(region, pattern)).copied();
        let ends = match ended {
            Ok(_) | Err(RedefineError::Superseded | RedefineError::Unknown) => true,
            // What is refused is what is asked for now. What was taken up before has to come still.
            Err(_) => wish.is_some_and(|wish| wish.asked_at_ns == now_ns),
        };
        if ends {
            wishes.remove(&(region, pattern));
        }
        self.trace_line(format_args!("n{at} tells of {} in {region}: {ended:?}", pattern.name()));
        match ended {
            Ok(view) => {
                let again = wish.is_some_and(|wish| view > wish.view.next());
                self.reached.add(Reach::PatternAskedAgain, u64::from(again));
                self.definitions.told(region, view, pattern)
            }
            Err(RedefineError::Unknown) => {
                self.reached.hit(Reach::PatternUnknown);
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }
}
