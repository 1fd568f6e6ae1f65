//! What the deliveries did since a checkpoint was last begun. A record says what the delivery executed last before it did: nothing is recorded of the
//! newest one, nor, under immediate logging, of those that were logged together with a later one. What all of them did stands, in one number,
//! where kill -9 cannot reach it, so that replay finds out also of these whether it does something else than the first run, whose effects may have left.
//! It is gone after a power loss, and after a start that failed between the journal's new life and the process's.
//!
//! For a process that stands alone: in a cluster a place in history may be given to another delivery later.

use crate::config::Config;
use crate::handler::Handler;
use crate::history::History;
use crate::process::Process;
use crate::summary::Summary;
use mainstay_journal::memory::PageMemory;
use mainstay_journal::open::{NOTE_BYTES, Note, OpenReport};
use mainstay_types::codec::Reader;
use mainstay_types::id::{DeliveryIndex, Lsn};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The deliveries since a checkpoint was last begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newest {
    /// The first of them.
    pub(crate) first: DeliveryIndex,
    /// The last of them; before the first if there is none.
    pub(crate) last: DeliveryIndex,
    /// Over what all of them did, in order.
    digest: u64,
    /// What the last one did.
    pub(crate) summary: Summary,
}

impl Newest {
    /// None, after one at `saved`.
    pub(crate) fn after(saved: DeliveryIndex) -> Self {
        Self { first: saved.next(), last: saved, digest: 0, summary: Summary::default() }
    }

    /// Takes the next delivery in, unless it comes before the first.
    #[inline]
    pub(crate) fn take(&mut self, delivery: DeliveryIndex, summary: Summary) {
        if delivery < self.first {
            return;
        }
        self.digest = xxh3_64_with_seed(&summary.bytes(), self.digest);
        (self.last, self.summary) = (delivery, summary);
    }

    /// As noted of them, with the `end` of the last one's record; `None` if there are none.
    #[inline]
    pub(crate) fn note(&self, end: Lsn) -> Option<Note> {
        if self.last < self.first {
            return None;
        }
        let mut bytes = [0; NOTE_BYTES];
        for (at, number) in [self.first.0, self.last.0, self.digest].into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[24..24 + Summary::BYTES].copy_from_slice(&self.summary.bytes());
        Some(Note { end, bytes })
    }

    /// What the last life noted, if its journal says so and the process stands alone.
    pub(crate) fn left_by(report: &OpenReport, config: &Config) -> Option<Self> {
        report.note.filter(|_| config.cluster.is_none()).as_ref().map(Self::of_note)
    }

    /// Reads what an earlier life noted.
    fn of_note(note: &Note) -> Self {
        let mut from = Reader::new(&note.bytes);
        let mut number = || from.u64().expect("a note has room for all of it");
        let [first, last] = [(); 2].map(|()| DeliveryIndex(number()));
        let digest = number();
        let summary = Summary::take(&mut from).expect("a note has room for all of it");
        Self { first, last, digest, summary }
    }
}

impl<H: Handler> History<H> {
    /// What is to be noted of the newest deliveries, if there are any and the process stands alone.
    #[inline]
    pub(crate) fn note(&self) -> Option<Note> {
        self.newest?.note(self.tables.executed_end)
    }
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Notes what the newest deliveries did, before anything of it can leave.
    pub(crate) fn note_newest(&mut self) {
        if let Some(note) = self.history.note() {
            self.journal.note(Some(note));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(digest: u64) -> Summary {
        Summary { digest, status: 200, outputs: 1, timers: 2, answer_bytes: 3 }
    }

    #[test]
    fn it_is_the_same_after_a_replay_and_another_one_if_any_delivery_did_something_else() {
        let run = |digests: [u64; 5]| {
            let mut newest = Newest::after(DeliveryIndex(2));
            for (index, digest) in (1..).zip(digests) {
                newest.take(DeliveryIndex(index), summary(digest));
            }
            newest
        };
        let first = run([1, 2, 3, 4, 5]);
        assert_eq!(
            (first.first, first.last, first.summary),
            (DeliveryIndex(3), DeliveryIndex(5), summary(5))
        );
        assert_eq!(first, run([8, 9, 3, 4, 5]), "a checkpoint has those before");
        let others = [[1, 2, 9, 4, 5], [1, 2, 3, 9, 5], [1, 2, 3, 4, 9], [1, 2, 4, 3, 5]];
        assert!(others.into_iter().all(|digests| run(digests) != first));
        assert_eq!(Newest::of_note(&first.note(Lsn(640)).expect("three")), first);
        assert_eq!(Newest::after(DeliveryIndex(2)).note(Lsn(640)), None);
    }
}
