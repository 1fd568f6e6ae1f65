//! A peer that says anything at any time: it is taken in or refused, and never brings the node down or makes it forget.

use mainstay_channel::channel::{Arrival, Channel};
use mainstay_channel::frame::{Frame, Message};
use mainstay_channel::hello::{Declared, Hello, Identity};
use mainstay_channel::limits::Limits;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{ClusterId, DeliveryIndex, Incarnation, NodeId, Ssn, StoreId};
use mainstay_types::time::Time;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_oneof, proptest};

const OWN: NodeId = NodeId(0);
const PEER: NodeId = NodeId(1);
const LIMITS: Limits = Limits {
    log_bytes_max: 2000,
    log_memory_bytes_max: u64::MAX,
    log_spill_bytes_max: 0,
    window_messages_max: 3,
    window_bytes_max: 20,
    message_bytes_max: 10,
    control_bytes_max: 10,
};

#[derive(Clone, Debug)]
enum Event {
    Connected,
    Disconnected,
    Greeted { received: u64, covered: u64, incarnation: u64, collecting: bool, window: u32 },
    Message { ssn: u64, bytes: usize },
    Received(u64),
    Covered(u64),
    Collected,
    Ordered(u64),
    Emit(usize),
    DeliverNext,
    Recovered,
    Send,
}

fn event() -> impl Strategy<Value = Event> {
    // Near the numbers in use, and far from them.
    let ssn = || prop_oneof![9 => 0u64..8, 1 => any::<u64>()];
    prop_oneof![
        2 => any::<bool>().prop_map(|_| Event::Connected),
        1 => any::<bool>().prop_map(|_| Event::Disconnected),
        3 => (ssn(), ssn(), 1u64..4, any::<bool>(), 0u32..5).prop_map(
            |(received, covered, incarnation, collecting, window)| Event::Greeted {
                received, covered, incarnation, collecting, window
            }
        ),
        4 => (ssn(), 0usize..12).prop_map(|(ssn, bytes)| Event::Message { ssn, bytes }),
        3 => ssn().prop_map(Event::Received),
        3 => ssn().prop_map(Event::Covered),
        1 => any::<bool>().prop_map(|_| Event::Collected),
        2 => ssn().prop_map(Event::Ordered),
        4 => (0usize..=10).prop_map(Event::Emit),
        3 => any::<bool>().prop_map(|_| Event::DeliverNext),
        1 => any::<bool>().prop_map(|_| Event::Recovered),
        4 => any::<bool>().prop_map(|_| Event::Send),
    ]
}

fn identity(node: NodeId, incarnation: u64) -> Identity {
    let (cluster, store) = (ClusterId([0; 16]), StoreId([node.0 as u8; 16]));
    Identity { cluster, node, store, incarnation: Incarnation(incarnation) }
}

fn point(delivery: u64) -> Point {
    Point { incarnation: Incarnation(1), delivery: DeliveryIndex(delivery) }
}

/// A greeting as it comes off the wire; `None` if its decoder refuses it.
fn off_the_wire(hello: Hello) -> Option<Hello> {
    let mut bytes = Vec::new();
    Frame::Hello(Box::new(hello)).put(&mut bytes);
    match Frame::parse(&bytes) {
        Ok(Frame::Hello(hello)) => Some(*hello),
        _ => None,
    }
}

fn live_through(events: &[Event]) {
    let mut channel = Channel::new(identity(OWN, 1), Declared::default(), &[OWN, PEER], LIMITS);
    let mut template = Channel::new(identity(PEER, 1), Declared::default(), &[OWN, PEER], LIMITS);
    let template = template.connected(OWN);
    let mut covered = 0;
    for event in events {
        // A refused session is ended, as its caller must.
        let refused = match *event {
            Event::Connected => {
                channel.connected(PEER);
                false
            }
            Event::Disconnected => true,
            Event::Greeted { received, covered: below, incarnation, collecting, window } => {
                let (received, below) = (Ssn(received), Ssn(below));
                let said = Hello {
                    identity: identity(PEER, incarnation),
                    received,
                    covered: below,
                    collecting,
                    window_messages_max: window,
                    ..template.clone()
                };
                off_the_wire(said).is_none_or(|hello| {
                    let greeted = channel.greeted(PEER, &hello);
                    covered = if greeted.is_ok() { covered.max(below.0) } else { covered };
                    greeted.is_err()
                })
            }
            Event::Message { ssn, bytes } => {
                let body = [0; 12];
                let message = Message {
                    ssn: Ssn(ssn),
                    origin: point(ssn),
                    place: None,
                    stamp: &[],
                    attached: &[],
                    body: &body[..bytes],
                };
                let before = channel.delivered_up_to(PEER);
                let arrival = channel.arrived(PEER, &message);
                assert_eq!(arrival == Ok(Arrival::Next), arrival.is_ok() && message.ssn > before);
                arrival.is_err()
            }
            Event::Received(ssn) => channel.received(PEER, Ssn(ssn)).is_err(),
            Event::Covered(ssn) => {
                let said = channel.covered(PEER, Ssn(ssn));
                covered = if said.is_ok() { covered.max(ssn) } else { covered };
                said.is_err()
            }
            Event::Collected => channel.collected(PEER).is_err(),
            Event::Ordered(ssn) => {
                let place =
                    Place { delivery: DeliveryIndex(ssn), life: Incarnation(1), now: Time(0), seed: 0 };
                channel.ordered(PEER, Ssn(ssn), place);
                false
            }
            Event::Emit(bytes) => {
                let ssn = channel.append(PEER, point(1), vec![], vec![1; bytes].into());
                channel.release(PEER, ssn);
                false
            }
            Event::DeliverNext => {
                let next = channel.delivered_up_to(PEER).next();
                channel.delivered(PEER, next, point(next.0));
                channel.cover(PEER, next);
                false
            }
            Event::Recovered => {
                let _ = channel.recovered();
                covered = covered.min(channel.appended(PEER).0);
                false
            }
            Event::Send => {
                channel.frames_for(PEER, |_| {}, |_| {});
                false
            }
        };
        if refused {
            channel.disconnected(PEER);
        }
        let retained = channel.retained().next().expect("there is one peer").messages;
        let expected = channel.appended(PEER).0.saturating_sub(covered);
        assert_eq!(
            retained, expected,
            "only what the peer said it never needs again is dropped, after {event:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_peer_says_the_node_lives_and_forgets_nothing(
        events in proptest::collection::vec(event(), 0..80)
    ) {
        live_through(&events);
    }
}
