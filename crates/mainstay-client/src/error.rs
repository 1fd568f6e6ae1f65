//! How a call ends when it does not end with an answer of the type asked for.

/// A call failed. Each variant says whether the request took effect.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The handler refused: this is its answer, recorded like any other. A repetition gets the same.
    #[error("the service refused with status {status}: {}", String::from_utf8_lossy(.body))]
    Refused {
        /// HTTP status that the handler chose.
        status: u16,
        /// The body as received.
        body: Vec<u8>,
    },
    /// The service did not accept the request at all; it took no effect and never will as it is.
    #[error("the request was rejected with status {status} ({code}) and took no effect: {message}")]
    Rejected {
        /// HTTP status.
        status: u16,
        /// The code of `docs/http.md`, such as `malformed-json`.
        code: String,
        /// What the service said.
        message: String,
    },
    /// The identity is older than what the service remembers. The request was not applied by this attempt; whether an
    /// earlier one was applied can no longer be told.
    #[error("the service no longer remembers this identity; the request was not applied again")]
    Evicted,
    /// The key was used for another request before. This request took no effect.
    #[error("the key was used before with another body; this request took no effect")]
    KeyReused,
    /// The deadline passed, and no attempt took effect.
    #[error(
        "no attempt was accepted within the deadline ({attempts} made), none took effect; the last: {last}"
    )]
    Unavailable {
        /// How many attempts were made.
        attempts: u32,
        /// How the last one ended.
        last: AttemptError,
    },
    /// The deadline passed, and an attempt may have taken effect. Repeating with the same identity is safe.
    #[error(
        "the outcome is unknown after {attempts} attempts; repeat with the same identity; the last: {last}"
    )]
    Unknown {
        /// How many attempts were made.
        attempts: u32,
        /// How the last one ended.
        last: AttemptError,
    },
    /// The request took effect, but its answer is not of the type asked for.
    #[error("the request took effect, but its answer cannot be decoded")]
    Answer {
        /// What the decoder said.
        #[source]
        source: serde_json::Error,
        /// The body as received.
        body: Vec<u8>,
    },
    /// The command cannot be written as JSON, or the key is not 1 to 255 visible ASCII bytes. Nothing was sent.
    #[error("the request cannot be sent")]
    Request(#[from] RequestError),
}

impl CallError {
    /// Whether it is certain what became of the request.
    #[must_use]
    pub fn outcome_known(&self) -> bool {
        !matches!(self, Self::Unknown { .. } | Self::Evicted)
    }
}

/// The request cannot be put into words of the contract. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The command cannot be written as JSON.
    #[error("the command cannot be written as JSON")]
    Command(#[from] serde_json::Error),
    /// A key is 1 to 255 visible ASCII bytes.
    #[error("an idempotency key has 1 to 255 visible ASCII bytes; this one has {bytes} bytes")]
    Key {
        /// Its length.
        bytes: usize,
    },
    /// [`crate::thread::Thread::repeat_bytes`] before any call.
    #[error("there is no call of this thread to repeat")]
    NothingToRepeat,
}

/// How one attempt ended that was no answer.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// No connection came about: nothing reached the service.
    #[error("no connection to the service")]
    Connect(#[source] Box<ureq::Error>),
    /// The connection broke, or the attempt took too long: the request may have reached the service.
    #[error("the connection broke or timed out")]
    Broken(#[source] Box<ureq::Error>),
    /// The service, or something before it, asked for a repetition later.
    #[error("status {status} ({code}): {message}")]
    Later {
        /// HTTP status.
        status: u16,
        /// The code of `docs/http.md`; empty if it was not the service that spoke.
        code: String,
        /// What was said.
        message: String,
    },
}

/// The address of the service cannot be used. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no address of a service; it looks like http://127.0.0.1:7070")]
pub struct AddressError {
    /// What was given.
    pub given: String,
}
