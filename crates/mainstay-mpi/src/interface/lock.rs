//! The state of the process behind a lock that a thread may keep from one step of a call to the next: taking it anew for each
//! step would cost more than the steps.

use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A value behind a lock.
///
/// Taking it is one instruction and giving it back a store: nobody who waits is woken, whoever waits looks again and again. So it is
/// for a program whose threads hardly ever call MPI at the same time.
pub(super) struct Locked<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, which its thread has while it holds the lock.
unsafe impl<T: Send> Sync for Locked<T> {}

/// Whether a thread keeps the lock between guards. Each thread has one for each `Locked`.
pub(super) type Keeps = Cell<bool>;

/// The value, for a thread that holds the lock. A thread has one at a time.
pub(super) struct Guard<T: 'static> {
    locked: &'static Locked<T>,
    kept: bool,
}

/// Looks at a lock that is held before the thread sleeps between them.
const SPINS_MAX: u32 = 100;
/// How long it sleeps then, in microseconds.
const SLEEP_US: u64 = 20;

impl<T> Locked<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock, unless this thread keeps it.
    pub(super) fn lock(&'static self, keeps: &Keeps) -> Guard<T> {
        let kept = keeps.get();
        if !kept {
            self.acquire();
        }
        Guard { locked: self, kept }
    }

    /// Waits for the lock, unless this thread keeps it, and keeps it until [`Locked::release`].
    #[inline]
    pub(super) fn keep(&'static self, keeps: &Keeps) {
        if !keeps.replace(true) {
            self.acquire();
        }
    }

    /// The value, for a thread that keeps the lock.
    ///
    /// # Safety
    /// This thread keeps the lock and has no guard and no other reference from here.
    #[expect(clippy::mut_from_ref, reason = "the lock is held")]
    pub(super) unsafe fn kept(&'static self) -> &'static mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.value.get() }
    }

    /// The lock, unless this thread keeps it, or another one does for so long.
    pub(super) fn lock_within(&'static self, keeps: &Keeps, seconds: u64) -> Option<Guard<T>> {
        let taken = !keeps.get() && (self.try_acquire() || self.wait(seconds * 1_000_000 / SLEEP_US));
        // Not made unless it is taken: a guard gives the lock back when it is dropped.
        taken.then(|| Guard { locked: self, kept: false })
    }

    /// The lock, if nobody holds it.
    pub(super) fn try_lock(&'static self, keeps: &Keeps) -> Option<Guard<T>> {
        let taken = !keeps.get() && self.try_acquire();
        // Not made unless it is taken: a guard gives the lock back when it is dropped.
        taken.then(|| Guard { locked: self, kept: false })
    }

    /// Gives back the lock that this thread keeps, if it does. It must have no guard.
    #[inline]
    pub(super) fn release(&'static self, keeps: &Keeps) {
        if keeps.replace(false) {
            self.held.store(false, Ordering::Release);
        }
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn acquire(&self) {
        if !self.try_acquire() {
            self.wait(u64::MAX);
        }
    }

    /// Sleeps so often at most. Whether the lock was taken.
    #[cold]
    fn wait(&self, sleeps_max: u64) -> bool {
        for _ in 0..SPINS_MAX {
            std::hint::spin_loop();
            if self.try_acquire() {
                return true;
            }
        }
        for _ in 0..sleeps_max {
            std::thread::sleep(Duration::from_micros(SLEEP_US));
            if self.try_acquire() {
                return true;
            }
        }
        false
    }
}

impl<T> Deref for Guard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held, and this is the thread's only guard.
        unsafe { &*self.locked.value.get() }
    }
}

impl<T> DerefMut for Guard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.locked.value.get() }
    }
}

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        if !self.kept {
            self.locked.held.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_the_lock_has_it_alone_until_it_is_released() {
        static COUNT: Locked<u64> = Locked::new(0);
        let nobodys = Keeps::new(false);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    let keeps = Keeps::new(false);
                    for _ in 0..2000 {
                        COUNT.keep(&keeps);
                        let before = *COUNT.lock(&keeps);
                        std::hint::spin_loop();
                        *COUNT.lock(&keeps) = before + 1;
                        assert!(COUNT.try_lock(&keeps).is_none(), "it is held");
                        COUNT.release(&keeps);
                        *COUNT.lock(&keeps) += 1;
                        COUNT.release(&keeps);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
        assert_eq!(*COUNT.try_lock(&nobodys).expect("nobody holds it"), 16_000);
    }

    #[test]
    fn who_ends_the_process_neither_waits_for_ever_nor_has_the_value_twice() {
        static COUNT: Locked<u64> = Locked::new(0);
        let keeps = Keeps::new(false);
        COUNT.keep(&keeps);
        assert!(COUNT.lock_within(&keeps, 60).is_none(), "a handler that came in the midst of a step");
        let other = || assert!(COUNT.lock_within(&Keeps::new(false), 0).is_none(), "it is held");
        std::thread::spawn(other).join().expect("ends");
        COUNT.release(&keeps);
        *COUNT.lock_within(&keeps, 60).expect("nobody holds it") += 1;
        assert_eq!(*COUNT.lock(&keeps), 1);
    }
}
