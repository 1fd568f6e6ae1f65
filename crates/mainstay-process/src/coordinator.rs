//! Who takes a blocking snapshot: asks all nodes to block, waits until no message is on the way, has all cut, lets all go on.
//!
//! ```text
//!   blocked, all ──> draining ── all quiet, every channel empty: Cut ──> cutting ── all have cut: Done
//!                       └────────── a node is not blocked any more: Abort ──────────────┘
//! ```
//! It decides and performs nothing: the command `mainstay snapshot --blocking` asks over HTTP, the simulator by calling.
//!
//! *One look at each node is enough* to know that nothing is on the way (the channel counting of Mattern 1987, section 5), though the looks
//! are at different times. A node that is quiet does nothing more before a message comes. Assume that some message was delivered by its
//! receiver after the look at that one; of all such, take the first. Its sender's count was equal to the receiver's, so that it was sent
//! after the look at the sender; the sender was quiet then, so that it had delivered a message after that look, and earlier: a contradiction.
//!
//! *All cuts are of that state*: each node is blocked, in one life, from before the look until it has cut, and it says so. One whose block
//! ends sends nothing before a marker, behind which its peers cut first.

use crate::blocking::{BlockReport, Counted};
use mainstay_types::id::NodeId;
use mainstay_types::rules::{Rule, Rules};

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look at every node again.
    LookAgain,
    /// Have every node cut, then look again.
    Cut,
    /// Every node has cut, and no message was on the way. Let all go on; once all parts are final they are a line with empty channels.
    Done,
    /// The snapshot has failed: let all go on.
    Abort(Aborted),
}

/// Why a blocking snapshot has failed. The cluster is as it would be without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Aborted {
    /// A node has crashed, or has been blocked for as long as it may.
    #[error("{node} is not blocked any more: it crashed, or had to wait longer than its limit")]
    NotBlocked {
        /// Which.
        node: NodeId,
    },
    /// A node has cut before it was to.
    #[error("{node} has cut before nothing was on the way: somebody else takes a snapshot")]
    CutEarly {
        /// Which.
        node: NodeId,
    },
    /// A node was left out.
    #[error("{node} belongs to the cluster and was not named")]
    LeftOut {
        /// Which.
        node: NodeId,
    },
}

/// A blocking snapshot of which every node has said that it is blocked.
#[derive(Debug)]
pub struct Coordinator {
    cutting: bool,
    rules: Rules,
}

impl Coordinator {
    /// Begins when all nodes are blocked. The rules are all kept, except in the simulator.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { cutting: false, rules }
    }

    /// Takes what every node said when it was looked at, each once, since the last call.
    pub fn looked(&mut self, reports: &[BlockReport]) -> Next {
        if let Some(report) = reports.iter().find(|report| !report.blocked) {
            return Next::Abort(Aborted::NotBlocked { node: report.node });
        }
        if let Some(node) = left_out(reports) {
            return Next::Abort(Aborted::LeftOut { node });
        }
        if self.cutting {
            return if reports.iter().all(|report| report.cut) { Next::Done } else { Next::LookAgain };
        }
        if let Some(report) = reports.iter().find(|report| report.cut) {
            return Next::Abort(Aborted::CutEarly { node: report.node });
        }
        if unfinished(reports).is_some() && self.rules.keep(Rule::CutAfterDrained) {
            return Next::LookAgain;
        }
        self.cutting = true;
        Next::Cut
    }
}

/// What the nodes have not come to the end of, for people; `None` if nothing is on the way.
#[must_use]
pub fn unfinished(reports: &[BlockReport]) -> Option<String> {
    for report in reports {
        let BlockReport { node, waiting, at_most_once, .. } = report;
        if *waiting > 0 {
            return Some(format!("{waiting} deliveries wait at {node}"));
        }
        if *at_most_once > 0 {
            return Some(format!(
                "{at_most_once} outputs of {node} that are sent at most once have no outcome yet"
            ));
        }
    }
    for from in reports {
        for to in reports {
            let (Some(sent), Some(received)) = (link(from, to.node), link(to, from.node)) else { continue };
            if sent.sent != received.received {
                let messages = sent.sent.0.abs_diff(received.received.0);
                return Some(format!(
                    "{messages} messages from {} to {} are on their way",
                    from.node, to.node
                ));
            }
        }
    }
    None
}

fn link(report: &BlockReport, peer: NodeId) -> Option<&Counted> {
    report.links.iter().find(|link| link.peer == peer)
}

fn left_out(reports: &[BlockReport]) -> Option<NodeId> {
    let is_there = |node| reports.iter().any(|report| report.node == node);
    let peers = reports.iter().flat_map(|report| report.links.iter().map(|link| link.peer));
    peers.into_iter().find(|&node| !is_there(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::PartState;
    use mainstay_types::id::Ssn;

    fn report(node: u32, sent: u64, received: u64) -> BlockReport {
        let link = Counted { peer: NodeId(3 - node), sent: Ssn(sent), received: Ssn(received) };
        BlockReport {
            node: NodeId(node),
            blocked: true,
            waiting: 0,
            at_most_once: 0,
            links: vec![link],
            cut: false,
            part: PartState::Unknown,
        }
    }

    #[test]
    fn nobody_cuts_before_nothing_is_on_the_way() {
        let mut coordinator = Coordinator::new(Rules::KEPT);
        assert_eq!(coordinator.looked(&[report(1, 5, 2), report(2, 2, 4)]), Next::LookAgain);
        // Equal in sum, and not empty.
        assert_eq!(coordinator.looked(&[report(1, 5, 3), report(2, 2, 4)]), Next::LookAgain);
        let busy = BlockReport { waiting: 1, ..report(2, 2, 5) };
        assert_eq!(coordinator.looked(&[report(1, 5, 2), busy]), Next::LookAgain);
        let sending = BlockReport { at_most_once: 1, ..report(2, 2, 5) };
        assert_eq!(coordinator.looked(&[report(1, 5, 2), sending]), Next::LookAgain);
        assert_eq!(coordinator.looked(&[report(1, 5, 2), report(2, 2, 5)]), Next::Cut);
        let cut = |report| BlockReport { cut: true, ..report };
        assert_eq!(coordinator.looked(&[report(1, 5, 2), cut(report(2, 2, 5))]), Next::LookAgain);
        assert_eq!(coordinator.looked(&[cut(report(1, 5, 2)), cut(report(2, 2, 5))]), Next::Done);
    }

    #[test]
    fn a_node_whose_block_ended_or_that_was_not_named_ends_it() {
        let freed = BlockReport { blocked: false, cut: true, ..report(2, 0, 0) };
        let aborted = Next::Abort(Aborted::NotBlocked { node: NodeId(2) });
        assert_eq!(Coordinator::new(Rules::KEPT).looked(&[report(1, 0, 0), freed]), aborted);
        let early = BlockReport { cut: true, ..report(2, 0, 0) };
        let aborted = Next::Abort(Aborted::CutEarly { node: NodeId(2) });
        assert_eq!(Coordinator::new(Rules::KEPT).looked(&[report(1, 0, 0), early]), aborted);
        let aborted = Next::Abort(Aborted::LeftOut { node: NodeId(2) });
        assert_eq!(Coordinator::new(Rules::KEPT).looked(&[report(1, 0, 0)]), aborted);
    }
}
