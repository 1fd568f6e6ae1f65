//! Nodes whose events are waited for, and a raw end that speaks the protocol by hand.

use mainstay_runtime::peers::Peers;
use mainstay_runtime::peers::event::{ConnectError, DisconnectReason, PeerEvent};
use mainstay_runtime::peers::frames::{frames, put_frame};
use mainstay_runtime::peers::preamble::{PREAMBLE_BYTES, Preamble, VERDICT_HEAD_BYTES, Verdict};
use mainstay_runtime::peers::settings::{ClusterId, PeerAddress, PeersSettings, Security};
use mainstay_types::id::NodeId;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long anything may take before a test says that it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where a node listens that nobody dials.
pub(crate) const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Node number `number`, named after it, at `address`.
pub(crate) fn peer(number: u32, address: SocketAddr) -> PeerAddress {
    PeerAddress { node: NodeId(number), name: format!("n{number}"), address: address.to_string() }
}

/// Settings of node `me` among nodes 1, 2, 3 at these addresses, with short pauses.
pub(crate) fn settings(me: u32, addresses: [SocketAddr; 3]) -> PeersSettings {
    let nodes = (1..=3).zip(addresses).map(|(number, address)| peer(number, address)).collect();
    let cluster = ClusterId::named("test");
    let mut settings = PeersSettings::new(cluster, NodeId(me), ANYWHERE, nodes, Security::Plain);
    settings.reconnect_min = Duration::from_millis(1);
    settings.reconnect_max = Duration::from_millis(20);
    settings
}

/// A node of which only this test knows where it is.
pub(crate) fn alone(me: u32) -> PeersSettings {
    settings(me, [ANYWHERE; 3])
}

/// A running node.
pub(crate) struct Node {
    pub(crate) peers: Peers,
    events: Receiver<PeerEvent>,
}

impl Node {
    pub(crate) fn start(settings: PeersSettings) -> Self {
        let (sender, events) = channel();
        // Nobody may be listening any more when a test has seen enough.
        let peers =
            Peers::start(settings, move |event| drop(sender.send(event))).expect("the settings are fine");
        Self { peers, events }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.peers.address()
    }

    /// The next event that is no failure: a node may well reach for one that is not there.
    pub(crate) fn event(&self) -> PeerEvent {
        loop {
            match self.events.recv_timeout(PATIENCE).expect("something happens") {
                PeerEvent::Failed { .. } => {}
                event => return event,
            }
        }
    }

    /// Waits for a connection to `node`; its session.
    pub(crate) fn connected(&self, node: u32) -> u64 {
        match self.event() {
            PeerEvent::Connected { node: found, session, .. } if found == NodeId(node) => session,
            other => panic!("not connected to node {node}: {other:?}"),
        }
    }

    /// Waits for the end of a connection.
    pub(crate) fn disconnected(&self) -> (NodeId, u64, DisconnectReason) {
        match self.event() {
            PeerEvent::Disconnected { node, session, why } => (node, session, why),
            other => panic!("not disconnected: {other:?}"),
        }
    }

    /// Waits for an attempt that fails for a reason that `wanted` picks; others are passed over.
    pub(crate) fn failed<T>(&self, mut wanted: impl FnMut(ConnectError) -> Option<T>) -> T {
        let began = Instant::now();
        let mut last = String::new();
        while began.elapsed() < PATIENCE {
            match self.events.recv_timeout(PATIENCE).expect("something happens") {
                PeerEvent::Failed { why, .. } => {
                    last = why.to_string();
                    if let Some(found) = wanted(why) {
                        return found;
                    }
                }
                other => panic!("no failure: {other:?}"),
            }
        }
        panic!("it fails for other reasons: {last}");
    }

    /// Waits for `count` frames on a connection.
    pub(crate) fn frames(&self, session: u64, count: usize) -> Vec<Vec<u8>> {
        let mut came = Vec::new();
        while came.len() < count {
            match self.event() {
                PeerEvent::Frames { session: found, bytes, .. } if found == session => {
                    came.extend(frames(&bytes).map(<[u8]>::to_vec));
                }
                other => panic!("no frames on connection {session}: {other:?}"),
            }
        }
        assert_eq!(came.len(), count, "more came than was sent");
        came
    }

    pub(crate) fn send(&self, node: u32, session: u64, all: &[&[u8]]) {
        self.peers.send(NodeId(node), session, &mut framed(all)).expect("it is connected");
    }
}

/// Frames behind each other, as they are sent.
pub(crate) fn framed(all: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    all.iter().for_each(|frame| put_frame(&mut bytes, frame));
    bytes
}

/// What node `from` says to node `to`.
pub(crate) fn preamble(from: u32, to: u32) -> Preamble {
    Preamble {
        cluster: ClusterId::named("test"),
        from: NodeId(from),
        to: NodeId(to),
        frame_bytes_max: 1 << 20,
        heartbeat_ms: 10,
    }
}

/// One end of a plain connection, spoken by hand.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    /// Dials a node.
    pub(crate) fn dial(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).expect("somebody listens"))
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
        Self(stream)
    }

    /// Dials node 2 as node 1, and is welcome.
    pub(crate) fn welcome(address: SocketAddr) -> Self {
        let mut raw = Self::dial(address);
        raw.write(&preamble(1, 2).encode());
        raw.write(&Verdict::Welcome.encode());
        raw.preamble();
        assert_eq!(raw.verdict(), Verdict::Welcome);
        raw
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the node reads");
    }

    pub(crate) fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).expect("the node sends");
        bytes
    }

    pub(crate) fn preamble(&mut self) -> Preamble {
        Preamble::decode(&self.read(PREAMBLE_BYTES)).expect("a node sends a preamble")
    }

    pub(crate) fn verdict(&mut self) -> Verdict {
        let mut bytes = self.read(VERDICT_HEAD_BYTES);
        let text_bytes = Verdict::text_bytes(&bytes).expect("that is a head").expect("the text is short");
        bytes.extend(self.read(text_bytes));
        Verdict::decode(&bytes).expect("that is a verdict")
    }

    /// Whether the node has hung up without a further byte.
    pub(crate) fn is_closed(&mut self) -> bool {
        !matches!(self.0.read(&mut [0]), Ok(1..))
    }
}
