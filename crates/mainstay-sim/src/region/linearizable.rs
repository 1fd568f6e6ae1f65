//! Whether what clients saw of one key has an order: Wing and Gong 1993, with the memory of states tried by Lowe 2017.
//!
//! An operation whose end nobody saw may have taken effect at any time after its beginning, or not at all.

use std::collections::BTreeSet;

/// What was done to the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Put(Vec<u8>),
    Remove,
    Swap(Option<Vec<u8>>, Option<Vec<u8>>),
    Add(i64),
    /// Reads, then puts.
    Exchange(Vec<u8>),
    Read,
}

/// What was seen of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Saw {
    Written,
    Removed(bool),
    Differs,
    Counted(i64),
    NoCounter,
    Value(Option<Vec<u8>>),
    /// Nobody saw an end.
    Nothing,
}

/// One operation.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) began: u64,
    /// `u64::MAX` if nobody saw the end.
    pub(crate) ended: u64,
    pub(crate) done: Done,
    pub(crate) saw: Saw,
}

/// Operations of one key beyond which the search is not made.
pub(crate) const OPERATIONS_MAX: usize = 128;

/// States that are tried before the search is given up.
const TRIED_MAX: usize = 20_000;

/// Whether there is an order. `None` when there are too many operations, or too many orders, to say.
pub(crate) fn linearizable(history: &[Seen]) -> Option<bool> {
    // A read that nobody saw an answer to says nothing.
    let history: Vec<&Seen> =
        history.iter().filter(|seen| seen.done != Done::Read || seen.saw != Saw::Nothing).collect();
    if history.len() > OPERATIONS_MAX {
        return None;
    }
    let mut tried = BTreeSet::new();
    let mut stack: Vec<(u128, Option<Vec<u8>>)> = vec![(0, None)];
    let must: u128 = history
        .iter()
        .enumerate()
        .filter(|(_, seen)| seen.saw != Saw::Nothing)
        .fold(0, |mask, (place, _)| mask | 1 << place);
    while let Some((placed, value)) = stack.pop() {
        if placed & must == must {
            return Some(true);
        }
        // Nothing that began after the end of something not placed yet can come before it.
        let first_end = history
            .iter()
            .enumerate()
            .filter(|(place, _)| placed >> place & 1 == 0)
            .map(|(_, seen)| seen.ended)
            .min()
            .unwrap_or(u64::MAX);
        if tried.len() > TRIED_MAX {
            return None;
        }
        // The stack gives the last first: what was seen to end, the earliest first, is tried before what may never have been.
        let unseen = |seen: &Seen| seen.saw == Saw::Nothing;
        let mut order: Vec<usize> = (0..history.len()).collect();
        order.sort_by_key(|&place| std::cmp::Reverse((unseen(history[place]), history[place].ended)));
        for place in order {
            let seen = history[place];
            if placed >> place & 1 == 1 || seen.began > first_end {
                continue;
            }
            if let Some(after) = apply(seen, value.as_ref()) {
                let next = (placed | 1 << place, after);
                if tried.insert(next.clone()) {
                    stack.push(next);
                }
            }
        }
    }
    Some(must == 0)
}

/// The value behind the operation, if what was seen of it can be.
fn apply(seen: &Seen, value: Option<&Vec<u8>>) -> Option<Option<Vec<u8>>> {
    let (saw, after) = match &seen.done {
        Done::Put(new) => (Saw::Written, Some(new.clone())),
        Done::Remove => (Saw::Removed(value.is_some()), None),
        Done::Swap(expected, _) if expected.as_ref() != value => (Saw::Differs, value.cloned()),
        Done::Swap(_, Some(new)) => (Saw::Written, Some(new.clone())),
        Done::Swap(_, None) => (Saw::Removed(value.is_some()), None),
        Done::Add(by) => {
            let number = match value {
                None => Some(0),
                Some(bytes) => String::from_utf8_lossy(bytes).parse::<i64>().ok(),
            };
            match number.and_then(|number| number.checked_add(*by)) {
                Some(sum) => (Saw::Counted(sum), Some(sum.to_string().into_bytes())),
                None => (Saw::NoCounter, value.cloned()),
            }
        }
        Done::Exchange(new) => (Saw::Value(value.cloned()), Some(new.clone())),
        Done::Read => (Saw::Value(value.cloned()), value.cloned()),
    };
    (seen.saw == Saw::Nothing || seen.saw == saw).then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(began: u64, ended: u64, done: Done, saw: Saw) -> Seen {
        Seen { began, ended, done, saw }
    }

    #[test]
    fn a_read_that_goes_back_has_no_order() {
        let put = seen(1, 2, Done::Put(vec![1]), Saw::Written);
        let read = |began, value: Option<Vec<u8>>| seen(began, began + 1, Done::Read, Saw::Value(value));
        assert_eq!(linearizable(&[put.clone(), read(3, Some(vec![1]))]), Some(true));
        assert_eq!(linearizable(&[put, read(3, None)]), Some(false));
    }

    #[test]
    fn what_nobody_saw_the_end_of_may_come_later_or_never() {
        let lost = seen(1, u64::MAX, Done::Put(vec![1]), Saw::Nothing);
        let read = |began, value: Option<Vec<u8>>| seen(began, began + 1, Done::Read, Saw::Value(value));
        assert_eq!(linearizable(&[lost.clone(), read(3, None), read(5, Some(vec![1]))]), Some(true));
        assert_eq!(linearizable(&[lost.clone(), read(3, Some(vec![1])), read(5, None)]), Some(false));
        assert_eq!(linearizable(&[lost, read(3, None)]), Some(true));
    }

    #[test]
    fn a_counter_that_counted_twice_is_noticed() {
        let add = |began, sum| seen(began, began + 1, Done::Add(1), Saw::Counted(sum));
        assert_eq!(linearizable(&[add(1, 1), add(3, 2)]), Some(true));
        assert_eq!(linearizable(&[add(1, 1), add(3, 3)]), Some(false));
    }
}
