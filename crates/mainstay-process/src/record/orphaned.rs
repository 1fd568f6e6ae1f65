//! Kind 28: this node depends on what another one lost, and goes back behind the first delivery that does. The other node (u32), the last
//! delivery of this one when it found that out (u64), how many ended lives of the other follow (u32), and of each its number and the last
//! delivery that was recovered (u64 each). A record of kind 25 that names the same node says that it is done.

use super::RecordError;
use mainstay_journal::record::Kind;
use mainstay_types::codec::Reader;
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId};

/// This record's kind.
pub const KIND: Kind = Kind(28);

/// What a node depends on that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphaned {
    /// Who lost it.
    pub lost: NodeId,
    /// The last delivery of this node when it found out.
    pub executed: DeliveryIndex,
    /// The lives of the other node that ended, each with the last delivery that was recovered: what they delivered behind that is lost.
    pub ends: Vec<(Incarnation, DeliveryIndex)>,
}

impl Orphaned {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.lost.0.to_le_bytes().to_vec();
        out.extend_from_slice(&self.executed.0.to_le_bytes());
        let count = u32::try_from(self.ends.len()).expect("a greeting names at most 256");
        out.extend_from_slice(&count.to_le_bytes());
        for (life, last) in &self.ends {
            out.extend_from_slice(&life.0.to_le_bytes());
            out.extend_from_slice(&last.0.to_le_bytes());
        }
        out
    }

    /// Reads the record.
    ///
    /// # Errors
    /// [`RecordError`] when the bytes are not such a record.
    pub fn decode(payload: &[u8]) -> Result<Self, RecordError> {
        let mut reader = Reader::new(payload);
        let (lost, executed) = (NodeId(reader.u32()?), DeliveryIndex(reader.u64()?));
        let mut ends = Vec::new();
        for _ in 0..reader.u32()? {
            ends.push((Incarnation(reader.u64()?), DeliveryIndex(reader.u64()?)));
        }
        Ok(Self { lost, executed, ends })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_back_and_no_truncation_is_accepted() {
        let ends = vec![(Incarnation(2), DeliveryIndex(7)), (Incarnation(5), DeliveryIndex(9))];
        let orphaned = Orphaned { lost: NodeId(3), executed: DeliveryIndex(20), ends };
        let bytes = orphaned.encode();
        assert_eq!(Orphaned::decode(&bytes), Ok(orphaned));
        for length in 0..bytes.len() {
            assert!(Orphaned::decode(&bytes[..length]).is_err(), "cut at {length}");
        }
    }
}
