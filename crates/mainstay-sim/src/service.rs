//! The service in its world: starts, steps, performs effects, crashes.

use crate::disk::SyncBegun;
use crate::ledger::Ledger;
use crate::oracle::Scene;
use crate::properties::{Property, Violation};
use crate::reach::Reach;
use crate::receivers::OutputFlight;
use crate::ring::Ring;
use crate::world::{Happening, MICROSECOND, MILLISECOND, World};
use mainstay_journal::catalog::Catalog;
use mainstay_journal::effect::{DiskEffect, DiskEvent, Ticket};
use mainstay_journal::format::{RING_FILE, SUPERBLOCK_FILE, Superblock};
use mainstay_journal::journal::{AppendError, Health, Journal};
use mainstay_journal::memory::CONTROL_BYTES;
use mainstay_journal::open::{OpenError, Opened, open};
use mainstay_journal::storage::{Failure, Storage, StorageError};
use mainstay_process::checkpoint::{final_name, parse_name};
use mainstay_process::effect::{Effect, Reply};
use mainstay_process::event::{Event, Request};
use mainstay_process::process::Process;
use mainstay_process::recover::{RecoverError, Start};
use mainstay_types::id::{Lsn, OutputId};
use mainstay_types::level::Level;
use mainstay_types::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// One life of the service.
pub(crate) struct Life {
    pub(crate) process: Process<Ledger, Ring>,
    pub(crate) catalog: Catalog,
    /// Writes and syncs under way.
    pub(crate) operations: BTreeMap<u64, Operation>,
    next_operation: u64,
    /// Duties of the background thread.
    pub(crate) duties: VecDeque<Duty>,
    /// The checkpoint being written or published.
    pub(crate) checkpoint: Option<CheckpointWork>,
    /// Outputs that this life has let out and whose fate it does not know.
    pub(crate) flights: BTreeMap<OutputId, OutputFlight>,
    drain_queued: bool,
    clock_ns: u64,
    began_ns: u64,
    was_full: bool,
    stopping: bool,
}

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
    pub(crate) state_hash: u64,
}

impl Life {
    /// Whether the process waits for nothing but the world.
    pub(crate) fn is_idle(&self) -> bool {
        let stats = self.process.stats();
        stats.held == 0 && stats.backlog == 0 && self.operations.is_empty()
    }
}

/// How a start ended that did not lead to a life.
enum NoStart {
    Crashed(Reach),
    /// A fault of the disk: tried again later.
    Fault,
    Violated(Violation),
}

impl From<Violation> for NoStart {
    fn from(violation: Violation) -> Self {
        Self::Violated(violation)
    }
}

impl World {
    // ---- starting

    pub(crate) fn start(&mut self) -> Result<(), Violation> {
        if self.life.is_some() {
            return Ok(());
        }
        if !self.ending {
            self.jump_clock();
            let early = self.random.chance(250);
            let mean = if early { 60 } else { self.fault_rates.crash_points_mean };
            let points = 1 + self.random.below(2 * mean);
            self.disk.set_fuse(Some(points));
        }
        match self.try_start() {
            Ok(()) => Ok(()),
            Err(NoStart::Violated(violation)) => Err(violation),
            Err(NoStart::Fault) => {
                self.reached.hit(Reach::OpenFailed);
                self.crashed(Reach::OpenFailed);
                Ok(())
            }
            Err(NoStart::Crashed(during)) => {
                self.reached.hit(during);
                self.crashed(during);
                Ok(())
            }
        }
    }

    fn jump_clock(&mut self) {
        if self.random.chance(200) {
            let skew_ns =
                self.random.below(600 * MILLISECOND).cast_signed() - 300 * MILLISECOND.cast_signed();
            self.wall_skew_ns = skew_ns;
        }
    }

    fn try_start(&mut self) -> Result<(), NoStart> {
        let opened = open(&mut self.disk, &self.options).map_err(|error| self.not_opened(error))?;
        let Opened { catalog, resume, report } = opened;
        self.trace.line(self.now_ns, format_args!("opened {report:?}"));
        self.note_opening(&catalog, &report);
        let scene = Scene { disk: &self.disk, catalog: &catalog };
        self.oracle.opened(scene, report.end, self.kept_all)?;
        self.kept_all = true;
        self.ring_images.clear();
        let geometry = report.geometry;
        let ring =
            self.ring_file(geometry.page_bytes, geometry.pages).map_err(|error| storage_fault(&error))?;
        self.ring_images.push(ring.clone());
        let ring = Ring::new(&ring, geometry.page_bytes, geometry.pages, &self.left);
        let journal = Journal::start(resume, ring);
        let mut out = Vec::new();
        self.config.entropy = self.random.draw();
        let wall = self.wall();
        let start = Start {
            config: self.config.clone(),
            handler: Ledger {
                bad_weather: Rc::clone(&self.bad_weather),
                handled_once: Rc::clone(&self.handled_once),
                ..Ledger::default()
            },
            journal,
            report: &report,
            storage: &mut self.disk,
            catalog: &catalog,
            now: wall,
            progress: None,
        };
        let (process, recovery) =
            Process::recover(start, &mut out).map_err(|error| self.not_recovered(error))?;
        self.trace.line(self.now_ns, format_args!("recovered {recovery:?}"));
        self.lives += 1;
        self.reached.add(Reach::OutputAgain, recovery.outputs_again);
        self.reached.add(Reach::InDoubtAfterCrash, recovery.outputs_in_doubt);
        self.reached.add(Reach::CheckpointUsed, u64::from(recovery.checkpoint.is_some()));
        self.reached.add(Reach::CheckpointFallback, u64::from(!recovery.passed_over.is_empty()));
        self.reached.add(Reach::ClockJumpBack, u64::from(recovery.time > wall));
        self.reached.add(Reach::ReplayedAfterSeal, u64::from(report.sealed && recovery.replayed > 0));
        self.oracle.recovered(&process, &recovery, &mut self.reached)?;
        self.life = Some(Life {
            process,
            catalog,
            operations: BTreeMap::new(),
            next_operation: 0,
            duties: VecDeque::new(),
            checkpoint: None,
            flights: BTreeMap::new(),
            drain_queued: false,
            clock_ns: wall.0.max(recovery.time.0),
            began_ns: self.now_ns,
            was_full: false,
            stopping: false,
        });
        self.queue_drain();
        self.perform(out)?;
        Ok(())
    }

    fn note_opening(&mut self, catalog: &Catalog, report: &mainstay_journal::open::OpenReport) {
        self.reached.add(Reach::TailCut, u64::from(report.cut.is_some()));
        self.reached.add(Reach::RingMissing, u64::from(report.ring_missing));
        self.reached.add(Reach::OpenedSealed, u64::from(report.sealed));
        self.reached.add(Reach::SuperblockRepaired, u64::from(report.repaired_superblock));
        let geometry = report.geometry;
        let next_page = geometry.page_start(geometry.page_of(report.end) + 1);
        let place = geometry.place_of(next_page);
        let behind = catalog.file_of(place.segment).and_then(|file| {
            let offset = usize::try_from(place.offset).expect("a file fits in memory");
            self.disk.content(&file)?.get(offset..offset + 64)
        });
        let stale = behind.is_some_and(|bytes| bytes.iter().any(|&byte| byte != 0));
        self.reached.add(Reach::StaleBytesMet, u64::from(stale));
    }

    /// The bytes of the ring's file, made if it is not there: what mapping it does.
    fn ring_file(&mut self, page_bytes: u32, pages: u16) -> Result<Vec<u8>, StorageError> {
        let bytes = CONTROL_BYTES + page_bytes as usize * usize::from(pages);
        let present = self.disk.content(RING_FILE).map(<[u8]>::len);
        if present.is_some_and(|present| present != bytes) {
            self.disk.remove(RING_FILE)?;
        }
        if present != Some(bytes) {
            self.disk.create(RING_FILE, bytes as u64)?;
        }
        Ok(self.disk.content(RING_FILE).expect("it is there now").to_vec())
    }

    fn not_opened(&self, error: OpenError) -> NoStart {
        match error {
            OpenError::Storage(error) if error.failure == Failure::Crashed => {
                NoStart::Crashed(Reach::CrashInOpen)
            }
            OpenError::Storage(error) => storage_fault(&error),
            error => NoStart::Violated(Violation::new(
                Property::Recovers,
                format!("the journal is refused: {error}"),
            )),
        }
    }

    fn not_recovered(&mut self, error: RecoverError) -> NoStart {
        self.save_ring();
        match error {
            RecoverError::HandlerPanicked(_) => NoStart::Crashed(Reach::PanicInRecovery),
            RecoverError::Storage(error) => storage_fault(&error),
            // No room for the first record of a life: the owner makes space and starts it again.
            RecoverError::Append(AppendError::Full { .. }) => NoStart::Fault,
            RecoverError::Read(mainstay_journal::reader::ReadError::Storage(error)) => storage_fault(&error),
            _ if self.disk.crashed() => NoStart::Crashed(Reach::CrashInRecovery),
            error => {
                NoStart::Violated(Violation::new(Property::Recovers, format!("recovery is refused: {error}")))
            }
        }
    }

    // ---- stepping

    pub(crate) fn clock(&self) -> Time {
        let life = self.life.as_ref().expect("only a living service reads its clock");
        Time(life.clock_ns + (self.now_ns - life.began_ns))
    }

    /// Hands an event to the process and performs what it wants. The service may be dead afterwards.
    pub(crate) fn step(&mut self, event: Event) -> Result<(), Violation> {
        if self.life.is_none() {
            return Ok(());
        }
        if self.disk.passes_point() {
            self.crashed(Reach::Kill);
            return Ok(());
        }
        let now = self.clock();
        self.trace.line(self.now_ns, format_args!("> {event:?}"));
        let more_may_come = !matches!(event, Event::Drained);
        let mut out = Vec::new();
        let life = self.life.as_mut().expect("it was just seen");
        self.steps += 1;
        life.process.step(now, event, &mut out);
        self.oracle.stepped(&life.process, &mut self.reached)?;
        let full = matches!(life.process.journal().health(), Health::Full { .. });
        self.reached.add(Reach::DiskFullRecovered, u64::from(life.was_full && !full));
        life.was_full = full;
        if self.random.chance(20) && self.ring_images.len() < 4 {
            self.ring_images.push(life.process.journal().memory().image());
        }
        if more_may_come {
            self.queue_drain();
        }
        self.perform(out)
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Result<(), Violation> {
        let mut at_once = Vec::new();
        for effect in effects {
            if self.disk.passes_point() {
                self.crashed(Reach::Kill);
                return Ok(());
            }
            self.trace.line(self.now_ns, format_args!("< {effect:?}"));
            match effect {
                Effect::Disk(effect) => at_once.extend(self.disk_effect(&effect)),
                Effect::Reply { token, reply } => self.reply(token, reply)?,
                Effect::Output(output) => {
                    let life = self.life.as_ref().expect("effects are performed for a living service");
                    self.oracle.sent(
                        Scene { disk: &self.disk, catalog: &life.catalog },
                        &output,
                        &mut self.reached,
                    )?;
                    self.let_out(output);
                }
                Effect::SaveCheckpoint { lsn } => self.save_checkpoint(lsn),
                Effect::PublishCheckpoint { .. } => {
                    let life = self.lives;
                    self.after_up_to(2 * MILLISECOND, Happening::Checkpoint { life, publish: true });
                }
                Effect::Wake(at) => {
                    let delay_ns = at.0.saturating_sub(self.clock().0);
                    let life = self.lives;
                    self.after(delay_ns, Happening::Wake { life });
                }
                Effect::Abandon(_) => {
                    self.reached.hit(Reach::Abandoned);
                    self.die();
                    self.after_up_to(MILLISECOND, Happening::Start);
                    return Ok(());
                }
                Effect::Stopped => {
                    let sealed = self
                        .life
                        .as_ref()
                        .is_some_and(|life| life.process.journal().health() == Health::Sealed);
                    self.reached.add(Reach::Seal, u64::from(sealed));
                    self.die();
                    self.after_up_to(2 * MILLISECOND, Happening::Start);
                    return Ok(());
                }
            }
        }
        for event in at_once {
            self.step(Event::Disk(event))?;
        }
        self.restart_if_poisoned();
        Ok(())
    }

    fn queue_drain(&mut self) {
        let life = self.lives;
        if let Some(living) = &mut self.life
            && !living.drain_queued
        {
            living.drain_queued = true;
            self.after_up_to(60 * MICROSECOND, Happening::Drained { life });
        }
    }

    pub(crate) fn drained(&mut self) -> Result<(), Violation> {
        self.life.as_mut().expect("it lives").drain_queued = false;
        self.step(Event::Drained)
    }

    pub(crate) fn wake(&mut self) -> Result<(), Violation> {
        self.step(Event::Tick)
    }

    pub(crate) fn ask(&mut self, stop: bool) -> Result<(), Violation> {
        if stop {
            self.life.as_mut().expect("it lives").stopping = true;
        }
        self.step(if stop { Event::Stop } else { Event::CheckpointNow })
    }

    /// What an owner does who sees that the journal is poisoned.
    fn restart_if_poisoned(&mut self) {
        let poisoned = self
            .life
            .as_ref()
            .is_some_and(|life| matches!(life.process.journal().health(), Health::Poisoned { .. }));
        if poisoned && self.random.chance(300) {
            self.reached.hit(Reach::Poisoned);
            self.die();
            self.after_up_to(5 * MILLISECOND, Happening::Start);
        }
    }

    fn reply(&mut self, token: mainstay_process::event::ReplyToken, reply: Reply) -> Result<(), Violation> {
        let number = self.messages[usize::try_from(token.0).expect("a message number is an index")];
        let life = self.life.as_ref().expect("effects are performed for a living service");
        let scene = Scene { disk: &self.disk, catalog: &life.catalog };
        let call = (token, &self.calls[number], number as u64);
        self.oracle.replied(scene, call, &reply, &mut self.reached)?;
        let era = self.era;
        self.send(move || Happening::Replied { token, reply: reply.clone(), era });
        Ok(())
    }

    pub(crate) fn request_event(&self, number: usize, token: mainstay_process::event::ReplyToken) -> Event {
        let call = &self.calls[number];
        match call.kind {
            crate::clients::CallKind::Request => {
                Event::Request(Request { token, identity: call.identity.clone(), body: call.body.clone() })
            }
            crate::clients::CallKind::Register => Event::Register { token },
            crate::clients::CallKind::Query => Event::Query { token, body: Vec::new() },
            crate::clients::CallKind::Resolve(output, resolution) => {
                Event::Resolve { token, output, resolution }
            }
        }
    }

    // ---- the disk's part

    fn disk_effect(&mut self, effect: &DiskEffect) -> Option<DiskEvent> {
        let lives = self.lives;
        match *effect {
            DiskEffect::Write { ticket, slot, from, to, place, durable } => {
                let life = self.life.as_mut().expect("effects are performed for a living service");
                let file = life.catalog.file_of(place.segment).expect("only prepared segments are written");
                let range = (slot, from as usize, to as usize);
                let early = self.random.coin();
                let bytes = early.then(|| life.process.journal().memory_bytes(range));
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
                let bytes = bytes.unwrap_or_else(|| life.process.journal().memory_bytes(slot));
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

    // ---- dying

    /// The machine has stopped at a crash point: by kill -9 or, now and then, with its power.
    pub(crate) fn crashed(&mut self, during: Reach) {
        self.crashes += u64::from(during != Reach::OpenFailed && during != Reach::PanicInRecovery);
        self.die();
        if during != Reach::PanicInRecovery && !self.ending && self.random.chance(self.fault_rates.power_cuts)
        {
            self.cut_power(Reach::PowerCut);
        } else {
            self.reached.hit(Reach::Kill);
            if !self.ending && self.random.chance(50) {
                self.cut_power(Reach::PowerCutBetweenLives);
            }
        }
        let delay_ns = if self.ending { 3 } else { 10 } * MILLISECOND;
        self.after_up_to(delay_ns, Happening::Start);
    }

    /// The process is gone; what it had under way may be done, in part, or not at all.
    fn die(&mut self) {
        self.disk.set_fuse(None);
        if let Some(mut life) = self.life.take() {
            self.trace.line(self.now_ns, format_args!("life {} ends", self.lives));
            self.note_journal(&life);
            for operation in std::mem::take(&mut life.operations).into_values() {
                self.leave_undone(operation, &life);
            }
            if let Some(work) = life.checkpoint.take()
                && self.random.coin()
            {
                let name = mainstay_process::checkpoint::temporary_name(work.lsn);
                let _ = self.disk.create(&name, 0);
                self.disk.write_torn(&name, 0, &work.bytes);
            }
            drop(life);
        }
        self.save_ring();
        if !self.ending {
            self.damage_a_checkpoint();
            self.damage_a_superblock();
        }
    }

    fn leave_undone(&mut self, operation: Operation, life: &Life) {
        match operation {
            Operation::Write { file, offset, bytes, slot, .. } => {
                let bytes = bytes.unwrap_or_else(|| life.process.journal().memory_bytes(slot));
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

    fn note_journal(&mut self, life: &Life) {
        let stats = life.process.journal().stats();
        self.reached.add(Reach::Stall, stats.stalls);
        self.reached.add(Reach::GroupCommitJoin, stats.flushes_joined);
        self.reached.add(Reach::FlushInOneWrite, stats.flushes_in_one_write);
        self.reached.add(Reach::FlushBySync, stats.syncs);
    }

    /// What the mapping held is still in its file.
    fn save_ring(&mut self) {
        if let Some(image) = self.left.borrow_mut().take() {
            self.ring_images.push(image.clone());
            self.disk.replace(RING_FILE, image);
        }
    }

    /// A bit of the newest checkpoint flips, if another one is there to begin with.
    fn damage_a_checkpoint(&mut self) {
        if !self.random.chance(60) {
            return;
        }
        let files = self.disk.list().expect("a disk without a fuse lists");
        let mut checkpoints: Vec<Lsn> = files.iter().filter_map(|file| parse_name(&file.name)).collect();
        // One from before the journal's first byte, whose removal a power cut has undone, is none to begin with.
        let copies = self.disk.content(SUPERBLOCK_FILE).map_or([None, None], |bytes| {
            [0, 4096].map(|at| Superblock::decode(bytes.get(at..at + 512)?).ok())
        });
        let first = copies.into_iter().flatten().map(|superblock| superblock.first).max();
        checkpoints.retain(|&lsn| first.is_some_and(|first| lsn >= first));
        checkpoints.sort_unstable();
        if let [.., older, newest] = checkpoints[..]
            && self.disk.holds_durably(&final_name(older), 0, b"")
        {
            let mut bytes = self.disk.content(&final_name(newest)).expect("it is listed").to_vec();
            if !bytes.is_empty() && !self.checkpoint_damaged_before(older) {
                let place = self.random.index(bytes.len());
                bytes[place] ^= 1 << self.random.below(8);
                self.disk.replace(&final_name(newest), bytes);
                self.trace.line(self.now_ns, format_args!("a bit of checkpoint {newest} flips"));
            }
        }
    }

    /// A bit of one of the two copies of the superblock flips.
    fn damage_a_superblock(&mut self) {
        if !self.random.chance(20) {
            return;
        }
        let Some(mut bytes) = self.disk.content(SUPERBLOCK_FILE).map(<[u8]>::to_vec) else {
            return;
        };
        // The other copy has to be good, and durably so: two damaged copies are more than is promised.
        let copy = self.random.index(2) * 4096;
        let other = 4096 - copy;
        let whole = bytes.get(other..other + 512).is_some_and(|other_bytes| {
            Superblock::decode(other_bytes).is_ok()
                && self.disk.holds_durably(SUPERBLOCK_FILE, other as u64, other_bytes)
        });
        if whole && bytes[copy..copy + 512] == bytes[other..other + 512] {
            let place = copy + self.random.index(512);
            bytes[place] ^= 1 << self.random.below(8);
            self.disk.replace(SUPERBLOCK_FILE, bytes);
            self.trace.line(self.now_ns, format_args!("a bit of the superblock flips at byte {place}"));
        }
    }

    /// Two damaged checkpoints in a row are more than is promised.
    fn checkpoint_damaged_before(&self, lsn: Lsn) -> bool {
        let Some(bytes) = self.disk.content(&final_name(lsn)) else { return true };
        let Some(body) = bytes.len().checked_sub(16) else { return true };
        let sum = u64::from_le_bytes(bytes[body..body + 8].try_into().expect("8 bytes"));
        xxhash_rust::xxh3::xxh3_64(&bytes[..body]) != sum
    }

    fn cut_power(&mut self, kind: Reach) {
        self.reached.hit(kind);
        self.trace.line(self.now_ns, format_args!("the power goes"));
        let ring = self.disk.content(RING_FILE).map(<[u8]>::len);
        if std::mem::take(&mut self.disk.syncs_of_ring) > 0 {
            self.ring_images = self.disk.content(RING_FILE).map(<[u8]>::to_vec).into_iter().collect();
        }
        self.disk.cut_power();
        if let Some(bytes) = ring.filter(|_| self.disk.content(RING_FILE).is_some()) {
            let image = self.older_ring(bytes);
            self.disk.replace(RING_FILE, image);
        }
        self.ring_images.clear();
        self.kept_all = false;
        if self.config.level != Level::Disk {
            self.new_era();
        }
    }

    /// What the page cache had written back of the ring: any page as of any time.
    fn older_ring(&mut self, bytes: usize) -> Vec<u8> {
        let mut image = vec![0; bytes];
        if self.ring_images.len() != 1 && self.random.chance(300) {
            return image;
        }
        let whole = self.random.coin().then(|| self.random.index(self.ring_images.len().max(1)));
        for (page, block) in image.chunks_mut(4096).enumerate() {
            let _ = page;
            let chosen = whole.unwrap_or_else(|| self.random.index(self.ring_images.len().max(1)));
            if let Some(source) = self
                .ring_images
                .get(chosen)
                .and_then(|image| image.get(page * 4096..page * 4096 + block.len()))
            {
                block.copy_from_slice(source);
            }
        }
        image
    }

    /// More was lost than the level promises to keep: clients and receivers begin anew, the journal must still be whole.
    fn new_era(&mut self) {
        self.era += 1;
        self.oracle.forget_promises();
        self.under_way.clear();
        let era = self.era;
        for place in 0..self.clients.len() {
            self.clients[place] = crate::clients::Client::new(place, era);
            self.after_up_to(5 * MILLISECOND, Happening::Client { place, era });
        }
    }
}

fn storage_fault(error: &StorageError) -> NoStart {
    match error.failure {
        Failure::Crashed => NoStart::Crashed(Reach::CrashInRecovery),
        _ => NoStart::Fault,
    }
}

/// Reads what a write will write.
trait MemoryBytes {
    fn memory_bytes(&self, range: (usize, usize, usize)) -> Vec<u8>;
}

impl MemoryBytes for Journal<Ring> {
    fn memory_bytes(&self, (slot, from, to): (usize, usize, usize)) -> Vec<u8> {
        use mainstay_journal::memory::PageMemory;
        self.memory().page(slot)[from..to].to_vec()
    }
}
