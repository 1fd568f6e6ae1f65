//! Time that is handed in by the caller. There is no `now()` here.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A moment: nanoseconds since the UNIX epoch, never going back within one life of a process.
///
/// The driver anchors it once to the wall clock, or to the last logged moment if that is later, and then follows a
/// monotonic clock; a wall clock that jumps is therefore not seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// The UNIX epoch.
    pub const EPOCH: Self = Self(0);

    /// The moment `duration` later, or the last representable one (year 2554).
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; zero if it is later than this moment.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Whole seconds since the UNIX epoch.
    #[must_use]
    pub fn unix_seconds(self) -> u64 {
        self.0 / 1_000_000_000
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}
