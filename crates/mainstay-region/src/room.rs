//! Room in the logs, in bytes: how much may be stamped that not all members have.
//!
//! What a view changes with is a report of each copy's logs, and a cut made of them, each in one message. So the logs of a region are limited in bytes, all
//! shards together: each stamper has an equal share of [`crate::limits::Limits::log_bytes_max`] for the shards that it stamps, and answers `Busy` beyond it
//! ([`crate::message::Limit::LogBytes`]). A copy keeps to the same share: the stamper's log has all that its own has once it knows the marks, so that what it
//! drops until then fits when it is sent again.

use crate::log::Entry;
use crate::region::Region;

impl Region {
    /// Whether an entry of so many bytes has room in a shard's log, beside what the other shards of its stamper have. Alone it always has.
    pub(crate) fn has_room(&self, shard: u16, bytes: usize) -> bool {
        let used = self.share_used(shard);
        used == 0 || used + bytes <= self.share()
    }

    /// The same of an entry.
    pub(crate) fn has_room_for(&self, shard: u16, entry: &Entry) -> bool {
        self.has_room(shard, entry.counted_bytes())
    }

    /// What one stamper's shards may have, in bytes.
    pub(crate) fn share(&self) -> usize {
        self.config.limits.log_bytes_max / self.copies.count().max(1)
    }

    /// What the shards that a shard's stamper stamps have, in bytes; what they hold back, too, where that is what this copy has stamped.
    pub(crate) fn share_used(&self, shard: u16) -> usize {
        let copies = self.copies.count().max(1);
        let stamps = self.stamps(shard);
        let shards = self.shards.iter().skip(usize::from(shard) % copies).step_by(copies);
        shards.map(|shard| shard.log.bytes() + if stamps { shard.hold_back_bytes } else { 0 }).sum()
    }
}
