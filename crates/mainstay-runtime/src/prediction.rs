//! How long a recovery would take if the process died now.
//!
//! Predicted is what the last start took for opening the directory and restoring the state, and for every delivery behind the
//! checkpoint what a delivery took in the last replay, or, where that was short, what it takes now. A measure, not a bound: a
//! state that has grown since, or a cold page cache, takes longer.

use mainstay_process::process::ToReplay;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A replay of fewer deliveries says little about the next one.
const REPLAYED_MIN: u64 = 100;

/// What has been measured so far.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Opening the directory and restoring the state, in nanoseconds; 0 until it was measured.
    opening_ns: AtomicU64,
    /// The last replay.
    replayed: AtomicU64,
    replayed_ns: AtomicU64,
    /// Deliveries measured in this life.
    handled: AtomicU64,
    handled_ns: AtomicU64,
}

/// What the time of a delivery was taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Basis {
    /// The last replay.
    LastReplay,
    /// What deliveries take in this life, their logging included.
    ThisLife,
    /// Nothing has been delivered yet.
    #[default]
    Nothing,
}

/// A prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Prediction {
    /// Deliveries to be executed again.
    pub(crate) deliveries: u64,
    /// Bytes of log to be read.
    pub(crate) bytes: u64,
    /// How long all of it would take; `None` if there are deliveries and nothing is known of how long one takes.
    pub(crate) seconds: Option<f64>,
    /// Of these, for opening the directory and restoring the state; 0 if it was never measured, as for a new directory.
    pub(crate) opening_seconds: f64,
    /// For each delivery, in microseconds.
    pub(crate) delivery_us: f64,
    /// What that was taken from.
    pub(crate) basis: Basis,
}

impl Pace {
    /// A directory that was there before has been opened, and the state restored.
    pub(crate) fn opened(&self, duration: Duration) {
        self.opening_ns.store(nanoseconds(duration), Ordering::Relaxed);
    }

    /// A replay is over.
    pub(crate) fn replayed(&self, deliveries: u64, duration: Duration) {
        if deliveries >= REPLAYED_MIN {
            self.replayed.store(deliveries, Ordering::Relaxed);
            self.replayed_ns.store(nanoseconds(duration), Ordering::Relaxed);
        }
    }

    /// A step that executed so many deliveries took so long.
    pub(crate) fn handled(&self, deliveries: u64, duration: Duration) {
        if deliveries > 0 {
            self.handled.fetch_add(deliveries, Ordering::Relaxed);
            self.handled_ns.fetch_add(nanoseconds(duration), Ordering::Relaxed);
        }
    }

    pub(crate) fn predict(&self, to_replay: &ToReplay) -> Prediction {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (replayed, handled) = (read(&self.replayed), read(&self.handled));
        let (basis, delivery_ns) = match (replayed, handled) {
            (1.., _) => (Basis::LastReplay, read(&self.replayed_ns) as f64 / replayed as f64),
            (0, 1..) => (Basis::ThisLife, read(&self.handled_ns) as f64 / handled as f64),
            (0, 0) => (Basis::Nothing, 0.0),
        };
        let opening_seconds = read(&self.opening_ns) as f64 / 1e9;
        let ToReplay { deliveries, bytes, .. } = *to_replay;
        let known = basis != Basis::Nothing || deliveries == 0;
        let seconds = known.then_some(opening_seconds + deliveries as f64 * delivery_ns / 1e9);
        Prediction { deliveries, bytes, seconds, opening_seconds, delivery_us: delivery_ns / 1e3, basis }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::Lsn;

    #[test]
    fn a_long_replay_counts_more_than_this_life_and_a_short_one_less() {
        let pace = Pace::default();
        let to_replay = ToReplay { from: Lsn(64), deliveries: 1000, bytes: 9 };
        let nothing = pace.predict(&to_replay);
        assert_eq!((nothing.basis, nothing.seconds), (Basis::Nothing, None));
        pace.opened(Duration::from_millis(20));
        pace.replayed(REPLAYED_MIN - 1, Duration::from_secs(9));
        pace.handled(0, Duration::from_secs(9));
        pace.handled(2, Duration::from_micros(8));
        let predicted = pace.predict(&to_replay);
        assert_eq!((predicted.basis, predicted.delivery_us), (Basis::ThisLife, 4.0));
        assert!(predicted.seconds.is_some_and(|seconds| (seconds - 0.024).abs() < 1e-9), "{predicted:?}");
        pace.replayed(500, Duration::from_millis(1));
        let predicted = pace.predict(&to_replay);
        assert_eq!((predicted.basis, predicted.delivery_us), (Basis::LastReplay, 2.0));
        assert_eq!((predicted.deliveries, predicted.bytes), (1000, 9));
    }
}
