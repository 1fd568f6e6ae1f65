//! The transport between nodes: frames over one connection per pair, TCP, mutually authenticated TLS unless on loopback.
//!
//! ```text
//!   lower node                                       higher node
//!   dial thread ── connect ───────────────────────> accept thread
//!        │      ── TLS, preamble, verdict ─────────>     │ thread of the connection
//!        │      <───────────── preamble, verdict ──      │
//!   Connected                                        Connected
//!        │ <── frames, heartbeats, both ways ──────────> │
//!   Disconnected, and dials again                    Disconnected
//! ```
//!
//! The bytes are described in `docs/transport.md`. What this module does not do: it promises nothing. What was sent when a
//! connection broke may have arrived or not; numbering, acknowledging, sending again and fencing off old lives are the
//! channel's, whose frames are opaque here. There is no thread pool and no asynchronous runtime: a frame is read, handed on,
//! and whatever it leads to is written by one thread, since a wake-up costs as much as a whole way through loopback.

pub mod event;
pub mod frames;
pub mod preamble;
pub mod settings;

/// Certificates, as nodes of every kind use them.
pub use mainstay_tls as tls;

mod accept;
mod dial;
mod greeting;
mod link;

use crate::driver::EndProcessOnPanic;
use crate::peers::accept::Door;
use crate::peers::event::{ConnectError, DisconnectReason, PeerEvent};
use crate::peers::frames::FrameTooLong;
use crate::peers::greeting::Greeted;
use crate::peers::link::{Link, NotTaken};
use crate::peers::settings::{PeerAddress, PeersSettings, Security, SettingsError};
use crate::peers::tls::{Tls, TlsError};
use mainstay_types::id::NodeId;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The connections of this node to its peers. Dropping it stops them.
pub struct Peers {
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

/// The transport could not be started. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// The settings contradict themselves.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// This node cannot prove who it is.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The port cannot be used.
    #[error("no peer can reach this node: cannot listen on {listen}")]
    Listen {
        /// Where.
        listen: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The operating system gives no thread.
    #[error("no thread for the connections to peers")]
    Thread(#[source] io::Error),
}

/// Frames were not taken. Nothing of them was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// That connection is gone; its `Disconnected` was reported or is about to be.
    #[error("that connection to {node} is gone")]
    NotConnected {
        /// The peer.
        node: NodeId,
    },
    /// The peer does not read as fast as this node sends.
    #[error("{bytes} bytes wait for {node} already, at most {outgoing_bytes_max} may")]
    QueueFull {
        /// The peer.
        node: NodeId,
        /// Bytes that wait.
        bytes: usize,
        /// The limit in bytes.
        outgoing_bytes_max: usize,
    },
    /// The peer would hang up.
    #[error(transparent)]
    Frame(#[from] FrameTooLong),
}

impl Peers {
    /// Listens, and reaches for all peers with higher numbers, until stopped.
    ///
    /// `on_event` is called on the thread that reads from the peer concerned, and may call [`Self::send`]. While it works, nothing
    /// more is read from that peer. If it panics, the process ends.
    ///
    /// # Errors
    /// [`PeersError`].
    pub fn start(
        settings: PeersSettings,
        on_event: impl Fn(PeerEvent) + Send + Sync + 'static,
    ) -> Result<Self, PeersError> {
        settings.check()?;
        let mut nodes = settings.nodes.clone();
        nodes.sort_by_key(|node| node.node);
        let me = nodes.iter().find(|node| node.node == settings.me).expect("the settings were checked");
        let tls = match &settings.security {
            Security::Plain => None,
            Security::Tls(files) => Some(Tls::load(files, &me.name)?),
        };
        let listen = settings.listen;
        let listening = TcpListener::bind(listen).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = listening.map_err(|source| PeersError::Listen { listen, source })?;
        let listener = Arc::new(listener);

        let peers: Vec<_> = nodes.into_iter().filter(|node| node.node != settings.me).collect();
        let shared = Arc::new(Shared {
            tls,
            slots: peers.iter().map(Slot::new).collect(),
            on_event: Box::new(on_event),
            sessions: AtomicU64::new(0),
            door: Door::default(),
            stopping: Mutex::new(false),
            stop: Condvar::new(),
            settings,
        });
        // From here on its end stops what was started.
        let mut this = Self { shared, listener, address, acceptor: None };
        let (shared, listener) = (Arc::clone(&this.shared), Arc::clone(&this.listener));
        this.acceptor = Some(spawn("peers", move || accept::keep_accepting(&shared, &listener))?);
        for peer in peers.into_iter().filter(|peer| peer.node > this.shared.settings.me) {
            let shared = Arc::clone(&this.shared);
            spawn("peer", move || {
                let _end = EndProcessOnPanic;
                dial::keep_dialling(&shared, peer);
            })?;
        }
        Ok(this)
    }

    /// Where this node listens, with the port that the operating system chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends whole frames, each behind its length, on the connection that `Connected` told of: on this thread, as far as
    /// the socket takes them at once. They arrive in order, all, or up to where the connection broke. Never blocks on the
    /// network. Leaves `frames` empty, with room for the next ones; on an error, as it was.
    ///
    /// # Errors
    /// [`SendError`].
    ///
    /// # Panics
    /// If the bytes are not whole frames, or one is empty.
    pub fn send(&self, node: NodeId, session: u64, frames: &mut Vec<u8>) -> Result<(), SendError> {
        let gone = SendError::NotConnected { node };
        let Some(link) = self.shared.slot(node).and_then(|slot| slot.link_of(session)) else {
            return Err(gone);
        };
        frames::check_outgoing(frames, link.frame_bytes_max)?;
        link.send(frames).map_err(|not_taken| match not_taken {
            NotTaken::Over => gone,
            NotTaken::Full { bytes } => {
                let outgoing_bytes_max = self.shared.settings.outgoing_bytes_max;
                SendError::QueueFull { node, bytes, outgoing_bytes_max }
            }
        })
    }

    /// From now on `node` is dialled there: `host:port`. A connection that there is stays.
    pub fn moved(&self, node: NodeId, address: &str) {
        if let Some(slot) = self.shared.slot(node) {
            slot.moved(address);
        }
    }

    /// Ends a connection whose peer misbehaves, or belongs to a life that is over; it is dialled again. Nothing happens if it is gone
    /// already.
    pub fn hang_up(&self, node: NodeId, session: u64) {
        if let Some(link) = self.shared.slot(node).and_then(|slot| slot.link_of(session)) {
            link.end(DisconnectReason::HungUp);
        }
    }

    /// Ends all connections and stops listening. Afterwards no connection and no frame is reported any more; what is being
    /// reported on the very thread that calls this may go on.
    pub fn stop(&mut self) {
        *self.shared.lock_stopping() = true;
        self.shared.stop.notify_all();
        // Wakes the thread that accepts. There is nothing to be done if it does not.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        for slot in &self.shared.slots {
            slot.end();
        }
        for slot in &self.shared.slots {
            slot.wait_vacated();
        }
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().expect("a panic there ends the process");
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, PeersError> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(PeersError::Thread)
}

/// What all threads of the transport share.
struct Shared {
    settings: PeersSettings,
    tls: Option<Tls>,
    /// All peers, by number.
    slots: Vec<Slot>,
    on_event: Box<dyn Fn(PeerEvent) + Send + Sync>,
    sessions: AtomicU64,
    door: Door,
    stopping: Mutex<bool>,
    stop: Condvar,
}

impl Shared {
    fn slot(&self, node: NodeId) -> Option<&Slot> {
        let place = self.slots.binary_search_by_key(&node, |slot| slot.node).ok()?;
        Some(&self.slots[place])
    }

    fn lock_stopping(&self) -> MutexGuard<'_, bool> {
        self.stopping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        *self.lock_stopping()
    }

    /// Waits, unless this node stops.
    fn pause(&self, pause: Duration) {
        let stopping = self.lock_stopping();
        drop(self.stop.wait_timeout_while(stopping, pause, |stopping| !*stopping));
    }

    fn report_failure(&self, node: Option<NodeId>, remote: Option<SocketAddr>, why: ConnectError) {
        if !self.is_stopping() {
            (self.on_event)(PeerEvent::Failed { node, remote, why });
        }
    }

    /// Takes over a connection on which both agreed to talk, on the thread that will read from it; returns when it has ended.
    fn run(&self, greeted: Greeted) {
        let Greeted { node, frame_bytes_max, socket, tls } = greeted;
        let slot = self.slot(node).expect("only nodes of the list are greeted");
        let session = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        let outgoing_bytes_max = self.settings.outgoing_bytes_max;
        let link = Arc::new(Link::new(session, frame_bytes_max, outgoing_bytes_max, socket, tls));
        if !slot.occupy(&link, || self.is_stopping()) {
            return;
        }
        tracing::info!(peer = %slot.name, session, "connected");
        (self.on_event)(PeerEvent::Connected { node, session, frame_bytes_max });
        let PeersSettings { frame_bytes_max, heartbeat_every, silence_max, .. } = self.settings;
        let for_writer = &link;
        let why = std::thread::scope(|scope| {
            let writer =
                std::thread::Builder::new().name("peer-write".into()).spawn_scoped(scope, move || {
                    let _end = EndProcessOnPanic;
                    for_writer.keep_writing(heartbeat_every);
                });
            if let Err(error) = writer {
                link.end(error.into());
            }
            link.read(frame_bytes_max, silence_max, |bytes| {
                (self.on_event)(PeerEvent::Frames { node, session, bytes });
            })
        });
        tracing::info!(peer = %slot.name, session, why = %dial::chain(&why), "disconnected");
        (self.on_event)(PeerEvent::Disconnected { node, session, why });
        slot.vacate();
    }
}

/// The place of one peer: at most one connection at a time.
struct Slot {
    node: NodeId,
    name: String,
    /// Where it is dialled; empty as long as that is not known.
    address: Mutex<String>,
    link: Mutex<Option<Arc<Link>>>,
    vacated: Condvar,
}

impl Slot {
    fn new(peer: &PeerAddress) -> Self {
        let PeerAddress { node, name, address } = peer.clone();
        Self { node, name, address: Mutex::new(address), link: Mutex::new(None), vacated: Condvar::new() }
    }

    fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn moved(&self, address: &str) {
        let mut known = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != address {
            tracing::info!(peer = %self.name, from = %known, to = address, "a node has moved");
            address.clone_into(&mut known);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link_of(&self, session: u64) -> Option<Arc<Link>> {
        self.lock().as_ref().filter(|link| link.session == session).map(Arc::clone)
    }

    /// Puts a new connection in the place of one that may be there: the peer would not have opened it if the old one were any
    /// good. Waits until the end of the old one is reported. Says whether it did.
    fn occupy(&self, link: &Arc<Link>, is_stopping: impl Fn() -> bool) -> bool {
        let mut place = self.lock();
        while !is_stopping() {
            let Some(old) = &*place else {
                *place = Some(Arc::clone(link));
                return true;
            };
            old.end(DisconnectReason::Superseded);
            place = self.vacated.wait(place).unwrap_or_else(PoisonError::into_inner);
        }
        false
    }

    fn vacate(&self) {
        *self.lock() = None;
        self.vacated.notify_all();
    }

    fn end(&self) {
        if let Some(link) = &*self.lock() {
            link.end(DisconnectReason::Stopped);
        }
    }

    /// Waits until the end of a connection is reported; not on the thread that has to report it.
    fn wait_vacated(&self) {
        let here = std::thread::current().id();
        let in_use = |place: &mut Option<Arc<Link>>| place.as_ref().is_some_and(|link| link.reader != here);
        drop(self.vacated.wait_while(self.lock(), in_use));
    }
}
