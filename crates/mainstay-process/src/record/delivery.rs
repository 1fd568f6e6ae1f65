//! A delivery of any kind, as logged and as replayed.

use super::prefix::Prefix;
use super::{RecordError, message, registered, request, resolved, settled, timer};
use crate::event::{Identity, Resolution};
use crate::handler::Outcome;
use bytes::Bytes;
use mainstay_journal::record::Kind;
use mainstay_types::codec::Reader;
use mainstay_types::determinant::Point;
use mainstay_types::id::{ClientId, NodeId, OutputId, Ssn};
use mainstay_types::time::Time;

/// Something that is delivered to the process, in the one order that the journal gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A request of a client.
    Request {
        /// By what a repetition is recognised.
        identity: Identity,
        /// When a key is forgotten; set when the request is logged.
        expires: Option<Time>,
        /// What the handler gets.
        body: Vec<u8>,
    },
    /// A timer is due.
    Timer {
        /// Its number.
        timer: u64,
    },
    /// The fate of an output is known.
    Settled {
        /// Which.
        output: OutputId,
        /// How it ended.
        outcome: Outcome,
    },
    /// A client gets a number.
    Registered {
        /// The client whose place it takes; set when the registration is logged.
        replaces: Option<ClientId>,
    },
    /// A person decided about an output.
    Resolved {
        /// Which.
        output: OutputId,
        /// How.
        resolution: Resolution,
    },
    /// A message of another node.
    Message {
        /// Its sender.
        from: NodeId,
        /// Its number on that link.
        ssn: Ssn,
        /// The sender's delivery that emitted it.
        origin: Point,
        /// What it depends on, in the encoding of its policy.
        stamp: Vec<u8>,
        /// What the handler gets: a part of what one read from the socket brought.
        body: Bytes,
    },
}

impl Delivery {
    /// The kind of its record.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Request { .. } => request::KIND,
            Self::Timer { .. } => timer::KIND,
            Self::Settled { .. } => settled::KIND,
            Self::Registered { .. } => registered::KIND,
            Self::Resolved { .. } => resolved::KIND,
            Self::Message { .. } => message::KIND,
        }
    }

    /// Whether records of `kind` are deliveries.
    #[must_use]
    pub fn is_kind(kind: Kind) -> bool {
        [request::KIND, timer::KIND, settled::KIND, registered::KIND, resolved::KIND, message::KIND]
            .contains(&kind)
    }

    /// Writes everything but the request's body into `head`; record = head, then [`Self::tail`].
    pub(crate) fn put_head(&self, prefix: &Prefix, head: &mut Vec<u8>) {
        prefix.put(head);
        match self {
            Self::Request { identity, expires, .. } => request::put(identity, *expires, head),
            Self::Timer { timer } => timer::put(*timer, head),
            Self::Settled { output, outcome } => settled::put(*output, outcome, head),
            Self::Registered { replaces } => registered::put(*replaces, head),
            Self::Resolved { output, resolution } => resolved::put(*output, *resolution, head),
            Self::Message { from, ssn, origin, stamp, .. } => message::put(*from, *ssn, *origin, stamp, head),
        }
    }

    /// The bytes that follow the head without being copied into it.
    pub(crate) fn tail(&self) -> &[u8] {
        match self {
            Self::Request { body, .. } => body,
            Self::Message { body, .. } => body,
            _ => &[],
        }
    }

    /// Reads a record of `kind`; `None` if that kind is not a delivery.
    ///
    /// # Errors
    /// [`RecordError`] when the bytes are not what the kind says.
    pub fn decode(kind: Kind, payload: &[u8]) -> Result<Option<(Prefix, Self)>, RecordError> {
        let mut reader = Reader::new(payload);
        if !Self::is_kind(kind) {
            return Ok(None);
        }
        let prefix = Prefix::take(&mut reader)?;
        let delivery = match kind {
            request::KIND => {
                let (identity, expires) = request::take(&mut reader)?;
                Self::Request { identity, expires, body: reader.rest().to_vec() }
            }
            timer::KIND => Self::Timer { timer: timer::take(&mut reader)? },
            settled::KIND => {
                let (output, outcome) = settled::take(&mut reader)?;
                Self::Settled { output, outcome }
            }
            registered::KIND => Self::Registered { replaces: registered::take(&mut reader)? },
            message::KIND => {
                let (from, ssn, origin, stamp) = message::take(&mut reader)?;
                Self::Message { from, ssn, origin, stamp, body: Bytes::copy_from_slice(reader.rest()) }
            }
            _ => {
                let (output, resolution) = resolved::take(&mut reader)?;
                Self::Resolved { output, resolution }
            }
        };
        Ok(Some((prefix, delivery)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Summary;
    use mainstay_types::id::{DeliveryIndex, Incarnation, Sequence, ThreadId};

    #[test]
    fn every_kind_reads_back_and_no_truncation_is_accepted() {
        let prefix = Prefix {
            delivery: DeliveryIndex(9),
            now: Time(77),
            seed: 5,
            executed: DeliveryIndex(8),
            summary: Summary { digest: 3, status: 200, outputs: 1, timers: 2, answer_bytes: 40 },
        };
        let client = Identity::Client { client: ClientId(3), thread: ThreadId(1), sequence: Sequence(8) };
        let deliveries = [
            Delivery::Request { identity: Identity::None, expires: None, body: b"{}".to_vec() },
            Delivery::Request {
                identity: Identity::Key(b"k1".to_vec()),
                expires: Some(Time(9)),
                body: Vec::new(),
            },
            Delivery::Request { identity: client, expires: None, body: b"x".to_vec() },
            Delivery::Timer { timer: 4 },
            Delivery::Settled { output: OutputId(1), outcome: Outcome::Delivered { status: 200 } },
            Delivery::Settled { output: OutputId(1), outcome: Outcome::Refused { status: 404 } },
            Delivery::Settled { output: OutputId(1), outcome: Outcome::Abandoned },
            Delivery::Registered { replaces: None },
            Delivery::Registered { replaces: Some(ClientId(4)) },
            Delivery::Resolved { output: OutputId(2), resolution: Resolution::SendAgain },
            Delivery::Message {
                from: NodeId(2),
                ssn: Ssn(7),
                origin: Point { incarnation: Incarnation(3), delivery: DeliveryIndex(5) },
                stamp: vec![1, 2],
                body: Bytes::from_static(b"m"),
            },
        ];
        for delivery in deliveries {
            let mut payload = Vec::new();
            delivery.put_head(&prefix, &mut payload);
            let head = payload.len();
            payload.extend_from_slice(delivery.tail());
            let read = Delivery::decode(delivery.kind(), &payload).expect("it was just written");
            assert_eq!(read, Some((prefix, delivery.clone())));
            for length in 0..head {
                assert!(
                    Delivery::decode(delivery.kind(), &payload[..length]).is_err(),
                    "{delivery:?} cut at {length}"
                );
            }
        }
    }
}
