//! Where a message goes: a type and a key, and how both are written in what is logged.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;

/// The longest key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 255;

/// An instance: its type and its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Address {
    /// [`super::Instance::TYPE`].
    pub type_name: String,
    /// 1 to 255 bytes without control characters.
    pub key: String,
}

impl Address {
    /// The instance of a type with a key.
    ///
    /// # Panics
    /// When the key cannot be one: a bug in the service.
    pub(crate) fn new(type_name: &str, key: &str) -> Self {
        assert!(is_key(key), "{}", NoKey { given: key.to_owned() });
        Self { type_name: type_name.to_owned(), key: key.to_owned() }
    }

    /// The address in the first line of `bytes`, and what is behind that line; `None` if there is none.
    pub(crate) fn take(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let line = std::str::from_utf8(&bytes[..end]).ok()?;
        let (type_name, key) = line.split_once('/')?;
        is_key(key)
            .then(|| (Self { type_name: type_name.to_owned(), key: key.to_owned() }, &bytes[end + 1..]))
    }

    /// Writes the line that [`Self::take`] reads.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.type_name.as_bytes());
        out.push(b'/');
        out.extend_from_slice(self.key.as_bytes());
        out.push(b'\n');
    }
}

/// A key that is one, for commands that carry keys of instances to be told: what is none is refused as malformed before it is logged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Key(String);

/// Not the key of an instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no key of an instance: a key has 1 to 255 bytes and no control characters", .given.escape_debug())]
pub struct NoKey {
    /// What was given.
    pub given: String,
}

impl TryFrom<String> for Key {
    type Error = NoKey;

    fn try_from(given: String) -> Result<Self, NoKey> {
        if is_key(&given) { Ok(Self(given)) } else { Err(NoKey { given }) }
    }
}

impl Deref for Key {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.type_name, self.key)
    }
}

fn is_key(key: &str) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len()) && !key.chars().any(char::is_control)
}

/// Whether a type may have this name: it stands in URLs as it is.
pub(crate) fn is_type_name(name: &str) -> bool {
    let fit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for key in ["1", "a/b", "ü x", &"k".repeat(KEY_BYTES_MAX)] {
            let address = Address::new("stock", key);
            let mut bytes = Vec::new();
            address.put(&mut bytes);
            bytes.extend_from_slice(b"{\n}");
            assert_eq!(Address::take(&bytes), Some((address, b"{\n}".as_slice())));
        }
        for no in ["", "stock/a", "stock\n", "stock/\n", "stock/a\rb\n", "/"] {
            assert_eq!(Address::take(no.as_bytes()), None, "{no:?}");
        }
        assert_eq!(Address::take(b"stock/\xff\n"), None);
    }

    #[test]
    fn a_key_from_outside_is_checked_where_it_is_read() {
        let read = |json: &str| serde_json::from_str::<std::collections::BTreeMap<Key, u32>>(json);
        let keys = read(r#"{"a b": 1}"#).expect("it is a key");
        assert_eq!(serde_json::to_string(&keys).expect("it is JSON"), r#"{"a b":1}"#);
        for no in [r#"{"": 1}"#, r#"{"a\n": 1}"#] {
            assert!(read(no).is_err(), "{no}");
        }
    }

    #[test]
    fn a_type_is_named_as_it_stands_in_a_url() {
        for name in ["a", "stock", "s-2"] {
            assert!(is_type_name(name), "{name}");
        }
        for name in ["", "Stock", "a/b", "a b", &"a".repeat(64)] {
            assert!(!is_type_name(name), "{name}");
        }
    }
}
