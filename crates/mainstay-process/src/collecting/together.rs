//! How many nodes were down at one time, as far as a node that recovers can tell.
//!
//! It hears of a peer's end when the next life greets, and of its recovery when `Recovered` comes. A link that stands still lets the second come
//! too late: a peer that had recovered before another one crashed would be counted beside it. So before more than a policy survives are
//! taken to have been down together, each of them is asked which lives had heard that it is recovered, and outlived that (docs/message-logging.md).

use crate::collecting::Collecting;
use crate::effect::Effect;
use crate::handler::Handler;
use crate::lifecycle::Life;
use crate::process::Process;
use mainstay_channel::frame::Frame;
use mainstay_journal::memory::PageMemory;
use mainstay_recovery::policy::Failures;
use mainstay_types::id::{Incarnation, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Endings and recoveries that are remembered; past it the oldest recovery is forgotten, so that too many count as down and never too few.
const HEARD_MAX: usize = 1024;

/// What was heard of peers, in the order in which it was heard, and what they testify.
#[derive(Debug, Default)]
pub(crate) struct Together {
    heard: Vec<Heard>,
    /// Who was asked in the present session, and has not answered.
    asked: BTreeSet<NodeId>,
    /// By witness: its life, and the lives of others, each the first of its node that heard of the witness's recovery.
    testified: BTreeMap<NodeId, (Incarnation, BTreeMap<NodeId, Incarnation>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Down(Episode),
    Recovered(NodeId),
}

/// A node is down, for all that is heard, from the beginning of `first` on, and may have failed again up to the beginning of `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Episode {
    node: NodeId,
    first: Incarnation,
    last: Incarnation,
}

impl Together {
    /// `node` recovers, in `life`.
    pub(crate) fn down(&mut self, node: NodeId, life: Incarnation) {
        match self.latest(node) {
            Some(Heard::Down(episode)) => episode.last = episode.last.max(life),
            _ => self.heard.push(Heard::Down(Episode { node, first: life, last: life })),
        }
        if self.heard.len() > HEARD_MAX {
            self.forget_oldest_recovery();
        }
    }

    /// `node` is recovered.
    pub(crate) fn recovered(&mut self, node: NodeId) {
        if let Some(Heard::Down(_)) = self.latest(node) {
            self.heard.push(Heard::Recovered(node));
        }
    }

    fn latest(&mut self, of: NodeId) -> Option<&mut Heard> {
        self.heard.iter_mut().rev().find(|heard| heard.node() == of)
    }

    /// What lies on both sides of it becomes one longer time of being down.
    fn forget_oldest_recovery(&mut self) {
        let Some(oldest) = self.heard.iter().position(|heard| matches!(heard, Heard::Recovered(_))) else {
            return;
        };
        let node = self.heard.remove(oldest).node();
        let next = self.heard[oldest..].iter().position(|heard| heard.node() == node);
        if let Some(Heard::Down(later)) = next.map(|next| self.heard.remove(oldest + next))
            && let Some(Heard::Down(earlier)) =
                self.heard[..oldest].iter_mut().rev().find(|heard| heard.node() == node)
        {
            earlier.last = later.last;
        }
    }

    /// The most nodes that may have been down at one time.
    pub(crate) fn most(&self) -> BTreeSet<NodeId> {
        let mut most = BTreeSet::new();
        self.walk(|down| {
            if down.len() > most.len() {
                most = down.iter().map(|episode| episode.node).collect();
            }
        });
        most
    }

    /// Everybody of `down_min` nodes or more that may have been down at one time and has not testified in its present life, nor been asked.
    pub(crate) fn to_ask(&self, down_min: usize) -> BTreeSet<NodeId> {
        let mut witnesses: BTreeSet<NodeId> = BTreeSet::new();
        self.walk(|down| {
            if down.len() >= down_min {
                let silent = down.iter().filter(|episode| !self.has_testified(episode));
                witnesses.extend(silent.map(|episode| episode.node));
            }
        });
        witnesses.retain(|node| !self.asked.contains(node));
        witnesses
    }

    /// In the last of its lives that were heard to recover, or in one behind that.
    fn has_testified(&self, episode: &Episode) -> bool {
        self.testified.get(&episode.node).is_some_and(|(life, _)| *life >= episode.last)
    }

    /// Shows `each` who may have been down whenever one more was.
    fn walk(&self, mut each: impl FnMut(&[Episode])) {
        let mut down: Vec<Episode> = Vec::new();
        for heard in &self.heard {
            match *heard {
                Heard::Down(episode) => {
                    down.retain(|earlier| !self.outlived(earlier, &episode));
                    down.push(episode);
                    each(&down);
                }
                Heard::Recovered(node) => down.retain(|episode| episode.node != node),
            }
        }
    }

    /// Whether `later` was up, recovered, and knew that `earlier` was, before it failed.
    fn outlived(&self, earlier: &Episode, later: &Episode) -> bool {
        self.has_testified(earlier)
            && self.testified[&earlier.node]
                .1
                .get(&later.node)
                .is_some_and(|heard_in| *heard_in < later.first)
    }

    pub(crate) fn asked(&mut self, node: NodeId) {
        self.asked.insert(node);
    }

    /// Whether somebody has not answered yet.
    pub(crate) fn waits(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether `node` has not.
    pub(crate) fn waits_for(&self, node: NodeId) -> bool {
        self.asked.contains(&node)
    }

    /// A session with `node` begins, or ended: what it was asked in an earlier one is not answered any more.
    pub(crate) fn session_changed(&mut self, node: NodeId) {
        self.asked.remove(&node);
    }

    /// `witness`, in `life`, says who outlived its recovery.
    pub(crate) fn testified(
        &mut self,
        witness: NodeId,
        life: Incarnation,
        outlived: &[(NodeId, Incarnation)],
    ) {
        self.asked.remove(&witness);
        self.testified.insert(witness, (life, outlived.iter().copied().collect()));
    }
}

impl Heard {
    fn node(self) -> NodeId {
        match self {
            Self::Down(episode) => episode.node,
            Self::Recovered(node) => node,
        }
    }
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// How many failures at one time all policies of the cluster survive; `None`: any number.
    pub(crate) fn failures_survived(&self) -> Option<u8> {
        let policies = self.history.links.iter().flat_map(|links| links.policies.values());
        let survives = policies.chain([&self.config.policy]).map(|policy| policy.survives()).min();
        match survives {
            Some(Failures::AtMost(failures)) => Some(failures),
            Some(Failures::Any) | None => None,
        }
    }

    /// Tells `peer`, if both are recovered, that its recovery is known here. A node that has yet to agree on a line counts as down until all agree: one that failed since may
    /// have known of more that was lost together.
    pub(crate) fn say_heard(&mut self, peer: NodeId) {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        if matches!(self.life, Life::Running | Life::Stopping { .. }) && links.channel.is_recovered(peer) {
            sessions.put(peer, &Frame::Heard);
        }
    }

    /// Before this node takes more to have been down with it than the policies survive, it asks each of them who outlived its recovery.
    /// Returns whether answers are still to come.
    pub(crate) fn ask_who_outlived_whom(&mut self) -> bool {
        let Some(failures) = self.failures_survived() else { return false };
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else {
            return false;
        };
        let Some(mut collecting) = sessions.collecting.take() else { return false };
        let mut waits = false;
        // With this node itself one more than `failures`.
        for peer in collecting.together.to_ask(usize::from(failures)) {
            waits = true;
            if links.channel.session(peer).is_some() {
                sessions.put(peer, &Frame::Outlived { asks: true, lives: Vec::new() });
                collecting.together.asked(peer);
            }
        }
        waits |= collecting.together.waits();
        sessions.collecting = Some(collecting);
        waits
    }

    pub(crate) fn take_outlived(
        &mut self,
        peer: NodeId,
        asks: bool,
        lives: &[(NodeId, Incarnation)],
        out: &mut Vec<Effect>,
    ) {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        if asks && links.channel.session(peer).is_some() {
            // Whoever heard of a recovery behind which it had yet to agree on a line may have failed before that was over.
            let lives = if self.line.had_to_agree { Vec::new() } else { links.channel.outlived() };
            sessions.put(peer, &Frame::Outlived { asks: false, lives });
        } else if !asks
            && let Some((collecting, life)) = sessions.collecting.as_mut().zip(links.channel.session(peer))
        {
            collecting.together.testified(peer, life, lives);
            self.go_on_collecting(out);
        }
    }

    /// Nodes that were down together with this one, and whether they are more than the policies survive.
    pub(crate) fn down_together(&self, collecting: &Collecting) -> (BTreeSet<NodeId>, bool) {
        let Some(failures) = self.failures_survived() else { return Default::default() };
        let together = collecting.together.most();
        // Where one failure is survived, whoever failed besides was one too many, whether or not it is up again.
        let others: BTreeSet<NodeId> = match failures {
            1 => together.union(&collecting.rejoining).copied().collect(),
            _ => together,
        };
        let beyond = !others.is_empty() && others.len() + 1 > usize::from(failures);
        (others, beyond)
    }

    /// Whether more nodes were down together, this one among them, than the policies survive.
    pub(crate) fn more_failed_than_is_survived(&self) -> bool {
        let collecting = self.sessions.as_ref().and_then(|sessions| sessions.collecting.as_ref());
        collecting.is_some_and(|collecting| self.down_together(collecting).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);

    fn life(number: u64) -> Incarnation {
        Incarnation(number)
    }

    /// A, B and C as they are heard of when the word that A is recovered comes last.
    fn stalled() -> Together {
        let mut together = Together::default();
        together.down(A, life(2));
        together.down(B, life(2));
        together.down(C, life(4));
        together
    }

    #[test]
    fn who_recovered_before_another_failed_is_not_counted_beside_it() {
        let mut together = stalled();
        assert_eq!(together.most(), BTreeSet::from([A, B, C]));
        assert_eq!(together.to_ask(3), BTreeSet::from([A, B, C]));
        assert_eq!(together.to_ask(4), BTreeSet::new());
        together.testified(A, life(2), &[(C, life(3))]);
        assert_eq!(together.most(), BTreeSet::from([A, B]));
    }

    #[test]
    fn only_a_life_that_ended_counts_as_having_outlived_a_recovery() {
        let mut together = stalled();
        together.testified(A, life(2), &[(C, life(4)), (B, life(2))]);
        assert_eq!(together.most(), BTreeSet::from([A, B, C]));
        // C failed twice, and heard of A's recovery only in between.
        together.down(C, life(5));
        together.testified(A, life(2), &[(C, life(4))]);
        assert_eq!(together.most(), BTreeSet::from([A, B, C]));
    }

    #[test]
    fn a_witness_that_failed_again_is_asked_again() {
        let mut together = stalled();
        together.testified(A, life(2), &[(C, life(3))]);
        together.down(A, life(3));
        assert_eq!(together.most(), BTreeSet::from([A, B, C]));
        assert!(together.to_ask(3).contains(&A));
        together.asked(A);
        assert!(together.waits() && !together.to_ask(3).contains(&A));
        together.session_changed(A);
        assert!(!together.waits() && together.to_ask(3).contains(&A));
    }

    /// That it failed once more, and came back before this node greeted it again, is not heard of.
    #[test]
    fn a_witness_that_speaks_in_a_later_life_has_answered() {
        let mut together = stalled();
        together.testified(A, life(7), &[]);
        assert_eq!(together.to_ask(3), BTreeSet::from([B, C]));
        assert_eq!(together.most(), BTreeSet::from([A, B, C]));
        together.testified(A, life(7), &[(C, life(3))]);
        assert_eq!(together.most(), BTreeSet::from([A, B]));
    }

    #[test]
    fn who_is_heard_to_be_recovered_in_time_is_never_counted() {
        let mut together = Together::default();
        for number in 2..10 {
            together.down(A, life(number));
            together.recovered(A);
            together.down(B, life(number));
            together.recovered(B);
        }
        assert_eq!(together.most().len(), 1);
        assert_eq!(together.to_ask(2), BTreeSet::new());
    }

    #[test]
    fn past_its_limit_too_many_count_as_down_and_never_too_few() {
        let mut together = Together::default();
        for number in 2..2000 {
            together.down(A, life(number));
            together.recovered(A);
        }
        together.down(B, life(2));
        assert!(together.heard.len() <= HEARD_MAX);
        assert_eq!(together.most().len(), 1, "its last recovery is remembered");
        let mut together = Together::default();
        together.down(A, life(2));
        together.recovered(A);
        together.down(B, life(2));
        together.down(A, life(3));
        together.forget_oldest_recovery();
        let whole = Episode { node: A, first: life(2), last: life(3) };
        let other = Episode { node: B, first: life(2), last: life(2) };
        assert_eq!(together.heard, [Heard::Down(whole), Heard::Down(other)]);
    }
}
