//! Which side logs the bytes of a message.

use std::fmt;
use std::str::FromStr;

/// Where the payload of messages between two ranks is logged. What a collective leaves at a rank is that rank's own in the
/// first two: no other log has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Payload {
    /// By who receives it: a rank's log is complete by itself.
    #[default]
    Receiver = 0,
    /// By who sends it; the receiver logs which message came. `extract` brings both together.
    Sender = 1,
    /// Nowhere, of collectives neither: only what happened in which order. Cannot be replayed.
    None = 2,
}

impl Payload {
    /// The policy with that number in a header.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Receiver, Self::Sender, Self::None].into_iter().find(|payload| *payload as u32 == number)
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Receiver => "receiver",
            Self::Sender => "sender",
            Self::None => "none",
        })
    }
}

/// It is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of receiver, sender, none")]
pub struct UnknownPayload(String);

impl FromStr for Payload {
    type Err = UnknownPayload;

    fn from_str(text: &str) -> Result<Self, UnknownPayload> {
        [Self::Receiver, Self::Sender, Self::None]
            .into_iter()
            .find(|payload| payload.to_string() == text)
            .ok_or_else(|| UnknownPayload(text.to_owned()))
    }
}
