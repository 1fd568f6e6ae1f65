//! A handler that is not meant to panic does not.

pub(crate) const SOURCE: &str =
    "a panic discards its delivery, and in the end gives it up: README, rules for a handler";
