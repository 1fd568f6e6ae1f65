//! The sender log: what was sent to one peer and may have to be sent again, with the places that its receiver gave.

use crate::limits::Limits;
use crate::spill::Body;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::Ssn;
use std::collections::{BTreeMap, VecDeque};

/// What an entry counts besides its body and stamp, in bytes: itself, and what its two allocations take beside their contents.
pub(crate) const ENTRY_BYTES: u64 = 152;

/// A retained message.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) origin: Point,
    pub(crate) place: Option<Place>,
    pub(crate) stamp: Vec<u8>,
    pub(crate) body: Body,
}

impl Entry {
    /// In memory, and outside of it.
    #[inline]
    fn bytes(&self) -> (u64, u64) {
        let fixed = ENTRY_BYTES + self.stamp.len() as u64;
        match &self.body {
            Body::Memory(bytes) => (fixed + bytes.len() as u64, 0),
            Body::Spilled { from, to, .. } => (fixed, u64::from(to - from)),
        }
    }
}

/// Bodies to be moved out of memory.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) first: Ssn,
    pub(crate) lengths: Vec<u32>,
    pub(crate) bytes: Vec<u8>,
}

/// All messages to one peer with numbers above `covered` and up to `appended`.
///
/// While its node recovers, `covered` can be above `appended`: the peer's history holds what is only now emitted again.
#[derive(Debug, Default)]
pub(crate) struct SenderLog {
    covered: Ssn,
    appended: Ssn,
    entries: VecDeque<Entry>,
    bytes: u64,
    spilled_bytes: u64,
    /// The bodies up to this are outside of memory, or on their way there.
    spilled: Ssn,
    /// Places of messages that are not emitted again yet. Without them a second failure, of the receiver, soon after the
    /// recovery of this node would find nobody who knows them.
    early: BTreeMap<Ssn, Place>,
}

impl SenderLog {
    /// An empty log whose messages up to `covered` are needed no more.
    pub(crate) fn starting_at(covered: Ssn) -> Self {
        Self { covered, appended: covered, ..Self::default() }
    }

    /// The highest number given.
    #[inline]
    pub(crate) fn appended(&self) -> Ssn {
        self.appended
    }

    /// The highest number that the receiver never needs again.
    #[inline]
    pub(crate) fn covered(&self) -> Ssn {
        self.covered
    }

    /// Memory held, in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes + self.early.len() as u64 * ENTRY_BYTES
    }

    /// Kept outside of memory, in bytes.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.spilled_bytes
    }

    /// Messages retained.
    pub(crate) fn messages(&self) -> usize {
        self.entries.len()
    }

    /// The retained message of that number.
    #[inline]
    pub(crate) fn entry(&self, ssn: Ssn) -> Option<&Entry> {
        self.place_of(ssn).and_then(|place| self.entries.get(place))
    }

    /// The retained messages, in order.
    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    #[inline]
    pub(crate) fn append(&mut self, mut entry: Entry) -> Ssn {
        self.appended = self.appended.next();
        let known = self.early.remove(&self.appended);
        if self.appended > self.covered {
            entry.place = entry.place.or(known);
            self.count(&entry, u64::checked_add);
            self.entries.push_back(entry);
        }
        self.appended
    }

    /// Keeps a place. A later life of the receiver may give another one: the last one counts.
    pub(crate) fn ordered(&mut self, ssn: Ssn, place: Place) {
        if ssn > self.appended {
            self.early.insert(ssn, place);
        } else if let Some(entry) = self.place_of(ssn).and_then(|at| self.entries.get_mut(at)) {
            entry.place = Some(place);
        }
    }

    /// Drops what is needed no more.
    #[inline]
    pub(crate) fn cover(&mut self, ssn: Ssn) {
        while self.covered < ssn {
            self.covered = self.covered.next();
            match self.entries.pop_front() {
                Some(entry) => self.count(&entry, u64::checked_sub),
                None => self.covered = ssn,
            }
        }
        while self.early.first_key_value().is_some_and(|(&early, _)| early <= ssn) {
            self.early.pop_first();
        }
    }

    /// Recovery is over: what was not emitted again is lost, and its numbers will be given anew.
    pub(crate) fn recovered(&mut self) {
        self.covered = self.covered.min(self.appended);
        self.early.clear();
    }

    /// The oldest bodies that are in memory, one after another, with the number of the first and the length of each, if there is more in it
    /// than there should be: as many as make `chunk_bytes`, or as there is room for outside.
    pub(crate) fn take_to_spill(&mut self, limits: &Limits, chunk_bytes: u64) -> Option<Chunk> {
        if self.bytes() <= limits.log_memory_bytes_max {
            return None;
        }
        let first = self.spilled.max(self.covered).next();
        let (mut lengths, mut bytes) = (Vec::new(), Vec::new());
        for entry in self.entries.iter().skip(self.place_of(first)?) {
            let Body::Memory(body) = &entry.body else {
                unreachable!("what is outside of memory is older than what is not")
            };
            let more = bytes.len() as u64 + body.len() as u64;
            if bytes.len() as u64 >= chunk_bytes || self.spilled_bytes + more > limits.log_spill_bytes_max {
                break;
            }
            bytes.extend_from_slice(body);
            lengths.push(u32::try_from(body.len()).expect("a body is within its limit"));
        }
        // Bodies without a byte would be asked for for ever and free nothing.
        if bytes.is_empty() {
            return None;
        }
        self.spilled = Ssn(first.0 + lengths.len() as u64 - 1);
        Some(Chunk { first, lengths, bytes })
    }

    /// The body of that message is outside of memory now; if the message is not needed any more, nothing is.
    pub(crate) fn spilled(&mut self, ssn: Ssn, body: Body) {
        let Some(entry) = self.place_of(ssn).and_then(|at| self.entries.get_mut(at)) else { return };
        assert_eq!(entry.body.len(), body.len(), "a message keeps its body");
        let bytes = body.len() as u64;
        entry.body = body;
        self.bytes -= bytes;
        self.spilled_bytes += bytes;
    }

    /// The bodies from that number on stay in memory after all.
    pub(crate) fn not_spilled(&mut self, first: Ssn) {
        self.spilled = Ssn(first.0 - 1);
    }

    fn count(&mut self, entry: &Entry, change: impl Fn(u64, u64) -> Option<u64>) {
        let (memory, spilled) = entry.bytes();
        let [bytes, spilled_bytes] = [(self.bytes, memory), (self.spilled_bytes, spilled)]
            .map(|(sum, bytes)| change(sum, bytes).expect("what is counted in is counted out"));
        (self.bytes, self.spilled_bytes) = (bytes, spilled_bytes);
    }

    #[inline]
    fn place_of(&self, ssn: Ssn) -> Option<usize> {
        usize::try_from(ssn.0.checked_sub(self.covered.0)?.checked_sub(1)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::{DeliveryIndex, Incarnation};
    use mainstay_types::time::Time;

    #[inline]
    fn entry(body: &[u8]) -> Entry {
        Entry { origin: Point::default(), place: None, stamp: Vec::new(), body: Body::Memory(body.into()) }
    }

    fn place(delivery: u64) -> Place {
        Place { delivery: DeliveryIndex(delivery), life: Incarnation(1), now: Time(1), seed: 2 }
    }

    #[test]
    fn what_is_covered_is_dropped_and_its_bytes_with_it() {
        let mut log = SenderLog::default();
        for body in [&b"a"[..], b"bb", b"ccc"] {
            log.append(entry(body));
        }
        assert_eq!((log.messages(), log.bytes()), (3, 3 * ENTRY_BYTES + 6));
        log.cover(Ssn(2));
        assert!(log.entry(Ssn(2)).is_none());
        assert_eq!(log.entry(Ssn(3)).map(|entry| &entry.body[..]), Some(&b"ccc"[..]));
        log.cover(Ssn(1));
        log.cover(Ssn(3));
        assert_eq!((log.messages(), log.bytes(), log.covered()), (0, 0, Ssn(3)));
    }

    /// A receiver tells the places it gave as soon as it is greeted, when a recovering sender has not yet emitted those
    /// messages again: were they dropped, the receiver's own crash soon after would find no copy.
    #[test]
    fn a_place_told_before_its_message_is_emitted_again_is_kept() {
        let mut log = SenderLog::default();
        log.ordered(Ssn(2), place(7));
        log.append(entry(b"one"));
        log.append(entry(b"two"));
        assert_eq!(log.entry(Ssn(1)).and_then(|entry| entry.place), None);
        assert_eq!(log.entry(Ssn(2)).and_then(|entry| entry.place), Some(place(7)));
        assert_eq!(log.bytes(), 2 * ENTRY_BYTES + 6);
        log.ordered(Ssn(2), place(8));
        assert_eq!(log.entry(Ssn(2)).and_then(|entry| entry.place), Some(place(8)));
    }

    #[test]
    fn what_is_covered_before_it_is_emitted_again_is_not_retained() {
        let mut log = SenderLog::default();
        log.ordered(Ssn(1), place(3));
        log.cover(Ssn(2));
        assert_eq!(log.bytes(), 0);
        assert_eq!(log.append(entry(b"one")), Ssn(1));
        assert_eq!(log.append(entry(b"two")), Ssn(2));
        assert_eq!(log.append(entry(b"three")), Ssn(3));
        assert_eq!((log.messages(), log.bytes()), (1, ENTRY_BYTES + 5));
        assert!(log.entry(Ssn(3)).is_some());
    }
}
