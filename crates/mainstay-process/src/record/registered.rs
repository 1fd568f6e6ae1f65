//! Kind 20: a client gets the next number. Prefix, then the number of the client whose place it takes (u64, 0 for none); its own
//! number follows from the order.

use super::RecordError;
use mainstay_journal::record::Kind;
use mainstay_types::codec::Reader;
use mainstay_types::id::ClientId;

/// This record's kind.
pub const KIND: Kind = Kind(20);

pub(crate) fn put(replaces: Option<ClientId>, out: &mut Vec<u8>) {
    out.extend_from_slice(&replaces.map_or(0, |client| client.0).to_le_bytes());
}

pub(crate) fn take(from: &mut Reader<'_>) -> Result<Option<ClientId>, RecordError> {
    let client = from.u64()?;
    Ok((client > 0).then_some(ClientId(client)))
}
