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
/// Two pairs are enough for every row of the policy table, and one more for what reveals a state; a fixed array keeps a held effect free of
/// allocation.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct After([Option<(Mark, u64)>; 3]);

impl After {
    /// Nothing: the effect may leave at once.
    pub const NOTHING: Self = Self([None, None, None]);

    /// One mark.
    #[must_use]
    #[inline]
    pub fn mark(mark: Mark, value: u64) -> Self {
        Self([Some((mark, value)), None, None])
    }

    /// This and one mark more.
    ///
    /// # Panics
    /// With more than three different marks, which nothing waits for.
    #[must_use]
    #[inline]
    pub fn and(mut self, mark: Mark, value: u64) -> Self {
        for slot in &mut self.0 {
            match slot {
                Some((present, at_least)) if *present == mark => {
                    *at_least = (*at_least).max(value);
                    return self;
                }
                Some(_) => {}
                None => {
                    *slot = Some((mark, value));
                    return self;
                }
            }
        }
        panic!("an effect waits for at most {} marks", self.0.len());
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
        self.0.iter().flatten().copied()
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
    }
}
