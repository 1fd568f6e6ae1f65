//! Kind 26: an outside input that this journal had lost and another node gave back. The life in which it was first delivered (u64), the
//! kind of its record (u16), then that record's payload.

use super::RecordError;
use mainstay_journal::record::Kind;
use mainstay_types::codec::Reader;
use mainstay_types::id::Generation;

/// This record's kind.
pub const KIND: Kind = Kind(26);

/// What stands before the record given back.
pub(crate) fn head(life: Generation, kind: Kind) -> [u8; 10] {
    let mut out = [0; 10];
    out[..8].copy_from_slice(&life.0.to_le_bytes());
    out[8..].copy_from_slice(&kind.0.to_le_bytes());
    out
}

/// Parts the record into the life, and kind and payload of what was given back.
///
/// # Errors
/// [`RecordError`] when the bytes are not such a record.
pub fn decode(payload: &[u8]) -> Result<(Generation, Kind, &[u8]), RecordError> {
    let mut reader = Reader::new(payload);
    Ok((Generation(reader.u64()?), Kind(reader.u16()?), reader.rest()))
}
