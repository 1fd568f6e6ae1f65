//! What a node takes in: batches of determinants, how far peers have taken its own, and news of their lives and checkpoints.

use super::Causal;
use super::link::Standing;
use super::wire::{self, Determinant, Header, What, put_varint, tag};
use crate::logging::{Malformed, Source, Wish};
use mainstay_types::codec::Reader;
use mainstay_types::determinant::Point;
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId};

/// How a batch came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// With a message, which is asked about again if the batch cannot be taken.
    Attached,
    /// By itself.
    Carried,
    /// As the answer to this node's collecting: it is taken whatever it says of nodes that recover as well.
    Retold,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Yes,
    /// Nothing was taken; when a peer has announced something, or what is missing was told again, it can be.
    NotYet,
    /// Taken but for determinants of a history that its owner lost.
    Orphan,
}

impl Causal {
    /// Takes in a batch of `from`.
    pub(super) fn take_batch(
        &mut self,
        from: NodeId,
        bytes: &[u8],
        how: Way,
        wishes: &mut Vec<Wish>,
    ) -> Result<Taken, Malformed> {
        let link = self.link(from)?;
        let mut reader = Reader::new(bytes);
        let header = Header::take(from, &mut reader)?;
        let mut decoded = std::mem::take(&mut self.decoded);
        decoded.clear();
        let result = wire::take_runs(from, &mut reader, self.cluster, &mut decoded)
            .and_then(|()| self.take_held(link, header.taken, header.stable))
            .map(|()| self.take_determinants(link, header, &mut decoded, how, wishes));
        decoded.clear();
        self.decoded = decoded;
        self.log.settle();
        result
    }

    pub(super) fn take_determinants(
        &mut self,
        link: usize,
        header: Header,
        decoded: &mut Vec<Determinant>,
        how: Way,
        wishes: &mut Vec<Wish>,
    ) -> Taken {
        let from = self.links[link].peer;
        let view = &mut self.links[link];
        view.seen = view.seen.max(header.to);
        if header.from > view.taken {
            if !self.links[link].refused {
                self.ask_again(link, wishes);
            }
            return Taken::NotYet;
        }
        let collecting = how == Way::Retold && self.began.is_none();
        let mut orphan = false;
        let mut pending =
            !collecting && !decoded.is_empty() && self.log.foreign_bytes() > self.foreign_bytes_max;
        decoded.retain(|one| {
            if one.owner == self.me {
                return collecting && self.take_own(one, wishes);
            }
            match self.log.place(one.owner, one.place.delivery) {
                Some(known) if known == one.place => return true,
                // Of two lives that gave the place, the earlier one lost its delivery.
                Some(known) if known.life > one.place.life => {
                    orphan = true;
                    return false;
                }
                Some(_) if !collecting => {
                    pending = true;
                    return true;
                }
                // A later life gave the place again: what is known here, from a checkpoint or from one who has not heard of it yet, and
                // all behind it was lost. Kept, it would be told to be held here in the place of the one that counts.
                Some(_) => {
                    let before = DeliveryIndex(one.place.delivery.0 - 1);
                    self.log.drop_lost(one.owner, before, one.place.life);
                }
                None => {}
            }
            match self.of(one.owner).standing(one.place.life, one.place.delivery) {
                Standing::Valid => true,
                Standing::Covered => false,
                Standing::Pending => {
                    pending |= !collecting;
                    true
                }
                Standing::Lost => {
                    orphan = true;
                    false
                }
            }
        });
        if pending {
            let view = &mut self.links[link];
            view.refused = true;
            // This may be the answer: then it has to be asked for again.
            view.asked_again &= how == Way::Attached;
            return if orphan { Taken::Orphan } else { Taken::NotYet };
        }
        for one in decoded.drain(..) {
            let (owner, delivery) = (one.owner, one.place.delivery);
            self.log.merge(from, one);
            if owner != self.me && delivery <= self.of(owner).stable {
                self.log.make_stable_of(owner, DeliveryIndex(delivery.0 - 1), delivery);
            }
        }
        let view = &mut self.links[link];
        view.taken = view.taken.max(header.to);
        view.refused = false;
        if view.taken >= view.seen {
            view.asked_again = false;
        } else {
            self.ask_again(link, wishes);
        }
        if orphan { Taken::Orphan } else { Taken::Yes }
    }

    pub(super) fn ask_again(&mut self, link: usize, wishes: &mut Vec<Wish>) {
        let view = &mut self.links[link];
        if !view.asked_again {
            view.asked_again = true;
            let mut body = vec![tag::AGAIN];
            put_varint(&mut body, view.taken);
            wishes.push(Wish::Tell { to: view.peer, body });
        }
    }

    /// Something changed that untaken batches may have waited for.
    pub(super) fn ask_for_refused(&mut self, wishes: &mut Vec<Wish>) {
        for link in 0..self.links.len() {
            if self.links[link].refused && self.links[link].connected {
                self.ask_again(link, wishes);
            }
        }
    }

    /// The peer has taken this node's log up to `taken`, and calls its own deliveries up to `stable` stable.
    pub(super) fn take_held(
        &mut self,
        link: usize,
        taken: u64,
        stable: DeliveryIndex,
    ) -> Result<(), Malformed> {
        let view = &mut self.links[link];
        if taken > view.announced_max {
            return Err(wire::never(view.peer, "position", taken));
        }
        if taken > view.held {
            self.log.held(view.peer, view.held, taken);
            view.held = taken;
            view.announced = view.announced.max(taken);
            view.scanned = view.scanned.max(taken);
        }
        if stable > view.stable {
            self.log.make_stable_of(view.peer, view.stable, stable);
            view.stable = stable;
        }
        self.log.settle();
        Ok(())
    }

    pub(super) fn take_covered(&mut self, link: usize, index: DeliveryIndex, wishes: &mut Vec<Wish>) {
        let view = &mut self.links[link];
        if index > view.covered {
            view.covered = index;
            self.log.drop_covered(view.peer, index);
            self.log.settle();
            self.ask_for_refused(wishes);
        }
    }

    pub(super) fn take_recovered(
        &mut self,
        link: usize,
        incarnation: Incarnation,
        last: DeliveryIndex,
        wishes: &mut Vec<Wish>,
    ) -> Result<(), Malformed> {
        let view = &mut self.links[link];
        let peer = view.peer;
        match view.incarnation {
            Some(present) if incarnation < present => return Ok(()),
            Some(present) if incarnation == present => {}
            _ => return Err(wire::never(peer, "life", incarnation.0)),
        }
        view.recovering = false;
        self.take_loss(link, incarnation, last, wishes);
        Ok(())
    }

    /// The peer's life `began` has the deliveries of earlier lives up to `last` and no more.
    pub(super) fn take_loss(
        &mut self,
        link: usize,
        began: Incarnation,
        last: DeliveryIndex,
        wishes: &mut Vec<Wish>,
    ) {
        let peer = self.links[link].peer;
        self.links[link].recovered(began, last);
        if let Some(keep) = self.kept_without(peer, began, last) {
            wishes.push(Wish::RollBack { keep, lost: peer });
        }
        self.log.drop_lost(peer, last, began);
        self.log.settle();
        self.ask_for_refused(wishes);
    }

    /// The last own delivery that does not depend on what `peer` lost above `last`; none is lost while no more fail than
    /// planned for.
    pub(super) fn kept_without(
        &self,
        peer: NodeId,
        incarnation: Incarnation,
        last: DeliveryIndex,
    ) -> Option<DeliveryIndex> {
        let first = self.log.behind(0).find(|entry| {
            let told = entry.owner == peer && entry.place.delivery > last && entry.place.life < incarnation;
            let delivered = entry.owner == self.me
                && matches!(entry.what, What::Message { from, .. } if from == peer)
                && entry.origin.delivery > last
                && entry.origin.incarnation < incarnation;
            (told || delivered) && !entry.gone()
        })?;
        let keep = self.log.own_before(first.position);
        (keep < self.log.own_last()).then_some(keep)
    }

    /// A peer gives back a delivery of this node. Returns whether it is to be taken into the log.
    pub(super) fn take_own(&mut self, one: &Determinant, wishes: &mut Vec<Wish>) -> bool {
        let delivery = one.place.delivery;
        match self.log.place(self.me, delivery) {
            Some(known) if known == one.place => return true,
            // Replayed, or in the checkpoint; or of a life that lost it.
            _ if delivery <= self.log.own_last() => return false,
            Some(known) if known.life > one.place.life => return false,
            Some(_) => self.log.drop_own(delivery),
            None => {}
        }
        wishes.push(Wish::Remembered { place: one.place, source: remembered_source(one.what.clone()) });
        true
    }
}

fn remembered_source(what: What) -> Source {
    match what {
        What::Message { from, ssn } => Source::Message { from, ssn, origin: Point::default(), end: None },
        What::Input { end, record } => {
            Source::Local { end, record: record.expect("what was decoded came with its record") }
        }
    }
}
