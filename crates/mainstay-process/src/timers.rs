//! Timers that the handler set and that are not due yet.

use mainstay_types::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The table of timers, by due time, then by number.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Timers {
    last: u64,
    due: BTreeMap<(Time, u64), u64>,
    by_number: BTreeMap<u64, Time>,
}

impl Timers {
    pub(crate) fn set(&mut self, due: Time, token: u64) {
        self.last += 1;
        self.due.insert((due, self.last), token);
        self.by_number.insert(self.last, due);
    }

    /// Removes timer `number` and gives its token.
    pub(crate) fn take(&mut self, number: u64) -> Option<u64> {
        let due = self.by_number.remove(&number)?;
        self.due.remove(&(due, number))
    }

    /// The numbers of all timers due at `now`, earliest first.
    pub(crate) fn due(&self, now: Time) -> Vec<u64> {
        self.due.range(..=(now, u64::MAX)).map(|(&(_, number), _)| number).collect()
    }

    /// Due times and numbers, earliest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Time, u64)> + '_ {
        self.due.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_due_in_order_and_taken_once() {
        let mut timers = Timers::default();
        timers.set(Time(20), 7);
        timers.set(Time(10), 8);
        timers.set(Time(30), 9);
        assert_eq!(timers.iter().next(), Some((Time(10), 2)));
        assert_eq!(timers.due(Time(20)), [2, 1]);
        assert_eq!(timers.take(2), Some(8));
        assert_eq!(timers.take(2), None);
        assert_eq!(timers.iter().next(), Some((Time(20), 1)));
    }
}
