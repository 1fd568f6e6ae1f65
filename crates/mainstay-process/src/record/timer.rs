//! Kind 18: a timer is due. Prefix, timer number (u64).

use super::RecordError;
use mainstay_journal::record::Kind;
use mainstay_types::codec::Reader;

/// This record's kind.
pub const KIND: Kind = Kind(18);

pub(crate) fn put(timer: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&timer.to_le_bytes());
}

pub(crate) fn take(from: &mut Reader<'_>) -> Result<u64, RecordError> {
    Ok(from.u64()?)
}
