//! What a power-loss recording keeps of each answer at level `Disk`: enough to send the request again to what a cut has
//! left, and to compare.
//!
//! JSON, so that a checker needs nothing of this crate:
//! `{"identity": null | {"key": "…"} | {"client": n, "thread": n, "sequence": n}, "request": "…", "status": n, "answer": "…"}`.
//! After any later cut the recovered process must answer the same request with the same identity as a repetition, with this
//! status and answer; a client's older sequence numbers may be evicted instead.

use mainstay_process::event::Identity;
use mainstay_process::handler::Answer;
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use serde::{Deserialize, Serialize};

/// An answer that has left, and what it answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// By what the request is recognised.
    pub identity: Option<Named>,
    /// The request's body, which was checked to be UTF-8.
    pub request: String,
    /// The answer's status.
    pub status: u16,
    /// The answer's body.
    pub answer: String,
}

/// An identity in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Named {
    /// By a key, which is visible ASCII.
    Key {
        /// The key.
        key: String,
    },
    /// By the client's numbering.
    Client {
        /// The client.
        client: ClientId,
        /// The thread.
        thread: ThreadId,
        /// The sequence number.
        sequence: Sequence,
    },
}

/// What is kept of a request until it is answered.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    identity: Identity,
    request: Vec<u8>,
}

impl Noted {
    pub(crate) fn new(identity: &Identity, request: &[u8]) -> Box<Self> {
        Box::new(Self { identity: identity.clone(), request: request.to_vec() })
    }

    /// The entry for `answer`.
    pub(crate) fn answered(self, answer: &Answer) -> Acknowledgement {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Acknowledgement {
            identity: match self.identity {
                Identity::None => None,
                Identity::Key(key) => Some(Named::Key { key: text(&key) }),
                Identity::Client { client, thread, sequence } => {
                    Some(Named::Client { client, thread, sequence })
                }
            },
            request: text(&self.request),
            status: answer.status,
            answer: text(&answer.body),
        }
    }
}

impl Acknowledgement {
    /// The identity, as a process takes it.
    #[must_use]
    pub fn identity(&self) -> Identity {
        match &self.identity {
            None => Identity::None,
            Some(Named::Key { key }) => Identity::Key(key.clone().into_bytes()),
            Some(Named::Client { client, thread, sequence }) => {
                Identity::Client { client: *client, thread: *thread, sequence: *sequence }
            }
        }
    }

    /// The entry's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text and numbers are JSON")
    }

    /// The entry in these bytes; `None` if they are none, such as those of another program's recording.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_identity_reads_back() {
        let client = Identity::Client { client: ClientId(1), thread: ThreadId(2), sequence: Sequence(3) };
        for identity in [Identity::None, Identity::Key(b"k-1".to_vec()), client] {
            let answer = Answer { status: 200, body: b"7".to_vec() };
            let written = Noted::new(&identity, b"{\"amount\": 7}").answered(&answer);
            let read = Acknowledgement::decode(&written.encode()).unwrap();
            assert_eq!(read, written);
            assert_eq!(read.identity(), identity);
        }
        assert_eq!(Acknowledgement::decode(b"request 1"), None);
    }
}
