//! One shard at one copy: what it accepted, what of it is stable, and what has come too early to be accepted.
//!
//! ```text
//!   versions of this view   1 ──────────── everywhere ──────── stable ──────── end ─ ─ gap ─ ─ held back
//!                           dropped        │ in the log, in the state │ in the log │
//! ```

use crate::blob::Blob;
use crate::evaluate::Held;
use crate::limits::Limits;
use crate::log::{Accepted, Entry, Log};
use crate::message::Acknowledge;
use crate::operation::{Changes, Operation, Outcome};
use crate::state::{Applied, Forgotten, State};
use mainstay_types::id::ClientId;
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::time::Time;
use mainstay_types::view::ViewId;
use std::collections::{BTreeMap, BTreeSet};

/// A payload whose version has not come.
#[derive(Clone, Debug)]
pub(crate) struct HeldPayload {
    pub(crate) operation: Operation,
    pub(crate) since: Time,
}

/// A version whose payload has not come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyVersion {
    pub(crate) id: OperationId,
    pub(crate) possible_duplicate: bool,
}

/// What became of an entry that was offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offered {
    /// It, and perhaps some that were held back, are in the log now.
    Accepted,
    /// It was there.
    Known,
    /// It waits for earlier ones.
    HeldBack,
    /// There is no room; the stamper will send it again.
    Dropped,
}

/// The shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shard {
    pub(crate) state: State,
    pub(crate) log: Log,
    /// Up to here no failure that is planned for can lose it; the state stands here.
    pub(crate) stable: u64,
    /// Up to here every member has it.
    pub(crate) everywhere: u64,
    /// Up to here the journal knows that every member has it: what a life that is found again need not report.
    pub(crate) recorded_everywhere: u64,
    /// What was dropped from the log since, in bytes: such a life has it in its log still.
    pub(crate) unrecorded_bytes: usize,
    /// Up to here it is safe in the journal.
    pub(crate) durable: u64,
    /// At this moment the stamper knew nothing to be stable that is not in the state.
    pub(crate) fresh_at: Option<Time>,
    /// The last version above `stable` that changed a key.
    touched: BTreeMap<Blob, u64>,
    /// When what these changes set ends, with the key.
    ends: BTreeSet<(u64, Blob)>,
    pub(crate) hold_back: BTreeMap<u64, (Entry, Acknowledge)>,
    /// What those count in bytes.
    pub(crate) hold_back_bytes: usize,
    pub(crate) held: BTreeMap<OperationId, HeldPayload>,
    pub(crate) early: BTreeMap<u64, EarlyVersion>,
    /// The stamper waits to be told how far this copy has everything safe: up to here,
    pub(crate) position_owed: u64,
    /// and it was told up to here.
    pub(crate) position_told: u64,
    /// Versions that are not accepted from a client any more, since the stamper was told that they are not here.
    pub(crate) fenced: BTreeSet<u64>,
}

impl Shard {
    /// Takes an entry. What is accepted by it is appended to `accepted`, in order, with whom to tell.
    pub(crate) fn offer(
        &mut self,
        counter: u64,
        entry: Entry,
        tell: Acknowledge,
        limits: &Limits,
        accepted: &mut Vec<(u64, Acknowledge)>,
    ) -> Offered {
        if counter <= self.log.end() {
            return Offered::Known;
        }
        if counter > self.log.end() + 1 {
            if !self.hold_back.contains_key(&counter) {
                let bytes = self.hold_back_bytes + entry.counted_bytes();
                if self.hold_back.len() >= limits.hold_back_entries_max || bytes > limits.hold_back_bytes_max
                {
                    return Offered::Dropped;
                }
                self.hold_back_bytes = bytes;
            }
            let held = self.hold_back.entry(counter).or_insert((entry, tell));
            // Whoever waits for an acknowledgement gets one, however the entry came first.
            if matches!(held.1, Acknowledge::Nobody | Acknowledge::Stamper) {
                held.1 = tell;
            }
            return Offered::HeldBack;
        }
        self.accept(counter, entry, tell, limits, accepted);
        while let Some((entry, tell)) = self.hold_back.remove(&(self.log.end() + 1)) {
            self.hold_back_bytes -= entry.counted_bytes();
            self.accept(self.log.end() + 1, entry, tell, limits, accepted);
        }
        Offered::Accepted
    }

    fn accept(
        &mut self,
        counter: u64,
        entry: Entry,
        tell: Acknowledge,
        limits: &Limits,
        accepted: &mut Vec<(u64, Acknowledge)>,
    ) {
        let (outcome, changes) = match &entry {
            Entry::Void => (Outcome::Differs, Changes::new()),
            Entry::Operation { operation, .. } => operation.evaluate(|key| self.latest(key), limits),
            Entry::Expire { until_ms } => {
                let due = self.due(*until_ms, limits.expire_keys_max);
                (Outcome::Changed(!due.is_empty()), due.into_iter().map(|key| (key, None)).collect())
            }
        };
        for (key, value) in &changes {
            self.forget_end(key);
            if let Some(end) = value.as_ref().and_then(|value| value.ends_at_ms) {
                self.ends.insert((end, key.clone()));
            }
            self.touched.insert(key.clone(), counter);
        }
        let mut tell = tell;
        if let Some(early) = self.early.remove(&counter) {
            // Its payload came another way than from the client, who counts this copy's acknowledgement all the same.
            tell = Acknowledge::Client(early.id.client);
        }
        if let Some(id) = entry.id() {
            self.held.remove(&id);
        }
        self.fenced.remove(&counter);
        let pushed = self.log.push(Accepted { entry, outcome, changes });
        assert_eq!(pushed, counter, "a log has no gaps");
        accepted.push((counter, tell));
    }

    /// What a key is behind everything accepted.
    pub(crate) fn latest(&self, key: &[u8]) -> Option<Held<'_>> {
        let Some(&counter) = self.touched.get(key) else { return self.state.held(key) };
        let accepted = self.log.get(counter).expect("what is not stable is in the log");
        let (_, value) =
            accepted.changes.iter().find(|(changed, _)| *changed == *key).expect("it changed the key");
        let value = value.as_ref()?;
        let version = Version { view: self.state.at.view, counter };
        Some(Held { bytes: &value.bytes, ends_at_ms: value.ends_at_ms, version })
    }

    /// Forgets when a value ends that is not stable: another change of its key comes, or it is stable now.
    fn forget_end(&mut self, key: &Blob) {
        if !self.ends.is_empty()
            && self.touched.contains_key(&**key)
            && let Some(end) = self.latest(key).and_then(|held| held.ends_at_ms)
        {
            self.ends.remove(&(end, key.clone()));
        }
    }

    /// Whether a value has ended by then and is still there, behind everything accepted.
    pub(crate) fn is_due(&self, until_ms: u64) -> bool {
        let first = |ends: &BTreeSet<(u64, Blob)>| ends.first().is_some_and(|(end, _)| *end <= until_ms);
        (first(&self.state.ends) || first(&self.ends)) && !self.due(until_ms, 1).is_empty()
    }

    /// Keys whose values have ended by then, behind everything accepted: the earliest first, at most `keys_max`. The same at every copy
    /// that has accepted the same, however much of it is stable there.
    fn due(&self, until_ms: u64, keys_max: usize) -> Vec<Blob> {
        let by_then = ..(until_ms.saturating_add(1), Blob::default());
        let unchanged = |(_, key): &&(u64, Blob)| !self.touched.contains_key(&**key);
        let stable = self.state.ends.range(by_then.clone()).filter(unchanged).take(keys_max);
        let mut due: Vec<&(u64, Blob)> = stable.chain(self.ends.range(by_then).take(keys_max)).collect();
        due.sort_unstable();
        due.into_iter().take(keys_max).map(|(_, key)| key.clone()).collect()
    }

    /// The last version above the stable ones that changes a key, or 0.
    pub(crate) fn touched(&self, key: &[u8]) -> u64 {
        self.touched.get(key).copied().unwrap_or(0)
    }

    /// Takes into the state what is stable now. What that is goes to `applied`, if there is anybody to be told.
    pub(crate) fn apply_to(
        &mut self,
        view: ViewId,
        stable: u64,
        limits: &Limits,
        mut applied: Option<&mut Vec<(Applied, Forgotten)>>,
    ) {
        while self.stable < stable.min(self.log.end()) {
            self.stable += 1;
            let accepted = self.log.get_mut(self.stable).expect("what is not stable is in the log");
            let next = Applied::of(Version { view, counter: self.stable }, accepted);
            for (key, value) in &next.changes {
                if self.touched.get(&**key) == Some(&self.stable) {
                    if let Some(end) = value.as_ref().and_then(|value| value.ends_at_ms) {
                        self.ends.remove(&(end, key.clone()));
                    }
                    self.touched.remove(&**key);
                }
            }
            let told = applied.as_ref().map(|_| next.clone());
            let forgotten = self.state.apply(next, limits);
            if let (Some(applied), Some(told)) = (&mut applied, told) {
                applied.push((told, forgotten));
            }
        }
    }

    /// Drops what every member has.
    pub(crate) fn trim(&mut self, everywhere: u64) {
        self.everywhere = self.everywhere.max(everywhere.min(self.stable));
        let before = self.log.bytes();
        self.log.trim(self.everywhere);
        self.unrecorded_bytes += before - self.log.bytes();
    }

    /// Begins a view: all of the one before is in the state.
    pub(crate) fn begin(&mut self, view: ViewId) {
        let mut state = std::mem::take(&mut self.state);
        state.at = Version { view, counter: 0 };
        *self = Self { state, ..Self::default() };
    }

    /// Goes on behind a state that was filled by a copy which served the view already: what that has of the view is stable, and not in this log.
    /// Others may still lack it, so that it is not said to be everywhere.
    pub(crate) fn begin_filled(&mut self, view: ViewId) {
        if self.state.at.view == view {
            self.log = Log::behind(self.state.at.counter);
            self.stable = self.state.at.counter;
        }
    }

    /// What is held back is void.
    pub(crate) fn drop_held_back(&mut self) {
        self.hold_back.clear();
        self.hold_back_bytes = 0;
    }

    /// Bytes of payloads whose version has not come.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.values().map(|held| held.operation.bytes()).sum()
    }

    /// Payloads held for one client.
    pub(crate) fn held_of(&self, client: ClientId) -> usize {
        self.held.keys().filter(|id| id.client == client).count()
    }

    /// Takes back what was accepted above `counter` and is not stable.
    pub(crate) fn truncate(&mut self, counter: u64) {
        assert!(self.stable <= counter, "what is stable is in every cut");
        self.log.truncate(counter);
        let log = &self.log;
        self.touched.retain(|_, touched| *touched <= log.end());
        let touched = &self.touched;
        self.ends.retain(|(_, key)| touched.contains_key(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy that was filled told the next one in a chain that all had what it had been filled with. That one dropped it from its log, a copy
    /// that lacked it could not be sent it any more, and the next cut was shorter than what was stable.
    #[test]
    fn what_a_copy_was_filled_with_is_not_said_to_be_everywhere() {
        let mut shard = Shard::default();
        shard.state.at = Version { view: ViewId(3), counter: 7 };
        shard.begin_filled(ViewId(3));
        assert_eq!((shard.stable, shard.log.trimmed(), shard.everywhere), (7, 7, 0));
        shard.trim(5);
        assert_eq!((shard.everywhere, shard.log.end()), (5, 7));
    }
}
