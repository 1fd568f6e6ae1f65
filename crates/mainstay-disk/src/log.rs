//! One journal shared by many threads: append, and commit with group commit led by whoever needs it first.
//!
//! Whoever commits first leads: flushes, writes and syncs on this very thread, then wakes whom that has covered, and one of those who
//! came meanwhile, the next leader. A covered writer wakes, sees the durable mark and goes on without taking a lock. Where many share a
//! round, to put them all to sleep and to wake them takes longer than a quick disk does: they stay awake instead, and offer their core to
//! others all the time. Who does what is decided in [`crate::rounds`].

use crate::awake::{LONGEST, Watched};
use crate::committed::{Committed, Waiting};
use crate::disk::Disk;
use crate::futex::Futex;
use crate::mapped_pages::MappedPages;
use crate::open::OpenDisk;
use crate::precedence::Precedence;
use crate::rounds::{Rounds, Turn, Woken};
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::journal::{AppendError, Appended, Health, Journal};
use mainstay_journal::record::Kind;
use mainstay_journal::stats::Stats;
use mainstay_journal::storage::Failure;
use mainstay_types::id::{InstanceId, Lsn};
use mainstay_types::level::Level;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// A journal that many threads append to. Clones are the same journal.
///
/// Dropping the last one stops without a seal, as a crash would; [`Log::seal`] is the clean stop.
#[derive(Clone, Debug)]
pub struct Log {
    // Let go of before the owner, whose last reference is then the last but for callbacks.
    shared: Arc<Shared>,
    _owner: Arc<Owner>,
}

/// Ends callbacks before the disk ends, so that it ends on the thread that drops the last [`Log`]: when that drop
/// returns, the directory is free.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.waiting.end();
        self.shared.disk.clear_notify();
    }
}

/// What a [`Log`] counts besides the journal's own [`Stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// The journal's own counters.
    pub journal: Stats,
    /// Time that appends waited for a free page, in nanoseconds, all threads together.
    pub stall_ns: u64,
    /// Appends that waited for a free page, however often they tried.
    pub stalled_appends: u64,
    /// Rounds of group commit.
    pub rounds: u64,
    /// Rounds whose end found one awake to lead the next.
    pub rounds_handed_on_awake: u64,
    /// Rounds that waited, awake, for tasks which were expected, until all had come.
    pub rounds_gathered: u64,
    /// Rounds that waited so and had not all of them in time, or whose core others wanted.
    pub rounds_missed: u64,
    /// Commits that found their record durable already.
    pub commits_at_once: u64,
}

impl LogStats {
    /// The share of filled pages at whose end the writer had to wait: the *buffer full rate* of Lee 2001.
    #[must_use]
    pub fn full_rate(&self) -> f64 {
        if self.journal.pages_closed == 0 {
            return 0.0;
        }
        self.stalled_appends as f64 / self.journal.pages_closed as f64
    }
}

/// More is kept than was asked for; nothing is lost. The log says so where trimming failed, and the next [`Log::trim`] asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal keeps everything from {kept_from} on, and was to be trimmed to {first}")]
pub struct NotTrimmed {
    /// The first address that is kept.
    pub kept_from: Lsn,
    /// The first that was to be.
    pub first: Lsn,
}

/// The record may not survive a power loss, and never will be durable in this life. Whether it is found after a restart
/// is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// A write or a sync failed.
    #[error(
        "the journal is poisoned since a write or sync failed ({failure}): restart to go on from what is durable"
    )]
    Poisoned {
        /// What failed.
        failure: Failure,
    },
}

/// The journal was not sealed; it can be opened again all the same, as after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The seal could not be appended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// What was appended could not be made durable.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The disk's threads ahead of those that append.
    precedence: Precedence,
    disk: Disk,
    buffer_only: bool,
    /// The journal's durable mark, for those who do not want the lock.
    durable: AtomicU64,
    /// Where commits sleep: the words of [`Rounds`].
    words: [Futex; 2],
    /// Where stalled appends and a leader without work sleep: changes whenever the disk has completed something.
    progress: Futex,
    /// Commits that wait as futures.
    waiting: Waiting,
    stall_ns: AtomicU64,
    stalled_appends: AtomicU64,
    commits_at_once: AtomicU64,
}

#[derive(Debug)]
struct State {
    journal: Journal<MappedPages>,
    out: Vec<DiskEffect>,
    events: Vec<DiskEvent>,
    rounds: Rounds,
    /// Whether anyone may sleep on `progress`.
    progress_sleepers: bool,
}

impl Log {
    /// Shares what was opened. The storage stays usable beside it, for checkpoints.
    #[must_use]
    pub fn new(opened: OpenDisk) -> Self {
        let OpenDisk { journal, disk, .. } = opened;
        let (durable, buffer_only) = (journal.durable(), journal.is_buffer_only());
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                journal,
                out: Vec::new(),
                events: Vec::new(),
                rounds: Rounds::new(durable),
                progress_sleepers: false,
            }),
            precedence: Precedence::default(),
            disk,
            buffer_only,
            durable: AtomicU64::new(durable.0),
            words: [Futex::default(), Futex::default()],
            progress: Futex::default(),
            waiting: Waiting::default(),
            stall_ns: AtomicU64::new(0),
            stalled_appends: AtomicU64::new(0),
            commits_at_once: AtomicU64::new(0),
        });
        let notified = Arc::downgrade(&shared);
        shared.disk.set_notify(Box::new(move || {
            if let Some(shared) = notified.upgrade() {
                shared.take_completions();
            }
        }));
        // What was completed before there was anyone to be told.
        shared.take_completions();
        Self { _owner: Arc::new(Owner { shared: Arc::clone(&shared) }), shared }
    }

    /// Appends a record of `parts`: level `Process` when this returns. Waits while no page is free, which is counted as
    /// stall time.
    ///
    /// # Errors
    /// As [`Journal::append`], but never [`AppendError::Stalled`].
    #[inline]
    pub fn append(&self, kind: Kind, instance: InstanceId, parts: &[&[u8]]) -> Result<Appended, AppendError> {
        self.shared.precedence.give_way();
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let appended = state.journal.append(kind, instance, parts, &mut state.out);
        if !state.out.is_empty() {
            self.shared.submit(state);
        }
        match appended {
            Err(AppendError::Stalled) => self
                .shared
                .append_when_free(guard, |state| state.journal.append(kind, instance, parts, &mut state.out)),
            appended => appended,
        }
    }

    /// Like [`Self::append`], for a thread that must not wait for the disk.
    ///
    /// # Errors
    /// As [`Journal::append`]: with [`AppendError::Stalled`] nothing was appended, and no page is free yet.
    pub fn try_append(
        &self,
        kind: Kind,
        instance: InstanceId,
        parts: &[&[u8]],
    ) -> Result<Appended, AppendError> {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let appended = state.journal.append(kind, instance, parts, &mut state.out);
        self.shared.submit(state);
        appended
    }

    /// Returns when every record that ends at or below `end` survives what `level` says. For `Memory` and `Process`
    /// that is at once: the append itself did it.
    ///
    /// # Errors
    /// See [`CommitError`].
    ///
    /// # Panics
    /// At level peers: a log by itself has no region that keeps it. At level disk if it only buffers and never writes.
    #[inline]
    pub fn commit(&self, end: Lsn, level: Level) -> Result<(), CommitError> {
        self.assert_reaches(level);
        if level == Level::Disk { self.shared.commit(end) } else { Ok(()) }
    }

    fn assert_reaches(&self, level: Level) {
        assert!(level != Level::Peers, "a log by itself has no region that keeps it");
        assert!(level != Level::Disk || !self.shared.buffer_only, "a journal that only buffers never writes");
    }

    /// As [`Log::commit`], for a task: whoever polls it does not wait for the disk. The first one starts a thread, which
    /// commits for all that wait so.
    ///
    /// # Errors
    /// See [`CommitError`].
    ///
    /// # Panics
    /// As that.
    pub fn committed(&self, end: Lsn, level: Level) -> Committed {
        self.assert_reaches(level);
        Committed::new(self.clone(), end, level)
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        &self.shared.waiting
    }

    /// The thread keeps the journal, and not its owner: it ends with the last [`Log`].
    pub(crate) fn spawn_committer(&self) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new()
            .name("journal-commit".to_owned())
            .spawn(move || shared.waiting.serve(|end| shared.commit(end), || shared.durable()))
    }

    /// Every record that ends at or below this is past a sync.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.shared.durable()
    }

    /// The address after the last record.
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.shared.lock().journal.end()
    }

    /// The first byte still kept.
    #[must_use]
    pub fn first(&self) -> Lsn {
        self.shared.lock().journal.first()
    }

    /// Whether records are accepted.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.lock().journal.health()
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let (rounds_gathered, rounds_missed) = self.shared.waiting.gathered();
        let state = self.shared.lock();
        LogStats {
            journal: *state.journal.stats(),
            stall_ns: self.shared.stall_ns.load(Ordering::Relaxed),
            stalled_appends: self.shared.stalled_appends.load(Ordering::Relaxed),
            rounds: state.rounds.count(),
            rounds_handed_on_awake: state.rounds.handed_on_awake(),
            rounds_gathered,
            rounds_missed,
            commits_at_once: self.shared.commits_at_once.load(Ordering::Relaxed),
        }
    }

    /// The disk beneath.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        &self.shared.disk
    }

    /// Says that nothing below `first` is needed any more, because a durable checkpoint covers it; segments below are
    /// recycled in the background.
    pub fn trim(&self, first: Lsn) {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        state.journal.trim(first, &mut state.out);
        self.shared.submit(state);
    }

    /// Returns when nothing below `first` is kept.
    ///
    /// # Errors
    /// [`NotTrimmed`] when nobody works on that, as after it failed.
    pub fn wait_trimmed(&self, first: Lsn) -> Result<(), NotTrimmed> {
        let mut state = self.shared.lock();
        while state.journal.first() < first && state.journal.is_trimming() {
            state = self.shared.wait_for_progress(state);
        }
        let kept_from = state.journal.first();
        if kept_from < first { Err(NotTrimmed { kept_from, first }) } else { Ok(()) }
    }

    /// Asks again for a segment that could not be made ready.
    pub fn retry(&self) {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        state.journal.retry(&mut state.out);
        self.shared.submit(state);
    }

    /// The clean stop: makes everything durable, then says so in the journal. Nothing can be appended afterwards.
    ///
    /// # Errors
    /// See [`SealError`].
    ///
    /// # Panics
    /// If the journal only buffers and never writes.
    pub fn seal(&self) -> Result<(), SealError> {
        self.assert_reaches(Level::Disk);
        self.shared.commit(self.end())?;
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let sealed = state.journal.seal(&mut state.out);
        self.shared.submit(state);
        let sealed = match sealed {
            Err(AppendError::Stalled) => {
                self.shared.append_when_free(guard, |state| state.journal.seal(&mut state.out))
            }
            sealed => {
                drop(guard);
                sealed
            }
        };
        Ok(self.shared.commit(sealed?.end)?)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn durable(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire))
    }

    /// Hands what the journal asked for to the background.
    fn submit(&self, state: &mut State) {
        for effect in state.out.drain(..) {
            self.disk.submit(effect);
        }
    }

    /// Called by the disk's threads.
    fn take_completions(&self) {
        let mut guard = self.precedence.first(|| self.lock());
        let state = &mut *guard;
        let durable = state.journal.durable();
        self.disk.poll(&mut state.events);
        for event in state.events.drain(..) {
            state.journal.step(event, &mut state.out);
        }
        self.submit(state);
        let changed = state.journal.durable() > durable || hopeless(state).is_some();
        let wake_all = changed && state.rounds.wake_without_round();
        self.publish(guard, wake_all);
        if wake_all {
            self.words.iter().for_each(Futex::wake_all);
        }
    }

    /// Makes the durable mark known, changes the words of the rounds if told to, and wakes who waits for the disk.
    fn publish(&self, mut state: MutexGuard<'_, State>, change_words: bool) {
        // The mark first: who is awake and sees its word change need not take the lock to find its record durable.
        self.durable.store(state.journal.durable().0, Ordering::Release);
        if change_words {
            self.words.iter().for_each(Futex::change);
        }
        self.progress.change();
        let wake = std::mem::take(&mut state.progress_sleepers);
        drop(state);
        if wake {
            self.progress.wake_all();
        }
    }

    fn wait_for_progress<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.progress_sleepers = true;
        let seen = self.progress.look();
        drop(state);
        self.progress.wait(seen);
        self.lock()
    }

    #[cold]
    fn append_when_free<'a>(
        &'a self,
        mut guard: MutexGuard<'a, State>,
        mut append: impl FnMut(&mut State) -> Result<Appended, AppendError>,
    ) -> Result<Appended, AppendError> {
        let since = Instant::now();
        let appended = loop {
            guard = self.wait_for_progress(guard);
            let appended = append(&mut guard);
            self.submit(&mut guard);
            if appended != Err(AppendError::Stalled) {
                break appended;
            }
        };
        drop(guard);
        let stall_ns = u64::try_from(since.elapsed().as_nanos()).expect("a stall is below 584 years");
        self.stall_ns.fetch_add(stall_ns, Ordering::Relaxed);
        self.stalled_appends.fetch_add(1, Ordering::Relaxed);
        appended
    }

    fn commit(&self, end: Lsn) -> Result<(), CommitError> {
        if self.durable() >= end {
            self.commits_at_once.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let mut state = self.lock();
        state.rounds.arrive();
        loop {
            if state.journal.durable() >= end {
                return Ok(());
            }
            if let Some(error) = hopeless(&state) {
                return Err(error);
            }
            let (word, stay_awake) = match state.rounds.turn(end) {
                Turn::Lead => {
                    state = self.lead(state);
                    continue;
                }
                Turn::Sleep(word) => (word, false),
                Turn::Watch(word) => (word, true),
            };
            let seen = self.words[word].look();
            drop(state);
            if stay_awake {
                let watched = self.words[word].watch(seen, LONGEST);
                if watched == Watched::Happened && self.durable() >= end {
                    return Ok(());
                }
                state = self.lock();
                if watched == Watched::Late {
                    state.rounds.late();
                }
                if self.words[word].look() != seen {
                    continue;
                }
                state.rounds.gave_up(word);
                drop(state);
            }
            self.words[word].wait(seen);
            if self.durable() >= end {
                return Ok(());
            }
            state = self.lock();
        }
    }

    /// Makes everything appended so far durable, or finds that impossible.
    fn lead<'a>(&'a self, mut guard: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let state = &mut *guard;
        let target = state.journal.flush(&mut state.out);
        state.rounds.begin(target);
        while guard.journal.durable() < target && hopeless(&guard).is_none() {
            match self.take_inline(&mut guard) {
                Some(effect) => {
                    drop(guard);
                    let event = self.disk.perform(&effect);
                    guard = self.lock();
                    let state = &mut *guard;
                    state.journal.step(event, &mut state.out);
                }
                // Pages are still being written in the background; what follows them comes with their completion.
                None => guard = self.wait_for_progress(guard),
            }
        }
        self.submit(&mut guard);
        self.finish_round(guard);
        self.lock()
    }

    /// The effect that the leader performs itself, so that no other thread has to wake up for it; the rest goes to the
    /// background.
    fn take_inline(&self, state: &mut State) -> Option<DiskEffect> {
        let mut inline = None;
        for effect in state.out.drain(..) {
            match effect {
                DiskEffect::Write { durable: true, .. } | DiskEffect::Sync { .. } if inline.is_none() => {
                    inline = Some(effect);
                }
                effect => self.disk.submit(effect),
            }
        }
        inline
    }

    fn finish_round(&self, mut state: MutexGuard<'_, State>) {
        let (durable, is_hopeless) = (state.journal.durable(), hopeless(&state).is_some());
        let ended = state.rounds.end(durable, is_hopeless);
        // The next leader first: its write should be on its way while the others are still waking up.
        let waking = [ended.gathered, ended.covered];
        self.publish(state, true);
        for (word, woken) in waking {
            match woken {
                Woken::Nobody => {}
                Woken::One => self.words[word].wake_one(),
                Woken::All => self.words[word].wake_all(),
            }
        }
    }
}

/// Why nothing more becomes durable. A full disk is no reason: what was appended has its place.
fn hopeless(state: &State) -> Option<CommitError> {
    match state.journal.health() {
        Health::Poisoned { failure } => Some(CommitError::Poisoned { failure }),
        Health::Full { .. } | Health::Good | Health::Sealed => None,
    }
}
