//! The frames of a session, byte for byte as in docs/channel.md: kind (u8), then its fields, little-endian.
//!
//! A frame does not know its own length; a stream puts it in front ([`Frame::put_with_length`], [`split`]).

use crate::hello::{Hello, put_ends, take_ends};
use mainstay_types::codec::{Reader, Truncated, put_bytes};
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId, Ssn};
use mainstay_types::snapshot::SnapshotId;

/// Bytes of the length in front of a frame in a stream.
pub const LENGTH_BYTES: usize = 4;

/// Longest text of a refusal, in bytes.
pub const REFUSAL_BYTES_MAX: usize = 1024;

/// What one node says to another. Borrows what is long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// Who speaks; the first frame in both directions.
    Hello(Box<Hello>),
    /// A message of one handler to another.
    Message(Message<'a>),
    /// The history of the one who speaks holds every message up to this: window credit.
    Received {
        /// The highest.
        ssn: Ssn,
    },
    /// The one who speaks never needs the messages up to this again: they may be dropped from the sender log.
    Covered {
        /// The highest.
        ssn: Ssn,
    },
    /// Bytes of the logging protocol.
    Control(&'a [u8]),
    /// A node that collects was told everything that the one who speaks has for it.
    Collected,
    /// The sender of this frame, which was recovering when it greeted, is recovered: whatever its history sent, it has sent again.
    Recovered {
        /// Its lives that ended, in order, as in a greeting: where the last one ended was not known in this session's.
        ends: Vec<(Incarnation, DeliveryIndex)>,
    },
    /// The one who speaks is not recovering, and has heard that the other, in the life that this session is with, is recovered.
    Heard,
    /// Which lives were up, recovered, and had heard that the one who speaks is recovered in its present life. It is asked by who recovers and would
    /// else take all of them to have been down at one time.
    Outlived {
        /// The other is to answer with its own; nothing is said of `lives`.
        asks: bool,
        /// Nodes, ascending, each with the first of its lives that did.
        lives: Vec<(NodeId, Incarnation)>,
    },
    /// The one who speaks recovers, and nothing that it has taken in so far leads its replay on: all that this replay has made for the other stands in
    /// front of this frame.
    Passive {
        /// The nodes that recover, the one who speaks among them, ascending. Of each the life and the last delivery replayed, as that node
        /// itself said it when it was passive last.
        reached: Vec<Reached>,
    },
    /// The lives that the one who speaks has sessions with, its own among them: none of them depends on what it lost, and it depends on
    /// nothing that they lost. Said to who asks, and by who asks.
    Agreed {
        /// The other is to answer with its own.
        asks: bool,
        /// Nodes, ascending, each with its life.
        lives: Vec<(NodeId, Incarnation)>,
    },
    /// Retained messages of the other fill much memory: it should make a checkpoint, or its journal durable.
    Pinned {
        /// How much is retained, in bytes.
        bytes: u64,
    },
    /// The one who speaks has taken its part in this snapshot: whatever follows in this session came after it.
    Marker {
        /// Which.
        snapshot: SnapshotId,
    },
    /// The last frame of a session that goes no further.
    Refused {
        /// Which [`crate::refusal::Refusal`]: its code.
        code: u8,
        /// What it says, for a person: at most [`REFUSAL_BYTES_MAX`] bytes without control characters.
        text: &'a str,
    },
}

/// How far the replay of a node has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reached {
    /// Which node.
    pub node: NodeId,
    /// The life that replays.
    pub life: Incarnation,
    /// The last delivery replayed.
    pub delivery: DeliveryIndex,
}

/// A message of one handler to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Its number on this link.
    pub ssn: Ssn,
    /// The sender's delivery that emitted it.
    pub origin: Point,
    /// The place that its receiver gave it once, where the sender knows it.
    pub place: Option<Place>,
    /// What it depends on, as the logging protocol wrote it when it was emitted.
    pub stamp: &'a [u8],
    /// What the logging protocol sends along this time.
    pub attached: &'a [u8],
    /// What the handler wrote.
    pub body: &'a [u8],
}

/// Bytes that are no frame of this version. Nothing was changed; the connection is not to be used on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It ends too early.
    #[error("the frame is too short: {0}")]
    Truncated(#[from] Truncated),
    /// It goes on behind its last field.
    #[error("the frame goes on for {bytes} bytes behind its end")]
    Trailing {
        /// Bytes too many.
        bytes: usize,
    },
    /// A kind of frame that is not known.
    #[error("frames of kind {kind} are not known to this version")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// What speaks is no node.
    #[error("the first frame is no greeting of a node")]
    Foreign,
    /// A node of another version.
    #[error("the node speaks version {found} of the protocol")]
    Protocol {
        /// Its version.
        found: u16,
    },
    /// A flag is neither set nor clear.
    #[error("a flag has the value {flag}")]
    Flag {
        /// Its value.
        flag: u8,
    },
    /// More ended lives than [`crate::hello::ENDS_MAX`].
    #[error("{count} ended lives are named")]
    Ends {
        /// How many.
        count: usize,
    },
    /// It is said to be covered and not received.
    #[error("messages up to {covered} are said to be covered, and only those up to {received} received")]
    CoveredAboveReceived {
        /// The highest covered.
        covered: Ssn,
        /// The highest received.
        received: Ssn,
    },
    /// A number that no node reaches, so close to the end of its space that counting on would leave it.
    #[error("messages up to {ssn} are said to be received")]
    Number {
        /// The number.
        ssn: Ssn,
    },
    /// The text of a refusal is too long, is not UTF-8 or holds control characters.
    #[error("the text of the refusal cannot be shown")]
    Text,
    /// A frame is longer than a frame may be.
    #[error("a frame of {bytes} bytes is announced, and the limit is {limit} bytes")]
    TooLong {
        /// Its length.
        bytes: u64,
        /// [`crate::limits::Limits::frame_bytes_max`].
        limit: u64,
    },
}

impl<'a> Frame<'a> {
    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                out.push(KIND_HELLO);
                hello.put(out);
            }
            Self::Message(message) => {
                out.push(KIND_MESSAGE);
                message.put(out);
            }
            Self::Received { ssn } => put_number(KIND_RECEIVED, ssn.0, out),
            Self::Covered { ssn } => put_number(KIND_COVERED, ssn.0, out),
            Self::Control(body) => {
                out.push(KIND_CONTROL);
                out.extend_from_slice(body);
            }
            Self::Collected => out.push(KIND_COLLECTED),
            Self::Recovered { ends } => {
                out.push(KIND_RECOVERED);
                put_ends(ends, out);
            }
            Self::Pinned { bytes } => put_number(KIND_PINNED, *bytes, out),
            Self::Marker { snapshot } => {
                out.push(KIND_MARKER);
                snapshot.put(out);
            }
            Self::Heard => out.push(KIND_HEARD),
            Self::Agreed { asks, lives } => put_lives(KIND_AGREED, *asks, lives, out),
            Self::Outlived { asks, lives } => put_lives(KIND_OUTLIVED, *asks, lives, out),
            Self::Passive { reached } => put_reached(reached, out),
            Self::Refused { code, text } => {
                assert!(text.len() <= REFUSAL_BYTES_MAX, "refusals are short");
                out.extend_from_slice(&[KIND_REFUSED, *code]);
                out.extend_from_slice(text.as_bytes());
            }
        }
    }

    /// Appends its length and its bytes.
    ///
    /// # Panics
    /// Past 4 GiB, which every limit forbids long before.
    #[inline]
    pub fn put_with_length(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        self.put(out);
        let length = u32::try_from(out.len() - start - LENGTH_BYTES).expect("frames are limited below 4 GiB");
        out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    }

    /// Reads what [`Self::put`] wrote: exactly one frame.
    ///
    /// # Errors
    /// [`FrameError`]; the connection is not to be used on.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u8()?;
        // What is last in a frame takes the rest, so that no length is written twice.
        let frame = match kind {
            KIND_MESSAGE => return Ok(Self::Message(Message::parse(&mut reader)?)),
            KIND_CONTROL => return Ok(Self::Control(reader.rest())),
            KIND_REFUSED => {
                let code = reader.u8()?;
                return Ok(Self::Refused { code, text: readable(reader.rest())? });
            }
            KIND_HELLO => Self::Hello(Box::new(Hello::take(&mut reader)?)),
            KIND_RECEIVED => Self::Received { ssn: Ssn(reader.u64()?) },
            KIND_COVERED => Self::Covered { ssn: Ssn(reader.u64()?) },
            KIND_COLLECTED => Self::Collected,
            KIND_RECOVERED => Self::Recovered { ends: take_ends(&mut reader)? },
            KIND_PINNED => Self::Pinned { bytes: reader.u64()? },
            KIND_MARKER => Self::Marker { snapshot: SnapshotId::take(&mut reader)? },
            KIND_HEARD => Self::Heard,
            KIND_AGREED => {
                let (asks, lives) = take_lives(&mut reader)?;
                Self::Agreed { asks, lives }
            }
            KIND_OUTLIVED => {
                let (asks, lives) = take_lives(&mut reader)?;
                Self::Outlived { asks, lives }
            }
            KIND_PASSIVE => Self::Passive { reached: take_reached(&mut reader)? },
            kind => return Err(FrameError::Kind { kind }),
        };
        match reader.rest().len() {
            0 => Ok(frame),
            bytes => Err(FrameError::Trailing { bytes }),
        }
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "Hello",
            Self::Message(_) => "Message",
            Self::Received { .. } => "Received",
            Self::Covered { .. } => "Covered",
            Self::Control(_) => "Control",
            Self::Collected => "Collected",
            Self::Recovered { .. } => "Recovered",
            Self::Pinned { .. } => "Pinned",
            Self::Marker { .. } => "Marker",
            Self::Agreed { .. } => "Agreed",
            Self::Heard => "Heard",
            Self::Outlived { .. } => "Outlived",
            Self::Passive { .. } => "Passive",
            Self::Refused { .. } => "Refused",
        }
    }
}

impl<'a> Message<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.ssn.0.to_le_bytes());
        self.origin.put(out);
        put_place(self.place, out);
        put_bytes(out, self.stamp);
        put_bytes(out, self.attached);
        out.extend_from_slice(self.body);
    }

    #[inline]
    fn parse(from: &mut Reader<'a>) -> Result<Self, FrameError> {
        Ok(Self {
            ssn: Ssn(from.u64()?),
            origin: Point::take(from)?,
            place: take_place(from)?,
            stamp: from.bytes()?,
            attached: from.bytes()?,
            body: from.rest(),
        })
    }
}

/// The first frame of a stream, and what follows it.
pub type Split<'a> = (&'a [u8], &'a [u8]);

/// Parts the first frame of a stream from what follows it; `None` while it is not there in full.
///
/// # Errors
/// [`FrameError::TooLong`], before the frame has come: nothing of it needs to be kept.
#[inline]
pub fn split(bytes: &[u8], frame_bytes_max: u64) -> Result<Option<Split<'_>>, FrameError> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length);
    if u64::from(length) > frame_bytes_max {
        return Err(FrameError::TooLong { bytes: u64::from(length), limit: frame_bytes_max });
    }
    Ok(rest.split_at_checked(length as usize))
}

#[inline]
pub(crate) fn put_place(place: Option<Place>, out: &mut Vec<u8>) {
    out.push(u8::from(place.is_some()));
    if let Some(place) = place {
        place.put(out);
    }
}

#[inline]
pub(crate) fn take_place(from: &mut Reader<'_>) -> Result<Option<Place>, FrameError> {
    match from.u8()? {
        0 => Ok(None),
        1 => Ok(Some(Place::take(from)?)),
        flag => Err(FrameError::Flag { flag }),
    }
}

fn put_lives(kind: u8, asks: bool, lives: &[(NodeId, Incarnation)], out: &mut Vec<u8>) {
    out.extend_from_slice(&[kind, u8::from(asks)]);
    let count = u32::try_from(lives.len()).expect("a cluster has fewer than 2^32 nodes");
    out.extend_from_slice(&count.to_le_bytes());
    for (node, life) in lives {
        out.extend_from_slice(&node.0.to_le_bytes());
        out.extend_from_slice(&life.0.to_le_bytes());
    }
}

fn take_lives(from: &mut Reader<'_>) -> Result<(bool, Vec<(NodeId, Incarnation)>), FrameError> {
    let asks = match from.u8()? {
        0 => false,
        1 => true,
        flag => return Err(FrameError::Flag { flag }),
    };
    let mut lives = Vec::new();
    for _ in 0..from.u32()? {
        lives.push((NodeId(from.u32()?), Incarnation(from.u64()?)));
    }
    Ok((asks, lives))
}

fn put_reached(reached: &[Reached], out: &mut Vec<u8>) {
    out.push(KIND_PASSIVE);
    let count = u32::try_from(reached.len()).expect("a cluster has fewer than 2^32 nodes");
    out.extend_from_slice(&count.to_le_bytes());
    for Reached { node, life, delivery } in reached {
        out.extend_from_slice(&node.0.to_le_bytes());
        out.extend_from_slice(&life.0.to_le_bytes());
        out.extend_from_slice(&delivery.0.to_le_bytes());
    }
}

fn take_reached(from: &mut Reader<'_>) -> Result<Vec<Reached>, FrameError> {
    let mut reached = Vec::new();
    for _ in 0..from.u32()? {
        let (node, life) = (NodeId(from.u32()?), Incarnation(from.u64()?));
        reached.push(Reached { node, life, delivery: DeliveryIndex(from.u64()?) });
    }
    Ok(reached)
}

fn put_number(kind: u8, number: u64, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&number.to_le_bytes());
}

/// A peer's text goes to somebody's terminal: it must not move the cursor there.
fn readable(bytes: &[u8]) -> Result<&str, FrameError> {
    let text = str::from_utf8(bytes).map_err(|_| FrameError::Text)?;
    match text.len() > REFUSAL_BYTES_MAX || text.chars().any(char::is_control) {
        true => Err(FrameError::Text),
        false => Ok(text),
    }
}

const KIND_HELLO: u8 = 1;
const KIND_MESSAGE: u8 = 2;
const KIND_RECEIVED: u8 = 3;
const KIND_COVERED: u8 = 4;
const KIND_CONTROL: u8 = 5;
const KIND_COLLECTED: u8 = 6;
const KIND_PINNED: u8 = 7;
const KIND_REFUSED: u8 = 8;
const KIND_RECOVERED: u8 = 9;
const KIND_MARKER: u8 = 10;
const KIND_AGREED: u8 = 11;
const KIND_HEARD: u8 = 12;
const KIND_OUTLIVED: u8 = 13;
const KIND_PASSIVE: u8 = 14;
