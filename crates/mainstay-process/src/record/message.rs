//! Kind 24: a message of another node. Prefix, sender (u32), number on the link (u64), the sender's life and delivery (u64 each), stamp
//! (length and bytes: what the message depends on, in its policy's own encoding), then the body to the end of the record.

use super::RecordError;
use mainstay_journal::record::Kind;
use mainstay_types::codec::{Reader, put_bytes};
use mainstay_types::determinant::Point;
use mainstay_types::id::{NodeId, Ssn};

/// This record's kind.
pub const KIND: Kind = Kind(24);

pub(crate) fn put(from: NodeId, ssn: Ssn, origin: Point, stamp: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&from.0.to_le_bytes());
    out.extend_from_slice(&ssn.0.to_le_bytes());
    origin.put(out);
    put_bytes(out, stamp);
}

pub(crate) fn take(from: &mut Reader<'_>) -> Result<(NodeId, Ssn, Point, Vec<u8>), RecordError> {
    Ok((NodeId(from.u32()?), Ssn(from.u64()?), Point::take(from)?, from.bytes()?.to_vec()))
}
