//! When the journal of the regions is made shorter: all regions keep a checkpoint in it, and then what is before the first of those goes.
//!
//! ```text
//!   journal   ──── kept ────┬──── checkpoints of all regions, records in between ────┬────
//!             CheckpointBegins: the driver notes the place                       Trim: from that place on is enough
//! ```
//!
//! A region that is being filled, or whose view ends, takes no checkpoint or does not finish it: then all begin anew when all can.

use crate::definition::RegionId;
use crate::effect::Effect;
use crate::replica::Replica;
use mainstay_region::effect::Event as RegionEvent;
use mainstay_types::time::Time;
use std::collections::BTreeSet;

/// How long the journal is, and how far its checkpoints are.
#[derive(Debug)]
pub(crate) struct Checkpointing {
    /// Bytes of records that a start would read.
    kept_bytes: u64,
    /// Checkpoints begin at so many.
    begins_at_bytes: u64,
    round: Option<Round>,
}

#[derive(Debug)]
struct Round {
    /// What goes when it is over, in bytes.
    before_bytes: u64,
    /// Regions whose checkpoint is not whole and safe yet.
    under_way: BTreeSet<RegionId>,
}

impl Checkpointing {
    pub(crate) fn new(kept_bytes: u64, begins_at_bytes: u64) -> Self {
        Self { kept_bytes, begins_at_bytes, round: None }
    }

    pub(crate) fn appended(&mut self, bytes: usize) {
        self.kept_bytes += bytes as u64;
    }
}

impl Replica {
    /// Begins checkpoints when the journal has become long enough.
    pub(crate) fn drive_checkpoints(&mut self, now: Time, out: &mut Vec<Effect>) {
        if let Some(Round { under_way, .. }) = &self.checkpointing.round {
            if under_way.iter().all(|region| self.regions[region].machine.is_checkpointing()) {
                return;
            }
            self.checkpointing.round = None;
        }
        let Checkpointing { kept_bytes, begins_at_bytes, .. } = self.checkpointing;
        let all_can = self.regions.values().all(|hosted| hosted.machine.can_checkpoint());
        if kept_bytes < begins_at_bytes || self.regions.is_empty() || !all_can {
            return;
        }
        out.push(Effect::CheckpointBegins);
        let under_way = self.regions.keys().copied().collect();
        self.checkpointing.round = Some(Round { before_bytes: kept_bytes, under_way });
        self.each_region(now, |_| RegionEvent::Checkpoint);
    }

    /// The checkpoint of a region is whole and safe.
    pub(crate) fn checkpointed(&mut self, region: RegionId, out: &mut Vec<Effect>) {
        if let Some(round) = &mut self.checkpointing.round {
            round.under_way.remove(&region);
        }
        let over = |round: &mut Round| round.under_way.is_empty();
        let Some(Round { before_bytes, .. }) = self.checkpointing.round.take_if(over) else { return };
        out.push(Effect::Trim);
        let kept_bytes = self.checkpointing.kept_bytes - before_bytes;
        // A checkpoint costs what the regions hold: with twice that in the journal before the next one, writing costs at most as much again.
        let begins_at_bytes = self.config.checkpoint_bytes_min.max(kept_bytes * 2);
        self.checkpointing = Checkpointing::new(kept_bytes, begins_at_bytes);
    }
}
