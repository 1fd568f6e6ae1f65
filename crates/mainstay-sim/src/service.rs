//! The service in its world: starts, steps, performs effects, crashes.

use crate::oracle::Scene;
use crate::plan::Trouble;
use crate::properties::{Property, Violation};
use crate::reach::Reach;
use crate::receivers::OutputFlight;
use crate::ring::Ring;
use crate::subject::Subject;
use crate::under_way::{Duty, Operation};
use crate::world::{Happening, MICROSECOND, MILLISECOND, World};
use mainstay_journal::catalog::Catalog;
use mainstay_journal::format::RING_FILE;
use mainstay_journal::journal::{AppendError, Health, Journal};
use mainstay_journal::memory::ring_bytes;
use mainstay_journal::open::{OpenError, Opened, open};
use mainstay_journal::storage::{Failure, Storage, StorageError};
use mainstay_process::effect::{Effect, Reply};
use mainstay_process::event::{Event, Request};
use mainstay_process::handler::Handler;
use mainstay_process::process::Process;
use mainstay_process::recover::{RecoverError, Recovery, Start};
use mainstay_types::id::{Lsn, OutputId};
use mainstay_types::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// One life of the service.
pub(crate) struct Life<H> {
    pub(crate) process: Process<H, Ring>,
    pub(crate) catalog: Catalog,
    /// Writes and syncs under way.
    pub(crate) operations: BTreeMap<u64, Operation>,
    /// The number of the newest of them.
    pub(crate) next_operation: u64,
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
}

/// A checkpoint under way.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointWork {
    pub(crate) lsn: Lsn,
    pub(crate) bytes: Vec<u8>,
    pub(crate) state_hash: u64,
}

impl<H: Handler> Life<H> {
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

impl<S: Subject> World<S> {
    // ---- starting

    pub(crate) fn start(&mut self) -> Result<(), Violation> {
        if self.life.is_some() {
            return Ok(());
        }
        if !self.ending {
            self.jump_clock();
            let early = self.random.chance(250);
            let mean = if early { 60 } else { self.fault_rates.crash_points_mean };
            let drawn = 1 + self.random.below(2 * mean);
            let points = match &self.plan.crashes {
                None => Some(drawn),
                Some(planned) => planned.get(self.fuses.len()).copied(),
            };
            self.fuses.push(points.unwrap_or(u64::MAX));
            self.disk.set_fuse(points);
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
        if !self.plan.has(Trouble::Clock) {
            return;
        }
        if self.random.chance(200) {
            let skew_ns =
                self.random.below(600 * MILLISECOND).cast_signed() - 300 * MILLISECOND.cast_signed();
            self.wall_skew_ns = skew_ns;
        }
        // It was down until a timer was due: nobody waits for that.
        if !self.subject.waits_for_timers() && self.random.chance(300) {
            let due = self.oracle.order.model.timers.values().map(|(due, _)| *due).min();
            let ahead_ns = due.map_or(0, |due| due.0.saturating_sub(self.wall().0));
            self.wall_skew_ns += ahead_ns.cast_signed();
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
            handler: self.subject.handler(),
            journal,
            report: &report,
            storage: &mut self.disk,
            catalog: &catalog,
            now: wall,
            roll_back: None,
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
        self.reached.add(Reach::StartedOnFullDisk, u64::from(process.journal().end() == report.end));
        self.reached.add(Reach::ReplayedAfterSeal, u64::from(report.sealed && recovery.replayed > 0));
        let lives = self.lives;
        self.oracle.story.tell(|| life_told(lives, &recovery));
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
        let bytes = ring_bytes(page_bytes, pages);
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
            // No room for a verdict, without which nothing can go on: the owner makes space and starts it again.
            RecoverError::Append(AppendError::Full { .. }) => NoStart::Fault,
            RecoverError::Read(mainstay_journal::reader::ReadError::Storage(error)) => storage_fault(&error),
            _ if self.disk.crashed() => NoStart::Crashed(Reach::CrashInRecovery),
            error @ (RecoverError::Diverged { .. }
            | RecoverError::DivergedBefore { .. }
            | RecoverError::PanicsInReplay { .. }) => {
                NoStart::Violated(Violation::new(Property::Deterministic, error.to_string()))
            }
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
        let gave_up = out.iter().any(|effect| matches!(effect, Effect::Abandon(_)));
        self.oracle.stepped(&life.process, gave_up, &mut self.reached)?;
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
        let mut effects = effects.into_iter();
        while let Some(effect) = effects.next() {
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
                    let scene = Scene { disk: &self.disk, catalog: &life.catalog };
                    let takes_back = |later: &Effect| matches!(later, Effect::Withdraw { output: of, .. } if *of == output.id);
                    let withdrawn = effects.as_slice().iter().any(takes_back);
                    self.oracle.sent(scene, &output, withdrawn, &mut self.reached)?;
                    self.let_out(output, withdrawn)?;
                }
                Effect::Withdraw { output, .. } => self.withdraw(output),
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
                Effect::Abandon(abandoned) => {
                    let told = || format!("the handler panics: {}", abandoned.message);
                    self.oracle.story.tell(told);
                    self.reached.hit(Reach::Abandoned);
                    self.die();
                    self.after_up_to(MILLISECOND, Happening::Start);
                    return Ok(());
                }
                Effect::Frames { .. }
                | Effect::HangUp { .. }
                | Effect::Spill(_)
                | Effect::Keep { .. }
                | Effect::Confirm { .. }
                | Effect::Lost(_)
                | Effect::RollBack(_)
                | Effect::SaveSnapshot { .. }
                | Effect::PublishSnapshot { .. }
                | Effect::DiscardSnapshot { .. } => {
                    unreachable!("a process that stands alone has no peers")
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
            self.oracle.story.tell(|| "it is asked to stop".to_owned());
        }
        self.step(if stop { Event::Stop } else { Event::CheckpointNow })
    }

    /// What an owner does who sees that the journal is poisoned.
    fn restart_if_poisoned(&mut self) {
        let poisoned = self
            .life
            .as_ref()
            .is_some_and(|life| matches!(life.process.journal().health(), Health::Poisoned { .. }));
        if poisoned && (self.ending || self.random.chance(300)) {
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
            crate::clients::CallKind::Query(_) => Event::Query { token, body: call.body.clone() },
            crate::clients::CallKind::Resolve(output, resolution) => {
                Event::Resolve { token, output, resolution }
            }
        }
    }
}

fn life_told(life: u64, recovery: &Recovery) -> String {
    let from = if recovery.checkpoint.is_some() { "its newest checkpoint" } else { "nothing" };
    format!("life {life} begins from {from} and replays {} deliveries", recovery.replayed)
}

fn storage_fault(error: &StorageError) -> NoStart {
    match error.failure {
        Failure::Crashed => NoStart::Crashed(Reach::CrashInRecovery),
        _ => NoStart::Fault,
    }
}
