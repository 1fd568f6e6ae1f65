//! What is gathered from others, and what is believed of it.

use super::*;
use crate::summary::Summary;
use bytes::Bytes;
use mainstay_channel::hello::{Declared, Identity};
use mainstay_types::determinant::Point;
use mainstay_types::id::{ClusterId, Incarnation, StoreId};
use mainstay_types::snapshot::SnapshotId;
use mainstay_types::time::Time;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

fn hello(node: NodeId, life: u64, collecting: bool) -> Hello {
    let identity = Identity {
        cluster: ClusterId([0; 16]),
        node,
        store: StoreId([0; 16]),
        incarnation: Incarnation(life),
    };
    Hello {
        identity,
        to: NodeId(3),
        declared: Declared::default(),
        received: Ssn(0),
        covered: Ssn(0),
        collecting,
        crashed: life > 1,
        rejoins: false,
        agreeing: false,
        window_messages_max: 1,
        window_bytes_max: 1,
        message_bytes_max: 1,
        seen: Point::default(),
        ends: Vec::new(),
        snapshot: SnapshotId::NONE,
        line: SnapshotId::NONE,
    }
}

fn place(delivery: u64, life: u64) -> Place {
    Place { delivery: DeliveryIndex(delivery), life: Incarnation(life), now: Time(1), seed: 0 }
}

fn message(from: NodeId, ssn: u64, place: Option<Place>) -> Arrived {
    let origin = Point { incarnation: Incarnation(1), delivery: DeliveryIndex(ssn) };
    Arrived { from, ssn: Ssn(ssn), origin, place, stamp: Vec::new(), body: Bytes::new() }
}

fn journaled(delivery: u64, life: u64) -> Journaled {
    let prefix = Prefix {
        delivery: DeliveryIndex(delivery),
        now: Time(1),
        seed: 0,
        executed: DeliveryIndex(0),
        summary: Summary::default(),
    };
    let delivery = Delivery::Timer { timer: 1 };
    Journaled { lsn: Lsn(64), end: Lsn(128), life: Generation(life), prefix, delivery }
}

/// An earlier life that ended with places outstanding left them with their senders; the later one went another way.
#[test]
fn a_place_of_an_earlier_life_is_never_replayed_behind_a_delivery_of_a_later_one() {
    let mut collecting = Collecting::from(&[A]);
    collecting.greeted(A, &hello(A, 1, true));
    collecting.arrived(message(A, 1, Some(place(5, 1))));
    assert!(!collecting.may_come(DeliveryIndex(5), Generation(2)));
    assert!(matches!(collecting.take(DeliveryIndex(5), Generation(2)), Next::None));
    assert!(collecting.may_come(DeliveryIndex(5), Generation(1)));
    assert!(matches!(collecting.take(DeliveryIndex(5), Generation(1)), Next::Message(..)));
}

#[test]
fn what_a_peer_remembers_as_an_input_is_no_message() {
    let prefix = Prefix {
        delivery: DeliveryIndex(5),
        now: Time(1),
        seed: 0,
        executed: DeliveryIndex(4),
        summary: Summary::default(),
    };
    let given_back = |delivery: &Delivery| {
        let mut record = delivery.kind().0.to_le_bytes().to_vec();
        delivery.put_head(&prefix, &mut record);
        record.extend_from_slice(delivery.tail());
        input(place(5, 1), &record)
    };
    assert!(given_back(&message(A, 1, None).delivery()).is_none());
    assert!(given_back(&Delivery::Registered { replaces: None }).is_some());
}

#[test]
fn those_who_recover_one_after_the_other_were_not_down_together() {
    let mut collecting = Collecting::from(&[A, B]);
    collecting.greeted(A, &hello(A, 2, true));
    collecting.recovered(A);
    collecting.greeted(B, &hello(B, 2, true));
    assert_eq!(collecting.together.most().len(), 1);
    collecting.greeted(A, &hello(A, 3, true));
    assert_eq!(collecting.together.most().len(), 2);
}

#[test]
fn who_comes_back_from_a_clean_stop_was_not_down() {
    let mut collecting = Collecting::from(&[A, B]);
    collecting.greeted(A, &Hello { crashed: false, ..hello(A, 2, true) });
    assert!(collecting.together.most().is_empty());
    // It crashes before it has collected.
    collecting.greeted(A, &hello(A, 3, true));
    assert_eq!(collecting.together.most().len(), 1);
}

#[test]
fn of_a_record_and_a_place_the_later_lifes_counts() {
    for (recorded, placed) in [(1, 2), (2, 1), (2, 2)] {
        let mut collecting = Collecting::from(&[A]);
        collecting.journaled.insert(DeliveryIndex(5), journaled(5, recorded));
        collecting.arrived(message(A, 1, Some(place(5, placed))));
        let next = collecting.take(DeliveryIndex(5), Generation(1));
        assert_eq!(matches!(next, Next::Journaled(_)), recorded >= placed, "{recorded} {placed}");
        assert_eq!(matches!(next, Next::Message(..)), recorded < placed, "{recorded} {placed}");
    }
}

/// Its new life may have lost what the former one sent, and sends what it has again.
#[test]
fn what_a_peer_told_counts_no_more_in_the_next_session() {
    let mut collecting = Collecting::from(&[A]);
    collecting.connected(A);
    collecting.greeted(A, &hello(A, 1, false));
    collecting.arrived(message(A, 1, Some(place(1, 1))));
    collecting.told(A);
    assert!(collecting.waiting_for.is_empty());
    collecting.connected(A);
    assert_eq!(collecting.waiting_for, BTreeSet::from([A]));
    assert!(matches!(collecting.take(DeliveryIndex(1), Generation(1)), Next::None));
}

/// Its replay had more to send, and what its next life knows is told anew; nobody is answered in between as if all were known.
#[test]
fn a_peer_that_recovers_and_goes_away_is_waited_for() {
    let mut collecting = Collecting::from(&[A, B]);
    for peer in [A, B] {
        collecting.connected(peer);
        collecting.greeted(peer, &hello(peer, 1, peer == A));
    }
    assert!(!collecting.may_answer(), "B does not collect and has not told");
    collecting.told(B);
    assert!(collecting.may_answer(), "only A is left, which waits for the same");
    collecting.told(A);
    collecting.disconnected(A);
    assert_eq!(collecting.waiting_for, BTreeSet::from([A]));
    assert!(!collecting.may_answer());
    collecting.disconnected(B);
    assert_eq!(collecting.waiting_for, BTreeSet::from([A]), "what B told was all");
}
