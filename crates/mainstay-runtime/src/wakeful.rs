//! Keeping cores from halting while a client that is quick and alone waits for the disk.
//!
//! A core with nothing to do halts, and on a virtual machine it takes a quarter of a sync to wake it again. While the
//! thread that serves waits for the disk, every core halts; then the disk's interrupt wakes one, that one wakes the
//! core of the thread, and the answer the core of the client. Here one thread a core, of a priority below all others
//! (`SCHED_IDLE`), turns meanwhile: whatever else of its control group wants to run takes the core. Seastar polls on all
//! cores for the same reason (`--idle-poll-time-us`).
//!
//! Price: the idle time of the cores, while such a client is served. So it is bounded by [`CORES_MAX`] and by the time
//! that is given with every call, and left out where processor time is rationed.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Most cores of a machine on which this is done: on a larger one it is not known which cores the next wakes need, and
/// to keep all from halting would cost too much.
const CORES_MAX: usize = 4;

/// Turns between two looks at the clock and at who else wants the core.
const TURNS: u32 = 32;

/// The threads, or none where it is not wanted or not possible. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Wakeful {
    turning: Option<(Arc<Turning>, Vec<Thread>)>,
}

#[derive(Debug)]
struct Turning {
    started: Instant,
    /// When to sleep again, in nanoseconds since `started`.
    until_ns: AtomicU64,
    asleep: AtomicUsize,
    over: AtomicBool,
}

impl Wakeful {
    /// One thread for each core that this process may use, or none where there are too many, or one, or time on them is limited.
    pub(crate) fn start() -> Self {
        let Ok(allowed) = sched_getaffinity(None) else { return Self::default() };
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
        // Less than the cores: a quota of a control group, which turning would use up.
        let rationed =
            std::thread::available_parallelism().is_ok_and(|available| available.get() < cores.len());
        // With one core the parallelism is 1 whatever the quota, and nobody can be woken on another one.
        if cores.len() > CORES_MAX || cores.len() == 1 || rationed {
            return Self::default();
        }
        let turning = Arc::new(Turning {
            started: Instant::now(),
            until_ns: AtomicU64::new(0),
            asleep: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let start = |core| {
            let turning = Arc::clone(&turning);
            let thread = std::thread::Builder::new().name("wakeful".to_owned()).stack_size(64 << 10);
            thread.spawn(move || turning.turn_on(core)).map(|thread| thread.thread().clone()).ok()
        };
        let threads = cores.into_iter().filter_map(start).collect();
        Self { turning: Some((turning, threads)) }
    }

    /// No core halts for this long from now on, unless it was to be longer already.
    pub(crate) fn keep(&self, long: Duration) {
        let Some((turning, threads)) = &self.turning else { return };
        let until = u64::try_from((turning.started.elapsed() + long).as_nanos()).unwrap_or(u64::MAX);
        turning.until_ns.fetch_max(until, Ordering::SeqCst);
        if turning.asleep.load(Ordering::SeqCst) > 0 {
            threads.iter().for_each(Thread::unpark);
        }
    }
}

impl Drop for Wakeful {
    fn drop(&mut self) {
        let Some((turning, threads)) = &self.turning else { return };
        turning.over.store(true, Ordering::SeqCst);
        threads.iter().for_each(Thread::unpark);
    }
}

impl Turning {
    fn turn_on(&self, core: usize) {
        let mut only = CpuSet::new();
        only.set(core);
        if sched_setaffinity(None, &only).is_err() || !yields_to_all() {
            tracing::debug!(core, "a core cannot be kept from halting");
            return;
        }
        while !self.over.load(Ordering::SeqCst) {
            if self.wanted() {
                (0..TURNS).for_each(|_| std::hint::spin_loop());
                // Idle priority alone lets whoever is woken on this core wait, on some hosts for 200 us.
                std::thread::yield_now();
                continue;
            }
            self.asleep.fetch_add(1, Ordering::SeqCst);
            // Looked at again: whoever wanted it in between saw nobody asleep.
            if !self.wanted() && !self.over.load(Ordering::SeqCst) {
                std::thread::park();
            }
            self.asleep.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn wanted(&self) -> bool {
        self.started.elapsed().as_nanos() < u128::from(self.until_ns.load(Ordering::SeqCst))
    }
}

/// Puts the calling thread below all others. Whether that was possible.
fn yields_to_all() -> bool {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter outlives the call; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const priority) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generous: a thread of idle priority on a busy machine has to wait.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn until(what: &str, mut met: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !met() {
            assert!(begun.elapsed() < PATIENCE, "never: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn threads_sleep_turn_sleep_again_and_end() {
        let wakeful = Wakeful::start();
        let Some((turning, threads)) = &wakeful.turning else {
            println!("skipped: this machine has one core or more than {CORES_MAX}, or a quota on them");
            return;
        };
        let (turning, count) = (Arc::clone(turning), threads.len());
        let asleep = |wanted: usize| turning.asleep.load(Ordering::SeqCst) == wanted;
        until("all sleep", || asleep(count));
        wakeful.keep(PATIENCE);
        until("all turn", || asleep(0));
        turning.until_ns.store(0, Ordering::SeqCst);
        until("all sleep again", || asleep(count));
        wakeful.keep(PATIENCE);
        drop(wakeful);
        until("all have ended", || Arc::strong_count(&turning) == 1);
    }
}
