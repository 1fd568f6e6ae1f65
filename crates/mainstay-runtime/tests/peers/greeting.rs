//! Who is turned away, with which words, on both sides.

use crate::harness::{ANYWHERE, Node, Raw, alone, preamble, settings};
use mainstay_runtime::peers::event::ConnectError;
use mainstay_runtime::peers::preamble::{Preamble, PreambleError, Refusal, Verdict};
use mainstay_runtime::peers::settings::{ClusterId, SettingsError};
use mainstay_runtime::peers::{Peers, PeersError};
use mainstay_types::id::NodeId;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// What node 2 answers to a preamble, and what it reports.
fn refused(node: &Node, said: &[u8]) -> (u16, String, Refusal) {
    let mut raw = Raw::dial(node.address());
    raw.write(said);
    let theirs = raw.preamble();
    assert_eq!(theirs.from, NodeId(2), "also who refuses says who it is");
    let Verdict::Refused { code, text } = raw.verdict() else { panic!("{said:?} is welcome") };
    assert!(raw.is_closed());
    drop(raw);
    let refusal = node.failed(|why| match why {
        ConnectError::Refused(refusal) => Some(refusal),
        _ => None,
    });
    (code, text, refusal)
}

#[test]
fn who_does_not_belong_here_is_told_why() {
    let node = Node::start(alone(2));
    let ours = ClusterId::named("test");
    let theirs = ClusterId::named("elsewhere");
    let mut version = preamble(1, 2).encode();
    version[6] = 9;
    let cases: [(Vec<u8>, Refusal); 7] = [
        (Preamble { cluster: theirs, ..preamble(1, 2) }.encode().into(), Refusal::Cluster { theirs, ours }),
        (version.into(), Refusal::Version { theirs: 9 }),
        (preamble(7, 2).encode().into(), Refusal::UnknownNode { node: NodeId(7) }),
        (preamble(2, 2).encode().into(), Refusal::Itself { node: NodeId(2) }),
        (preamble(1, 3).encode().into(), Refusal::OtherNode { meant: NodeId(3), ours: NodeId(2) }),
        (preamble(3, 2).encode().into(), Refusal::Direction { node: NodeId(3) }),
        (
            Preamble { heartbeat_ms: 60_000, ..preamble(1, 2) }.encode().into(),
            Refusal::Heartbeat { theirs_ms: 60_000, silence_ms: 5000 },
        ),
    ];
    for (said, expected) in cases {
        let (code, text, refusal) = refused(&node, &said);
        assert_eq!(refusal, expected);
        assert_eq!((code, text), (expected.code(), expected.to_string()));
    }
    // And who does belong here is welcome after all that.
    let _raw = Raw::welcome(node.address());
    node.connected(1);
}

#[test]
fn a_node_of_another_cluster_is_refused_on_both_sides() {
    let higher = Node::start(alone(2));
    let mut strange = settings(1, [ANYWHERE, higher.address(), ANYWHERE]);
    strange.cluster = ClusterId::named("elsewhere");
    let lower = Node::start(strange);
    let is_cluster = |why| matches!(why, ConnectError::Refused(Refusal::Cluster { .. })).then_some(());
    lower.failed(is_cluster);
    higher.failed(is_cluster);
}

#[test]
fn a_wrong_address_in_the_list_is_named() {
    let third = Node::start(alone(3));
    // Node 1 takes the third for the second.
    let first = Node::start(settings(1, [ANYWHERE, third.address(), ANYWHERE]));
    let why = first.failed(|why| matches!(why, ConnectError::Refused(_)).then_some(why));
    assert!(why.to_string().contains("this is node 3, node 2 was meant"), "{why}");
    third.failed(|why| {
        let expected = Refusal::OtherNode { meant: NodeId(2), ours: NodeId(3) };
        matches!(why, ConnectError::Refused(refusal) if refusal == expected).then_some(())
    });
}

#[test]
fn a_dialling_node_hears_why_it_was_refused() {
    let listener = TcpListener::bind(ANYWHERE).expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let node = Node::start(settings(1, [ANYWHERE, address, ANYWHERE]));
    let mut raw = Raw::over(listener.accept().expect("the node dials").0);
    assert_eq!(raw.preamble(), Preamble { frame_bytes_max: 16 << 20, heartbeat_ms: 1000, ..preamble(1, 2) });
    raw.write(&preamble(2, 1).encode());
    raw.write(&Verdict::Refused { code: 99, text: "a reason\nof the future".to_owned() }.encode());
    let (code, text) = node.failed(|why| match why {
        ConnectError::RefusedByPeer { code, text } => Some((code, text)),
        _ => None,
    });
    assert_eq!((code, text.as_str()), (99, "a reason of the future"));

    // It tries again; who is there is not who was meant.
    let mut raw = Raw::over(listener.accept().expect("the node dials again").0);
    raw.preamble();
    raw.write(&preamble(3, 1).encode());
    raw.write(&Verdict::Welcome.encode());
    assert_eq!(raw.verdict(), Verdict::from(&Refusal::OtherNode { meant: NodeId(2), ours: NodeId(3) }));
}

#[test]
fn a_stranger_that_speaks_something_else_gets_no_answer() {
    let node = Node::start(alone(2));
    let mut raw = Raw::dial(node.address());
    raw.write(b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(raw.is_closed());
    node.failed(|why| {
        let expected = PreambleError::Foreign { begins_with: *b"GET /m" };
        matches!(why, ConnectError::Preamble(error) if error == expected).then_some(())
    });
}

#[test]
fn a_stranger_that_says_nothing_is_not_waited_for_long_nor_are_many_let_in() {
    let mut hasty = alone(2);
    hasty.connect_timeout = Duration::from_millis(300);
    hasty.strangers_max = 1;
    let node = Node::start(hasty);
    let mut silent = Raw::dial(node.address());
    silent.write(b"MSP");
    let mut second = Raw::dial(node.address());
    assert!(second.is_closed(), "one stranger is enough");
    node.failed(|why| matches!(why, ConnectError::Timeout { .. }).then_some(()));
    assert!(silent.is_closed());
}

#[test]
fn a_preamble_cut_short_and_a_false_verdict_are_survived() {
    let node = Node::start(alone(2));
    let mut raw = Raw::dial(node.address());
    raw.write(&preamble(1, 2).encode()[..30]);
    drop(raw);
    node.failed(|why| matches!(why, ConnectError::Broken(_)).then_some(()));
    let mut raw = Raw::dial(node.address());
    raw.write(&preamble(1, 2).encode());
    raw.write(&[1, 0, 0xff, 0xff]);
    node.failed(|why| matches!(why, ConnectError::Verdict).then_some(()));
}

#[test]
fn plain_text_does_not_leave_the_machine() {
    let elsewhere: SocketAddr = "0.0.0.0:0".parse().expect("it is an address");
    let mut outside = alone(2);
    outside.listen = elsewhere;
    let refused = Peers::start(outside, |_| {}).err().expect("it is refused");
    let PeersError::Settings(error) = refused else { panic!("{refused}") };
    assert_eq!(error, SettingsError::PlainBeyondLoopback { address: elsewhere });
}

#[test]
fn a_port_in_use_is_named() {
    let node = Node::start(alone(2));
    let mut second = alone(2);
    second.listen = node.address();
    let refused = Peers::start(second, |_| {}).err().expect("it is refused");
    assert!(refused.to_string().contains(&node.address().to_string()), "{refused}");
}
