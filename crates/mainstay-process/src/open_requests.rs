//! Requests that were taken and are answered in a later delivery. Part of every checkpoint.

use crate::event::Identity;
use crate::handler::RequestId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Requests without an answer yet, by number and by what a repetition is recognised by.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct OpenRequests {
    by_id: BTreeMap<RequestId, Identity>,
    by_identity: BTreeMap<Identity, RequestId>,
}

impl OpenRequests {
    pub(crate) fn insert(&mut self, id: RequestId, identity: &Identity) {
        self.by_id.insert(id, identity.clone());
        if *identity != Identity::None {
            self.by_identity.insert(identity.clone(), id);
        }
    }

    /// The identity of a request that is being answered now; `None` if it is not open.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Identity> {
        let identity = self.by_id.remove(&id)?;
        self.by_identity.remove(&identity);
        Some(identity)
    }

    /// The open request that `identity` repeats.
    pub(crate) fn find(&self, identity: &Identity) -> Option<RequestId> {
        self.by_identity.get(identity).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}
