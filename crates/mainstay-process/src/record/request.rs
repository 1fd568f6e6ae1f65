//! Kind 17: a request of a client. Prefix, identity tag, identity (a key with the time at which it is forgotten), then the
//! body to the end of the record.

use super::RecordError;
use crate::event::Identity;
use mainstay_journal::record::Kind;
use mainstay_types::codec::{Reader, put_bytes};
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use mainstay_types::time::Time;

/// This record's kind.
pub const KIND: Kind = Kind(17);

const TAG_NONE: u8 = 0;
const TAG_KEY: u8 = 1;
const TAG_CLIENT: u8 = 2;

pub(crate) fn put(identity: &Identity, expires: Option<Time>, out: &mut Vec<u8>) {
    match identity {
        Identity::None => out.push(TAG_NONE),
        Identity::Key(key) => {
            out.push(TAG_KEY);
            put_bytes(out, key);
            let expires = expires.expect("a key is logged with the time at which it is forgotten");
            out.extend_from_slice(&expires.0.to_le_bytes());
        }
        Identity::Client { client, thread, sequence } => {
            out.push(TAG_CLIENT);
            out.extend_from_slice(&client.0.to_le_bytes());
            out.extend_from_slice(&thread.0.to_le_bytes());
            out.extend_from_slice(&sequence.0.to_le_bytes());
        }
    }
}

pub(crate) fn take(from: &mut Reader<'_>) -> Result<(Identity, Option<Time>), RecordError> {
    let mut expires = None;
    let identity = match from.u8()? {
        TAG_NONE => Identity::None,
        TAG_KEY => {
            let key = from.bytes()?.to_vec();
            expires = Some(Time(from.u64()?));
            Identity::Key(key)
        }
        TAG_CLIENT => Identity::Client {
            client: ClientId(from.u64()?),
            thread: ThreadId(from.u32()?),
            sequence: Sequence(from.u64()?),
        },
        tag => return Err(RecordError::Unknown { field: "identity", value: u64::from(tag) }),
    };
    Ok((identity, expires))
}
