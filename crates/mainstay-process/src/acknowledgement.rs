//! What a power-loss recording keeps of each answer at level `Disk`: enough to send the request again to what a cut has
//! left, and to compare.
//!
//! In the recording it is JSON:
//! `{"identity": null | {"key": "…"} | {"client": n, "thread": n, "sequence": n}, "request": "…", "status": n, "answer": "…"}`.
//! After any later cut the recovered process must answer the same request with the same identity as a repetition, with this
//! status and answer; a client's older sequence numbers may be evicted instead.

use crate::event::Identity;
use crate::handler::Answer;
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

impl Acknowledgement {
    /// That `request` with this identity was answered so.
    #[must_use]
    pub fn new(identity: &Identity, request: &[u8], answer: &Answer) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let identity = match identity {
            Identity::None => None,
            Identity::Key(key) => Some(Named::Key { key: text(key) }),
            Identity::Client { client, thread, sequence } => {
                Some(Named::Client { client: *client, thread: *thread, sequence: *sequence })
            }
        };
        Self { identity, request: text(request), status: answer.status, answer: text(&answer.body) }
    }

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_identity_is_told_back() {
        let client = Identity::Client { client: ClientId(1), thread: ThreadId(2), sequence: Sequence(3) };
        for identity in [Identity::None, Identity::Key(b"k-1".to_vec()), client] {
            let answer = Answer { status: 200, body: b"7".to_vec() };
            let told = Acknowledgement::new(&identity, b"{\"amount\": 7}", &answer);
            assert_eq!(told.identity(), identity);
            assert_eq!(
                (told.request.as_str(), told.status, told.answer.as_str()),
                ("{\"amount\": 7}", 200, "7")
            );
        }
    }
}
