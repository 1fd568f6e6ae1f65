//! The transport between nodes beside bare TCP: ping-pong and stream between two processes over loopback.
//!
//! ```text
//! cargo run --release -p mainstay-runtime --example peers_speed [-- --tls CA CERTIFICATE KEY CERTIFICATE KEY]
//! ```
//!
//! Arms alternate within one run; medians over rounds, with the smallest and the largest. The peer is a second process, as it is in
//! life. Both ends of the bare arm do what a bare program would: blocking reads and writes of whole messages, and for the
//! stream the same bytes per system call as the transport is given per call. The certificates are those of nodes `n1` and
//! `n2`, as `mainstay cert` makes them.

use mainstay_runtime::peers::event::PeerEvent;
use mainstay_runtime::peers::frames::{frames, put_frame};
use mainstay_runtime::peers::settings::{ClusterId, PeerAddress, PeersSettings, Security, TlsFiles};
use mainstay_runtime::peers::{Peers, SendError};
use mainstay_types::id::NodeId;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;
const PING_PONGS: usize = 4000;
const STREAM_BYTES: usize = 256 << 20;
/// Bytes handed over per call while streaming: what a node emits in one round.
const BATCH_BYTES: usize = 64 << 10;
/// Bytes that may wait for the socket: the window by which the channel keeps a sender back.
const WINDOW_BYTES: usize = 8 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("bare-peer") => bare_peer(),
        Some("node-peer") => node_peer(security(&arguments[1..], 2)),
        _ => measure(&arguments),
    }
}

fn security(arguments: &[String], node: usize) -> Security {
    match arguments {
        [flag, ca, first, first_key, second, second_key] if flag == "--tls" => {
            let (certificate, key) = if node == 1 { (first, first_key) } else { (second, second_key) };
            let files = TlsFiles { authority: ca.into(), certificate: certificate.into(), key: key.into() };
            Security::Tls(files)
        }
        [] => Security::Plain,
        _ => panic!("usage: peers_speed [--tls CA CERTIFICATE-OF-N1 KEY CERTIFICATE-OF-N2 KEY]"),
    }
}

fn measure(arguments: &[String]) {
    let security = security(arguments, 1);
    let kind = if security == Security::Plain { "plain" } else { "TLS" };
    let mut bare = Bare::start();
    let node = Near::start(security, arguments);
    println!(
        "two processes on loopback, {ROUNDS} rounds, arms interleaved; median (min..max); transport: {kind}\n"
    );
    println!("| | message | bare TCP | transport | share of bare |");
    println!("|---|---|---|---|---|");
    for bytes in [10, 1000, 10_000, 100_000] {
        let (mut floor, mut ours) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let (first, second) = (bare.ping_pong(bytes), node.ping_pong(bytes));
            if round > 0 {
                floor.push(first);
                ours.push(second);
            }
        }
        let share = 100.0 * median(&floor) / median(&ours);
        println!(
            "| ping-pong | {bytes} B | {} | {} | {share:.0} % |",
            shown(&floor, "us"),
            shown(&ours, "us")
        );
    }
    for bytes in [100, 1000, 10_000, 100_000] {
        let (mut floor, mut ours) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let (first, second) = (bare.stream(bytes), node.stream(bytes));
            if round > 0 {
                floor.push(first);
                ours.push(second);
            }
        }
        let share = 100.0 * median(&ours) / median(&floor);
        println!(
            "| stream | {bytes} B | {} | {} | {share:.0} % |",
            shown(&floor, "MB/s"),
            shown(&ours, "MB/s")
        );
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn shown(samples: &[f64], unit: &str) -> String {
    let (least, most) =
        samples.iter().fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(*x), most.max(*x)));
    format!("{:.1} ({least:.1}..{most:.1}) {unit}", median(samples))
}

/// Kills the peer also when something fails.
struct Peer(Child);

impl Peer {
    fn start(arguments: &[&str]) -> (Self, SocketAddr) {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child =
            Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().expect("it runs twice");
        let mut line = String::new();
        let said = child.stdout.take().expect("it was piped");
        BufReader::new(said).read_line(&mut line).expect("it says where it listens");
        (Self(child), line.trim().parse().expect("that is an address"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a peer is asked: a ping of so many bytes is sent back; a stream of so many messages is answered once, at its end.
#[derive(Clone, Copy)]
struct Order {
    stream: bool,
    bytes: u32,
    count: u32,
}

const ORDER_BYTES: usize = 9;

impl Order {
    fn encode(self) -> [u8; ORDER_BYTES] {
        let mut bytes = [0; ORDER_BYTES];
        bytes[0] = u8::from(self.stream);
        bytes[1..5].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[5..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Self { stream: bytes[0] == 1, bytes: number(1), count: number(5) }
    }

    fn stream_of(bytes: usize) -> Self {
        Self { stream: true, bytes: bytes as u32, count: (STREAM_BYTES / bytes) as u32 }
    }

    fn ping_pong_of(bytes: usize) -> Self {
        Self { stream: false, bytes: bytes as u32, count: PING_PONGS as u32 }
    }

    /// Messages per call, so that a call carries about [`BATCH_BYTES`].
    fn per_call(self) -> usize {
        (BATCH_BYTES / self.bytes as usize).clamp(1, self.count as usize)
    }
}

struct Bare {
    stream: TcpStream,
    _peer: Peer,
}

impl Bare {
    fn start() -> Self {
        let (peer, address) = Peer::start(&["bare-peer"]);
        let stream = TcpStream::connect(address).expect("the peer listens");
        stream.set_nodelay(true).expect("it is a socket");
        Self { stream, _peer: peer }
    }

    fn ping_pong(&mut self, bytes: usize) -> f64 {
        let mut message = vec![7; bytes];
        self.stream.write_all(&Order::ping_pong_of(bytes).encode()).expect("it is connected");
        let began = Instant::now();
        for _ in 0..PING_PONGS {
            self.stream.write_all(&message).expect("it is connected");
            self.stream.read_exact(&mut message).expect("it is connected");
        }
        began.elapsed().as_secs_f64() * 1e6 / PING_PONGS as f64
    }

    fn stream(&mut self, bytes: usize) -> f64 {
        let order = Order::stream_of(bytes);
        let batch = vec![7; bytes * order.per_call()];
        let total = bytes * order.count as usize;
        self.stream.write_all(&order.encode()).expect("it is connected");
        let began = Instant::now();
        let mut left = total;
        while left > 0 {
            let now = left.min(batch.len());
            self.stream.write_all(&batch[..now]).expect("it is connected");
            left -= now;
        }
        self.stream.read_exact(&mut [0]).expect("it is connected");
        total as f64 / began.elapsed().as_secs_f64() / 1e6
    }
}

fn bare_peer() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    println!("{}", listener.local_addr().expect("it is bound"));
    let (mut stream, _) = listener.accept().expect("somebody comes");
    stream.set_nodelay(true).expect("it is a socket");
    let mut order = [0; ORDER_BYTES];
    while stream.read_exact(&mut order).is_ok() {
        let order = Order::decode(&order);
        if order.stream {
            let mut buffer = vec![0; BATCH_BYTES];
            let mut left = order.bytes as usize * order.count as usize;
            while left > 0 {
                let room = left.min(buffer.len());
                left -= stream.read(&mut buffer[..room]).expect("it is connected");
            }
            stream.write_all(&[1]).expect("it is connected");
        } else {
            let mut message = vec![0; order.bytes as usize];
            for _ in 0..order.count {
                stream.read_exact(&mut message).expect("it is connected");
                stream.write_all(&message).expect("it is connected");
            }
        }
    }
}

fn settings(me: u32, address: SocketAddr, security: Security) -> PeersSettings {
    let node = |number: u32| PeerAddress {
        node: NodeId(number),
        name: format!("n{number}"),
        address: address.to_string(),
    };
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut settings =
        PeersSettings::new(ClusterId::named("speed"), NodeId(me), listen, vec![node(1), node(2)], security);
    settings.outgoing_bytes_max = WINDOW_BYTES;
    settings
}

/// The node at this end. A reply is answered on the thread that brings it, as a process does.
struct Near {
    state: Arc<NearState>,
    _peer: Peer,
}

#[derive(Default)]
struct NearState {
    peers: OnceLock<Peers>,
    session: AtomicU64,
    pings_left: AtomicUsize,
    done: Mutex<bool>,
    waits: Condvar,
}

impl NearState {
    fn send(&self, frames: &mut Vec<u8>) -> Result<(), SendError> {
        let peers = self.peers.get().expect("they were started");
        peers.send(NodeId(2), self.session.load(Ordering::Relaxed), frames)
    }

    fn on_event(&self, event: PeerEvent) {
        match event {
            PeerEvent::Connected { session, .. } => {
                self.session.store(session, Ordering::Relaxed);
                self.finish();
            }
            PeerEvent::Frames { mut bytes, .. } => {
                if self.pings_left.load(Ordering::Relaxed) <= 1 {
                    self.finish();
                } else {
                    self.pings_left.fetch_sub(1, Ordering::Relaxed);
                    self.send(&mut bytes).expect("there is room");
                }
            }
            // Whoever waits for the peer notices.
            PeerEvent::Disconnected { .. } | PeerEvent::Failed { .. } => {}
        }
    }

    fn finish(&self) {
        *self.done.lock().expect("nobody panics") = true;
        self.waits.notify_one();
    }

    fn wait(&self) {
        let done = self.done.lock().expect("nobody panics");
        let (mut done, waited) = self
            .waits
            .wait_timeout_while(done, Duration::from_secs(30), |done| !*done)
            .expect("nobody panics");
        assert!(!waited.timed_out(), "the peer does not answer");
        *done = false;
    }
}

impl Near {
    fn start(security: Security, arguments: &[String]) -> Self {
        let mut all = vec!["node-peer"];
        all.extend(arguments.iter().map(String::as_str));
        let (peer, address) = Peer::start(&all);
        let state = Arc::new(NearState::default());
        let for_events = Arc::clone(&state);
        let peers = Peers::start(settings(1, address, security), move |event| for_events.on_event(event));
        assert!(state.peers.set(peers.expect("the settings are fine")).is_ok());
        state.wait();
        Self { state, _peer: peer }
    }

    fn ping_pong(&self, bytes: usize) -> f64 {
        self.state.pings_left.store(PING_PONGS, Ordering::Relaxed);
        let mut frames = Vec::new();
        put_frame(&mut frames, &Order::ping_pong_of(bytes).encode());
        self.state.send(&mut frames).expect("there is room");
        let mut message = Vec::new();
        put_frame(&mut message, &vec![7; bytes]);
        let began = Instant::now();
        self.state.send(&mut message).expect("there is room");
        self.state.wait();
        began.elapsed().as_secs_f64() * 1e6 / PING_PONGS as f64
    }

    fn stream(&self, bytes: usize) -> f64 {
        self.state.pings_left.store(0, Ordering::Relaxed);
        let order = Order::stream_of(bytes);
        let mut frames = Vec::new();
        put_frame(&mut frames, &order.encode());
        self.state.send(&mut frames).expect("there is room");
        let message = vec![7; bytes];
        let began = Instant::now();
        let mut left = order.count as usize;
        let mut batch = Vec::new();
        while left > 0 {
            let now = left.min(order.per_call());
            (0..now).for_each(|_| put_frame(&mut batch, &message));
            // The channel would be told by its peer when there is room again; here a moment's wait does.
            while let Err(error) = self.state.send(&mut batch) {
                assert!(matches!(error, SendError::QueueFull { .. }), "{error}");
                std::thread::sleep(Duration::from_micros(100));
            }
            left -= now;
        }
        self.state.wait();
        bytes as f64 * f64::from(order.count) / began.elapsed().as_secs_f64() / 1e6
    }
}

fn node_peer(security: Security) {
    let own: Arc<OnceLock<Peers>> = Arc::default();
    let for_events = Arc::clone(&own);
    let order = Mutex::new((Order { stream: false, bytes: 0, count: 0 }, 0_u32));
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let peers = Peers::start(settings(2, anywhere, security), move |event| {
        let PeerEvent::Frames { node, session, bytes } = event else { return };
        let send = |mut bytes| {
            let peers = for_events.get().expect("they were started");
            peers.send(node, session, &mut bytes).expect("there is room");
        };
        let (order, left) = &mut *order.lock().expect("nobody panics");
        let mut messages = 0;
        let mut ordered = false;
        for frame in frames(&bytes) {
            if *left == 0 {
                *order = Order::decode(frame);
                *left = order.count;
                ordered = true;
            } else {
                assert_eq!(frame.len(), order.bytes as usize, "whole messages arrive");
                messages += 1;
                *left -= 1;
            }
        }
        if !order.stream && messages > 0 {
            let pong = if ordered { bytes[4 + ORDER_BYTES..].to_vec() } else { bytes };
            send(pong);
        } else if order.stream && *left == 0 {
            let mut done = Vec::new();
            put_frame(&mut done, &[1]);
            send(done);
        }
    })
    .expect("the settings are fine");
    let address = peers.address();
    assert!(own.set(peers).is_ok());
    println!("{address}");
    // Until killed by the other, or orphaned by it.
    let _ = std::io::stdin().read(&mut [0]);
    loop {
        std::thread::park();
    }
}
