//! Which states of one node are lost: where each of its lives began.

use mainstay_types::determinant::Point;
use mainstay_types::id::{DeliveryIndex, Incarnation};

/// The lives of one node, each with the delivery after which it began: what an earlier life did beyond that is lost (the
/// incarnation start table of Strom and Yemini 1985).
///
/// Only lives that matter are kept: one that began before its predecessor did says more than that one. So both columns
/// rise strictly, and lives that crash again before they deliver anything take no room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lives {
    starts: Vec<(Incarnation, DeliveryIndex)>,
}

impl Lives {
    /// The newest life that is known.
    pub(super) fn newest(&self) -> Option<Incarnation> {
        self.starts.last().map(|&(life, _)| life)
    }

    /// The lives that matter, each with the delivery after which it began.
    pub(super) fn starts(&self) -> &[(Incarnation, DeliveryIndex)] {
        &self.starts
    }

    /// A newer life began after delivery `after`. One that is not newer is not news.
    pub(super) fn began(&mut self, life: Incarnation, after: DeliveryIndex) {
        if self.newest().is_some_and(|newest| newest >= life) {
            return;
        }
        while self.starts.last().is_some_and(|&(_, start)| start >= after) {
            self.starts.pop();
        }
        self.starts.push((life, after));
    }

    /// Takes in a table that its node wrote in a later life; of an earlier or the same one, nothing is new.
    pub(super) fn learn(&mut self, later: &Self) {
        for &(life, after) in &later.starts {
            self.began(life, after);
        }
    }

    /// Where the life began that lost `point`, if one did: the earliest among those after it.
    pub(super) fn lost_after(&self, point: Point) -> Option<DeliveryIndex> {
        let next = self.starts.partition_point(|&(life, _)| life <= point.incarnation);
        self.starts.get(next).map(|&(_, start)| start).filter(|&start| start < point.delivery)
    }

    /// Whether `point` is lost.
    pub(super) fn lost(&self, point: Point) -> bool {
        self.lost_after(point).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(life: u64, delivery: u64) -> Point {
        Point { incarnation: Incarnation(life), delivery: DeliveryIndex(delivery) }
    }

    fn lives(starts: &[(u64, u64)]) -> Lives {
        let mut lives = Lives::default();
        for &(life, after) in starts {
            lives.began(Incarnation(life), DeliveryIndex(after));
        }
        lives
    }

    #[test]
    fn a_later_life_loses_what_earlier_ones_did_beyond_its_start() {
        let lives = lives(&[(1, 0), (4, 10), (7, 15)]);
        assert!(!lives.lost(point(1, 10)) && lives.lost(point(1, 11)) && lives.lost(point(1, 16)));
        assert!(!lives.lost(point(4, 15)) && lives.lost(point(4, 16)));
        assert!(lives.lost(point(3, 12)), "a life that is not in the table can lose, too");
        assert!(!lives.lost(point(7, 99)));
    }

    #[test]
    fn a_life_that_began_earlier_makes_its_predecessors_superfluous() {
        let table = lives(&[(1, 0), (4, 10), (7, 15), (9, 10)]);
        assert_eq!(table, lives(&[(1, 0), (9, 10)]));
        let mut known = lives(&[(1, 0), (4, 10)]);
        known.learn(&table);
        assert_eq!(known, table);
        known.learn(&lives(&[(1, 0), (4, 10)]));
        assert_eq!(known, table);
    }

    #[test]
    fn lives_without_progress_take_no_room() {
        let table = lives(&(1..100).map(|life| (life, 3)).collect::<Vec<_>>());
        assert_eq!(table.starts().len(), 1);
    }
}
