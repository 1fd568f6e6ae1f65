//! What every delivery record begins with: the determinant.

use super::RecordError;
use crate::summary::Summary;
use mainstay_types::codec::Reader;
use mainstay_types::id::DeliveryIndex;
use mainstay_types::time::Time;

/// Place, time and randomness of a delivery, and proof of what an earlier one did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The place of this delivery.
    pub delivery: DeliveryIndex,
    /// What the handler sees as now.
    pub now: Time,
    /// Seed of the handler's randomness.
    pub seed: u64,
    /// The last delivery that had been executed when this record was written.
    pub executed: DeliveryIndex,
    /// What that one did.
    pub summary: Summary,
}

impl Prefix {
    /// Encoded length, in bytes.
    pub const BYTES: usize = 32 + Summary::BYTES;

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        for word in [self.delivery.0, self.now.0, self.seed, self.executed.0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.summary.bytes());
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        Ok(Self {
            delivery: DeliveryIndex(from.u64()?),
            now: Time(from.u64()?),
            seed: from.u64()?,
            executed: DeliveryIndex(from.u64()?),
            summary: Summary::take(from)?,
        })
    }
}
