//! One node's handler and the road of its deliveries.

use mainstay_channel::channel::Channel;
use mainstay_channel::frame::Frame;
use mainstay_types::codec::Reader;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{NodeId, Ssn};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What was delivered, for a journal and for the oracle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    Input(u64),
    Message { ssn: Ssn, origin: Point, body: Arc<[u8]> },
}

/// The user's state: everything that ever happened to it, so that the oracle can compare.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handler {
    pub(crate) history: Vec<Delivery>,
    pub(crate) emitted: Vec<Arc<[u8]>>,
    /// Which delivery emitted each.
    pub(crate) emitters: Vec<u64>,
    digest: u64,
}

impl Handler {
    /// What it emits depends on all that it was given, in order: a message out of place changes every later one.
    pub(crate) fn handle(&mut self, delivery: &Delivery) -> Option<Arc<[u8]>> {
        let number = match delivery {
            Delivery::Input(number) => *number,
            Delivery::Message { body, .. } => {
                body.iter().fold(7, |sum: u64, byte| sum.wrapping_mul(31) ^ u64::from(*byte))
            }
        };
        self.digest = (self.digest ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        self.history.push(delivery.clone());
        let answers = matches!(delivery, Delivery::Input(_)) || self.digest.is_multiple_of(3);
        answers.then(|| {
            let length = 8 + (self.digest % 30) as usize;
            let body: Arc<[u8]> = self.digest.to_le_bytes().iter().copied().cycle().take(length).collect();
            self.emitted.push(body.clone());
            self.emitters.push(self.last());
            body
        })
    }

    pub(crate) fn last(&self) -> u64 {
        self.history.len() as u64
    }
}

/// A message that was told to a node that collects.
pub(crate) type Told = (Option<Place>, Point, Arc<[u8]>);

/// A node that runs.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) channel: Channel,
    pub(crate) handler: Handler,
    /// The place of each message delivered behind the checkpoint.
    pub(crate) places: BTreeMap<Ssn, Place>,
    /// Those of them that their sender has confirmed.
    pub(crate) confirmed: BTreeSet<Ssn>,
    pub(crate) collecting: bool,
    pub(crate) told: BTreeMap<Ssn, Told>,
    /// It has greeted on this connection.
    pub(crate) greeted: bool,
    /// Control bytes to be sent.
    pub(crate) tell: Vec<Vec<u8>>,
}

impl Live {
    pub(crate) fn greet(&mut self, peer: NodeId) -> Vec<u8> {
        // What it holds of an earlier session comes again in this one.
        self.told.clear();
        self.tell.clear();
        self.greeted = true;
        let mut bytes = Vec::new();
        Frame::Hello(Box::new(self.channel.connected(peer))).put(&mut bytes);
        bytes
    }

    /// The one road of a delivery, first run and replay.
    pub(crate) fn apply(&mut self, peer: NodeId, place: Place, delivery: &Delivery) {
        assert_eq!(place.delivery.0, self.handler.last() + 1, "deliveries are applied in their places");
        if let Delivery::Message { ssn, origin, .. } = delivery {
            self.channel.delivered(peer, *ssn, *origin);
            self.places.insert(*ssn, place);
        }
        if let Some(body) = self.handler.handle(delivery) {
            let origin = Point { incarnation: place.life, delivery: place.delivery };
            let ssn = self.channel.append(peer, origin, Vec::new(), body[..].into());
            assert_eq!(ssn.0, self.handler.emitted.len() as u64, "a replay gives the same numbers");
        }
    }

    pub(crate) fn bodies_delivered(&self) -> Vec<Arc<[u8]>> {
        let body = |delivery: &Delivery| match delivery {
            Delivery::Message { body, .. } => Some(body.clone()),
            Delivery::Input(_) => None,
        };
        self.handler.history.iter().filter_map(body).collect()
    }
}

impl Live {
    pub(crate) fn control(&mut self, peer: NodeId, body: &[u8]) {
        let mut reader = Reader::new(body);
        let (tag, ssn) = (reader.u8().expect("a tag"), Ssn(reader.u64().expect("a number")));
        if tag == TAG_CONFIRM {
            self.confirmed.insert(ssn);
            return;
        }
        assert_eq!(tag, TAG_ORDER);
        self.channel.ordered(peer, ssn, Place::take(&mut reader).expect("a place"));
        self.tell.push([&[TAG_CONFIRM][..], &ssn.0.to_le_bytes()].concat());
    }

    pub(crate) fn cover_all(&mut self) {
        for (peer, ssn) in self.channel.cursors().collect::<Vec<_>>() {
            self.channel.cover(peer, ssn);
        }
    }
}

pub(crate) const TAG_ORDER: u8 = 1;
pub(crate) const TAG_CONFIRM: u8 = 2;

pub(crate) fn order(ssn: Ssn, place: Place) -> Vec<u8> {
    let mut body = vec![TAG_ORDER];
    body.extend_from_slice(&ssn.0.to_le_bytes());
    place.put(&mut body);
    body
}
