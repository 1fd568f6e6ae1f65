//! The thread that gives the region the log, batch after batch, and checkpoints in between.
//!
//! One write is under way at a time: what is appended meanwhile is the next one, so that many requests share a write when there are many, and one that is
//! alone waits for nobody. Between two writes of the log stands at most one of a checkpoint.

use super::shelf::{CHUNK_BYTES, KeptCheckpoint, PIECE_BYTES, Shelf, Surplus};
use super::{NotKept, Owner, Trouble};
use crate::driver::EndProcessOnPanic;
use mainstay_types::id::Lsn;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks whether this process is the owner still, while there is nothing to write.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Before the region is asked again that did not answer in time.
const PAUSE: Duration = Duration::from_millis(20);

/// Bytes that have been written are given back at once when there are so many of them.
const WRITTEN_BYTES_MAX: usize = 1 << 20;

/// The way to the thread; clones share it.
#[derive(Clone)]
pub(crate) struct Keep(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// There is something to do.
    work: Condvar,
    /// Something is done.
    done: Condvar,
}

/// What is asked of the thread, and what it has done. The bytes are limited by who appends them: no request is taken while
/// [`mainstay_process::config::Limits::unkept_bytes_max`] wait.
#[derive(Default)]
struct State {
    /// Behind what the thread has in hand.
    pending: Vec<u8>,
    /// Where the next bytes go.
    end: Lsn,
    confirm: u64,
    /// The life that the owner's entry shall name.
    life: u64,
    /// The last checkpoint that was published and not taken up.
    checkpoint: Option<(KeptCheckpoint, File)>,
    kept: Lsn,
    confirmed: u64,
    life_named: u64,
    saving: bool,
    ended: Option<Trouble>,
    stop: bool,
}

impl Keep {
    /// Starts the thread of a process whose log the region has up to `shelf.end`. It tells `acknowledged` up to where it has it, and what has been
    /// confirmed; and `ended`, once, that it will not go on.
    pub(super) fn start(
        shelf: Shelf,
        life: u64,
        acknowledged: impl Fn(Lsn, u64) + Send + 'static,
        ended: impl FnOnce(NotKept) + Send + 'static,
    ) -> io::Result<Self> {
        let end = shelf.end;
        let state = State { end, kept: end, life, life_named: life, ..State::default() };
        let inner = Inner { state: Mutex::new(state), work: Condvar::new(), done: Condvar::new() };
        let keep = Self(Arc::new(inner));
        let (this, name) = (keep.clone(), shelf.name().to_owned());
        let keeper = Keeper { keep: keep.clone(), base: end, shelf, shipping: Vec::new(), saving: None };
        std::thread::Builder::new().name("keep".to_owned()).spawn(move || {
            let _end = EndProcessOnPanic;
            if let Err(trouble) = keeper.run(&acknowledged) {
                let mut state = this.lock();
                state.ended = Some(trouble.clone());
                drop(state);
                this.0.done.notify_all();
                ended(NotKept { name, trouble });
            }
        })?;
        Ok(keep)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the bytes begin that are wanted next.
    pub(crate) fn end(&self) -> Lsn {
        self.lock().end
    }

    /// Takes the next bytes of the log, and the number of the last question whether this life is the present one.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>, confirm: u64) {
        let mut state = self.lock();
        state.end = state.end.plus(bytes.len() as u64);
        state.pending.append(bytes);
        state.confirm = state.confirm.max(confirm);
        drop(state);
        self.0.work.notify_one();
    }

    /// A checkpoint is published, in this file.
    pub(crate) fn checkpoint(&self, lsn: Lsn, path: &Path) {
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        match opened {
            Ok((bytes, file)) => {
                self.lock().checkpoint = Some((KeptCheckpoint { lsn: lsn.0, bytes }, file));
                self.0.work.notify_one();
            }
            Err(error) => {
                tracing::warn!(%lsn, %error, "the region is not given this checkpoint, but the next");
            }
        }
    }

    /// Waits until the owner's entry names this life and the region has the log up to `kept`, however long it takes.
    pub(crate) fn wait(&self, life: u64, kept: Lsn) -> Result<(), Trouble> {
        let mut state = self.lock();
        state.life = state.life.max(life);
        self.0.work.notify_one();
        loop {
            match &state.ended {
                Some(trouble) => return Err(trouble.clone()),
                None if state.kept >= kept && state.life_named >= life => return Ok(()),
                None => state = self.0.done.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Lets the region have the rest, checkpoint included, and ends the thread; after `limit` it ends all the same. Whether it has all.
    pub(crate) fn finish(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.lock();
        let all = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.kept >= state.end && state.checkpoint.is_none() && !state.saving {
                break true;
            }
            if left.is_zero() || state.ended.is_some() || state.stop {
                break false;
            }
            state = self.0.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(state);
        self.stop();
        all
    }

    /// Ends the thread behind the write that is under way.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.0.work.notify_all();
    }
}

/// A checkpoint on its way.
struct Saving {
    of: KeptCheckpoint,
    file: File,
    next: u64,
}

struct Keeper {
    keep: Keep,
    shelf: Shelf,
    /// Bytes of the log from `base` on.
    shipping: Vec<u8>,
    base: Lsn,
    saving: Option<Saving>,
}

enum Job {
    Life(u64),
    Write,
    Background,
    Look,
}

impl Keeper {
    fn run(mut self, acknowledged: &impl Fn(Lsn, u64)) -> Result<(), Trouble> {
        let (mut reached, mut wrote) = (true, false);
        while let Some((job, confirm)) = self.next(wrote) {
            let end = self.shelf.end;
            wrote = matches!(job, Job::Write);
            match self.perform(&job) {
                Ok(()) => {
                    if !std::mem::replace(&mut reached, true) {
                        tracing::info!("the region keeps the log again");
                    }
                }
                Err(Trouble::Unreached(why)) => {
                    if std::mem::replace(&mut reached, false) {
                        tracing::warn!(why, "the region does not keep the log now: answers wait for it");
                    }
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(trouble) => return Err(trouble),
            }
            let mut state = self.keep.lock();
            state.kept = self.shelf.end;
            state.saving = self.saving.is_some();
            if let Job::Life(life) = job {
                state.life_named = life;
            }
            // Whatever was done, it was done by the owner.
            let news = self.shelf.end > end || confirm > state.confirmed;
            state.confirmed = state.confirmed.max(confirm);
            drop(state);
            self.keep.0.done.notify_all();
            if news {
                acknowledged(self.shelf.end, confirm);
            }
        }
        Ok(())
    }

    /// Waits for something to do; nothing when it is over.
    fn next(&mut self, wrote: bool) -> Option<(Job, u64)> {
        let written =
            usize::try_from(self.shelf.end.0 - self.base.0).expect("the region has what it was given");
        assert!(written <= self.shipping.len(), "the region has what it was given, and no more");
        if written == self.shipping.len() || written > WRITTEN_BYTES_MAX {
            self.shipping.drain(..written);
            self.base = self.shelf.end;
        }
        let keep = self.keep.clone();
        let mut state = keep.lock();
        let mut look = false;
        loop {
            if state.stop {
                return None;
            }
            self.shipping.append(&mut state.pending);
            let unwritten = self.base.plus(self.shipping.len() as u64) > self.shelf.end;
            let background = self.has_background(&state);
            let job = match () {
                () if state.life > state.life_named => Job::Life(state.life),
                () if unwritten && !(wrote && background) => Job::Write,
                () if background => Job::Background,
                () if look || state.confirm > state.confirmed => Job::Look,
                () => {
                    let waited = keep.0.work.wait_timeout(state, LOOK_EVERY);
                    let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    (state, look) = (woken, timeout.timed_out());
                    continue;
                }
            };
            return Some((job, state.confirm));
        }
    }

    fn perform(&mut self, job: &Job) -> Result<(), Trouble> {
        match job {
            Job::Life(life) => {
                let owner = self.shelf.owner.clone().expect("who keeps is the owner");
                self.shelf.own(Owner { life: *life, ..owner })
            }
            Job::Write => {
                let written = (self.shelf.end.0 - self.base.0) as usize;
                self.shelf.add(&self.shipping[written..])
            }
            Job::Background => self.background(),
            Job::Look => self.shelf.look(),
        }
    }

    fn has_background(&self, state: &State) -> bool {
        let saves = match &self.saving {
            // The last step waits for the log.
            Some(saving) => saving.next < saving.of.chunks() || self.shelf.end.0 >= saving.of.lsn,
            None => state.checkpoint.is_some(),
        };
        saves || self.shelf.manifest.surplus.is_some()
    }

    /// One write of what nobody waits for.
    fn background(&mut self) -> Result<(), Trouble> {
        if self.shelf.manifest.surplus.is_some() {
            return self.shelf.remove_surplus().map(drop);
        }
        let Some(saving) = &mut self.saving else {
            let taken = self.keep.lock().checkpoint.take();
            let Some((of, file)) = taken else { return Ok(()) };
            if self.shelf.manifest.checkpoint.is_some_and(|has| has.lsn >= of.lsn) {
                return Ok(());
            }
            self.saving = Some(Saving { of, file, next: 0 });
            // Said first, so that somebody removes what a crash leaves of it; an unfinished one before it goes the same way.
            return self.shelf.change(
                |shelf| shelf.manifest.begun == Some(of),
                |manifest| {
                    if let Some(before) = manifest.begun.replace(of).filter(|before| before.lsn != of.lsn) {
                        manifest.surplus.get_or_insert_default().checkpoints.push(before);
                    }
                },
            );
        };
        let of = saving.of;
        if saving.next < of.chunks() {
            let from = saving.next * CHUNK_BYTES;
            let mut bytes =
                vec![0; usize::try_from(CHUNK_BYTES.min(of.bytes - from)).expect("a chunk is small")];
            if let Err(error) = saving.file.read_exact_at(&mut bytes, from) {
                tracing::warn!(lsn = of.lsn, %error, "the region is not given this checkpoint, but the next");
                self.saving = None;
                return Ok(());
            }
            if self.shelf.put_chunk(of, saving.next, &bytes)? {
                saving.next += 1;
            }
            return Ok(());
        }
        let page_bytes = self.shelf.owner.as_ref().map_or(0, |owner| u64::from(owner.page_bytes));
        let log_from = of.lsn - of.lsn % page_bytes.max(PIECE_BYTES);
        self.shelf.change(
            |shelf| shelf.manifest.checkpoint == Some(of),
            |manifest| {
                let before = manifest.checkpoint.replace(of);
                let pieces = (manifest.log_from / PIECE_BYTES, log_from / PIECE_BYTES);
                manifest.surplus = Some(Surplus { pieces, checkpoints: before.into_iter().collect() });
                (manifest.log_from, manifest.begun) = (log_from, None);
            },
        )?;
        self.saving = None;
        Ok(())
    }
}
