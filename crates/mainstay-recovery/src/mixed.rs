//! A protocol among peers some of which are under other policies.
//!
//! Towards its kin a node speaks its own protocol; to the others it is a process that never takes back what it said
//! ([`crate::policy::Departure::AsEffect`]), and that keeps places, as everyone does. What a stranger stamps on its messages
//! was settled before they left and is not read.

use crate::keeper::Keeper;
use crate::logging::{Admission, Logging, Malformed, Source, Wish};
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use std::collections::BTreeSet;

/// The protocol of one node with the peers that do not take part in it.
#[derive(Debug)]
pub struct Mixed {
    own: Box<dyn Logging>,
    strangers: BTreeSet<NodeId>,
    keeper: Keeper,
}

impl Mixed {
    /// `own` was made for the peers that take part; `strangers` are the others.
    #[must_use]
    pub fn new(own: Box<dyn Logging>, strangers: BTreeSet<NodeId>) -> Self {
        Self { own, strangers, keeper: Keeper::default() }
    }

    fn strange(&self, peer: NodeId) -> bool {
        self.strangers.contains(&peer)
    }
}

impl Logging for Mixed {
    fn delivered(&mut self, place: Place, source: &Source) {
        self.own.delivered(place, source);
    }

    fn stamp(&mut self, out: &mut Vec<u8>) {
        self.own.stamp(out);
    }

    fn attach(&mut self, to: NodeId, out: &mut Vec<u8>) {
        if self.strange(to) {
            self.keeper.confirm(to, out);
        } else {
            self.own.attach(to, out);
        }
    }

    fn arrived(
        &mut self,
        from: NodeId,
        origin: Point,
        stamp: &[u8],
        attached: &[u8],
        wishes: &mut Vec<Wish>,
    ) -> Result<Admission, Malformed> {
        if self.strange(from) {
            self.keeper.take(from, attached, wishes)?;
            return Ok(Admission::Deliver);
        }
        self.own.arrived(from, origin, stamp, attached, wishes)
    }

    fn carried(&mut self, from: NodeId, attached: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        if self.strange(from) {
            return self.keeper.take(from, attached, wishes);
        }
        self.own.carried(from, attached, wishes)
    }

    fn waits_for(&self, to: NodeId, index: DeliveryIndex) -> DeliveryIndex {
        if self.strange(to) { index } else { self.own.waits_for(to, index) }
    }

    fn waits_for_journal_of(&self, peer: NodeId) -> bool {
        self.own.waits_for_journal_of(peer)
    }

    fn message_waits(&self) -> Option<Lsn> {
        self.own.message_waits()
    }

    fn replaying(&mut self, from: NodeId, ssn: Ssn, stamp: &[u8]) -> Result<(), Malformed> {
        if self.strange(from) { Ok(()) } else { self.own.replaying(from, ssn, stamp) }
    }

    fn duplicate(&mut self, from: NodeId, ssn: Ssn, wishes: &mut Vec<Wish>) {
        if !self.strange(from) {
            self.own.duplicate(from, ssn, wishes);
        }
    }

    fn control(&mut self, from: NodeId, body: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        if self.strange(from) {
            return self.keeper.take(from, body, wishes);
        }
        self.own.control(from, body, wishes)
    }

    fn safe(&mut self, lsn: Lsn) {
        self.own.safe(lsn);
    }

    fn needed(&mut self, index: DeliveryIndex, wishes: &mut Vec<Wish>) {
        self.own.needed(index, wishes);
    }

    fn flush(&mut self, wishes: &mut Vec<Wish>) {
        self.own.flush(wishes);
        self.keeper.flush(wishes);
    }

    fn recoverable(&self) -> DeliveryIndex {
        self.own.recoverable()
    }

    fn connected(&mut self, peer: NodeId, incarnation: Incarnation, wishes: &mut Vec<Wish>) {
        if self.strange(peer) {
            self.keeper.connected(peer, incarnation);
        } else {
            self.own.connected(peer, incarnation, wishes);
        }
    }

    fn disconnected(&mut self, peer: NodeId) {
        if self.strange(peer) {
            self.keeper.disconnected(peer);
        } else {
            self.own.disconnected(peer);
        }
    }

    fn collect(&mut self, peer: NodeId, wishes: &mut Vec<Wish>) {
        if !self.strange(peer) {
            self.own.collect(peer, wishes);
        }
    }

    fn recovered(&mut self, incarnation: Incarnation, last: DeliveryIndex, wishes: &mut Vec<Wish>) {
        self.own.recovered(incarnation, last, wishes);
    }

    fn known_losses(&self, out: &mut Vec<u8>) {
        self.own.known_losses(out);
    }

    fn learn_losses(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        self.own.learn_losses(bytes)
    }

    fn checkpoint_may_cover(&self) -> DeliveryIndex {
        self.own.checkpoint_may_cover()
    }

    fn checkpointed(&mut self, index: DeliveryIndex) {
        self.own.checkpointed(index);
    }

    fn save(&self, out: &mut Vec<u8>) {
        self.own.save(out);
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        self.own.restore(bytes)
    }
}
