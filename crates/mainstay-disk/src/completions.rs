//! Completions on their way from the disk's threads to whoever drives the journal.

use crate::disk::Notify;
use mainstay_journal::effect::DiskEvent;
use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// Completions that nobody has taken yet. Their number is bounded by the requests in flight, which the journal bounds
/// by its pages.
#[derive(Default)]
pub(crate) struct Completions {
    ready: Mutex<Vec<DiskEvent>>,
    arrived: Condvar,
    notify: RwLock<Option<Notify>>,
}

impl Completions {
    pub(crate) fn push(&self, event: DiskEvent) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        self.arrived.notify_all();
        if let Some(notify) = self.notify.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            notify();
        }
    }

    /// Returns when no call of the callback before is running.
    pub(crate) fn set_notify(&self, notify: Option<Notify>) {
        *self.notify.write().unwrap_or_else(PoisonError::into_inner) = notify;
    }

    /// Moves what is ready into `into`.
    pub(crate) fn take(&self, into: &mut Vec<DiskEvent>) {
        into.append(&mut self.ready.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until something is ready or `timeout` has passed, then moves it.
    pub(crate) fn wait(&self, timeout: Duration, into: &mut Vec<DiskEvent>) {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut ready, _) = self
            .arrived
            .wait_timeout_while(ready, timeout, |ready| ready.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        into.append(&mut ready);
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions").finish_non_exhaustive()
    }
}
