//! What nodes tell each other on behalf of their instances, as bytes: lines that people can read in a dump of the journal.
//!
//! ```text
//! tell                         answer
//! TYPE/KEY    of the sender    DELIVERY STATUS
//! TYPE/KEY    of the receiver  the answer's body
//! the message, JSON
//! ```

use crate::instance::address::Address;
use mainstay_process::handler::{Answer, RequestId};
use mainstay_types::id::DeliveryIndex;

/// A message between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// One instance tells another.
    Tell(Told),
    /// The answer to a request that the receiving node has taken.
    Answer(RequestId, Answer),
}

/// What one instance tells another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) from: Address,
    pub(crate) to: Address,
    /// JSON.
    pub(crate) message: Vec<u8>,
}

const TELL: &[u8] = b"tell\n";
const ANSWER: &[u8] = b"answer\n";

impl Envelope {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Tell(told) => told.to_bytes(),
            Self::Answer(RequestId(request), Answer { status, body }) => {
                [ANSWER, format!("{} {status}\n", request.0).as_bytes(), body].concat()
            }
        }
    }

    /// `None` for what no version of this program writes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if let Some(rest) = bytes.strip_prefix(TELL) {
            let (from, rest) = Address::take(rest)?;
            let (to, message) = Address::take(rest)?;
            return Some(Self::Tell(Told { from, to, message: message.to_vec() }));
        }
        let rest = bytes.strip_prefix(ANSWER)?;
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let (request, status) = std::str::from_utf8(&rest[..end]).ok()?.split_once(' ')?;
        let answer = Answer { status: status.parse().ok()?, body: rest[end + 1..].to_vec() };
        Some(Self::Answer(RequestId(DeliveryIndex(request.parse().ok()?)), answer))
    }
}

impl Told {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = TELL.to_vec();
        self.from.put(&mut bytes);
        self.to.put(&mut bytes);
        bytes.extend_from_slice(&self.message);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_is_read_as_it_was_written_and_nothing_else_is_read() {
        let told = Told {
            from: Address::new("order", "7"),
            to: Address::new("stock", "a/b"),
            message: b"{\"n\":\n1}".to_vec(),
        };
        let answer = Answer { status: 409, body: b"\n{}".to_vec() };
        for envelope in [Envelope::Tell(told), Envelope::Answer(RequestId(DeliveryIndex(8)), answer)] {
            let bytes = envelope.to_bytes();
            assert_eq!(Envelope::from_bytes(&bytes), Some(envelope.clone()));
            let head = bytes.len() - if matches!(envelope, Envelope::Tell(_)) { 8 } else { 3 };
            for end in 0..head {
                assert_eq!(Envelope::from_bytes(&bytes[..end]), None, "{end}");
            }
        }
        for no in ["answer\nx 200\n", "answer\n1 70000\n", "answer\n1\n", "ask\n", "tell\na\nb\n"] {
            assert_eq!(Envelope::from_bytes(no.as_bytes()), None, "{no:?}");
        }
    }
}
