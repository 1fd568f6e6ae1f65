//! What a client and a server of a region say on a connection of their own, around the messages of the region. Bytes: docs/node.md.
//!
//! A client is a process of its own that speaks to every server. Whatever it says is taken as a client's: no frame here makes a member of it.

use crate::copies::Copies;
use crate::limits::{Acknowledgement, Limits};
use crate::message::{Message, MessageError};
use crate::patterns::Pattern;
use mainstay_types::codec::{Reader, Truncated};
use mainstay_types::id::{ClientId, ClusterId};
use mainstay_types::view::{MemberId, View, ViewError, ViewId};

/// How a client's connection begins.
pub const MAGIC: [u8; 4] = *b"MSC2";

/// Longest name of a region in a hello, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Longest explanation in a frame, in bytes; what is longer is cut.
pub const EXPLANATION_BYTES_MAX: usize = 1024;

/// Bytes before each frame: how long it is.
pub const LENGTH_BYTES: usize = 4;

/// The first words of a client, once: behind [`MAGIC`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The group that it means; `None`: whichever answers.
    pub cluster: Option<ClusterId>,
    /// The region's name.
    pub region: String,
}

/// What a client says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToServer {
    /// I am this client: what is said to it comes over this connection from now on.
    Named(ClientId),
    /// Give me a number that no client ever had.
    AskNumber,
    /// How do you stand?
    AskStanding,
    /// A message of the region.
    Message(Message),
}

/// What a server says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToClient {
    /// I serve this view. Said when a client comes, when it asks, and at every new view.
    Standing(Standing),
    /// I do not serve, and why.
    NotServing {
        /// A word for programs, a colon, and a sentence.
        explanation: String,
    },
    /// A new client's number.
    Number(ClientId),
    /// A message of the region.
    Message {
        /// Who speaks: acknowledgements are counted by members.
        from: MemberId,
        /// What.
        message: Message,
    },
    /// The region that is served is restricted in this view. Said behind each [`Self::Standing`] that it holds for.
    Restricted {
        /// The view.
        view: ViewId,
        /// Nothing is read either.
        reads: bool,
        /// What is missing, and what to do about it.
        explanation: String,
    },
    /// The connection ends here, and coming back as it is leads to the same.
    Refused {
        /// Why.
        reason: String,
    },
}

/// What a client must know of a region to speak to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// The group.
    pub cluster: ClusterId,
    /// Shards of the region.
    pub shards: u16,
    /// Who must have a write.
    pub acknowledgement: Acknowledgement,
    /// How first attempts travel, unless the client chooses otherwise.
    pub pattern: Pattern,
    /// The view that is served.
    pub view: View,
}

/// Bytes that are no frame of this version. Nothing was changed; the connection is not to be used on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversationError {
    /// They end within a field.
    #[error("the frame is too short: {0}")]
    Truncated(#[from] Truncated),
    /// A kind of frame, or a value, that this version does not know; or bytes behind the end.
    #[error("the bytes are no frame of this version")]
    Malformed,
    /// Not a view.
    #[error(transparent)]
    View(#[from] ViewError),
    /// Not a message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Longer than any frame.
    #[error("a frame of {bytes} bytes came, and the limit is {limit} bytes")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// [`to_client_bytes_max`] or [`to_server_bytes_max`].
        limit: usize,
    },
}

/// The longest frame to a client that the limits allow, in bytes: a scan of large values.
#[must_use]
pub fn to_client_bytes_max(limits: &Limits) -> usize {
    Message::bytes_max(limits) + EXPLANATION_BYTES_MAX
}

/// The longest frame to a server, in bytes: one operation, which may be a batch.
#[must_use]
pub fn to_server_bytes_max(limits: &Limits) -> usize {
    limits.key_bytes_max + limits.batch_bytes_max.max(2 * limits.value_bytes_max) + EXPLANATION_BYTES_MAX
}

/// Length of the first frame of `buffer`, without the bytes that say so; `None` if it is not whole yet.
///
/// # Errors
/// [`ConversationError::TooLong`].
pub fn first_frame(buffer: &[u8], bytes_max: usize) -> Result<Option<usize>, ConversationError> {
    let Some(length) = buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let bytes = u32::from_le_bytes(*length) as usize;
    if bytes > bytes_max {
        return Err(ConversationError::TooLong { bytes, limit: bytes_max });
    }
    Ok((buffer.len() >= LENGTH_BYTES + bytes).then_some(bytes))
}

impl Hello {
    /// Appends [`MAGIC`] and the hello.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.cluster.unwrap_or(ClusterId([0; 16])).0);
        let name = cut(&self.region, NAME_BYTES_MAX);
        out.push(u8::try_from(name.len()).expect("a name is short"));
        out.extend_from_slice(name.as_bytes());
    }

    /// Reads a hello that stands behind [`MAGIC`], if it is whole; and how many bytes it took.
    ///
    /// # Errors
    /// [`ConversationError::Malformed`].
    pub fn take(bytes: &[u8]) -> Result<Option<(Self, usize)>, ConversationError> {
        let mut from = Reader::new(bytes);
        let (Ok(cluster), Ok(length)) = (from.take(16), from.u8()) else { return Ok(None) };
        let cluster = ClusterId(cluster.try_into().expect("16 bytes were taken"));
        if usize::from(length) > NAME_BYTES_MAX {
            return Err(ConversationError::Malformed);
        }
        let Ok(name) = from.take(length.into()) else { return Ok(None) };
        let region = str::from_utf8(name).map_err(|_| ConversationError::Malformed)?.to_owned();
        let cluster = (cluster.0 != [0; 16]).then_some(cluster);
        Ok(Some((Self { cluster, region }, from.position())))
    }
}

impl ToServer {
    /// Appends it, its length before it.
    pub fn put(&self, out: &mut Vec<u8>) {
        framed(out, |out| match self {
            Self::Named(client) => put_number(1, *client, out),
            Self::AskNumber => out.push(2),
            Self::AskStanding => out.push(3),
            Self::Message(message) => {
                out.push(4);
                message.put(out);
            }
        });
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// [`ConversationError`].
    pub fn parse(frame: &[u8], limits: &Limits) -> Result<Self, ConversationError> {
        let mut from = Reader::new(frame);
        let read = match from.u8()? {
            1 => Self::Named(ClientId(from.u64()?)),
            2 => Self::AskNumber,
            3 => Self::AskStanding,
            4 => return Ok(Self::Message(Message::decode(from.rest(), limits)?)),
            _ => return Err(ConversationError::Malformed),
        };
        whole(read, &from)
    }
}

impl ToClient {
    /// Appends it, its length before it.
    pub fn put(&self, out: &mut Vec<u8>) {
        framed(out, |out| match self {
            Self::Standing(standing) => {
                out.push(1);
                standing.put(out);
            }
            Self::NotServing { explanation } => put_text(2, explanation, out),
            Self::Number(client) => put_number(3, *client, out),
            Self::Message { from, message } => put_message(*from, message, out),
            Self::Refused { reason } => put_text(5, reason, out),
            Self::Restricted { view, reads, explanation } => {
                out.push(6);
                out.extend_from_slice(&view.0.to_le_bytes());
                out.push(u8::from(*reads));
                out.extend_from_slice(cut(explanation, EXPLANATION_BYTES_MAX).as_bytes());
            }
        });
    }

    /// Appends a message, its length before it: as [`Self::Message`], without taking it.
    pub fn put_message(from: MemberId, message: &Message, out: &mut Vec<u8>) {
        framed(out, |out| put_message(from, message, out));
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// [`ConversationError`].
    pub fn parse(frame: &[u8], limits: &Limits) -> Result<Self, ConversationError> {
        let mut from = Reader::new(frame);
        let read = match from.u8()? {
            1 => Self::Standing(Standing::take(&mut from)?),
            2 => return Ok(Self::NotServing { explanation: take_text(&from) }),
            3 => Self::Number(ClientId(from.u64()?)),
            4 => {
                let speaker = MemberId::take(&mut from)?;
                let message = Message::decode(from.rest(), limits)?;
                return Ok(Self::Message { from: speaker, message });
            }
            5 => return Ok(Self::Refused { reason: take_text(&from) }),
            6 => {
                let view = ViewId(from.u64()?);
                let reads = match from.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err(ConversationError::Malformed),
                };
                return Ok(Self::Restricted { view, reads, explanation: take_text(&from) });
            }
            _ => return Err(ConversationError::Malformed),
        };
        whole(read, &from)
    }
}

impl Standing {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.cluster.0);
        out.extend_from_slice(&self.shards.to_le_bytes());
        out.push(u8::from(self.acknowledgement == Acknowledgement::All));
        let place = Pattern::ALL.iter().position(|&pattern| pattern == self.pattern);
        out.push(place.and_then(|place| u8::try_from(place).ok()).expect("every pattern is in the list"));
        self.view.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, ConversationError> {
        let cluster = ClusterId(from.take(16)?.try_into().expect("16 bytes were taken"));
        let shards = from.u16()?;
        let acknowledgement = match from.u8()? {
            0 => Acknowledgement::Majority,
            1 => Acknowledgement::All,
            _ => return Err(ConversationError::Malformed),
        };
        let pattern = Pattern::ALL.get(usize::from(from.u8()?)).copied();
        let pattern = pattern.ok_or(ConversationError::Malformed)?;
        let view = View::take(from)?;
        if shards == 0 || Copies::of(&view).count() == 0 {
            return Err(ConversationError::Malformed);
        }
        Ok(Self { cluster, shards, acknowledgement, pattern, view })
    }
}

fn framed(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    put(out);
    let bytes = u32::try_from(out.len() - at - LENGTH_BYTES).expect("a frame is below 4 GiB");
    out[at..at + LENGTH_BYTES].copy_from_slice(&bytes.to_le_bytes());
}

fn put_message(from: MemberId, message: &Message, out: &mut Vec<u8>) {
    out.push(4);
    from.put(out);
    message.put(out);
}

fn put_number(kind: u8, client: ClientId, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&client.0.to_le_bytes());
}

fn put_text(kind: u8, text: &str, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(cut(text, EXPLANATION_BYTES_MAX).as_bytes());
}

fn take_text(from: &Reader<'_>) -> String {
    String::from_utf8_lossy(from.rest()).into_owned()
}

fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

fn whole<T>(read: T, from: &Reader<'_>) -> Result<T, ConversationError> {
    if from.rest().is_empty() { Ok(read) } else { Err(ConversationError::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::blob::Blob;
    use crate::message::Body;
    use crate::operation::Operation;
    use mainstay_types::id::{Incarnation, Sequence, StoreId, ThreadId};
    use mainstay_types::operation::OperationId;
    use mainstay_types::view::{Address, JoinerId, Member, Offer};

    fn view() -> View {
        let address = Address::v4([127, 0, 0, 1], 7171);
        let joiner = JoinerId { address, store: StoreId([7; 16]), life: Incarnation(2) };
        let member = Member { joiner, born: ViewId(1), offer: Offer::server() };
        View { id: ViewId(4), arbitrated: false, members: vec![member] }
    }

    fn message() -> Message {
        Message { view: ViewId(4), shard: 1, body: Body::Positions { positions: vec![(1, 77)], sent_ns: 5 } }
    }

    #[test]
    fn each_frame_reads_back_and_every_shorter_one_is_refused_or_waited_for() {
        let limits = Limits::default();
        let max = to_server_bytes_max(&limits);
        let said = [
            ToServer::Named(ClientId(9)),
            ToServer::AskNumber,
            ToServer::AskStanding,
            ToServer::Message(message()),
        ];
        for frame in said {
            let mut bytes = Vec::new();
            frame.put(&mut bytes);
            let length = first_frame(&bytes, max).expect("it is short").expect("it is whole");
            assert_eq!(LENGTH_BYTES + length, bytes.len());
            assert_eq!(ToServer::parse(&bytes[LENGTH_BYTES..], &limits), Ok(frame));
            for cut in 0..bytes.len() {
                assert_eq!(first_frame(&bytes[..cut], max), Ok(None), "{cut} bytes");
            }
            bytes.push(0);
            assert!(ToServer::parse(&bytes[LENGTH_BYTES..], &limits).is_err(), "a byte more");
        }
        let standing = Standing {
            cluster: ClusterId([3; 16]),
            shards: 16,
            acknowledgement: Acknowledgement::Majority,
            pattern: Pattern::Tagged,
            view: view(),
        };
        let from = view().members[0].id();
        let answered = [
            ToClient::Standing(standing),
            ToClient::Number(ClientId(9)),
            ToClient::Message { from, message: message() },
        ];
        for frame in answered {
            let mut bytes = Vec::new();
            frame.put(&mut bytes);
            assert_eq!(ToClient::parse(&bytes[LENGTH_BYTES..], &limits), Ok(frame));
            for cut in LENGTH_BYTES..bytes.len() {
                assert!(ToClient::parse(&bytes[LENGTH_BYTES..cut], &limits).is_err(), "{cut} bytes");
            }
        }
        let long = ToClient::Refused { reason: "ä".repeat(EXPLANATION_BYTES_MAX) };
        let mut bytes = Vec::new();
        long.put(&mut bytes);
        assert!(bytes.len() <= LENGTH_BYTES + 1 + EXPLANATION_BYTES_MAX);
        assert!(matches!(ToClient::parse(&bytes[LENGTH_BYTES..], &limits), Ok(ToClient::Refused { .. })));
        let explanation = "no member offers it".to_owned();
        let restricted = ToClient::Restricted { view: ViewId(9), reads: true, explanation };
        let mut bytes = Vec::new();
        restricted.put(&mut bytes);
        assert_eq!(ToClient::parse(&bytes[LENGTH_BYTES..], &limits), Ok(restricted));
        bytes[LENGTH_BYTES + 9] = 2;
        let malformed = ToClient::parse(&bytes[LENGTH_BYTES..], &limits);
        assert_eq!(malformed, Err(ConversationError::Malformed));
        let huge = first_frame(&[0xff; 8], max);
        assert_eq!(huge, Err(ConversationError::TooLong { bytes: u32::MAX as usize, limit: max }));
    }

    #[test]
    fn whatever_operation_is_within_the_limits_fits_into_a_frame() {
        let limits = Limits::default();
        let value = || Blob::from(vec![7; limits.value_bytes_max]);
        let key = || Blob::from(vec![1; limits.key_bytes_max]);
        let swap = Operation::CompareAndSet { key: key(), expected: Some(value()), value: Some(value()) };
        let put = |value: Vec<u8>| Operation::Put { key: b"k".into(), value: value.into() };
        let steps = [vec![0; limits.value_bytes_max], vec![0; limits.value_bytes_max - 130]].map(put);
        let large = Operation::Batch(Batch { watched: Vec::new(), steps: steps.to_vec() });
        let small = put(Vec::new());
        let many = vec![small; limits.batch_bytes_max / 65];
        let many = Operation::Batch(Batch { watched: Vec::new(), steps: many });
        for operation in [swap, large, many] {
            assert_eq!(operation.check(&limits), Ok(()));
            let number = u64::MAX;
            let id = OperationId {
                client: ClientId(number),
                thread: ThreadId(u32::MAX),
                sequence: Sequence(number),
            };
            let body = Body::Operate { id, retry: true, pattern: Pattern::OneHop, operation };
            let mut bytes = Vec::new();
            ToServer::Message(Message { view: ViewId(number), shard: u16::MAX, body }).put(&mut bytes);
            assert!(matches!(first_frame(&bytes, to_server_bytes_max(&limits)), Ok(Some(_))));
        }
    }

    #[test]
    fn a_hello_comes_whole_or_is_waited_for() {
        let hello = Hello { cluster: Some(ClusterId([3; 16])), region: "orders".to_owned() };
        let mut bytes = Vec::new();
        hello.put(&mut bytes);
        let bytes = bytes.strip_prefix(&MAGIC).expect("it begins so");
        for cut in 0..bytes.len() {
            assert_eq!(Hello::take(&bytes[..cut]), Ok(None), "{cut} bytes");
        }
        assert_eq!(Hello::take(bytes), Ok(Some((hello, bytes.len()))));
        assert_eq!(Hello::take(&[0xff; 40]), Err(ConversationError::Malformed));
    }
}
