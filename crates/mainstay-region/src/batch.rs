//! Several operations of one shard as one: one version, applied whole at every copy or not at all.

use crate::blob::Blob;
use crate::evaluate::Held;
use crate::flat::{self, Nests};
use crate::limits::Limits;
use crate::operation::{Changes, Measured, Operation, Outcome, TooLong, Value};
use mainstay_types::operation::Version;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What each operation of a batch counts besides its key and values, in bytes, so that many small ones are limited too.
const STEP_BYTES: usize = 64;

/// The operations. Each sees what those before it did. One that cannot be done (no counter, a condition that is not met) changes nothing and
/// the others are done all the same, as in Redis.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Batch {
    /// Keys with the versions that they must still have, `None`: they must not be there. Else nothing is done ([`Outcome::Differs`]).
    pub watched: Vec<(Vec<u8>, Option<Version>)>,
    /// What is done, in this order. No batches.
    #[serde(with = "flat")]
    pub steps: Vec<Operation>,
}

impl Batch {
    /// All keys that it is about.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.watched
            .iter()
            .map(|(key, _)| key.as_slice())
            .chain(self.steps.iter().flat_map(Operation::own_keys))
    }

    /// What an operation counts towards [`Limits::batch_bytes_max`]: its key, its value twice, and a little for itself.
    #[must_use]
    pub fn step_bytes(step: &Operation) -> usize {
        step.own_keys().map(<[u8]>::len).sum::<usize>() + STEP_BYTES + 2 * step.value_bytes()
    }

    /// Bytes of its keys and values, and what each operation and watched key counts besides.
    pub(crate) fn bytes(&self) -> usize {
        let watched = self.watched.iter().map(|(key, _)| STEP_BYTES + key.len());
        watched.chain(self.steps.iter().map(|step| STEP_BYTES + step.bytes())).sum()
    }

    /// Checks its lengths.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), TooLong> {
        let mut bytes = 0;
        for (key, _) in &self.watched {
            TooLong::check(Measured::Key, key.len(), limits.key_bytes_max)?;
            bytes += key.len() + STEP_BYTES;
        }
        for step in &self.steps {
            assert!(!matches!(step, Operation::Batch(_)), "a batch holds no batch");
            step.check(limits)?;
            bytes += Self::step_bytes(step);
        }
        TooLong::check(Measured::Batch, bytes, limits.batch_bytes_max)
    }

    /// What it does to what keys hold before it.
    pub(crate) fn evaluate<'a>(
        &self,
        held: impl Fn(&[u8]) -> Option<Held<'a>>,
        limits: &Limits,
    ) -> (Outcome, Changes) {
        if self.watched.iter().any(|(key, version)| held(key).map(|held| held.version) != *version) {
            return (Outcome::Differs, Changes::new());
        }
        let mut changed: BTreeMap<Blob, Option<Value>> = BTreeMap::new();
        let mut outcomes = Vec::with_capacity(self.steps.len());
        // Small steps can make long values longer: what they all come to is limited like what was sent.
        let mut bytes = 0;
        for step in &self.steps {
            let before = |key: &[u8]| match changed.get(key) {
                // Nobody watches what the batch itself has set.
                Some(value) => value.as_ref().map(|value| Held {
                    bytes: &value.bytes,
                    ends_at_ms: value.ends_at_ms,
                    version: Version::NONE,
                }),
                None => held(key),
            };
            let (outcome, changes) = step.evaluate_step(before, limits);
            outcomes.push(outcome);
            for (key, value) in changes {
                bytes += key.len() + value.as_ref().map_or(0, |value| value.bytes.len());
                if let Err(too_long) = TooLong::check(Measured::Batch, bytes, limits.batch_bytes_max) {
                    return (Outcome::TooLong(too_long), Changes::new());
                }
                changed.insert(key, value);
            }
        }
        (Outcome::Batch(outcomes), changed.into_iter().collect())
    }
}

impl Nests for Operation {
    const CASE: u32 = 9;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Operation {
        Operation::Put { key: key.into(), value: value.into() }
    }

    fn increment(key: &str) -> Operation {
        Operation::Increment { key: key.into(), by: 1 }
    }

    fn value(text: &str) -> Value {
        Value { bytes: text.into(), ends_at_ms: None }
    }

    #[test]
    fn each_step_sees_those_before_it_and_a_watched_key_that_changed_stops_all() {
        let steps = vec![
            increment("n"),
            put("a", "x"),
            increment("a"),
            Operation::Take { key: b"a".into() },
            increment("n"),
        ];
        let mut batch = Batch { watched: vec![(b"w".to_vec(), None)], steps };
        let limits = Limits::default();
        let nothing = |_: &[u8]| None;
        let outcomes = vec![
            Outcome::Counted(1),
            Outcome::Written,
            Outcome::NoCounter,
            Outcome::Value(Some(value("x"))),
            Outcome::Counted(2),
        ];
        let changes = vec![(b"a".into(), None), (b"n".into(), Some(value("2")))];
        assert_eq!(batch.evaluate(nothing, &limits), (Outcome::Batch(outcomes), changes));
        let version = Version { counter: 7, ..Version::NONE };
        batch.watched[0].1 = Some(version);
        assert_eq!(batch.evaluate(nothing, &limits), (Outcome::Differs, Changes::new()));
        let empty = Blob::default();
        let held = |key: &[u8]| (key == b"w").then_some(Held { bytes: &empty, ends_at_ms: None, version });
        assert!(matches!(batch.evaluate(held, &limits).0, Outcome::Batch(_)));
    }

    #[test]
    fn what_small_steps_come_to_is_limited() {
        let limits = Limits { batch_bytes_max: 500, ..Limits::default() };
        let append = Operation::Append { key: b"k".into(), value: b"a".into() };
        let steps = |count| Batch { watched: Vec::new(), steps: vec![append.clone(); count] };
        assert_eq!(steps(7).check(&limits), Ok(()));
        assert!(steps(8).check(&limits).is_err());
        let before = Blob::from(&[b'x'; 100]);
        let held = |_: &[u8]| Some(Held { bytes: &before, ends_at_ms: None, version: Version::NONE });
        assert!(matches!(steps(4).evaluate(held, &limits).0, Outcome::Batch(_)));
        assert!(
            matches!(steps(5).evaluate(held, &limits), (Outcome::TooLong(_), changes) if changes.is_empty())
        );
    }

    #[test]
    fn a_batch_in_a_batch_is_no_batch_however_deep() {
        let encode = |batch: &Batch| {
            postcard::to_allocvec(&Operation::Batch(batch.clone())).expect("it can be written to memory")
        };
        let batch = Batch { watched: Vec::new(), steps: vec![increment("n"), put("a", "x")] };
        let bytes = encode(&batch);
        assert_eq!(u32::from(bytes[0]), Operation::CASE);
        assert_eq!(postcard::from_bytes(&bytes), Ok(Operation::Batch(batch.clone())));
        let nested = Batch { watched: Vec::new(), steps: vec![Operation::Batch(batch)] };
        let encoded = encode(&nested);
        assert!(postcard::from_bytes::<Operation>(&encoded).is_err());
        // The same, the case of the inner one in two bytes: nothing watched, one step.
        let in_two_bytes = [9, 0, 1, 4, 0x89, 0x00, 0, 0];
        assert!(postcard::from_bytes::<Operation>(&in_two_bytes).is_err());
    }
}
