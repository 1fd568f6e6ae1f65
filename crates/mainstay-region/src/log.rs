//! The log of a shard: what was accepted in this view, without gaps, from the first version that some member may lack up to the last.

use crate::operation::{Changes, Operation, Outcome};
use mainstay_types::operation::OperationId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// What one version stands for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Entry {
    /// An operation.
    Operation {
        /// Its identity, the same on every attempt.
        id: OperationId,
        /// The client had asked before, so that an earlier attempt may have been seen, also where no table has it.
        possible_duplicate: bool,
        /// What it does.
        operation: Operation,
    },
    /// Nothing: the version was granted, and no member had a payload for it.
    Void,
    /// Values that end up to this time are not there any more, the earliest first, at most [`crate::limits::Limits::expire_keys_max`] of them.
    Expire {
        /// Milliseconds since 1970, UTC, by the stamper's clock.
        until_ms: u64,
    },
}

/// What an entry counts besides its keys and values, in bytes: no less than what else is written of it.
pub const ENTRY_BYTES: usize = 64;

impl Entry {
    /// What it counts where entries are limited in bytes: nothing without an operation, since it may not be refused.
    pub(crate) fn counted_bytes(&self) -> usize {
        match self {
            Self::Operation { operation, .. } => ENTRY_BYTES + operation.bytes(),
            Self::Void | Self::Expire { .. } => 0,
        }
    }

    /// What it takes in a message or a record, in bytes. A compare-and-set, which has two values, may take twice that.
    pub(crate) fn written_bytes(&self) -> usize {
        ENTRY_BYTES + self.bytes()
    }

    /// Bytes of its keys and values.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Operation { operation, .. } => operation.bytes(),
            Self::Void | Self::Expire { .. } => 0,
        }
    }

    /// Whose operation it is.
    #[must_use]
    pub fn id(&self) -> Option<OperationId> {
        match self {
            Self::Operation { id, .. } => Some(*id),
            Self::Void | Self::Expire { .. } => None,
        }
    }
}

/// An entry that was accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Accepted {
    pub(crate) entry: Entry,
    /// What comes of it on top of all entries before it.
    pub(crate) outcome: Outcome,
    /// Empty once they are in the state.
    pub(crate) changes: Changes,
}

/// The log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Log {
    /// Everything up to here was dropped: every member has it.
    trimmed: u64,
    entries: VecDeque<Accepted>,
    /// What its entries count in bytes.
    bytes: usize,
    by_id: BTreeMap<OperationId, u64>,
}

impl Log {
    /// An empty log of a shard whose state has everything up to `counter`.
    pub(crate) fn behind(counter: u64) -> Self {
        Self { trimmed: counter, ..Self::default() }
    }

    /// The first version that is not in the log, minus one.
    pub(crate) fn trimmed(&self) -> u64 {
        self.trimmed
    }

    /// The last version.
    pub(crate) fn end(&self) -> u64 {
        self.trimmed + self.entries.len() as u64
    }

    /// What its entries count towards [`crate::limits::Limits::log_bytes_max`].
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, counter: u64) -> Option<&Accepted> {
        let place = counter.checked_sub(self.trimmed + 1)?;
        self.entries.get(usize::try_from(place).ok()?)
    }

    pub(crate) fn get_mut(&mut self, counter: u64) -> Option<&mut Accepted> {
        let place = counter.checked_sub(self.trimmed + 1)?;
        self.entries.get_mut(usize::try_from(place).ok()?)
    }

    pub(crate) fn find(&self, id: OperationId) -> Option<u64> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn push(&mut self, accepted: Accepted) -> u64 {
        let counter = self.end() + 1;
        if let Some(id) = accepted.entry.id() {
            self.by_id.insert(id, counter);
        }
        self.bytes += accepted.entry.counted_bytes();
        self.entries.push_back(accepted);
        counter
    }

    /// Drops what is at or below `counter`.
    pub(crate) fn trim(&mut self, counter: u64) {
        while self.trimmed < counter {
            let Some(dropped) = self.entries.pop_front() else { break };
            self.trimmed += 1;
            self.forget(&dropped, self.trimmed);
        }
    }

    /// Drops what is above `counter`.
    pub(crate) fn truncate(&mut self, counter: u64) {
        while self.end() > counter {
            let place = self.end();
            let Some(dropped) = self.entries.pop_back() else { break };
            self.forget(&dropped, place);
        }
    }

    fn forget(&mut self, dropped: &Accepted, counter: u64) {
        self.bytes -= dropped.entry.counted_bytes();
        if let Some(id) = dropped.entry.id()
            && self.by_id.get(&id) == Some(&counter)
        {
            self.by_id.remove(&id);
        }
    }

    /// All entries with their counters.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Accepted)> {
        (self.trimmed + 1..).zip(&self.entries)
    }
}
