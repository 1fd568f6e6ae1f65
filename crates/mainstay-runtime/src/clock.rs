//! Real time, as a process may see it: never going back, also not across restarts.

use mainstay_types::time::Time;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock that is anchored to the wall once and then follows a monotonic clock.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// What it showed at `started`, in nanoseconds; only ever raised.
    anchor_ns: AtomicU64,
}

impl Clock {
    /// A clock that shows the wall's time now.
    #[must_use]
    pub(crate) fn anchored_to_wall() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::anchored_at(Time::EPOCH.after(wall))
    }

    /// A clock that shows `time` now.
    #[must_use]
    pub(crate) fn anchored_at(time: Time) -> Self {
        Self { started: Instant::now(), anchor_ns: AtomicU64::new(time.0) }
    }

    /// Moves the clock forward so that it shows at least `time`: what an earlier life has logged. A wall clock that was
    /// set back meanwhile is thereby not seen.
    pub(crate) fn raise(&self, time: Time) {
        let floor = time.0.saturating_sub(nanoseconds(self.started.elapsed()));
        self.anchor_ns.fetch_max(floor, Ordering::Relaxed);
    }

    /// The time now.
    #[must_use]
    pub(crate) fn now(&self) -> Time {
        Time(self.anchor_ns.load(Ordering::Relaxed) + nanoseconds(self.started.elapsed()))
    }

    /// How long it is until `time`; zero if that has passed.
    #[must_use]
    pub(crate) fn until(&self, time: Time) -> Duration {
        time.since(self.now())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("no machine runs for 584 years")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_set_back_is_not_seen() {
        let clock = Clock::anchored_at(Time(1_000_000_000_000));
        let last_logged = Time(5_000_000_000_000);
        clock.raise(last_logged);
        let after = clock.now();
        assert!(after >= last_logged);
        clock.raise(Time(7));
        assert!(clock.now() >= after);
    }

    #[test]
    fn what_has_passed_is_due_at_once() {
        let clock = Clock::anchored_at(Time(1_000));
        assert_eq!(clock.until(Time(1)), Duration::ZERO);
        assert!(clock.until(clock.now().after(Duration::from_secs(60))) > Duration::from_secs(50));
    }
}
