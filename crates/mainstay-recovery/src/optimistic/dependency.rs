//! How one node depends on one other: the newest point it depends on, and which of its deliveries led to that.

use super::lives::Lives;
use mainstay_types::determinant::Point;
use mainstay_types::id::DeliveryIndex;
use std::collections::VecDeque;

/// One entry of the dependency vector, with its history as far as a rollback may still undo it.
#[derive(Clone, Debug, Default)]
pub(super) struct Dependency {
    /// The entry at this node's recoverable line.
    settled: Option<Point>,
    /// The deliveries of this node above that line that raised the entry, and to what; both rise.
    raised: VecDeque<(DeliveryIndex, Point)>,
    /// How many of [`Self::raised`] are known to be stable; the next one is not, or is lost.
    stable: usize,
}

impl Dependency {
    /// An entry that nothing can undo.
    pub(super) fn settled(point: Option<Point>) -> Self {
        Self { settled: point, ..Self::default() }
    }

    /// The entry now.
    pub(super) fn newest(&self) -> Option<Point> {
        self.raised.back().map(|&(_, point)| point).or(self.settled)
    }

    /// The entry at the recoverable line, which must never be lost.
    pub(super) fn at_line(&self) -> Option<Point> {
        self.settled
    }

    /// Entries of the history, which grows with what is not settled.
    pub(super) fn unsettled(&self) -> usize {
        self.raised.len()
    }

    /// Delivery `index` depends on `point`.
    pub(super) fn depend(&mut self, index: DeliveryIndex, point: Point) {
        if self.newest() >= Some(point) {
            return;
        }
        self.raised.push_back((index, point));
    }

    /// The other node is durable up to `stable` in its newest life in `lives`: takes note of what that covers.
    pub(super) fn stabilize(&mut self, lives: &Lives, stable: DeliveryIndex) {
        while let Some(&(_, point)) = self.raised.get(self.stable) {
            let covered = point.delivery <= stable && lives.newest() >= Some(point.incarnation);
            if !covered || lives.lost(point) {
                break;
            }
            self.stable += 1;
        }
    }

    /// The first delivery of this node that depends on a state not known to be stable.
    pub(super) fn first_unstable(&self) -> Option<DeliveryIndex> {
        self.raised.get(self.stable).map(|&(index, _)| index)
    }

    /// What must become stable so that delivery `index` depends only on stable states, if anything.
    pub(super) fn awaited(&self, index: DeliveryIndex) -> Option<Point> {
        let up_to = self.raised.partition_point(|&(raised, _)| raised <= index);
        (up_to > self.stable).then(|| self.raised[up_to - 1].1)
    }

    /// The first delivery of this node that depends on a lost state. It, and what follows, no longer counts as stable.
    pub(super) fn first_lost(&mut self, lives: &Lives) -> Option<DeliveryIndex> {
        let at = self.raised.iter().position(|&(_, point)| lives.lost(point))?;
        self.stable = self.stable.min(at);
        Some(self.raised[at].0)
    }

    /// Nothing up to delivery `line` of this node will be undone.
    pub(super) fn settle(&mut self, line: DeliveryIndex) {
        while let Some(&(index, point)) = self.raised.front()
            && index <= line
        {
            self.stable = self.stable.checked_sub(1).expect("only stable dependencies are below the line");
            self.settled = Some(point);
            self.raised.pop_front();
        }
    }

    /// This node gave up its deliveries above `keep`.
    pub(super) fn undo(&mut self, keep: DeliveryIndex) {
        while self.raised.back().is_some_and(|&(index, _)| index > keep) {
            self.raised.pop_back();
        }
        self.stable = self.stable.min(self.raised.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::Incarnation;

    fn point(life: u64, delivery: u64) -> Point {
        Point { incarnation: Incarnation(life), delivery: DeliveryIndex(delivery) }
    }

    fn depending(raises: &[(u64, u64)]) -> Dependency {
        let mut dependency = Dependency::default();
        for &(index, delivery) in raises {
            dependency.depend(DeliveryIndex(index), point(1, delivery));
        }
        dependency
    }

    fn first_life() -> Lives {
        let mut lives = Lives::default();
        lives.began(Incarnation(1), DeliveryIndex(0));
        lives
    }

    #[test]
    fn what_was_stable_is_undone_with_the_delivery_that_needed_it() {
        let mut dependency = depending(&[(2, 5), (4, 9), (6, 9), (7, 12)]);
        assert_eq!(dependency.unsettled(), 3, "an entry that does not rise needs no memory");
        dependency.stabilize(&first_life(), DeliveryIndex(9));
        assert_eq!(dependency.first_unstable(), Some(DeliveryIndex(7)));
        dependency.settle(DeliveryIndex(2));
        assert_eq!(dependency.at_line(), Some(point(1, 5)));
        dependency.undo(DeliveryIndex(3));
        assert_eq!(dependency.newest(), Some(point(1, 5)));
        assert_eq!(dependency.first_unstable(), None);
    }

    #[test]
    fn a_lost_state_is_never_stable_however_far_the_next_life_is() {
        let mut dependency = depending(&[(2, 5), (4, 9), (5, 11)]);
        let mut lives = first_life();
        dependency.stabilize(&lives, DeliveryIndex(9));
        lives.began(Incarnation(2), DeliveryIndex(7));
        assert_eq!(dependency.first_lost(&lives), Some(DeliveryIndex(4)));
        dependency.stabilize(&lives, DeliveryIndex(99));
        assert_eq!(dependency.first_unstable(), Some(DeliveryIndex(4)));
    }

    #[test]
    fn what_is_awaited_is_the_newest_that_the_delivery_depends_on() {
        let mut dependency = depending(&[(2, 5), (4, 9), (7, 12)]);
        assert_eq!(dependency.awaited(DeliveryIndex(1)), None);
        assert_eq!(dependency.awaited(DeliveryIndex(6)), Some(point(1, 9)));
        dependency.stabilize(&first_life(), DeliveryIndex(9));
        assert_eq!(dependency.awaited(DeliveryIndex(6)), None);
        assert_eq!(dependency.awaited(DeliveryIndex(8)), Some(point(1, 12)));
    }
}
