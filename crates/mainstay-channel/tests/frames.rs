//! Frames read back as they were written, and no other bytes are taken for one.

use mainstay_channel::frame::{Frame, FrameError, Message, REFUSAL_BYTES_MAX, Reached, split};
use mainstay_channel::hello::{Declared, Hello, Identity, PROTOCOL};
use mainstay_channel::refusal::Refusal;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{ClusterId, DeliveryIndex, Incarnation, NodeId, Ssn, StoreId};
use mainstay_types::snapshot::SnapshotId;
use mainstay_types::time::Time;
use proptest::prelude::{any, prop_assert_eq, proptest};

fn hello() -> Hello {
    Hello {
        identity: Identity {
            cluster: ClusterId([1; 16]),
            node: NodeId(2),
            store: StoreId([3; 16]),
            incarnation: Incarnation(4),
        },
        to: NodeId(5),
        declared: Declared { policy: 6, failures_max: 7, version: 22 },
        received: Ssn(9),
        covered: Ssn(8),
        collecting: true,
        rejoins: false,
        crashed: true,
        agreeing: true,
        window_messages_max: 10,
        window_bytes_max: 11,
        message_bytes_max: 12,
        seen: Point { incarnation: Incarnation(13), delivery: DeliveryIndex(14) },
        snapshot: SnapshotId { number: 19, initiator: NodeId(20), life: Incarnation(21) },
        line: SnapshotId { number: 23, initiator: NodeId(24), life: Incarnation(25) },
        ends: vec![(Incarnation(15), DeliveryIndex(16)), (Incarnation(17), DeliveryIndex(18))],
    }
}

fn message() -> Message<'static> {
    Message {
        ssn: Ssn(1),
        origin: Point { incarnation: Incarnation(2), delivery: DeliveryIndex(3) },
        place: Some(Place { delivery: DeliveryIndex(4), life: Incarnation(5), now: Time(6), seed: 7 }),
        stamp: b"stamp",
        attached: b"along",
        body: b"body",
    }
}

fn frames() -> Vec<Frame<'static>> {
    vec![
        Frame::Hello(Box::new(hello())),
        Frame::Message(message()),
        Frame::Message(Message { place: None, stamp: b"", attached: b"", body: b"", ..message() }),
        Frame::Received { ssn: Ssn(u64::MAX) },
        Frame::Covered { ssn: Ssn(0) },
        Frame::Control(b"control"),
        Frame::Collected,
        Frame::Recovered { ends: vec![(Incarnation(1), DeliveryIndex(5))] },
        Frame::Agreed { asks: true, lives: vec![(NodeId(1), Incarnation(4)), (NodeId(2), Incarnation(7))] },
        Frame::Heard,
        Frame::Outlived { asks: false, lives: vec![(NodeId(3), Incarnation(9))] },
        Frame::Passive {
            reached: vec![Reached { node: NodeId(3), life: Incarnation(9), delivery: DeliveryIndex(7) }],
        },
        Frame::Pinned { bytes: 99 },
        Frame::Marker { snapshot: SnapshotId { number: 1, initiator: NodeId(2), life: Incarnation(3) } },
        Frame::Refused { code: 6, text: "an older life" },
    ]
}

fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.put(&mut bytes);
    bytes
}

#[test]
fn frames_read_back() {
    for frame in frames() {
        assert_eq!(Frame::parse(&bytes_of(&frame)), Ok(frame));
    }
}

/// What is last in a frame takes the rest; everything before it has a length that must be there.
#[test]
fn no_truncated_frame_is_taken_for_the_whole_one() {
    for frame in frames() {
        let bytes = bytes_of(&frame);
        for length in 0..bytes.len() {
            let cut = Frame::parse(&bytes[..length]);
            assert!(cut.as_ref() != Ok(&frame), "{frame:?} cut to {length} bytes");
            let open_ended = matches!(frame, Frame::Message(_) | Frame::Control(_) | Frame::Refused { .. });
            assert!(open_ended || cut.is_err(), "{frame:?} cut to {length} bytes gives {cut:?}");
        }
    }
}

#[test]
fn a_stream_of_frames_parts_where_they_end() {
    let mut stream = Vec::new();
    for frame in frames() {
        frame.put_with_length(&mut stream);
    }
    let mut rest = &stream[..];
    for frame in frames() {
        let (first, after) = split(rest, 1000).expect("it is short").expect("it is there");
        assert_eq!(Frame::parse(first), Ok(frame));
        rest = after;
    }
    assert!(rest.is_empty());
    for length in 0..20 {
        assert_eq!(split(&stream[..length], 1000), Ok(None), "the first frame is not there in full");
    }
    assert_eq!(split(&[0, 0, 1, 0], 1000), Err(FrameError::TooLong { bytes: 65536, limit: 1000 }));
}

#[test]
fn a_greeting_of_another_version_is_told_by_its_number_and_a_foreign_one_at_once() {
    let mut bytes = bytes_of(&Frame::Hello(Box::new(hello())));
    bytes[5] = 9;
    assert_eq!(Frame::parse(&bytes[..7]), Err(FrameError::Protocol { found: 9 }));
    assert_eq!(
        Refusal::from(FrameError::Protocol { found: 9 }),
        Refusal::OtherProtocol { expected: PROTOCOL, found: 9 }
    );
    bytes[1] = b'G';
    assert_eq!(Frame::parse(&bytes), Err(FrameError::Foreign));
    assert_eq!(Frame::parse(b"GET / HTTP/1.1"), Err(FrameError::Kind { kind: b'G' }));
}

#[test]
fn a_greeting_that_cannot_be_true_is_no_greeting() {
    let cases = [
        Hello { covered: Ssn(10), ..hello() },
        Hello { received: Ssn(u64::MAX), covered: Ssn(8), ..hello() },
    ];
    for case in cases {
        assert!(Frame::parse(&bytes_of(&Frame::Hello(Box::new(case)))).is_err());
    }
}

#[test]
fn a_refusal_cannot_move_the_cursor_of_who_reads_it() {
    let escape = Frame::Refused { code: 1, text: "\u{1b}[2J" };
    assert_eq!(Frame::parse(&bytes_of(&escape)), Err(FrameError::Text));
    let mut long = vec![8, 1];
    long.extend(vec![b'a'; REFUSAL_BYTES_MAX + 1]);
    assert_eq!(Frame::parse(&long), Err(FrameError::Text));
}

/// Every refusal says what happened, what is safe and what to do, and fits its frame at the largest numbers.
#[test]
fn every_refusal_fits_its_frame_and_has_a_code_of_its_own() {
    let node = NodeId(u32::MAX);
    let ssn = Ssn(u64::MAX);
    let declared = Declared { policy: 255, failures_max: 255, version: u32::MAX };
    let (ended, recovered) = (Incarnation(u64::MAX), DeliveryIndex(u64::MAX));
    let depends_on = Point { incarnation: ended, delivery: recovered };
    let all = [
        Refusal::OtherCluster { node, expected: ClusterId([255; 16]), found: ClusterId([0; 16]) },
        Refusal::OtherProtocol { expected: 2, found: u16::MAX },
        Refusal::Misaddressed { meant: node, reached: node },
        Refusal::Stranger { node },
        Refusal::OtherStore { node, expected: StoreId([255; 16]), found: StoreId([0; 16]) },
        Refusal::Fenced { node, seen: Incarnation(u64::MAX), found: Incarnation(u64::MAX) },
        Refusal::Policies { node, ours: declared, theirs: declared },
        Refusal::MessageLimit { node, ours: u32::MAX, theirs: u32::MAX },
        Refusal::Forgot { node, covered: ssn, received: ssn },
        Refusal::Ahead { node, received: ssn, appended: ssn },
        Refusal::OutOfOrder { node, expected: ssn, found: ssn },
        Refusal::NeverSent { node, acknowledged: ssn, sent: ssn },
        Refusal::Overrun { node, ssn, messages_max: u32::MAX, bytes_max: u64::MAX },
        Refusal::TooLarge { node, what: "attachment", bytes: u64::MAX, limit: u32::MAX },
        Refusal::OutOfTurn { node, what: "Collected", when: "without being asked" },
        Refusal::Unreadable,
        Refusal::PeerOrphaned { node, depends_on, ended, recovered },
        Refusal::Orphaned { node, depends_on, ended, recovered },
    ];
    for (place, refusal) in all.iter().enumerate() {
        let mut bytes = Vec::new();
        refusal.put(&mut bytes);
        let text = refusal.to_string();
        assert_eq!(Frame::parse(&bytes), Ok(Frame::Refused { code: place as u8 + 1, text: &text }));
    }
    assert_eq!(all[5].code(), Refusal::FENCED);
}

proptest! {
    /// What parses is written again with the same bytes: there is one way to say each thing.
    #[test]
    fn what_parses_is_written_the_same(kind in 1u8..9, rest in any::<Vec<u8>>()) {
        let bytes = [vec![kind], rest].concat();
        if let Ok(frame) = Frame::parse(&bytes) {
            prop_assert_eq!(bytes_of(&frame), bytes);
        }
    }

    #[test]
    fn changed_frames_parse_or_are_refused(which in 0usize..9, at in any::<u16>(), value in any::<u8>()) {
        let mut bytes = bytes_of(&frames()[which]);
        let at = usize::from(at) % bytes.len();
        bytes[at] = value;
        if let Ok(frame) = Frame::parse(&bytes) {
            prop_assert_eq!(bytes_of(&frame), bytes);
        }
    }
}
