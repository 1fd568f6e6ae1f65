//! Reading: at the stamper what is acknowledged, at any copy what is stable there, with its age; and asking what became of an operation.

use crate::client::{Client, Written};
use crate::error::ReadError;
use crate::links::socket_of;
use mainstay_region::blob::Blob;
use mainstay_region::message::{Body, Found, Freshness, Message, Query, Refusal};
use mainstay_region::operation::shard_of;
use mainstay_types::operation::{OperationId, Version};
use std::time::{Duration, Instant};

/// A value and the version that set it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value {
    /// The value.
    pub bytes: Vec<u8>,
    /// The version that set it.
    pub version: Version,
}

/// What one copy has, which may be old.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Near {
    /// The value; `None`: the key is not there.
    pub value: Option<Value>,
    /// The version that the copy stands at.
    pub at: Version,
    /// It lacks nothing that was stable so long ago; `None`: the copy does not know.
    pub age: Option<Duration>,
}

/// What became of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inspected {
    /// It took effect.
    Done(Written),
    /// It has not until now; an attempt may still be under way.
    NotSeen,
    /// It may have taken effect, and will not any more: it is older than what is remembered, or its client is forgotten.
    NotRemembered,
}

/// A read under way.
#[derive(Debug)]
pub(crate) struct Read {
    shard: u16,
    query: Query,
    freshness: Freshness,
    tried_at: Instant,
    attempts: usize,
    found: Option<Found>,
}

impl Read {
    /// Another life of this client may have asked under the same number.
    fn is_answered_by(&self, found: &Found) -> bool {
        match &self.query {
            Query::Get { key } => found.entries.iter().all(|(other, _)| *other == *key),
            Query::Scan { prefix, .. } => found.entries.iter().all(|(key, _)| key.starts_with(prefix)),
            _ => true,
        }
    }
}

impl Client {
    /// The value of a key: all that was acknowledged before this call began is in it.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value>, ReadError> {
        let shard = shard_of(key, self.shards());
        let found = self.read(shard, Query::Get { key: key.to_vec() }, Freshness::Linearizable)?;
        Ok(value_of(found).map(|(_, value)| value))
    }

    /// The value of a key at whichever copy answers, and how old it may be.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn get_near(&mut self, key: &[u8]) -> Result<Near, ReadError> {
        let shard = shard_of(key, self.shards());
        let found = self.read(shard, Query::Get { key: key.to_vec() }, Freshness::Any)?;
        let (at, age) = (found.at, found.age_ns.map(Duration::from_nanos));
        Ok(Near { value: value_of(found).map(|(_, value)| value), at, age })
    }

    /// The first `entries_max` keys that begin with `prefix`, in their order, with their values. Each shard is read by itself, as by [`Self::get`];
    /// all together are no picture of one moment.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn scan(&mut self, prefix: &[u8], entries_max: usize) -> Result<Vec<(Vec<u8>, Value)>, ReadError> {
        let mut entries = Vec::new();
        for shard in 0..self.shards() {
            let (mut after, mut of_shard) = (None, 0);
            while of_shard < entries_max {
                let query = Query::Scan { prefix: prefix.to_vec(), after };
                let found = self.read(shard, query, Freshness::Linearizable)?;
                let more = found.more;
                of_shard += found.entries.len();
                after = found.entries.last().map(|(key, _)| key.to_vec());
                entries.extend(found.entries.into_iter().map(value));
                if !more || after.is_none() {
                    break;
                }
            }
        }
        entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        entries.truncate(entries_max);
        Ok(entries)
    }

    /// Asks whether an operation on `key` has taken effect, without asking for it again.
    ///
    /// # Errors
    /// [`ReadError`], also while nobody can tell.
    pub fn inspect(&mut self, id: OperationId, key: &[u8]) -> Result<Inspected, ReadError> {
        let deadline = Instant::now() + self.settings.deadline;
        (self.inspecting, self.inspected) = (Some(id), None);
        let mut asked_at: Option<Instant> = None;
        loop {
            if let Some(inspected) = self.inspected.take() {
                self.inspecting = None;
                return Ok(inspected);
            }
            if Instant::now() >= deadline {
                return Err(self.read_error());
            }
            if asked_at.is_none_or(|at| at.elapsed() >= self.settings.retry_after) {
                asked_at = Some(Instant::now());
                self.machine.inspect(id, key, &mut self.machine_out);
                self.perform();
            }
            self.turn();
        }
    }

    pub(crate) fn shards(&self) -> u16 {
        self.standing.as_ref().map_or(1, |standing| standing.shards)
    }

    pub(crate) fn read(
        &mut self,
        shard: u16,
        query: Query,
        freshness: Freshness,
    ) -> Result<Found, ReadError> {
        self.hear_of_roles();
        let deadline = Instant::now() + self.settings.deadline;
        self.next_read += 1;
        let request = self.next_read;
        let tried_at = Instant::now();
        self.reads.insert(request, Read { shard, query, freshness, tried_at, attempts: 0, found: None });
        self.ask_read(request);
        loop {
            if let Some(found) = self.reads.get_mut(&request).and_then(|read| read.found.take()) {
                self.reads.remove(&request);
                return Ok(found);
            }
            if Instant::now() >= deadline || self.unreadable().is_some() {
                self.reads.remove(&request);
                return Err(self.read_error());
            }
            self.turn();
        }
    }

    fn read_error(&self) -> ReadError {
        ReadError { explanation: self.unreadable().unwrap_or(&self.explanation).to_owned() }
    }

    fn ask_read(&mut self, request: u64) {
        let Some(read) = self.reads.get_mut(&request) else { return };
        let copies = self.machine.copies();
        let to = match read.freshness {
            Freshness::Linearizable => copies.stamper(read.shard),
            // Each attempt at another copy, and not all clients at the same one.
            Freshness::Any => {
                let place = usize::try_from(self.next_read).unwrap_or(0) + read.attempts;
                copies.ids().nth(place % copies.count().max(1))
            }
        };
        read.tried_at = Instant::now();
        read.attempts += 1;
        let Some(to) = to else { return };
        let (query, freshness) = (read.query.clone(), read.freshness);
        let body = Body::Read { request, query, freshness };
        let message = Message { view: copies.view, shard: read.shard, body };
        self.say(socket_of(to.address), message);
    }

    pub(crate) fn ask_all_reads(&mut self) {
        for request in self.reads.keys().copied().collect::<Vec<_>>() {
            self.ask_read(request);
        }
    }

    pub(crate) fn ask_reads_again(&mut self, now: Instant) {
        let late = self.settings.retry_after;
        for request in self.reads.keys().copied().collect::<Vec<_>>() {
            if now.saturating_duration_since(self.reads[&request].tried_at) >= late {
                self.ask_standing();
                self.ask_read(request);
            }
        }
    }

    /// A server answers a read. Refused, it is asked again after a while or at the next view.
    pub(crate) fn answered(&mut self, request: u64, answer: Result<Found, Refusal>) {
        if let (Some(read), Ok(found)) = (self.reads.get_mut(&request), answer)
            && read.is_answered_by(&found)
        {
            read.found = Some(found);
        }
    }
}

fn value_of(found: Found) -> Option<(Vec<u8>, Value)> {
    found.entries.into_iter().next().map(value)
}

fn value((key, stored): (Blob, mainstay_region::state::Stored)) -> (Vec<u8>, Value) {
    (key.into(), Value { bytes: stored.value.into(), version: stored.version })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use mainstay_region::state::Stored;

    /// A client that went on under its number after a restart was given the answer to what it had asked before.
    #[test]
    fn an_answer_to_another_read_is_not_taken() {
        let of_life = || Client::new(&[], "data", Settings::default());
        let (mut client, former) = (of_life(), of_life());
        assert_ne!(client.next_read, former.next_read, "numbers of reads are drawn");
        let key = b"k".to_vec();
        let (query, tried_at) = (Query::Get { key }, Instant::now());
        let read =
            Read { shard: 0, query, freshness: Freshness::Linearizable, tried_at, attempts: 1, found: None };
        client.reads.insert(1, read);
        for (key, is_taken) in [(b"other", false), (b"k", true)] as [(&[u8], bool); 2] {
            let stored = Stored { value: b"v".into(), version: Version::NONE, ends_at_ms: None };
            let entries = vec![(key.into(), stored)];
            let found = Found { at: Version::NONE, age_ns: None, entries, more: false, keys: 0, digest: 0 };
            client.answered(1, Ok(found));
            assert_eq!(client.reads[&1].found.is_some(), is_taken);
        }
    }
}
