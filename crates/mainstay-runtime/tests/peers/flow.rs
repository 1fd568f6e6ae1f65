//! Frames on connections: in order and whole, also when connections break, peers are slow, and many send at once.

use crate::harness::{ANYWHERE, Node, PATIENCE, Raw, alone, framed, settings};
use mainstay_runtime::peers::event::{DisconnectReason, PeerEvent};
use mainstay_runtime::peers::frames::{FrameTooLong, frames};
use mainstay_runtime::peers::{Peers, SendError};
use mainstay_types::id::NodeId;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn two() -> (Node, Node, u64, u64) {
    let higher = Node::start(alone(2));
    let lower = Node::start(settings(1, [ANYWHERE, higher.address(), ANYWHERE]));
    let (to_higher, to_lower) = (lower.connected(2), higher.connected(1));
    (lower, higher, to_higher, to_lower)
}

#[test]
fn frames_arrive_whole_and_in_order_both_ways() {
    let (lower, higher, to_higher, to_lower) = two();
    let large: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
    lower.send(2, to_higher, &[b"one", b"two"]);
    lower.send(2, to_higher, &[&large, b"three"]);
    higher.send(1, to_lower, &[b"other way", &large]);
    let came = higher.frames(to_lower, 4);
    assert!(came == [&b"one"[..], b"two", &large, b"three"], "what came differs");
    assert!(lower.frames(to_higher, 2) == [&b"other way"[..], &large], "what came differs");
}

#[test]
fn every_pair_of_three_nodes_has_one_connection() {
    let third = Node::start(alone(3));
    let second = Node::start(settings(2, [ANYWHERE, ANYWHERE, third.address()]));
    let first = Node::start(settings(1, [ANYWHERE, second.address(), third.address()]));
    for (number, node) in [(1, &first), (2, &second), (3, &third)] {
        let mut found = Vec::new();
        while found.len() < 2 {
            match node.event() {
                PeerEvent::Connected { node: other, session, .. } => {
                    node.send(other.0, session, &[format!("from {number}").as_bytes()]);
                    found.push(other.0);
                }
                // Those of nodes that were quicker.
                PeerEvent::Frames { node: other, bytes, .. } => {
                    assert_eq!(
                        frames(&bytes).next(),
                        Some(format!("from {other}").replace("node ", "").as_bytes())
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        found.sort_unstable();
        assert_eq!(found, (1..=3).filter(|other| *other != number).collect::<Vec<_>>());
    }
}

#[test]
fn a_peer_that_comes_back_is_found_again_and_the_old_connection_takes_nothing_more() {
    let (lower, higher, to_higher, to_lower) = two();
    let address = higher.address();
    drop(higher);
    let (node, session, why) = lower.disconnected();
    assert_eq!((node, session), (NodeId(2), to_higher));
    assert!(matches!(why, DisconnectReason::Closed | DisconnectReason::Broken(_)), "{why}");
    let gone = SendError::NotConnected { node: NodeId(2) };
    assert_eq!(lower.peers.send(NodeId(2), to_higher, &mut framed(&[b"late"])), Err(gone));

    let mut again = alone(2);
    again.listen = address;
    let higher = Node::start(again);
    let back = lower.connected(2);
    assert_ne!(back, to_higher);
    assert_eq!(lower.peers.send(NodeId(2), to_higher, &mut framed(&[b"late"])), Err(gone));
    lower.send(2, back, &[b"here again"]);
    let session = higher.connected(1);
    assert_eq!(higher.frames(session, 1), [b"here again"]);
    let _ = to_lower;
}

#[test]
fn a_connection_cut_within_a_frame_hands_over_what_came_before() {
    let node = Node::start(alone(2));
    let mut raw = Raw::welcome(node.address());
    let session = node.connected(1);
    let mut bytes = framed(&[b"whole", b"this one is cut"]);
    bytes.truncate(bytes.len() - 3);
    raw.write(&bytes);
    drop(raw);
    assert_eq!(node.frames(session, 1), [b"whole"]);
    let (_, ended, why) = node.disconnected();
    assert_eq!(ended, session);
    assert!(matches!(why, DisconnectReason::Closed), "{why}");

    let mut raw = Raw::welcome(node.address());
    let session = node.connected(1);
    raw.write(&framed(&[b"anew"]));
    assert_eq!(node.frames(session, 1), [b"anew"]);
}

#[test]
fn a_newer_connection_of_the_same_peer_takes_the_place_of_the_old_one() {
    let node = Node::start(alone(2));
    let mut old = Raw::welcome(node.address());
    let first = node.connected(1);
    let _new = Raw::welcome(node.address());
    let (_, ended, why) = node.disconnected();
    assert_eq!(ended, first);
    assert!(matches!(why, DisconnectReason::Superseded), "{why}");
    let second = node.connected(1);
    assert!(old.is_closed());
    node.send(1, second, &[b"to the new one"]);
}

#[test]
fn a_frame_over_the_limit_is_neither_sent_nor_taken() {
    let mut small = alone(2);
    small.frame_bytes_max = 100;
    let higher = Node::start(small);
    let lower = Node::start(settings(1, [ANYWHERE, higher.address(), ANYWHERE]));
    let (to_higher, to_lower) = (lower.connected(2), higher.connected(1));
    let too_long = FrameTooLong { bytes: 101, frame_bytes_max: 100 };
    let sent = lower.peers.send(NodeId(2), to_higher, &mut framed(&[b"short", &[7; 101]]));
    assert_eq!(sent, Err(SendError::Frame(too_long)));
    lower.send(2, to_higher, &[&[7; 100]]);
    assert_eq!(higher.frames(to_lower, 1), [[7; 100]], "nothing of the refused batch was sent");
    drop(lower);
    higher.disconnected();

    let mut raw = Raw::welcome(higher.address());
    let session = higher.connected(1);
    raw.write(&framed(&[b"short"]));
    raw.write(&u32::MAX.to_le_bytes());
    assert_eq!(higher.frames(session, 1), [b"short"]);
    let (_, _, why) = higher.disconnected();
    let DisconnectReason::Frame(refused) = why else { panic!("{why}") };
    assert_eq!(refused, FrameTooLong { bytes: u32::MAX, frame_bytes_max: 100 });
    assert!(raw.is_closed());
}

#[test]
fn a_peer_that_goes_silent_is_given_up_and_one_with_nothing_to_say_is_not() {
    let mut hasty = alone(2);
    hasty.heartbeat_every = Duration::from_millis(5);
    hasty.silence_max = Duration::from_secs(1);
    let node = Node::start(hasty);
    let mut raw = Raw::welcome(node.address());
    let session = node.connected(1);
    assert_eq!(raw.read(8), [0; 8], "two heartbeats");
    // A heartbeat is no event; the silence after it is.
    raw.write(&[0; 4]);
    let (_, ended, why) = node.disconnected();
    assert_eq!(ended, session);
    assert!(matches!(why, DisconnectReason::Silent { .. }), "{why}");
}

#[test]
fn hanging_up_ends_one_connection_and_another_is_made() {
    let (lower, higher, to_higher, _) = two();
    lower.peers.hang_up(NodeId(2), to_higher + 1);
    lower.send(2, to_higher, &[b"still there"]);
    lower.peers.hang_up(NodeId(2), to_higher);
    let (_, ended, why) = lower.disconnected();
    assert_eq!(ended, to_higher);
    assert!(matches!(why, DisconnectReason::HungUp), "{why}");
    assert!(lower.connected(2) > to_higher);
    drop(higher);
}

/// A peer that stops reading fills this node's queue, which says so; once it reads again, all that was taken arrives.
pub(crate) fn fill_the_queue(
    lower: mainstay_runtime::peers::settings::PeersSettings,
    higher: impl Fn() -> mainstay_runtime::peers::settings::PeersSettings,
) {
    let (sender, events) = channel();
    let gate = Arc::new(Mutex::new(()));
    let shut = gate.lock().expect("nobody panics");
    let gate_of_peer = Arc::clone(&gate);
    let slow = Peers::start(higher(), move |event| {
        if let PeerEvent::Frames { bytes, .. } = event {
            drop(gate_of_peer.lock().expect("nobody panics"));
            sender.send(bytes).expect("the test listens");
        }
    })
    .expect("the settings are fine");
    let mut lower = lower;
    lower.outgoing_bytes_max = 1 << 20;
    lower.nodes[1].address = slow.address().to_string();
    let lower = Node::start(lower);
    let session = lower.connected(2);

    let mut taken = 0_u32;
    let full = loop {
        let mut frame = vec![0; 50_000];
        frame[..4].copy_from_slice(&taken.to_le_bytes());
        match lower.peers.send(NodeId(2), session, &mut framed(&[&frame])) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    let SendError::QueueFull { bytes, outgoing_bytes_max, .. } = full else { panic!("{full}") };
    assert!(bytes <= outgoing_bytes_max && bytes + 60_000 > outgoing_bytes_max, "{bytes} wait");
    drop(shut);
    let mut came = 0;
    while came < taken {
        let bytes = events.recv_timeout(PATIENCE).expect("what was taken arrives");
        for frame in frames(&bytes) {
            assert_eq!(frame[..4], came.to_le_bytes(), "in order");
            came += 1;
        }
    }
    lower.send(2, session, &[b"and on"]);
    let bytes = events.recv_timeout(PATIENCE).expect("there is room again");
    assert_eq!(frames(&bytes).next(), Some(&b"and on"[..]));
}

#[test]
fn a_full_queue_says_so_and_loses_nothing_that_it_took() {
    fill_the_queue(alone(1), || alone(2));
}

#[test]
fn many_threads_that_send_at_once_keep_each_its_order() {
    const THREADS: u8 = 4;
    const EACH: u32 = 2000;
    let (lower, higher, to_higher, to_lower) = two();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let peers = &lower.peers;
            scope.spawn(move || {
                for number in 0..EACH {
                    let mut frame = vec![thread; 200];
                    frame[1..5].copy_from_slice(&number.to_le_bytes());
                    peers.send(NodeId(2), to_higher, &mut framed(&[&frame])).expect("there is room");
                }
            });
        }
        let mut next = [0_u32; THREADS as usize];
        for frame in higher.frames(to_lower, usize::from(THREADS) * EACH as usize) {
            let expected = &mut next[usize::from(frame[0])];
            assert_eq!(frame[1..5], expected.to_le_bytes());
            assert!(frame[5..].iter().all(|byte| *byte == frame[0]), "frames are not mixed up");
            *expected += 1;
        }
    });
}

#[test]
fn a_stopped_node_says_so_to_all_and_gives_its_port_back() {
    let (lower, mut higher, to_higher, to_lower) = two();
    let address = higher.address();
    higher.peers.stop();
    let (_, session, why) = higher.disconnected();
    assert_eq!(session, to_lower);
    assert!(matches!(why, DisconnectReason::Stopped), "{why}");
    let gone = SendError::NotConnected { node: NodeId(1) };
    assert_eq!(higher.peers.send(NodeId(1), to_lower, &mut framed(&[b"late"])), Err(gone));
    let events = higher;
    assert_eq!(lower.disconnected().1, to_higher);
    TcpListener::bind(address)
        .map(drop)
        .or_else(|_| {
            // The lower node may be dialling: then its attempt, not a listener of ours, occupies the port for a moment.
            drop(lower);
            TcpListener::bind(address).map(drop)
        })
        .expect("the port is free again");
    drop(events.peers);
}

#[test]
fn a_node_can_be_stopped_from_its_own_event() {
    let own: Arc<Mutex<Option<Peers>>> = Arc::default();
    let (sender, ended) = channel();
    let for_events = Arc::clone(&own);
    let peers = Peers::start(alone(2), move |event| match event {
        PeerEvent::Frames { .. } => {
            let peers = for_events.lock().expect("nobody panics").take();
            drop(peers.expect("it was put there before a frame was sent"));
        }
        PeerEvent::Disconnected { why, .. } => sender.send(why).expect("the test listens"),
        _ => {}
    })
    .expect("the settings are fine");
    let address = peers.address();
    *own.lock().expect("nobody panics") = Some(peers);
    let mut raw = Raw::welcome(address);
    raw.write(&framed(&[b"the last straw"]));
    let why = ended.recv_timeout(PATIENCE).expect("it does not wait for itself");
    assert!(matches!(why, DisconnectReason::Stopped), "{why}");
    assert!(raw.is_closed());
}
