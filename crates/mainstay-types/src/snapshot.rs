//! The name of a snapshot of a cluster: the same at every node, greater for a later one.

use crate::codec::{Reader, Truncated};
use crate::id::{Incarnation, NodeId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which snapshot. Ordered: a node takes part in rising ones only, so that of two that begin at the same time at most one is finished.
///
/// Node and life tell apart what two nodes, or two lives of one that forgot, number alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct SnapshotId {
    /// One more than the highest that the initiator had heard of.
    pub number: u64,
    /// The node where it began.
    pub initiator: NodeId,
    /// The life of that node.
    pub life: Incarnation,
}

impl SnapshotId {
    /// Before the first: what a node that never took part says.
    pub const NONE: Self = Self { number: 0, initiator: NodeId(0), life: Incarnation(0) };

    /// Encoded length, in bytes.
    pub const BYTES: usize = 20;

    /// Appends the encoding: number (u64), node (u32), life (u64), little-endian.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.initiator.0.to_le_bytes());
        out.extend_from_slice(&self.life.0.to_le_bytes());
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    pub fn take(from: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self { number: from.u64()?, initiator: NodeId(from.u32()?), life: Incarnation(from.u64()?) })
    }
}

/// As in an address: number, node and life, with hyphens.
impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.number, self.initiator.0, self.life.0)
    }
}

/// A text that names no snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` names no snapshot: three numbers with hyphens are expected, as 7-1-3")]
pub struct NoSnapshot {
    /// What was given.
    pub given: String,
}

impl FromStr for SnapshotId {
    type Err = NoSnapshot;

    fn from_str(given: &str) -> Result<Self, NoSnapshot> {
        let mut parts = given.splitn(3, '-').map(|part| part.parse::<u64>().ok());
        let mut next = || parts.next().flatten();
        let read = next().zip(next()).zip(next());
        let id = read.and_then(|((number, node), life)| {
            let initiator = NodeId(u32::try_from(node).ok()?);
            Some(Self { number, initiator, life: Incarnation(life) })
        });
        id.ok_or_else(|| NoSnapshot { given: given.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_and_orders_by_number_first() {
        let one = SnapshotId { number: 7, initiator: NodeId(2), life: Incarnation(3) };
        assert_eq!(one.to_string().parse(), Ok(one));
        let later = SnapshotId { number: 8, initiator: NodeId(1), life: Incarnation(1) };
        assert!(one < later && SnapshotId::NONE < one);
        for bad in ["", "7", "7-2", "7-2-3-4", "7-2-x", "-1-2-3"] {
            assert!(bad.parse::<SnapshotId>().is_err(), "{bad}");
        }
        let mut bytes = Vec::new();
        one.put(&mut bytes);
        assert_eq!(bytes.len(), SnapshotId::BYTES);
        assert_eq!(SnapshotId::take(&mut Reader::new(&bytes)), Ok(one));
    }
}
