//! The duplicate table of a shard: which operations took effect, with the version and the outcome of each. It is part of the replicated state: the
//! same at every copy that stands at the same version, and moved in the same image as the data (GEODE-6195 and 9913: a table that was moved
//! without versions, or apart from the data, let a retry see its own first attempt).

use crate::limits::Limits;
use crate::operation::Outcome;
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use mainstay_types::operation::{OperationId, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An operation that took effect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// The version that it was given.
    pub version: Version,
    /// What came of it.
    pub outcome: Outcome,
}

/// What the table knows of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Known {
    /// It took effect.
    Seen(Seen),
    /// It did not, as far as the stable state goes.
    Not,
    /// It is older than what is remembered of its thread: it may have taken effect, and must not again.
    Obsolete,
    /// The client is not remembered any more: it may have taken effect, and must not again.
    Evicted,
}

/// What is remembered of one thread of a client.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Thread {
    results: BTreeMap<Sequence, Seen>,
    /// Of the values in them.
    bytes: usize,
    /// Nothing at or below it is remembered, or will be executed again.
    floor: Sequence,
    /// The latest version of it.
    used: Version,
}

/// The table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Duplicates {
    threads: BTreeMap<(ClientId, ThreadId), Thread>,
    /// Threads by their latest version: who is forgotten first.
    by_use: BTreeMap<Version, (ClientId, ThreadId)>,
    /// The highest client that was forgotten. Of a client up to it that is not in the table nothing is known. Client numbers are issued in order, so that
    /// one number is enough to fence all that were forgotten.
    evicted: ClientId,
}

impl Duplicates {
    /// What is known of an operation.
    #[must_use]
    pub fn known(&self, id: OperationId) -> Known {
        match self.threads.get(&(id.client, id.thread)) {
            None if id.client <= self.evicted => Known::Evicted,
            None => Known::Not,
            Some(thread) => match thread.results.get(&id.sequence) {
                Some(seen) => Known::Seen(seen.clone()),
                None if id.sequence <= thread.floor => Known::Obsolete,
                None => Known::Not,
            },
        }
    }

    /// How many threads are remembered.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Remembers an operation that took effect; at the limits the oldest is forgotten, the same at every copy.
    pub(crate) fn record(&mut self, id: OperationId, seen: Seen, limits: &Limits) {
        let key = (id.client, id.thread);
        // An operation that was under way when its thread was forgotten: a row of it alone would make its thread's earlier ones look new.
        if id.client <= self.evicted && !self.threads.contains_key(&key) {
            return;
        }
        let thread = self.threads.entry(key).or_default();
        self.by_use.remove(&thread.used);
        thread.used = seen.version;
        thread.bytes += seen.outcome.bytes();
        if let Some(earlier) = thread.results.insert(id.sequence, seen) {
            thread.bytes -= earlier.outcome.bytes();
        }
        while thread.results.len() > limits.duplicate_results_max
            || thread.bytes > limits.duplicate_result_bytes_max
        {
            let (oldest, dropped) = thread.results.pop_first().expect("there are more results than none");
            thread.bytes -= dropped.outcome.bytes();
            thread.floor = thread.floor.max(oldest);
        }
        self.by_use.insert(thread.used, key);
    }

    /// Forgets threads beyond `threads_max`, the one whose last operation is oldest first; returns them.
    pub(crate) fn trim(&mut self, threads_max: usize) -> Vec<(ClientId, ThreadId)> {
        let mut forgotten = Vec::new();
        while self.threads.len() > threads_max {
            let (_, &key) = self.by_use.first_key_value().expect("every thread has a latest version");
            self.forget(key);
            forgotten.push(key);
        }
        forgotten
    }

    /// Forgets a thread.
    pub(crate) fn forget(&mut self, key: (ClientId, ThreadId)) {
        if let Some(thread) = self.threads.remove(&key) {
            self.by_use.remove(&thread.used);
        }
        self.evicted = self.evicted.max(key.0);
    }

    /// Threads behind `after`, as many as fit into `bytes_max` and one more, for an image.
    pub(crate) fn chunk(
        &self,
        after: Option<(ClientId, ThreadId)>,
        bytes_max: usize,
    ) -> Vec<((ClientId, ThreadId), Thread)> {
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let mut bytes = 0;
        let mut chunk = Vec::new();
        for (&key, thread) in self.threads.range((from, std::ops::Bound::Unbounded)) {
            chunk.push((key, thread.clone()));
            bytes += thread.results.len() * size_of::<Seen>() + thread.bytes + size_of::<Thread>();
            if bytes > bytes_max {
                break;
            }
        }
        chunk
    }

    /// The highest client that was forgotten.
    pub(crate) fn evicted(&self) -> ClientId {
        self.evicted
    }

    /// A table of which nothing is known yet but whom it has forgotten.
    pub(crate) fn behind(evicted: ClientId) -> Self {
        Self { evicted, ..Self::default() }
    }

    /// Takes over a part of another copy's table.
    pub(crate) fn fill(&mut self, chunk: Vec<((ClientId, ThreadId), Thread)>) {
        for (key, thread) in chunk {
            if let Some(earlier) = self.threads.remove(&key) {
                self.by_use.remove(&earlier.used);
            }
            self.by_use.insert(thread.used, key);
            self.threads.insert(key, thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::view::ViewId;

    fn id(client: u64, sequence: u64) -> OperationId {
        OperationId { client: ClientId(client), thread: ThreadId(1), sequence: Sequence(sequence) }
    }

    fn limits() -> Limits {
        Limits { duplicate_results_max: 2, duplicate_result_bytes_max: 10, ..Limits::default() }
    }

    fn seen(counter: u64) -> Seen {
        Seen { version: Version { view: ViewId(1), counter }, outcome: Outcome::Written }
    }

    #[test]
    fn what_left_the_window_is_obsolete_and_never_new() {
        let mut table = Duplicates::default();
        for sequence in 1..=3 {
            table.record(id(1, sequence), seen(sequence), &limits());
        }
        assert_eq!(table.known(id(1, 1)), Known::Obsolete);
        assert_eq!(table.known(id(1, 3)), Known::Seen(seen(3)));
        assert_eq!(table.known(id(1, 4)), Known::Not);
    }

    #[test]
    fn results_with_long_values_leave_the_window_sooner() {
        let mut table = Duplicates::default();
        let value = |counter| {
            let value = crate::operation::Value { bytes: vec![0; 6].into(), ends_at_ms: None };
            Seen { outcome: Outcome::Value(Some(value)), ..seen(counter) }
        };
        for sequence in 1..=2 {
            table.record(id(1, sequence), value(sequence), &limits());
        }
        assert_eq!(table.known(id(1, 1)), Known::Obsolete);
        assert_eq!(table.known(id(1, 2)), Known::Seen(value(2)));
        table.record(id(1, 3), seen(3), &limits());
        assert_eq!(table.known(id(1, 2)), Known::Seen(value(2)));
    }

    #[test]
    fn a_client_that_was_forgotten_is_told_so() {
        let mut table = Duplicates::default();
        for client in 1..=3 {
            table.record(id(client, 1), seen(client), &limits());
        }
        table.record(id(1, 2), seen(4), &limits());
        table.trim(2);
        assert_eq!(table.known(id(2, 1)), Known::Evicted, "its last operation was the oldest");
        assert_eq!(table.known(id(1, 1)), Known::Seen(seen(1)));
        assert_eq!(table.known(id(4, 1)), Known::Not);
    }

    /// The row came back with an operation that was under way when it was forgotten, and what its thread had done passed for new.
    #[test]
    fn a_thread_that_was_forgotten_does_not_come_back() {
        let mut table = Duplicates::default();
        table.record(id(1, 2), seen(1), &limits());
        table.record(id(2, 1), seen(2), &limits());
        assert_eq!(table.trim(1), [(ClientId(1), ThreadId(1))]);
        table.record(id(1, 1), seen(3), &limits());
        for sequence in 1..=3 {
            assert_eq!(table.known(id(1, sequence)), Known::Evicted);
        }
    }

    #[test]
    fn a_table_moved_in_chunks_is_the_same_table() {
        let mut table = Duplicates::default();
        for client in 1..=5 {
            table.record(id(client, 1), seen(client), &limits());
        }
        table.trim(4);
        let mut copy = Duplicates::behind(table.evicted());
        let mut after = None;
        loop {
            let chunk = table.chunk(after, 0);
            let Some(&(last, _)) = chunk.last() else { break };
            after = Some(last);
            copy.fill(chunk);
        }
        assert_eq!(copy, table);
    }
}
