//! The sender's half of sender-based logging: takes in the places that receivers gave, and confirms them.
//!
//! It is apart from the receiver's half because every process under every logging policy has it: a sender-based receiver
//! needs it of all who send to it. The places themselves are kept beside the messages, by who keeps those
//! ([`Wish::Ordered`]); here is only how far each receiver's word goes.

use crate::logging::{Malformed, Wish};
use crate::order::{self, Item, Items, Places};
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId, Ssn};
use std::collections::BTreeMap;

/// How far the places go that receivers told in their present sessions.
#[derive(Debug, Default)]
pub struct Keeper {
    links: BTreeMap<NodeId, Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    life: Incarnation,
    cursor: Cursor,
    confirmed: Option<Ssn>,
}

/// The last place told in this session. Before the first, any message may be the next: the receiver begins with the first that
/// it still needs.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    told: Option<Ssn>,
    delivery: DeliveryIndex,
    life: Incarnation,
}

impl Keeper {
    /// A session with `peer` began, in its life `incarnation`: it tells again what it has no ACK for.
    pub fn connected(&mut self, peer: NodeId, incarnation: Incarnation) {
        self.links.insert(peer, Kept { life: incarnation, ..Kept::default() });
    }

    /// The session with `peer` ended: what it told and has no ACK for, it tells again in the next.
    pub fn disconnected(&mut self, peer: NodeId) {
        self.links.remove(&peer);
    }

    /// Bytes arrived from a peer for whom this node does nothing but keep places.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn take(&mut self, from: NodeId, body: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        // To a node that told no place, no ACK is due.
        self.take_with_acks(from, body, Ssn(0), wishes).map(|_| ())
    }

    /// As [`Self::take`] for a node that itself told `from` the places of its messages up to `told`: also gives the highest ACK.
    pub(crate) fn take_with_acks(
        &mut self,
        from: NodeId,
        body: &[u8],
        told: Ssn,
        wishes: &mut Vec<Wish>,
    ) -> Result<Option<Ssn>, Malformed> {
        if body.is_empty() {
            return Ok(None);
        }
        let kept = self.links.entry(from).or_default();
        let wished = wishes.len();
        let mut cursor = kept.cursor;
        let taken = take_items(from, body, told, kept.life, &mut cursor, wishes);
        match taken {
            Ok(_) => kept.cursor = cursor,
            Err(_) => wishes.truncate(wished),
        }
        taken.map(|taken| {
            if taken.ordered {
                kept.confirmed = None;
            }
            taken.acked
        })
    }

    /// Writes the ACK that is due to `to`, if one is.
    pub fn confirm(&mut self, to: NodeId, out: &mut Vec<u8>) {
        if let Some(kept) = self.links.get_mut(&to)
            && kept.confirmed != kept.cursor.told
            && let Some(told) = kept.cursor.told
        {
            kept.confirmed = Some(told);
            order::put_ack(out, told);
        }
    }

    /// Tells every peer the ACK that is due to it.
    pub fn flush(&mut self, wishes: &mut Vec<Wish>) {
        let due: Vec<_> = self
            .links
            .iter()
            .filter(|(_, kept)| kept.confirmed != kept.cursor.told)
            .map(|(to, _)| *to)
            .collect();
        for to in due {
            let mut body = Vec::new();
            self.confirm(to, &mut body);
            wishes.push(Wish::Tell { to, body });
        }
    }
}

struct Taken {
    ordered: bool,
    acked: Option<Ssn>,
}

fn take_items(
    from: NodeId,
    body: &[u8],
    told: Ssn,
    life: Incarnation,
    cursor: &mut Cursor,
    wishes: &mut Vec<Wish>,
) -> Result<Taken, Malformed> {
    let mut taken = Taken { ordered: false, acked: None };
    let mut items = Items::of(body);
    while let Some(item) = items.next()? {
        match item {
            Item::Order { first, places } => {
                take_places(from, first, places, life, cursor, wishes)?;
                taken.ordered = true;
            }
            Item::Ack { ssn } if ssn > told => {
                return Err(Malformed::NeverReached {
                    peer: from,
                    what: "the place of message",
                    number: ssn.0,
                });
            }
            Item::Ack { ssn } => taken.acked = taken.acked.max(Some(ssn)),
        }
    }
    Ok(taken)
}

fn take_places(
    from: NodeId,
    first: Ssn,
    places: Places<'_>,
    life: Incarnation,
    cursor: &mut Cursor,
    wishes: &mut Vec<Wish>,
) -> Result<(), Malformed> {
    let never = |what, number| Malformed::NeverReached { peer: from, what, number };
    // The receiver leaves out what it needs nobody for: the next ACK, which is cumulative, confirms it without harm.
    let Some(end) = first.0.checked_add(places.count_left()).filter(|_| first > Ssn(0)) else {
        return Err(never("message", first.0));
    };
    for (ssn, place) in (first.0..end).map(Ssn).zip(places) {
        if place.life > life {
            return Err(never("life", place.life.0));
        }
        if cursor.told.is_none_or(|told| ssn > told) {
            // One link delivers in order, and lives only grow.
            if place.delivery <= cursor.delivery || place.life < cursor.life {
                return Err(never("delivery", place.delivery.0));
            }
            *cursor = Cursor { told: Some(ssn), delivery: place.delivery, life: place.life };
        }
        wishes.push(Wish::Ordered { to: from, ssn, place });
    }
    Ok(())
}
