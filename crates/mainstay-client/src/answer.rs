//! What a service said, before its body is decoded.

/// The handler's answer, with what the service said about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status that the handler chose.
    pub status: u16,
    /// The body as received.
    pub body: Vec<u8>,
    /// The durability level that the answer waited for (`Mainstay-Level`).
    pub level: String,
    /// Whether it is the first answer, given again to a repetition.
    pub replayed: bool,
    /// Until when a repetition with the same key gets this answer, in seconds since the UNIX epoch; `None` without a key.
    pub key_expires_unix_seconds: Option<u64>,
}

impl Answer {
    /// Whether the handler accepted: a status of 200 to 299.
    #[must_use]
    pub fn accepted(&self) -> bool {
        (200..300).contains(&self.status)
    }
}
