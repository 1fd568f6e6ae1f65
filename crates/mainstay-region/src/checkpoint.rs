//! A checkpoint of a copy in its own journal, behind which the records before it are not needed.
//!
//! ```text
//!   Checkpoint ──> Began, chunks of the stable state and of the table, entries of the logs, Complete ──> Checkpointed
//!                  some with each tick, when those before are safe; in between what becomes stable, as what it changed
//! ```
//!
//! It is an image that the copy sends to its journal instead of to a member ([`crate::image`]), and at the end what its logs had when it began and
//! still have. Writes go on meanwhile, the clock and the disk set the pace. A view change ends it unfinished: then the records before it are still
//! needed, and the next one begins anew.
//!
//! A copy is found again from the last whole checkpoint and what is behind it. Whatever else is left of the records before has no say, so that it does not
//! matter how much of them was trimmed; parts of a checkpoint that did not come to its end are passed over, since the records around them say all that
//! they say.

use crate::effect::{Effect, RecordNumber};
use crate::image::{self, Next};
use crate::log::{Accepted, Entry, Log};
use crate::message::{Acknowledge, ImagePart};
use crate::operation::{Changes, Outcome};
use crate::record::{self, Record};
use crate::region::{Phase, Region};
use crate::shard::Shard;
use crate::state::{Applied, Forgotten};
use mainstay_types::operation::Version;
use mainstay_types::rules::Rule;
use mainstay_types::view::ViewId;
use std::collections::BTreeMap;

/// A checkpoint that is being taken.
#[derive(Clone, Debug)]
pub(crate) struct Checkpointing {
    /// End of each shard's log when it began: what came later is recorded behind its beginning.
    ends: Vec<u64>,
    stage: Stage,
    /// Its last record: the next ones come when this is safe.
    last: RecordNumber,
}

#[derive(Clone, Debug)]
enum Stage {
    Image(Next),
    /// Entries of the shard's log behind `after`.
    Log {
        shard: u16,
        after: u64,
    },
    Complete,
}

impl Region {
    /// Whether [`crate::effect::Event::Checkpoint`] begins one now.
    #[must_use]
    pub fn can_checkpoint(&self) -> bool {
        let has_all = self.phase != Phase::Learning && self.standing != ViewId::NONE;
        has_all && self.checkpointing.is_none()
    }

    /// Whether a checkpoint is being taken.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        self.checkpointing.is_some()
    }

    /// Begins a checkpoint.
    pub(crate) fn checkpoint(&mut self, out: &mut Vec<Effect>) {
        if !self.can_checkpoint() {
            return;
        }
        let part = ImagePart::Began { standing: self.standing, at: self.stands_at() };
        self.append(&Record::Checkpoint { shard: 0, part }, out);
        let ends = self.shards.iter().map(|shard| shard.log.end()).collect();
        let stage = Stage::Image(Next::Values { shard: 0, after: None });
        self.checkpointing = Some(Checkpointing { ends, stage, last: self.record });
        if !self.config.rules.keep(Rule::TrimAfterCheckpoint) {
            out.push(Effect::Checkpointed);
        }
    }

    /// Goes on with it, once what it has is safe, by as much as one tick may write.
    pub(crate) fn tick_checkpoint(&mut self, out: &mut Vec<Effect>) {
        let mut bytes = 0;
        while bytes < self.config.limits.checkpoint_tick_bytes_max
            && let Some(Checkpointing { ends, stage, last }) = self.checkpointing.take_if(|taken| {
                (bytes > 0 || taken.last <= self.safe) && !matches!(taken.stage, Stage::Complete)
            })
        {
            let (record, stage) = match stage {
                Stage::Image(next) => match self.next_part(&next) {
                    Some((_, ImagePart::Complete, _)) | None => self.log_part(0, 0, &ends),
                    Some((shard, part, next)) => (Record::Checkpoint { shard, part }, Stage::Image(next)),
                },
                Stage::Log { shard, after } => self.log_part(shard, after, &ends),
                Stage::Complete => unreachable!("a whole checkpoint waits for the disk alone"),
            };
            bytes += self.append(&record, out);
            self.checkpointing = Some(Checkpointing { ends, stage, last: last.max(self.record) });
        }
    }

    /// Records are safe: perhaps all of the checkpoint's.
    pub(crate) fn finish_checkpoint(&mut self, out: &mut Vec<Effect>) {
        let whole =
            |taken: &mut Checkpointing| matches!(taken.stage, Stage::Complete) && taken.last <= self.safe;
        if self.checkpointing.take_if(whole).is_some() && self.config.rules.keep(Rule::TrimAfterCheckpoint) {
            out.push(Effect::Checkpointed);
        }
    }

    /// The next entries of what the logs had; behind the last shard the end.
    fn log_part(&self, shard: u16, after: u64, ends: &[u64]) -> (Record, Stage) {
        for at in shard..self.config.shards {
            let log = &self.shard(at).log;
            let first = log.trimmed().max(if at == shard { after } else { 0 }) + 1;
            let mut bytes = 0;
            let mut entries = Vec::new();
            for counter in first..=ends[usize::from(at)] {
                let Some(accepted) = log.get(counter) else { break };
                entries.push(accepted.entry.clone());
                bytes += accepted.entry.bytes();
                if bytes > self.config.limits.image_chunk_bytes_max {
                    break;
                }
            }
            if !entries.is_empty() {
                let after = first + entries.len() as u64 - 1;
                return (
                    Record::CheckpointLog { shard: at, first, entries },
                    Stage::Log { shard: at, after },
                );
            }
        }
        (Record::Checkpoint { shard: 0, part: ImagePart::Complete }, Stage::Complete)
    }

    /// A version became stable while a checkpoint is being taken.
    pub(crate) fn checkpoint_change(
        &mut self,
        shard: u16,
        applied: &Applied,
        forgotten: &Forgotten,
        out: &mut Vec<Effect>,
    ) {
        let under_way = |taken: &Checkpointing| !matches!(taken.stage, Stage::Complete);
        if self.checkpointing.as_ref().is_some_and(under_way) {
            let part = ImagePart::Change { applied: applied.clone(), forgotten: forgotten.clone() };
            self.append(&Record::Checkpoint { shard, part }, out);
        }
    }
}

/// Where the last whole checkpoint begins among records. `None` if there is none.
pub(crate) fn last_whole<'a>(records: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
    let (mut began, mut whole) = (None, None);
    for (place, bytes) in records.enumerate() {
        match Record::checkpoint_part(bytes) {
            Some(ImagePart::Began { .. }) => began = Some(place),
            Some(ImagePart::Complete) => whole = began,
            _ => {}
        }
    }
    whole
}

/// A checkpoint that is read.
#[derive(Debug)]
pub(crate) struct Restoring {
    standing: ViewId,
    shards: Vec<Shard>,
    logs: Vec<BTreeMap<u64, Entry>>,
}

impl Restoring {
    /// Behind a record that begins a checkpoint; `None` behind any other.
    pub(crate) fn begun_by(record: &Record, shards: u16) -> Option<Self> {
        let Record::Checkpoint { part: ImagePart::Began { standing, .. }, .. } = record else { return None };
        let count = usize::from(shards);
        let logs = vec![BTreeMap::new(); count];
        Some(Self { standing: *standing, shards: vec![Shard::default(); count], logs })
    }

    /// Takes a record. Whether the checkpoint is whole with it; `None` if it has no place in one.
    pub(crate) fn take(&mut self, region: &mut Region, record: Record) -> Option<bool> {
        match record {
            Record::Checkpoint { part: ImagePart::Complete, .. } => self.complete(region).map(|()| true),
            Record::Checkpoint { shard, part } => {
                image::fill_shards(&region.config, &mut self.shards, shard, part).map(|()| false)
            }
            Record::CheckpointLog { shard, first, entries } => {
                self.logs.get_mut(usize::from(shard))?.extend((first..).zip(entries));
                Some(false)
            }
            Record::Accepted { entries } => {
                for record::Accepted { shard, counter, entry } in entries {
                    self.logs.get_mut(usize::from(shard))?.insert(counter, entry);
                }
                Some(false)
            }
            // What it changed is a part of the checkpoint.
            Record::Marks { .. } | Record::Unversioned { .. } => Some(false),
            Record::Cut { .. } | Record::Image { .. } | Record::Filled { .. } => None,
        }
    }

    fn complete(&mut self, region: &mut Region) -> Option<()> {
        let limits = region.config.limits;
        for (shard, entries) in self.shards.iter_mut().zip(&self.logs) {
            if region.config.unversioned {
                // Its versions are this copy's own: no log has them, and no cut.
                continue;
            }
            if shard.state.at.view != self.standing && shard.state.at != Version::NONE {
                return None;
            }
            let counter = shard.state.at.counter;
            // What was dropped from the log while it was written leaves a gap; what is before it is in the state.
            let end = entries.last_key_value().map_or(counter, |(&last, _)| last).max(counter);
            let unbroken = (1..=end).rev().take_while(|place| entries.contains_key(place));
            let first = unbroken.last().unwrap_or(end + 1);
            if first > counter + 1 {
                return None;
            }
            shard.log = Log::behind(first - 1);
            shard.stable = counter;
            for (&place, entry) in entries.range(first..) {
                if place > counter {
                    shard.offer(place, entry.clone(), Acknowledge::Nobody, &limits, &mut Vec::new());
                } else {
                    // It is in the state. What is left of it is what a report has.
                    let entry = entry.clone();
                    shard.log.push(Accepted { entry, outcome: Outcome::Differs, changes: Changes::new() });
                }
            }
        }
        region.shards = std::mem::take(&mut self.shards);
        region.standing = self.standing;
        region.phase = Phase::Wedged;
        Some(())
    }
}
