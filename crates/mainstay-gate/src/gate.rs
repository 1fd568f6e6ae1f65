//! The gate: one queue per mark, ordered by the value waited for.

use mainstay_types::held::{Held, Origin};
use mainstay_types::mark::{After, Mark};
use std::collections::VecDeque;

/// Effects that wait, and the marks they wait for.
///
/// An effect that waits for two marks stands in the queue of one that is not met yet; when that is met it moves on.
/// Effects that wait for the same mark leave in the order of their values, equal values in the order of holding.
#[derive(Debug)]
pub struct Gate<T> {
    published: [u64; Mark::COUNT],
    never: [bool; Mark::COUNT],
    asked: [u64; Mark::COUNT],
    waiting: [VecDeque<Waiting<T>>; Mark::COUNT],
    stats: Stats,
}

#[derive(Debug)]
struct Waiting<T> {
    value: u64,
    held: Held<T>,
}

/// What became of an effect given to [`Gate::hold`].
#[derive(Debug, PartialEq, Eq)]
pub enum Hold<T> {
    /// Everything it waits for has come: it may leave now.
    Passed(Held<T>),
    /// It stands in a queue.
    Waiting,
    /// It waits for a mark that can never advance: it will never leave.
    Never(Held<T>),
}

/// What the gate has done, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Effects that were met at once and never stood in a queue.
    pub passed: u64,
    /// Effects that had to wait.
    pub held: u64,
    /// Effects released after a wait.
    pub released: u64,
    /// Effects discarded: rolled back, or waiting for a mark that can never advance.
    pub discarded: u64,
}

impl<T> Default for Gate<T> {
    fn default() -> Self {
        Self {
            published: [0; Mark::COUNT],
            never: [false; Mark::COUNT],
            asked: [0; Mark::COUNT],
            waiting: std::array::from_fn(|_| VecDeque::new()),
            stats: Stats::default(),
        }
    }
}

impl<T> Gate<T> {
    /// Takes `held`, unless nothing it waits for is outstanding or it would wait for ever.
    #[must_use = "an effect that was not taken is the caller's to release or to refuse"]
    pub fn hold(&mut self, held: Held<T>) -> Hold<T> {
        match self.first_unmet(&held) {
            None => {
                self.stats.passed += 1;
                Hold::Passed(held)
            }
            Some((mark, _)) if self.never[mark.index()] => {
                self.stats.discarded += 1;
                Hold::Never(held)
            }
            Some((mark, value)) => {
                self.stats.held += 1;
                for (mark, value) in held.after.waits() {
                    self.asked[mark.index()] = self.asked[mark.index()].max(value);
                }
                self.enqueue(mark, value, held);
                Hold::Waiting
            }
        }
    }

    /// Learns that `mark` has reached `value`: appends all that may leave now to `released`, and to `discarded` what now waits for a
    /// mark that can never advance. A value below the published one changes nothing.
    pub fn advance(
        &mut self,
        mark: Mark,
        value: u64,
        released: &mut Vec<Held<T>>,
        discarded: &mut Vec<Held<T>>,
    ) {
        if value <= self.published[mark.index()] {
            return;
        }
        self.published[mark.index()] = value;
        while self.waiting[mark.index()].front().is_some_and(|first| first.value <= value) {
            let first = self.waiting[mark.index()].pop_front().expect("a front was just seen");
            match self.first_unmet(&first.held) {
                None => {
                    self.stats.released += 1;
                    released.push(first.held);
                }
                Some((next, _)) if self.never[next.index()] => {
                    self.stats.discarded += 1;
                    discarded.push(first.held);
                }
                Some((next, value)) => self.enqueue(next, value, first.held),
            }
        }
    }

    /// Learns that `mark` can never advance again; what waits for it is given back in `discarded`, so that its owner can
    /// be told.
    pub fn never(&mut self, mark: Mark, discarded: &mut Vec<Held<T>>) {
        self.never[mark.index()] = true;
        self.stats.discarded += self.waiting[mark.index()].len() as u64;
        discarded.extend(self.waiting[mark.index()].drain(..).map(|waiting| waiting.held));
    }

    /// Discards everything whose origin was rolled back.
    pub fn roll_back(&mut self, rolled_back: impl Fn(&Origin) -> bool) {
        for queue in &mut self.waiting {
            let before = queue.len();
            queue.retain(|waiting| !rolled_back(&waiting.held.origin));
            self.stats.discarded += (before - queue.len()) as u64;
        }
    }

    /// Whether everything that `after` names has come.
    #[must_use]
    pub fn met(&self, after: &After) -> bool {
        after.waits().all(|(mark, value)| self.published[mark.index()] >= value)
    }

    /// How far `mark` has come.
    #[must_use]
    pub fn published(&self, mark: Mark) -> u64 {
        self.published[mark.index()]
    }

    /// Whether something waits for `mark`; then the highest value waited for.
    #[must_use]
    pub fn wanted(&self, mark: Mark) -> Option<u64> {
        self.waiting[mark.index()].back().map(|last| last.value)
    }

    /// The highest value of `mark` that anything was ever held for, also behind another mark, if it has not come.
    #[must_use]
    pub fn outstanding(&self, mark: Mark) -> Option<u64> {
        let asked = self.asked[mark.index()];
        (asked > self.published[mark.index()]).then_some(asked)
    }

    /// Everything held, in the order of the marks.
    pub fn iter(&self) -> impl Iterator<Item = &Held<T>> {
        self.waiting.iter().flatten().map(|waiting| &waiting.held)
    }

    /// How many effects are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the gate has done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    fn first_unmet(&self, held: &Held<T>) -> Option<(Mark, u64)> {
        held.after.waits().find(|&(mark, value)| self.published[mark.index()] < value)
    }

    fn enqueue(&mut self, mark: Mark, value: u64, held: Held<T>) {
        let queue = &mut self.waiting[mark.index()];
        // Values nearly always arrive in order; then this is a push at the end.
        let place = queue.partition_point(|waiting| waiting.value <= value);
        queue.insert(place, Waiting { value, held });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::{DeliveryIndex, Incarnation, InstanceId};

    fn held(what: u32, after: After) -> Held<u32> {
        let origin = Origin {
            instance: InstanceId(0),
            incarnation: Incarnation(1),
            delivery: DeliveryIndex(u64::from(what)),
        };
        Held { what, after, origin }
    }

    fn names(released: &[Held<u32>]) -> Vec<u32> {
        released.iter().map(|held| held.what).collect()
    }

    #[test]
    fn an_effect_waits_for_its_mark_and_leaves_once() {
        let mut gate = Gate::default();
        let mut out = Vec::new();
        assert_eq!(gate.hold(held(1, After::mark(Mark::Durable, 10))), Hold::Waiting);
        gate.advance(Mark::Durable, 9, &mut out, &mut Vec::new());
        assert!(out.is_empty());
        gate.advance(Mark::Durable, 10, &mut out, &mut Vec::new());
        gate.advance(Mark::Durable, 11, &mut out, &mut Vec::new());
        assert_eq!(names(&out), [1]);
    }

    #[test]
    fn what_is_met_already_passes() {
        let mut gate = Gate::default();
        gate.advance(Mark::Durable, 10, &mut Vec::new(), &mut Vec::new());
        let durable = held(1, After::mark(Mark::Durable, 10));
        assert_eq!(gate.hold(durable.clone()), Hold::Passed(durable));
        let free = held(2, After::NOTHING);
        assert_eq!(gate.hold(free.clone()), Hold::Passed(free));
    }

    #[test]
    fn two_marks_are_both_waited_for_in_either_order() {
        for marks in [[Mark::Durable, Mark::Appended], [Mark::Appended, Mark::Durable]] {
            let mut gate = Gate::default();
            let mut out = Vec::new();
            assert_eq!(
                gate.hold(held(1, After::mark(Mark::Durable, 5).and(Mark::Appended, 5))),
                Hold::Waiting
            );
            assert_eq!(marks.map(|mark| gate.outstanding(mark)), [Some(5), Some(5)]);
            gate.advance(marks[0], 5, &mut out, &mut Vec::new());
            assert!(out.is_empty());
            assert_eq!(marks.map(|mark| gate.outstanding(mark)), [None, Some(5)]);
            gate.advance(marks[1], 5, &mut out, &mut Vec::new());
            assert_eq!(names(&out), [1]);
        }
    }

    #[test]
    fn values_leave_in_order_and_equal_values_in_the_order_of_holding() {
        let mut gate = Gate::default();
        let mut out = Vec::new();
        for (what, value) in [(1, 20), (2, 10), (3, 20), (4, 10)] {
            assert_eq!(gate.hold(held(what, After::mark(Mark::Durable, value))), Hold::Waiting);
        }
        assert_eq!(gate.wanted(Mark::Durable), Some(20));
        gate.advance(Mark::Durable, 30, &mut out, &mut Vec::new());
        assert_eq!(names(&out), [2, 4, 1, 3]);
    }

    #[test]
    fn a_dead_mark_gives_back_what_waited_and_takes_nothing_more() {
        let mut gate = Gate::default();
        let mut discarded = Vec::new();
        assert_eq!(gate.hold(held(1, After::mark(Mark::Durable, 5))), Hold::Waiting);
        gate.never(Mark::Durable, &mut discarded);
        assert_eq!(names(&discarded), [1]);
        let late = held(2, After::mark(Mark::Durable, 6));
        assert_eq!(gate.hold(late.clone()), Hold::Never(late));
        assert!(gate.is_empty());
    }

    #[test]
    fn what_moves_on_to_a_dead_mark_is_given_back() {
        let mut gate = Gate::default();
        let (mut out, mut discarded) = (Vec::new(), Vec::new());
        let both = held(1, After::mark(Mark::Appended, 5).and(Mark::Durable, 5));
        assert_eq!(gate.hold(both), Hold::Waiting);
        gate.never(Mark::Durable, &mut discarded);
        gate.advance(Mark::Appended, 5, &mut out, &mut discarded);
        assert!(out.is_empty());
        assert_eq!(names(&discarded), [1]);
    }

    #[test]
    fn a_rolled_back_delivery_takes_its_effects_along() {
        let mut gate = Gate::default();
        let mut out = Vec::new();
        for what in 1..=4 {
            assert_eq!(gate.hold(held(what, After::mark(Mark::Durable, u64::from(what)))), Hold::Waiting);
        }
        gate.roll_back(|origin| origin.delivery > DeliveryIndex(2));
        gate.advance(Mark::Durable, 9, &mut out, &mut Vec::new());
        assert_eq!(names(&out), [1, 2]);
    }
}
