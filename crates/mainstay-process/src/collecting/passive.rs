//! Whether nodes that recover can still bring each other anything: the end of their replays, found by all of them.
//!
//! ```text
//!   replays what it can ──> passive: says so to all that recover, behind all it has made, and how far each of them is as far as it has heard
//!        ^                     │
//!        └── something came ───┤
//!                              └── all of them have said the same ──> nobody has anything for anybody: what is missing is lost
//! ```
//! Why that is so is proven in docs/message-logging.md ("A hole is a hole when all are passive"). It is the detection of termination with counts for each
//! channel (Mattern 1987); a replay makes the same things for others again, so that how far it came says how much it made.
//!
//! Only asked for where more failed together than the policies survive: else nothing that anybody depends on is missing.

use crate::collecting::Collecting;
use crate::effect::Effect;
use crate::handler::Handler;
use crate::lifecycle::Life;
use crate::process::Process;
use mainstay_channel::frame::{Frame, Reached};
use mainstay_journal::memory::PageMemory;
use mainstay_types::id::{Incarnation, NodeId};
use std::collections::BTreeMap;

/// What those that recover have said to each other of how far they are.
#[derive(Debug, Default)]
pub(crate) struct Passive {
    /// Somebody, this node or another one, does not take a hole for one before all are passive.
    asked: bool,
    /// Nothing that has come leads the replay on, and everybody has told.
    is: bool,
    /// By peer, what it was told last in this session.
    told: BTreeMap<NodeId, Vec<Reached>>,
    /// By peer, what it said last in this session.
    said: BTreeMap<NodeId, Vec<Reached>>,
}

impl Passive {
    pub(crate) fn set(&mut self, is: bool) {
        self.is = is;
    }

    /// A session with `peer` begins, or ended: it may go on from elsewhere, or have lost what it was told.
    pub(crate) fn session_changed(&mut self, peer: NodeId) {
        self.told.remove(&peer);
        self.said.remove(&peer);
    }

    /// What `peer` said of itself.
    fn own_word(&self, peer: NodeId) -> Option<Reached> {
        self.said.get(&peer)?.iter().copied().find(|reached| reached.node == peer)
    }
}

impl Collecting {
    /// How far all that recover are, `me` among them, as far as they have said.
    fn reached(&self, me: Reached) -> Vec<Reached> {
        let others = self.recovering().iter().filter_map(|&peer| self.passive.own_word(peer));
        let mut reached: Vec<Reached> = others.chain([me]).collect();
        reached.sort_unstable_by_key(|reached| reached.node);
        reached
    }

    /// Whether all that recover have said the same as `me` would.
    fn all_are_passive(&self, me: Reached) -> bool {
        let reached = self.reached(me);
        self.passive.is && self.recovering().iter().all(|peer| self.passive.said.get(peer) == Some(&reached))
    }
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    fn own_reach(&self) -> Option<Reached> {
        let node = self.config.cluster.as_ref()?.me;
        let life = Incarnation(self.incarnation.0);
        Some(Reached { node, life, delivery: self.history.tables.executed })
    }

    /// Whether nobody's replay can bring this node anything any more. If that is not known, all that recover are asked, by this node's own word.
    pub(crate) fn ask_whether_all_are_passive(&mut self) -> bool {
        let me = self.own_reach();
        let collecting = self.sessions.as_mut().and_then(|sessions| sessions.collecting.as_mut());
        let Some((me, collecting)) = me.zip(collecting) else { return true };
        let all = collecting.all_are_passive(me);
        collecting.passive.asked |= !all;
        all
    }

    /// Tells everybody who recovers that this node is passive, and how far all are, if somebody asks and it has not said so.
    pub(crate) fn say_passive(&mut self) {
        let Some(me) = self.own_reach().filter(|_| self.life == Life::Collecting) else { return };
        let collecting = self.sessions.as_ref().and_then(|sessions| sessions.collecting.as_ref());
        let Some(collecting) =
            collecting.filter(|collecting| collecting.passive.asked && collecting.passive.is)
        else {
            return;
        };
        let reached = collecting.reached(me);
        let untold = |peer: &&NodeId| collecting.passive.told.get(peer) != Some(&reached);
        let untold: Vec<NodeId> = collecting.recovering().iter().filter(untold).copied().collect();
        for peer in untold {
            self.put_made_for(peer);
            let Some(sessions) = &mut self.sessions else { return };
            sessions.put(peer, &Frame::Passive { reached: reached.clone() });
            if let Some(collecting) = &mut sessions.collecting {
                collecting.passive.told.insert(peer, reached.clone());
            }
        }
    }

    /// `peer`, which recovers, is passive.
    pub(crate) fn take_passive(&mut self, peer: NodeId, reached: Vec<Reached>, out: &mut Vec<Effect>) {
        if let Some(collecting) = self.sessions.as_mut().and_then(|sessions| sessions.collecting.as_mut()) {
            collecting.passive.asked = true;
            collecting.passive.said.insert(peer, reached);
            self.go_on_collecting(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::DeliveryIndex;

    fn reached(node: u32, delivery: u64) -> Reached {
        Reached { node: NodeId(node), life: Incarnation(2), delivery: DeliveryIndex(delivery) }
    }

    /// Node 1, passive beside the two others that recover.
    fn passive() -> Collecting {
        let mut collecting = Collecting::from(&[NodeId(2), NodeId(3)]);
        collecting.recovering.extend([NodeId(2), NodeId(3)]);
        collecting.passive.set(true);
        collecting
    }

    /// What the third sends to the second is on its way: the second repeats an earlier word of the third.
    #[test]
    fn a_hole_is_none_while_two_others_have_not_heard_the_same_of_each_other() {
        let (me, mut collecting) = (reached(1, 5), passive());
        collecting.passive.said.insert(NodeId(2), vec![me, reached(2, 7), reached(3, 8)]);
        collecting.passive.said.insert(NodeId(3), vec![me, reached(2, 7), reached(3, 9)]);
        assert!(!collecting.all_are_passive(me));
        // It was led on, and the third has not heard that yet.
        collecting.passive.said.insert(NodeId(2), vec![me, reached(2, 8), reached(3, 9)]);
        assert!(!collecting.all_are_passive(me));
        collecting.passive.said.insert(NodeId(3), vec![me, reached(2, 8), reached(3, 9)]);
        assert!(collecting.all_are_passive(me));
        assert!(!collecting.all_are_passive(reached(1, 6)), "they have not heard how far this one is");
        collecting.passive.set(false);
        assert!(!collecting.all_are_passive(me), "it replays");
    }

    #[test]
    fn who_recovered_is_in_no_list_and_an_earlier_session_counts_no_more() {
        let (me, mut collecting) = (reached(1, 5), passive());
        for peer in [2, 3].map(NodeId) {
            collecting.passive.said.insert(peer, vec![me, reached(2, 8), reached(3, 9)]);
        }
        assert!(collecting.all_are_passive(me));
        collecting.recovered(NodeId(3));
        assert!(!collecting.all_are_passive(me), "the second has not heard of that");
        collecting.passive.said.insert(NodeId(2), vec![me, reached(2, 8)]);
        assert!(collecting.all_are_passive(me));
        collecting.passive.session_changed(NodeId(2));
        assert!(!collecting.all_are_passive(me));
    }
}
