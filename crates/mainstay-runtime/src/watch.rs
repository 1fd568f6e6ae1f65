//! Figures of the driver: what it counts, and latencies in powers of two.

use crate::prediction::Pace;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of a histogram: 1 us, 2 us, 4 us, … 2^24 us (17 s), and more than that.
const BUCKETS: usize = 26;

/// Counters since the start of this operating-system process; they go on when the process recovers in place.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// From the last byte of a request until its reply is handed back to its connection.
    pub(crate) call_latency: Histogram,
    /// How long the process stood still for a fork.
    pub(crate) checkpoint_pause: Histogram,
    /// From the fork until the checkpoint was published.
    pub(crate) checkpoint_duration: Histogram,
    /// Replies by the hundred of their status.
    pub(crate) replies: [AtomicU64; 6],
    /// Requests refused at a limit of the ingress.
    pub(crate) refused_at_ingress: AtomicU64,
    /// Connections refused at their limit.
    pub(crate) connections_refused: AtomicU64,
    /// Time during which a request waited for a free page.
    pub(crate) stall_ns: AtomicU64,
    /// Durable writes made on the driver's own thread.
    pub(crate) durable_writes: AtomicU64,
    /// Rounds of the driver: batches handed to the process.
    pub(crate) rounds: AtomicU64,
    /// Times the driver handed its role on, so that its own request's answer could leave.
    pub(crate) handovers: AtomicU64,
    /// Recoveries in place, after a panic of the handler or a rollback.
    pub(crate) recoveries_in_place: AtomicU64,
    /// Rollbacks, because another node lost what deliveries of this one depended on.
    pub(crate) rollbacks: AtomicU64,
    /// Deliveries replayed so far by a recovery that is under way.
    pub(crate) replaying: AtomicU64,
    /// What the next recovery's duration is predicted from.
    pub(crate) pace: Pace,
}

/// A histogram of durations.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Histogram {
    pub(crate) fn record(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let us_rounded_up = ns.div_ceil(1000).max(1);
        let bucket = (us_rounded_up.next_power_of_two().trailing_zeros() as usize).min(BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns.load(Ordering::Relaxed))
    }

    /// Appends the histogram in the text format of Prometheus.
    pub(crate) fn write(&self, into: &mut String, name: &str, help: &str) {
        let _ = writeln!(into, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut count = 0;
        for (place, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            if place == BUCKETS - 1 {
                let _ = writeln!(into, "{name}_bucket{{le=\"+Inf\"}} {count}");
            } else {
                let seconds = f64::from(1_u32 << place) / 1e6;
                let _ = writeln!(into, "{name}_bucket{{le=\"{seconds}\"}} {count}");
            }
        }
        let sum_seconds = Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64();
        let _ = writeln!(into, "{name}_sum {sum_seconds}\n{name}_count {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_every_bucket_that_it_fits() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(3));
        histogram.record(Duration::from_secs(3600));
        let mut text = String::new();
        histogram.write(&mut text, "x", "y");
        assert!(text.contains("x_bucket{le=\"0.000002\"} 0"), "{text}");
        assert!(text.contains("x_bucket{le=\"0.000004\"} 1"), "{text}");
        assert!(text.contains("x_bucket{le=\"+Inf\"} 2"), "{text}");
        assert!(text.contains("x_sum 3600.000003"), "{text}");
    }
}
