//! Bytes that may be in memory for one purpose at the same time: who wants more waits.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is counted in: a semaphore has fewer permits than a budget may have bytes.
const UNIT_BYTES: usize = 1024;

/// So many bytes for all who share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    units: Arc<Semaphore>,
    units_max: u32,
}

/// A part of a budget, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    _units: OwnedSemaphorePermit,
}

impl Budget {
    /// A budget of so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let units_max = u32::try_from(bytes / UNIT_BYTES).expect("a budget is below 4 TiB");
        Self { units: Arc::new(Semaphore::new(units_max as usize)), units_max }
    }

    /// Waits until there is room, first come first served. More than all there is counts as all: it comes when nobody else holds anything.
    pub(crate) async fn take(&self, bytes: usize) -> Held {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units_max);
        let taken = Arc::clone(&self.units).acquire_many_owned(units).await;
        Held { _units: taken.expect("a budget is never closed") }
    }
}
