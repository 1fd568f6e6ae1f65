//! What a client can ask for, and what it does to the one key that it names.

use crate::limits::Limits;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// A change of one key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Operation {
    /// Sets the value.
    Put {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// Its new value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Removes the key.
    Remove {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
    /// Sets the value if it is what the client expects.
    CompareAndSet {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// What the value must be; `None`: the key must not be there.
        #[serde(with = "serde_bytes")]
        expected: Option<Vec<u8>>,
        /// The new value; `None` removes the key.
        #[serde(with = "serde_bytes")]
        value: Option<Vec<u8>>,
    },
    /// Adds to a counter: an `i64` in decimal, as text, so that a counter can be set and read like any value; 0 if the key is not there.
    Increment {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// What is added.
        by: i64,
    },
}

/// What came of an operation. Small, since it is remembered for every duplicate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
}

/// A key or a value is longer than the region allows. Nothing was done, now or by an earlier attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{bytes} bytes are given for a {}, and the limit is {limit} bytes", what(*of_key))]
pub struct TooLong {
    /// The key, not the value.
    pub of_key: bool,
    /// Its length.
    pub bytes: u64,
    /// [`Limits::key_bytes_max`] or [`Limits::value_bytes_max`].
    pub limit: u64,
}

fn what(of_key: bool) -> &'static str {
    if of_key { "key" } else { "value" }
}

/// The new value of a key, `None` when it is removed; no change at all is `None` around it.
pub(crate) type Change = Option<Option<Vec<u8>>>;

impl Operation {
    /// The key that it changes.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put { key, .. }
            | Self::Remove { key }
            | Self::CompareAndSet { key, .. }
            | Self::Increment { key, .. } => key,
        }
    }

    /// Checks its lengths.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn check(&self, limits: &Limits) -> Result<(), TooLong> {
        let too_long =
            |of_key, bytes: usize, limit: usize| TooLong { of_key, bytes: bytes as u64, limit: limit as u64 };
        let key = self.key().len();
        if key > limits.key_bytes_max {
            return Err(too_long(true, key, limits.key_bytes_max));
        }
        let value = match self {
            Self::Put { value, .. } => value.len(),
            Self::CompareAndSet { expected, value, .. } => {
                let length = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
                length(expected).max(length(value))
            }
            Self::Remove { .. } | Self::Increment { .. } => 0,
        };
        if value > limits.value_bytes_max {
            return Err(too_long(false, value, limits.value_bytes_max));
        }
        Ok(())
    }

    /// What it does to the value that the key has before it.
    pub(crate) fn evaluate(&self, before: Option<&[u8]>) -> (Outcome, Change) {
        match self {
            Self::Put { value, .. } => (Outcome::Written, Some(Some(value.clone()))),
            Self::Remove { .. } => {
                let was_there = before.is_some();
                (Outcome::Removed { was_there }, was_there.then_some(None))
            }
            Self::CompareAndSet { expected, .. } if expected.as_deref() != before => (Outcome::Differs, None),
            Self::CompareAndSet { value: Some(value), .. } => (Outcome::Written, Some(Some(value.clone()))),
            Self::CompareAndSet { value: None, .. } => {
                let was_there = before.is_some();
                (Outcome::Removed { was_there }, was_there.then_some(None))
            }
            Self::Increment { by, .. } => {
                let counter = match before {
                    None => Some(0),
                    Some(bytes) => counter_of(bytes),
                };
                match counter.and_then(|counter| counter.checked_add(*by)) {
                    Some(sum) => (Outcome::Counted(sum), Some(Some(sum.to_string().into_bytes()))),
                    None => (Outcome::NoCounter, None),
                }
            }
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

/// The shard that a key belongs to.
#[must_use]
pub fn shard_of(key: &[u8], shards: u16) -> u16 {
    u16::try_from(xxh3_64(key) % u64::from(shards)).expect("a remainder is below a u16")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_does_what_it_says() {
        let key = || b"k".to_vec();
        let increment = Operation::Increment { key: key(), by: 3 };
        assert_eq!(increment.evaluate(None).0, Outcome::Counted(3));
        assert_eq!(increment.evaluate(Some(b"4")).0, Outcome::Counted(7));
        assert_eq!(increment.evaluate(Some(b"-9")), (Outcome::Counted(-6), Some(Some(b"-6".to_vec()))));
        assert_eq!(increment.evaluate(Some(b"0")).0, Outcome::Counted(3));
        for no_counter in ["9223372036854775807", "9223372036854775808", "text", "", "+4", "04", "-0", "4 "] {
            let evaluated = increment.evaluate(Some(no_counter.as_bytes()));
            assert_eq!(evaluated, (Outcome::NoCounter, None), "{no_counter}");
        }
        let swap = Operation::CompareAndSet {
            key: key(),
            expected: Some(b"a".to_vec()),
            value: Some(b"b".to_vec()),
        };
        assert_eq!(swap.evaluate(Some(b"a")), (Outcome::Written, Some(Some(b"b".to_vec()))));
        assert_eq!(swap.evaluate(None), (Outcome::Differs, None));
        let remove = Operation::Remove { key: key() };
        assert_eq!(remove.evaluate(None), (Outcome::Removed { was_there: false }, None));
        assert_eq!(remove.evaluate(Some(b"a")), (Outcome::Removed { was_there: true }, Some(None)));
    }

    #[test]
    fn keys_and_values_are_their_length_and_their_bytes() {
        let put = Operation::Put { key: b"k".to_vec(), value: vec![0x80; 200] };
        let bytes = postcard::to_allocvec(&put).expect("it can be written to memory");
        assert_eq!(bytes, [&[0, 1, b'k', 0xc8, 1][..], &[0x80; 200]].concat());
        let set = Operation::CompareAndSet { key: b"k".to_vec(), expected: None, value: Some(b"v".to_vec()) };
        let bytes = postcard::to_allocvec(&set).expect("it can be written to memory");
        assert_eq!(bytes, [2, 1, b'k', 0, 1, 1, b'v']);
        assert_eq!(postcard::from_bytes(&bytes), Ok(set));
    }

    #[test]
    fn lengths_are_limited_and_the_error_names_the_limit() {
        let limits = Limits { key_bytes_max: 2, value_bytes_max: 3, ..Limits::default() };
        let put = |key: &[u8], value: &[u8]| Operation::Put { key: key.to_vec(), value: value.to_vec() };
        assert_eq!(put(b"ab", b"abc").check(&limits), Ok(()));
        assert_eq!(put(b"abc", b"").check(&limits), Err(TooLong { of_key: true, bytes: 3, limit: 2 }));
        assert_eq!(put(b"a", b"abcd").check(&limits), Err(TooLong { of_key: false, bytes: 4, limit: 3 }));
    }
}
