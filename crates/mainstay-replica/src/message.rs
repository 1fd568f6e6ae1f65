//! What nodes and clients say to each other over the wire: a small head before the messages of group and regions. Bytes: docs/replica.md.

use crate::definition::RegionId;
use mainstay_group::message as group;
use mainstay_region::limits::Limits;
use mainstay_region::message as region;
use mainstay_types::codec::{Reader, Truncated};
use mainstay_types::id::{ClientId, ClusterId};
use mainstay_types::view::{JoinerId, MemberId, ViewId};

/// The version of the heads. A change of any of them changes it.
pub const PROTOCOL: u8 = 3;

/// Set in `born` of who is no member: the rest is of its store and its life. No view number is ever so high.
const OUTSIDE: u64 = 1 << 63;

/// How a process is called towards regions for as long as it is no member, and always where it asks to be filled: no two lives are ever called
/// the same, so that what is left of an image for an earlier life is not taken for this one's. The lives of a store that took the place of
/// another one at its address begin anew: 31 bits of the store's identity tell them apart, beside 32 bits of the life.
#[must_use]
pub fn outside(joiner: &JoinerId) -> MemberId {
    let [a, b, c, d, ..] = joiner.store.0;
    let store = u64::from(u32::from_le_bytes([a, b, c, d]) >> 1);
    let life = joiner.life.0 & u64::from(u32::MAX);
    MemberId { address: joiner.address, born: ViewId(OUTSIDE | (store << 32) | life) }
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// From group to group.
    Group(group::Message),
    /// From copy to copy.
    Region {
        /// The group.
        cluster: ClusterId,
        /// The region.
        region: RegionId,
        /// The life that speaks.
        from: MemberId,
        /// The life that is spoken to. Another one at the same address does not hear it.
        to: MemberId,
        /// What.
        message: region::Message,
    },
    /// From a client to a node.
    Request {
        /// The group.
        cluster: ClusterId,
        /// The region.
        region: RegionId,
        /// Who asks.
        client: ClientId,
        /// What.
        message: region::Message,
    },
    /// From a node to a client.
    Answer {
        /// The region.
        region: RegionId,
        /// Who answers: acknowledgements are counted by members.
        from: MemberId,
        /// Who asked.
        client: ClientId,
        /// What.
        message: region::Message,
    },
}

/// Bytes that are no message of this version. Nothing was changed; the connection is not to be used on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// They end within the head.
    #[error("the head of the message is too short: {0}")]
    Truncated(#[from] Truncated),
    /// Another version of the heads.
    #[error(
        "the message is of version {found} of the protocol of nodes, and this is version {PROTOCOL}: run the same version of mainstay on all nodes"
    )]
    Protocol {
        /// Its version.
        found: u8,
    },
    /// A kind of message that is not known.
    #[error("messages of kind {kind} are not known to this version")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// No message of a group.
    #[error(transparent)]
    Group(#[from] group::MessageError),
    /// No message of a region.
    #[error(transparent)]
    Region(#[from] region::MessageError),
}

impl Message {
    /// Appends its bytes. How long they are is the transport's to say.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(PROTOCOL);
        match self {
            Self::Group(message) => {
                out.push(1);
                message.put(out);
            }
            Self::Region { cluster, region, from, to, message } => {
                put_head(2, *cluster, *region, out);
                from.put(out);
                to.put(out);
                message.put(out);
            }
            Self::Request { cluster, region, client, message } => {
                put_head(3, *cluster, *region, out);
                out.extend_from_slice(&client.0.to_le_bytes());
                message.put(out);
            }
            Self::Answer { region, from, client, message } => {
                out.push(4);
                out.extend_from_slice(&region.0.to_le_bytes());
                from.put(out);
                out.extend_from_slice(&client.0.to_le_bytes());
                message.put(out);
            }
        }
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self, MessageError> {
        let mut from = Reader::new(bytes);
        let found = from.u8()?;
        if found != PROTOCOL {
            return Err(MessageError::Protocol { found });
        }
        match from.u8()? {
            1 => Ok(Self::Group(group::Message::parse(from.rest())?)),
            2 => {
                let (cluster, region) = take_head(&mut from)?;
                let (speaker, to) = (MemberId::take(&mut from)?, MemberId::take(&mut from)?);
                let message = region::Message::decode(from.rest(), limits)?;
                Ok(Self::Region { cluster, region, from: speaker, to, message })
            }
            3 => {
                let (cluster, region) = take_head(&mut from)?;
                let client = ClientId(from.u64()?);
                let message = region::Message::decode(from.rest(), limits)?;
                Ok(Self::Request { cluster, region, client, message })
            }
            4 => {
                let region = RegionId(from.u16()?);
                let (speaker, client) = (MemberId::take(&mut from)?, ClientId(from.u64()?));
                let message = region::Message::decode(from.rest(), limits)?;
                Ok(Self::Answer { region, from: speaker, client, message })
            }
            kind => Err(MessageError::Kind { kind }),
        }
    }
}

fn put_head(kind: u8, cluster: ClusterId, region: RegionId, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&cluster.0);
    out.extend_from_slice(&region.0.to_le_bytes());
}

fn take_head(from: &mut Reader<'_>) -> Result<(ClusterId, RegionId), Truncated> {
    let cluster = ClusterId(from.take(16)?.try_into().expect("16 bytes were taken"));
    Ok((cluster, RegionId(from.u16()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_region::message::Body;
    use mainstay_types::id::{Incarnation, StoreId};
    use mainstay_types::view::Address;

    fn joiner() -> JoinerId {
        JoinerId { address: Address::v4([10, 0, 0, 1], 7171), store: StoreId([1; 16]), life: Incarnation(3) }
    }

    #[test]
    fn each_message_reads_back_and_every_shorter_one_is_refused() {
        let (cluster, region) = (ClusterId([9; 16]), RegionId(2));
        let (from, to) = (outside(&joiner()), MemberId { born: ViewId(4), ..outside(&joiner()) });
        let position = region::Message {
            view: ViewId(4),
            shard: 1,
            body: Body::Positions { positions: vec![(1, 77)], sent_ns: 5 },
        };
        let beat = group::Message {
            cluster: Some(cluster),
            view: ViewId(4),
            from: joiner(),
            body: group::Body::Beat { sent: 1, echo: 2, grants: true, ready: true },
        };
        let messages = [
            Message::Group(beat),
            Message::Region { cluster, region, from, to, message: position.clone() },
            Message::Request { cluster, region, client: ClientId(5), message: position.clone() },
            Message::Answer { region, from: to, client: ClientId(5), message: position },
        ];
        for message in messages {
            let mut bytes = Vec::new();
            message.put(&mut bytes);
            assert_eq!(Message::parse(&bytes, &Limits::default()), Ok(message.clone()));
            for length in 0..bytes.len() {
                assert!(Message::parse(&bytes[..length], &Limits::default()).is_err(), "{length} bytes");
            }
            bytes.push(0);
            assert!(Message::parse(&bytes, &Limits::default()).is_err(), "a byte more");
            let found = PROTOCOL + 1;
            bytes[0] = found;
            assert_eq!(Message::parse(&bytes, &Limits::default()), Err(MessageError::Protocol { found }));
        }
    }

    #[test]
    fn a_life_outside_has_a_name_that_no_member_and_no_other_life_has() {
        let next = JoinerId { life: Incarnation(4), ..joiner() };
        assert_ne!(outside(&joiner()), outside(&next));
        let replaced = JoinerId { store: StoreId([4; 16]), ..joiner() };
        assert_ne!(outside(&joiner()), outside(&replaced));
        assert!(outside(&joiner()).born > ViewId(u64::MAX / 2));
    }
}
