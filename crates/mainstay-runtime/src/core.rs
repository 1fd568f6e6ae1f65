//! What the one who drives has in hand: the process, its disk, and who waits for its replies.

use crate::acknowledgement::Noted;
use crate::checkpoint_writer::CheckpointWriter;
use crate::clock::Clock;
use crate::driver::Shared;
use crate::inbox::Item;
use crate::keep::Keep;
use crate::peering::Peering;
use crate::replies::{Replies, Said};
use mainstay_disk::disk::Disk;
use mainstay_disk::file_storage::FileStorage;
use mainstay_disk::mapped_pages::MappedPages;
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::fill::read_bytes;
use mainstay_journal::journal::{Health, Journal};
use mainstay_journal::reader::ReadError;
use mainstay_process::checkpoint::{Saved, final_name, publish, temporary_name};
use mainstay_process::effect::{Abandoned, Effect, Reply, Spill};
use mainstay_process::event::{CheckpointEvent, Event, ReplyToken, Request, SpillEvent, Spilled};
use mainstay_process::handler::AnyHandler;
use mainstay_process::loss::RollBack;
use mainstay_process::process::Process;
use mainstay_types::id::Lsn;
use mainstay_types::level::Level;
use mainstay_types::time::Time;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

/// Of so many steps one is measured, for [`crate::prediction`]: two looks at the clock take as long as a small handler. A prime,
/// so that of steps that take turns each is measured.
const STEPS_PER_MEASURED: u32 = 17;

/// The process and everything that its effects are performed with.
pub(crate) struct Core {
    pub(crate) process: Process<AnyHandler, MappedPages>,
    pub(crate) replies: Replies,
    /// What arrived, being handed over; swapped with the inbox, so that neither allocates in the long run.
    pub(crate) batch: Vec<Item>,
    pub(crate) peering: Peering,
    for_keep: ForKeep,
    pub(crate) disk: Arc<Disk>,
    pub(crate) storage: FileStorage,
    /// Effects not performed yet.
    effects: Vec<Effect>,
    completed: Vec<DiskEvent>,
    /// Appends that had found no free page when last looked at, and since when there is one that waits.
    stalls_seen: u64,
    stalled_since: Option<Instant>,
    checkpoint_started: Option<Instant>,
    /// What writes and publishes checkpoints and parts of snapshots.
    pub(crate) background: Vec<JoinHandle<()>>,
    /// Whether there is a recording, and answers are given at level `Disk`.
    records_acknowledgements: bool,
    /// Steps so far, to measure some of them.
    steps: u32,
}

/// Why a process gave itself up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GaveUp {
    /// Its handler panicked.
    Panicked(Abandoned),
    /// It depends on a state that another node lost.
    RolledBack(RollBack),
}

/// How a round ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// The process goes on. `blocked`: this thread has waited for the disk.
    Done { blocked: bool },
    /// The process gave itself up, to be recovered in place.
    GaveUp(GaveUp),
    /// The process has stopped cleanly.
    Stopped,
}

impl Core {
    pub(crate) fn new(
        process: Process<AnyHandler, MappedPages>,
        disk: Disk,
        storage: FileStorage,
        first_effects: Vec<Effect>,
        level: Level,
        peering: Peering,
        keep: Option<Keep>,
    ) -> Self {
        Self {
            peering,
            for_keep: ForKeep { keep, ..ForKeep::default() },
            stalls_seen: process.journal().stats().stalls,
            records_acknowledgements: level == Level::Disk && storage.recorder().is_some(),
            process,
            replies: Replies::default(),
            batch: Vec::new(),
            disk: Arc::new(disk),
            storage,
            effects: first_effects,
            completed: Vec::new(),
            stalled_since: None,
            checkpoint_started: None,
            background: Vec::new(),
            steps: 0,
        }
    }

    /// The disk, to be told of completions by.
    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Whether nothing follows in the journal, and the next life has nothing to replay.
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self.process.journal().health(), Health::Sealed)
    }

    /// Hands over all that is at hand, then says that it is drained: one sync for all of it.
    pub(crate) fn round(&mut self, shared: &Arc<Shared>) -> Round {
        let mut ended = Performed::default();
        self.perform(shared, &mut ended);
        let mut batch = std::mem::take(&mut self.batch);
        for item in batch.drain(..) {
            let Some(event) = self.event(item) else { continue };
            match event {
                // A port reports once: the recovered process must hear of it.
                Event::Output { .. } | Event::OutputInDoubt { .. } if ended.gave_up.is_some() => {
                    shared.push_event(event);
                }
                _ => self.step(shared, event, &mut ended),
            }
        }
        self.batch = batch;
        let mut completed = std::mem::take(&mut self.completed);
        self.disk.poll(&mut completed);
        for event in completed.drain(..) {
            self.step(shared, Event::Disk(event), &mut ended);
        }
        self.completed = completed;
        self.step(shared, Event::Drained, &mut ended);
        self.peering.send();
        self.for_keep.hand_over();
        self.measure_stall(shared);
        match ended {
            Performed { gave_up: Some(gave_up), .. } => Round::GaveUp(gave_up),
            Performed { stopped: true, .. } => Round::Stopped,
            Performed { blocked, .. } => Round::Done { blocked },
        }
    }

    fn event(&mut self, item: Item) -> Option<Event> {
        Some(match item {
            Item::Call { reply, identity, body } => {
                let noted = self.records_acknowledgements.then(|| Noted::new(&identity, &body));
                Event::Request(Request { token: self.replies.expect_noted(reply, noted), identity, body })
            }
            Item::Query { reply, body } => Event::Query { token: self.replies.expect(reply), body },
            Item::Register { reply } => Event::Register { token: self.replies.expect(reply) },
            Item::Resolve { reply, output, resolution } => {
                Event::Resolve { token: self.replies.expect(reply), output, resolution }
            }
            Item::Event(event) => event,
            Item::Peer(happened) => return self.peering.event(happened),
            Item::Look(look) => {
                look(self);
                return None;
            }
        })
    }

    fn step(&mut self, shared: &Arc<Shared>, event: Event, ended: &mut Performed) {
        let now = shared.clock.now();
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(STEPS_PER_MEASURED) {
            let (begun, executed) = (Instant::now(), self.process.executed());
            self.process.step(now, event, &mut self.effects);
            shared.watch.pace.handled(self.process.executed().0 - executed.0, begun.elapsed());
        } else {
            self.process.step(now, event, &mut self.effects);
        }
        self.perform(shared, ended);
    }

    /// The file of a checkpoint.
    pub(crate) fn checkpoint_file(&self, lsn: Lsn) -> PathBuf {
        self.storage.path(&final_name(lsn))
    }

    /// Performs effects, and what their completions lead to, until nothing is left to do at once.
    fn perform(&mut self, shared: &Arc<Shared>, ended: &mut Performed) {
        let mut completed = Vec::new();
        while !self.effects.is_empty() {
            let mut effects = std::mem::take(&mut self.effects);
            for effect in effects.drain(..) {
                match effect {
                    Effect::Disk(effect @ DiskEffect::Write { durable: true, .. }) => {
                        // On the spot: another thread would take longer to wake up than the disk takes to write.
                        // What other nodes wait for does not wait for this disk.
                        self.peering.send();
                        self.for_keep.hand_over();
                        ended.blocked = true;
                        shared.watch.durable_writes.fetch_add(1, Ordering::Relaxed);
                        completed.push(self.disk.perform(&effect));
                    }
                    Effect::Disk(effect) => self.disk.submit(effect),
                    Effect::Reply { token, reply } => {
                        self.record_acknowledgement(token, &reply);
                        if self.replies.say(token, Said::Reply(reply)) {
                            shared.in_flight.fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                    Effect::Output(output) => shared.carry(output),
                    Effect::Withdraw { port, output } => shared.withdraw(port, output),
                    Effect::SaveCheckpoint { lsn } => self.save_checkpoint(shared, lsn),
                    Effect::PublishCheckpoint { lsn } => self.publish_checkpoint(shared, lsn),
                    Effect::SaveSnapshot { snapshot } => self.save_part(shared, snapshot),
                    Effect::PublishSnapshot { snapshot } => self.publish_part(shared, snapshot),
                    Effect::DiscardSnapshot { snapshot } => self.discard_part(snapshot),
                    Effect::Wake(at) => shared.wake_at(at),
                    Effect::Abandon(abandoned) => ended.gave_up = Some(GaveUp::Panicked(abandoned)),
                    Effect::Frames { to, bytes } => {
                        let spare = self.peering.put(to, bytes);
                        self.process.reuse(to, spare);
                    }
                    Effect::HangUp { peer, why } => {
                        tracing::warn!(%peer, %why, "the connection to a node is closed");
                        self.peering.hang_up(peer);
                    }
                    Effect::Spill(spill) => self.spill(shared, spill),
                    Effect::Lost(loss) => {
                        tracing::error!(%loss, "more nodes failed at once than the logging policy survives");
                    }
                    Effect::RollBack(rolled_back) => ended.gave_up = Some(GaveUp::RolledBack(rolled_back)),
                    Effect::Keep { from, to } => {
                        let log = (self.process.journal(), &mut self.storage, &*self.disk);
                        if self.for_keep.bytes.is_empty() {
                            self.for_keep.from = from;
                        }
                        copy_log(log, (from, to), &mut self.for_keep.bytes);
                        self.for_keep.ends.push(to);
                    }
                    Effect::Confirm { number } => self.for_keep.confirm = number,
                    Effect::Stopped => ended.stopped = true,
                }
            }
            self.effects = effects;
            for event in completed.drain(..) {
                self.process.step(shared.clock.now(), Event::Disk(event), &mut self.effects);
            }
        }
    }

    /// Before the answer leaves: a cut after it must find what it says.
    fn record_acknowledgement(&mut self, token: ReplyToken, reply: &Reply) {
        if let (Some(recorder), Reply::Answer { answer, .. }) = (self.storage.recorder(), reply)
            && let Some(noted) = self.replies.take_noted(token)
        {
            recorder.acknowledged(&noted.answered(answer));
        }
    }

    fn save_checkpoint(&mut self, shared: &Arc<Shared>, lsn: Lsn) {
        self.checkpoint_started = Some(Instant::now());
        let ended = move |saved| match saved {
            Ok(Saved { state_hash, bytes }) => {
                Event::Checkpoint(CheckpointEvent::Saved { lsn, state_hash, bytes })
            }
            Err(NotSaved { why }) => {
                tracing::warn!(%lsn, why, "a checkpoint was given up; the next is taken by schedule");
                Event::Checkpoint(CheckpointEvent::Failed { lsn })
            }
        };
        let failed = Event::Checkpoint(CheckpointEvent::Failed { lsn });
        self.save_in_background(shared, "checkpoint-save", temporary_name(lsn), failed, ended);
    }

    /// Has a child write the state of this moment to the file `file`, and waits for it beside the steps; what came of it is an event,
    /// `failed` if there is no thread for it.
    pub(crate) fn save_in_background(
        &mut self,
        shared: &Arc<Shared>,
        name: &str,
        file: String,
        failed: Event,
        ended: impl FnOnce(Result<Saved, NotSaved>) -> Event + Send + 'static,
    ) {
        let started = Instant::now();
        let forked =
            CheckpointWriter::fork(&self.storage.path(&file), |into| self.process.save_checked(into));
        shared.watch.checkpoint_pause.record(started.elapsed());
        let shared_by_thread = Arc::clone(shared);
        let mut storage = self.storage.clone();
        let wait = move || {
            let shared = shared_by_thread;
            let saved = forked.and_then(|writer| writer.wait(shared.checkpoint_timeout));
            let saved = saved.map_err(|error| NotSaved::of(&error)).and_then(|saved| {
                storage.wrote_file(&file).map_err(|error| NotSaved::of(&error))?;
                Ok(saved)
            });
            if saved.is_err() {
                // Space is more useful than half a state; recovery removes what this does not.
                let _ = std::fs::remove_file(storage.path(&file));
            }
            shared.push_event(ended(saved));
        };
        self.background.retain(|thread| !thread.is_finished());
        self.background.extend(shared.in_background(name, failed, wait));
    }

    fn publish_checkpoint(&mut self, shared: &Arc<Shared>, lsn: Lsn) {
        let (started, keep) = (self.checkpoint_started, self.for_keep.keep.clone());
        let publish = move |storage: &mut FileStorage, shared: &Shared| match publish(storage, lsn) {
            Ok(oldest) => {
                if let Some(keep) = &keep {
                    keep.save(lsn);
                }
                if let Some(started) = started {
                    shared.watch.checkpoint_duration.record(started.elapsed());
                }
                Event::Checkpoint(CheckpointEvent::Published { lsn, oldest })
            }
            Err(error) => {
                tracing::warn!(%lsn, %error, "a checkpoint could not be published; nothing is trimmed");
                Event::Checkpoint(CheckpointEvent::Failed { lsn })
            }
        };
        let failed = Event::Checkpoint(CheckpointEvent::Failed { lsn });
        self.publish_in_background(shared, "checkpoint-publish", failed, publish);
    }

    /// Publishes something beside the steps; what came of it is an event, `failed` if there is no thread for it.
    pub(crate) fn publish_in_background(
        &mut self,
        shared: &Arc<Shared>,
        name: &str,
        failed: Event,
        publish: impl FnOnce(&mut FileStorage, &Shared) -> Event + Send + 'static,
    ) {
        let shared_by_thread = Arc::clone(shared);
        let mut storage = self.storage.clone();
        // The lock on the directory lives as long as the disk: nothing is published into a directory of another owner.
        let disk = Arc::clone(&self.disk);
        let work = move || {
            let event = publish(&mut storage, &shared_by_thread);
            drop(disk);
            shared_by_thread.push_event(event);
        };
        self.background.extend(shared.in_background(name, failed, work));
    }

    /// Moves bodies out of memory beside the steps.
    fn spill(&self, shared: &Arc<Shared>, Spill { id, bytes }: Spill) {
        let directory = self.storage.directory().to_owned();
        let shared_by_thread = Arc::clone(shared);
        let write = move || {
            let event = match mainstay_disk::spill::write(&directory, (id.life.0, id.number), &bytes) {
                Ok(kept) => SpillEvent::Done { id, kept: Spilled::new(kept) },
                Err(error) => {
                    tracing::warn!(%error, "messages that another node pins stay in memory");
                    SpillEvent::Failed { id }
                }
            };
            shared_by_thread.push_event(Event::Spill(event));
        };
        shared.in_background("spill", Event::Spill(SpillEvent::Failed { id }), write);
    }

    /// Waits for a checkpoint that is being written or published: the next life may want the same file.
    pub(crate) fn finish_background(&mut self) {
        for thread in self.background.drain(..) {
            // Had it panicked, there would be no checkpoint, which loses nothing.
            let _ = thread.join();
        }
    }

    fn measure_stall(&mut self, shared: &Shared) {
        let stalls = self.process.journal().stats().stalls;
        if stalls > self.stalls_seen {
            self.stalls_seen = stalls;
            self.stalled_since.get_or_insert_with(Instant::now);
        } else if let Some(since) = self.stalled_since.take() {
            let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            shared.watch.stall_ns.fetch_add(ns, Ordering::Relaxed);
        }
    }
}

/// What is gathered in a round for the region that keeps the log.
#[derive(Default)]
struct ForKeep {
    keep: Option<Keep>,
    /// Where the bytes begin, if there are any.
    from: Lsn,
    bytes: Vec<u8>,
    /// Where records end among them.
    ends: Vec<Lsn>,
    confirm: u64,
    confirm_asked: u64,
}

impl ForKeep {
    fn hand_over(&mut self) {
        if let Some(keep) = &self.keep
            && (!self.bytes.is_empty() || self.confirm > self.confirm_asked)
        {
            self.confirm_asked = self.confirm;
            keep.put(self.from, &mut self.bytes, &mut self.ends, self.confirm);
        }
    }
}

/// Adds bytes of the log to `into`: page by page from the ring, or from its segment if it has been written and left the ring, as in a recovery with
/// a ring of one page.
pub(crate) fn copy_log(
    (journal, storage, disk): (&Journal<MappedPages>, &mut FileStorage, &Disk),
    (from, to): (Lsn, Lsn),
    into: &mut Vec<u8>,
) {
    let geometry = journal.geometry();
    let (mut at, page_bytes) = (from, geometry.page_bytes as usize);
    while at < to {
        let until = geometry.page_start(geometry.page_of(at) + 1).min(to);
        if journal.copy(at, until, into).is_err() {
            let read = read_bytes(storage, &disk.catalog(), (at, until), page_bytes, |bytes| {
                into.extend_from_slice(bytes);
                Ok::<(), ReadError>(())
            });
            // What cannot be had is what a crash loses: the next life finds it, or what it led to has not left.
            assert!(read.is_ok(), "what was appended is in the ring or in a segment: {read:?}");
        }
        at = until;
    }
}

/// A state was not written to its file, which is gone.
pub(crate) struct NotSaved {
    /// For people: the error with its cause.
    pub(crate) why: String,
}

impl NotSaved {
    fn of(error: &dyn std::error::Error) -> Self {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        Self { why: format!("{error}{cause}") }
    }
}

/// What performing effects has come to.
#[derive(Default)]
struct Performed {
    blocked: bool,
    gave_up: Option<GaveUp>,
    stopped: bool,
}

/// When the process next wants to be woken, for the timer.
#[derive(Debug)]
pub(crate) struct Wake {
    at: std::sync::atomic::AtomicU64,
    pub(crate) sooner: tokio::sync::Notify,
}

impl Default for Wake {
    fn default() -> Self {
        Self { at: u64::MAX.into(), sooner: tokio::sync::Notify::new() }
    }
}

impl Wake {
    /// Replaces the moment asked for before.
    pub(crate) fn set(&self, at: Time) {
        if at.0 < self.at.swap(at.0, Ordering::Relaxed) {
            self.sooner.notify_one();
        }
    }

    /// The moment asked for; `None` if there is none.
    pub(crate) fn at(&self) -> Option<Time> {
        let at = self.at.load(Ordering::Relaxed);
        (at != u64::MAX).then_some(Time(at))
    }

    /// Takes the moment away if it has come.
    pub(crate) fn take_if_due(&self, clock: &Clock) -> bool {
        let at = self.at.load(Ordering::Relaxed);
        at <= clock.now().0
            && self.at.compare_exchange(at, u64::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
