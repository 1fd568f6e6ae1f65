//! Which parts of a snapshot are one consistent line, and in which life a node goes on from it.

use mainstay_channel::SavedLink;
use mainstay_process::part::{Inconsistent, Part, check_line, next_life};
use mainstay_types::determinant::Point;
use mainstay_types::id::{ClusterId, DeliveryIndex, Incarnation, NodeId, Ssn, StoreId};
use mainstay_types::snapshot::SnapshotId;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

/// A node in its third life, which knows ten deliveries; its second ended at the fourth.
fn part(node: NodeId, peer: NodeId, [dropped, sent, received]: [u64; 3]) -> Part {
    let seen = Point { incarnation: Incarnation(3), delivery: DeliveryIndex(received.min(10)) };
    Part {
        snapshot: SnapshotId { number: 1, initiator: A, life: Incarnation(3) },
        cluster: ClusterId([7; 16]),
        node,
        store: StoreId([node.0 as u8; 16]),
        name: "service".to_owned(),
        version: 1,
        life: Incarnation(3),
        executed: DeliveryIndex(10),
        outputs_pending: 0,
        open_requests: 0,
        ends: vec![(Incarnation(2), DeliveryIndex(4))],
        links: vec![SavedLink {
            peer,
            sent: Ssn(sent),
            dropped: Ssn(dropped),
            received: Ssn(received),
            seen,
            life: Incarnation(3),
        }],
    }
}

#[test]
fn messages_on_the_way_are_those_that_one_part_keeps_and_the_other_does_not_hold() {
    let line = [part(A, B, [2, 7, 5]), part(B, A, [5, 5, 4])];
    assert_eq!(check_line(&line), Ok(()));
    assert_eq!((line[0].on_the_way(&line[1]), line[1].on_the_way(&line[0])), (3, 0));
}

#[test]
fn a_part_that_holds_what_was_not_sent_is_an_orphan() {
    let line = [part(A, B, [2, 7, 5]), part(B, A, [5, 5, 8])];
    let orphan = Inconsistent::Orphan { from: A, to: B, received: Ssn(8), sent: Ssn(7) };
    assert_eq!(check_line(&line), Err(orphan));
}

#[test]
fn what_neither_part_has_is_lost() {
    let line = [part(A, B, [6, 7, 5]), part(B, A, [5, 5, 4])];
    let lost = Inconsistent::Lost { from: A, to: B, dropped: Ssn(6), received: Ssn(4) };
    assert_eq!(check_line(&line), Err(lost));
}

/// The numbers fit, and yet the messages came from deliveries that the sender's history does not have.
#[test]
fn a_message_of_a_delivery_that_was_lost_is_found_by_its_origin() {
    let from = |incarnation, delivery| {
        let mut line = [part(A, B, [2, 7, 5]), part(B, A, [5, 5, 4])];
        line[1].links[0].seen =
            Point { incarnation: Incarnation(incarnation), delivery: DeliveryIndex(delivery) };
        check_line(&line)
    };
    assert_eq!(from(2, 4), Ok(()));
    assert!(matches!(from(2, 5), Err(Inconsistent::Unknown { from: A, to: B, .. })), "its life ended below");
    assert!(matches!(from(3, 11), Err(Inconsistent::Unknown { .. })), "it came after the cut");
    assert!(
        matches!(from(4, 5), Err(Inconsistent::Unknown { .. })),
        "it came in a later life than the one that cut"
    );
}

#[test]
fn every_node_has_one_part_of_the_same_snapshot() {
    let line = [part(A, B, [2, 7, 5]), part(B, A, [5, 5, 4])];
    assert_eq!(check_line(&line[..1]), Err(Inconsistent::Parts { node: B, parts: 0 }));
    let twice = [line[0].clone(), line[1].clone(), line[1].clone()];
    assert_eq!(check_line(&twice), Err(Inconsistent::Parts { node: B, parts: 2 }));
    let mut mixed = line;
    mixed[1].snapshot.number = 2;
    assert_eq!(check_line(&mixed), Err(Inconsistent::Mixed { node: B }));
}

/// B was greeted by a later life of A before its own cut: A goes on above that one.
#[test]
fn a_node_goes_on_above_every_life_that_anybody_knows() {
    let mut line = [part(A, B, [2, 7, 5]), part(B, A, [5, 5, 4])];
    assert_eq!(next_life(&line, A), Incarnation(4));
    line[1].links[0].life = Incarnation(6);
    assert_eq!((next_life(&line, A), next_life(&line, B)), (Incarnation(7), Incarnation(4)));
}
