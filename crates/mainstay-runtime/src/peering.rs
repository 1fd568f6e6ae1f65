//! Between the process and the transport to its peers: which connection each peer is on, and what leaves for it.
//!
//! A life of the process knows only connections that began in it. When the process is recovered within the same operating-system
//! process, all of them are hung up: what still arrives on them is dropped, and the transport dials again.

use crate::peers::Peers;
use crate::peers::event::PeerEvent as Happened;
use mainstay_process::event::{Event, PeerEvent};
use mainstay_types::id::NodeId;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// The transport, while there is one: started behind the first recovery, stopped with the service.
#[derive(Clone, Default)]
pub(crate) struct Transport(Arc<RwLock<Option<Peers>>>);

impl Transport {
    pub(crate) fn set(&self, peers: Peers) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(peers);
    }

    /// Ends all connections. Not under the lock: what is being reported meanwhile may want to send.
    pub(crate) fn stop(&self) {
        let peers = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(peers);
    }

    /// From now on a node is dialled there.
    pub(crate) fn moved(&self, node: NodeId, address: &str) {
        if let Some(peers) = self.get().as_ref() {
            peers.moved(node, address);
        }
    }

    /// Where this node listens, while it does.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.get().as_ref().map(Peers::address)
    }

    fn get(&self) -> RwLockReadGuard<'_, Option<Peers>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The peers of one life of the process.
#[derive(Default)]
pub(crate) struct Peering {
    transport: Transport,
    /// The connection of each peer that has one.
    sessions: BTreeMap<NodeId, u64>,
    /// Frames of this round, for one write each.
    outgoing: BTreeMap<NodeId, Vec<u8>>,
}

impl Peering {
    pub(crate) fn new(transport: Transport) -> Self {
        Self { transport, ..Self::default() }
    }

    /// What the process is to know of what happened on a connection; `None` if it concerns one of another life, or nobody.
    pub(crate) fn event(&mut self, happened: Happened) -> Option<Event> {
        Some(Event::Peer(match happened {
            Happened::Connected { node, session, .. } => {
                self.sessions.insert(node, session);
                PeerEvent::Connected { peer: node }
            }
            Happened::Frames { node, session, bytes } if self.is_current(node, session) => {
                PeerEvent::Frames { peer: node, bytes }
            }
            Happened::Disconnected { node, session, why } if self.is_current(node, session) => {
                tracing::info!(%node, %why, "a connection to a node ended");
                self.sessions.remove(&node);
                PeerEvent::Disconnected { peer: node }
            }
            Happened::Failed { node, remote, why } => {
                tracing::debug!(?node, ?remote, %why, "no connection to a node");
                return None;
            }
            Happened::Frames { .. } | Happened::Disconnected { .. } => return None,
        }))
    }

    /// Takes frames for the next [`Self::send`]. Returns an empty buffer for those after them.
    pub(crate) fn put(&mut self, to: NodeId, mut frames: Vec<u8>) -> Vec<u8> {
        let outgoing = self.outgoing.entry(to).or_default();
        if outgoing.is_empty() {
            std::mem::swap(outgoing, &mut frames);
        } else {
            outgoing.extend_from_slice(&frames);
            frames.clear();
        }
        frames
    }

    /// Lets everything go that was put in since the last time.
    pub(crate) fn send(&mut self) {
        let transport = self.transport.get();
        let Some(transport) = transport.as_ref() else { return };
        for (&to, frames) in &mut self.outgoing {
            if frames.is_empty() {
                continue;
            }
            // Lost with the connection, or too much for it: the channel sends again on the next.
            if let Some(&session) = self.sessions.get(&to)
                && let Err(error) = transport.send(to, session, frames)
            {
                tracing::debug!(%to, %error, "frames were not taken");
                transport.hang_up(to, session);
            }
            frames.clear();
        }
    }

    pub(crate) fn hang_up(&mut self, peer: NodeId) {
        self.send();
        if let (Some(transport), Some(session)) = (self.transport.get().as_ref(), self.sessions.remove(&peer))
        {
            transport.hang_up(peer, session);
        }
    }

    /// The life ends: its connections do as well.
    pub(crate) fn leave(&mut self) {
        for peer in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.hang_up(peer);
        }
    }

    fn is_current(&self, node: NodeId, session: u64) -> bool {
        self.sessions.get(&node) == Some(&session)
    }
}
