//! Who asked for what on replicated data, and the place it got: operations and versions.

use crate::codec::{Reader, Truncated};
use crate::id::{ClientId, Sequence, ThreadId};
use crate::view::ViewId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The identity of an operation: the same on every repetition, at whatever server (Schuchardt 2010, GemFire and Paxos).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct OperationId {
    /// The client.
    pub client: ClientId,
    /// Its thread.
    pub thread: ThreadId,
    /// The place among the thread's operations; the first is 1.
    pub sequence: Sequence,
}

impl OperationId {
    /// Encoded length, in bytes.
    pub const BYTES: usize = 20;

    /// Appends the encoding: client (u64), thread (u32), sequence (u64), little-endian.
    #[inline]
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.client.0.to_le_bytes());
        out.extend_from_slice(&self.thread.0.to_le_bytes());
        out.extend_from_slice(&self.sequence.0.to_le_bytes());
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    #[inline]
    pub fn take(from: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self {
            client: ClientId(from.u64()?),
            thread: ThreadId(from.u32()?),
            sequence: Sequence(from.u64()?),
        })
    }
}

/// The place of a write among all of its shard: the view that it was stamped in, then a counter that begins with 1 in each view.
///
/// Ordered by view first: whatever a later view stamps is newer than all of an earlier one, so that a version is also the token that
/// fences a stamper which has not noticed that it was replaced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Version {
    /// The view.
    pub view: ViewId,
    /// The count within the view; the first is 1.
    pub counter: u64,
}

impl Version {
    /// Before the first: of what was never written.
    pub const NONE: Self = Self { view: ViewId(0), counter: 0 };

    /// Encoded length, in bytes.
    pub const BYTES: usize = 16;

    /// The version after this one in the same view.
    ///
    /// # Panics
    /// When the counter is used up, which no deployment reaches.
    #[must_use]
    #[inline]
    pub fn next(self) -> Self {
        Self { counter: self.counter.checked_add(1).expect("a view never stamps 2^64 writes"), ..self }
    }

    /// Appends the encoding: view (u64), counter (u64), little-endian.
    #[inline]
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.view.0.to_le_bytes());
        out.extend_from_slice(&self.counter.to_le_bytes());
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    #[inline]
    pub fn take(from: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self { view: ViewId(from.u64()?), counter: from.u64()? })
    }
}

/// As in `v7.12`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.view, self.counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_later_view_stamps_is_newer() {
        let late = Version { view: ViewId(1), counter: u64::MAX };
        let next_view = Version { view: ViewId(2), counter: 1 };
        assert!(Version::NONE < late && late < next_view && next_view < next_view.next());
    }

    #[test]
    fn operations_and_versions_read_back() {
        let operation = OperationId { client: ClientId(7), thread: ThreadId(3), sequence: Sequence(9) };
        let version = Version { view: ViewId(4), counter: 5 };
        let mut bytes = Vec::new();
        operation.put(&mut bytes);
        version.put(&mut bytes);
        assert_eq!(bytes.len(), OperationId::BYTES + Version::BYTES);
        let mut reader = Reader::new(&bytes);
        assert_eq!(OperationId::take(&mut reader), Ok(operation));
        assert_eq!(Version::take(&mut reader), Ok(version));
    }
}
