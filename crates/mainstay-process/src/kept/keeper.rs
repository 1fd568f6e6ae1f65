//! What a running process asks of the region next, one thing at a time: to keep the next records, to name its life, to take a checkpoint, to remove
//! what nothing needs any more, to say that it is the owner still.
//!
//! ```text
//!   append, save, confirm, enter_life ──> turn ──> one write or one question ──> acknowledged: what is kept, confirmed, named, saved
//! ```
//! One write is under way at a time: what is appended meanwhile is the next one, so that many requests share a write when there are many, and one that is
//! alone waits for nobody. Between two writes of the log stands at most one of a checkpoint.

use super::attach::{file_bytes, read_chunk};
use super::manifest::KeptCheckpoint;
use super::shelf::Shelf;
use super::{Store, Trouble};
use crate::checkpoint::final_name;
use mainstay_journal::storage::Storage;
use mainstay_types::id::Lsn;
use std::collections::VecDeque;

/// Bytes that have been written are given back at once when there are so many of them.
const WRITTEN_BYTES_MAX: usize = 1 << 20;

/// What the region has said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acknowledged {
    /// It has every record that ends at or below this.
    pub kept: Lsn,
    /// The last question that was answered, by something that was asked of the region after the question had come.
    pub confirmed: u64,
    /// The life that the owner's entry names.
    pub life: u64,
    /// With which checkpoint a recovery from there begins; the first LSN for none.
    pub checkpoint: Lsn,
}

/// A checkpoint on its way.
struct Saving {
    of: KeptCheckpoint,
    next: u64,
}

/// Has a region keep a log. The bytes that wait are limited by who appends them: no request and no timer is taken while
/// [`crate::config::Limits::unkept_bytes_max`] wait.
pub struct Keeper<S> {
    shelf: Shelf<S>,
    /// Bytes of the log from `base` on.
    bytes: Vec<u8>,
    base: Lsn,
    /// Where records end among those not written yet; the last is where they end.
    ends: VecDeque<Lsn>,
    saving: Option<Saving>,
    /// The last checkpoint that was published.
    checkpoint: Lsn,
    confirm: u64,
    confirmed: u64,
    life: u64,
    life_named: u64,
    /// The last turn wrote log: something else may have the next one.
    wrote: bool,
    /// A checkpoint's file could not be read: nothing waits behind that, and it is tried again with each look.
    is_stuck: bool,
}

enum Job {
    Life,
    Write,
    Remove,
    Save,
    Confirm,
    Look,
}

impl<S: Store> Keeper<S> {
    /// For a process that has attached.
    pub fn new(shelf: Shelf<S>) -> Self {
        let (base, life) = (shelf.written(), shelf.owner.as_ref().map_or(0, |owner| owner.life));
        Self {
            shelf,
            bytes: Vec::new(),
            base,
            ends: VecDeque::new(),
            saving: None,
            checkpoint: Lsn::ZERO,
            confirm: 0,
            confirmed: 0,
            life,
            life_named: life,
            wrote: false,
            is_stuck: false,
        }
    }

    /// Whose log it is.
    pub fn name(&self) -> &str {
        self.shelf.name()
    }

    /// The region.
    pub fn store(&self) -> &S {
        self.shelf.store()
    }

    /// The region.
    pub fn store_mut(&mut self) -> &mut S {
        self.shelf.store_mut()
    }

    /// What the region has said.
    pub fn acknowledged(&self) -> Acknowledged {
        let whole = self.shelf.manifest.whole.as_ref();
        let checkpoint = whole.and_then(|whole| whole.checkpoint).map_or(Lsn::ZERO, |of| of.lsn);
        let (confirmed, life) = (self.confirmed, self.life_named);
        Acknowledged { kept: self.shelf.end(), confirmed, life, checkpoint }
    }

    /// Where the next bytes go.
    pub fn end(&self) -> Lsn {
        self.base.plus(self.bytes.len() as u64)
    }

    /// Takes the next bytes of the log, and where records end among them, ascending.
    ///
    /// # Panics
    /// If the last record ends elsewhere than the bytes.
    pub fn append(&mut self, bytes: &mut Vec<u8>, ends: &mut Vec<Lsn>) {
        if !bytes.is_empty() {
            self.bytes.append(bytes);
            self.ends.extend(ends.drain(..));
            assert_eq!(self.ends.back(), Some(&self.end()), "whole records are appended");
        }
    }

    /// Takes the number of the last question whether this life is the present one.
    pub fn confirm(&mut self, number: u64) {
        self.confirm = self.confirm.max(number);
    }

    /// This life begins: the owner's entry is to name it.
    pub fn enter_life(&mut self, life: u64) {
        self.life = self.life.max(life);
    }

    /// A checkpoint is published. All that it knows is kept.
    pub fn save(&mut self, lsn: Lsn) {
        self.checkpoint = self.checkpoint.max(lsn);
    }

    /// Whether the region lacks a checkpoint whose file cannot be read now.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Whether there is something to do without a look.
    pub fn has_work(&self) -> bool {
        self.next(false).is_some()
    }

    /// Does the next thing; `look`: asks at least whether this process is the owner still. Whether there was something to do.
    ///
    /// # Errors
    /// [`Trouble`]; of [`Trouble::is_passing`] ones another turn makes good what was not done.
    pub fn turn(&mut self, storage: &mut dyn Storage, look: bool) -> Result<bool, Trouble> {
        self.forget_written();
        let Some(job) = self.next(look) else { return Ok(false) };
        // What is asked from now on answers this question, and not one that comes meanwhile.
        let (confirm, before) = (self.confirm, self.shelf.confirmations());
        self.wrote = matches!(job, Job::Write);
        let done = match job {
            Job::Life => {
                let life = self.life;
                self.shelf.enter_life(life).map(|()| self.life_named = life)
            }
            Job::Write => self.write(),
            Job::Remove => self.shelf.remove_surplus(),
            Job::Save => self.save_or_look(storage),
            Job::Confirm => self.shelf.confirm(),
            Job::Look => self.shelf.look(),
        };
        done?;
        if self.shelf.confirmations() > before {
            self.confirmed = confirm;
        }
        Ok(true)
    }

    fn forget_written(&mut self) {
        let written = self.shelf.written();
        let bytes = usize::try_from(written.0 - self.base.0).expect("the region has what it was given");
        assert!(bytes <= self.bytes.len(), "the region has what it was given, and no more");
        if bytes == self.bytes.len() || bytes > WRITTEN_BYTES_MAX {
            self.bytes.drain(..bytes);
            self.base = written;
        }
        while self.ends.front().is_some_and(|end| *end <= self.shelf.end()) {
            self.ends.pop_front();
        }
    }

    fn next(&self, look: bool) -> Option<Job> {
        let writes = !self.ends.is_empty();
        let saves = self.saving.is_some() || self.checkpoint > self.acknowledged().checkpoint;
        let background = match () {
            () if saves => Some(Job::Save),
            () if !self.shelf.manifest.surplus.is_empty() => Some(Job::Remove),
            () => None,
        };
        match () {
            () if self.life > self.life_named => Some(Job::Life),
            () if look && self.is_stuck => background,
            () if writes && (!self.wrote || self.is_stuck || background.is_none()) => Some(Job::Write),
            () if background.is_some() && !self.is_stuck => background,
            () if self.confirm > self.confirmed => Some(Job::Confirm),
            () if look => Some(Job::Look),
            () => None,
        }
    }

    /// A file that cannot be read does not keep this from hearing of a later owner.
    fn save_or_look(&mut self, storage: &mut dyn Storage) -> Result<(), Trouble> {
        if self.is_stuck {
            self.shelf.look()?;
        }
        let saved = self.go_on_saving(storage);
        self.is_stuck = matches!(saved, Err(Trouble::Checkpoint(_)));
        if self.is_stuck {
            // A later life may have published another one.
            self.saving = None;
        }
        saved
    }

    /// As many whole records as one write takes; of one that is longer, a part.
    fn write(&mut self) -> Result<(), Trouble> {
        let written = self.shelf.written();
        let from = (written.0 - self.base.0) as usize;
        let most = written.plus(self.shelf.sizes.write_bytes_max).min(self.end());
        let fitting = self.ends.partition_point(|end| *end <= most);
        let last = fitting.checked_sub(1).map(|last| self.ends[last]).filter(|end| *end > written);
        let to = last.unwrap_or(most);
        self.shelf.add(&self.bytes[from..(to.0 - self.base.0) as usize], last.is_some())
    }

    /// One write of a checkpoint.
    fn go_on_saving(&mut self, storage: &mut dyn Storage) -> Result<(), Trouble> {
        let Some(saving) = &mut self.saving else {
            let lsn = self.checkpoint;
            let bytes = file_bytes(storage, &final_name(lsn)).map_err(Trouble::Checkpoint)?;
            let of = KeptCheckpoint { start: self.shelf.start(), lsn, bytes };
            // Said first, so that somebody removes what a crash leaves of it.
            self.shelf.begin_checkpoint(of)?;
            self.saving = Some(Saving { of, next: 0 });
            return Ok(());
        };
        let of = saving.of;
        if saving.next < of.chunks(self.shelf.sizes) {
            let bytes = read_chunk(storage, &final_name(of.lsn), of, (saving.next, self.shelf.sizes))
                .map_err(Trouble::Checkpoint)?;
            if self.shelf.put_chunk(of, saving.next, &bytes)? {
                saving.next += 1;
            }
            return Ok(());
        }
        self.shelf.finish_checkpoint(of)?;
        self.saving = None;
        Ok(())
    }
}
