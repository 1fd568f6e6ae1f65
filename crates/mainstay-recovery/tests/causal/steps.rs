//! Single steps of the protocol: what is told, what is not, and what is said when more fail than planned for.

use crate::node::{id, machine};
use mainstay_recovery::causal::{Causal, Unfit};
use mainstay_recovery::logging::{Admission, Logging, Source, Wish};
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use mainstay_types::time::Time;

const FIRST: Incarnation = Incarnation(1);
const SECOND: Incarnation = Incarnation(2);

fn place(delivery: u64) -> Place {
    Place { delivery: DeliveryIndex(delivery), life: FIRST, now: Time(5), seed: delivery }
}

fn point(delivery: u64) -> Point {
    Point { incarnation: FIRST, delivery: DeliveryIndex(delivery) }
}

fn input(end: u64, length: usize) -> Source {
    Source::Local { end: Lsn(end), record: vec![7; length].into() }
}

/// Nodes in session with each other, in their first lives.
fn cluster(n: usize, f: u8) -> Vec<Causal> {
    let mut nodes: Vec<Causal> = (0..n).map(|me| machine(me, n, f)).collect();
    let mut wishes = Vec::new();
    for (me, node) in nodes.iter_mut().enumerate() {
        for peer in (0..n).filter(|&peer| peer != me) {
            node.connected(id(peer), FIRST, &mut wishes);
            node.ended(id(peer), Incarnation(0), DeliveryIndex(0), &mut wishes);
        }
        node.recovered(FIRST, DeliveryIndex(0), &mut wishes);
    }
    nodes
}

/// A message from `from`, emitted by its delivery `at`, is delivered by `to` as its delivery `index`. Returns the length of
/// what rode along, in bytes.
fn pass(nodes: &mut [Causal], from: usize, at: u64, ssn: u64, to: usize, index: u64) -> usize {
    let (mut attached, mut wishes) = (Vec::new(), Vec::new());
    nodes[from].attach(id(to), &mut attached);
    let admission = nodes[to].arrived(id(from), point(at), &[], &attached, &mut wishes);
    assert_eq!((admission, wishes), (Ok(Admission::Deliver), Vec::new()));
    let source = Source::Message { from: id(from), ssn: Ssn(ssn), origin: point(at), end: None };
    nodes[to].delivered(place(index), &source);
    attached.len()
}

fn flush(node: &mut Causal) -> Vec<Wish> {
    let mut wishes = Vec::new();
    node.flush(&mut wishes);
    wishes
}

fn recoverable(node: &Causal) -> u64 {
    node.recoverable().0
}

#[test]
fn a_cluster_that_cannot_hold_the_copies_is_refused() {
    let peers: Vec<NodeId> = (0..3).map(id).collect();
    assert_eq!(Causal::new(id(0), &peers, 3).err(), Some(Unfit::TooFewNodes { f: 3, nodes: 3 }));
    assert_eq!(Causal::new(id(0), &peers, 0).err(), Some(Unfit::NoFailure));
    assert_eq!(Causal::new(id(0), &[id(64)], 1).err(), Some(Unfit::NodeBeyond { node: id(64) }));
    assert!(Causal::new(id(0), &peers, 2).is_ok());
}

/// In a ping-pong each message tells the other's copy safe: no frame of its own is ever sent.
#[test]
fn replies_carry_everything_that_has_to_be_told() {
    let mut nodes = cluster(2, 1);
    nodes[0].safe(Lsn(100));
    nodes[0].delivered(place(1), &input(100, 20));
    for turn in 1..20 {
        let bytes = pass(&mut nodes, 0, turn, turn, 1, turn);
        assert!(bytes <= 31, "{bytes} bytes ride along");
        assert_eq!(flush(&mut nodes[0]), []);
        let bytes = pass(&mut nodes, 1, turn, turn, 0, turn + 1);
        assert!(bytes <= 31, "{bytes} bytes ride along");
        assert_eq!(flush(&mut nodes[1]), []);
        // The last own delivery is with nobody else yet, all before it are.
        assert_eq!((recoverable(&nodes[0]), recoverable(&nodes[1])), (turn, turn - 1));
    }
}

#[test]
fn what_waits_in_the_gate_is_carried_to_f_peers_once() {
    let mut nodes = cluster(4, 2);
    nodes[1].delivered(place(1), &input(100, 20));
    assert_eq!(flush(&mut nodes[1]), []);
    nodes[1].needed(DeliveryIndex(1), &mut Vec::new());
    let told = flush(&mut nodes[1]);
    assert_eq!(flush(&mut nodes[1]), []);
    let mut reached = Vec::new();
    for wish in told {
        let Wish::Tell { to, body } = wish else { panic!("{wish:?}") };
        reached.push(to);
        let node = &mut nodes[to.0 as usize];
        node.control(id(1), &body, &mut Vec::new()).unwrap();
        let Wish::Tell { body, .. } = flush(node).remove(0) else { panic!("it holds it and says so") };
        assert_eq!(recoverable(&nodes[1]), 0, "before f + 1 nodes hold it");
        nodes[1].control(to, &body, &mut Vec::new()).unwrap();
    }
    assert_eq!((reached, recoverable(&nodes[1])), (vec![id(2), id(3)], 1));

    // A peer that went away is made up for by another.
    nodes[1].delivered(place(2), &input(200, 20));
    nodes[1].needed(DeliveryIndex(2), &mut Vec::new());
    assert_eq!(flush(&mut nodes[1]).len(), 2);
    nodes[1].disconnected(id(3));
    let told = flush(&mut nodes[1]);
    assert!(matches!(told.as_slice(), [Wish::Tell { to: NodeId(0), .. }]), "{told:?}");
}

#[test]
fn an_input_too_long_to_be_carried_holds_messages_until_it_is_safe() {
    let mut nodes = cluster(2, 1);
    nodes[0].delivered(place(1), &input(100, 4096));
    assert_eq!(nodes[0].message_waits(), None);
    nodes[0].delivered(place(2), &input(5000, 4097));
    nodes[0].delivered(place(3), &input(5100, 10));
    assert_eq!(nodes[0].message_waits(), Some(Lsn(5000)));
    // What leaves meanwhile was emitted before, and carries nothing from behind it.
    pass(&mut nodes, 0, 1, 1, 1, 1);
    assert!(nodes[1].knows(id(0), DeliveryIndex(1)) && !nodes[1].knows(id(0), DeliveryIndex(3)));
    nodes[0].needed(DeliveryIndex(3), &mut Vec::new());
    assert!(flush(&mut nodes[0]).contains(&Wish::Flush));
    nodes[0].safe(Lsn(5000));
    assert_eq!(nodes[0].message_waits(), None);
    pass(&mut nodes, 0, 3, 2, 1, 2);
    assert!(nodes[1].knows(id(0), DeliveryIndex(3)));
    assert_eq!(recoverable(&nodes[0]), 2);
    nodes[0].safe(Lsn(5100));
    assert_eq!(recoverable(&nodes[0]), 3);
}

/// Two fail where one was planned for: who depends on what is lost is told to roll back, and to where.
#[test]
fn more_failures_than_planned_for_are_said() {
    let mut nodes = cluster(3, 1);
    nodes[0].delivered(place(1), &input(100, 20));
    nodes[2].safe(Lsn(50));
    nodes[2].delivered(place(1), &input(50, 20));
    pass(&mut nodes, 0, 1, 1, 1, 1);
    pass(&mut nodes, 1, 1, 1, 2, 2);
    nodes[2].delivered(place(3), &input(60, 20));
    let mut wishes = Vec::new();
    for failed in [0, 1] {
        nodes[2].disconnected(id(failed));
        nodes[2].connected(id(failed), SECOND, &mut wishes);
    }
    assert!(wishes.iter().all(|wish| matches!(wish, Wish::Tell { .. })));
    // The second node has its delivery back from the third, but nobody has the first's.
    nodes[2].ended(id(0), FIRST, DeliveryIndex(0), &mut wishes);
    nodes[2].ended(id(1), FIRST, DeliveryIndex(0), &mut wishes);
    wishes.retain(|wish| matches!(wish, Wish::RollBack { .. }));
    assert_eq!(wishes, [Wish::RollBack { keep: DeliveryIndex(1), lost: id(1) }]);
}

#[test]
fn a_full_memory_takes_nothing_more_until_an_owner_covers_some() {
    let mut nodes = cluster(2, 1);
    nodes[1] = machine(1, 2, 1).with_foreign_bytes_max(1000);
    let mut wishes = Vec::new();
    nodes[1].connected(id(0), FIRST, &mut wishes);
    for index in 1..=10 {
        nodes[0].delivered(place(index), &input(100 * index, 20));
    }
    pass(&mut nodes, 0, 10, 1, 1, 1);
    assert_eq!(nodes[1].heaviest().map(|(node, _)| node), Some(id(0)));
    nodes[0].delivered(place(11), &input(1100, 20));
    let mut attached = Vec::new();
    nodes[0].attach(id(1), &mut attached);
    let arrived = nodes[1].arrived(id(0), point(11), &[], &attached, &mut wishes);
    assert_eq!(arrived, Ok(Admission::NotYet));
    nodes[0].checkpointed(DeliveryIndex(10));
    let mut again = Vec::new();
    for wish in flush(&mut nodes[0]) {
        let Wish::Tell { body, .. } = wish else { panic!("{wish:?}") };
        nodes[1].control(id(0), &body, &mut again).unwrap();
    }
    assert_eq!(nodes[1].determinants(), 1, "its own");
    let arrived = nodes[1].arrived(id(0), point(11), &[], &attached, &mut wishes);
    assert_eq!(arrived, Ok(Admission::Deliver));
    assert_eq!(nodes[1].determinants(), 2);
}

#[test]
fn a_checkpoint_brings_back_what_was_known_of_others() {
    let mut nodes = cluster(3, 2);
    nodes[0].delivered(place(1), &input(100, 20));
    pass(&mut nodes, 0, 1, 1, 1, 1);
    let mut saved = Vec::new();
    nodes[1].save(&mut saved);
    let mut next = machine(1, 3, 2);
    next.restore(&saved).unwrap();
    assert!(next.knows(id(0), DeliveryIndex(1)) && recoverable(&next) == 1);
    let mut again = Vec::new();
    next.save(&mut again);
    assert_eq!(again, saved);
    for cut in 0..saved.len() {
        let mut other = machine(1, 3, 2);
        if other.restore(&saved[..cut]).is_ok() {
            assert_eq!(other.determinants(), 0, "cut at {cut}");
        }
    }
    let mut wishes = Vec::new();
    next.connected(id(0), SECOND, &mut wishes);
    next.collect(id(0), &mut wishes);
    let mut back = machine(0, 3, 2);
    back.connected(id(1), SECOND, &mut Vec::new());
    let mut remembered = Vec::new();
    for wish in wishes {
        let Wish::Tell { body, .. } = wish else { panic!("{wish:?}") };
        back.control(id(1), &body, &mut remembered).unwrap();
    }
    assert_eq!(remembered, [Wish::Remembered { place: place(1), source: input(100, 20) }]);
}

/// The checkpoint of a recovering node is older than the loss of what it knows of another. What it is told of that one's later life counts: it
/// is said to hold it from then on, and may be the only one that does.
#[test]
fn what_a_later_life_delivered_takes_the_place_of_what_a_checkpoint_knew() {
    let mut nodes = cluster(3, 2);
    nodes[1].delivered(place(1), &input(100, 20));
    pass(&mut nodes, 1, 1, 1, 0, 1);
    let mut saved = Vec::new();
    nodes[0].save(&mut saved);

    let mut wishes = Vec::new();
    nodes[1] = machine(1, 3, 2);
    nodes[1].connected(id(2), FIRST, &mut wishes);
    nodes[1].recovered(SECOND, DeliveryIndex(0), &mut wishes);
    nodes[2].connected(id(1), SECOND, &mut wishes);
    nodes[2].ended(id(1), FIRST, DeliveryIndex(0), &mut wishes);
    nodes[1].delivered(Place { life: SECOND, seed: 9, ..place(1) }, &input(100, 20));
    let mut attached = Vec::new();
    nodes[1].attach(id(2), &mut attached);
    let origin = Point { incarnation: SECOND, delivery: DeliveryIndex(1) };
    assert_eq!(nodes[2].arrived(id(1), origin, &[], &attached, &mut wishes), Ok(Admission::Deliver));

    nodes[0] = machine(0, 3, 2);
    nodes[0].restore(&saved).expect("what was saved is restored");
    assert!(nodes[0].knows(id(1), DeliveryIndex(1)), "of the first life");
    nodes[0].connected(id(2), FIRST, &mut wishes);
    nodes[2].connected(id(0), SECOND, &mut wishes);
    wishes.clear();
    nodes[2].collect(id(0), &mut wishes);
    for wish in std::mem::take(&mut wishes) {
        let Wish::Tell { body, .. } = wish else { panic!("{wish:?}") };
        nodes[0].control(id(2), &body, &mut wishes).expect("it was asked");
    }
    nodes[0].ended(id(1), FIRST, DeliveryIndex(0), &mut wishes);
    assert!(nodes[0].knows(id(1), DeliveryIndex(1)), "of the second life");
}
