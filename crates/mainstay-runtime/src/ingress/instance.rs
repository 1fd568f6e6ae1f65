//! The instance that a path names: `/call/TYPE/KEY`, the key percent-encoded.

use crate::ingress::refusal::Refusal;
use percent_encoding::percent_decode_str;

/// The longest key of an instance, in bytes.
const KEY_BYTES_MAX: usize = 255;

/// Where a request goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    /// The path without the instance.
    pub(crate) path: &'a str,
    /// What the handler gets ahead of the body: `TYPE/KEY` and a line break; nothing where no instance is named.
    pub(crate) head: Vec<u8>,
}

impl<'a> Target<'a> {
    /// Reads a path of an ingress that is `addressed` by instances, or not.
    pub(crate) fn of(path: &'a str, addressed: bool) -> Result<Self, Refusal> {
        let plain = Self { path, head: Vec::new() };
        if !addressed {
            return Ok(plain);
        }
        let split = |face: &'static str| Some((face, path.strip_prefix(face)?.strip_prefix('/')?));
        let Some((face, instance)) = split("/call").or_else(|| split("/query")) else {
            let whole = matches!(path, "/call" | "/query");
            return if whole { Err(Refusal::NoSuchPath { addressed }) } else { Ok(plain) };
        };
        let (type_name, key) = instance.split_once('/').ok_or(Refusal::NoSuchPath { addressed })?;
        let key = percent_decode_str(key).decode_utf8().map_err(|_| Refusal::Address {
            problem: "The key of an instance is UTF-8, with every other byte than letters and digits as %XX",
        })?;
        let fits = (1..=KEY_BYTES_MAX).contains(&key.len()) && !key.chars().any(char::is_control);
        if !fits {
            return Err(Refusal::Address {
                problem: "The key of an instance has 1 to 255 bytes and no control characters",
            });
        }
        Ok(Self { path: face, head: format!("{type_name}/{key}\n").into_bytes() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_an_instance_only_where_instances_are_called() {
        let target = |path: &'static str| Target::of(path, true);
        let head =
            |path| target(path).map(|target| (target.path, String::from_utf8(target.head).expect("text")));
        assert_eq!(head("/call/stock/apple"), Ok(("/call", "stock/apple\n".to_owned())));
        assert_eq!(head("/query/stock/a/b"), Ok(("/query", "stock/a/b\n".to_owned())));
        assert_eq!(head("/call/stock/%C3%BC%20%2F"), Ok(("/call", "stock/ü /\n".to_owned())));
        for other in ["/health", "/clients", "/caller/a/b", "/"] {
            assert_eq!(target(other), Ok(Target { path: other, head: Vec::new() }));
        }
        let plain = Target { path: "/call", head: Vec::new() };
        assert_eq!(Target::of("/call", false), Ok(plain));
        assert_eq!(Target::of("/call/a/b", false).map(|target| target.path), Ok("/call/a/b"));
    }

    #[test]
    fn what_is_no_instance_is_refused() {
        for path in ["/call", "/query", "/call/stock", "/call/"] {
            assert_eq!(Target::of(path, true), Err(Refusal::NoSuchPath { addressed: true }), "{path}");
        }
        let longest = format!("/call/stock/{}", "k".repeat(KEY_BYTES_MAX));
        assert!(Target::of(&longest, true).is_ok());
        for path in ["/call/stock/", "/call/stock/%0A", "/call/stock/%FF", &format!("{longest}k")] {
            assert!(matches!(Target::of(path, true), Err(Refusal::Address { .. })), "{path}");
        }
    }
}
