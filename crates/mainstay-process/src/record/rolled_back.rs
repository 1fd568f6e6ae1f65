//! Kind 25: every delivery above this index that stands before this record is void: it depended on a state that another node lost.
//! Delivery index (u64), the node whose loss it was (u32), then, to the end of the record, what is known of lost states, in the
//! encoding of the policy.

use super::RecordError;
use mainstay_journal::record::Kind;
use mainstay_types::codec::Reader;
use mainstay_types::id::{DeliveryIndex, NodeId};

/// This record's kind.
pub const KIND: Kind = Kind(25);

/// How far a life was taken back, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolledBack {
    /// The last delivery that stays.
    pub keep: DeliveryIndex,
    /// The node that lost what the void deliveries depended on.
    pub lost: NodeId,
    /// What was known of lost states: the next life must not depend on them again.
    pub losses: Vec<u8>,
}

impl RolledBack {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.keep.0.to_le_bytes().to_vec();
        out.extend_from_slice(&self.lost.0.to_le_bytes());
        out.extend_from_slice(&self.losses);
        out
    }

    /// Reads the record.
    ///
    /// # Errors
    /// [`RecordError`] when the bytes are not such a record.
    pub fn decode(payload: &[u8]) -> Result<Self, RecordError> {
        let mut reader = Reader::new(payload);
        let (keep, lost) = (DeliveryIndex(reader.u64()?), NodeId(reader.u32()?));
        Ok(Self { keep, lost, losses: reader.rest().to_vec() })
    }
}
