//! What members and clients say to each other. Encoded with postcard, in the order of the fields here; docs/region.md has the bytes.

use crate::blob::Blob;
use crate::duplicates::{Seen, Thread};
use crate::limits::Limits;
use crate::log::Entry;
use crate::operation::{Operation, Outcome, TooLong};
use crate::patterns::Pattern;
use crate::state::{Applied, Stored};
use mainstay_types::id::{ClientId, ThreadId};
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::view::{MemberId, ViewId};
use serde::{Deserialize, Serialize};

/// Who speaks or is spoken to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Party {
    /// A member, in one of its lives.
    Member(MemberId),
    /// A client.
    Client(ClientId),
}

/// What one says to another, in one view.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    /// The view in which it is said: a member in another view does nothing about it.
    pub view: ViewId,
    /// The shard that it is about; of answers of several shards one, which their stamper stamps; 0 where the body names shards, or a client tells
    /// operations by their identities.
    pub shard: u16,
    /// What is said.
    pub body: Body,
}

/// How [`Body::Relay`] begins.
const RELAY: u32 = 9;

/// Whom a member tells that it has accepted an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Acknowledge {
    /// The stamper.
    Stamper,
    /// The client.
    Client(ClientId),
    /// The next member in order of age; the last one tells the client.
    Chain(ClientId),
    /// Nobody.
    Nobody,
}

/// An entry on its way to a copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Numbered {
    /// The shard.
    pub shard: u16,
    /// Its counter.
    pub counter: u64,
    /// What it stands for.
    pub entry: Entry,
    /// Whom to tell that it is accepted.
    pub acknowledge: Acknowledge,
}

/// How far a shard is, as its stamper says, or the predecessor in the chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reached {
    /// The shard.
    pub shard: u16,
    /// Up to here it is stable.
    pub stable: u64,
    /// Up to here every member has it.
    pub everywhere: u64,
}

/// Which state a read is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Freshness {
    /// All that was acknowledged before the read began: at the stamper alone, while its lease runs.
    Linearizable,
    /// The stable state of any copy; the answer says its version and its age.
    Any,
}

/// What is read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Query {
    /// One key.
    Get {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
    /// The entries of the shard whose keys begin so, in their order.
    Scan {
        /// How they begin.
        #[serde(with = "serde_bytes")]
        prefix: Vec<u8>,
        /// Only those behind this one.
        #[serde(with = "serde_bytes")]
        after: Option<Vec<u8>>,
    },
    /// The same without their values, which come empty.
    Keys {
        /// How they begin.
        prefix: Vec<u8>,
        /// Only those behind this one.
        after: Option<Vec<u8>>,
        /// At most so many, and at most [`Limits::scan_entries_max`].
        entries_max: u32,
    },
}

/// Why something is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The server is in another view, or between two: ask for the view, and try again.
    #[error("the server is in view {0}, or on its way out of it")]
    OtherView(ViewId),
    /// A limit is reached: try again later.
    #[error("the limit {0} is reached")]
    Busy(Limit),
    /// The operation is older than what is remembered of its thread. It may have taken effect; it will not again.
    #[error("the operation is older than what is remembered of its thread")]
    Obsolete,
    /// The client was forgotten. The operation may have taken effect; it will not again. The client goes on under a new number.
    #[error("the client is not remembered any more")]
    Evicted,
    /// Too long a key or value. Nothing was done.
    #[error(transparent)]
    TooLong(TooLong),
    /// Only the stamper can do it.
    #[error("this member does not stamp the shard")]
    NotStamper,
    /// The stamper's lease has run out: it does not know whether it is still the stamper.
    #[error("the stamper's lease has run out")]
    NoLease,
    /// The history does not go back so far.
    #[error("the history begins behind version {0}")]
    TooOld(Version),
    /// A key does not belong to the shard: those of operations that are done as one must all belong to it.
    #[error("a key does not belong to the shard")]
    OtherShard,
    /// The region keeps versions and the operation has none, or the other way round.
    #[error("the region does not do operations of this pattern")]
    OtherPattern,
    /// There is no such shard.
    #[error("there is no such shard")]
    NoShard,
    /// The stamper gave the operation a version and has not seen its payload: it may have taken effect at the others.
    #[error("the stamper has not seen the operation that it gave a version to")]
    NotSettled,
    /// The region requires a role that no member of the view offers. Nothing was done.
    #[error("the region requires a role that no member offers")]
    RoleMissing,
}

/// A limit of [`Limits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Limit {
    /// [`Limits::log_entries_max`].
    LogEntries,
    /// [`Limits::hold_back_entries_max`].
    HoldBackEntries,
    /// [`Limits::held_payloads_max`], [`Limits::held_payload_bytes_max`] or [`Limits::held_payloads_per_client_max`].
    HeldPayloads,
    /// [`Limits::grants_max`].
    Grants,
    /// [`Limits::waiting_max`].
    Waiting,
    /// [`Limits::subscribers_max`].
    Subscribers,
    /// [`Limits::log_bytes_max`].
    LogBytes,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::LogEntries => "log_entries_max",
            Self::HoldBackEntries => "hold_back_entries_max",
            Self::HeldPayloads => "held_payloads_max",
            Self::Grants => "grants_max",
            Self::Waiting => "waiting_max",
            Self::Subscribers => "subscribers_max",
            Self::LogBytes => "log_bytes_max",
        })
    }
}

/// An acknowledgement of an operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Acknowledged {
    /// Whose.
    pub id: OperationId,
    /// Version and outcome.
    pub seen: Seen,
    /// It is answered from the duplicate table: an earlier attempt took effect.
    pub duplicate: bool,
    /// It is stable; else one more copy has it.
    pub stable: bool,
}

/// What is said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    /// Client to any server: do this; the first attempt goes to the stamper and names the pattern, others go anywhere, by one hop.
    Operate {
        /// Whose.
        id: OperationId,
        /// The client has asked before.
        retry: bool,
        /// How the version and the acknowledgements travel.
        pattern: Pattern,
        /// What.
        operation: Operation,
    },
    /// Client to stamper: give me a version.
    VersionRequest {
        /// For what.
        id: OperationId,
    },
    /// Stamper to client: your version.
    Granted {
        /// For what.
        id: OperationId,
        /// The version's counter, in the view of the message.
        counter: u64,
    },
    /// Client to a member: an operation with its version.
    Payload {
        /// Whose.
        id: OperationId,
        /// Its counter.
        counter: u64,
        /// What.
        operation: Operation,
    },
    /// Client to every member: an operation that the stamper will tell you the version of.
    Tagged {
        /// Whose.
        id: OperationId,
        /// What.
        operation: Operation,
    },
    /// Client to every member: an operation without version.
    Unversioned {
        /// Whose.
        id: OperationId,
        /// What.
        operation: Operation,
    },
    /// To the client: of one or more of its operations.
    Acknowledged(Vec<Acknowledged>),
    /// To the client.
    Refused {
        /// What is not done.
        id: OperationId,
        /// Why.
        refusal: Refusal,
    },
    /// Server to stamper: a client asked me.
    Forwarded {
        /// The operation's identity.
        id: OperationId,
        /// As the client said.
        retry: bool,
        /// What.
        operation: Operation,
    },
    /// Stamper to the server that forwarded: tell the client.
    Relay(Box<Self>),
    /// Stamper, or predecessor in the chain, to a member: entries with their versions, in the order in which they are to be taken.
    Entries {
        /// The entries, of one shard or several.
        entries: Vec<Numbered>,
        /// How far these shards are.
        reached: Vec<Reached>,
    },
    /// Stamper to a member: the version of a tagged operation.
    Stamp {
        /// Its counter.
        counter: u64,
        /// Which operation.
        id: OperationId,
        /// The stamper knows that the client asked before.
        possible_duplicate: bool,
    },
    /// Member to stamper: I have everything up to here.
    Positions {
        /// Shards, each with a counter.
        positions: Vec<(u16, u64)>,
        /// When it is said, by the member's clock, in nanoseconds.
        sent_ns: u64,
    },
    /// Stamper to a member: how far the shard is.
    Marks {
        /// Up to here it is stable.
        stable: u64,
        /// Up to here every member has it.
        everywhere: u64,
        /// `sent_ns` of the last `Positions` that came from this member; 0 if none came, or if the stamper has no lease.
        echo_ns: u64,
    },
    /// Stamper to a member: have you a payload for this version? If not, take none from the client any more.
    Inquire {
        /// The counter.
        counter: u64,
    },
    /// Member to stamper: I have not, and will not.
    Lacks {
        /// The counter.
        counter: u64,
    },
    /// Member to stamper: this is it.
    Has {
        /// The counter.
        counter: u64,
        /// What it stands for.
        entry: Entry,
    },
    /// Client to server.
    Read {
        /// The client's number for it.
        request: u64,
        /// What.
        query: Query,
        /// Which state.
        freshness: Freshness,
    },
    /// Server to client.
    Answer {
        /// The client's number for it.
        request: u64,
        /// The answer, or why there is none.
        found: Result<Found, Refusal>,
    },
    /// Client to any server: tell me all changes of the shard behind a version.
    Subscribe {
        /// The version.
        from: Version,
    },
    /// Server to subscriber: a change, each once and in order.
    Changed(Applied),
    /// Server to subscriber: no.
    NotSubscribed(Refusal),
    /// Client to stamper: has this taken effect?
    Inspect {
        /// What.
        id: OperationId,
    },
    /// Stamper to client, under its lease: it has not until now; an earlier attempt may still be under way.
    NotSeen {
        /// What.
        id: OperationId,
    },
    /// Joining member to a member: fill me.
    ImageRequest {
        /// The joining member's number for this image: what belongs to an earlier one is ignored.
        image: u64,
    },
    /// A part of an image, in its order.
    Image {
        /// The joining member's number for it.
        image: u64,
        /// Its place, from 0: a part that is missing makes the image begin anew.
        number: u64,
        /// What it holds.
        part: ImagePart,
    },
    /// Joining member: the part has come; send the next chunk.
    ImageNext {
        /// Its number for the image.
        image: u64,
    },
    /// Joining member: it is a full copy of its view; send no more.
    ImageTaken {
        /// Its number for the image.
        image: u64,
    },
}

/// A part of an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImagePart {
    /// The first: where the sender's shards stand.
    Began {
        /// The view that the sender's state belongs to.
        standing: ViewId,
        /// Of each shard, with the highest client that its duplicate table has forgotten.
        at: Vec<(Version, ClientId)>,
    },
    /// Entries of the map of the message's shard.
    Values(Vec<(Blob, Stored)>),
    /// Rows of its duplicate table.
    Duplicates(ThreadRows),
    /// All shards are sent; from now on only changes come.
    Complete,
    /// A version that became stable meanwhile.
    Change {
        /// What it changed.
        applied: Applied,
        /// Threads that the duplicate table has forgotten for it.
        forgotten: Vec<(ClientId, ThreadId)>,
    },
    /// The sender's state is the one that this view begins with.
    Standing(ViewId),
}

/// Rows of a duplicate table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ThreadRows {
    pub(crate) rows: Vec<((ClientId, ThreadId), Thread)>,
}

/// The answer to a read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Keys with values and the versions that set them; none, if the key is not there.
    pub entries: Vec<(Blob, Stored)>,
    /// There is more behind the last one.
    pub more: bool,
    /// Keys in the shard, whether asked for or not.
    pub keys: u64,
    /// The version that the state stood at.
    pub at: Version,
    /// So long ago, in nanoseconds, the stamper knew nothing to be stable that this state has not: 0 at the stamper under its lease. `None`: this copy
    /// has not heard of it in this view.
    pub age_ns: Option<u64>,
    /// Hash of the shard's whole map at that version.
    pub digest: u64,
}

/// What cannot be read. Nothing was changed; the connection is not to be used on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// These are no message of this version.
    #[error("the bytes are no message of a region")]
    Malformed,
    /// It goes on behind its last field.
    #[error("the message goes on for {bytes} bytes behind its end")]
    Trailing {
        /// Bytes too many.
        bytes: usize,
    },
    /// It is longer than any that the limits allow.
    #[error("a message of {bytes} bytes came, and the limit is {limit} bytes")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// [`Message::bytes_max`].
        limit: usize,
    },
}

/// Writes behind what is there already.
pub(crate) struct Behind<'a>(pub(crate) &'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Behind<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Bytes of a message besides keys, values and chunks.
const FIXED_BYTES_MAX: usize = 256;

impl Message {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes
    }

    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        postcard::serialize_with_flavor(self, Behind(out)).expect("a message can be written to memory");
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Self, MessageError> {
        let limit = Self::bytes_max(limits);
        if bytes.len() > limit {
            return Err(MessageError::TooLong { bytes: bytes.len(), limit });
        }
        // Nobody relays what is relayed; and what is decoded by recursion must not decide how deep that goes.
        let head = postcard::take_from_bytes::<(ViewId, u16, u32, u32)>(bytes);
        if let Ok(((_, _, RELAY, RELAY), _)) = head {
            return Err(MessageError::Malformed);
        }
        match postcard::take_from_bytes(bytes) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(MessageError::Trailing { bytes: rest.len() }),
            Err(_) => Err(MessageError::Malformed),
        }
    }

    /// The longest message that the limits allow, in bytes.
    #[must_use]
    pub fn bytes_max(limits: &Limits) -> usize {
        let entry = limits.key_bytes_max + 2 * limits.value_bytes_max + FIXED_BYTES_MAX;
        let row = limits.duplicate_results_max * FIXED_BYTES_MAX + limits.duplicate_result_bytes_max;
        let ended = limits.expire_keys_max * (limits.key_bytes_max + FIXED_BYTES_MAX);
        let together = limits.image_chunk_bytes_max.max(limits.together_bytes_max);
        let chunk = together.max(limits.scan_entries_max * entry);
        chunk + entry + row + limits.batch_bytes_max.max(ended)
    }
}

impl Body {
    /// The operation that it is about, if it is about one; of several of one client the first.
    #[must_use]
    pub fn operation(&self) -> Option<OperationId> {
        match self {
            Self::Operate { id, .. }
            | Self::VersionRequest { id }
            | Self::Granted { id, .. }
            | Self::Payload { id, .. }
            | Self::Tagged { id, .. }
            | Self::Unversioned { id, .. }
            | Self::Refused { id, .. }
            | Self::Inspect { id }
            | Self::NotSeen { id } => Some(*id),
            Self::Acknowledged(done) => done.first().map(|done| done.id),
            _ => None,
        }
    }

    /// Version and outcome, told to a client.
    #[must_use]
    pub fn acknowledged(id: OperationId, version: Version, outcome: Outcome) -> Acknowledged {
        Acknowledged { id, seen: Seen { version, outcome }, duplicate: false, stable: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::Sequence;

    #[test]
    fn what_is_relayed_relays_nothing_however_often_it_says_so() {
        let limits = Limits::default();
        let id = OperationId { client: ClientId(1), thread: ThreadId(0), sequence: Sequence(1) };
        let relayed = Body::Relay(Box::new(Body::NotSeen { id }));
        let message = |body| Message { view: ViewId(3), shard: 300, body };
        let once = message(relayed.clone()).encode();
        assert_eq!(Message::decode(&once, &limits), Ok(message(relayed.clone())));
        let twice = message(Body::Relay(Box::new(relayed))).encode();
        assert_eq!(Message::decode(&twice, &limits), Err(MessageError::Malformed));
        let head = &once[..once.iter().position(|&byte| byte == 9).expect("it relays")];
        // Also where the case is written with more bytes than it needs.
        for relay in [&[9][..], &[0x89, 0x00]] {
            let deep = [head, &relay.repeat(1 << 19)].concat();
            assert_eq!(Message::decode(&deep, &limits), Err(MessageError::Malformed));
        }
    }

    #[test]
    fn outcomes_of_a_batch_are_of_no_batch_however_often_they_say_so() {
        let limits = Limits::default();
        let id = OperationId { client: ClientId(1), thread: ThreadId(0), sequence: Sequence(1) };
        let version = Version { view: ViewId(3), counter: 1 };
        let message = |outcome| {
            let body = Body::Acknowledged(vec![Body::acknowledged(id, version, outcome)]);
            Message { view: ViewId(3), shard: 300, body }
        };
        let batch = Outcome::Batch(vec![Outcome::Written, Outcome::Counted(-1)]);
        let once = message(batch.clone()).encode();
        assert_eq!(Message::decode(&once, &limits), Ok(message(batch.clone())));
        let twice = message(Outcome::Batch(vec![batch])).encode();
        assert_eq!(Message::decode(&twice, &limits), Err(MessageError::Malformed));
        let case = once.windows(2).position(|bytes| bytes == [8, 2]).expect("a batch of two");
        let deep = [&once[..case], &[8, 1].repeat(1 << 19)].concat();
        assert_eq!(Message::decode(&deep, &limits), Err(MessageError::Malformed));
    }
}
