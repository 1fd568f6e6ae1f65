//! The thread that has the region keep the log: it does what [`mainstay_process::kept::keeper`] decides.

use super::NotKept;
use super::region::Region;
use crate::driver::EndProcessOnPanic;
use mainstay_disk::file_storage::FileStorage;
use mainstay_process::kept::Trouble;
use mainstay_process::kept::keeper::{Acknowledged, Keeper};
use mainstay_types::id::Lsn;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks whether this process is the owner still, while there is nothing to write.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Before the region is asked again that did not answer in time.
const PAUSE: Duration = Duration::from_millis(20);

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

/// What is asked of the thread and it has not heard of yet, and what it has done.
struct State {
    bytes: Vec<u8>,
    ends: Vec<Lsn>,
    /// Where the next bytes go.
    end: Lsn,
    confirm: u64,
    life: u64,
    /// The last checkpoint that was published.
    checkpoint: Lsn,
    said: Acknowledged,
    /// The checkpoint that the region lacks cannot be read now.
    is_stuck: bool,
    ended: Option<Trouble>,
    stop: bool,
}

impl State {
    fn has_all(&self) -> bool {
        self.has_log() && self.said.checkpoint >= self.checkpoint
    }

    fn has_log(&self) -> bool {
        self.said.kept >= self.end && self.said.life >= self.life
    }

    /// Whether a life may go on that began with this checkpoint. One that cannot be read, and it did not begin with, is not waited for.
    fn has_what_began(&self, with: Lsn) -> bool {
        self.has_all() || self.is_stuck && self.has_log() && self.said.checkpoint >= with
    }
}

impl Keep {
    /// Starts the thread. It tells `acknowledged` whatever is new of what the region has said; and `ended`, once, that it will not go on.
    pub(super) fn start(
        keeper: Keeper<Region>,
        storage: FileStorage,
        acknowledged: impl Fn(Acknowledged) + Send + 'static,
        ended: impl FnOnce(NotKept) + Send + 'static,
    ) -> io::Result<Self> {
        let said = keeper.acknowledged();
        let state = State {
            bytes: Vec::new(),
            ends: Vec::new(),
            end: keeper.end(),
            confirm: 0,
            life: said.life,
            checkpoint: Lsn::ZERO,
            said,
            is_stuck: false,
            ended: None,
            stop: false,
        };
        let inner = Inner { state: Mutex::new(state), work: Condvar::new(), done: Condvar::new() };
        let keep = Self(Arc::new(inner));
        let (this, name) = (keep.clone(), keeper.name().to_owned());
        std::thread::Builder::new().name("keep".to_owned()).spawn(move || {
            let _end = EndProcessOnPanic;
            if let Err(trouble) = this.run(keeper, storage, &acknowledged) {
                this.lock().ended = Some(trouble.clone());
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

    /// Takes the next bytes of the log, which begin at `from`, where records end among them, and the number of the last question whether this life is
    /// the present one.
    ///
    /// # Panics
    /// If there are bytes and they are not the next ones.
    pub(crate) fn put(&self, from: Lsn, bytes: &mut Vec<u8>, ends: &mut Vec<Lsn>, confirm: u64) {
        let mut state = self.lock();
        assert!(bytes.is_empty() || from == state.end, "{from} follows {}", state.end);
        state.end = state.end.plus(bytes.len() as u64);
        state.bytes.append(bytes);
        state.ends.append(ends);
        state.confirm = state.confirm.max(confirm);
        drop(state);
        self.0.work.notify_one();
    }

    /// A checkpoint is published.
    pub(crate) fn save(&self, lsn: Lsn) {
        let mut state = self.lock();
        state.checkpoint = state.checkpoint.max(lsn);
        drop(state);
        self.0.work.notify_one();
    }

    /// Waits until the owner's entry names this life and the region has all that the thread was given, however long it takes; of checkpoints that cannot
    /// be read, the one that the life began with.
    pub(crate) fn wait(&self, life: u64, checkpoint: Lsn) -> Result<(), Trouble> {
        let mut state = self.lock();
        state.life = state.life.max(life);
        self.0.work.notify_one();
        loop {
            match &state.ended {
                Some(trouble) => return Err(trouble.clone()),
                None if state.stop => return Err(Trouble::Stopped),
                None if state.has_what_began(checkpoint) => return Ok(()),
                None => state = self.0.done.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Whether the region has all that the thread was given.
    pub(crate) fn has_all(&self) -> bool {
        self.lock().has_all()
    }

    /// Ends the thread behind the write that is under way, and whoever waits for it.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.0.work.notify_all();
        self.0.done.notify_all();
    }

    fn run(
        &self,
        mut keeper: Keeper<Region>,
        mut storage: FileStorage,
        acknowledged: &impl Fn(Acknowledged),
    ) -> Result<(), Trouble> {
        let (mut reached, mut looked) = (true, Instant::now());
        while let Some(look) = self.next(&mut keeper, looked) {
            if look {
                looked = Instant::now();
            }
            match keeper.turn(&mut storage, look) {
                Ok(_) => {
                    if !std::mem::replace(&mut reached, true) {
                        tracing::info!("the region keeps the log again");
                    }
                }
                Err(trouble) if trouble.is_passing() => {
                    if std::mem::replace(&mut reached, false) {
                        tracing::warn!(%trouble, "the region does not keep the log now: answers wait for it");
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(trouble) => return Err(trouble),
            }
            let said = keeper.acknowledged();
            let mut state = self.lock();
            let is_new = std::mem::replace(&mut state.said, said) != said;
            let stuck = keeper.is_stuck();
            let is_other = std::mem::replace(&mut state.is_stuck, stuck) != stuck;
            drop(state);
            if is_new || is_other {
                self.0.done.notify_all();
            }
            if is_new {
                acknowledged(said);
            }
        }
        Ok(())
    }

    /// Waits for something to do, and says whether it is to look in any case; nothing when it is over.
    fn next(&self, keeper: &mut Keeper<Region>, looked: Instant) -> Option<bool> {
        let mut state = self.lock();
        // With a look a file is tried again that could not be read, however much there is to write.
        let mut look = keeper.is_stuck() && looked.elapsed() >= LOOK_EVERY;
        loop {
            if state.stop {
                return None;
            }
            let State { bytes, ends, confirm, life, checkpoint, .. } = &mut *state;
            keeper.append(bytes, ends);
            keeper.confirm(*confirm);
            keeper.enter_life(*life);
            keeper.save(*checkpoint);
            if look || keeper.has_work() {
                return Some(look);
            }
            let waited = self.0.work.wait_timeout(state, LOOK_EVERY);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            (state, look) = (woken, timeout.timed_out());
        }
    }
}
