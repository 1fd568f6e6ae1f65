//! Outputs that are not acknowledged yet.

use crate::port::OutputState;
use mainstay_types::id::{DeliveryIndex, Lsn, OutputId, StoreId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The table of pending outputs, in the order of their emission.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outbox {
    pending: BTreeMap<OutputId, Pending>,
    /// Outputs whose fate is known, since the directory was made.
    pub(crate) settled: u64,
}

/// One pending output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// The port by name: indices may change from one life to the next.
    pub(crate) port: Arc<str>,
    pub(crate) body: Arc<[u8]>,
    /// End of the record of the delivery that made it.
    pub(crate) end: Lsn,
    pub(crate) state: OutputState,
    /// The delivery that made it.
    pub(crate) delivery: DeliveryIndex,
    /// Whether a record says that it is about to be sent (at-most-once ports).
    pub(crate) intended: bool,
    /// The directory that it was made in, whose key it keeps, if that is an earlier one.
    pub(crate) store: Option<StoreId>,
}

impl Outbox {
    pub(crate) fn insert(&mut self, id: OutputId, pending: Pending) {
        let replaced = self.pending.insert(id, pending);
        assert!(replaced.is_none(), "output numbers are never reused");
    }

    pub(crate) fn find(&self, id: OutputId) -> Option<&Pending> {
        self.pending.get(&id)
    }

    pub(crate) fn find_mut(&mut self, id: OutputId) -> Option<&mut Pending> {
        self.pending.get_mut(&id)
    }

    pub(crate) fn settle(&mut self, id: OutputId) -> bool {
        let was_pending = self.pending.remove(&id).is_some();
        self.settled += u64::from(was_pending);
        was_pending
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (OutputId, &Pending)> {
        self.pending.iter().map(|(&id, pending)| (id, pending))
    }

    /// See [`crate::tables::Tables::carry_over`]. Whether one left after the cut is not known, so that all count as about to be sent.
    pub(crate) fn carry_over(&mut self, from: StoreId) {
        for pending in self.pending.values_mut() {
            pending.end = Lsn::ZERO;
            pending.intended = true;
            pending.store.get_or_insert(from);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }
}
