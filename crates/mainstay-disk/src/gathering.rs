//! Whether a round of group commit waits until all have come whom it may expect, as decisions only, without a thread or a clock.
//!
//! ```text
//!   a round ends: it covered n tasks, and m wait for the next
//!         │
//!   n + m > 1? stay awake until one waits, else sleep until one does
//!         │
//!   n + m > 1? stay awake:
//!         ├── n + m wait ────────────────────────────────────> begin with all of them
//!         ├── as long as the round took, 0.5 ms at most ─────> a miss: begin with those who are here
//!         └── others want the core ──────────────────────────> too late: the same
//! ```
//!
//! Tasks that commit one record after the other come again within a fraction of what a sync takes. A round that begins with whoever waits when the one
//! before has ended leaves those whom that one has covered to the round after it: two groups take turns, and each sync has half of the writers.
//! To wait longer than a round takes would gain nothing.
//!
//! Whom a round has covered may have nothing more to commit, and then others have waited in vain, or nobody has come at all. So each miss makes
//! [`MISS_FACTOR`] times as many of the following rounds do without as the one before, [`WITHOUT_MAX`] at most, and each time that they came halves that
//! number. Where every second time is a miss, it comes to that most, and one round in so many stays awake in vain; where a host takes a core away now and
//! then, it costs a few rounds. After one who was late, [`ASLEEP_ROUNDS`] do without.

use crate::awake::{LONGEST, Watched};
use std::time::Duration;

/// With 2, where every second time is a miss, a quarter of all rounds would wait in vain for ever.
const MISS_FACTOR: u32 = 4;

/// Most rounds that do without after a miss.
const WITHOUT_MAX: u32 = 64;

/// Rounds that do without after one who stayed awake was late: others want the cores.
const ASLEEP_ROUNDS: u32 = 256;

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
    one: Attempts,
    all: Attempts,
}

/// What rounds try, and the fewer of them the more often it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attempts {
    /// Rounds that do without after the next miss, over [`MISS_FACTOR`].
    without: u32,
    /// Rounds of them that are left.
    without_left: u32,
}

impl Gathering {
    /// Of a first round, which expects nobody.
    pub(crate) fn new() -> Self {
        let nobody = Expected { count: 0, longest: Duration::ZERO };
        Self { expected: nobody, one: Attempts::new(), all: Attempts::new() }
    }

    /// A round that took so long has covered so many, and so many wait for the next.
    pub(crate) fn ended(&mut self, took: Duration, covered: usize, waiting: usize) {
        self.expected = Expected { count: covered + waiting, longest: took.min(LONGEST) };
    }

    /// How long to stay awake until one waits, if at all. If so, [`Self::one_came`] is told what came of it.
    pub(crate) fn awaits_one(&mut self) -> Option<Duration> {
        (self.expected.count > 1 && self.one.begins()).then_some(self.expected.longest)
    }

    /// See [`Self::awaits_one`].
    pub(crate) fn one_came(&mut self, watched: Watched) {
        self.one.ended(watched);
    }

    /// For whom to stay awake now that one waits, if for anybody. If so, [`Self::all_came`] is told what came of it.
    pub(crate) fn awaits_all(&mut self) -> Option<Expected> {
        (self.expected.count > 1 && self.all.begins()).then_some(self.expected)
    }

    /// See [`Self::awaits_all`].
    pub(crate) fn all_came(&mut self, watched: Watched) {
        self.all.ended(watched);
    }
}

impl Attempts {
    fn new() -> Self {
        Self { without: 1, without_left: 0 }
    }

    /// Whether this round tries.
    fn begins(&mut self) -> bool {
        let begins = self.without_left == 0;
        self.without_left = self.without_left.saturating_sub(1);
        begins
    }

    fn ended(&mut self, watched: Watched) {
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

    /// Rounds that do without before one tries again.
    fn without(attempts: &mut Attempts) -> u32 {
        let mut rounds = 0;
        while !attempts.begins() {
            rounds += 1;
        }
        rounds
    }

    #[test]
    fn a_round_waits_for_all_whom_the_last_one_covered_and_left() {
        let mut gathering = Gathering::new();
        assert_eq!((gathering.awaits_one(), gathering.awaits_all()), (None, None), "nobody was here yet");
        gathering.ended(TOOK, 1, 0);
        assert_eq!(
            (gathering.awaits_one(), gathering.awaits_all()),
            (None, None),
            "it would be the same one"
        );
        gathering.ended(TOOK, 1, 63);
        assert_eq!(gathering.awaits_one(), Some(TOOK));
        assert_eq!(gathering.awaits_all(), Some(Expected { count: 64, longest: TOOK }));
        gathering.ended(Duration::from_secs(1), 64, 0);
        assert_eq!(gathering.awaits_all(), Some(Expected { count: 64, longest: LONGEST }));
    }

    #[test]
    fn who_comes_one_by_one_is_not_gathered_and_still_awaited_awake() {
        let mut gathering = Gathering::new();
        gathering.ended(TOOK, 2, 2);
        gathering.all_came(Watched::TooLong);
        assert_eq!((gathering.awaits_one(), gathering.awaits_all()), (Some(TOOK), None));
        gathering.one_came(Watched::TooLong);
        assert_eq!(gathering.awaits_one(), None);
    }

    #[test]
    fn after_a_miss_rounds_do_without_and_more_of_them_the_more_is_missed() {
        let mut attempts = Attempts::new();
        for (watched, rounds) in [
            (Watched::TooLong, 4),
            (Watched::TooLong, 16),
            (Watched::Happened, 0),
            (Watched::Late, ASLEEP_ROUNDS),
            (Watched::TooLong, 32),
            (Watched::TooLong, WITHOUT_MAX),
        ] {
            attempts.ended(watched);
            assert_eq!(without(&mut attempts), rounds, "{watched:?}");
        }
        (0..6).for_each(|_| attempts.ended(Watched::Happened));
        attempts.ended(Watched::TooLong);
        assert_eq!(without(&mut attempts), 4, "what was long ago is forgotten");
    }

    #[test]
    fn where_every_second_time_is_a_miss_nearly_all_rounds_do_without() {
        let mut attempts = Attempts::new();
        let (mut tried, mut rounds) = (0, 0);
        while rounds < 10_000 {
            rounds += without(&mut attempts) + 1;
            tried += 1;
            attempts.ended(if tried % 2 == 0 { Watched::Happened } else { Watched::TooLong });
        }
        assert!(tried < 400, "{tried} of {rounds}");
    }
}
