//! What a node has under way at its disk: writes, syncs, the duties of its background thread, checkpoints.

use crate::cluster::node::Life;
use crate::cluster::world::{ClusterWorld, Happening};
use crate::disk::{Disk, SyncBegun};
use crate::properties::Violation;
use crate::random::Random;
use crate::reach::Reach;
use crate::world::{MICROSECOND, MILLISECOND};
use mainstay_journal::effect::{DiskEffect, DiskEvent, Ticket};
use mainstay_journal::memory::PageMemory;
use mainstay_journal::storage::Storage;
use mainstay_process::checkpoint::{publish, temporary_name};
use mainstay_process::effect::Spill;
use mainstay_process::event::{CheckpointEvent, Event, SpillEvent, Spilled};
use mainstay_types::id::{Lsn, NodeId};

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

/// A checkpoint under way.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointWork {
    pub(crate) lsn: Lsn,
    pub(crate) bytes: Vec<u8>,
    state_hash: u64,
}

impl Life {
    fn memory_bytes(&self, (slot, from, to): (usize, usize, usize)) -> Vec<u8> {
        self.process.journal().memory().page(slot)[from..to].to_vec()
    }
}

impl Operation {
    fn complete(self, life: &Life, disk: &mut Disk) -> DiskEvent {
        match self {
            Self::Write { ticket, file, offset, bytes, slot, durable } => {
                let bytes = bytes.unwrap_or_else(|| life.memory_bytes(slot));
                if durable {
                    disk.write_durable(&file, offset, &bytes);
                } else {
                    disk.write_live(&file, offset, &bytes);
                }
                DiskEvent::Done { ticket }
            }
            Self::Sync { ticket, files } => {
                files.iter().for_each(|sync| disk.end_sync(sync));
                DiskEvent::Done { ticket }
            }
        }
    }

    /// The process is gone before it was complete: it is done, in part, or not at all.
    pub(crate) fn leave_undone(self, life: &Life, disk: &mut Disk, random: &mut Random) {
        match self {
            Self::Write { file, offset, bytes, slot, .. } => {
                let bytes = bytes.unwrap_or_else(|| life.memory_bytes(slot));
                match random.below(3) {
                    0 => {}
                    1 => disk.write_torn(&file, offset, &bytes),
                    _ => disk.write_live(&file, offset, &bytes),
                }
            }
            Self::Sync { files, .. } => {
                for sync in files {
                    if random.coin() {
                        disk.end_sync(&sync);
                    }
                }
            }
        }
    }
}

impl ClusterWorld {
    fn life(&mut self, id: NodeId) -> &mut Life {
        self.node(id).life.as_mut().expect("effects are performed for a living node")
    }

    pub(crate) fn disk_effect(&mut self, id: NodeId, effect: &DiskEffect) -> Option<DiskEvent> {
        match *effect {
            DiskEffect::Write { ticket, slot, from, to, place, durable } => {
                let early = self.random.coin();
                let inline = durable && self.setup.rates.inline_writes;
                let life = self.life(id);
                let file = life.catalog.file_of(place.segment).expect("only prepared segments are written");
                let slot = (slot, from as usize, to as usize);
                let bytes = early.then(|| life.memory_bytes(slot));
                let operation = Operation::Write { ticket, file, offset: place.offset, bytes, slot, durable };
                if inline {
                    let node = self.node(id);
                    let life = node.life.as_ref().expect("it was just seen");
                    return Some(operation.complete(life, &mut node.disk));
                }
                self.begin(id, operation);
            }
            DiskEffect::Sync { ticket, first_segment, last_segment } => {
                let node = self.node(id);
                let life = node.life.as_ref().expect("effects are performed for a living node");
                let files = (first_segment..=last_segment)
                    .filter_map(|segment| node.disk.begin_sync(&life.catalog.file_of(segment)?))
                    .collect();
                self.begin(id, Operation::Sync { ticket, files });
            }
            DiskEffect::Prepare { segment } => self.duty(id, Duty::Prepare { segment }),
            DiskEffect::Trim { first } => self.duty(id, Duty::Trim { first }),
        }
        None
    }

    fn duty(&mut self, id: NodeId, duty: Duty) {
        let life = self.nodes[&id].lives;
        let duties = &mut self.life(id).duties;
        duties.push_back(duty);
        if duties.len() == 1 {
            self.after_up_to(MILLISECOND, Happening::Background { node: id, life });
        }
    }

    fn begin(&mut self, id: NodeId, operation: Operation) {
        let factor = if self.random.chance(30) { 20 } else { 1 };
        let delay_ns = self.setup.rates.write_us * MICROSECOND * factor;
        let life = self.nodes[&id].lives;
        let living = self.life(id);
        living.next_operation += 1;
        let number = living.next_operation;
        living.operations.insert(number, operation);
        self.after_up_to(delay_ns, Happening::Disk { node: id, life, operation: number });
    }

    pub(crate) fn disk_done(&mut self, id: NodeId, operation: u64) -> Result<(), Violation> {
        if self.node(id).disk.passes_point() {
            self.crash(id, Reach::Kill);
            return Ok(());
        }
        let node = self.node(id);
        let life = node.life.as_mut().expect("it lives");
        let operation = life.operations.remove(&operation).expect("an operation completes once");
        let event = operation.complete(life, &mut node.disk);
        self.step(id, Event::Disk(event))
    }

    pub(crate) fn background(&mut self, id: NodeId) -> Result<(), Violation> {
        let node = self.node(id);
        let lives = node.lives;
        let life = node.life.as_mut().expect("it lives");
        let duty = life.duties.pop_front().expect("it was woken for one");
        let more = !life.duties.is_empty();
        let (event, during) = match duty {
            Duty::Prepare { segment } => {
                let prepared = life.catalog.prepare(&mut node.disk, segment);
                let event = match prepared {
                    Ok(()) => DiskEvent::Prepared { segment },
                    Err(error) => DiskEvent::PrepareFailed { segment, failure: error.failure },
                };
                (event, Reach::CrashInPrepare)
            }
            Duty::Trim { first } => {
                let event = match life.catalog.trim(&mut node.disk, first) {
                    Ok(()) => DiskEvent::Trimmed { first },
                    Err(error) => DiskEvent::TrimFailed { failure: error.failure },
                };
                (event, Reach::CrashInTrim)
            }
        };
        self.reached.add(Reach::Trim, u64::from(matches!(event, DiskEvent::Trimmed { .. })));
        if self.node(id).disk.crashed() {
            self.reached.hit(during);
            self.crash(id, during);
            return Ok(());
        }
        if more {
            self.after_up_to(MILLISECOND, Happening::Background { node: id, life: lives });
        }
        self.step(id, Event::Disk(event))
    }

    pub(crate) fn save_checkpoint(&mut self, id: NodeId, lsn: Lsn) {
        let lives = self.nodes[&id].lives;
        let life = self.life(id);
        let mut bytes = Vec::new();
        let saved = life.process.save(&mut bytes).expect("a vector takes all");
        life.checkpoint = Some(CheckpointWork { lsn, bytes, state_hash: saved.state_hash });
        let happening = Happening::Checkpoint { node: id, life: lives, publish: false };
        self.after_up_to(2 * MILLISECOND, happening);
    }

    /// Bodies go to a file that is no file of the directory. It may take long, as long as a life, and there may be no room for it.
    pub(crate) fn spill(&mut self, id: NodeId, Spill { id: spill, bytes }: Spill) {
        let full = !self.ending && self.random.chance(self.setup.rates.spill_fails_per_mille);
        let event = match full {
            true => SpillEvent::Failed { id: spill },
            false => SpillEvent::Done { id: spill, kept: Spilled::new(bytes) },
        };
        self.reached.add(Reach::SpillFailed, u64::from(full));
        let factor = if self.random.chance(100) { 100 } else { 1 };
        let delay_ns = self.setup.rates.write_us * MICROSECOND * factor;
        self.after_up_to(delay_ns, Happening::Spilled { node: id, event });
    }

    pub(crate) fn spilled(&mut self, id: NodeId, event: SpillEvent) -> Result<(), Violation> {
        let outside = |world: &Self| -> u64 {
            let life = world.nodes[&id].life.as_ref();
            life.map_or(0, |life| life.process.retained().map(|retained| retained.spilled_bytes).sum())
        };
        let before = outside(self);
        self.step(id, Event::Spill(event))?;
        self.reached.add(Reach::Spilled, u64::from(outside(self) > before));
        Ok(())
    }

    pub(crate) fn checkpoint_done(&mut self, id: NodeId, publishes: bool) -> Result<(), Violation> {
        let node = self.node(id);
        let life = node.life.as_mut().expect("it lives");
        let Some(work) = &life.checkpoint else { return Ok(()) };
        let lsn = work.lsn;
        let done = if publishes {
            publish(&mut node.disk, lsn).map(|oldest| CheckpointEvent::Published { lsn, oldest })
        } else {
            let name = temporary_name(lsn);
            let (state_hash, bytes) = (work.state_hash, work.bytes.len() as u64);
            let _ = node.disk.remove(&name);
            let written = node
                .disk
                .create(&name, 0)
                .and_then(|()| node.disk.write(&name, 0, &work.bytes))
                .and_then(|()| node.disk.sync(&name));
            written.map(|()| CheckpointEvent::Saved { lsn, state_hash, bytes })
        };
        let event = done.unwrap_or(CheckpointEvent::Failed { lsn });
        if publishes || matches!(event, CheckpointEvent::Failed { .. }) {
            life.checkpoint = None;
        }
        if node.disk.crashed() {
            let during =
                if publishes { Reach::CrashInCheckpointPublish } else { Reach::CrashInCheckpointSave };
            self.reached.hit(during);
            self.crash(id, during);
            return Ok(());
        }
        self.reached.add(Reach::Checkpoint, u64::from(publishes));
        self.step(id, Event::Checkpoint(event))
    }
}
