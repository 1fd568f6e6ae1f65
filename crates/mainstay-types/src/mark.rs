//! Marks: monotone counters that rooms publish and that held effects wait for.

use std::fmt;

/// A counter that only grows. The room that owns it decides what its value means and publishes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mark {
    /// The journal's: every record that ends at or below this LSN is in the ring, where kill -9 does not reach it.
    Appended,
    /// The journal's: every record that ends at or below this LSN is on this disk, past a sync.
    Durable,
    /// The logging policy's: every message delivery with an index at or below this, and everything that it depends on in
    /// other nodes, survives the failures that the policy plans for.
    Recoverable,
    /// The driver's: every record that ends at or below this LSN is in the region that keeps the log.
    Kept,
    /// The driver's: when the region was asked for the time of this number, this life was still the one whose log it keeps.
    Confirmed,
}

impl Mark {
    /// How many marks there are; they index tables.
    pub const COUNT: usize = 5;

    /// This mark's place in a table of all marks.
    #[must_use]
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What an effect waits for: every pair `(mark, value)` must have `published(mark) >= value`.
///
/// Two pairs are enough for every row of the policy table, and one more for what reveals a state; fixed arrays keep a held effect free of
/// allocation, and marks and values that stand apart keep it as small as two pairs that stand together.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct After {
    /// From the first on.
    marks: [Option<Mark>; 3],
    values: [u64; 3],
}

const _: () = assert!(size_of::<After>() <= 32, "each held effect has one");

impl After {
    /// Nothing: the effect may leave at once.
    pub const NOTHING: Self = Self { marks: [None; 3], values: [0; 3] };

    /// One mark.
    #[must_use]
    #[inline]
    pub fn mark(mark: Mark, value: u64) -> Self {
        Self { marks: [Some(mark), None, None], values: [value, 0, 0] }
    }

    /// This and one mark more.
    ///
    /// # Panics
    /// With more than three different marks, which nothing waits for.
    #[must_use]
    #[inline]
    pub fn and(mut self, mark: Mark, value: u64) -> Self {
        for (slot, at_least) in self.marks.iter_mut().zip(&mut self.values) {
            match slot {
                Some(present) if *present == mark => {
                    *at_least = (*at_least).max(value);
                    return self;
                }
                Some(_) => {}
                None => {
                    (*slot, *at_least) = (Some(mark), value);
                    return self;
                }
            }
        }
        panic!("an effect waits for at most {} marks", self.marks.len());
    }

    /// The value of `mark` that is waited for, if it is one of them.
    #[must_use]
    #[inline]
    pub fn value_of(&self, mark: Mark) -> Option<u64> {
        self.waits().find(|&(waited, _)| waited == mark).map(|(_, value)| value)
    }

    /// The pairs, in no particular order.
    #[inline]
    pub fn waits(&self) -> impl Iterator<Item = (Mark, u64)> + '_ {
        self.marks.iter().map_while(|mark| *mark).zip(self.values)
    }
}

impl fmt::Debug for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut waits = self.waits().peekable();
        if waits.peek().is_none() {
            return f.write_str("nothing");
        }
        for (place, (mark, value)) in waits.enumerate() {
            let separator = if place == 0 { "" } else { " and " };
            write!(f, "{separator}{mark:?} >= {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_mark_twice_keeps_the_higher_value() {
        let after = After::mark(Mark::Durable, 7).and(Mark::Durable, 3).and(Mark::Appended, 1);
        assert_eq!(after.waits().collect::<Vec<_>>(), [(Mark::Durable, 7), (Mark::Appended, 1)]);
        assert_eq!((after.value_of(Mark::Durable), after.value_of(Mark::Recoverable)), (Some(7), None));
        let third = after.and(Mark::Confirmed, 9).and(Mark::Appended, 0);
        assert_eq!(third.waits().last(), Some((Mark::Confirmed, 9)));
        assert_eq!(After::NOTHING.waits().count(), 0);
    }
}
