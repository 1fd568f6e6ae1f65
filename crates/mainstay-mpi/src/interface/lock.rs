//! The state of the process behind a lock that a thread may keep from one step of a call to the next: taking it anew for each
//! step would cost more than the steps.

use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};

/// A value behind a lock.
pub(super) struct Locked<T> {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, which its thread has while it holds the lock.
unsafe impl<T: Send> Sync for Locked<T> {}

thread_local! {
    /// Whether this thread keeps the lock between guards. There is one `Locked` in a process.
    static KEEPS: Cell<bool> = const { Cell::new(false) };
}

/// The value, for a thread that holds the lock. A thread has one at a time.
pub(super) struct Guard<T: 'static> {
    locked: &'static Locked<T>,
    kept: bool,
}

impl<T> Locked<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock, unless this thread keeps it.
    pub(super) fn lock(&'static self) -> Guard<T> {
        let kept = KEEPS.get();
        if !kept {
            // SAFETY: a static that is initialized and never moves; this thread does not hold it.
            unsafe { libc::pthread_mutex_lock(self.lock.get()) };
        }
        Guard { locked: self, kept }
    }

    /// The lock, unless this thread keeps it, or another one does for so long.
    pub(super) fn lock_within(&'static self, seconds: i64) -> Option<Guard<T>> {
        if KEEPS.get() {
            return None;
        }
        let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: room for a moment. This clock always answers.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until) };
        until.tv_sec += seconds;
        // SAFETY: a static that is initialized and never moves. If this thread holds it the wait ends all the same.
        let taken = unsafe { libc::pthread_mutex_timedlock(self.lock.get(), &raw const until) } == 0;
        taken.then_some(Guard { locked: self, kept: false })
    }

    /// The lock, if nobody holds it.
    pub(super) fn try_lock(&'static self) -> Option<Guard<T>> {
        // SAFETY: as above.
        let taken = !KEEPS.get() && unsafe { libc::pthread_mutex_trylock(self.lock.get()) } == 0;
        taken.then_some(Guard { locked: self, kept: false })
    }

    /// Gives back the lock that this thread keeps, if it does. It must have no guard.
    pub(super) fn release(&'static self) {
        if KEEPS.replace(false) {
            // SAFETY: this thread holds it.
            unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
        }
    }
}

impl<T> Guard<T> {
    /// Ends the guard and keeps the lock, until [`Locked::release`].
    pub(super) fn keep(mut self) {
        self.kept = true;
        KEEPS.set(true);
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
            // SAFETY: this guard took it.
            unsafe { libc::pthread_mutex_unlock(self.locked.lock.get()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_the_lock_has_it_alone_until_it_is_released() {
        static COUNT: Locked<u64> = Locked::new(0);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..2000 {
                        COUNT.lock().keep();
                        let before = *COUNT.lock();
                        std::hint::spin_loop();
                        *COUNT.lock() = before + 1;
                        assert!(COUNT.try_lock().is_none(), "it is held");
                        COUNT.release();
                        *COUNT.lock() += 1;
                        COUNT.release();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
        assert_eq!(*COUNT.try_lock().expect("nobody holds it"), 16_000);
    }

    #[test]
    fn who_ends_the_process_neither_waits_for_ever_nor_has_the_value_twice() {
        static COUNT: Locked<u64> = Locked::new(0);
        COUNT.lock().keep();
        assert!(COUNT.lock_within(60).is_none(), "a handler that came in the midst of a step");
        std::thread::spawn(|| assert!(COUNT.lock_within(0).is_none(), "it is held")).join().expect("ends");
        COUNT.release();
        *COUNT.lock_within(60).expect("nobody holds it") += 1;
        assert_eq!(*COUNT.lock(), 1);
    }
}
