//! How patient a client is.

use std::time::Duration;

/// Deadlines and pauses. All of them are the client's own; the service is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long one call may take, all its attempts and pauses together. After that its outcome is
    /// [`crate::error::CallError::Unknown`] or [`crate::error::CallError::Unavailable`].
    pub call_deadline: Duration,
    /// How long one attempt may take before it is given up and repeated.
    pub attempt_timeout: Duration,
    /// The first pause between two attempts; each further one is twice as long, with jitter.
    pub pause_min: Duration,
    /// The longest pause between two attempts, and the most that a server's `Retry-After` is obeyed.
    pub pause_max: Duration,
    /// The largest answer that is read, in bytes.
    pub answer_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            call_deadline: Duration::from_secs(60),
            attempt_timeout: Duration::from_secs(10),
            pause_min: Duration::from_millis(5),
            pause_max: Duration::from_millis(500),
            answer_bytes_max: 64 << 20,
        }
    }
}
