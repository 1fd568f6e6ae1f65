//! Room in the logs, in bytes: how much may be stamped that not all members have.
//!
//! What a view changes with is a report of each copy's logs, and a cut made of them, each in one message. So the logs of a region are limited in bytes, all
//! shards together: each stamper has an equal share of [`crate::limits::Limits::log_bytes_max`] for the shards that it stamps, and answers `Busy` beyond it
//! ([`crate::message::Limit::LogBytes`]).
//!
//! ```text
//!   at the stamper   what it stamps, what is to be held back    logs + held back  <= 1 share
//!                    the payload that the log waits for         logs              <= 1 share    so both together <= 2
//!   at a copy        from a client, what is to be held back     logs + held back  <= 1 share
//!                    what comes next, and the stamper has       logs              <= 3 shares   so both together <= 4
//! ```
//!
//! What a log waits for must not be refused for what waits behind it, or neither ever goes. And no copy may be full of one shard while another is full of
//! the next, or neither is ever everywhere: once a copy knows the marks, what it has and the stamper has too is no more than two shares, and what it has from
//! clients alone no more than one. One entry alone may be above a share, and is the share then. What is no operation has room always: the entries of a log
//! are limited, too.

use crate::limits::Limits;
use crate::log::{ENTRY_BYTES, Entry};
use crate::region::Region;

/// Shares that a copy takes of what its stamper has: two that this may come to, and one that clients alone sent.
const SHARES_OF_COPY: usize = 3;

impl Region {
    /// Sizes of everything that grows, each beside its limit, for whoever watches them.
    #[must_use]
    pub fn sizes(&self, shard: u16) -> [(&'static str, usize, usize); 12] {
        let (copy, limits) = (self.shard(shard), self.config.limits);
        let stamping = self.stamping(shard);
        let log = usize::try_from(limits.log_entries_max).unwrap_or(usize::MAX);
        let ahead = limits.hold_back_entries_max + limits.grants_max;
        let share = self.share_at_most();
        let hold_back = if self.stamps(shard) { share } else { limits.hold_back_bytes_max.min(share) };
        [
            ("log_entries_max", copy.log.iter().count(), log),
            ("hold_back_entries_max", copy.hold_back.len(), ahead),
            ("held_payloads_max", copy.held.len(), limits.held_payloads_max),
            ("early_versions_max", copy.early.len(), limits.early_versions_max),
            ("grants_max", stamping.grants.len(), limits.grants_max),
            ("waiting_max", stamping.waiting(), limits.waiting_max),
            ("duplicate_threads_max", copy.state.duplicates.threads(), limits.duplicate_threads_max),
            ("log_bytes_max", self.share_used(shard), self.share_used_max(shard)),
            ("hold_back_bytes_max", copy.hold_back_bytes, hold_back),
            ("early_messages_max", self.early.size().0, limits.early_messages_max),
            ("early_bytes_max", self.early.size().1, limits.early_bytes_max),
            ("held_payload_bytes_max", copy.held_bytes(), limits.held_payload_bytes_max + share),
        ]
    }

    /// Whether something of so many bytes has room beside all that the shards of its stamper have, in their logs and held back. Alone it always has.
    pub(crate) fn has_room(&self, shard: u16, bytes: usize) -> bool {
        let used = self.share_used(shard);
        used == 0 || used + bytes <= self.share()
    }

    /// Whether an entry has, that has its version.
    pub(crate) fn has_room_at(&self, shard: u16, counter: u64, entry: &Entry) -> bool {
        if counter != self.shard(shard).log.end() + 1 {
            return self.has_room(shard, entry.counted_bytes());
        }
        let used = self.logs_bytes(shard);
        used == 0 || used + entry.counted_bytes() <= self.share()
    }

    /// Whether an entry has at a copy, that the stamper has.
    pub(crate) fn has_room_as_copy(&self, shard: u16, counter: u64, entry: &Entry) -> bool {
        entry.id().is_none()
            || match counter == self.shard(shard).log.end() + 1 {
                true => {
                    self.logs_bytes(shard) + entry.counted_bytes() <= SHARES_OF_COPY * self.share_at_most()
                }
                false => self.has_room(shard, entry.counted_bytes()),
            }
    }

    /// What one stamper's shards may have, in bytes.
    fn share(&self) -> usize {
        self.config.limits.log_bytes_max / self.copies.count().max(1)
    }

    /// The same where one entry may be above it.
    pub(crate) fn share_at_most(&self) -> usize {
        self.share().max(entry_bytes_max(&self.config.limits))
    }

    /// What the shards that a shard's stamper stamps may have in their logs and hold back here, in bytes.
    pub(crate) fn share_used_max(&self, shard: u16) -> usize {
        let shares = if self.stamps(shard) { 2 } else { SHARES_OF_COPY + 1 };
        shares * self.share_at_most()
    }

    /// What they have.
    pub(crate) fn share_used(&self, shard: u16) -> usize {
        let held_back = self.stamped_with(shard).map(|shard| self.shard(shard).hold_back_bytes);
        self.logs_bytes(shard) + held_back.sum::<usize>()
    }

    fn logs_bytes(&self, shard: u16) -> usize {
        self.stamped_with(shard).map(|shard| self.shard(shard).log.bytes()).sum()
    }

    /// The shards of a shard's stamper.
    fn stamped_with(&self, shard: u16) -> impl Iterator<Item = u16> {
        let copies = self.copies.count().max(1);
        (0..self.config.shards).skip(usize::from(shard) % copies).step_by(copies)
    }
}

/// What one entry counts at most.
fn entry_bytes_max(limits: &Limits) -> usize {
    ENTRY_BYTES + limits.batch_bytes_max.max(limits.key_bytes_max + limits.value_bytes_max)
}
