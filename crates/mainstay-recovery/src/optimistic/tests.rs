//! Optimistic logging call by call.

use super::*;
use mainstay_types::time::Time;
use std::sync::Arc;

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const C: NodeId = NodeId(2);
const ALL: [NodeId; 3] = [A, B, C];

fn point(life: u64, delivery: u64) -> Point {
    Point { incarnation: Incarnation(life), delivery: DeliveryIndex(delivery) }
}

/// A node in its first life that knows of its peers' first ones.
fn node(me: NodeId) -> Optimistic {
    let mut node = Optimistic::new(me, &ALL);
    node.recovered(Incarnation(1), DeliveryIndex(0), &mut Vec::new());
    for peer in ALL.into_iter().filter(|&peer| peer != me) {
        hear(&mut node, peer, &lives(peer, &[(1, 0)]));
    }
    node
}

fn lives(node: NodeId, starts: &[(u64, u64)]) -> Told {
    let mut lives = Lives::default();
    for &(life, after) in starts {
        lives.began(Incarnation(life), DeliveryIndex(after));
    }
    Told::Lives(vec![(node, lives)])
}

fn hear(node: &mut Optimistic, from: NodeId, told: &Told) -> Vec<Wish> {
    let mut wishes = Vec::new();
    node.control(from, &told.encode(), &mut wishes).unwrap();
    wishes
}

fn refuse(node: &mut Optimistic, from: NodeId, told: &Told) -> Malformed {
    node.control(from, &told.encode(), &mut Vec::new()).unwrap_err()
}

/// The next delivery's place; its record ends at its index.
fn place(node: &Optimistic) -> (Place, Lsn) {
    let delivery = node.last.next();
    let life = node.lives.newest().unwrap();
    (Place { delivery, life, now: Time(0), seed: 0 }, Lsn(delivery.0))
}

fn deliver_local(node: &mut Optimistic) -> (Point, Vec<u8>) {
    let (place, end) = place(node);
    node.delivered(place, &Source::Local { end, record: Arc::from([]) });
    emit(node)
}

fn emit(node: &mut Optimistic) -> (Point, Vec<u8>) {
    let mut stamp = Vec::new();
    node.stamp(&mut stamp);
    (Point { incarnation: node.lives.newest().unwrap(), delivery: node.last }, stamp)
}

fn ask(node: &mut Optimistic, from: NodeId, message: &(Point, Vec<u8>)) -> Result<Admission, Malformed> {
    node.arrived(from, message.0, &message.1, &[], &mut Vec::new())
}

fn deliver(node: &mut Optimistic, from: NodeId, message: &(Point, Vec<u8>)) -> (Point, Vec<u8>) {
    assert_eq!(ask(node, from, message), Ok(Admission::Deliver));
    let (place, end) = place(node);
    node.delivered(place, &Source::Message { from, ssn: Ssn(1), origin: message.0, end: Some(end) });
    emit(node)
}

fn told(to: NodeId, told: &Told) -> Wish {
    Wish::Tell { to, body: told.encode() }
}

fn stamp(entries: &[(NodeId, Point)]) -> Vec<u8> {
    let mut out = vec![entries.len() as u8];
    for &(node, point) in entries {
        wire::put_number(&mut out, u64::from(node.0));
        wire::put_point(&mut out, point);
    }
    out
}

#[test]
fn all_journals_of_a_call_through_three_nodes_are_hurried_at_once() {
    let (mut a, mut b, mut c) = (node(A), node(B), node(C));
    let call = deliver_local(&mut a);
    let call = deliver(&mut b, A, &call);
    let answer = deliver(&mut c, B, &call);
    deliver(&mut a, C, &answer);

    let mut wishes = Vec::new();
    a.needed(DeliveryIndex(2), &mut wishes);
    a.needed(DeliveryIndex(2), &mut wishes);
    let hurry = |to| told(to, &Told::Hurry(point(1, 1)));
    assert_eq!(wishes, [Wish::Flush, hurry(B), hurry(C), Wish::Flush], "each peer is asked once");

    a.safe(Lsn(2));
    assert_eq!(a.recoverable(), DeliveryIndex(1), "the answer depends on two more journals");
    for (peer, at) in [(&mut b, B), (&mut c, C)] {
        assert_eq!(hear(peer, A, &Told::Hurry(point(1, 1))), [Wish::Flush]);
        peer.safe(Lsn(1));
        let mut wishes = Vec::new();
        peer.flush(&mut wishes);
        peer.flush(&mut wishes);
        assert_eq!(wishes, [told(A, &Told::Stable(point(1, 1)))], "who asked is told, once");
        hear(&mut a, at, &Told::Stable(point(1, 1)));
    }
    assert_eq!(a.recoverable(), DeliveryIndex(2));
    assert_eq!(b.recoverable(), DeliveryIndex(0), "nobody asked for that");
    // Whoever asks again does not know.
    assert_eq!(hear(&mut b, A, &Told::Hurry(point(1, 1))), []);
    let mut wishes = Vec::new();
    b.flush(&mut wishes);
    assert_eq!(wishes, [told(A, &Told::Stable(point(1, 1)))]);
}

#[test]
fn a_lost_state_makes_its_dependents_roll_back_and_its_messages_orphans() {
    let (mut a, mut b, mut c) = (node(A), node(B), node(C));
    let kept = deliver_local(&mut a);
    let lost = deliver_local(&mut a);
    deliver(&mut b, A, &kept);
    let through = deliver(&mut b, A, &lost);
    b.safe(Lsn(2));

    // A crashes and keeps its first delivery.
    let news = lives(A, &[(1, 0), (2, 1)]);
    let wishes = hear(&mut b, A, &news);
    assert_eq!(wishes, [told(C, &news), Wish::RollBack { keep: DeliveryIndex(1), lost: A }]);
    b.recovered(Incarnation(2), DeliveryIndex(1), &mut Vec::new());
    assert_eq!(emit(&mut b).1, stamp(&[(A, point(1, 1))]));
    hear(&mut b, A, &Told::Stable(point(2, 1)));
    assert_eq!(b.recoverable(), DeliveryIndex(1));

    hear(&mut c, A, &news);
    assert_eq!(ask(&mut c, A, &lost), Ok(Admission::Orphan));
    assert_eq!(ask(&mut c, B, &through), Ok(Admission::Orphan), "it depends on the loss through another");
    assert_eq!(ask(&mut c, A, &kept), Ok(Admission::Deliver), "what was kept is good in the next life");
    // A itself drops what depends on its own lost tail.
    let mut again = Optimistic::new(A, &ALL);
    again.recovered(Incarnation(2), DeliveryIndex(0), &mut Vec::new());
    hear(&mut again, B, &lives(B, &[(1, 0)]));
    assert_eq!(ask(&mut again, B, &through), Ok(Admission::Orphan));
}

#[test]
fn a_stamp_of_a_life_not_heard_of_waits_because_it_would_hide_a_loss() {
    let mut b = node(B);
    deliver(&mut b, A, &(point(1, 9), stamp(&[])));
    let message = (point(1, 1), stamp(&[(A, point(2, 8))]));
    assert_eq!(ask(&mut b, C, &message), Ok(Admission::NotYet));

    // Taken in all the same, as a replay does whose first run had known: the stamp no longer tells of delivery 9.
    let mut hiding = node(B);
    deliver(&mut hiding, A, &(point(1, 9), stamp(&[])));
    hiding.replaying(C, Ssn(1), &message.1).unwrap();
    let (place, end) = place(&hiding);
    hiding.delivered(place, &Source::Message { from: C, ssn: Ssn(1), origin: message.0, end: Some(end) });
    assert_eq!(emit(&mut hiding).1, stamp(&[(A, point(2, 8)), (C, point(1, 1))]));

    let news = lives(A, &[(1, 0), (2, 7)]);
    assert_eq!(hear(&mut b, A, &news)[1], Wish::RollBack { keep: DeliveryIndex(0), lost: A });
    b.recovered(Incarnation(2), DeliveryIndex(0), &mut Vec::new());
    assert_eq!(ask(&mut b, C, &message), Ok(Admission::Deliver));
}

/// B names life 3 of A in its own history and knows only life 2 after a crash. C, which life 3 makes an orphan, has called its delivery
/// safe: were its message taken in, its loss would be hidden and B's delivery called recoverable.
#[test]
fn after_a_crash_nothing_is_taken_in_before_the_lives_of_the_own_history_are_known() {
    let mut b = node(B);
    hear(&mut b, A, &lives(A, &[(1, 0), (2, 7)]));
    let mut losses = Vec::new();
    b.known_losses(&mut losses);
    hear(&mut b, A, &lives(A, &[(1, 0), (3, 7)]));
    let kept = (point(3, 8), stamp(&[]));
    deliver(&mut b, A, &kept);

    let mut again = Optimistic::new(B, &ALL);
    again.learn_losses(&losses).unwrap();
    again.replaying(A, Ssn(1), &kept.1).unwrap();
    let place = Place { delivery: DeliveryIndex(1), life: Incarnation(1), now: Time(0), seed: 0 };
    again.delivered(place, &Source::Message { from: A, ssn: Ssn(1), origin: kept.0, end: Some(Lsn(1)) });
    again.recovered(Incarnation(2), DeliveryIndex(1), &mut Vec::new());
    hear(&mut again, C, &lives(C, &[(1, 0)]));
    let orphan = (point(1, 1), stamp(&[(A, point(2, 9))]));
    assert_eq!(ask(&mut again, C, &orphan), Ok(Admission::NotYet));
    hear(&mut again, A, &lives(A, &[(1, 0), (3, 7)]));
    assert_eq!(ask(&mut again, C, &orphan), Ok(Admission::Orphan));
}

#[test]
fn a_rollback_and_its_cause_come_together() {
    let (mut a, mut b, mut c) = (node(A), node(B), node(C));
    let lost = deliver_local(&mut a);
    let through = deliver(&mut b, A, &lost);
    // C depends on A directly first, then through B.
    deliver(&mut c, A, &lost);
    deliver(&mut c, B, &through);
    hear(&mut b, A, &lives(A, &[(1, 0), (2, 0)]));
    let mut wishes = Vec::new();
    b.recovered(Incarnation(2), DeliveryIndex(0), &mut wishes);
    let Some(Wish::Tell { to: C, body }) =
        wishes.iter().find(|wish| matches!(wish, Wish::Tell { to: C, .. }))
    else {
        panic!("B tells C of its rollback: {wishes:?}");
    };
    let mut wishes = Vec::new();
    c.control(B, body, &mut wishes).unwrap();
    assert!(wishes.contains(&Wish::RollBack { keep: DeliveryIndex(0), lost: A }), "{wishes:?}");
}

#[test]
fn what_is_known_of_losses_is_known_again_after_a_crash() {
    let mut b = node(B);
    hear(&mut b, A, &lives(A, &[(1, 0), (2, 7)]));
    let mut losses = Vec::new();
    b.known_losses(&mut losses);
    let mut again = Optimistic::new(B, &ALL);
    again.learn_losses(&losses).unwrap();
    again.recovered(Incarnation(2), DeliveryIndex(0), &mut Vec::new());
    assert_eq!(ask(&mut again, A, &(point(1, 9), stamp(&[]))), Ok(Admission::Orphan));
    for length in 0..losses.len() {
        assert!(Optimistic::new(B, &ALL).learn_losses(&losses[..length]).is_err());
    }
}

#[test]
fn a_checkpoint_holds_what_stamps_need() {
    let mut b = node(B);
    deliver(&mut b, A, &(point(1, 300), stamp(&[(C, point(1, 70_000))])));
    let expected = emit(&mut b);
    b.safe(Lsn(1));
    assert_eq!(b.checkpoint_may_cover(), DeliveryIndex(0), "others could still make this node give it up");
    hear(&mut b, A, &Told::Stable(point(1, 300)));
    hear(&mut b, C, &Told::Stable(point(1, 70_000)));
    assert_eq!(b.checkpoint_may_cover(), DeliveryIndex(1));
    let mut saved = Vec::new();
    b.save(&mut saved);
    let mut again = Optimistic::new(B, &ALL);
    again.restore(&saved).unwrap();
    assert_eq!(again.recoverable(), DeliveryIndex(1));
    assert_eq!(emit(&mut again), expected);
    for length in 0..saved.len() {
        assert!(Optimistic::new(B, &ALL).restore(&saved[..length]).is_err());
    }
    assert!(Optimistic::new(A, &ALL).restore(&saved).is_err(), "the checkpoint of another node");
}

#[test]
fn a_stamp_takes_some_bytes_per_node() {
    let mut b = node(B);
    hear(&mut b, A, &lives(A, &[(1, 0), (40, 900_000)]));
    hear(&mut b, C, &lives(C, &[(1, 0), (40, 900_000)]));
    deliver(&mut b, A, &(point(40, 1_000_000), stamp(&[(C, point(40, 1_000_000))])));
    assert_eq!(emit(&mut b).1.len(), 1 + 2 * 5);
}

#[test]
fn who_takes_no_part_is_not_depended_on() {
    let mut b = node(B);
    for from in [A, NodeId(77)] {
        let emitted = deliver(&mut b, from, &(point(9, 9), Vec::new()));
        assert_eq!(emitted.1, stamp(&[]));
    }
    b.safe(Lsn(2));
    assert_eq!(b.recoverable(), DeliveryIndex(2));
}

#[test]
fn peers_are_told_now_and_then_without_asking() {
    let mut b = node(B);
    let mut told_after = Vec::new();
    for delivery in 1..=2 * TOLD_EVERY_DELIVERIES {
        deliver_local(&mut b);
        b.safe(Lsn(delivery));
        let mut wishes = Vec::new();
        b.flush(&mut wishes);
        if !wishes.is_empty() {
            assert_eq!(wishes.len(), 2);
            told_after.push(delivery);
        }
    }
    assert_eq!(told_after, [TOLD_EVERY_DELIVERIES, 2 * TOLD_EVERY_DELIVERIES]);
}

#[test]
fn a_peer_that_never_gets_safe_is_not_depended_on_without_limit() {
    let mut b = node(B);
    for delivery in 1..=UNSETTLED_DELIVERIES_MAX as u64 {
        deliver(&mut b, A, &(point(1, delivery), stamp(&[])));
    }
    let next = (point(1, UNSETTLED_DELIVERIES_MAX as u64 + 1), stamp(&[]));
    let mut wishes = Vec::new();
    assert_eq!(b.arrived(A, next.0, &next.1, &[], &mut wishes), Ok(Admission::NotYet));
    let newest = point(1, UNSETTLED_DELIVERIES_MAX as u64);
    assert_eq!(wishes, [Wish::Flush, told(A, &Told::Hurry(newest))]);
    hear(&mut b, A, &Told::Stable(newest));
    assert_eq!(ask(&mut b, A, &next), Ok(Admission::NotYet), "the own journal is behind, too");
    b.safe(Lsn(UNSETTLED_DELIVERIES_MAX as u64));
    deliver(&mut b, A, &next);
}

#[test]
fn a_peer_that_speaks_of_what_never_was_is_refused() {
    let mut b = node(B);
    deliver_local(&mut b);
    let never = |what, number| Malformed::NeverReached { peer: A, what, number };
    assert_eq!(refuse(&mut b, A, &Told::Stable(point(2, 1))), never("life", 2));
    assert_eq!(refuse(&mut b, A, &Told::Hurry(point(1, 2))), never("delivery", 2));
    assert_eq!(refuse(&mut b, A, &Told::Hurry(point(2, 1))), never("life", 2));
    assert_eq!(refuse(&mut b, A, &lives(B, &[(2, 0)])), never("life", 2));
    assert_eq!(refuse(&mut b, A, &lives(NodeId(9), &[(1, 0)])), never("node", 9));
    let mut asked = |stamp: Vec<u8>| ask(&mut b, A, &(point(1, 1), stamp));
    assert_eq!(asked(stamp(&[(B, point(1, 2))])), Err(never("delivery", 2)));
    assert_eq!(asked(stamp(&[(NodeId(9), point(1, 1))])), Err(never("node", 9)));
    assert_eq!(asked(stamp(&[(C, point(1, 1)), (C, point(1, 2))])), Err(never("node", 2)));
    assert_eq!(asked(stamp(&[(A, point(1, 1))])), Err(never("node", 0)));
    assert_eq!(asked([stamp(&[]), vec![0]].concat()), Err(Malformed::Trailing { bytes: 1 }));
}

#[test]
fn a_peer_that_lost_what_it_had_called_safe_is_named() {
    let mut b = node(B);
    deliver(&mut b, A, &(point(1, 5), stamp(&[])));
    b.safe(Lsn(1));
    hear(&mut b, A, &Told::Stable(point(1, 6)));
    let (recovered, claimed) = (DeliveryIndex(3), DeliveryIndex(5));
    let refused = refuse(&mut b, A, &lives(A, &[(1, 0), (2, 3)]));
    assert_eq!(refused, Malformed::Retracted { peer: A, recovered, claimed });
    assert_eq!(b.recoverable(), DeliveryIndex(1), "nothing was changed");
    hear(&mut b, A, &lives(A, &[(1, 0), (2, 5)]));
}

#[test]
fn bytes_that_nobody_wrote_change_nothing_that_matters() {
    let mut random = 1u64;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut b = node(B);
    deliver(&mut b, A, &(point(1, 5), stamp(&[(C, point(1, 3))])));
    let mut saved = Vec::new();
    b.save(&mut saved);
    let written = [
        lives(A, &[(1, 0), (3, 700), (9, 1000)]).encode(),
        Told::Stable(point(1, 400)).encode(),
        Told::Hurry(point(1, 1)).encode(),
        stamp(&[(B, point(1, 1)), (C, point(1, 300))]),
        saved,
    ];
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = written[draw(written.len())].clone();
        for _ in 0..draw(3) {
            let at = draw(bytes.len());
            bytes[at] = draw(256) as u8;
        }
        bytes.truncate(bytes.len() - draw(2).min(bytes.len()));
        let mut victim = node(B);
        deliver(&mut victim, A, &(point(1, 5), stamp(&[(C, point(1, 3))])));
        let outcomes = [
            victim.control(A, &bytes, &mut Vec::new()).is_ok(),
            victim.arrived(A, point(1, 6), &bytes, &[], &mut Vec::new()).is_ok(),
            victim.learn_losses(&bytes).is_ok(),
            Optimistic::new(B, &ALL).restore(&bytes).is_ok(),
        ];
        taken += outcomes.iter().filter(|&&taken| taken).count();
        refused += outcomes.iter().filter(|&&taken| !taken).count();
        assert_eq!((victim.recoverable(), victim.last), (DeliveryIndex(0), DeliveryIndex(1)));
        victim.safe(Lsn(1));
    }
    assert!(taken > 1000 && refused > 1000, "{taken} taken, {refused} refused");
}
