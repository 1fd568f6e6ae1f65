//! Whether a round of group commit waits until all have come whom it may expect, as decisions only, without a thread or a clock.
//!
//! ```text
//!   a round ends: it covered n tasks, and m wait for the next
//!         │
//!   n + m > 1, and no miss lately? ──no──> begin as soon as one waits
//!         │ yes
//!         ├── n + m wait ───────────────────────────────────> begin with all of them
//!         ├── as long as a round takes, and some wait ──────> a miss: begin with these
//!         └── as long as a round takes, and nobody waits ───> sleep until one does, then from here again
//! ```
//!
//! Tasks that commit one record after the other come again within a fraction of what a sync takes. A round that begins with whoever waits when the one
//! before has ended leaves those whom that one has covered to the round after it: two groups take turns, and each sync has half of the writers.
//! To wait longer than a round takes would gain nothing.
//!
//! Whom a round has covered may have nothing more to commit, and then others have waited in vain. So each miss makes [`MISS_FACTOR`] times as many of the
//! following rounds begin at once as the one before, [`WITHOUT_MAX`] at most, and each time that all came halves that number. Where every second time is a
//! miss, it comes to that most, and one round in so many waits in vain; where a host takes a core away now and then, it costs a few rounds. Whoever stays
//! awake where others want the cores is late, and the next [`ASLEEP_ROUNDS`] begin at once.

use crate::awake::Watched;
use std::time::Duration;

/// More than 2: else half of all rounds could wait in vain for ever.
const MISS_FACTOR: u32 = 4;

/// Most rounds that begin at once after a miss.
const WITHOUT_MAX: u32 = 64;

/// Rounds that begin at once after one who stayed awake was late: others want the cores.
const ASLEEP_ROUNDS: u32 = 256;

/// The longest that a round waits for others, some writes of a quick disk.
const LONGEST: Duration = Duration::from_micros(500);

/// Whom a round waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Until so many wait.
    pub(crate) count: usize,
    /// And so long at most.
    pub(crate) longest: Duration,
}

/// The decisions of one who commits for many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gathering {
    expected: Expected,
    /// Rounds that begin at once after the next miss, over [`MISS_FACTOR`].
    without: u32,
    /// Rounds of them that are left.
    without_left: u32,
}

impl Gathering {
    /// Of a first round, which expects nobody.
    pub(crate) fn new() -> Self {
        let nobody = Expected { count: 0, longest: Duration::ZERO };
        Self { expected: nobody, without: 1, without_left: 0 }
    }

    /// A round that took so long has covered so many, and so many wait for the next.
    pub(crate) fn ended(&mut self, took: Duration, covered: usize, waiting: usize) {
        self.expected = Expected { count: covered + waiting, longest: took.min(LONGEST) };
    }

    /// Whom the next round waits for, if for anybody. If so, [`Self::gathered`] is told what came of it.
    pub(crate) fn next(&mut self) -> Option<Expected> {
        if self.expected.count < 2 {
            return None;
        }
        if self.without_left > 0 {
            self.without_left -= 1;
            return None;
        }
        Some(self.expected)
    }

    /// All have come, or some were missed.
    pub(crate) fn gathered(&mut self, watched: Watched) {
        match watched {
            Watched::Happened => self.without = (self.without / 2).max(1),
            Watched::TooLong => {
                self.without = (self.without * MISS_FACTOR).min(WITHOUT_MAX);
                self.without_left = self.without;
            }
            Watched::Late => self.without_left = ASLEEP_ROUNDS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_micros(100);

    /// Rounds that begin at once before one waits again.
    fn at_once(gathering: &mut Gathering) -> u32 {
        let mut rounds = 0;
        while gathering.next().is_none() {
            rounds += 1;
        }
        rounds
    }

    #[test]
    fn a_round_waits_for_all_whom_the_last_one_covered_and_left() {
        let mut gathering = Gathering::new();
        assert_eq!(gathering.next(), None, "nobody was here yet");
        gathering.ended(TOOK, 1, 0);
        assert_eq!(gathering.next(), None, "one alone does not wait for itself");
        gathering.ended(TOOK, 1, 63);
        assert_eq!(gathering.next(), Some(Expected { count: 64, longest: TOOK }));
        gathering.ended(Duration::from_secs(1), 64, 0);
        assert_eq!(gathering.next(), Some(Expected { count: 64, longest: LONGEST }));
    }

    #[test]
    fn after_a_miss_rounds_begin_at_once_and_more_of_them_the_more_is_missed() {
        let mut gathering = Gathering::new();
        gathering.ended(TOOK, 2, 2);
        for (watched, rounds) in [
            (Watched::TooLong, 4),
            (Watched::TooLong, 16),
            (Watched::Happened, 0),
            (Watched::Late, ASLEEP_ROUNDS),
            (Watched::TooLong, 32),
            (Watched::TooLong, WITHOUT_MAX),
        ] {
            gathering.gathered(watched);
            assert_eq!(at_once(&mut gathering), rounds, "{watched:?}");
        }
        (0..6).for_each(|_| gathering.gathered(Watched::Happened));
        gathering.gathered(Watched::TooLong);
        assert_eq!(at_once(&mut gathering), 4, "what was long ago is forgotten");
    }

    #[test]
    fn where_every_second_time_is_a_miss_nearly_all_rounds_begin_at_once() {
        let mut gathering = Gathering::new();
        gathering.ended(TOOK, 2, 2);
        let (mut waited, mut rounds) = (0, 0);
        while rounds < 10_000 {
            rounds += at_once(&mut gathering) + 1;
            waited += 1;
            gathering.gathered(if waited % 2 == 0 { Watched::Happened } else { Watched::TooLong });
        }
        assert!(waited < 400, "{waited} of {rounds}");
    }
}
