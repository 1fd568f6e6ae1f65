//! Two nodes and one link, step by step.

use mainstay_channel::RestoreError;
use mainstay_channel::channel::{Arrival, Channel, Greeted, Owed, Unsendable};
use mainstay_channel::frame::{Frame, Message};
use mainstay_channel::hello::{Declared, Hello, Identity};
use mainstay_channel::limits::Limits;
use mainstay_channel::refusal::Refusal;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{ClusterId, DeliveryIndex, Incarnation, NodeId, Ssn, StoreId};
use mainstay_types::time::Time;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

const LIMITS: Limits = Limits {
    log_bytes_max: 4000,
    log_memory_bytes_max: u64::MAX,
    log_spill_bytes_max: 0,
    window_messages_max: 4,
    window_bytes_max: 1000,
    message_bytes_max: 100,
    control_bytes_max: 50,
};

fn identity(node: NodeId, incarnation: u64) -> Identity {
    Identity {
        cluster: ClusterId([7; 16]),
        node,
        store: StoreId([node.0 as u8; 16]),
        incarnation: Incarnation(incarnation),
    }
}

fn channel_with(node: NodeId, incarnation: u64, limits: Limits) -> Channel {
    Channel::new(identity(node, incarnation), Declared::default(), &[A, B], limits)
}

fn running(node: NodeId, incarnation: u64) -> Channel {
    let mut channel = channel_with(node, incarnation, LIMITS);
    assert_eq!(channel.recovered(), []);
    channel
}

fn point(incarnation: u64, delivery: u64) -> Point {
    Point { incarnation: Incarnation(incarnation), delivery: DeliveryIndex(delivery) }
}

fn place(delivery: u64) -> Place {
    Place { delivery: DeliveryIndex(delivery), life: Incarnation(1), now: Time(delivery), seed: 0 }
}

fn greet(one: &mut Channel, other: &mut Channel) -> (Greeted, Greeted) {
    let (first, second) = (one.identity().node, other.identity().node);
    let hello = one.connected(second);
    other.check(&hello).expect("it is the peer");
    let answer = other.connected(first);
    let there = other.greeted(first, &hello).expect("it is the peer");
    (one.greeted(second, &answer).expect("it is the peer"), there)
}

fn emit(channel: &mut Channel, to: NodeId, count: u64) {
    for _ in 0..count {
        let number = channel.appended(to).0 + 1;
        let ssn = channel.append(to, point(1, number), vec![], vec![number as u8; 10].into());
        channel.release(to, ssn);
    }
}

fn frames(channel: &mut Channel, to: NodeId) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    channel.frames_for(
        to,
        |attached| attached.push(9),
        |frame| {
            let mut bytes = Vec::new();
            frame.put(&mut bytes);
            out.push(bytes);
        },
    );
    out
}

/// Carries frames over and delivers each message that is next; returns the numbers delivered.
fn carry(from: &mut Channel, to: &mut Channel) -> Vec<u64> {
    let (sender, receiver) = (from.identity().node, to.identity().node);
    let mut delivered = Vec::new();
    for bytes in frames(from, receiver) {
        match Frame::parse(&bytes).expect("a channel writes frames") {
            Frame::Message(message) => {
                assert_eq!(message.attached, [9]);
                if to.arrived(sender, &message) == Ok(Arrival::Next) {
                    to.delivered(sender, message.ssn, message.origin);
                    delivered.push(message.ssn.0);
                }
            }
            Frame::Received { ssn } => to.received(sender, ssn).expect("it was sent"),
            Frame::Covered { ssn } => to.covered(sender, ssn).expect("it was sent"),
            Frame::Pinned { .. } => {}
            other => panic!("a channel does not send {other:?} by itself"),
        }
    }
    delivered
}

fn message(ssn: u64) -> Message<'static> {
    Message { ssn: Ssn(ssn), origin: point(1, ssn), place: None, stamp: &[], attached: &[], body: &[0; 10] }
}

#[test]
fn nothing_is_sent_before_the_gate_lets_it_leave_nor_before_both_greeted() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    a.append(B, point(1, 1), vec![], b"held".as_slice().into());
    let hello = a.connected(B);
    a.release(B, Ssn(1));
    assert_eq!(frames(&mut a, B).len(), 0);
    assert_eq!(a.owed(B), Owed::Nothing);
    let answer = b.connected(A);
    b.greeted(A, &hello).expect("it is the peer");
    a.greeted(B, &answer).expect("it is the peer");
    a.append(B, point(1, 2), vec![], b"held".as_slice().into());
    assert_eq!(a.owed(B), Owed::Now);
    assert_eq!(carry(&mut a, &mut b), [1]);
    assert_eq!(a.owed(B), Owed::Nothing);
    a.release(B, Ssn(2));
    assert_eq!(carry(&mut a, &mut b), [2]);
}

#[test]
fn the_window_holds_messages_back_until_credit_comes_and_credit_comes_in_time() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    greet(&mut a, &mut b);
    emit(&mut a, B, 10);
    assert_eq!(carry(&mut a, &mut b), [1, 2, 3, 4]);
    assert_eq!(frames(&mut a, B).len(), 0, "the window is full");
    assert_eq!(b.owed(A), Owed::Now, "the sender waits for credit");
    carry(&mut b, &mut a);
    assert_eq!(carry(&mut a, &mut b), [5, 6, 7, 8]);
    carry(&mut b, &mut a);
    assert_eq!(carry(&mut a, &mut b), [9, 10]);
    assert_eq!(a.retained().map(|retained| retained.messages).sum::<u64>(), 10, "received is not covered");
}

#[test]
fn what_is_covered_is_dropped_and_what_was_lost_on_the_way_is_sent_again() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    greet(&mut a, &mut b);
    emit(&mut a, B, 3);
    assert_eq!(carry(&mut a, &mut b), [1, 2, 3]);
    b.cover(A, Ssn(2));
    assert_eq!(b.owed(A), Owed::Now);
    carry(&mut b, &mut a);
    assert_eq!(a.retained().next().expect("one peer").messages, 1);

    emit(&mut a, B, 2);
    assert_eq!(frames(&mut a, B).len(), 2, "lost with their connection");
    a.disconnected(B);
    b.disconnected(A);
    assert_eq!(a.owed(B), Owed::Nothing);
    greet(&mut a, &mut b);
    assert_eq!(carry(&mut a, &mut b), [4, 5]);
    assert_eq!((a.stats(B).sent, a.stats(B).resent), (7, 2));
    b.cover(A, Ssn(5));
    carry(&mut b, &mut a);
    assert_eq!(a.retained().next().map(|retained| (retained.messages, retained.bytes)), Some((0, 0)));
}

#[test]
fn a_duplicate_is_answered_and_a_covered_one_by_the_channel_itself() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    greet(&mut a, &mut b);
    emit(&mut a, B, 2);
    carry(&mut a, &mut b);
    b.cover(A, Ssn(1));
    frames(&mut b, A);
    assert_eq!(b.arrived(A, &message(2)), Ok(Arrival::Duplicate { covered: false }));
    assert_eq!(b.arrived(A, &message(1)), Ok(Arrival::Duplicate { covered: true }));
    assert_eq!(b.stats(A).duplicates, 2);
    assert_eq!(b.owed(A), Owed::Now);
    carry(&mut b, &mut a);
    assert_eq!(a.retained().next().expect("one peer").messages, 1);
}

/// Received says what the receiver's history holds, not what came to its door: a message in its queue dies with it.
#[test]
fn only_what_was_delivered_is_acknowledged_and_only_once() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    greet(&mut a, &mut b);
    assert_eq!(b.arrived(A, &message(1)), Ok(Arrival::Next));
    assert_eq!(b.arrived(A, &message(2)), Ok(Arrival::Next));
    assert_eq!((b.owed(A), frames(&mut b, A).len()), (Owed::Nothing, 0));
    b.delivered(A, Ssn(1), point(1, 1));
    b.cover(A, Ssn(1));
    let told: Vec<_> = frames(&mut b, A);
    let told: Vec<_> =
        told.iter().map(|bytes| Frame::parse(bytes).expect("a channel writes frames")).collect();
    assert_eq!(told, [Frame::Received { ssn: Ssn(1) }, Frame::Covered { ssn: Ssn(1) }]);
    assert_eq!((b.owed(A), frames(&mut b, A).len()), (Owed::Nothing, 0));
}

/// What a durable checkpoint holds may leave: no gate of the new life knows of it any more.
#[test]
fn what_a_checkpoint_holds_is_released_and_what_a_replay_emits_is_not() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    a.append(B, point(1, 1), vec![1], b"held at the checkpoint".as_slice().into());
    let mut saved = Vec::new();
    a.save(&mut saved);
    let mut a = channel_with(A, 2, LIMITS);
    a.restore(&saved).expect("it was saved");
    a.append(B, point(1, 2), vec![2], b"behind it".as_slice().into());
    assert_eq!(a.recovered(), []);
    greet(&mut a, &mut b);
    assert_eq!(carry(&mut a, &mut b), [1]);
    a.release(B, Ssn(2));
    assert_eq!(carry(&mut a, &mut b), [2]);
}

/// A message that waits for an announcement is not delivered, and yet those behind it arrive; with the session's end they
/// are all to come again.
#[test]
fn messages_behind_one_that_waits_are_next_and_come_again_in_the_next_session() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    greet(&mut a, &mut b);
    assert_eq!(b.arrived(A, &message(1)), Ok(Arrival::Next));
    assert_eq!(b.arrived(A, &message(2)), Ok(Arrival::Next));
    assert!(matches!(
        b.arrived(A, &message(2)),
        Err(Refusal::OutOfOrder { expected: Ssn(3), found: Ssn(2), .. })
    ));
    greet(&mut a, &mut b);
    assert_eq!(b.arrived(A, &message(1)), Ok(Arrival::Next));
}

#[test]
fn a_peer_that_lies_about_numbers_is_refused_and_nothing_is_dropped() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    assert!(matches!(b.arrived(A, &message(1)), Err(Refusal::OutOfTurn { .. })));
    assert!(matches!(a.received(B, Ssn(1)), Err(Refusal::OutOfTurn { .. })));
    greet(&mut a, &mut b);
    emit(&mut a, B, 2);
    frames(&mut a, B);
    assert_eq!(
        b.arrived(A, &message(2)),
        Err(Refusal::OutOfOrder { node: A, expected: Ssn(1), found: Ssn(2) })
    );
    assert_eq!(
        b.arrived(A, &message(0)),
        Err(Refusal::OutOfOrder { node: A, expected: Ssn(1), found: Ssn(0) })
    );
    assert_eq!(
        a.received(B, Ssn(3)),
        Err(Refusal::NeverSent { node: B, acknowledged: Ssn(3), sent: Ssn(2) })
    );
    assert_eq!(a.covered(B, Ssn(9)), Err(Refusal::NeverSent { node: B, acknowledged: Ssn(9), sent: Ssn(2) }));
    assert_eq!(a.retained().next().expect("one peer").messages, 2);
    assert!(matches!(a.collected(B), Err(Refusal::OutOfTurn { what: "Collected", .. })));
    for ssn in 1..=4 {
        assert_eq!(b.arrived(A, &message(ssn)), Ok(Arrival::Next));
    }
    assert!(matches!(b.arrived(A, &message(5)), Err(Refusal::Overrun { ssn: Ssn(5), messages_max: 4, .. })));
    let long = Message { body: &[0; 101], ..message(5) };
    assert!(matches!(b.arrived(A, &long), Err(Refusal::TooLarge { what: "message", bytes: 101, .. })));
    let stamped = Message { stamp: &[0; 51], ..message(5) };
    assert!(matches!(b.arrived(A, &stamped), Err(Refusal::TooLarge { what: "stamp", bytes: 51, .. })));
}

#[test]
fn who_is_not_the_peer_is_refused_before_the_peers_session_is_touched() {
    let (mut a, mut b) = (running(A, 5), running(B, 5));
    greet(&mut a, &mut b);
    let hello = running(B, 5).connected(A);
    let refused = |hello: &Hello| a.check(hello).expect_err("it is not the peer");
    let with = |identity: Identity| Hello { identity, ..hello.clone() };
    let of = hello.identity;
    assert!(matches!(
        refused(&with(Identity { cluster: ClusterId([8; 16]), ..of })),
        Refusal::OtherCluster { .. }
    ));
    assert!(matches!(
        refused(&with(Identity { node: NodeId(9), ..of })),
        Refusal::Stranger { node: NodeId(9) }
    ));
    assert!(matches!(refused(&with(Identity { node: A, ..of })), Refusal::Stranger { node: A }));
    assert!(matches!(refused(&with(Identity { store: StoreId([0; 16]), ..of })), Refusal::OtherStore { .. }));
    let fenced = refused(&with(Identity { incarnation: Incarnation(4), ..of }));
    assert_eq!(fenced, Refusal::Fenced { node: B, seen: Incarnation(5), found: Incarnation(4) });
    assert_eq!(
        refused(&Hello { to: NodeId(3), ..hello.clone() }),
        Refusal::Misaddressed { meant: NodeId(3), reached: A }
    );
    assert_eq!(a.session(B), Some(Incarnation(5)));
    a.check(&hello).expect("the peer itself may come again");
    a.connected(B);
    let small = Hello { message_bytes_max: 99, ..hello.clone() };
    assert_eq!(a.greeted(B, &small), Err(Refusal::MessageLimit { node: B, ours: 100, theirs: 99 }));
    a.greeted(B, &hello).expect("it is the peer");
    assert!(matches!(a.greeted(B, &hello), Err(Refusal::OutOfTurn { what: "Hello", .. })));
}

#[test]
fn a_newer_life_ends_the_session_of_the_older_one_which_is_fenced_for_ever() {
    let (mut a, mut old, mut new) = (running(A, 1), running(B, 1), running(B, 2));
    greet(&mut old, &mut a);
    let (_, there) = greet(&mut new, &mut a);
    assert!(there.reborn);
    assert_eq!(a.session(B), Some(Incarnation(2)));
    let late = old.connected(A);
    assert!(matches!(a.check(&late), Err(Refusal::Fenced { .. })));

    let mut saved = Vec::new();
    a.save(&mut saved);
    let mut again = channel_with(A, 2, LIMITS);
    again.restore(&saved).expect("it was saved a line above");
    assert!(
        matches!(again.check(&late), Err(Refusal::Fenced { .. })),
        "a checkpoint remembers the highest life"
    );
    let mut elsewhere = new.connected(A);
    elsewhere.identity.store = StoreId([0; 16]);
    assert!(matches!(again.check(&elsewhere), Err(Refusal::OtherStore { .. })), "and the directory");
}

/// Johnson and Zwaenepoel's rule: the log is in the checkpoint, with the places; a replay emits the rest again with the same numbers.
#[test]
fn a_sender_that_crashed_has_its_log_again_from_checkpoint_and_replay() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    greet(&mut a, &mut b);
    emit(&mut a, B, 2);
    assert_eq!(carry(&mut a, &mut b), [1, 2]);
    a.ordered(B, Ssn(2), place(7));
    let mut saved = Vec::new();
    a.save(&mut saved);
    emit(&mut a, B, 1);
    assert_eq!(carry(&mut a, &mut b), [3]);
    b.disconnected(A);

    let mut a = channel_with(A, 2, LIMITS);
    a.restore(&saved).expect("it was saved");
    let mut again = Vec::new();
    a.save(&mut again);
    assert_eq!(again, saved, "the same state gives the same bytes");
    // The receiver holds message 3 already, which this life has yet to emit.
    greet(&mut a, &mut b);
    a.ordered(B, Ssn(3), place(8));
    emit(&mut a, B, 2);
    assert_eq!(a.recovered(), []);
    assert_eq!(carry(&mut a, &mut b), [4], "what the receiver has is retained, not sent");

    // Now the receiver crashes, with nothing durable: it is told all, in the places it gave.
    let mut b = channel_with(B, 2, LIMITS);
    b.collect();
    greet(&mut b, &mut a);
    let told: Vec<(u64, Option<u64>)> = frames(&mut a, B)
        .iter()
        .filter_map(|bytes| match Frame::parse(bytes).expect("a channel writes frames") {
            Frame::Message(message) => Some((message.ssn.0, message.place.map(|place| place.delivery.0))),
            _ => None,
        })
        .collect();
    assert_eq!(told, [(1, None), (2, Some(7)), (3, Some(8)), (4, None)]);
}

#[test]
fn a_node_that_collects_is_told_everything_whatever_the_window() {
    let mut a = channel_with(A, 1, Limits { log_bytes_max: 1 << 20, ..LIMITS });
    let mut b = channel_with(B, 2, LIMITS);
    assert_eq!(a.recovered(), []);
    emit(&mut a, B, 20);
    b.collect();
    let (_, there) = greet(&mut b, &mut a);
    assert!(there.collecting);
    let bytes = frames(&mut a, B);
    assert_eq!(bytes.len(), 20);
    for frame in &bytes {
        let Ok(Frame::Message(message)) = Frame::parse(frame) else { panic!("only messages are owed") };
        assert_eq!(b.arrived(A, &message), Ok(Arrival::Next));
    }
    assert_eq!(a.close_collection(B), Frame::Collected);
    b.collected(A).expect("it was asked");
    for ssn in 1..=20 {
        b.delivered(A, Ssn(ssn), point(1, ssn));
    }
    assert_eq!(b.recovered(), []);
    emit(&mut a, B, 5);
    assert_eq!(frames(&mut a, B).len(), 0, "the window binds again: 20 are on their way");
    assert!(matches!(b.arrived(A, &message(21)), Err(Refusal::Overrun { .. })));
    carry(&mut b, &mut a);
    assert_eq!(carry(&mut a, &mut b), [21, 22, 23, 24]);
}

/// What one session told is not to be relied on in the next: the peer may have begun another life in between.
#[test]
fn a_node_that_collects_asks_in_every_session_until_it_has_recovered() {
    let (mut a, mut b) = (running(A, 1), channel_with(B, 2, LIMITS));
    b.collect();
    for _ in 0..2 {
        let (_, there) = greet(&mut b, &mut a);
        assert!(there.collecting);
        assert_eq!(a.close_collection(B), Frame::Collected);
        b.collected(A).expect("it was asked");
        assert!(matches!(b.collected(A), Err(Refusal::OutOfTurn { what: "Collected", .. })));
    }
    assert_eq!(b.recovered(), []);
    let (_, there) = greet(&mut b, &mut a);
    assert!(!there.collecting);
}

/// Both collect. The one that recovers last of the two needs messages that the other's replay sends only after it has told what it had: were
/// the window to bind by then, its word that all was sent would come before they are.
#[test]
fn the_window_does_not_bind_before_a_peer_that_recovers_too_has_sent_everything() {
    let mut a = channel_with(A, 2, Limits { log_bytes_max: 1 << 20, ..LIMITS });
    let mut b = channel_with(B, 2, LIMITS);
    a.collect();
    b.collect();
    greet(&mut b, &mut a);
    assert_eq!(a.close_collection(B), Frame::Collected);
    b.collected(A).expect("it was asked");
    emit(&mut a, B, 20);
    assert_eq!(a.recovered(), []);
    let bytes = frames(&mut a, B);
    assert_eq!(bytes.len(), 20);
    assert_eq!(a.close_recovery(B), Frame::Recovered { ends: Vec::new() });
    for frame in &bytes {
        let Ok(Frame::Message(message)) = Frame::parse(frame) else { panic!("only messages are owed") };
        assert_eq!(b.arrived(A, &message), Ok(Arrival::Next));
    }
    b.peer_recovered(A, &[]).expect("it was recovering");
    assert!(matches!(b.peer_recovered(A, &[]), Err(Refusal::OutOfTurn { what: "Recovered", .. })));
    emit(&mut a, B, 1);
    assert_eq!(frames(&mut a, B).len(), 0, "the window binds again");
    assert!(matches!(b.arrived(A, &message(21)), Err(Refusal::Overrun { .. })));
}

#[test]
fn a_peer_that_holds_what_this_node_lost_is_told_so_and_nothing_passes_for_received() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    greet(&mut a, &mut b);
    emit(&mut a, B, 3);
    carry(&mut a, &mut b);
    b.cover(A, Ssn(3));
    // It recovers, and the life that ended is not announced yet.
    let mut a = channel_with(A, 2, LIMITS);
    greet(&mut a, &mut b);
    emit(&mut a, B, 1);
    a.ended(Incarnation(1), DeliveryIndex(1));
    let (depends_on, ended, recovered) = (point(1, 3), Incarnation(1), DeliveryIndex(1));
    assert_eq!(a.recovered(), [Refusal::PeerOrphaned { node: B, depends_on, ended, recovered }]);
    assert_eq!(a.session(B), None);
    emit(&mut a, B, 3);
    assert_eq!(a.retained().next().expect("one peer").messages, 3, "message 2 is a new one and is retained");
    // By their numbers alone, b now holds nothing that a has not sent.
    let (of_b, of_a) = (b.connected(A), a.connected(B));
    assert_eq!(a.greeted(B, &of_b), Err(Refusal::PeerOrphaned { node: B, depends_on, ended, recovered }));
    assert_eq!(b.greeted(A, &of_a), Err(Refusal::Orphaned { node: A, depends_on, ended, recovered }));
}

#[test]
fn an_orphan_that_rolls_back_by_itself_is_talked_to() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    greet(&mut a, &mut b);
    emit(&mut a, B, 3);
    carry(&mut a, &mut b);
    let mut a = channel_with(A, 2, LIMITS);
    a.let_orphans_roll_back();
    b.let_orphans_roll_back();
    a.ended(Incarnation(1), DeliveryIndex(1));
    let (_, there) = greet(&mut a, &mut b);
    assert_eq!(
        there.orphan.map(|orphan| (orphan.depends_on, orphan.last)),
        Some((point(1, 3), DeliveryIndex(1)))
    );
    assert_eq!(a.recovered(), []);
}

#[test]
fn a_peer_put_back_behind_what_it_covered_is_refused() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    greet(&mut a, &mut b);
    emit(&mut a, B, 3);
    carry(&mut a, &mut b);
    b.cover(A, Ssn(3));
    carry(&mut b, &mut a);
    let hello = running(B, 2).connected(A);
    a.connected(B);
    assert_eq!(a.greeted(B, &hello), Err(Refusal::Forgot { node: B, covered: Ssn(3), received: Ssn(0) }));
}

#[test]
fn a_peer_that_never_covers_is_told_and_named_and_its_memory_is_bounded() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    greet(&mut a, &mut b);
    let mut told = 0;
    while a.may_accept() {
        emit(&mut a, B, 1);
        for bytes in frames(&mut a, B) {
            match Frame::parse(&bytes).expect("a channel writes frames") {
                Frame::Pinned { bytes } => {
                    assert!(bytes > 2000);
                    told += 1;
                }
                Frame::Message(message) => {
                    b.arrived(A, &message).expect("it is next");
                    b.delivered(A, message.ssn, message.origin);
                }
                other => panic!("{other:?} was not owed"),
            }
        }
        carry(&mut b, &mut a);
    }
    assert_eq!(told, 1);
    let pressure = a.pressure().expect("it is at the limit");
    assert_eq!(pressure.peer, B);
    assert!((4000..4200).contains(&pressure.bytes), "{pressure:?}");
    b.cover(A, b.delivered_up_to(A));
    carry(&mut b, &mut a);
    assert!(a.may_accept() && a.pressure().is_none());
}

/// A checkpoint covers only what was delivered when it began. Told once, the peer would never make the next one, and no new work be accepted
/// before its clock asks for one.
#[test]
fn a_peer_whose_checkpoint_was_not_enough_is_told_again() {
    let (mut a, mut b) = (running(A, 1), running(B, 1));
    greet(&mut a, &mut b);
    emit(&mut a, B, 40);
    assert!(!a.may_accept());
    let mut told = 0;
    while a.retained().any(|retained| retained.bytes > 2000) {
        let mut checkpoint = false;
        for bytes in frames(&mut a, B) {
            match Frame::parse(&bytes).expect("a channel writes frames") {
                Frame::Message(message) => {
                    assert_eq!(b.arrived(A, &message), Ok(Arrival::Next));
                    b.delivered(A, message.ssn, message.origin);
                }
                Frame::Pinned { .. } => checkpoint = true,
                other => panic!("{other:?} was not owed"),
            }
        }
        told += u32::from(checkpoint);
        if checkpoint {
            b.cover(A, b.delivered_up_to(A));
        }
        assert_ne!(b.owed(A), Owed::Nothing, "nobody has anything to say any more");
        carry(&mut b, &mut a);
    }
    assert!(told > 1, "told {told} times");
    assert!(a.may_accept());
}

#[test]
fn what_cannot_be_sent_is_said_beforehand() {
    let a = running(A, 1);
    assert_eq!(a.check_sendable(B, 100), Ok(()));
    assert_eq!(a.check_sendable(B, 101), Err(Unsendable::TooLarge { bytes: 101, limit: 100 }));
    assert_eq!(a.check_sendable(A, 1), Err(Unsendable::Stranger { to: A }));
    assert_eq!(a.check_sendable(NodeId(9), 1), Err(Unsendable::Stranger { to: NodeId(9) }));
}

#[test]
fn another_nodes_links_and_damaged_ones_are_not_taken_back() {
    let mut a = running(A, 1);
    emit(&mut a, B, 2);
    a.ordered(B, Ssn(1), place(1));
    a.ended(Incarnation(1), DeliveryIndex(4));
    let mut saved = Vec::new();
    a.save(&mut saved);
    assert!(matches!(
        channel_with(B, 1, LIMITS).restore(&saved),
        Err(RestoreError::OtherNode { found: A, .. })
    ));
    let mut alone = Channel::new(identity(A, 2), Declared::default(), &[NodeId(3)], LIMITS);
    assert_eq!(alone.restore(&saved), Err(RestoreError::Stranger { peer: B }));
    for length in 0..saved.len() {
        assert!(channel_with(A, 2, LIMITS).restore(&saved[..length]).is_err(), "cut to {length} bytes");
    }
    for at in 0..saved.len() {
        let mut bad = saved.clone();
        bad[at] ^= 0xff;
        let mut channel = channel_with(A, 2, LIMITS);
        if channel.restore(&bad).is_ok() {
            let mut again = Vec::new();
            channel.save(&mut again);
            assert_eq!(again, bad, "what is taken back is written the same; byte {at}");
        }
    }
}
