//! Who goes first at a lock that is taken over and over.
//!
//! A mutex is not fair: who lets go of it and takes it again at once keeps it from one who must wake up first, time and again. A thread that
//! appends does so, and the disk's thread, which comes to say that a page is written, hands over no other page while it stands there.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often one who gives way looks again: some microseconds, in which another that is awake has long taken the lock. It does not offer its core,
/// which beside one who computes would cost a slice of that one's.
const LOOKS_MAX: u32 = 256;

/// Those who are to go first at one lock: a hint, which the lock itself knows nothing of.
#[derive(Debug, Default)]
pub(crate) struct Precedence {
    asking: AtomicU32,
}

impl Precedence {
    /// Takes the lock by `lock`, ahead of most who come after it and give way.
    pub(crate) fn first<Guard>(&self, lock: impl FnOnce() -> Guard) -> Guard {
        // Ordered by nothing: the lock alone protects.
        self.asking.fetch_add(1, Ordering::Relaxed);
        let guard = lock();
        self.asking.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// To be called before the lock is taken: lets those go first who ask for it, for a moment at most. Whether nobody asks any more.
    #[inline]
    pub(crate) fn give_way(&self) -> bool {
        !self.is_asked() || self.step_back()
    }

    fn is_asked(&self) -> bool {
        self.asking.load(Ordering::Relaxed) > 0
    }

    #[cold]
    fn step_back(&self) -> bool {
        for _ in 0..LOOKS_MAX {
            if !self.is_asked() {
                return true;
            }
            hint::spin_loop();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn it_is_asked_for_until_the_lock_is_taken_and_nobody_gives_way_for_ever() {
        let precedence = Precedence::default();
        let lock = Mutex::new(());
        assert!(precedence.give_way());
        let guard = precedence.first(|| {
            assert!(!precedence.give_way());
            lock.lock().unwrap()
        });
        assert!(precedence.give_way());
        drop(guard);
    }
}
