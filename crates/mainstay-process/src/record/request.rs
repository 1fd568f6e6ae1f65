//! Kind 17: a request of a client. Prefix, identity tag, identity, then the body to the end of the record.

use super::RecordError;
use crate::event::Identity;
use mainstay_journal::record::Kind;
use mainstay_types::codec::{Reader, put_bytes};
use mainstay_types::id::{ClientId, Sequence, ThreadId};

/// This record's kind.
pub const KIND: Kind = Kind(17);

const TAG_NONE: u8 = 0;
const TAG_KEY: u8 = 1;
const TAG_CLIENT: u8 = 2;

pub(crate) fn put(identity: &Identity, out: &mut Vec<u8>) {
    match identity {
        Identity::None => out.push(TAG_NONE),
        Identity::Key(key) => {
            out.push(TAG_KEY);
            put_bytes(out, key);
        }
        Identity::Client { client, thread, sequence } => {
            out.push(TAG_CLIENT);
            out.extend_from_slice(&client.0.to_le_bytes());
            out.extend_from_slice(&thread.0.to_le_bytes());
            out.extend_from_slice(&sequence.0.to_le_bytes());
        }
    }
}

pub(crate) fn take(from: &mut Reader<'_>) -> Result<Identity, RecordError> {
    match from.u8()? {
        TAG_NONE => Ok(Identity::None),
        TAG_KEY => Ok(Identity::Key(from.bytes()?.to_vec())),
        TAG_CLIENT => Ok(Identity::Client {
            client: ClientId(from.u64()?),
            thread: ThreadId(from.u32()?),
            sequence: Sequence(from.u64()?),
        }),
        tag => Err(RecordError::Unknown { field: "identity", value: u64::from(tag) }),
    }
}
