//! Copying long records into the ring, past the processor's caches or through them: whichever is quicker here and now.
//!
//! Through the caches a copy first takes back the memory that was last read for the disk. Where whoever read it shares a cache with this core, that is
//! quick, and the disk then takes its bytes from there; elsewhere it is slow, and so is the disk. On a virtual machine the host moves that reader
//! within seconds (`docs/benchmarks/journal.md`, "Streaming"). So now and then one copy of each way is timed.

use crate::past_caches::copy_past_caches;
use mainstay_checksum::crc32c_append;
use std::time::Duration;

/// Copies from one that goes the other way to the next. It and the one behind it are timed. A prime, so that no place in a page is met each time.
const COPIES_BETWEEN: u32 = 61;

/// Timed copies of each way after which they are compared. A slow stream takes long for that, but does not care.
const TIMED: usize = 32;

/// Which way copies go, and how it does beside the other. That one finds what this one has left in the caches, and so is told a little slower than it
/// would be in its turn.
#[derive(Debug)]
pub(crate) struct CopyWay {
    past_caches: bool,
    copies: u32,
    /// Picoseconds a byte: of this way, of the other. At most [`TIMED`] each, since timed turns alternate.
    times: [Vec<u64>; 2],
}

/// How to make one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    past_caches: bool,
    /// To be told of by [`CopyWay::took`].
    pub(crate) timed: bool,
}

impl Default for CopyWay {
    /// Past the caches, which is never much slower.
    fn default() -> Self {
        Self { past_caches: true, copies: 0, times: [(); 2].map(|()| Vec::with_capacity(TIMED)) }
    }
}

impl CopyWay {
    pub(crate) fn next(&mut self) -> Turn {
        self.copies = (self.copies + 1) % COPIES_BETWEEN;
        Turn { past_caches: self.past_caches != (self.copies == 0), timed: self.copies <= 1 }
    }

    /// Takes note of how long a timed copy of some bytes took. Medians are compared, since a copy may be interrupted.
    pub(crate) fn took(&mut self, turn: Turn, time: Duration, bytes: usize) {
        let picoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
        self.times[usize::from(turn.past_caches != self.past_caches)].push(picoseconds / bytes.max(1) as u64);
        if self.times.iter().any(|times| times.len() < TIMED) {
            return;
        }
        let [this, other] = self.times.each_mut().map(|times| {
            times.sort_unstable();
            let median = times[TIMED / 2];
            times.clear();
            median
        });
        // By a tenth at least, lest they take turns.
        if other.saturating_mul(10) < this.saturating_mul(9) {
            self.past_caches = !self.past_caches;
        }
    }
}

impl Turn {
    /// Copies `part` to `into`, as long, and continues a CRC-32C with it.
    pub(crate) fn copy(self, crc: u32, into: &mut [u8], part: &[u8]) -> u32 {
        if self.past_caches {
            copy_past_caches(into, part);
        } else {
            into.copy_from_slice(part);
        }
        crc32c_append(crc, part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds for 4 KiB past the caches and through them.
    type Takes = [u64; 2];

    /// Makes so many copies, and says how many went past the caches.
    fn copies(way: &mut CopyWay, count: u32, takes: Takes) -> u32 {
        let mut past = 0;
        for _ in 0..count {
            let turn = way.next();
            past += u32::from(turn.past_caches);
            if turn.timed {
                way.took(turn, Duration::from_nanos(takes[usize::from(!turn.past_caches)]), 4096);
            }
        }
        past
    }

    /// Copies after which the two ways are compared.
    const COMPARED: u32 = COPIES_BETWEEN * TIMED as u32;

    #[test]
    fn the_quicker_way_is_taken_and_the_other_tried_now_and_then() {
        let mut way = CopyWay::default();
        let few = TIMED as u32;
        assert_eq!(
            copies(&mut way, COMPARED, [400, 250]),
            COMPARED - few,
            "past the caches until they are compared"
        );
        assert_eq!(copies(&mut way, COMPARED, [400, 250]), few, "through them");
        assert_eq!(copies(&mut way, COMPARED, [400, 550]), few, "until they are compared");
        assert_eq!(copies(&mut way, COMPARED, [400, 550]), COMPARED - few, "and back");
    }

    #[test]
    fn ways_about_as_quick_do_not_take_turns() {
        let mut way = CopyWay::default();
        for _ in 0..10 {
            copies(&mut way, COMPARED, [400, 361]);
            assert!(way.past_caches);
        }
    }

    #[test]
    fn a_few_interrupted_copies_do_not_count() {
        let mut way = CopyWay::default();
        let mut timed = 0;
        for _ in 0..10 * COMPARED {
            let turn = way.next();
            if turn.timed {
                timed += 1;
                let interrupted = timed % 7 == 0 && turn.past_caches;
                way.took(turn, Duration::from_nanos(if interrupted { 1 << 20 } else { 400 }), 4096);
            }
        }
        assert!(way.past_caches);
    }

    #[test]
    fn both_ways_copy_and_checksum_the_same() {
        let mut way = CopyWay::default();
        let part: Vec<u8> = (0..5000_usize).map(|at| (at * 7).to_le_bytes()[0]).collect();
        for _ in 0..COPIES_BETWEEN {
            let mut into = vec![0; part.len()];
            assert_eq!(way.next().copy(5, &mut into, &part), crc32c_append(5, &part));
            assert_eq!(into, part);
        }
    }
}
