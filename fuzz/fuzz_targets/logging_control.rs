//! Fuzzes what a peer may tell a logging protocol and what a checkpoint may hold of it: whatever comes is taken in or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_recovery::policy::Policy;
use mainstay_recovery::protocol::protocol;
use mainstay_types::determinant::Point;
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId};

const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];

fuzz_target!(|input: (u8, Vec<(u8, Vec<u8>)>)| {
    let (which, told) = input;
    let policy = Policy::ALL[usize::from(which) % Policy::ALL.len()];
    let mut logging = protocol(policy, NODES[0], &NODES).expect("three nodes suit every policy");
    let mut wishes = Vec::new();
    for peer in &NODES[1..] {
        logging.connected(*peer, Incarnation(3), &mut wishes);
    }
    logging.recovered(Incarnation(1), DeliveryIndex(0), &mut wishes);
    for (how, bytes) in told {
        let from = NODES[1 + usize::from(how & 1)];
        let (stamp, attached) = bytes.split_at(bytes.len().min(usize::from(how >> 2)));
        // A refusal ends the session, and the next one begins.
        let refused = match how >> 1 & 1 {
            0 => logging.control(from, &bytes, &mut wishes).is_err(),
            _ => logging.arrived(from, Point::default(), stamp, attached, &mut wishes).is_err(),
        };
        if refused {
            logging.disconnected(from);
            logging.connected(from, Incarnation(3), &mut wishes);
        }
        logging.flush(&mut wishes);
        wishes.clear();
    }
    let mut saved = Vec::new();
    logging.save(&mut saved);
    let mut again = protocol(policy, NODES[0], &NODES).expect("three nodes suit every policy");
    again.restore(&saved).expect("what was saved reads back");
});
