//! What one delivery did, in a few bytes: recorded with the next delivery, compared in replay.

use crate::handler::{Answer, Asked};
use crate::port::Port;
use mainstay_types::codec::{Reader, Truncated};
use serde::{Deserialize, Serialize};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The effects of one delivery: counts for people, a digest for certainty.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// XXH3-64 over the answer, the outputs, the timers, the messages and the late answers, in order.
    pub digest: u64,
    /// HTTP status of the answer; 0 for a delivery without one.
    pub status: u16,
    /// Outputs emitted.
    pub outputs: u16,
    /// Timers set.
    pub timers: u16,
    /// Bytes of the answer's body.
    pub answer_bytes: u32,
}

impl Summary {
    /// Encoded length, in bytes.
    pub const BYTES: usize = 18;

    /// Sums up what a delivery answered and asked for.
    #[must_use]
    pub(crate) fn of(answer: Option<&Answer>, asked: &Asked, ports: &[Port]) -> Self {
        let mut summary = Self {
            outputs: u16::try_from(asked.outputs.len()).unwrap_or(u16::MAX),
            timers: u16::try_from(asked.timers.len()).unwrap_or(u16::MAX),
            ..Self::default()
        };
        if let Some(answer) = answer {
            summary.status = answer.status;
            summary.answer_bytes = u32::try_from(answer.body.len()).unwrap_or(u32::MAX);
            summary.digest = xxh3_64_with_seed(&answer.body, u64::from(answer.status));
        }
        for (id, port, body) in &asked.outputs {
            // By name: the order in which ports are declared may change from one life to the next.
            let seed =
                xxh3_64_with_seed(ports[port.0].name.as_bytes(), summary.digest ^ id.0.rotate_left(32));
            summary.digest = xxh3_64_with_seed(body, seed);
        }
        for (due, token) in &asked.timers {
            summary.digest = xxh3_64_with_seed(&due.0.to_le_bytes(), summary.digest ^ token.rotate_left(17));
        }
        for (to, body) in &asked.messages {
            summary.digest = xxh3_64_with_seed(body, summary.digest ^ u64::from(to.0).rotate_left(48));
        }
        for (request, answer) in &asked.answers {
            let seed = summary.digest ^ request.0.0.rotate_left(24) ^ u64::from(answer.status);
            summary.digest = xxh3_64_with_seed(&answer.body, seed);
        }
        summary
    }

    pub(crate) fn bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.digest.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.status.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.outputs.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.timers.to_le_bytes());
        bytes[14..].copy_from_slice(&self.answer_bytes.to_le_bytes());
        bytes
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self {
            digest: from.u64()?,
            status: from.u16()?,
            outputs: from.u16()?,
            timers: from.u16()?,
            answer_bytes: from.u32()?,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "status {}, answer of {} bytes, {} outputs, {} timers, digest {:016x}",
            self.status, self.answer_bytes, self.outputs, self.timers, self.digest
        )
    }
}

impl fmt::Debug for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
