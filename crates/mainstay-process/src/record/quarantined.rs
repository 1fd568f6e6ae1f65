//! Kind 23: the verdict that a delivery is never tried again; itself a determinant. LSN of its record (u64), attempts (u32).

use super::RecordError;
use mainstay_journal::record::Kind;
use mainstay_types::codec::Reader;
use mainstay_types::id::Lsn;

/// This record's kind.
pub const KIND: Kind = Kind(23);

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// The record whose delivery is skipped.
    pub lsn: Lsn,
    /// How often it had been tried.
    pub attempts: u32,
}

impl Quarantined {
    pub(crate) fn encode(&self) -> [u8; 12] {
        let mut out = [0; 12];
        out[..8].copy_from_slice(&self.lsn.0.to_le_bytes());
        out[8..].copy_from_slice(&self.attempts.to_le_bytes());
        out
    }

    /// Reads the record.
    ///
    /// # Errors
    /// [`RecordError`] when the bytes are not such a record.
    pub fn decode(payload: &[u8]) -> Result<Self, RecordError> {
        let mut reader = Reader::new(payload);
        Ok(Self { lsn: Lsn(reader.u64()?), attempts: reader.u32()? })
    }
}
