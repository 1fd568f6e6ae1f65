//! Group commit as decisions only, without a thread or a lock: who leads a round, who waits how, and who is woken when it ends.
//!
//! ```text
//!   a leader at work? ──no──> Lead
//!       │ yes
//!   do many share a round? ──yes──> Watch the word of the round that will cover this record, and offer the core all the time
//!       │ no                          │           │
//!       │ <───────────────── 0.5 ms ──┘           └── it changes: durable, or lead the next
//!   Sleep, on that word
//! ```
//!
//! Two rounds exist at a time, the one in flight and the one that gathers, so two words are enough: of odd rounds and of even ones. Both change
//! whenever a round ends.
//!
//! To wake many sleepers takes a leader longer than a quick disk takes for a sync, and each of them two switches; those who stay awake come by turns,
//! one switch each, and the sooner the fewer they are. A slow disk is not waited for like this, nor are cores that others want: after one who stayed
//! awake for too long nobody does for the next [`SLOW_ROUNDS`]; after one who was late, because others want its core, for the next [`LATE_ROUNDS_MIN`], for
//! twice as many each time, up to [`LATE_ROUNDS_MAX`], and for fewer again with each round that found one awake.
//!
//! Invariant: whoever sleeps is covered by a round in flight, or waits for one that somebody awake will lead, or is woken by the
//! same call that makes both untrue.

use mainstay_types::id::Lsn;

/// Commits that share a round from which on they stay awake for it. Fewer have less to gain than it takes.
const SHARED_MIN: u32 = 4;

/// Rounds without anyone who stays awake, after one who did for too long: the disk is slow, and of its time no more than a sixteenth is to be spent so.
const SLOW_ROUNDS: u32 = 16;

/// The same after one who was late: others want the cores, and to find that out again takes some of their slices.
const LATE_ROUNDS_MIN: u32 = 256;

/// The most of them.
const LATE_ROUNDS_MAX: u32 = 4096;

/// By how much that becomes less for each round that found one awake.
const LATE_ROUNDS_FEWER: u32 = 16;

/// What a commit that is not durable yet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Lead: ask for a write, then [`Rounds::begin`].
    Lead,
    /// Sleep on this word.
    Sleep(usize),
    /// Stay awake until this word changes; who gives up says so ([`Rounds::gave_up`]) and sleeps on it.
    Watch(usize),
}

/// Who of those that sleep on a word is woken, once it has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Woken {
    /// Nobody sleeps, or one is awake and notices by the word.
    Nobody,
    One,
    All,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The word of the round that has ended.
    pub(crate) covered: (usize, Woken),
    /// The word of the one that gathers.
    pub(crate) gathered: (usize, Woken),
}

/// The rounds of one journal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rounds {
    leading: bool,
    /// The round that is, or was last, in flight.
    round: u64,
    /// What that round makes durable.
    target: Lsn,
    /// Whether anyone may sleep on each word.
    sleepers: [bool; 2],
    /// How many of those who wait for the next round stay awake; one of them leads it.
    watching: u32,
    /// Rounds still to end before anyone may stay awake again.
    backoff_rounds: u32,
    /// How many of them it will be after the next who is late.
    backoff_rounds_next: u32,
    /// Commits that have come since the last round ended.
    arrivals: u32,
    /// The same when it ended: about how many share one.
    arrivals_last_round: u32,
    handed_on_awake: u64,
}

impl Rounds {
    /// None yet; everything below `durable` is.
    pub(crate) fn new(durable: Lsn) -> Self {
        Self {
            leading: false,
            round: 0,
            target: durable,
            sleepers: [false; 2],
            watching: 0,
            backoff_rounds: 0,
            backoff_rounds_next: LATE_ROUNDS_MIN,
            arrivals: 0,
            arrivals_last_round: 0,
            handed_on_awake: 0,
        }
    }

    /// Rounds so far.
    pub(crate) fn count(&self) -> u64 {
        self.round
    }

    /// Those whose end found one awake to lead the next.
    pub(crate) fn handed_on_awake(&self) -> u64 {
        self.handed_on_awake
    }

    /// One more commit has come.
    pub(crate) fn arrive(&mut self) {
        self.arrivals = self.arrivals.saturating_add(1);
    }

    /// What the commit of everything up to `end` does, which is not durable; asked again whenever it is woken. Counts whom it
    /// tells to watch.
    pub(crate) fn turn(&mut self, end: Lsn) -> Turn {
        if !self.leading {
            return Turn::Lead;
        }
        let covered = end <= self.target;
        let word = word_of(if covered { self.round } else { self.round + 1 });
        if self.backoff_rounds == 0 && self.arrivals_last_round >= SHARED_MIN {
            self.watching += u32::from(!covered);
            return Turn::Watch(word);
        }
        self.sleepers[word] = true;
        Turn::Sleep(word)
    }

    /// Whoever stayed awake was late for its word, or may have been. Only the first of many lengthens the back-off; one for a slow disk does not hide that
    /// others want the cores.
    pub(crate) fn late(&mut self) {
        if self.backoff_rounds <= SLOW_ROUNDS {
            self.backoff_rounds = self.backoff_rounds_next;
            self.backoff_rounds_next = (2 * self.backoff_rounds_next).min(LATE_ROUNDS_MAX);
        }
    }

    /// Whoever stayed awake for a word, which has not changed, sleeps on it now.
    pub(crate) fn gave_up(&mut self, word: usize) {
        self.backoff_rounds = self.backoff_rounds.max(SLOW_ROUNDS);
        // It stands for the same round as when it was told to watch: both words change whenever one ends.
        self.watching -= u32::from(word == word_of(self.round + 1));
        self.sleepers[word] = true;
    }

    /// A round has a leader, and makes durable what ends at or below `target`.
    pub(crate) fn begin(&mut self, target: Lsn) {
        assert!(!self.leading, "one leader at a time");
        self.leading = true;
        self.round += 1;
        self.target = target;
    }

    /// The leader has done what it could: `durable` is past a sync, and nothing more ever will be if `hopeless`.
    pub(crate) fn end(&mut self, durable: Lsn, hopeless: bool) -> Ended {
        assert!(self.leading, "a round ends once");
        self.leading = false;
        self.backoff_rounds = self.backoff_rounds.saturating_sub(1);
        self.arrivals_last_round = std::mem::take(&mut self.arrivals);
        let watching = std::mem::take(&mut self.watching) > 0;
        if watching {
            self.handed_on_awake += 1;
            self.backoff_rounds_next = (self.backoff_rounds_next - LATE_ROUNDS_FEWER).max(LATE_ROUNDS_MIN);
        }
        let (covered, gathered) = (word_of(self.round), word_of(self.round + 1));
        let woken = if std::mem::take(&mut self.sleepers[covered]) { Woken::All } else { Woken::Nobody };
        // One of them leads the next round, unless it finds nothing to lead: then nobody would wake the others.
        let next = if durable > self.target || hopeless {
            self.sleepers[gathered] = false;
            Woken::All
        } else if self.sleepers[gathered] && !watching {
            Woken::One
        } else {
            Woken::Nobody
        };
        Ended { covered: (covered, woken), gathered: (gathered, next) }
    }

    /// Something has become durable in the background, or nothing will any more. Takes all sleepers if no round is in flight whose end would wake
    /// them: whether there were any, to be woken, on both words.
    pub(crate) fn wake_without_round(&mut self) -> bool {
        !self.leading && std::mem::take(&mut self.sleepers) != [false; 2]
    }
}

fn word_of(round: u64) -> usize {
    usize::from(round % 2 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Rounds of which the last was shared by as many as it takes.
    fn shared_by_many() -> Rounds {
        Rounds { arrivals_last_round: SHARED_MIN, ..Rounds::new(Lsn(0)) }
    }

    #[test]
    fn whoever_comes_first_leads_and_the_next_round_is_handed_to_one() {
        let mut rounds = Rounds::new(Lsn(0));
        assert_eq!(rounds.turn(Lsn(1)), Turn::Lead);
        rounds.begin(Lsn(2));
        assert_eq!(rounds.turn(Lsn(2)), Turn::Sleep(1), "covered by the round in flight");
        assert_eq!(rounds.turn(Lsn(3)), Turn::Sleep(0), "covered by the next");
        let ended = rounds.end(Lsn(2), false);
        assert_eq!(ended, Ended { covered: (1, Woken::All), gathered: (0, Woken::One) });
        assert_eq!(rounds.turn(Lsn(3)), Turn::Lead);
        rounds.begin(Lsn(3));
        let ended = rounds.end(Lsn(3), false);
        assert_eq!(ended, Ended { covered: (0, Woken::All), gathered: (1, Woken::Nobody) });
    }

    #[test]
    fn where_many_share_they_stay_awake_until_one_gives_up() {
        let mut rounds = shared_by_many();
        rounds.begin(Lsn(1));
        assert_eq!(rounds.turn(Lsn(1)), Turn::Watch(1));
        assert_eq!(rounds.turn(Lsn(2)), Turn::Watch(0));
        rounds.gave_up(0);
        assert_eq!(rounds.turn(Lsn(3)), Turn::Sleep(0));
        assert_eq!(
            rounds.end(Lsn(1), false),
            Ended { covered: (1, Woken::Nobody), gathered: (0, Woken::One) }
        );
        assert_eq!(rounds.handed_on_awake(), 0);
    }

    #[test]
    fn whom_a_round_covers_is_woken_if_it_gave_up_and_leads_nothing() {
        let mut rounds = shared_by_many();
        rounds.begin(Lsn(2));
        assert_eq!(rounds.turn(Lsn(1)), Turn::Watch(1));
        assert_eq!(rounds.turn(Lsn(2)), Turn::Watch(1));
        rounds.gave_up(1);
        assert_eq!(rounds.turn(Lsn(3)), Turn::Sleep(0), "the disk is slow");
        assert_eq!(rounds.end(Lsn(2), false), Ended { covered: (1, Woken::All), gathered: (0, Woken::One) });
    }

    #[test]
    fn of_many_who_are_awake_for_a_round_one_that_is_left_leads_it() {
        let mut rounds = shared_by_many();
        rounds.begin(Lsn(1));
        assert_eq!([2, 3].map(|end| rounds.turn(Lsn(end))), [Turn::Watch(0); 2]);
        rounds.gave_up(0);
        assert_eq!(rounds.end(Lsn(1), false).gathered, (0, Woken::Nobody));
        assert_eq!(rounds.turn(Lsn(3)), Turn::Lead);
    }

    #[test]
    fn after_one_who_was_late_or_waited_too_long_nobody_stays_awake_for_some_rounds() {
        for (late, asleep) in [(true, LATE_ROUNDS_MIN), (false, SLOW_ROUNDS)] {
            let mut rounds = shared_by_many();
            rounds.begin(Lsn(1));
            assert_eq!(rounds.turn(Lsn(2)), Turn::Watch(0));
            if late {
                rounds.late();
            }
            rounds.gave_up(0);
            for round in 1..=u64::from(asleep) {
                assert_eq!(rounds.turn(Lsn(round + 1)), Turn::Sleep(word_of(round + 1)));
                (0..SHARED_MIN).for_each(|_| rounds.arrive());
                let _ = rounds.end(Lsn(round), false);
                rounds.begin(Lsn(round + 1));
            }
            let last = u64::from(asleep) + 2;
            assert_eq!(rounds.turn(Lsn(last)), Turn::Watch(word_of(last)));
        }
    }

    #[test]
    fn the_oftener_one_is_late_the_longer_nobody_stays_awake_until_rounds_find_one_awake_again() {
        let mut rounds = shared_by_many();
        let late = |rounds: &mut Rounds| {
            rounds.backoff_rounds = 0;
            rounds.late();
            rounds.late();
            rounds.backoff_rounds
        };
        assert_eq!([(); 6].map(|()| late(&mut rounds)), [256, 512, 1024, 2048, 4096, 4096]);
        for round in 1..=(LATE_ROUNDS_MAX - LATE_ROUNDS_MIN) / LATE_ROUNDS_FEWER {
            let end = u64::from(round);
            rounds.begin(Lsn(end));
            rounds.watching = 1;
            let _ = rounds.end(Lsn(end), false);
        }
        assert_eq!(late(&mut rounds), 256);
    }

    #[test]
    fn a_round_is_handed_on_to_one_who_is_awake_without_waking_anybody() {
        let mut rounds = Rounds::new(Lsn(0));
        rounds.begin(Lsn(1));
        (0..SHARED_MIN).for_each(|_| rounds.arrive());
        let _ = rounds.end(Lsn(1), false);
        rounds.begin(Lsn(2));
        assert_eq!(rounds.turn(Lsn(3)), Turn::Watch(1));
        assert_eq!(rounds.end(Lsn(2), false).gathered, (1, Woken::Nobody));
        assert_eq!((rounds.handed_on_awake(), rounds.turn(Lsn(3))), (1, Turn::Lead));
    }

    /// A thread that commits one record.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    enum Thread {
        Appends,
        /// About to take the lock; `end` is what it wants.
        Asks {
            end: Lsn,
        },
        Leads {
            target: Lsn,
        },
        /// Has let go of the lock, and is not asleep yet.
        Falls {
            end: Lsn,
            word: usize,
            seen: u64,
        },
        Sleeps {
            end: Lsn,
            word: usize,
        },
        Watches {
            end: Lsn,
            word: usize,
            seen: u64,
        },
        /// Has ended a round, and wakes.
        Wakes {
            waking: Vec<(usize, Woken)>,
        },
        Done,
    }

    /// Threads, the disk in the background, and everything between them that a lock makes one step.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct World {
        rounds: Rounds,
        words: [u64; 2],
        threads: Vec<Thread>,
        appended: Lsn,
        durable: Lsn,
        poisoned: bool,
        /// Completions that may still come in the background.
        background: u32,
        /// Many share every round, and no disk is slow: four commits are too few for more than one such round, and the first to give up would end it.
        always_shared: bool,
    }

    impl World {
        fn wake(&self, waking: (usize, Woken)) -> Vec<Self> {
            let sleeper = |thread: &Thread| match thread {
                Thread::Sleeps { end, word } if *word == waking.0 => Some(Thread::Asks { end: *end }),
                _ => None,
            };
            let mut all = self.clone();
            let mut one = Vec::new();
            for (place, thread) in self.threads.iter().enumerate() {
                let Some(asks) = sleeper(thread) else { continue };
                all.threads[place] = asks.clone();
                let mut world = self.clone();
                world.threads[place] = asks;
                one.push(world);
            }
            match waking.1 {
                Woken::One if !one.is_empty() => one,
                Woken::All => vec![all],
                Woken::Nobody | Woken::One => vec![self.clone()],
            }
        }

        /// What the thread at `place` may do next, if it can do anything.
        fn steps_of(&self, place: usize) -> Vec<Self> {
            let mut next = self.clone();
            let become_one = |mut world: Self, thread| {
                world.threads[place] = thread;
                vec![world]
            };
            match self.threads[place].clone() {
                Thread::Appends => {
                    next.appended.0 += 1;
                    next.rounds.arrive();
                    let end = next.appended;
                    become_one(next, Thread::Asks { end })
                }
                Thread::Asks { end } if self.durable >= end || self.poisoned => {
                    become_one(next, Thread::Done)
                }
                Thread::Asks { end } => {
                    let thread = match next.rounds.turn(end) {
                        Turn::Lead => {
                            next.rounds.begin(self.appended);
                            Thread::Leads { target: self.appended }
                        }
                        Turn::Sleep(word) => Thread::Falls { end, word, seen: self.words[word] },
                        Turn::Watch(word) => Thread::Watches { end, word, seen: self.words[word] },
                    };
                    become_one(next, thread)
                }
                Thread::Leads { target } => {
                    if !self.poisoned {
                        next.durable = next.durable.max(target);
                    }
                    let ended = next.rounds.end(next.durable, self.poisoned);
                    if self.always_shared {
                        next.rounds.arrivals_last_round = SHARED_MIN;
                    }
                    let waking = vec![ended.covered, ended.gathered];
                    next.words.iter_mut().for_each(|word| *word += 1);
                    become_one(next, Thread::Wakes { waking })
                }
                Thread::Falls { end, word, seen } => {
                    let asleep = self.words[word] == seen;
                    become_one(next, if asleep { Thread::Sleeps { end, word } } else { Thread::Asks { end } })
                }
                Thread::Watches { end, word, seen } => {
                    let changed = self.words[word] != seen;
                    let then = |late| {
                        let mut world = self.clone();
                        if late {
                            world.rounds.late();
                        }
                        if changed {
                            return become_one(world, Thread::Asks { end });
                        }
                        world.rounds.gave_up(word);
                        if self.always_shared && !late {
                            world.rounds.backoff_rounds = self.rounds.backoff_rounds;
                        }
                        become_one(world, Thread::Falls { end, word, seen })
                    };
                    let mut worlds = [then(false), then(true)].concat();
                    if changed && self.durable >= end {
                        // It need not take the lock.
                        worlds.extend(become_one(next, Thread::Done));
                    }
                    worlds
                }
                Thread::Wakes { mut waking } => match waking.pop() {
                    None => become_one(next, Thread::Done),
                    Some(who) => {
                        let then = |world| become_one(world, Thread::Wakes { waking: waking.clone() });
                        self.wake(who).into_iter().flat_map(then).collect()
                    }
                },
                Thread::Sleeps { .. } | Thread::Done => Vec::new(),
            }
        }

        /// A completion in the background, good or bad: nobody may count on one.
        fn of_the_disk(&self) -> Vec<Self> {
            if self.background == 0 {
                return Vec::new();
            }
            let after = Self { background: self.background - 1, ..self.clone() };
            let good = Self { durable: self.appended, ..after.clone() };
            let bad = Self { poisoned: true, ..after };
            let tell = |mut world: Self| {
                if world.rounds.wake_without_round() {
                    world.words.iter_mut().for_each(|word| *word += 1);
                    world.threads.push(Thread::Wakes { waking: vec![(0, Woken::All), (1, Woken::All)] });
                }
                world
            };
            vec![tell(good), tell(bad)]
        }

        /// Those who stay awake for the round that gathers; and whether one looked before the last round ended, and has not noticed yet.
        fn awake(&self) -> (usize, bool) {
            let gathers = word_of(self.rounds.round + 1);
            let awake = |thread: &&Thread| matches!(thread, Thread::Watches { word, seen, .. } if *word == gathers && *seen == self.words[gathers]);
            let late = |thread: &Thread| matches!(thread, Thread::Watches { word, seen, .. } if *word == gathers && *seen != self.words[gathers]);
            (self.threads.iter().filter(awake).count(), self.threads.iter().any(late))
        }

        /// The same world whichever of its threads is which.
        fn in_order(mut self) -> Self {
            self.threads.retain(|thread| *thread != Thread::Done);
            self.threads.sort_unstable();
            self
        }
    }

    #[test]
    fn nobody_sleeps_for_ever_in_any_order_of_four_commits_and_what_the_disk_does_meanwhile() {
        let first = |rounds| World {
            rounds,
            words: [0; 2],
            threads: vec![Thread::Appends; 4],
            appended: Lsn(0),
            durable: Lsn(0),
            poisoned: false,
            background: 1,
            always_shared: false,
        };
        let soon_awake_again = Rounds { backoff_rounds: 1, ..shared_by_many() };
        let always_shared = World { always_shared: true, ..first(shared_by_many()) };
        let mut open =
            vec![first(Rounds::new(Lsn(0))), first(shared_by_many()), first(soon_awake_again), always_shared];
        let mut seen: HashSet<World> = open.iter().cloned().collect();
        let mut witnessed = [false; 7];
        while let Some(world) = open.pop() {
            let mut next: Vec<World> =
                (0..world.threads.len()).flat_map(|place| world.steps_of(place)).collect();
            let stuck = next.is_empty() && !world.threads.is_empty();
            assert!(!stuck, "somebody sleeps and nobody will wake it: {world:?}");
            let (awake, one_is_behind) = world.awake();
            assert_eq!(world.rounds.watching as usize, awake, "who stays awake is counted: {world:?}");
            let wakes = |who: Woken| {
                let wakes = |thread: &Thread| matches!(thread, Thread::Wakes { waking } if waking.get(1).is_some_and(|next| next.1 == who));
                world.threads.iter().any(wakes)
            };
            let now = [
                world.rounds.handed_on_awake() > 0,
                wakes(Woken::One),
                wakes(Woken::All),
                world.rounds.count() > 2,
                world.rounds.backoff_rounds > 1,
                world.rounds.handed_on_awake() > 1,
                awake > 0 && one_is_behind,
            ];
            witnessed.iter_mut().zip(now).for_each(|(witnessed, now)| *witnessed |= now);
            next.extend(world.of_the_disk());
            open.extend(next.into_iter().map(World::in_order).filter(|world| seen.insert(world.clone())));
        }
        assert_eq!(
            witnessed, [true; 7],
            "handed on to one awake, to one asleep, to all; three rounds; one late; twice to one awake; one awake who looked two rounds ago"
        );
    }
}
