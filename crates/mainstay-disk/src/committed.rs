//! Commits as futures: who has no thread to wait with leaves a waker with one thread that waits for all of them.
//!
//! ```text
//!   poll ─── durable already? ──yes──> ready
//!              │ no
//!            leave the waker ──> the committer: gather, commit the least that is wanted, wake all that this has covered, again
//! ```
//!
//! The committer commits as any thread does: it leads a round of group commit, or sleeps through one. To wake a task costs
//! a tenth of what it costs to wake a thread, so that many writers are better off as tasks. They are also back that much sooner, so that the
//! committer stays awake for them before the next round: [`crate::gathering`].

use crate::awake::{Watched, watch};
use crate::futex::Futex;
use crate::gathering::Gathering;
use crate::log::{CommitError, Log};
use mainstay_types::id::Lsn;
use mainstay_types::level::Level;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Instant;

/// A commit under way; see [`Log::committed`]. Dropping it withdraws nothing.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Committed {
    log: Log,
    end: Lsn,
    level: Level,
    ticket: Option<u64>,
}

impl Committed {
    pub(crate) fn new(log: Log, end: Lsn, level: Level) -> Self {
        Self { log, end, level, ticket: None }
    }
}

impl Future for Committed {
    type Output = Result<(), CommitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.level != Level::Disk || self.log.durable() >= self.end {
            return Poll::Ready(Ok(()));
        }
        let this = &mut *self;
        match this.log.waiting().leave(this.end, &mut this.ticket, context.waker(), &this.log) {
            Left::Waiting => Poll::Pending,
            Left::Durable => Poll::Ready(Ok(())),
            Left::Failed(error) => Poll::Ready(Err(error)),
            // No thread can be had: this one waits, as for a blocking commit.
            Left::Alone => Poll::Ready(this.log.commit(this.end, Level::Disk)),
        }
    }
}

/// Who waits for a commit without a thread.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    state: Mutex<State>,
    /// Where the committer sleeps while nobody waits.
    asked: Futex,
    /// How many wait, for the committer, which does not take the lock while it gathers.
    count: AtomicUsize,
    /// See [`crate::log::LogStats`].
    gathered: AtomicU64,
    missed: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// One for each future that waits: their number is the caller's, and so is its limit.
    entries: Vec<Entry>,
    next_ticket: u64,
    /// Whether the committer may sleep.
    sleeping: bool,
    ended: bool,
    failed: Option<CommitError>,
    committer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Entry {
    ticket: u64,
    end: Lsn,
    waker: Waker,
}

enum Left {
    Waiting,
    Durable,
    Failed(CommitError),
    Alone,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a waker, or puts a newer one in its place; it is woken once `end` is durable or cannot be any more.
    fn leave(&self, end: Lsn, ticket: &mut Option<u64>, waker: &Waker, log: &Log) -> Left {
        let mut state = self.lock();
        if let Some(error) = state.failed {
            return Left::Failed(error);
        }
        // The round that covered it may have been looked through already.
        if log.durable() >= end {
            return Left::Durable;
        }
        let entry = ticket.and_then(|ticket| state.entries.iter_mut().find(|entry| entry.ticket == ticket));
        if let Some(entry) = entry {
            entry.waker.clone_from(waker);
            return Left::Waiting;
        }
        if state.committer.is_none() {
            match log.spawn_committer() {
                Ok(committer) => state.committer = Some(committer),
                Err(error) => {
                    tracing::warn!(%error, "no thread to commit with: tasks wait for the disk themselves");
                    return Left::Alone;
                }
            }
        }
        let given = state.next_ticket;
        state.next_ticket += 1;
        *ticket = Some(given);
        state.entries.push(Entry { ticket: given, end, waker: waker.clone() });
        self.count.store(state.entries.len(), Ordering::Relaxed);
        let wake = std::mem::take(&mut state.sleeping);
        drop(state);
        if wake {
            self.asked.change();
            self.asked.wake_one();
        }
        Left::Waiting
    }

    /// The committer's thread: commits by `commit` and asks `durable` how far that went, until told to end.
    pub(crate) fn serve(&self, commit: impl Fn(Lsn) -> Result<(), CommitError>, durable: impl Fn() -> Lsn) {
        let mut covered = Vec::new();
        let mut gathering = Gathering::new();
        while let Some(least) = self.gather(&mut gathering) {
            // Made durable by somebody else meanwhile, it takes no time, which says nothing of a round.
            let known = durable() >= least;
            let begun = Instant::now();
            let committed = commit(least);
            let took = begun.elapsed();
            let mut state = self.lock();
            state.failed = committed.err();
            let durable = durable();
            let mut place = 0;
            while place < state.entries.len() {
                if committed.is_err() || state.entries[place].end <= durable {
                    covered.push(state.entries.swap_remove(place).waker);
                } else {
                    place += 1;
                }
            }
            self.count.store(state.entries.len(), Ordering::Relaxed);
            if !known {
                gathering.ended(took, covered.len(), state.entries.len());
            }
            drop(state);
            covered.drain(..).for_each(Waker::wake);
        }
    }

    /// Waits for the commits of the next round; the least that is waited for. `None` at the end.
    fn gather(&self, gathering: &mut Gathering) -> Option<Lsn> {
        let waiting = || self.count.load(Ordering::Relaxed);
        if let Some(longest) = gathering.awaits_one() {
            gathering.one_came(watch(longest, || waiting() > 0));
        }
        let least = self.next_wanted()?;
        if let Some(expected) = gathering.awaits_all() {
            let watched = watch(expected.longest, || waiting() >= expected.count);
            let counter = if watched == Watched::Happened { &self.gathered } else { &self.missed };
            counter.fetch_add(1, Ordering::Relaxed);
            gathering.all_came(watched);
        }
        Some(least)
    }

    /// Rounds gathered and missed: see [`crate::log::LogStats`].
    pub(crate) fn gathered(&self) -> (u64, u64) {
        (self.gathered.load(Ordering::Relaxed), self.missed.load(Ordering::Relaxed))
    }

    /// Sleeps until somebody waits; the least that is waited for. `None` at the end.
    fn next_wanted(&self) -> Option<Lsn> {
        loop {
            let mut state = self.lock();
            if state.ended {
                return None;
            }
            if let Some(least) = state.entries.iter().map(|entry| entry.end).min() {
                return Some(least);
            }
            state.sleeping = true;
            let seen = self.asked.look();
            drop(state);
            self.asked.wait(seen);
        }
    }

    /// Ends the committer, if there is one. Nobody waits any more: a future that waits holds the log.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let committer = state.committer.take();
        drop(state);
        self.asked.change();
        self.asked.wake_one();
        // The last holder of the log may have gone with a waker, on the committer itself.
        if let Some(committer) = committer
            && committer.thread().id() != std::thread::current().id()
        {
            let _ = committer.join();
        }
    }
}
