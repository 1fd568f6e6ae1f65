//! Copying long records into the ring, past the processor's caches or through them: whichever is quicker here and now.
//!
//! Through the caches a copy first takes back the memory that was last read for the disk. Where whoever read it shares a cache with this core, that is
//! quick, and the disk then takes its bytes from there; elsewhere it is slow, and so is the disk. On a virtual machine the host moves that reader
//! within seconds (`docs/benchmarks/journal.md`, "Streaming"). So now and then one copy of each way is timed.

use mainstay_checksum::{copy_past_caches, crc32c_append};
use std::time::{Duration, Instant};

/// Copies from one that is timed to the next; every second of these goes the other way.
const COPIES_BETWEEN: u32 = 32;

/// Timed copies of each way after which they are compared.
const TIMED: usize = 32;

/// Which way copies go, and how it does beside the other.
#[derive(Debug)]
pub(crate) struct CopyWay {
    past_caches: bool,
    copies: u32,
    /// Picoseconds a byte: of this way, of the other.
    took: [Vec<u64>; 2],
}

/// One copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    past_caches: bool,
    timed: bool,
}

impl Default for CopyWay {
    /// Past the caches, which is never much slower.
    fn default() -> Self {
        Self { past_caches: true, copies: 0, took: [(); 2].map(|()| Vec::with_capacity(2 * TIMED)) }
    }
}

impl CopyWay {
    /// Copies `part` to `into`, as long, and continues a CRC-32C with it.
    pub(crate) fn copy(&mut self, crc: u32, into: &mut [u8], part: &[u8]) -> u32 {
        let turn = self.next();
        if !turn.timed {
            return copy(turn.past_caches, crc, into, part);
        }
        let since = Instant::now();
        let crc = copy(turn.past_caches, crc, into, part);
        self.took(turn, since.elapsed(), part.len());
        crc
    }

    fn next(&mut self) -> Turn {
        self.copies = self.copies.wrapping_add(1);
        let timed = self.copies.is_multiple_of(COPIES_BETWEEN);
        let other = self.copies.is_multiple_of(2 * COPIES_BETWEEN);
        Turn { past_caches: self.past_caches != other, timed }
    }

    /// Medians are compared, since a copy may be interrupted.
    fn took(&mut self, turn: Turn, time: Duration, bytes: usize) {
        let picoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 1000).saturating_mul(1000);
        let is_other = turn.past_caches != self.past_caches;
        self.took[usize::from(is_other)].push(picoseconds / bytes.max(1) as u64);
        if self.took.iter().any(|took| took.len() < TIMED) {
            return;
        }
        let [this, other] = self.took.each_mut().map(|took| {
            took.sort_unstable();
            let median = took[took.len() / 2];
            took.clear();
            median
        });
        // By a tenth at least, lest they take turns.
        if other.saturating_mul(10) < this.saturating_mul(9) {
            self.past_caches = !self.past_caches;
        }
    }
}

fn copy(past_caches: bool, crc: u32, into: &mut [u8], part: &[u8]) -> u32 {
    if past_caches {
        return copy_past_caches(crc, into, part);
    }
    into.copy_from_slice(part);
    crc32c_append(crc, part)
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
    const COMPARED: u32 = 2 * COPIES_BETWEEN * TIMED as u32;

    #[test]
    fn the_quicker_way_is_taken_and_the_other_tried_now_and_then() {
        let mut way = CopyWay::default();
        let few = COMPARED / (2 * COPIES_BETWEEN);
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
        for copy in 0..10 * COMPARED {
            let turn = way.next();
            if turn.timed {
                let interrupted = copy % 7 == 0 && turn.past_caches;
                way.took(turn, Duration::from_nanos(if interrupted { 1 << 20 } else { 400 }), 4096);
            }
        }
        assert!(way.past_caches);
    }

    #[test]
    fn both_ways_copy_and_checksum_the_same() {
        let mut way = CopyWay::default();
        let part: Vec<u8> = (0..5000_usize).map(|at| (at * 7).to_le_bytes()[0]).collect();
        for _ in 0..2 * COPIES_BETWEEN {
            let mut into = vec![0; part.len()];
            assert_eq!(way.copy(5, &mut into, &part), crc32c_append(5, &part));
            assert_eq!(into, part);
        }
    }
}
