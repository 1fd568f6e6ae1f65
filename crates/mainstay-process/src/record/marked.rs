//! Kind 27: here this node took its part in a snapshot of the cluster. A life after a crash finds it and does not take part a second
//! time, at another place of its history. The snapshot: number (u64), initiator (u32), its life (u64).

use super::RecordError;
use mainstay_journal::record::Kind;
use mainstay_types::codec::Reader;
use mainstay_types::snapshot::SnapshotId;

/// This record's kind.
pub const KIND: Kind = Kind(27);

pub(crate) fn encode(snapshot: SnapshotId) -> Vec<u8> {
    let mut out = Vec::with_capacity(SnapshotId::BYTES);
    snapshot.put(&mut out);
    out
}

/// Reads the record.
///
/// # Errors
/// [`RecordError`] when the bytes are not such a record.
pub fn decode(payload: &[u8]) -> Result<SnapshotId, RecordError> {
    Ok(SnapshotId::take(&mut Reader::new(payload))?)
}
