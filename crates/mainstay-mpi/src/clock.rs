//! When calls began and how long they took, at a price of some ten nanoseconds: the processor's own counter.

use crate::varint::{Bytes, put_unsigned};

/// Ticks in one unit of the times in a log, as a power of two: about a third of a microsecond.
pub const UNIT_SHIFT: u32 = 10;

/// One moment by the counter and by the system's clocks. Readers measure by two of them how fast the counter is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The counter.
    pub ticks: u64,
    /// Nanoseconds of a clock that is never set.
    pub monotonic_ns: u64,
    /// Nanoseconds since 1970 of the clock on the wall, by which ranks of several machines are compared.
    pub wall_ns: u64,
}

/// The counter that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// The processor's, where it runs at one speed and never stops.
    Processor,
    /// Nanoseconds of the system's monotonic clock.
    System,
}

impl Counter {
    /// The better one that there is.
    #[must_use]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::__cpuid;
            let extended = __cpuid(0x8000_0000).eax;
            if extended >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0 {
                return Self::Processor;
            }
        }
        Self::System
    }

    /// The counter now.
    #[must_use]
    pub fn ticks(self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: every processor of this architecture has the instruction.
            Self::Processor => unsafe { std::arch::x86_64::_rdtsc() },
            _ => system_ns(libc::CLOCK_MONOTONIC),
        }
    }

    /// This moment by all clocks.
    #[must_use]
    pub fn moment(self) -> Moment {
        Moment {
            ticks: self.ticks(),
            monotonic_ns: system_ns(libc::CLOCK_MONOTONIC),
            wall_ns: system_ns(libc::CLOCK_REALTIME),
        }
    }
}

fn system_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable; these two clocks are everywhere.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl Moment {
    /// Writes the body of its record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.ticks, self.monotonic_ns, self.wall_ns] {
            put_unsigned(out, number);
        }
    }

    /// Reads the body; `None` if it is none.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut bytes = Bytes::new(body);
        Some(Self { ticks: bytes.unsigned()?, monotonic_ns: bytes.unsigned()?, wall_ns: bytes.unsigned()? })
    }
}

/// Turns the counter of one log into nanoseconds on the wall.
#[derive(Clone, Debug, Default)]
pub struct Scale(Vec<Moment>);

/// Moments that are closer than this say nothing about the speed of the counter, in nanoseconds.
const APART_NS_MIN: u64 = 1_000_000;

impl Scale {
    /// Takes note of a moment; they come in order.
    pub fn add(&mut self, moment: Moment) {
        let apart = self.0.last().is_none_or(|last| moment.monotonic_ns >= last.monotonic_ns + APART_NS_MIN);
        if apart && self.0.last().is_none_or(|last| moment.ticks > last.ticks) {
            self.0.push(moment);
        }
    }

    /// Nanoseconds since 1970 when the counter stood at `ticks`; 0 if the log has no times.
    #[must_use]
    pub fn wall_ns(&self, ticks: u64) -> u64 {
        let Some(first) = self.0.first() else {
            return 0;
        };
        // The two moments around it, or the nearest two.
        let behind = self.0.partition_point(|moment| moment.ticks <= ticks).clamp(1, self.0.len().max(2) - 1);
        let (from, to) = (self.0[behind - 1], self.0.get(behind).copied().unwrap_or(self.0[behind - 1]));
        let speed = if to.ticks > from.ticks {
            (to.monotonic_ns - from.monotonic_ns) as f64 / (to.ticks - from.ticks) as f64
        } else {
            1.0
        };
        let since = ticks as i128 - i128::from(from.ticks);
        let ns = i128::from(from.monotonic_ns - first.monotonic_ns) + (since as f64 * speed) as i128;
        u64::try_from(i128::from(first.wall_ns) + ns).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_goes_on_and_a_moment_is_read_back() {
        let counter = Counter::best();
        let before = counter.moment();
        let mut body = Vec::new();
        before.encode(&mut body);
        assert_eq!(Moment::decode(&body), Some(before));
        assert_eq!(Moment::decode(&body[..3]), None);
        assert!(counter.ticks() >= before.ticks);
    }

    #[test]
    fn the_counter_is_measured_by_the_moments_around() {
        let mut scale = Scale::default();
        assert_eq!(scale.wall_ns(7), 0, "a log without times");
        // Two ticks a nanosecond, then one: a machine that was suspended.
        let moments = [(1000, 50_000_000), (4_001_000, 52_000_000), (8_001_000, 56_000_000)];
        for (ticks, ns) in moments {
            scale.add(Moment { ticks, monotonic_ns: ns, wall_ns: ns + 1_000_000_000 });
        }
        assert_eq!(scale.wall_ns(2_001_000), 1_051_000_000);
        assert_eq!(scale.wall_ns(6_001_000), 1_054_000_000);
        assert_eq!(scale.wall_ns(9_001_000), 1_057_000_000, "behind the last at its speed");
    }
}
