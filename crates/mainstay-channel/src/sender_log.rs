//! The sender log: what was sent to one peer and may have to be sent again, with the places that its receiver gave.

use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::Ssn;
use std::collections::{BTreeMap, VecDeque};

/// What an entry counts besides its body and stamp, in bytes: itself, and what its two allocations take beside their contents.
pub(crate) const ENTRY_BYTES: u64 = 144;

/// A retained message.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) origin: Point,
    pub(crate) place: Option<Place>,
    pub(crate) stamp: Vec<u8>,
    pub(crate) body: Box<[u8]>,
}

impl Entry {
    #[inline]
    fn bytes(&self) -> u64 {
        ENTRY_BYTES + self.stamp.len() as u64 + self.body.len() as u64
    }
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
            self.bytes += entry.bytes();
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
                Some(entry) => self.bytes -= entry.bytes(),
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
        Entry { origin: Point::default(), place: None, stamp: Vec::new(), body: body.into() }
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
