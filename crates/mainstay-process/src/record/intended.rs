//! Kind 22: an at-most-once output is about to be sent; after a crash it is in doubt. Output number (u64).

use super::RecordError;
use mainstay_journal::record::Kind;
use mainstay_types::codec::Reader;
use mainstay_types::id::OutputId;

/// This record's kind.
pub const KIND: Kind = Kind(22);

pub(crate) fn encode(output: OutputId) -> [u8; 8] {
    output.0.to_le_bytes()
}

/// Reads the record.
///
/// # Errors
/// [`RecordError`] when the bytes are not such a record.
pub fn decode(payload: &[u8]) -> Result<OutputId, RecordError> {
    Ok(OutputId(Reader::new(payload).u64()?))
}
