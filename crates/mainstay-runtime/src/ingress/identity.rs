//! By what a repetition of a request is recognised, from its headers.

use crate::ingress::refusal::Refusal;
use hyper::header::{HeaderMap, HeaderValue};
use mainstay_process::event::Identity;
use mainstay_types::id::{ClientId, Sequence, ThreadId};

/// The longest idempotency key, in bytes.
const KEY_BYTES_MAX: usize = 255;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const CLIENT: &str = "mainstay-client";
const THREAD: &str = "mainstay-thread";
const SEQUENCE: &str = "mainstay-sequence";

/// The identity that the headers give.
pub(crate) fn identity_of(headers: &HeaderMap) -> Result<Identity, Refusal> {
    let key = single(headers, IDEMPOTENCY_KEY)?;
    let numbers = [single(headers, CLIENT)?, single(headers, THREAD)?, single(headers, SEQUENCE)?];
    match (key, numbers) {
        (None, [None, None, None]) => Ok(Identity::None),
        (Some(key), [None, None, None]) => parse_key(key.as_bytes()).map(Identity::Key),
        (Some(_), _) => {
            Err(Refusal::Headers { problem: "Idempotency-Key and Mainstay-Client exclude each other" })
        }
        (None, [Some(client), Some(thread), Some(sequence)]) => {
            let problem = "Mainstay-Client, Mainstay-Thread and Mainstay-Sequence are decimal numbers, the last one from 1";
            let number = |value: &HeaderValue| -> Option<u64> { value.to_str().ok()?.parse().ok() };
            let parsed =
                (number(client), number(thread).and_then(|n| u32::try_from(n).ok()), number(sequence));
            match parsed {
                (Some(client), Some(thread), Some(sequence @ 1..)) => Ok(Identity::Client {
                    client: ClientId(client),
                    thread: ThreadId(thread),
                    sequence: Sequence(sequence),
                }),
                _ => Err(Refusal::Headers { problem }),
            }
        }
        (None, _) => Err(Refusal::Headers {
            problem: "Mainstay-Client, Mainstay-Thread and Mainstay-Sequence are given all together or not at all",
        }),
    }
}

fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a HeaderValue>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(Refusal::Headers { problem: "an identity header is given twice" });
    }
    Ok(first)
}

/// A key as it is, or as a structured string in quotes (draft-ietf-httpapi-idempotency-key-header, section 2.1): both
/// writings of the same key are the same key.
fn parse_key(given: &[u8]) -> Result<Vec<u8>, Refusal> {
    let bad = Refusal::Headers { problem: "an Idempotency-Key has 1 to 255 visible ASCII characters" };
    let key = match given {
        [b'"', inner @ .., b'"'] => unescape(inner).ok_or(Refusal::Headers {
            problem: "a quoted Idempotency-Key escapes \\ and \" by a \\ before them, and nothing else",
        })?,
        [b'"', ..] => {
            return Err(Refusal::Headers { problem: "the quote before the Idempotency-Key has no end" });
        }
        bare => bare.to_vec(),
    };
    let visible = key.iter().all(u8::is_ascii_graphic);
    if visible && (1..=KEY_BYTES_MAX).contains(&key.len()) { Ok(key) } else { Err(bad) }
}

fn unescape(inner: &[u8]) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => key.push(*bytes.next().filter(|next| matches!(next, b'"' | b'\\'))?),
            b'"' => return None,
            other => key.push(other),
        }
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(given: &[(&'static str, &str)]) -> HeaderMap {
        given.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn key(given: &str) -> Result<Identity, Refusal> {
        identity_of(&headers(&[(IDEMPOTENCY_KEY, given)]))
    }

    #[test]
    fn a_quoted_key_is_the_same_key() {
        assert_eq!(key("a-1").unwrap(), Identity::Key(b"a-1".to_vec()));
        assert_eq!(key("\"a-1\"").unwrap(), Identity::Key(b"a-1".to_vec()));
        assert_eq!(key(r#""a\"\\""#).unwrap(), Identity::Key(br#"a"\"#.to_vec()));
    }

    #[test]
    fn keys_that_cannot_be_are_refused() {
        let longest = "k".repeat(KEY_BYTES_MAX);
        assert!(key(&longest).is_ok());
        for bad in ["", "\"\"", "\"open", r#""a\x""#, r#""a"b""#, "two words", &format!("{longest}k")] {
            assert!(matches!(key(bad), Err(Refusal::Headers { .. })), "{bad:?} was taken");
        }
    }

    #[test]
    fn numbers_come_together_and_not_with_a_key() {
        let all = [(CLIENT, "1"), (THREAD, "2"), (SEQUENCE, "3")];
        let expected = Identity::Client { client: ClientId(1), thread: ThreadId(2), sequence: Sequence(3) };
        assert_eq!(identity_of(&headers(&all)).unwrap(), expected);
        assert_eq!(identity_of(&HeaderMap::new()).unwrap(), Identity::None);
        for left_out in 0..3 {
            let some: Vec<_> = (0..3).filter(|&place| place != left_out).map(|place| all[place]).collect();
            assert!(identity_of(&headers(&some)).is_err());
        }
        assert!(identity_of(&headers(&[all[0], all[1], all[2], (IDEMPOTENCY_KEY, "k")])).is_err());
        for bad in [(SEQUENCE, "0"), (SEQUENCE, "-1"), (SEQUENCE, "x"), (SEQUENCE, "18446744073709551616")] {
            assert!(identity_of(&headers(&[all[0], all[1], bad])).is_err(), "{bad:?} was taken");
        }
        assert!(identity_of(&headers(&[all[0], (THREAD, "4294967296"), all[2]])).is_err());
        let mut twice = headers(&all);
        twice.append(CLIENT, HeaderValue::from_static("1"));
        assert!(identity_of(&twice).is_err());
    }
}
