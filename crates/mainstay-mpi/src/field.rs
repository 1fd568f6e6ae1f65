//! The fields of a recorded call: what went in, to be compared at replay, and what came out, to be served.

use crate::envelopes::Envelope;
use crate::varint::{Bytes, one_byte, put_bytes, put_signed, put_unsigned, put_word, zigzag};
use std::fmt;

/// Kinds of MPI objects that a handle may stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ObjectKind {
    /// `MPI_Comm`.
    Comm = 1,
    /// `MPI_Datatype`.
    Datatype = 2,
    /// `MPI_Group`.
    Group = 3,
    /// `MPI_Op`.
    Op = 4,
    /// `MPI_Request`.
    Request = 5,
    /// `MPI_Errhandler`.
    Errhandler = 6,
    /// `MPI_Info`.
    Info = 7,
    /// `MPI_Win`.
    Win = 8,
    /// `MPI_File`.
    File = 9,
    /// `MPI_Message`.
    Message = 10,
}

impl ObjectKind {
    /// The kind with that number.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Comm,
            2 => Self::Datatype,
            3 => Self::Group,
            4 => Self::Op,
            5 => Self::Request,
            6 => Self::Errhandler,
            7 => Self::Info,
            8 => Self::Win,
            9 => Self::File,
            10 => Self::Message,
            _ => return None,
        })
    }
}

/// What an input number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// No particular meaning.
    Number = 1,
    /// Destination of a send, or source of a receive.
    Peer = 2,
    /// Tag of a message.
    Tag = 3,
    /// Number of elements.
    Count = 4,
}

/// Number of a [`Field::Handle`].
pub const HANDLE_FIELD: u8 = 5;

/// One field. Numbers below 16 are inputs, which replay compares; the others are results, which it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// 1 to 4: a number by its role.
    Input(Role, i64),
    /// 5: an object that was handed in, by its number in the log.
    Handle(ObjectKind, u64),
    /// 6: message data that was handed in: bytes and CRC-32C.
    Data(u64, u32),
    /// 7: an array or text that was handed in: bytes and CRC-32C.
    Bytes(u64, u32),
    /// 8: message data that was handed in: bytes only, under the policy *none*.
    Length(u64),
    /// 9: whom the persistent send that follows goes to, under the policy *sender*.
    To(Envelope),
    /// 16: what the call returned.
    Result(i64),
    /// 17: an output parameter, as the program's memory has it. Empty for one that the caller did not want.
    Output(&'a [u8]),
    /// 18: an object that came out.
    Object(ObjectKind, u64),
    /// 19: message data that came out.
    Received(&'a [u8]),
    /// 20: a status: source, tag, bytes, and the `MPI_Status` itself.
    Status(i64, i64, u64, &'a [u8]),
    /// 21: a request was made; whether it is the null request.
    Request(bool),
    /// 22: the request at this place of the array is done; whether it is null now; how many calls ago it was made, 0 where
    /// that is not known.
    Done(u64, bool, u64),
    /// 23: how long after the end of the record before the call began, and how long it took, both in units of the log. The
    /// last field, of calls that are timed.
    Time(u64, u64),
    /// 24: which request went in, by how many calls ago it was made, 0 where that is not known. Not compared: while
    /// recording one handle may stand for many sends.
    Made(u64),
    /// 25: a receive is posted, under the policy *sender*: its number, and what it takes.
    Posted(u64, Envelope),
    /// 26: message data that came and that the sender's log has: number of the post, place of the communicator's record,
    /// bytes, CRC-32C. The status before it says the source and tag.
    Promised(u64, u64, u64, u32),
    /// 27: data that came and that no log has: bytes.
    Omitted(u64),
    /// 28: a send was cancelled: its number among the fields `Sent` of this log.
    Retracted(u64),
    /// 29: a post is done, and nothing came.
    Withdrawn(u64),
    /// 30: a message that was sent, whole, under the policy *sender*. The first of a call belongs to the first data that
    /// went in, and so on.
    Sent(&'a [u8]),
}

impl<'a> Field<'a> {
    /// Appends the field.
    // Where it is known which field it is, as at most callers, nothing is left of the choice.
    #[inline(always)]
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Input(role, value) => put_number(out, role as u8, zigzag(value)),
            Self::Handle(kind, id) => put_object(out, HANDLE_FIELD, kind, id),
            Self::Data(length, crc) => put_digest(out, 6, length, crc),
            Self::Bytes(length, crc) => put_digest(out, 7, length, crc),
            Self::Sent(bytes) => {
                Self::begin_sent(out, bytes.len() as u64);
                out.extend_from_slice(bytes);
            }
            Self::Length(bytes) => put_number(out, 8, bytes),
            Self::To(envelope) => {
                out.push(9);
                put_envelope(out, envelope);
            }
            Self::Posted(number, envelope) => {
                put_number(out, 25, number);
                put_envelope(out, envelope);
            }
            Self::Promised(post, comm, bytes, crc) => {
                put_number(out, 26, post);
                put_unsigned(out, comm);
                put_unsigned(out, bytes);
                out.extend_from_slice(&crc.to_le_bytes());
            }
            Self::Omitted(bytes) => put_number(out, 27, bytes),
            Self::Retracted(send) => put_number(out, 28, send),
            Self::Withdrawn(post) => put_number(out, 29, post),
            Self::Result(value) => put_number(out, 16, zigzag(value)),
            Self::Output(bytes) => {
                put_number(out, 17, bytes.len() as u64);
                out.extend_from_slice(bytes);
            }
            Self::Object(kind, id) => put_object(out, 18, kind, id),
            Self::Received(bytes) => {
                Self::begin_received(out, bytes.len() as u64);
                out.extend_from_slice(bytes);
            }
            Self::Status(source, tag, bytes, raw) => {
                put_number(out, 20, zigzag(source));
                put_signed(out, tag);
                put_unsigned(out, bytes);
                put_bytes(out, raw);
            }
            Self::Request(null) => out.extend_from_slice(&[21, u8::from(null)]),
            Self::Done(index, null, made) => {
                put_number(out, 22, index);
                out.push(u8::from(null));
                put_unsigned(out, made);
            }
            Self::Time(idle, spent) => {
                if let (Some(idle), Some(spent)) = (one_byte(idle), one_byte(spent)) {
                    put_word(out, 23 | u64::from(idle) << 8 | u64::from(spent) << 16, 3);
                } else {
                    put_number(out, 23, idle);
                    put_unsigned(out, spent);
                }
            }
            Self::Made(calls) => put_number(out, 24, calls),
        }
    }

    /// Appends all of a `Received` but its bytes, which the caller lets follow.
    pub fn begin_received(out: &mut Vec<u8>, length: u64) {
        put_number(out, 19, length);
    }

    /// Appends all of a `Sent` but its bytes, which the caller lets follow.
    pub fn begin_sent(out: &mut Vec<u8>, length: u64) {
        put_number(out, 30, length);
    }

    /// Reads the next field; `None` if the bytes are not one.
    #[must_use]
    pub fn decode(bytes: &mut Bytes<'a>) -> Option<Self> {
        Some(match bytes.byte()? {
            1 => Self::Input(Role::Number, bytes.signed()?),
            2 => Self::Input(Role::Peer, bytes.signed()?),
            3 => Self::Input(Role::Tag, bytes.signed()?),
            4 => Self::Input(Role::Count, bytes.signed()?),
            HANDLE_FIELD => Self::Handle(ObjectKind::from_byte(bytes.byte()?)?, bytes.unsigned()?),
            6 => Self::Data(bytes.unsigned()?, crc(bytes)?),
            7 => Self::Bytes(bytes.unsigned()?, crc(bytes)?),
            8 => Self::Length(bytes.unsigned()?),
            9 => Self::To(envelope(bytes)?),
            25 => Self::Posted(bytes.unsigned()?, envelope(bytes)?),
            26 => Self::Promised(bytes.unsigned()?, bytes.unsigned()?, bytes.unsigned()?, crc(bytes)?),
            27 => Self::Omitted(bytes.unsigned()?),
            28 => Self::Retracted(bytes.unsigned()?),
            29 => Self::Withdrawn(bytes.unsigned()?),
            30 => Self::Sent(bytes.counted()?),
            16 => Self::Result(bytes.signed()?),
            17 => Self::Output(bytes.counted()?),
            18 => Self::Object(ObjectKind::from_byte(bytes.byte()?)?, bytes.unsigned()?),
            19 => Self::Received(bytes.counted()?),
            20 => Self::Status(bytes.signed()?, bytes.signed()?, bytes.unsigned()?, bytes.counted()?),
            21 => Self::Request(flag(bytes)?),
            22 => Self::Done(bytes.unsigned()?, flag(bytes)?, bytes.unsigned()?),
            23 => Self::Time(bytes.unsigned()?, bytes.unsigned()?),
            24 => Self::Made(bytes.unsigned()?),
            _ => return None,
        })
    }
}

/// The fields of a call, until the bytes end or are none.
pub fn fields(body: &[u8]) -> impl Iterator<Item = Field<'_>> {
    let mut bytes = Bytes::new(body);
    std::iter::from_fn(move || Field::decode(&mut bytes))
}

#[inline]
fn put_object(out: &mut Vec<u8>, number: u8, kind: ObjectKind, id: u64) {
    if let Some(id) = one_byte(id) {
        put_word(out, u64::from(number) | u64::from(kind as u8) << 8 | u64::from(id) << 16, 3);
    } else {
        out.extend_from_slice(&[number, kind as u8]);
        put_unsigned(out, id);
    }
}

#[inline]
fn put_number(out: &mut Vec<u8>, number: u8, value: u64) {
    if let Some(value) = one_byte(value) {
        put_word(out, u64::from(number) | u64::from(value) << 8, 2);
    } else {
        out.push(number);
        put_unsigned(out, value);
    }
}

fn put_envelope(out: &mut Vec<u8>, envelope: Envelope) {
    put_unsigned(out, envelope.comm);
    put_signed(out, envelope.peer);
    put_signed(out, envelope.tag);
}

fn envelope(bytes: &mut Bytes<'_>) -> Option<Envelope> {
    Some(Envelope { comm: bytes.unsigned()?, peer: bytes.signed()?, tag: bytes.signed()? })
}

#[inline]
fn put_digest(out: &mut Vec<u8>, number: u8, length: u64, crc: u32) {
    if let Some(length) = one_byte(length) {
        put_word(out, u64::from(number) | u64::from(length) << 8 | u64::from(crc) << 16, 6);
    } else {
        put_number(out, number, length);
        out.extend_from_slice(&crc.to_le_bytes());
    }
}

fn crc(bytes: &mut Bytes<'_>) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.take(4)?.try_into().ok()?))
}

fn flag(bytes: &mut Bytes<'_>) -> Option<bool> {
    match bytes.byte()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(Role::Number, value) => write!(out, "argument {value}"),
            Self::Input(Role::Peer, value) => write!(out, "peer {value}"),
            Self::Input(Role::Tag, value) => write!(out, "tag {value}"),
            Self::Input(Role::Count, value) => write!(out, "count {value}"),
            Self::Handle(kind, id) => write!(out, "{kind} {id}"),
            Self::Data(length, crc) => write!(out, "data of {length} bytes, CRC {crc:08x}"),
            Self::Bytes(length, crc) => write!(out, "array of {length} bytes, CRC {crc:08x}"),
            Self::Sent(bytes) => write!(out, "sent {} bytes", bytes.len()),
            Self::Length(bytes) => write!(out, "data of {bytes} bytes"),
            Self::To(envelope) => write!(out, "to peer {}, tag {}", envelope.peer, envelope.tag),
            Self::Posted(post, _) => write!(out, "receive {post} posted"),
            Self::Promised(post, _, bytes, _) => write!(out, "{bytes} bytes for receive {post}, not here"),
            Self::Omitted(bytes) => write!(out, "{bytes} bytes, not recorded"),
            Self::Retracted(send) => write!(out, "send {send} cancelled"),
            Self::Withdrawn(post) => write!(out, "receive {post} without a message"),
            Self::Result(value) => write!(out, "result {value}"),
            Self::Output(bytes) => write!(out, "output of {} bytes", bytes.len()),
            Self::Object(kind, id) => write!(out, "new {kind} {id}"),
            Self::Received(bytes) => write!(out, "received {} bytes", bytes.len()),
            Self::Status(source, tag, bytes, _) => {
                write!(out, "status: source {source}, tag {tag}, {bytes} bytes")
            }
            Self::Request(null) => write!(out, "new {}request", if *null { "null " } else { "" }),
            Self::Done(index, ..) => write!(out, "request {index} done"),
            Self::Time(..) => out.write_str("a time"),
            Self::Made(calls) => write!(out, "request made {calls} calls before"),
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Comm => "communicator",
            Self::Datatype => "datatype",
            Self::Group => "group",
            Self::Op => "operation",
            Self::Request => "request",
            Self::Errhandler => "error handler",
            Self::Info => "info",
            Self::Win => "window",
            Self::File => "file",
            Self::Message => "message",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_field_is_read_back_and_none_of_it_cut() {
        let all = [
            Field::Input(Role::Peer, -2),
            Field::Input(Role::Tag, 7),
            Field::Input(Role::Count, i64::MAX),
            Field::Input(Role::Number, i64::MIN),
            Field::Handle(ObjectKind::Comm, 300),
            Field::Data(1 << 40, 0x0102_0304),
            Field::Bytes(3, u32::MAX),
            Field::Result(-1),
            Field::Output(b"abc"),
            Field::Object(ObjectKind::Message, 1),
            Field::Received(b"payload"),
            Field::Status(3, -1, 77, b"raw"),
            Field::Request(true),
            Field::Done(130, false, 4),
            Field::Made(0),
            Field::Time(300, 2),
            Field::Sent(b"bytes"),
            Field::Length(900),
            Field::To(Envelope { comm: 200, peer: -2, tag: 9 }),
            Field::Posted(1 << 30, Envelope { comm: 0, peer: 3, tag: -1 }),
            Field::Promised(400, 1, 1 << 33, 0x0506_0708),
            Field::Omitted(5),
            Field::Retracted(6),
            Field::Withdrawn(7),
        ];
        let mut body = Vec::new();
        for field in &all {
            field.encode(&mut body);
        }
        assert_eq!(fields(&body).collect::<Vec<_>>(), all);
        for length in 0..body.len() {
            assert!(fields(&body[..length]).count() < all.len(), "cut at {length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_fields_or_end(body: Vec<u8>) {
            prop_assert!(fields(&body).count() <= body.len());
        }
    }
}
