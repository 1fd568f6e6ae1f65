//! What a client can ask for, and what it does to the key that it names, or to several keys of one shard.

use crate::batch::Batch;
use crate::blob::Blob;
use crate::flat::{self, Nests};
use crate::limits::Limits;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// What a key holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Value {
    /// The value.
    pub bytes: Blob,
    /// When it ends: milliseconds since 1970, UTC. `None`: never.
    pub ends_at_ms: Option<u64>,
}

/// Whether the key must be there for an operation to do anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Condition {
    /// It need not.
    Always,
    /// It must not.
    Absent,
    /// It must.
    Present,
}

/// When a value that is set ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum End {
    /// Never.
    Never,
    /// When the value before it would have ended.
    Kept,
    /// Then: milliseconds since 1970, UTC.
    At(u64),
}

/// What must hold of the end of a value for it to get another one. A value that never ends counts as one that ends later than all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EndIf {
    /// It never ends.
    Endless,
    /// It ends.
    Ends,
    /// The new end is later.
    Later,
    /// The new end is earlier.
    Earlier,
    /// It ends, and the new end is earlier.
    EndsAndEarlier,
}

impl EndIf {
    pub(crate) fn holds(self, before: Option<u64>, ends_at_ms: u64) -> bool {
        match (self, before) {
            (Self::Endless, before) => before.is_none(),
            (Self::Ends, before) => before.is_some(),
            (Self::Later, Some(before)) => ends_at_ms > before,
            (Self::Earlier | Self::EndsAndEarlier, Some(before)) => ends_at_ms < before,
            (Self::Earlier, None) => true,
            (Self::Later | Self::EndsAndEarlier, None) => false,
        }
    }
}

/// A change of one key, or several as one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Operation {
    /// Sets the value.
    Put {
        /// The key.
        key: Blob,
        /// Its new value.
        value: Blob,
    },
    /// Removes the key.
    Remove {
        /// The key.
        key: Blob,
    },
    /// Sets the value if it is what the client expects.
    CompareAndSet {
        /// The key.
        key: Blob,
        /// What the value must be; `None`: the key must not be there.
        expected: Option<Blob>,
        /// The new value; `None` removes the key.
        value: Option<Blob>,
    },
    /// Adds to a counter: an `i64` in decimal, as text, so that a counter can be set and read like any value; 0 if the key is not there.
    Increment {
        /// The key.
        key: Blob,
        /// What is added.
        by: i64,
    },
    /// Sets the value and when it ends.
    Set {
        /// The key.
        key: Blob,
        /// Its new value.
        value: Blob,
        /// Else nothing is done.
        condition: Condition,
        /// When it ends.
        end: End,
        /// The outcome is the value before, whether or not anything was done.
        returns_before: bool,
    },
    /// Removes the key; the outcome is what it held.
    Take {
        /// The key.
        key: Blob,
    },
    /// Adds bytes behind the value, which goes on to end when it would have; an empty value if the key is not there.
    Append {
        /// The key.
        key: Blob,
        /// What is added.
        value: Blob,
    },
    /// Says when the value ends.
    Expire {
        /// The key.
        key: Blob,
        /// Milliseconds since 1970, UTC; `None`: never.
        ends_at_ms: Option<u64>,
    },
    /// Changes nothing; the outcome is what the key holds. For a batch: by itself a read is cheaper.
    Get {
        /// The key.
        key: Blob,
    },
    /// Several operations of one shard, as one.
    Batch(Batch),
    /// Says when the value ends, if what is there of its end allows that.
    ExpireIf {
        /// The key.
        key: Blob,
        /// Milliseconds since 1970, UTC.
        ends_at_ms: u64,
        /// That was over when it was asked for: the key is removed.
        past: bool,
        /// Else nothing is done.
        condition: EndIf,
    },
    /// Puts bytes into the value from a place on, zeros before it where the value is shorter; it goes on to end when it would have. Without bytes
    /// nothing is changed.
    SetRange {
        /// The key.
        key: Blob,
        /// The place of the first byte.
        at: u64,
        /// The bytes.
        value: Blob,
    },
    /// Adds to a number with a fraction, in decimal, as text ([`crate::decimal::Decimal`]); 0 if the key is not there.
    AddDecimal {
        /// The key.
        key: Blob,
        /// What is added, as text.
        by: Blob,
    },
    /// Gives what a key holds to another key of the shard, with its end. [`Outcome::Differs`] if there is nothing to give.
    Move {
        /// The key that holds it.
        from: Blob,
        /// The key that gets it.
        to: Blob,
        /// The first one keeps it.
        keeps: bool,
        /// The other one may be there already; else nothing is done then.
        replaces: bool,
    },
}

/// What came of an operation. It is remembered for every duplicate, within [`Limits::duplicate_result_bytes_max`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The value is set.
    Written,
    /// The key is not there any more.
    Removed {
        /// Whether it was.
        was_there: bool,
    },
    /// The value was not what was expected; nothing was changed.
    Differs,
    /// The counter's new value.
    Counted(i64),
    /// The value is no counter, or would not fit; nothing was changed.
    NoCounter,
    /// What the key holds, or held before.
    Value(Option<Value>),
    /// The new length of the value, in bytes.
    Length(u64),
    /// Whether there was anything to change.
    Changed(bool),
    /// Of each operation of a batch, in their order. None of a batch.
    Batch(#[serde(with = "flat")] Vec<Self>),
    /// What would have come of it is longer than is allowed; nothing was changed.
    TooLong(TooLong),
}

impl Nests for Outcome {
    const CASE: u32 = 8;
}

/// What each outcome of a batch counts besides values, in bytes. Not what it takes in memory: all copies must count alike, whatever built them.
const OUTCOME_BYTES: usize = 64;

impl Outcome {
    /// What it takes to remember it beside its fixed size, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Value(Some(value)) => value.bytes.len(),
            Self::Batch(outcomes) => outcomes.iter().map(|outcome| OUTCOME_BYTES + outcome.bytes()).sum(),
            _ => 0,
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Measured {
    /// A key: [`Limits::key_bytes_max`].
    Key,
    /// A value: [`Limits::value_bytes_max`].
    Value,
    /// A batch, or what it changes: [`Limits::batch_bytes_max`].
    Batch,
    /// An outcome: [`Limits::duplicate_result_bytes_max`].
    Outcome,
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Key => "a key",
            Self::Value => "a value",
            Self::Batch => "what is to be done as one",
            Self::Outcome => "an answer that is remembered for repetitions",
        })
    }
}

/// Something is longer than the region allows. Nothing was done, now or by an earlier attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{bytes} bytes are too many for {what}: the limit is {limit} bytes")]
pub struct TooLong {
    /// What.
    pub what: Measured,
    /// Its length.
    pub bytes: u64,
    /// The limit.
    pub limit: u64,
}

impl TooLong {
    pub(crate) fn check(what: Measured, bytes: usize, limit: usize) -> Result<(), Self> {
        if bytes <= limit { Ok(()) } else { Err(Self { what, bytes: bytes as u64, limit: limit as u64 }) }
    }
}

/// Keys with their new values, `None` when they are removed; each key once.
pub type Changes = Vec<(Blob, Option<Value>)>;

impl Operation {
    /// The key that it is about; of several one.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Batch(batch) => batch.keys().next().unwrap_or_default(),
            Self::Move { from, .. } => from,
            one => one.one_key().expect("only those have several"),
        }
    }

    /// The key that it is about, if it is about one.
    pub(crate) fn one_key(&self) -> Option<&Blob> {
        match self {
            Self::Put { key, .. }
            | Self::Remove { key }
            | Self::CompareAndSet { key, .. }
            | Self::Increment { key, .. }
            | Self::Set { key, .. }
            | Self::Take { key }
            | Self::Append { key, .. }
            | Self::Expire { key, .. }
            | Self::Get { key }
            | Self::ExpireIf { key, .. }
            | Self::SetRange { key, .. }
            | Self::AddDecimal { key, .. } => Some(key),
            Self::Move { .. } | Self::Batch(_) => None,
        }
    }

    /// All keys of one that is no batch.
    pub(crate) fn own_keys(&self) -> impl Iterator<Item = &[u8]> {
        let other = match self {
            Self::Move { to, .. } => Some(&**to),
            _ => None,
        };
        std::iter::once(self.key()).chain(other)
    }

    /// Whether all its keys belong to a shard.
    #[must_use]
    pub fn is_of(&self, shard: u16, shards: u16) -> bool {
        match self {
            Self::Batch(batch) => batch.keys().all(|key| shard_of(key, shards) == shard),
            _ => self.own_keys().all(|key| shard_of(key, shards) == shard),
        }
    }

    /// Bytes of its keys and values.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Batch(batch) => batch.bytes(),
            _ => self.own_keys().map(<[u8]>::len).sum::<usize>() + self.value_bytes(),
        }
    }

    /// Checks its lengths.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn check(&self, limits: &Limits) -> Result<(), TooLong> {
        if let Self::Batch(batch) = self {
            return batch.check(limits);
        }
        for key in self.own_keys() {
            TooLong::check(Measured::Key, key.len(), limits.key_bytes_max)?;
        }
        let bytes = match self {
            Self::SetRange { at, value, .. } if !value.is_empty() => {
                usize::try_from(*at).unwrap_or(usize::MAX).saturating_add(value.len())
            }
            _ => self.value_bytes(),
        };
        TooLong::check(Measured::Value, bytes, limits.value_bytes_max)
    }

    /// The length of the longest value in it; of a batch 0.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        match self {
            Self::Put { value, .. }
            | Self::Set { value, .. }
            | Self::Append { value, .. }
            | Self::SetRange { value, .. }
            | Self::AddDecimal { by: value, .. } => value.len(),
            Self::CompareAndSet { expected, value, .. } => {
                let length = |value: &Option<Blob>| value.as_ref().map_or(0, |value| value.len());
                length(expected).max(length(value))
            }
            _ => 0,
        }
    }
}

/// The shard that a key belongs to. Keys with the same hash tag belong together, as in Redis Cluster: the tag is what stands between the first
/// `{` and the next `}`, if that is not empty.
#[must_use]
pub fn shard_of(key: &[u8], shards: u16) -> u16 {
    u16::try_from(xxh3_64(hashed(key)) % u64::from(shards)).expect("a remainder is below a u16")
}

fn hashed(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let behind = &key[open + 1..];
    match behind.iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(close) => &behind[..close],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::{Change, Held};
    use mainstay_types::operation::Version;

    fn held(bytes: &Blob, ends_at_ms: Option<u64>) -> Held<'_> {
        Held { bytes, ends_at_ms, version: Version::NONE }
    }

    fn value(bytes: &[u8], ends_at_ms: Option<u64>) -> Value {
        Value { bytes: bytes.into(), ends_at_ms }
    }

    fn done(operation: &Operation, before: Option<&[u8]>) -> (Outcome, Change) {
        let before = before.map(Blob::from);
        operation.evaluate_one(before.as_ref().map(|bytes| held(bytes, None)), &Limits::default())
    }

    #[test]
    fn each_operation_does_what_it_says() {
        let key = || Blob::from(b"k");
        let set = |bytes| Some(Some(value(bytes, None)));
        let increment = Operation::Increment { key: key(), by: 3 };
        assert_eq!(done(&increment, None).0, Outcome::Counted(3));
        assert_eq!(done(&increment, Some(b"4")).0, Outcome::Counted(7));
        assert_eq!(done(&increment, Some(b"-9")), (Outcome::Counted(-6), set(b"-6")));
        assert_eq!(done(&increment, Some(b"0")).0, Outcome::Counted(3));
        for no_counter in ["9223372036854775807", "9223372036854775808", "text", "", "+4", "04", "-0", "4 "] {
            let evaluated = done(&increment, Some(no_counter.as_bytes()));
            assert_eq!(evaluated, (Outcome::NoCounter, None), "{no_counter}");
        }
        let swap =
            Operation::CompareAndSet { key: key(), expected: Some(b"a".into()), value: Some(b"b".into()) };
        assert_eq!(done(&swap, Some(b"a")), (Outcome::Written, set(b"b")));
        assert_eq!(done(&swap, None), (Outcome::Differs, None));
        let remove = Operation::Remove { key: key() };
        assert_eq!(done(&remove, None), (Outcome::Removed { was_there: false }, None));
        assert_eq!(done(&remove, Some(b"a")), (Outcome::Removed { was_there: true }, Some(None)));
        let take = Operation::Take { key: key() };
        assert_eq!(done(&take, Some(b"a")), (Outcome::Value(Some(value(b"a", None))), Some(None)));
        let append = Operation::Append { key: key(), value: b"b".into() };
        assert_eq!(done(&append, Some(b"a")), (Outcome::Length(2), set(b"ab")));
        assert_eq!(done(&append, None), (Outcome::Length(1), set(b"b")));
    }

    #[test]
    fn a_value_keeps_its_end_or_gets_another_as_the_operation_says() {
        let (key, limits, one) = (Blob::from(b"k"), Limits::default(), Blob::from(b"1"));
        let before = || Some(held(&one, Some(70)));
        let behind = |operation: Operation| operation.evaluate_one(before(), &limits).1;
        let setting = |condition, end| Operation::Set {
            key: key.clone(),
            value: b"2".into(),
            condition,
            end,
            returns_before: false,
        };
        for (operation, after) in [
            (Operation::Put { key: key.clone(), value: b"2".into() }, Some(value(b"2", None))),
            (Operation::Increment { key: key.clone(), by: 1 }, Some(value(b"2", Some(70)))),
            (Operation::Append { key: key.clone(), value: b"2".into() }, Some(value(b"12", Some(70)))),
            (setting(Condition::Always, End::Never), Some(value(b"2", None))),
            (setting(Condition::Present, End::Kept), Some(value(b"2", Some(70)))),
            (setting(Condition::Always, End::At(90)), Some(value(b"2", Some(90)))),
            (Operation::Expire { key: key.clone(), ends_at_ms: Some(80) }, Some(value(b"1", Some(80)))),
            (Operation::Expire { key: key.clone(), ends_at_ms: None }, Some(value(b"1", None))),
        ] {
            assert_eq!(behind(operation.clone()), Some(after), "{operation:?}");
        }
        assert_eq!(
            setting(Condition::Absent, End::Never).evaluate_one(before(), &limits).0,
            Outcome::Differs
        );
        assert_eq!(setting(Condition::Present, End::Never).evaluate_one(None, &limits).0, Outcome::Differs);
        let persist = Operation::Expire { key, ends_at_ms: None };
        assert_eq!(done(&persist, Some(b"1")), (Outcome::Changed(false), None));
    }

    #[test]
    fn keys_with_the_same_tag_are_of_the_same_shard() {
        for (key, of) in [
            ("{user:7}.name", "user:7"),
            ("a{user:7}{b}", "user:7"),
            ("{}plain", "{}plain"),
            ("{open", "{open"),
            ("}{x}", "x"),
        ] {
            assert_eq!(hashed(key.as_bytes()), of.as_bytes(), "{key}");
        }
    }

    #[test]
    fn keys_and_values_are_their_length_and_their_bytes() {
        let put = Operation::Put { key: b"k".into(), value: vec![0x80; 200].into() };
        let bytes = postcard::to_allocvec(&put).expect("it can be written to memory");
        assert_eq!(bytes, [&[0, 1, b'k', 0xc8, 1][..], &[0x80; 200]].concat());
        let set = Operation::CompareAndSet { key: b"k".into(), expected: None, value: Some(b"v".into()) };
        let bytes = postcard::to_allocvec(&set).expect("it can be written to memory");
        assert_eq!(bytes, [2, 1, b'k', 0, 1, 1, b'v']);
        assert_eq!(postcard::from_bytes(&bytes), Ok(set));
    }

    #[test]
    fn lengths_are_limited_and_the_error_names_the_limit() {
        let limits = Limits {
            key_bytes_max: 2,
            value_bytes_max: 3,
            duplicate_result_bytes_max: 2,
            ..Limits::default()
        };
        let put = |key: &[u8], value: &[u8]| Operation::Put { key: key.into(), value: value.into() };
        assert_eq!(put(b"ab", b"abc").check(&limits), Ok(()));
        let too_long = |what, bytes, limit| TooLong { what, bytes, limit };
        assert_eq!(put(b"abc", b"").check(&limits), Err(too_long(Measured::Key, 3, 2)));
        assert_eq!(put(b"a", b"abcd").check(&limits), Err(too_long(Measured::Value, 4, 3)));
        let (ab, abc) = (Blob::from(b"ab"), Blob::from(b"abc"));
        let append = Operation::Append { key: b"a".into(), value: b"cd".into() };
        let outcome = Outcome::TooLong(too_long(Measured::Value, 4, 3));
        assert_eq!(append.evaluate(|_| Some(held(&ab, None)), &limits), (outcome, Changes::new()));
        let take = Operation::Take { key: b"a".into() };
        let outcome = Outcome::TooLong(too_long(Measured::Outcome, 3, 2));
        assert_eq!(take.evaluate(|_| Some(held(&abc, None)), &limits), (outcome, Changes::new()));
    }
}
