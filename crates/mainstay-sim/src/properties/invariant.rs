//! What a user asserts of every state of their service.

pub(crate) const SOURCE: &str = "the user's own, in campaigns on their handlers";
