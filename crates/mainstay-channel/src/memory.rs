//! How much of a node's memory its peers pin, and whether that is too much.

use crate::channel::Channel;
use mainstay_types::id::NodeId;

/// What a node retains for one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retained {
    /// The peer that may need it again.
    pub peer: NodeId,
    /// Messages.
    pub messages: u64,
    /// In memory, in bytes.
    pub bytes: u64,
    /// Bodies outside of it, in bytes.
    pub spilled_bytes: u64,
}

impl Channel {
    /// What is retained for each peer.
    pub fn retained(&self) -> impl Iterator<Item = Retained> + '_ {
        self.links.iter().map(|link| Retained {
            peer: link.peer,
            messages: link.log.messages() as u64,
            bytes: link.log.bytes(),
            spilled_bytes: link.log.spilled_bytes(),
        })
    }

    /// Whether new work may be accepted: no peer pins more memory than its share.
    #[must_use]
    pub fn may_accept(&self) -> bool {
        self.links.iter().all(|link| link.log.bytes() < self.limits.log_bytes_max)
    }

    /// The peer that pins most memory, if that is as much as the limit: whose fault it is that no work is accepted.
    #[must_use]
    pub fn pressure(&self) -> Option<Retained> {
        let most = self.retained().max_by_key(|retained| retained.bytes)?;
        (most.bytes >= self.limits.log_bytes_max).then_some(most)
    }
}
