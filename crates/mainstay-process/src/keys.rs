//! Idempotency keys: the first answer to each, kept for a stated time.

use crate::handler::Answer;
use mainstay_types::id::Lsn;
use mainstay_types::time::Time;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The table of keys. An unexpired key is never given up: when the table is full, new keys are refused.
/// Saved are the entries alone.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Keys {
    entries: BTreeMap<Vec<u8>, Entry>,
    /// Keys by the time they expire: another order of the same.
    #[serde(skip)]
    expiry: BTreeSet<(Time, Vec<u8>)>,
}

/// What is remembered of a request by its key or by its place in a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// XXH3-128 of the body: another body under the same identity is a mistake of the client.
    pub(crate) fingerprint: u128,
    /// `None` while the request is logged but not executed.
    pub(crate) answer: Option<Arc<Answer>>,
    /// End of the request's record; once it is answered, of the record that its answer waits for, also when given again.
    pub(crate) end: Lsn,
    /// When it is forgotten; never for a place in a thread.
    pub(crate) expires: Option<Time>,
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = BTreeMap::<Vec<u8>, Entry>::deserialize(deserializer)?;
        let mut expiry = BTreeSet::new();
        for (key, entry) in &entries {
            let expires = entry.expires.ok_or_else(|| de::Error::custom("a key that never expires"))?;
            expiry.insert((expires, key.clone()));
        }
        Ok(Self { entries, expiry })
    }
}

impl Keys {
    /// The entry of `key`, unless it has expired at `now`.
    pub(crate) fn find(&self, key: &[u8], now: Time) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| entry.expires.is_some_and(|expires| expires > now))
    }

    /// Forgets what has expired at `now`. Called with recorded times only, so that replay forgets the same.
    pub(crate) fn sweep(&mut self, now: Time) {
        while self.expiry.first().is_some_and(|(expires, _)| *expires <= now) {
            let (_, key) = self.expiry.pop_first().expect("a first was just seen");
            self.entries.remove(&key);
        }
    }

    /// Remembers a request that was just logged, or is met again in replay: a checkpoint knows requests that were logged
    /// and not executed.
    pub(crate) fn insert(&mut self, key: Vec<u8>, entry: Entry) {
        if self.entries.get(&key).is_some_and(|known| known.end == entry.end) {
            return;
        }
        let expires = entry.expires.expect("a key's entry expires");
        if let Some(Entry { expires: Some(before), .. }) = self.entries.insert(key.clone(), entry) {
            self.expiry.remove(&(before, key.clone()));
        }
        self.expiry.insert((expires, key));
    }

    /// The request of `key` has this answer, which depends on the record that ends at `end`.
    pub(crate) fn answer(&mut self, key: &[u8], answer: Arc<Answer>, end: Lsn) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.answer = Some(answer);
            entry.end = entry.end.max(end);
        }
    }

    /// See [`crate::tables::Tables::carry_over`].
    pub(crate) fn carry_over(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.end = Lsn::ZERO);
    }

    /// See [`crate::tables::Tables::forget_unexecuted`]; `is_open` knows requests that are executed and not answered.
    pub(crate) fn forget_unexecuted(&mut self, is_open: impl Fn(&[u8]) -> bool) {
        let Self { entries, expiry } = self;
        entries.retain(|key, entry| entry.answer.is_some() || is_open(key));
        expiry.retain(|(_, key)| entries.contains_key(key));
    }

    /// Whether `limit` unexpired keys are there at `now`.
    pub(crate) fn full(&self, limit: usize, now: Time) -> bool {
        // Expired entries stay until the next delivery sweeps them; they do not count.
        self.entries.len() >= limit && {
            let expired = self.expiry.iter().take_while(|(expires, _)| *expires <= now).count();
            self.entries.len() - expired >= limit
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(expires: u64) -> Entry {
        Entry { fingerprint: 1, answer: None, end: Lsn(8), expires: Some(Time(expires)) }
    }

    #[test]
    fn a_key_is_known_until_it_expires_and_new_afterwards() {
        let mut keys = Keys::default();
        keys.insert(b"a".to_vec(), entry(10));
        assert!(keys.find(b"a", Time(9)).is_some());
        assert!(keys.find(b"a", Time(10)).is_none());
        keys.sweep(Time(10));
        keys.insert(b"a".to_vec(), entry(30));
        assert!(keys.find(b"a", Time(29)).is_some());
    }

    #[test]
    fn keys_kept_for_different_times_are_forgotten_each_at_its_own() {
        let mut keys = Keys::default();
        keys.insert(b"long".to_vec(), entry(1000));
        keys.insert(b"short".to_vec(), entry(10));
        keys.sweep(Time(10));
        assert!(keys.find(b"long", Time(10)).is_some());
        let again = Entry { end: Lsn(16), ..entry(70) };
        keys.insert(b"short".to_vec(), again);
        keys.insert(b"short".to_vec(), Entry { end: Lsn(24), ..entry(90) });
        keys.sweep(Time(70));
        assert!(keys.find(b"short", Time(70)).is_some(), "it was replaced by one that is kept longer");
        assert_eq!(keys.len(), 2);
    }

    #[test]
    fn a_table_read_back_expires_like_the_one_that_was_saved() {
        let mut keys = Keys::default();
        keys.insert(b"long".to_vec(), entry(1000));
        keys.insert(b"short".to_vec(), entry(10));
        let saved = postcard::to_allocvec(&keys).expect("memory takes all");
        let mut read: Keys = postcard::from_bytes(&saved).expect("it was just written");
        assert_eq!(read, keys);
        read.sweep(Time(10));
        assert_eq!(read.len(), 1);

        let endless = BTreeMap::from([(b"k".to_vec(), Entry { expires: None, ..entry(0) })]);
        let saved = postcard::to_allocvec(&endless).expect("memory takes all");
        assert!(postcard::from_bytes::<Keys>(&saved).is_err());
    }

    #[test]
    fn a_full_table_counts_only_unexpired_keys() {
        let mut keys = Keys::default();
        keys.insert(b"a".to_vec(), entry(10));
        keys.insert(b"b".to_vec(), entry(20));
        assert!(keys.full(2, Time(9)));
        assert!(!keys.full(2, Time(10)));
        assert_eq!(keys.len(), 2);
    }
}
