//! What operations do to what keys hold: the same at every copy that has accepted the same, with no look at a clock.

use crate::blob::Blob;
use crate::decimal::Decimal;
use crate::limits::Limits;
use crate::operation::{Changes, Condition, End, Measured, Operation, Outcome, TooLong, Value};
use mainstay_types::operation::Version;

/// What a key holds before an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a> {
    pub(crate) bytes: &'a Blob,
    pub(crate) ends_at_ms: Option<u64>,
    /// Which version set it.
    pub(crate) version: Version,
}

impl Held<'_> {
    pub(crate) fn to_value(self) -> Value {
        Value { bytes: self.bytes.clone(), ends_at_ms: self.ends_at_ms }
    }
}

/// The new value of a key, `None` when it is removed; no change at all is `None` around it.
pub(crate) type Change = Option<Option<Value>>;

impl Operation {
    /// What it does to what keys hold before it.
    pub(crate) fn evaluate<'a>(
        &self,
        held: impl Fn(&[u8]) -> Option<Held<'a>>,
        limits: &Limits,
    ) -> (Outcome, Changes) {
        let (outcome, changes) = match self {
            Self::Batch(batch) => batch.evaluate(held, limits),
            step => step.evaluate_step(held, limits),
        };
        match TooLong::check(Measured::Outcome, outcome.bytes(), limits.duplicate_result_bytes_max) {
            Ok(()) => (outcome, changes),
            Err(too_long) => (Outcome::TooLong(too_long), Changes::new()),
        }
    }

    /// The same of one that is no batch.
    pub(crate) fn evaluate_step<'a>(
        &self,
        held: impl Fn(&[u8]) -> Option<Held<'a>>,
        limits: &Limits,
    ) -> (Outcome, Changes) {
        if let Some(key) = self.one_key() {
            let (outcome, change) = self.evaluate_one(held(key), limits);
            return (outcome, change.map(|value| (key.clone(), value)).into_iter().collect());
        }
        let Self::Move { from, to, keeps, replaces } = self else {
            unreachable!("a batch holds none, which is checked where it comes in")
        };
        let Some(value) = held(from).map(Held::to_value) else { return (Outcome::Differs, Changes::new()) };
        if !replaces && held(to).is_some() {
            return (Outcome::Changed(false), Changes::new());
        }
        let mut changes = Changes::new();
        if from != to {
            changes.push((to.clone(), Some(value)));
            changes.extend((!keeps).then(|| (from.clone(), None)));
        }
        (Outcome::Changed(true), changes)
    }

    /// The same of an operation of one key.
    pub(crate) fn evaluate_one(&self, before: Option<Held<'_>>, limits: &Limits) -> (Outcome, Change) {
        let set = |bytes: Blob, ends_at_ms| Some(Some(Value { bytes, ends_at_ms }));
        let kept = before.and_then(|held| held.ends_at_ms);
        let removed = |was_there: bool| (Outcome::Removed { was_there }, was_there.then_some(None));
        match self {
            Self::Put { value, .. } => (Outcome::Written, set(value.clone(), None)),
            Self::Remove { .. } => removed(before.is_some()),
            Self::CompareAndSet { expected, .. } if expected.as_ref() != before.map(|held| held.bytes) => {
                (Outcome::Differs, None)
            }
            Self::CompareAndSet { value: Some(value), .. } => (Outcome::Written, set(value.clone(), None)),
            Self::CompareAndSet { value: None, .. } => removed(before.is_some()),
            Self::Increment { by, .. } => {
                let counter = before.map_or(Some(0), |held| counter_of(held.bytes));
                match counter.and_then(|counter| counter.checked_add(*by)) {
                    Some(sum) => (Outcome::Counted(sum), set(sum.to_string().as_str().into(), kept)),
                    None => (Outcome::NoCounter, None),
                }
            }
            Self::Set { value, condition, end, returns_before, .. } => {
                let does = match condition {
                    Condition::Always => true,
                    Condition::Absent => before.is_none(),
                    Condition::Present => before.is_some(),
                };
                let ends_at_ms = match end {
                    End::Never => None,
                    End::Kept => kept,
                    End::At(ms) => Some(*ms),
                };
                let outcome = match (returns_before, does) {
                    (true, _) => Outcome::Value(before.map(Held::to_value)),
                    (false, true) => Outcome::Written,
                    (false, false) => Outcome::Differs,
                };
                (outcome, if does { set(value.clone(), ends_at_ms) } else { None })
            }
            Self::Take { .. } => {
                (Outcome::Value(before.map(Held::to_value)), before.is_some().then_some(None))
            }
            Self::Append { value, .. } => {
                let bytes = [before.map_or(&[][..], |held| &**held.bytes), value].concat();
                match TooLong::check(Measured::Value, bytes.len(), limits.value_bytes_max) {
                    Ok(()) => (Outcome::Length(bytes.len() as u64), set(bytes.into(), kept)),
                    Err(too_long) => (Outcome::TooLong(too_long), None),
                }
            }
            Self::Expire { ends_at_ms, .. } => match before {
                Some(held) if held.ends_at_ms.is_some() || ends_at_ms.is_some() => {
                    (Outcome::Changed(true), set(held.bytes.clone(), *ends_at_ms))
                }
                _ => (Outcome::Changed(false), None),
            },
            Self::Get { .. } => (Outcome::Value(before.map(Held::to_value)), None),
            Self::ExpireIf { ends_at_ms, past, condition, .. } => match before {
                Some(held) if condition.holds(held.ends_at_ms, *ends_at_ms) => {
                    let ends = if *past { Some(None) } else { set(held.bytes.clone(), Some(*ends_at_ms)) };
                    (Outcome::Changed(true), ends)
                }
                _ => (Outcome::Changed(false), None),
            },
            Self::SetRange { at, value, .. } => {
                let before = before.map_or(&[][..], |held| &**held.bytes);
                if value.is_empty() {
                    return (Outcome::Length(before.len() as u64), None);
                }
                let at = usize::try_from(*at).unwrap_or(usize::MAX);
                let end = at.saturating_add(value.len());
                if let Err(too_long) = TooLong::check(Measured::Value, end, limits.value_bytes_max) {
                    return (Outcome::TooLong(too_long), None);
                }
                let mut bytes = before.to_vec();
                bytes.resize(bytes.len().max(end), 0);
                bytes[at..end].copy_from_slice(value);
                (Outcome::Length(bytes.len() as u64), set(bytes.into(), kept))
            }
            Self::AddDecimal { by, .. } => {
                let counter = before.map_or(Some(Decimal::default()), |held| Decimal::parse(held.bytes));
                let sum = counter.zip(Decimal::parse(by)).and_then(|(counter, by)| counter.checked_add(by));
                match sum.map(|sum| Blob::from(sum.to_string().as_str())) {
                    Some(text) => {
                        let told = Value { bytes: text.clone(), ends_at_ms: None };
                        (Outcome::Value(Some(told)), set(text, kept))
                    }
                    None => (Outcome::NoCounter, None),
                }
            }
            Self::Move { .. } | Self::Batch(_) => unreachable!("it is of several keys"),
        }
    }
}

/// The counter that a value is: in the one way in which it would be written, without `+`, leading zeros or `-0`.
fn counter_of(value: &[u8]) -> Option<i64> {
    let text = str::from_utf8(value).ok()?;
    let counter = text.parse::<i64>().ok()?;
    let sign = text.starts_with('-');
    let digits = text.strip_prefix('-').unwrap_or(text);
    let written_so = !digits.starts_with('+') && (!digits.starts_with('0') || (text == "0" && !sign));
    written_so.then_some(counter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::EndIf;

    fn key() -> Blob {
        b"k".into()
    }

    /// The outcome, and what the key holds afterwards if anything changes it.
    fn done(operation: &Operation, before: Option<(&[u8], Option<u64>)>) -> (Outcome, Change) {
        let bytes = before.map(|(bytes, _)| Blob::from(bytes));
        let held = bytes.as_ref().zip(before).map(|(bytes, (_, ends_at_ms))| Held {
            bytes,
            ends_at_ms,
            version: Version::NONE,
        });
        operation.evaluate_one(held, &Limits::default())
    }

    fn value(bytes: &[u8], ends_at_ms: Option<u64>) -> Value {
        Value { bytes: bytes.into(), ends_at_ms }
    }

    /// As Redis has it: a value that never ends counts as one that ends later than all.
    #[test]
    fn an_end_is_set_where_the_end_before_allows_it() {
        let ends = [None, Some(50), Some(70)];
        for (condition, sets) in [
            (EndIf::Endless, [true, false, false]),
            (EndIf::Ends, [false, true, true]),
            (EndIf::Later, [false, true, false]),
            (EndIf::Earlier, [true, false, true]),
            (EndIf::EndsAndEarlier, [false, false, true]),
        ] {
            for (before, set) in ends.into_iter().zip(sets) {
                for past in [false, true] {
                    let expire = Operation::ExpireIf { key: key(), ends_at_ms: 60, past, condition };
                    let after = (!past).then(|| value(b"v", Some(60)));
                    let expected = (Outcome::Changed(set), set.then_some(after));
                    assert_eq!(done(&expire, Some((b"v", before))), expected, "{condition:?} {before:?}");
                    assert_eq!(done(&expire, None), (Outcome::Changed(false), None));
                }
            }
        }
        let same = |condition| Operation::ExpireIf { key: key(), ends_at_ms: 60, past: false, condition };
        for condition in [EndIf::Later, EndIf::Earlier] {
            assert_eq!(done(&same(condition), Some((b"v", Some(60)))).0, Outcome::Changed(false));
        }
    }

    #[test]
    fn bytes_are_put_into_a_value_and_a_fraction_is_added() {
        let put = |at, bytes: &[u8]| Operation::SetRange { key: key(), at, value: bytes.into() };
        let set = |bytes: &[u8], end| Some(Some(value(bytes, end)));
        assert_eq!(
            done(&put(1, b"xy"), Some((b"abcd", Some(9)))),
            (Outcome::Length(4), set(b"axyd", Some(9)))
        );
        assert_eq!(done(&put(3, b"xy"), Some((b"a", None))), (Outcome::Length(5), set(b"a\0\0xy", None)));
        assert_eq!(done(&put(2, b"x"), None), (Outcome::Length(3), set(b"\0\0x", None)));
        assert_eq!(done(&put(u64::MAX, b""), Some((b"ab", None))), (Outcome::Length(2), None));
        assert!(matches!(done(&put(u64::MAX, b"x"), None), (Outcome::TooLong(_), None)));
        assert!(put(1 << 20, b"x").check(&Limits::default()).is_err(), "and nothing is stamped for it");
        let add = |by: &str| Operation::AddDecimal { key: key(), by: by.into() };
        let sum = |text: &[u8]| Outcome::Value(Some(value(text, None)));
        assert_eq!(done(&add("0.1"), Some((b"10.50", Some(9)))), (sum(b"10.6"), set(b"10.6", Some(9))));
        assert_eq!(done(&add("-2.5e1"), None), (sum(b"-25"), set(b"-25", None)));
        assert_eq!(done(&add("1"), Some((b"text", None))), (Outcome::NoCounter, None));
    }

    #[test]
    fn a_value_is_given_to_another_key_with_its_end() {
        let (from, to) = (Blob::from(b"{t}a"), Blob::from(b"{t}b"));
        let (bytes, other) = (Blob::from(b"v"), Blob::from(b"w"));
        let there = |both: bool| {
            let (from, to, bytes, other) = (from.clone(), to.clone(), &bytes, &other);
            move |key: &[u8]| {
                let held = |bytes, ends_at_ms| Held { bytes, ends_at_ms, version: Version::NONE };
                match key {
                    _ if *key == *from => Some(held(bytes, Some(9))),
                    _ if *key == *to && both => Some(held(other, None)),
                    _ => None,
                }
            }
        };
        let limits = Limits::default();
        let moving = |to: &Blob, keeps, replaces| Operation::Move {
            from: from.clone(),
            to: to.clone(),
            keeps,
            replaces,
        };
        let given = (to.clone(), Some(value(b"v", Some(9))));
        let gone = (from.clone(), None);
        for (keeps, replaces, both, expected) in [
            (false, true, true, Some(vec![given.clone(), gone.clone()])),
            (false, false, false, Some(vec![given.clone(), gone])),
            (true, true, true, Some(vec![given])),
            (true, false, true, None),
        ] {
            let changed = Outcome::Changed(expected.is_some());
            let done = moving(&to, keeps, replaces).evaluate(there(both), &limits);
            assert_eq!(done, (changed, expected.unwrap_or_default()), "{keeps} {replaces} {both}");
        }
        let none = |_: &[u8]| None;
        assert_eq!(moving(&to, false, true).evaluate(none, &limits), (Outcome::Differs, Changes::new()));
        assert_eq!(
            moving(&from, false, true).evaluate(there(false), &limits),
            (Outcome::Changed(true), Changes::new())
        );
        assert_eq!(
            moving(&from, false, false).evaluate(there(false), &limits),
            (Outcome::Changed(false), Changes::new())
        );
    }
}
