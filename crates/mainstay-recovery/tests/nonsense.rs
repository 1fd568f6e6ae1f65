//! Whatever a peer tells a protocol is taken in or refused; no bytes make a node panic or allocate without bound.

use mainstay_recovery::logging::{Logging, Malformed, Source, Wish};
use mainstay_recovery::policy::Policy;
use mainstay_recovery::protocol::protocol;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use mainstay_types::time::Time;

const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
const LIFE: Incarnation = Incarnation(3);

struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Mostly small numbers and the greatest: tags, counts and places are among them.
    fn bytes(&mut self) -> Vec<u8> {
        let length = self.below(90);
        (0..length).map(|_| [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 127, 128, 255][self.below(13) as usize]).collect()
    }
}

fn node(policy: Policy, me: NodeId) -> Box<dyn Logging> {
    let mut node = protocol(policy, me, &NODES).expect("three nodes suit every policy");
    let mut wishes = Vec::new();
    node.recovered(LIFE, DeliveryIndex(0), &mut wishes);
    for peer in NODES.into_iter().filter(|peer| *peer != me) {
        node.connected(peer, LIFE, &mut wishes);
    }
    node
}

/// What a real peer would tell node 0, for something to spoil.
fn truth(policy: Policy, delivered: u64) -> Vec<Vec<u8>> {
    let mut peer = node(policy, NODES[1]);
    let mut wishes = Vec::new();
    for index in 1..=delivered {
        let place = Place { delivery: DeliveryIndex(index), life: LIFE, now: Time(index), seed: index };
        let (ssn, origin) = (Ssn(index), Point { incarnation: LIFE, delivery: DeliveryIndex(index) });
        peer.arrived(NODES[0], origin, &[], &[], &mut wishes).expect("an empty stamp is one");
        peer.delivered(place, &Source::Message { from: NODES[0], ssn, origin, end: Some(Lsn(index)) });
    }
    peer.needed(DeliveryIndex(delivered), &mut wishes);
    peer.flush(&mut wishes);
    let mut attached = Vec::new();
    peer.attach(NODES[0], &mut attached);
    let told = wishes.into_iter().filter_map(|wish| match wish {
        Wish::Tell { to, body } if to == NODES[0] => Some(body),
        _ => None,
    });
    told.chain([attached]).collect()
}

#[test]
fn nothing_a_peer_says_makes_a_node_fail() {
    let mut chance = Chance(7);
    let (mut taken, mut refused) = (0, 0);
    for policy in Policy::ALL {
        let truths = truth(policy, 3);
        for _ in 0..1_000 {
            let mut logging = node(policy, NODES[0]);
            for _ in 0..12 {
                let mut body = chance.bytes();
                if chance.below(3) > 0 {
                    body = truths[chance.below(truths.len() as u64) as usize].clone();
                    for _ in 0..chance.below(4) {
                        if !body.is_empty() {
                            let at = chance.below(body.len() as u64) as usize;
                            body[at] = chance.below(256) as u8;
                        }
                    }
                    body.truncate(chance.below(2 * body.len() as u64 + 1).max(1) as usize);
                }
                let mut wishes = Vec::new();
                let from = NODES[1 + chance.below(2) as usize];
                let origin = Point { incarnation: LIFE, delivery: DeliveryIndex(chance.below(9)) };
                let stamp = if chance.below(2) == 0 { Vec::new() } else { chance.bytes() };
                let outcome = match chance.below(3) {
                    0 => logging.arrived(from, origin, &stamp, &body, &mut wishes).map(|_| ()),
                    1 => logging.carried(from, &body, &mut wishes),
                    _ => logging.control(from, &body, &mut wishes),
                };
                match outcome {
                    Ok(()) => taken += 1,
                    Err(_) => {
                        refused += 1;
                        logging.disconnected(from);
                        logging.connected(from, LIFE, &mut wishes);
                    }
                }
                logging.flush(&mut wishes);
                let mut saved = Vec::new();
                logging.save(&mut saved);
                let again = protocol(policy, NODES[0], &NODES)
                    .expect("three nodes suit every policy")
                    .restore(&saved);
                assert_eq!(again, Ok(()), "{policy} saves what it cannot read");
            }
        }
    }
    assert!(taken > 5_000 && refused > 5_000, "{taken} taken in, {refused} refused");
}

/// Found by fuzzing: a node stopped that was told so, as it looked for what comes behind.
#[test]
fn nobody_has_recovered_up_to_the_greatest_number() {
    let recovered_in_life_3_up_to = [0x45, 3];
    let greatest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let mut causal = node(Policy::Causal { f: 1 }, NODES[0]);
    let told = [&recovered_in_life_3_up_to[..], &greatest].concat();
    let refused = Malformed::NeverReached { peer: NODES[1], what: "delivery", number: u64::MAX };
    assert_eq!(causal.control(NODES[1], &told, &mut Vec::new()), Err(refused));
    assert_eq!(causal.control(NODES[1], &[0x45, 3, 5], &mut Vec::new()), Ok(()));
}
