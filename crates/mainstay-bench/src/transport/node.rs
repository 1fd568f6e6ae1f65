//! Both ends of the transport between nodes. A reply is answered on the thread that brings it, as a process does.

use super::{Arguments, ORDER_BYTES, Order, TransportError};
use crate::logging::node::say;
use crate::logging::{Arguments as NodeArguments, NodeProcess};
use mainstay_runtime::peers::event::PeerEvent;
use mainstay_runtime::peers::frames::{LENGTH_BYTES, frames, put_frame};
use mainstay_runtime::peers::settings::{ClusterId, PeerAddress, PeersSettings, Security, TlsFiles};
use mainstay_runtime::peers::{Peers, SendError};
use mainstay_types::id::NodeId;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that may wait for the socket: the window by which the channel keeps a sender back.
const WINDOW_BYTES: usize = 8 << 20;

/// How long the other end may say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How long to wait when the window is full. The channel would be told by its peer when there is room again.
const FULL_PAUSE: Duration = Duration::from_micros(100);

/// The names of both nodes, this end's first.
const NAMES: [&str; 2] = ["n1", "n2"];

/// A folder with the certificates of both nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Certificates(PathBuf);

impl Certificates {
    /// Made by `program cert`.
    pub(super) fn make(program: &Path, folder: &Path) -> Result<Self, TransportError> {
        let cert = |arguments: &[&str]| {
            let mut command = Command::new(program);
            command.arg("cert").arg(arguments[0]).arg(folder).args(&arguments[1..]);
            let made = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
            if made.success() {
                Ok(())
            } else {
                Err(TransportError::Certificates { what: arguments.join(" ") })
            }
        };
        cert(&["init", "--cluster", "transport"])?;
        NAMES.iter().try_for_each(|name| cert(&["node", name]))?;
        Ok(Self(folder.to_owned()))
    }

    fn of(&self, name: &str) -> Security {
        let file = |name: String| self.0.join(name);
        Security::Tls(TlsFiles {
            authority: file("ca.pem".to_owned()),
            certificate: file(format!("{name}.pem")),
            key: file(format!("{name}.key")),
        })
    }
}

/// Of the node in place `me` of [`NAMES`]; the lower one dials `address`.
fn settings(me: usize, address: SocketAddr, certificates: Option<&Certificates>) -> PeersSettings {
    let nodes = NAMES.iter().zip(1..).map(|(name, number)| PeerAddress {
        node: NodeId(number),
        name: (*name).to_owned(),
        address: address.to_string(),
    });
    let security = certificates.map_or(Security::Plain, |certificates| certificates.of(NAMES[me]));
    let number = if me == 0 { NEAR } else { FAR };
    let mut settings =
        PeersSettings::new(ClusterId::named("transport"), number, anywhere(), nodes.collect(), security);
    settings.outgoing_bytes_max = WINDOW_BYTES;
    settings
}

const NEAR: NodeId = NodeId(1);
const FAR: NodeId = NodeId(2);

fn anywhere() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// This end, and the process at the other.
pub(super) struct Node {
    near: Arc<Near>,
    _peer: NodeProcess,
}

#[derive(Default)]
struct Near {
    peers: OnceLock<Peers>,
    session: AtomicU64,
    pings_left: AtomicU32,
    done: Mutex<bool>,
    waits: Condvar,
}

impl Near {
    fn send(&self, frames: &mut Vec<u8>) -> Result<(), SendError> {
        let peers = self.peers.get().expect("they are started before anything is sent");
        peers.send(FAR, self.session.load(Ordering::Relaxed), frames)
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
                    // Not sent, whoever waits for the last one notices.
                    let _ = self.send(&mut bytes);
                }
            }
            PeerEvent::Disconnected { .. } | PeerEvent::Failed { .. } => {}
        }
    }

    fn finish(&self) {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.waits.notify_one();
    }

    fn wait(&self) -> Result<(), TransportError> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.waits.wait_timeout_while(done, SILENCE_MAX, |done| !*done);
        let (mut done, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        *done = false;
        if waited.timed_out() {
            return Err(TransportError::Silent { seconds: SILENCE_MAX.as_secs() });
        }
        Ok(())
    }
}

impl Node {
    pub(super) fn start(program: &Path, certificates: Option<&Certificates>) -> Result<Self, TransportError> {
        let far = NodeArguments::Transport(Arguments::Node(certificates.cloned()));
        let (peer, address) = NodeProcess::listening(program, far)?;
        let near = Arc::new(Near::default());
        let hears = Arc::clone(&near);
        let peers = Peers::start(settings(0, address, certificates), move |event| hears.on_event(event))?;
        assert!(near.peers.set(peers).is_ok(), "they are set once");
        near.wait()?;
        Ok(Self { near, _peer: peer })
    }

    /// How long it took, in seconds.
    pub(super) fn run(&self, order: Order) -> Result<f64, TransportError> {
        self.near.pings_left.store(if order.stream { 0 } else { order.count }, Ordering::Relaxed);
        let mut bytes = Vec::new();
        put_frame(&mut bytes, &order.encode());
        self.send(&mut bytes)?;
        let message = vec![7; order.bytes as usize];
        let began = Instant::now();
        if order.stream {
            let mut left = order.count;
            while left > 0 {
                let now = left.min(order.per_call());
                (0..now).for_each(|_| put_frame(&mut bytes, &message));
                self.send(&mut bytes)?;
                left -= now;
            }
        } else {
            put_frame(&mut bytes, &message);
            self.send(&mut bytes)?;
        }
        self.near.wait()?;
        Ok(began.elapsed().as_secs_f64())
    }

    fn send(&self, bytes: &mut Vec<u8>) -> Result<(), TransportError> {
        loop {
            match self.near.send(bytes) {
                Ok(()) => return Ok(()),
                Err(SendError::QueueFull { .. }) => std::thread::sleep(FULL_PAUSE),
                Err(error) => return Err(io::Error::other(error).into()),
            }
        }
    }
}

/// The other end: until the benchmark ends.
pub(super) fn serve(
    certificates: Option<&Certificates>,
    answers: &mut dyn io::Write,
) -> Result<(), TransportError> {
    let own: Arc<OnceLock<Peers>> = Arc::default();
    let far = Mutex::new(Far::default());
    let answering = Arc::clone(&own);
    let peers = Peers::start(settings(1, anywhere(), certificates), move |event| {
        let PeerEvent::Frames { node, session, bytes } = event else { return };
        let answer = far.lock().unwrap_or_else(PoisonError::into_inner).take(bytes);
        if let (Some(mut answer), Some(peers)) = (answer, answering.get()) {
            // Not sent, the benchmark notices.
            let _ = peers.send(node, session, &mut answer);
        }
    })?;
    let address = peers.address();
    assert!(own.set(peers).is_ok(), "they are set once");
    say(answers, address)?;
    // Nothing is ever written there: it ends with the benchmark.
    io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// What the other end is in the middle of.
#[derive(Default)]
struct Far {
    order: Option<Order>,
    left: u32,
}

impl Far {
    /// Takes whole frames: the frames to answer with.
    fn take(&mut self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let (mut messages, mut ordered) = (0, false);
        for frame in frames(&bytes) {
            if self.left > 0 {
                messages += 1;
                self.left -= 1;
            } else {
                let order = Order::decode(frame.try_into().ok()?);
                (self.order, self.left, ordered) = (Some(order), order.count, true);
            }
        }
        let stream = self.order?.stream;
        if stream && self.left == 0 {
            let mut done = Vec::new();
            put_frame(&mut done, &[1]);
            return Some(done);
        }
        if stream || messages == 0 {
            return None;
        }
        Some(if ordered { bytes[LENGTH_BYTES + ORDER_BYTES..].to_vec() } else { bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(bodies: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bodies.iter().for_each(|body| put_frame(&mut bytes, body));
        bytes
    }

    #[test]
    fn pings_come_back_and_a_stream_is_answered_once() {
        let mut far = Far::default();
        let pings = Order { stream: false, bytes: 2, count: 2 }.encode();
        assert_eq!(far.take(framed(&[&pings])), None);
        assert_eq!(far.take(framed(&[b"ab"])), Some(framed(&[b"ab"])));
        assert_eq!(far.take(framed(&[b"cd"])), Some(framed(&[b"cd"])));
        let stream = Order { stream: true, bytes: 2, count: 3 }.encode();
        assert_eq!(far.take(framed(&[&stream, b"ab", b"cd"])), None);
        assert_eq!(far.take(framed(&[b"ef"])), Some(framed(&[&[1]])));
        assert_eq!(far.take(framed(&[&pings, b"ab"])), Some(framed(&[b"ab"])));
    }
}
