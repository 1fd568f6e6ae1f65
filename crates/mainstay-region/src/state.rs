//! The stable state of a shard: the map, the duplicate table, and the version at which both stand. Nothing that could still be undone
//! is ever in it.

use crate::blob::Blob;
use crate::duplicates::{Duplicates, Seen};
use crate::evaluate::Held;
use crate::limits::Limits;
use crate::log::{Accepted, Entry};
use crate::operation::{Changes, Outcome, Value};
use mainstay_types::id::{ClientId, ThreadId};
use mainstay_types::operation::{OperationId, Version};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

/// A value and the version that set it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stored {
    /// The value.
    pub value: Blob,
    /// When it ends: milliseconds since 1970, UTC. `None`: never.
    pub ends_at_ms: Option<u64>,
    /// Which version set it.
    pub version: Version,
}

/// A value in the map, with its part in the hash of the map: to take it out of that again, the value need not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    stored: Stored,
    digest: u64,
}

impl std::ops::Deref for Kept {
    type Target = Stored;

    fn deref(&self) -> &Stored {
        &self.stored
    }
}

/// One version that became stable: what an image streams to a member that joins, and a subscriber sees.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Applied {
    /// The version.
    pub version: Version,
    /// Whose operation it was, and what came of it; `None` for a void, and where values have ended.
    pub operation: Option<(OperationId, Outcome)>,
    /// The operation had been asked for before: who acts on it should be able to drop a repetition.
    pub possible_duplicate: bool,
    /// Keys that it changed, with their new values; `None`: removed.
    pub changes: Changes,
}

impl Applied {
    /// Bytes of its keys, values and outcome.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let changes = self.changes.iter();
        let changed =
            changes.map(|(key, value)| key.len() + value.as_ref().map_or(0, |value| value.bytes.len()));
        changed.sum::<usize>() + self.operation.as_ref().map_or(0, |(_, outcome)| outcome.bytes())
    }

    /// Takes the changes out of the log's entry: from now on they are the state's.
    pub(crate) fn of(version: Version, accepted: &mut Accepted) -> Self {
        let (operation, possible_duplicate) = match &accepted.entry {
            Entry::Void | Entry::Expire { .. } => (None, false),
            Entry::Operation { id, possible_duplicate, .. } => {
                (Some((*id, accepted.outcome.clone())), *possible_duplicate)
            }
        };
        Self { version, operation, possible_duplicate, changes: std::mem::take(&mut accepted.changes) }
    }
}

/// Threads that a duplicate table has forgotten.
pub(crate) type Forgotten = Vec<(ClientId, ThreadId)>;

/// The state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// The map.
    pub map: BTreeMap<Blob, Kept>,
    /// What took effect.
    pub duplicates: Duplicates,
    /// Everything up to here is in the state, and nothing else.
    pub at: Version,
    /// Hash of the whole map, kept as it changes: the exclusive or of the hashes of its entries. Copies that stand at the same
    /// version have the same.
    pub digest: u64,
    /// When values end, with their keys.
    pub(crate) ends: BTreeSet<(u64, Blob)>,
    /// The last changes, for subscribers.
    pub(crate) history: VecDeque<Applied>,
    /// What they hold, in bytes.
    history_bytes: usize,
    /// The last version that is not in the history any more.
    pub(crate) history_behind: Version,
}

impl State {
    /// The value of a key.
    #[must_use]
    pub fn value(&self, key: &[u8]) -> Option<&Stored> {
        self.map.get(key).map(|kept| &kept.stored)
    }

    /// The last changes, the newest last: at most [`Limits::history_entries_max`] and [`Limits::history_bytes_max`].
    pub fn history(&self) -> impl DoubleEndedIterator<Item = &Applied> {
        self.history.iter()
    }

    /// Takes in the next version; returns the threads that the duplicate table has forgotten for it.
    pub(crate) fn apply(&mut self, applied: Applied, limits: &Limits) -> Forgotten {
        self.apply_as_told(applied, limits);
        self.duplicates.trim(limits.duplicate_threads_max)
    }

    /// The same while the table is not whole: what is to be forgotten, the copy says that it is filled by.
    pub(crate) fn apply_as_told(&mut self, applied: Applied, limits: &Limits) {
        assert!(self.at < applied.version, "versions are applied in their order");
        self.at = applied.version;
        for (key, value) in &applied.changes {
            self.set(key, value.clone(), applied.version);
        }
        if let Some((id, outcome)) = &applied.operation {
            let seen = Seen { version: applied.version, outcome: outcome.clone() };
            self.duplicates.record(*id, seen, limits);
        }
        self.history_bytes += applied.bytes();
        self.history.push_back(applied);
        while self.history.len() > limits.history_entries_max
            || (self.history_bytes > limits.history_bytes_max && self.history.len() > 1)
        {
            let Some(dropped) = self.history.pop_front() else { break };
            self.history_bytes -= dropped.bytes();
            self.history_behind = dropped.version;
        }
    }

    /// A subscriber can begin behind this version, or any later one.
    pub(crate) fn oldest_known(&self) -> Version {
        self.history_behind
    }

    /// Takes over an entry of another copy.
    pub(crate) fn fill(&mut self, key: &Blob, stored: Stored) {
        let Stored { value: bytes, ends_at_ms, version } = stored;
        self.set(key, Some(Value { bytes, ends_at_ms }), version);
    }

    /// What a key holds.
    pub(crate) fn held(&self, key: &[u8]) -> Option<Held<'_>> {
        let stored = self.value(key)?;
        Some(Held { bytes: &stored.value, ends_at_ms: stored.ends_at_ms, version: stored.version })
    }

    fn set(&mut self, key: &Blob, value: Option<Value>, version: Version) {
        let before = match value {
            Some(Value { bytes, ends_at_ms }) => {
                if let Some(end) = ends_at_ms {
                    self.ends.insert((end, key.clone()));
                }
                let stored = Stored { value: bytes, ends_at_ms, version };
                let digest = digest(key, &stored);
                self.digest ^= digest;
                self.map.insert(key.clone(), Kept { stored, digest })
            }
            None => self.map.remove(&**key),
        };
        if let Some(before) = before {
            self.digest ^= before.digest;
            if let Some(end) = before.ends_at_ms
                && Some(end) != self.map.get(&**key).and_then(|stored| stored.ends_at_ms)
            {
                self.ends.remove(&(end, key.clone()));
            }
        }
    }
}

fn digest(key: &[u8], stored: &Stored) -> u64 {
    let ends = u64::from(stored.ends_at_ms.is_some());
    let Version { view, counter } = stored.version;
    let words = [xxh3_64(key), view.0, counter, ends, stored.ends_at_ms.unwrap_or(0), xxh3_64(&stored.value)];
    // Two hashes in one go each are cheaper than one over parts: that keeps what it has come to in 500 bytes.
    let mut bytes = [0; 6 * 8];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::view::ViewId;

    #[test]
    fn the_history_goes_back_by_so_many_changes_and_so_many_bytes() {
        let limits = Limits { history_entries_max: 4, history_bytes_max: 100, ..Limits::default() };
        let mut state = State::default();
        let mut change = |counter, bytes| {
            let version = Version { view: ViewId(1), counter };
            let value = Value { bytes: vec![7; bytes].into(), ends_at_ms: None };
            let changes = vec![(Blob::from(b"k"), Some(value))];
            state.apply(Applied { version, operation: None, possible_duplicate: false, changes }, &limits);
            (state.history.len(), state.oldest_known().counter)
        };
        let kept: Vec<_> = (1..=6).map(|counter| change(counter, 1)).collect();
        assert_eq!(kept[3..], [(4, 0), (4, 1), (4, 2)]);
        assert_eq!(change(7, 96), (2, 5), "of 103 bytes the first two go");
        assert_eq!(change(8, 1000), (1, 7), "one may go beyond");
    }
}
