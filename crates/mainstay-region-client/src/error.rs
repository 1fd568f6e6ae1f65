//! How a call ends when it does not end as it should. Each says whether an operation took effect.

use mainstay_region::operation::TooLong;
use mainstay_types::operation::{OperationId, Version};

/// No connection to a region came about. Nothing was asked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// No server that serves was found within the deadline.
    #[error("no server of the region serves: {explanation}")]
    NoAnswer {
        /// What was heard last.
        explanation: String,
    },
    /// A server said that coming back as it is leads to the same.
    #[error("a server refuses this client: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
}

/// Client, thread and sequence.
pub(crate) fn named(id: &OperationId) -> String {
    format!("{}.{}.{}", id.client, id.thread, id.sequence)
}

/// An operation is not known to be done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WriteError {
    /// Nothing was sent, and it will not take effect.
    #[error("the operation was not sent: {explanation}")]
    NotSent {
        /// Why.
        explanation: String,
    },
    /// Nobody offers a role that the region requires. Nothing was sent, and it will not take effect.
    #[error("the operation was not sent: {explanation}")]
    RoleMissing {
        /// Which one, and how to get it.
        explanation: String,
    },
    /// It did not and will not take effect.
    #[error("the operation was refused: {0}")]
    TooLong(TooLong),
    /// Its keys belong to several shards: keys with the same `{tag}` belong together. It did not and will not take effect.
    #[error(
        "the keys belong to several shards, and only what is of one is done as one: put the same {{tag}} into them"
    )]
    OtherShard,
    /// No answer within the deadline: it may have taken effect, or still do. [`crate::Client::inspect`] asks, [`crate::Client::repeat`] asks
    /// for it again, with no risk of doing it twice.
    #[error(
        "no answer to operation {} within the deadline: it may have taken effect, or still do ({explanation})",
        named(id)
    )]
    Unknown {
        /// Its identity.
        id: OperationId,
        /// What was heard last of how the servers stand.
        explanation: String,
    },
    /// It may have taken effect, and will not any more: it is older than what the region remembers.
    #[error(
        "operation {} is older than what the region remembers: it may have taken effect, and will not any more",
        named(id)
    )]
    Obsolete {
        /// Its identity.
        id: OperationId,
    },
    /// The same, since the region has forgotten this client. The next operation goes under a new number.
    #[error(
        "the region has forgotten the client of operation {}: it may have taken effect, and will not any more",
        named(id)
    )]
    Evicted {
        /// Its identity.
        id: OperationId,
    },
}

/// Nothing was read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("nothing could be read: {explanation}")]
pub struct ReadError {
    /// What was heard last.
    pub explanation: String,
}

/// Changes are not told, or not any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubscribeError {
    /// No server keeps what comes next: each keeps the last changes of a shard alone, and none from before it was filled anew.
    #[error(
        "changes of shard {shard} were missed: what comes behind version {oldest} is kept; subscribe anew, then read what there is"
    )]
    Missed {
        /// The shard.
        shard: u16,
        /// From where on the server that was asked last keeps them.
        oldest: Version,
    },
    /// Positions of another region.
    #[error("{given} positions were given, and the region has {shards} shards")]
    Shards {
        /// How many.
        given: usize,
        /// One for each of these.
        shards: u16,
    },
    /// The region keeps no versions.
    #[error("a region without versions tells of no changes")]
    NoVersions,
    /// Nobody said where the region stands. Nothing was subscribed to.
    #[error("nobody says where the region stands: {explanation}")]
    NoAnswer {
        /// What was heard last.
        explanation: String,
    },
    /// There is no subscription.
    #[error("nothing is subscribed to")]
    NotSubscribed,
}
