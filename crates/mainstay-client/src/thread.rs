//! One thread of a client: requests one after another, each with its number.

use crate::answer::Answer;
use crate::attempt::{Attempts, Headers};
use crate::client::decode;
use crate::error::{CallError, RequestError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// A thread of a client. It has one request outstanding, hence `&mut`: the service remembers the last answer of each
/// thread, and a request with a higher sequence number tells it that the one before is no longer of interest.
#[derive(Debug)]
pub struct Thread {
    attempts: Arc<Attempts>,
    path: String,
    identity: Identity,
}

/// By what the service recognises a repetition of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// The client's number, issued by the service.
    pub client: u64,
    /// The thread within the client.
    pub thread: u32,
    /// The request within the thread; the first is 1.
    pub sequence: u64,
}

impl Thread {
    pub(crate) fn new(
        attempts: Arc<Attempts>,
        path: String,
        client: u64,
        thread: u32,
        last_sequence: u64,
    ) -> Self {
        Self { attempts, path, identity: Identity { client, thread, sequence: last_sequence } }
    }

    /// The identity that the next call will have.
    #[must_use]
    pub fn next_identity(&self) -> Identity {
        Identity { sequence: self.identity.sequence + 1, ..self.identity }
    }

    /// Makes the next request of this thread.
    ///
    /// # Errors
    /// [`CallError`]; each variant says whether the request took effect.
    pub fn call<C: Serialize, A: DeserializeOwned>(&mut self, command: &C) -> Result<A, CallError> {
        let body = serde_json::to_vec(command).map_err(RequestError::Command)?;
        decode(self.call_bytes(&body)?)
    }

    /// [`Self::call`] with a body that is JSON already, and the whole answer whatever its status.
    ///
    /// # Errors
    /// [`CallError`], but neither `Refused` nor `Answer`.
    pub fn call_bytes(&mut self, body: &[u8]) -> Result<Answer, CallError> {
        self.identity = self.next_identity();
        self.attempts.until_answered(&self.path, &Headers::Client(self.identity), body)
    }

    /// Makes the last request of this thread again, with the same identity: for an outcome that is unknown, also after
    /// a restart ([`crate::client::Client::thread_at`]). The body must be the same as before.
    ///
    /// # Errors
    /// [`CallError`], but neither `Refused` nor `Answer`.
    pub fn repeat_bytes(&mut self, body: &[u8]) -> Result<Answer, CallError> {
        if self.identity.sequence == 0 {
            return Err(RequestError::NothingToRepeat.into());
        }
        self.attempts.until_answered(&self.path, &Headers::Client(self.identity), body)
    }
}
