//! What a peer pins is moved out of memory, oldest first, and is the same when it is sent again.

use mainstay_channel::channel::{Channel, Retained};
use mainstay_channel::frame::Frame;
use mainstay_channel::hello::{Declared, Identity};
use mainstay_channel::limits::Limits;
use mainstay_channel::spill::Spilled;
use mainstay_types::determinant::Point;
use mainstay_types::id::{ClusterId, DeliveryIndex, Incarnation, NodeId, Ssn, StoreId};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const BODY_BYTES: u64 = 1000;
/// Half of the messages of a test.
const MEMORY_BYTES_MAX: u64 = 10_000;

fn channel(node: NodeId, log_spill_bytes_max: u64) -> Channel {
    let identity = Identity {
        cluster: ClusterId([7; 16]),
        node,
        store: StoreId([node.0 as u8; 16]),
        incarnation: Incarnation(1),
    };
    let limits = Limits {
        log_bytes_max: 2 * MEMORY_BYTES_MAX,
        log_memory_bytes_max: MEMORY_BYTES_MAX,
        log_spill_bytes_max,
        ..Limits::default()
    };
    let mut channel = Channel::new(identity, Declared::default(), &[A, B], limits);
    assert_eq!(channel.recovered(), []);
    channel
}

fn emit(channel: &mut Channel, count: u64) {
    for _ in 0..count {
        let number = channel.appended(B).0 + 1;
        let origin = Point { incarnation: Incarnation(1), delivery: DeliveryIndex(number) };
        let ssn = channel.append(B, origin, vec![], vec![number as u8; 1000].into());
        channel.release(B, ssn);
    }
}

fn kept(channel: &Channel) -> Retained {
    channel.retained().next().expect("there is one peer")
}

/// Performs what is asked for until nothing is; returns how often.
fn spill_all(channel: &mut Channel) -> u64 {
    let mut spills = 0;
    while let Some(spill) = channel.spill() {
        assert!(channel.spill().is_none(), "one at a time");
        channel.spilled(spill.id, &Spilled::new(spill.bytes.clone()));
        spills += 1;
    }
    spills
}

/// The numbers and bodies that a new session with `b` brings there.
fn sent(a: &mut Channel, b: &mut Channel) -> Vec<(u64, Vec<u8>)> {
    let (hello, answer) = (a.connected(B), b.connected(A));
    b.greeted(A, &hello).expect("it is the peer");
    a.greeted(B, &answer).expect("it is the peer");
    let mut sent = Vec::new();
    a.frames_for(
        B,
        |_| {},
        |frame| {
            if let Frame::Message(message) = frame {
                sent.push((message.ssn.0, message.body.to_vec()));
            }
        },
    );
    sent
}

fn expected(numbers: std::ops::RangeInclusive<u64>) -> Vec<(u64, Vec<u8>)> {
    numbers.map(|number| (number, vec![number as u8; 1000])).collect()
}

#[test]
fn memory_stays_below_its_limit_and_what_is_outside_is_sent_and_saved_like_the_rest() {
    let (mut a, mut b) = (channel(A, 1 << 20), channel(B, 1 << 20));
    emit(&mut a, 3);
    assert!(a.spill().is_none(), "there is room in memory");
    emit(&mut a, 17);
    assert!(!a.may_accept(), "more than the hard limit is in memory");
    let mut before = Vec::new();
    a.save(&mut before);
    assert!(spill_all(&mut a) > 1);
    let Retained { messages, bytes, spilled_bytes, .. } = kept(&a);
    assert!(bytes <= MEMORY_BYTES_MAX && a.may_accept(), "{bytes}");
    assert_eq!((messages, spilled_bytes % BODY_BYTES), (20, 0));
    assert!(spilled_bytes >= 10 * BODY_BYTES);

    let mut after = Vec::new();
    a.save(&mut after);
    assert!(before == after, "a checkpoint holds the whole log, wherever it is");
    assert_eq!(sent(&mut a, &mut b), expected(1..=20));
    a.disconnected(B);
    b.disconnected(A);
    assert_eq!(sent(&mut a, &mut b), expected(1..=20), "again");

    a.covered(B, Ssn(5)).expect("they were sent");
    assert_eq!(kept(&a).spilled_bytes, spilled_bytes - 5 * BODY_BYTES);
    a.covered(B, Ssn(20)).expect("they were sent");
    assert_eq!((kept(&a).messages, kept(&a).bytes, kept(&a).spilled_bytes), (0, 0, 0));
    emit(&mut a, 20);
    assert!(spill_all(&mut a) > 1, "from anew");
    assert_eq!(a.body(B, Ssn(21)), Some(&[21; 1000][..]));
}

#[test]
fn what_is_covered_while_it_is_written_is_dropped_and_its_neighbours_are_not() {
    let (mut a, mut b) = (channel(A, 1 << 20), channel(B, 1 << 20));
    emit(&mut a, 20);
    assert_eq!(sent(&mut a, &mut b).len(), 20);
    let spill = a.spill().expect("there is too much");
    let bytes = spill.bytes.len() as u64;
    assert!(bytes > 2 * BODY_BYTES);
    a.covered(B, Ssn(2)).expect("they were sent");
    a.spilled(spill.id, &Spilled::new(spill.bytes));
    assert_eq!(kept(&a).spilled_bytes, bytes - 2 * BODY_BYTES);
    for number in 3..=20 {
        assert_eq!(a.body(B, Ssn(number)), Some(&[number as u8; 1000][..]), "{number}");
    }
    let spill = a.spill().expect("there is still too much");
    a.covered(B, Ssn(20)).expect("they were sent");
    a.spilled(spill.id, &Spilled::new(spill.bytes));
    assert_eq!((kept(&a).bytes, kept(&a).spilled_bytes), (0, 0));
}

#[test]
fn without_room_outside_it_stays_in_memory_up_to_the_hard_limit() {
    let mut a = channel(A, 3 * BODY_BYTES);
    emit(&mut a, 12);
    spill_all(&mut a);
    assert_eq!(kept(&a).spilled_bytes, 3 * BODY_BYTES, "the second limit");
    assert!(kept(&a).bytes > MEMORY_BYTES_MAX && a.may_accept());
    emit(&mut a, 12);
    assert!(a.spill().is_none());
    assert_eq!(a.pressure().map(|pressure| pressure.peer), Some(B));

    let mut a = channel(A, 0);
    emit(&mut a, 20);
    assert!(a.spill().is_none(), "nothing is moved when nothing may be");
}

#[test]
fn a_failed_spill_is_tried_again_when_told_to_and_one_of_an_earlier_life_counts_for_nothing() {
    let mut a = channel(A, 1 << 20);
    emit(&mut a, 20);
    let failed = a.spill().expect("there is too much");
    a.spill_failed(failed.id);
    assert!(a.spill_is_paused() && a.spill().is_none());
    assert_eq!(kept(&a).spilled_bytes, 0);
    a.retry_spill();
    let again = a.spill().expect("it is tried again");
    assert_eq!(again.bytes, failed.bytes);
    a.spilled(failed.id, &Spilled::new(Vec::new()));
    a.spill_failed(failed.id);
    assert_eq!((a.spill_is_paused(), kept(&a).spilled_bytes), (false, 0), "its time is over");
    a.spilled(again.id, &Spilled::new(again.bytes.clone()));
    assert_eq!(kept(&a).spilled_bytes, again.bytes.len() as u64);
}
