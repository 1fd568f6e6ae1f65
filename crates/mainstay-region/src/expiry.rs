//! Values that end. No copy looks at a clock of its own when it applies something: the stamper, when one of its shard's values has ended by its
//! wall clock, gives a version to just that ([`Entry::Expire`]), before any operation or read that comes then. At that version the value is
//! gone, at every copy (decision 0017; Redis' primary replicates a `DEL` for the same reason).

use crate::effect::Effect;
use crate::log::Entry;
use crate::region::Region;
use mainstay_types::time::Time;

/// What the driver said of the wall clock last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    /// When it was said.
    pub(crate) at: Time,
    /// What it was then: milliseconds since 1970, UTC.
    pub(crate) unix_ms: u64,
}

impl Region {
    /// Gives a version to the end of values that have ended, if there are any: at most one in a step, of [`crate::limits::Limits::expire_keys_max`]
    /// keys, so that a million that end together do not stop everything else.
    pub(crate) fn expire(&mut self, now: Time, shard: u16, out: &mut Vec<Effect>) {
        let Some(wall) = self.wall_clock.filter(|_| !self.config.unversioned) else { return };
        let since_ms = u64::try_from(now.since(wall.at).as_millis()).unwrap_or(u64::MAX);
        let until_ms = wall.unix_ms.saturating_add(since_ms);
        let (copy, stamping, limits) = (self.shard(shard), self.stamping(shard), &self.config.limits);
        // What waits behind a grant is not known to have ended yet, and would be ended again.
        let waits = stamping.expiring > copy.log.end();
        let full = stamping.stamped - copy.everywhere >= limits.log_entries_max
            || copy.hold_back.len() >= limits.hold_back_entries_max;
        if waits || full || !copy.is_due(until_ms) {
            return;
        }
        let stamping = self.stamping_mut(shard);
        stamping.stamped += 1;
        let counter = stamping.stamped;
        stamping.expiring = counter;
        self.spread(shard, counter, Entry::Expire { until_ms }, out);
    }
}
