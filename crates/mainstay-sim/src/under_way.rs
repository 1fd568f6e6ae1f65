//! What the service has under way at its disk: writes, syncs and the duties of its background thread.

use crate::disk::SyncBegun;
use crate::properties::Violation;
use crate::reach::Reach;
use crate::service::Life;
use crate::subject::Subject;
use crate::world::{Happening, MICROSECOND, MILLISECOND, World};
use mainstay_journal::effect::{DiskEffect, DiskEvent, Ticket};
use mainstay_journal::memory::PageMemory;
use mainstay_journal::storage::Failure;
use mainstay_process::event::Event;
use mainstay_process::handler::Handler;
use mainstay_types::id::Lsn;

/// A write or a sync under way.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Write {
        ticket: Ticket,
        file: String,
        offset: u64,
        /// The bytes, or the slot and range where they are read when the write is made.
        bytes: Option<Vec<u8>>,
        slot: (usize, usize, usize),
        durable: bool,
    },
    Sync {
        ticket: Ticket,
        files: Vec<SyncBegun>,
    },
}

/// What the background thread does, one after another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Duty {
    Prepare { segment: u64 },
    Trim { first: Lsn },
}

impl<H: Handler> Life<H> {
    /// What a write of this slot and range would write now.
    fn memory_bytes(&self, (slot, from, to): (usize, usize, usize)) -> Vec<u8> {
        self.process.journal().memory().page(slot)[from..to].to_vec()
    }
}

impl<S: Subject> World<S> {
    pub(crate) fn disk_effect(&mut self, effect: &DiskEffect) -> Option<DiskEvent> {
        let lives = self.lives;
        match *effect {
            DiskEffect::Write { ticket, slot, from, to, place, durable } => {
                let life = self.life.as_mut().expect("effects are performed for a living service");
                let file = life.catalog.file_of(place.segment).expect("only prepared segments are written");
                let range = (slot, from as usize, to as usize);
                let early = self.random.coin();
                let bytes = early.then(|| life.memory_bytes(range));
                let operation =
                    Operation::Write { ticket, file, offset: place.offset, bytes, slot: range, durable };
                if durable && self.fault_rates.inline_writes {
                    return Some(self.complete(operation));
                }
                self.begin(operation);
            }
            DiskEffect::Sync { ticket, first_segment, last_segment } => {
                let life = self.life.as_ref().expect("effects are performed for a living service");
                let files = (first_segment..=last_segment)
                    .filter_map(|segment| self.disk.begin_sync(&life.catalog.file_of(segment)?))
                    .collect();
                self.begin(Operation::Sync { ticket, files });
            }
            DiskEffect::Prepare { segment } => self.duty(Duty::Prepare { segment }, lives),
            DiskEffect::Trim { first } => self.duty(Duty::Trim { first }, lives),
        }
        None
    }

    fn duty(&mut self, duty: Duty, life: u64) {
        let living = self.life.as_mut().expect("effects are performed for a living service");
        living.duties.push_back(duty);
        if living.duties.len() == 1 {
            self.after_up_to(MILLISECOND, Happening::Background { life });
        }
    }

    fn begin(&mut self, operation: Operation) {
        let slow = self.random.chance(30);
        let factor = if slow { 20 } else { 1 };
        let delay_ns = self.fault_rates.write_us * MICROSECOND * factor;
        let lives = self.lives;
        let life = self.life.as_mut().expect("effects are performed for a living service");
        life.next_operation += 1;
        let operation_number = life.next_operation;
        life.operations.insert(operation_number, operation);
        self.after_up_to(delay_ns, Happening::Disk { life: lives, operation: operation_number });
    }

    pub(crate) fn disk_done(&mut self, operation: u64) -> Result<(), Violation> {
        if self.disk.passes_point() {
            self.crashed(Reach::Kill);
            return Ok(());
        }
        let life = self.life.as_mut().expect("it lives");
        let operation = life.operations.remove(&operation).expect("an operation completes once");
        let event = self.complete(operation);
        self.step(Event::Disk(event))
    }

    fn complete(&mut self, operation: Operation) -> DiskEvent {
        let fails = self.random.chance(self.fault_rates.failed_syncs);
        let failure = Failure::Os(crate::disk::EIO);
        match operation {
            Operation::Write { ticket, file, offset, bytes, slot, durable } => {
                let life = self.life.as_ref().expect("it lives");
                let bytes = bytes.unwrap_or_else(|| life.memory_bytes(slot));
                match durable {
                    true if fails => {
                        self.disk.write_and_fail(&file, offset, &bytes);
                        return DiskEvent::Failed { ticket, failure };
                    }
                    true => self.disk.write_durable(&file, offset, &bytes),
                    false => self.disk.write_live(&file, offset, &bytes),
                }
                DiskEvent::Done { ticket }
            }
            Operation::Sync { ticket, files } => {
                for sync in &files {
                    if fails {
                        self.disk.fail_sync(sync);
                    } else {
                        self.disk.end_sync(sync);
                    }
                }
                if fails { DiskEvent::Failed { ticket, failure } } else { DiskEvent::Done { ticket } }
            }
        }
    }

    pub(crate) fn background(&mut self) -> Result<(), Violation> {
        let lives = self.lives;
        let life = self.life.as_mut().expect("it lives");
        let duty = life.duties.pop_front().expect("it was woken for one");
        if !life.duties.is_empty() {
            self.after_up_to(MILLISECOND, Happening::Background { life: lives });
        }
        let life = self.life.as_mut().expect("it lives");
        let recycled = life.catalog.free_segments() > 0;
        let event = match duty {
            Duty::Prepare { segment } => match life.catalog.prepare(&mut self.disk, segment) {
                Ok(()) => {
                    self.reached.add(Reach::SegmentRecycled, u64::from(recycled));
                    DiskEvent::Prepared { segment }
                }
                Err(error) => DiskEvent::PrepareFailed { segment, failure: error.failure },
            },
            Duty::Trim { first } => match life.catalog.trim(&mut self.disk, first) {
                Ok(()) => {
                    self.reached.hit(Reach::Trim);
                    DiskEvent::Trimmed { first }
                }
                Err(error) => {
                    self.reached.add(Reach::TrimFailed, u64::from(error.failure != Failure::Crashed));
                    DiskEvent::TrimFailed { failure: error.failure }
                }
            },
        };
        if self.disk.crashed() {
            let during =
                if matches!(duty, Duty::Prepare { .. }) { Reach::CrashInPrepare } else { Reach::CrashInTrim };
            self.reached.hit(during);
            self.crashed(during);
            return Ok(());
        }
        self.step(Event::Disk(event))
    }

    /// The process is gone before `operation` was complete: it is done, in part, or not at all.
    pub(crate) fn leave_undone(&mut self, operation: Operation, life: &Life<S::Handler>) {
        match operation {
            Operation::Write { file, offset, bytes, slot, .. } => {
                let bytes = bytes.unwrap_or_else(|| life.memory_bytes(slot));
                match self.random.below(3) {
                    0 => {}
                    1 => self.disk.write_torn(&file, offset, &bytes),
                    _ => self.disk.write_live(&file, offset, &bytes),
                }
            }
            Operation::Sync { files, .. } => {
                for sync in files {
                    if self.random.coin() {
                        self.disk.end_sync(&sync);
                    }
                }
            }
        }
    }
}
