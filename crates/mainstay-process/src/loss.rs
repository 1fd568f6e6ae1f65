//! What a node knows to be lost for good, because more nodes failed at once than a logging policy survives.

use crate::record::orphaned::Orphaned;
use crate::record::rolled_back::RolledBack;
use mainstay_channel::refusal::Refusal;
use mainstay_types::determinant::Point;
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId, Ssn};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Losses that a life remembers, for [`crate::process::Process::losses`]; beyond it the oldest is forgotten there.
pub const LOSSES_MAX: usize = 256;

/// Undone requests that are named, at most; all are counted.
pub const UNDONE_REQUESTS_NAMED_MAX: usize = 64;

/// Why a life gave itself up: it depends on a state that another node lost, and the next life leaves out what does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RollBack {
    /// Everything above a delivery that the optimistic protocol names: within what it survives.
    To(RolledBack),
    /// Everything from the first delivery on that depends on what more failures than a policy survives have lost.
    Orphan(Orphaned),
}

impl RollBack {
    /// The node whose loss it was.
    #[must_use]
    pub fn lost(&self) -> NodeId {
        match self {
            Self::To(rolled_back) => rolled_back.lost,
            Self::Orphan(orphaned) => orphaned.lost,
        }
    }
}

/// One loss, as a node states it. Within what its policies survive a cluster states none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// This node recovered while others did, whose copies it may have needed. Whatever it delivered in `life` behind `recovered` is
    /// lost, if there was anything, with every answer and message that was made of it; it goes on from there.
    Recovered {
        /// The life that ended.
        life: Incarnation,
        /// The last delivery that was recovered.
        recovered: DeliveryIndex,
        /// Who recovered at the same time; nobody where only what another node depends on tells that something is lost.
        together_with: Vec<NodeId>,
    },
    /// This node depended on what `lost_by` lost, and went back behind the first delivery that did. What it had delivered behind `kept`, in `life` or
    /// before, is undone, with every answer and output made of it that had left. Messages of others among it are delivered anew.
    Undone {
        /// The life that ended.
        life: Incarnation,
        /// The last delivery that stays.
        kept: DeliveryIndex,
        /// The last delivery when the node found out.
        executed: DeliveryIndex,
        /// The node that lost what it depended on.
        lost_by: NodeId,
        /// Requests of clients that are undone: a repetition is executed as a new one.
        requests: u64,
        /// Outputs of deliveries that are undone, as far as the journal tells.
        outputs: u64,
        /// The identities of the first [`UNDONE_REQUESTS_NAMED_MAX`] of the requests.
        named: Vec<String>,
    },
    /// A node depends on a delivery that this one lost, and has to go back behind it. Until it has, the two refuse each other.
    Orphan {
        /// The node that would have to go back.
        orphan: NodeId,
        /// The node that lost what it depends on.
        lost_by: NodeId,
        /// The highest delivery of that node that it depends on.
        depends_on: Point,
        /// The last delivery that was recovered.
        recovered: DeliveryIndex,
    },
    /// The same, seen by the numbers of messages: a node holds more of them than another one's recovered history sent.
    Ahead {
        /// The node that would have to go back.
        orphan: NodeId,
        /// The node whose messages are lost.
        lost_by: NodeId,
        /// The last message that the one holds.
        received: Ssn,
        /// The last message that the other one's history sent.
        sent: Ssn,
    },
}

impl Loss {
    /// The loss that node `me` states by refusing a peer; `None` if the refusal is for another reason.
    #[must_use]
    pub(crate) fn of(me: NodeId, refusal: &Refusal) -> Option<Self> {
        match *refusal {
            Refusal::PeerOrphaned { node, depends_on, recovered, .. } => {
                Some(Self::Orphan { orphan: node, lost_by: me, depends_on, recovered })
            }
            Refusal::Orphaned { node, depends_on, recovered, .. } => {
                Some(Self::Orphan { orphan: me, lost_by: node, depends_on, recovered })
            }
            Refusal::Ahead { node, received, appended } => {
                Some(Self::Ahead { orphan: node, lost_by: me, received, sent: appended })
            }
            _ => None,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recovered { life, recovered, together_with } => {
                let others: Vec<_> = together_with.iter().map(ToString::to_string).collect();
                let beyond = match others.as_slice() {
                    [] => "recovered less than another node depends on, so that more had failed than the policy survives".to_owned(),
                    _ => format!(
                        "recovered at the same time as {}, which is more than the policy survives",
                        others.join(", ")
                    ),
                };
                write!(
                    f,
                    "{beyond}: what this node delivered in life {life} behind {recovered} is lost, if there was anything, with every \
                     answer made of it"
                )
            }
            Self::Undone { life, kept, executed, lost_by, requests, outputs, named } => {
                write!(
                    f,
                    "depended on what {lost_by} lost, and went back: what this node delivered behind {kept} in life {life} or before, up to \
                     {executed} or further, is undone, with every answer and output made of it that had left: {requests} requests, {outputs} \
                     outputs"
                )?;
                let quoted: Vec<String> = named.iter().map(|name| format!("`{name}`")).collect();
                match named.len() as u64 {
                    0 => Ok(()),
                    all if all == *requests => {
                        write!(f, " (undone requests, by their keys: {})", quoted.join(", "))
                    }
                    some => {
                        write!(
                            f,
                            " (the first {some} of the undone requests, by their keys: {})",
                            quoted.join(", ")
                        )
                    }
                }
            }
            Self::Orphan { orphan, lost_by, depends_on, recovered } => write!(
                f,
                "{orphan} depends on {} of life {} of {lost_by}, which lost all behind {recovered}: {orphan} has to go \
                 back behind that, and until then the two refuse each other",
                depends_on.delivery, depends_on.incarnation
            ),
            Self::Ahead { orphan, lost_by, received, sent } => write!(
                f,
                "{orphan} holds messages of {lost_by} up to {received}, which now knows of those up to {sent}: {orphan} has to go back \
                 behind that, and until then the two refuse each other"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loss can show by what a peer depends on alone: then nobody recovered at the same time, and nobody is named.
    #[test]
    fn a_loss_names_those_who_recovered_together_only_where_there_are_any() {
        let said = |together_with: &[u32]| {
            let together_with = together_with.iter().copied().map(NodeId).collect();
            let (life, recovered) = (Incarnation(1), DeliveryIndex(7));
            Loss::Recovered { life, recovered, together_with }.to_string()
        };
        let (two, none) = (said(&[2, 3]), said(&[]));
        assert!(
            two.starts_with(&format!("recovered at the same time as {}, {}, which", NodeId(2), NodeId(3))),
            "{two}"
        );
        assert!(none.starts_with("recovered less than another node depends on, so"), "{none}");
    }

    #[test]
    fn undone_requests_are_named_as_what_they_are_and_as_how_many_of_them() {
        let said = |requests| {
            let (life, lost_by) = (Incarnation(1), NodeId(2));
            let (kept, executed) = (DeliveryIndex(7), DeliveryIndex(9));
            let named = ["a", "b"].map(str::to_owned).to_vec();
            Loss::Undone { life, kept, executed, lost_by, requests, outputs: 0, named }.to_string()
        };
        assert!(said(2).ends_with("(undone requests, by their keys: `a`, `b`)"), "{}", said(2));
        assert!(
            said(9).ends_with("(the first 2 of the undone requests, by their keys: `a`, `b`)"),
            "{}",
            said(9)
        );
    }
}
