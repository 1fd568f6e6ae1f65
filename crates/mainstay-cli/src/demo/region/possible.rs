//! What a counter can hold when the outcome of some changes is not known: every subset of them that agrees with what was seen since.

use std::collections::BTreeSet;

/// Changes with unknown outcome of one counter that are followed one by one; with more, only the range is known.
const FOLLOWED_MAX: usize = 12;

/// What is known of a counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Possible {
    /// The sum of what was acknowledged.
    acknowledged: i64,
    /// What may have taken effect, or still may, once each.
    unknown: Vec<i64>,
    /// Which of them had taken effect when the counter was seen last, each possibility as a set of bits.
    done: BTreeSet<u32>,
}

impl Default for Possible {
    fn default() -> Self {
        Self { acknowledged: 0, unknown: Vec::new(), done: [0].into() }
    }
}

impl Possible {
    /// A change was acknowledged.
    pub(crate) fn acknowledge(&mut self, by: i64) {
        self.acknowledged += by;
    }

    /// The outcome of a change is not known.
    pub(crate) fn unknown(&mut self, by: i64) {
        self.unknown.push(by);
    }

    /// The least and the most that it can hold.
    pub(crate) fn range(&self) -> (i64, i64) {
        let least = self.done.iter().map(|&done| self.sum(done)).min().unwrap_or(0);
        (self.acknowledged + least, self.acknowledged + self.unknown.iter().sum::<i64>())
    }

    /// The counter was seen to hold this; whether that can be. What has taken effect stays so.
    pub(crate) fn see(&mut self, value: i64) -> bool {
        if self.unknown.len() > FOLLOWED_MAX {
            let (least, most) = self.range();
            return (least..=most).contains(&value);
        }
        let all = 0..1_u32 << self.unknown.len();
        let agrees = |now: &u32| {
            self.acknowledged + self.sum(*now) == value
                && self.done.iter().any(|before| before & now == *before)
        };
        let done: BTreeSet<u32> = all.filter(agrees).collect();
        if done.is_empty() {
            return false;
        }
        self.done = done;
        true
    }

    fn sum(&self, done: u32) -> i64 {
        let taken = |(bit, _): &(usize, &i64)| bit < &32 && done & (1 << bit) != 0;
        self.unknown.iter().enumerate().filter(taken).map(|(_, by)| by).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_narrows_what_can_be() {
        let mut possible = Possible::default();
        possible.acknowledge(5);
        possible.unknown(3);
        possible.unknown(4);
        assert_eq!(possible.range(), (5, 12));
        for impossible in [4, 6, 7, 10, 13] {
            assert!(!possible.clone().see(impossible), "{impossible} is no sum of them");
        }
        assert!(possible.see(9), "the second has taken effect");
        assert!(!possible.clone().see(5) && !possible.clone().see(8), "and stays so");
        assert!(possible.see(12), "the first came late");
        possible.acknowledge(1);
        assert_eq!(possible.range(), (13, 13));
        assert!(possible.see(13) && !possible.see(14));
    }

    #[test]
    fn many_unknown_changes_leave_a_range() {
        let mut possible = Possible::default();
        for _ in 0..40 {
            possible.unknown(2);
        }
        assert!(possible.see(80) && possible.see(0) && !possible.see(81) && !possible.see(-1));
    }
}
