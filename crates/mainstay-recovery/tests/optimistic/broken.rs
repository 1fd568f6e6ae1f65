//! Optimistic logging with one rule broken.

use crate::truth::number;
use mainstay_recovery::logging::{Admission, Logging, Malformed, Source, Wish};
use mainstay_recovery::optimistic::Optimistic;
use mainstay_types::codec::Reader;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A stamp names no third node.
    DirectDependenciesOnly,
    /// What is safe in the own journal counts as recoverable.
    OwnJournalSuffices,
    /// A node tells nothing of others' lives.
    OwnLivesOnly,
    /// A node that crashes forgets which states of others are lost.
    LossesForgotten,
    /// No life is told after the first.
    LivesUntold,
    /// A rollback leaves one delivery too many.
    KeepsOneTooMany,
    /// A rollback gives up one delivery too many.
    KeepsOneTooFew,
}

/// Tag of the control message that tells where lives began: docs/message-logging.md, "Optimistic".
const LIVES: u8 = 0x41;

#[derive(Debug)]
pub(crate) struct Broken {
    inner: Optimistic,
    fault: Fault,
    me: NodeId,
    ends: Vec<(Lsn, DeliveryIndex)>,
    safe: DeliveryIndex,
    life: Incarnation,
}

impl Broken {
    pub(crate) fn new(fault: Fault, me: NodeId, all: &[NodeId]) -> Self {
        let zero = DeliveryIndex(0);
        Self {
            inner: Optimistic::new(me, all),
            fault,
            me,
            ends: Vec::new(),
            safe: zero,
            life: Incarnation(0),
        }
    }

    fn pass(&self, wishes: &mut Vec<Wish>, since: usize) {
        let told = wishes.split_off(since);
        for mut wish in told {
            match &mut wish {
                Wish::Tell { body, .. } if body[0] == LIVES => match self.fault {
                    Fault::OwnLivesOnly => match own_lives(self.me, body) {
                        Some(own) => *body = own,
                        None => continue,
                    },
                    Fault::LivesUntold if self.life > Incarnation(2) => continue,
                    _ => {}
                },
                Wish::RollBack { keep, .. } if self.fault == Fault::KeepsOneTooMany => *keep = keep.next(),
                Wish::RollBack { keep, .. } if self.fault == Fault::KeepsOneTooFew => {
                    keep.0 = keep.0.saturating_sub(1);
                }
                _ => {}
            }
            wishes.push(wish);
        }
    }
}

/// What a message says of the lives of its sender, which come last, if it does.
fn own_lives(me: NodeId, body: &[u8]) -> Option<Vec<u8>> {
    let mut reader = Reader::new(&body[1..]);
    let mut own = None;
    for _ in 0..number(&mut reader) {
        let at = 1 + reader.position();
        let node = number(&mut reader);
        for _ in 0..2 * number(&mut reader) {
            number(&mut reader);
        }
        if node == u64::from(me.0) {
            own = Some([&[LIVES, 1], &body[at..=reader.position()]].concat());
        }
    }
    own
}

impl Logging for Broken {
    fn delivered(&mut self, place: Place, source: &Source) {
        if let Source::Local { end, .. } | Source::Message { end: Some(end), .. } = source {
            self.ends.push((*end, place.delivery));
        }
        self.inner.delivered(place, source);
    }

    fn stamp(&mut self, out: &mut Vec<u8>) {
        match self.fault {
            Fault::DirectDependenciesOnly => out.push(0),
            _ => self.inner.stamp(out),
        }
    }

    fn attach(&mut self, to: NodeId, out: &mut Vec<u8>) {
        self.inner.attach(to, out);
    }

    fn arrived(
        &mut self,
        from: NodeId,
        origin: Point,
        stamp: &[u8],
        attached: &[u8],
        wishes: &mut Vec<Wish>,
    ) -> Result<Admission, Malformed> {
        self.inner.arrived(from, origin, stamp, attached, wishes)
    }

    fn replaying(&mut self, from: NodeId, ssn: Ssn, stamp: &[u8]) -> Result<(), Malformed> {
        self.inner.replaying(from, ssn, stamp)
    }

    fn duplicate(&mut self, from: NodeId, ssn: Ssn, wishes: &mut Vec<Wish>) {
        self.inner.duplicate(from, ssn, wishes);
    }

    fn control(&mut self, from: NodeId, body: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        let since = wishes.len();
        self.inner.control(from, body, wishes)?;
        self.pass(wishes, since);
        Ok(())
    }

    fn safe(&mut self, lsn: Lsn) {
        let safe = self.ends.iter().filter(|(end, _)| *end <= lsn).map(|&(_, index)| index);
        self.safe = self.safe.max(safe.max().unwrap_or_default());
        self.inner.safe(lsn);
    }

    fn needed(&mut self, index: DeliveryIndex, wishes: &mut Vec<Wish>) {
        self.inner.needed(index, wishes);
    }

    fn flush(&mut self, wishes: &mut Vec<Wish>) {
        self.inner.flush(wishes);
    }

    fn recoverable(&self) -> DeliveryIndex {
        match self.fault {
            Fault::OwnJournalSuffices => self.safe,
            _ => self.inner.recoverable(),
        }
    }

    fn connected(&mut self, peer: NodeId, incarnation: Incarnation, wishes: &mut Vec<Wish>) {
        let since = wishes.len();
        self.inner.connected(peer, incarnation, wishes);
        self.pass(wishes, since);
    }

    fn collect(&mut self, peer: NodeId, wishes: &mut Vec<Wish>) {
        self.inner.collect(peer, wishes);
    }

    fn recovered(&mut self, incarnation: Incarnation, last: DeliveryIndex, wishes: &mut Vec<Wish>) {
        self.ends.retain(|&(_, index)| index <= last);
        self.safe = self.safe.min(last);
        self.life = incarnation;
        let since = wishes.len();
        self.inner.recovered(incarnation, last, wishes);
        self.pass(wishes, since);
    }

    fn known_losses(&self, out: &mut Vec<u8>) {
        self.inner.known_losses(out);
    }

    fn learn_losses(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        match self.fault {
            Fault::LossesForgotten => Ok(()),
            _ => self.inner.learn_losses(bytes),
        }
    }

    fn checkpoint_may_cover(&self) -> DeliveryIndex {
        self.inner.recoverable()
    }

    fn checkpointed(&mut self, index: DeliveryIndex) {
        self.inner.checkpointed(index);
    }

    fn save(&self, out: &mut Vec<u8>) {
        self.inner.save(out);
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        self.inner.restore(bytes)
    }
}
