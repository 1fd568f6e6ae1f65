//! What may hold others of its own kind, one level deep: each as bytes behind their length, and none that holds others again. Else bytes from
//! outside could say how deep a decoder that calls itself has to go.

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::ByteBuf;

/// A kind with a case that holds others of the kind.
pub(crate) trait Nests: Serialize + DeserializeOwned {
    /// The number of that case.
    const CASE: u32;
}

pub(crate) fn serialize<T: Nests, S: Serializer>(inner: &[T], to: S) -> Result<S::Ok, S::Error> {
    let encode = |one: &T| postcard::to_allocvec(one).map(ByteBuf::from);
    let encoded: Result<Vec<ByteBuf>, _> = inner.iter().map(encode).collect();
    encoded.map_err(S::Error::custom)?.serialize(to)
}

pub(crate) fn deserialize<'de, T: Nests, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    // The case is read as the decoder reads it: a number may be written with more bytes than it needs.
    let one = |bytes: &ByteBuf| match postcard::take_from_bytes::<u32>(bytes) {
        Ok((case, _)) if case == T::CASE => Err(D::Error::custom("one level too deep")),
        _ => match postcard::take_from_bytes(bytes) {
            Ok((one, [])) => Ok(one),
            _ => Err(D::Error::custom("not one of them")),
        },
    };
    Vec::<ByteBuf>::deserialize(from)?.iter().map(one).collect()
}
