//! Pessimistic logging, and none: a process that finds all it needs in its own journal, or does without.
//!
//! Its records are its determinants, and the journal's own marks say when they are safe; so nothing is told and every
//! delivery is recoverable as far as this room is concerned. For sender-based receivers it keeps places, as everyone does.

use crate::keeper::Keeper;
use crate::logging::{Admission, Logging, Malformed, Source, Wish};
use mainstay_types::codec::Reader;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};

/// The protocol of immediate, deferred and no logging.
#[derive(Debug, Default)]
pub struct Local {
    delivered: DeliveryIndex,
    keeper: Keeper,
}

impl Logging for Local {
    fn delivered(&mut self, place: Place, _: &Source) {
        self.delivered = place.delivery;
    }

    fn stamp(&mut self, _: &mut Vec<u8>) {}

    fn attach(&mut self, to: NodeId, out: &mut Vec<u8>) {
        self.keeper.confirm(to, out);
    }

    fn arrived(
        &mut self,
        from: NodeId,
        _: Point,
        _: &[u8],
        attached: &[u8],
        wishes: &mut Vec<Wish>,
    ) -> Result<Admission, Malformed> {
        self.keeper.take(from, attached, wishes)?;
        Ok(Admission::Deliver)
    }

    fn carried(&mut self, from: NodeId, attached: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        self.keeper.take(from, attached, wishes)
    }

    fn duplicate(&mut self, _: NodeId, _: Ssn, _: &mut Vec<Wish>) {}

    fn control(&mut self, from: NodeId, body: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        self.keeper.take(from, body, wishes)
    }

    fn safe(&mut self, _: Lsn) {}

    fn needed(&mut self, _: DeliveryIndex, _: &mut Vec<Wish>) {}

    fn flush(&mut self, wishes: &mut Vec<Wish>) {
        self.keeper.flush(wishes);
    }

    fn recoverable(&self) -> DeliveryIndex {
        self.delivered
    }

    fn connected(&mut self, peer: NodeId, incarnation: Incarnation, _: &mut Vec<Wish>) {
        self.keeper.connected(peer, incarnation);
    }

    fn disconnected(&mut self, peer: NodeId) {
        self.keeper.disconnected(peer);
    }

    fn collect(&mut self, _: NodeId, _: &mut Vec<Wish>) {}

    fn recovered(&mut self, _: Incarnation, last: DeliveryIndex, _: &mut Vec<Wish>) {
        self.delivered = last;
    }

    fn checkpointed(&mut self, _: DeliveryIndex) {}

    fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.delivered.0.to_le_bytes());
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        self.delivered = DeliveryIndex(Reader::new(bytes).u64()?);
        Ok(())
    }
}
