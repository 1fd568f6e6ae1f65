//! A word that threads sleep on: the kernel's futex, private to this process.
//!
//! A condition variable would make every woken thread take its mutex again, one after the other; here a committed
//! writer goes on without touching anything shared.

use crate::awake::{self, Watched};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The word. It changes before sleepers are woken, so that a thread which looked at it and has not slept yet never does.
#[derive(Debug, Default)]
pub(crate) struct Futex {
    word: AtomicU32,
}

impl Futex {
    /// What [`Futex::wait`] is to be called with.
    pub(crate) fn look(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Makes every look so far out of date.
    pub(crate) fn change(&self) {
        self.word.fetch_add(1, Ordering::Release);
    }

    /// Sleeps until woken, if the word is still as `seen`. May also return for no reason.
    pub(crate) fn wait(&self, seen: u32) {
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word outlives the call; no timeout.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                operation,
                seen,
                std::ptr::null::<libc::timespec>(),
            )
        };
    }

    /// Stays awake until the word is no longer as `seen`, for `longest` at most.
    pub(crate) fn watch(&self, seen: u32, longest: Duration) -> Watched {
        awake::watch(longest, || self.look() != seen)
    }

    /// Wakes at most one sleeper.
    pub(crate) fn wake_one(&self) {
        self.wake(1);
    }

    /// Wakes all sleepers.
    pub(crate) fn wake_all(&self) {
        self.wake(i32::MAX);
    }

    fn wake(&self, count: i32) {
        let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, self.word.as_ptr(), operation, count) };
    }
}
