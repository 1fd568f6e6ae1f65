//! What a node knows to be lost for good, because more nodes failed at once than a logging policy survives.

use mainstay_channel::refusal::Refusal;
use mainstay_types::determinant::Point;
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId, Ssn};
use serde::{Deserialize, Serialize};
use std::fmt;

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
        /// Who recovered at the same time.
        together_with: Vec<NodeId>,
    },
    /// A node depends on a delivery that another one lost, and would have to go back behind it. One of the two is the node that says so;
    /// they refuse each other.
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
                write!(
                    f,
                    "recovered at the same time as {}, which is more than the policy survives: what this node delivered in life {life} \
                     behind {recovered} is lost, if there was anything, with every answer made of it",
                    others.join(", ")
                )
            }
            Self::Orphan { orphan, lost_by, depends_on, recovered } => write!(
                f,
                "{orphan} depends on {} of life {} of {lost_by}, which lost all behind {recovered}: {orphan} would have \
                 to go back behind that; the two refuse each other",
                depends_on.delivery, depends_on.incarnation
            ),
            Self::Ahead { orphan, lost_by, received, sent } => write!(
                f,
                "{orphan} holds messages of {lost_by} up to {received}, which now knows of those up to {sent}: {orphan} would have to go back \
                 behind that; the two refuse each other"
            ),
        }
    }
}
