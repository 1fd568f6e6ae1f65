//! What goes wrong, and when.

use super::world::{Next, World};
use crate::group::faults::Cut;
use crate::group::setup::BEAT_NS;
use crate::reach::Reach;
use mainstay_group::ballot::Ballot;
use mainstay_replica::event::Event;
use mainstay_types::id::StoreId;
use mainstay_types::view::View;

impl World {
    /// Something goes wrong, and the next thing is scheduled.
    pub(crate) fn fault(&mut self) {
        if let Some(beats_max) = self.setup.calm {
            return self.calm_fault(beats_max);
        }
        let pause = self.random.between(2, 16) * BEAT_NS;
        self.schedule(pause, Next::Fault);
        let nodes = self.nodes.len();
        let one = self.random.index(nodes);
        match self.random.below(100) {
            0..36 => self.bounce(one),
            36..42 => (0..nodes).for_each(|at| self.bounce(at)),
            42..50 => self.lose_store(one),
            50..62 => {
                let side = self.random.below(1 << nodes) as u32;
                self.cut(side, !side);
                self.cut(!side, side);
                self.reached.hit(Reach::Partition);
            }
            62..70 => {
                self.cut(1 << one, !(1 << one));
                self.reached.hit(Reach::OneWayCut);
            }
            70..76 => {
                self.cut(!(1 << one), 1 << one);
                self.reached.hit(Reach::OneWayCut);
            }
            76..84 => self.pause(one),
            84..88 => self.slow_down(one),
            88..94 => self.leave(one),
            _ => {
                // Several in a row.
                for _ in 0..3 {
                    let one = self.random.index(nodes);
                    self.bounce(one);
                }
            }
        }
    }

    fn cut(&mut self, from: u32, to: u32) {
        let most = if self.random.chance(200) { 60 } else { 20 };
        let until_ns = self.now_ns + self.random.between(1, most) * BEAT_NS;
        self.cuts.push(Cut { from, to, until_ns });
    }

    fn bounce(&mut self, one: usize) {
        self.kill(one);
        let down =
            if self.random.coin() { self.random.below(BEAT_NS) } else { self.random.below(30 * BEAT_NS) };
        self.schedule(down, Next::Start { node: one });
    }

    fn pause(&mut self, one: usize) {
        let pause = self.random.between(1, 30) * BEAT_NS;
        let now_ns = self.now_ns;
        let node = &mut self.nodes[one];
        let serves = node.running.as_ref().is_some_and(|running| running.serves(node.clock.shows(now_ns)));
        let past_lease = u128::from(pause) > self.setup.timing.lease.as_nanos();
        self.reached.add(Reach::PausedPastLease, u64::from(serves && past_lease));
        node.paused_until_ns = now_ns + pause;
    }

    fn leave(&mut self, one: usize) {
        let others = self.nodes.iter().filter(|node| node.running.is_some() && !node.leaving).count();
        let inside = self.nodes[one].running.as_ref().and_then(|node| node.view());
        if others > 2 && inside.is_some_and(|view| view.members.len() > 1) {
            self.nodes[one].leaving = true;
            self.step(one, Event::Leave, None);
        }
    }

    /// A node ends where it stands.
    pub(crate) fn kill(&mut self, one: usize) {
        if self.nodes[one].running.is_none() {
            return;
        }
        self.nodes[one].crash(&mut self.random);
        self.disconnect(one);
        self.crashes += 1;
        self.reached.hit(Reach::Kill);
        if self.nodes.iter().all(|node| node.running.is_none()) {
            self.reached.hit(Reach::AllDown);
            self.all_were_down = true;
        }
        self.trace_line(format_args!("node {one} ends"));
    }

    /// A disk is replaced by an empty one, where the group survives that: a majority of its votes, with the data, must be left.
    fn lose_store(&mut self, one: usize) {
        if self.nodes[one].stored.record.is_none() || !self.survives_without(one) {
            return;
        }
        self.kill(one);
        if !self.survives_without(one) {
            return;
        }
        self.views.loses(self.cluster, self.nodes[one].store);
        let drawn = self.random.draw();
        let node = &mut self.nodes[one];
        let bytes = [drawn.to_le_bytes(), drawn.to_le_bytes()].concat();
        node.store = StoreId(bytes.try_into().expect("16 bytes"));
        node.stored = mainstay_replica::config::Stored::default();
        node.begins = false;
        node.trimmed = false;
        self.reached.hit(Reach::StoreLost);
        self.trace_line(format_args!("node {one} lost its store"));
        let down = self.random.below(20 * BEAT_NS);
        self.schedule(down, Next::Start { node: one });
    }

    fn survives_without(&self, one: usize) -> bool {
        let Some(newest) = self.newest_view() else { return false };
        // No successor of the view can be decided already, which might count on the lost store more than this view does.
        let votes = |(place, node): (usize, &super::node::Node)| {
            let record = node.record()?;
            let has_all = place != one
                && record.is_ready()
                && record.view_id() == newest.id
                && record.promised == Ballot::NONE;
            has_all.then(|| newest.weight_of(node.store))
        };
        let votes: Vec<u64> = self.nodes.iter().enumerate().filter_map(votes).collect();
        // One more may leave, and be down when it is needed.
        newest.is_majority(votes.iter().sum::<u64>() - votes.iter().max().copied().unwrap_or(0))
    }

    /// The newest view that was decided.
    pub(crate) fn newest_view(&self) -> Option<View> {
        self.views.newest(self.cluster).map(|proposal| proposal.view.clone())
    }

    /// All faults end.
    pub(crate) fn heal(&mut self) {
        self.faulty = false;
        self.cuts.clear();
        for node in 0..self.nodes.len() {
            self.nodes[node].paused_until_ns = 0;
            self.nodes[node].slow.until_ns = 0;
            self.nodes[node].rests_until_ns = 0;
            self.schedule(0, Next::Start { node });
        }
        self.schedule(BEAT_NS, Next::Judge);
    }
}
