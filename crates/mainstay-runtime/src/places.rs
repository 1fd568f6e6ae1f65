//! The places of a cluster's nodes, kept in a replicated region: which directory is which node, in which life, and where it listens.
//!
//! ```text
//!   key mainstay/CLUSTER/NODE     {"store": "…", "life": 7, "start": "…", "address": "127.0.0.1:7171"}
//!
//!   at the start, before anything is answered:
//!     free, or this store in an earlier life ────────────> taken
//!     this store in this life or a later one ────────────> refused: a copy of this directory has been started
//!     another store ─────────────────────────────────────> refused, unless told to take it
//!
//!   as long as it runs, every LOOK_EVERY:
//!     its own entry is another start's ──────────────────> the node ends as if killed
//!     another's address is another one ──────────────────> dialled there from now on
//!     the region cannot be reached ──────────────────────> the node goes on; nobody can take its place meanwhile
//! ```
//!
//! No lease: who has lost its place goes on for up to [`LOOK_EVERY`] and the time of a read. Messages of it are fenced sooner, since the other
//! nodes hear nothing of a life that is older than one they know.

use crate::peering::Transport;
use mainstay_region_client::{Client, ConnectError, Outcome, ReadError, Settings, WriteError};
use mainstay_types::id::{NodeId, StoreId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Between two looks at the places.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long one read or write may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Where a node of a cluster takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacesSettings {
    /// Nodes of the region's group, one at least that is there when this node starts.
    pub servers: Vec<SocketAddr>,
    /// The region's name.
    pub region: String,
    /// The cluster's name: its nodes' keys begin with it.
    pub cluster: String,
    /// The address that the others are told, if it is not where this node listens.
    pub address: Option<String>,
    /// Whether this directory takes the place of another one, which is gone for good.
    pub take: bool,
}

/// Who has a place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The identity of its directory.
    pub store: String,
    /// How often that directory has been opened.
    pub life: u64,
    /// Drawn at its start: tells two starts of copies of one directory apart.
    pub start: String,
    /// Where it listens for other nodes: `host:port`; empty as long as it does not.
    pub address: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, life, address, .. } = self;
        write!(f, "directory {store} in life {life}, ")?;
        match address.as_str() {
            "" => write!(f, "not listening yet"),
            address => write!(f, "at {address}"),
        }
    }
}

/// A node did not get its place. It answered nothing in this life.
#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    /// The region that keeps the places is not there.
    #[error("the region that keeps the places of nodes cannot be reached: {0}")]
    Connect(#[from] ConnectError),
    /// It did not answer.
    #[error("who has the place of {node} cannot be read: {source}")]
    Read {
        /// The node.
        node: NodeId,
        /// Why.
        source: ReadError,
    },
    /// It is not known whether it took the place. The next start finds out.
    #[error("the place of {node} may or may not be taken: {source}. Start it again")]
    Write {
        /// The node.
        node: NodeId,
        /// Why.
        source: WriteError,
    },
    /// What is under the key is no place.
    #[error(
        "`{key}` in the region holds something that is no place of a node: remove it if nothing else needs it"
    )]
    Foreign {
        /// The key.
        key: String,
    },
    /// Another directory is this node.
    #[error(
        "{node} is {by}, and this is another directory. If that one is gone for good, with what only it had, start this one with --take-place"
    )]
    OtherStore {
        /// The node.
        node: NodeId,
        /// Who has the place.
        by: Place,
    },
    /// A copy of this directory has been started since.
    #[error(
        "{node} is {by}: a copy of this directory has been started since this one was last. What that one acknowledged is not here. Start \
         that one; or, if it is gone for good, this one with --take-place"
    )]
    Copied {
        /// The node.
        node: NodeId,
        /// Who has the place.
        by: Place,
    },
}

/// Another process has taken the node's place.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "another process has taken the place of {node}: {by}. This one ends as if killed: what it acknowledged since the other's directory was \
     copied from its own is in its own alone"
)]
pub struct PlaceTaken {
    /// The node.
    pub node: NodeId,
    /// By whom.
    pub by: Place,
}

/// Whether `ours` may take the place of `found`.
fn judge(node: NodeId, found: Option<&Place>, ours: &Place, take: bool) -> Result<(), PlacesError> {
    match found {
        None => Ok(()),
        Some(_) if take => Ok(()),
        Some(found) if found.store != ours.store => Err(PlacesError::OtherStore { node, by: found.clone() }),
        Some(found) if found.life >= ours.life && found.start != ours.start => {
            Err(PlacesError::Copied { node, by: found.clone() })
        }
        Some(_) => Ok(()),
    }
}

/// What one look found.
#[derive(PartialEq, Eq, Debug)]
enum Looked {
    Ours,
    Taken(Place),
}

/// A node that has its place.
pub(crate) struct Places {
    client: Client,
    cluster: String,
    node: NodeId,
    others: Vec<NodeId>,
    ours: Place,
    /// Instead of where it listens.
    address: Option<String>,
    /// Whether the region was reached at the last look.
    reached: bool,
}

impl Places {
    /// Takes the place of `node`, before it answers anything.
    pub(crate) fn take(
        settings: &PlacesSettings,
        node: NodeId,
        others: Vec<NodeId>,
        (store, life): (StoreId, u64),
    ) -> Result<Self, PlacesError> {
        let patience = Settings { deadline: ANSWER_MAX, ..Settings::default() };
        let client = Client::connect(&settings.servers, &settings.region, patience)?;
        let start = format!("{:016x}", fastrand::u64(..));
        let ours = Place { store: store.to_string(), life, start, address: String::new() };
        let (cluster, address) = (settings.cluster.clone(), settings.address.clone());
        let mut places = Self { client, cluster, node, others, ours, address, reached: true };
        places.write(|found, ours| judge(node, found, ours, settings.take))?;
        Ok(places)
    }

    /// Tells the others where this node listens.
    pub(crate) fn listens(&mut self, at: SocketAddr) -> Result<(), PlacesError> {
        self.ours.address = self.address.clone().unwrap_or_else(|| at.to_string());
        let node = self.node;
        self.write(|found, ours| match found {
            Some(found) if found.start != ours.start => Err(PlacesError::Copied { node, by: found.clone() }),
            _ => Ok(()),
        })
    }

    fn key(&self, node: NodeId) -> String {
        format!("mainstay/{}/{}", self.cluster, node.0)
    }

    /// Writes the own entry over the one that `may` was asked about.
    fn write(
        &mut self,
        may: impl Fn(Option<&Place>, &Place) -> Result<(), PlacesError>,
    ) -> Result<(), PlacesError> {
        let key = self.key(self.node);
        let bytes = serde_json::to_vec(&self.ours).expect("it is plain data");
        loop {
            let found = self.read(self.node)?;
            may(found.as_ref().map(|(_, place)| place), &self.ours)?;
            let expected = found.as_ref().map(|(bytes, _)| bytes.as_slice());
            let written = self
                .client
                .compare_and_set(key.as_bytes(), expected, Some(&bytes))
                .map_err(|source| PlacesError::Write { node: self.node, source })?;
            if written.outcome != Outcome::Differs {
                return Ok(());
            }
        }
    }

    fn read(&mut self, node: NodeId) -> Result<Option<(Vec<u8>, Place)>, PlacesError> {
        let key = self.key(node);
        let read = self.client.get(key.as_bytes()).map_err(|source| PlacesError::Read { node, source })?;
        let Some(value) = read else { return Ok(None) };
        match serde_json::from_slice(&value.bytes) {
            Ok(place) => Ok(Some((value.bytes.to_vec(), place))),
            Err(_) => Err(PlacesError::Foreign { key }),
        }
    }

    fn look(&mut self, transport: &Transport) -> Result<Looked, PlacesError> {
        match self.read(self.node)? {
            // Removed by hand, it is free to be taken, and is not taken yet.
            None => {}
            Some((_, place)) if place.start == self.ours.start => {}
            Some((_, place)) => return Ok(Looked::Taken(place)),
        }
        for node in self.others.clone() {
            if let Some((_, place)) = self.read(node)?
                && !place.address.is_empty()
            {
                transport.moved(node, &place.address);
            }
        }
        Ok(Looked::Ours)
    }

    /// Looks until the place is taken, or what this returns is dropped; `taken` is told.
    pub(crate) fn keep(
        mut self,
        transport: Transport,
        taken: impl FnOnce(PlaceTaken) + Send + 'static,
    ) -> std::io::Result<Kept> {
        let (kept, dropped): (_, Receiver<()>) = channel();
        std::thread::Builder::new().name("places".to_owned()).spawn(move || {
            loop {
                match self.look(&transport) {
                    Ok(Looked::Ours) => self.reached = true,
                    Ok(Looked::Taken(by)) => return taken(PlaceTaken { node: self.node, by }),
                    Err(error) if self.reached => {
                        tracing::warn!(%error, "this node goes on with the places it knows");
                        self.reached = false;
                    }
                    Err(_) => {}
                }
                if dropped.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Kept(kept))
    }
}

/// The looks go on as long as this is there.
pub(crate) struct Kept(#[expect(dead_code, reason = "its end is what says something")] Sender<()>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_taken_by_a_later_life_of_its_directory_and_by_no_other() {
        let node = NodeId(2);
        let place = |store: &str, life, start: &str| Place {
            store: store.to_owned(),
            life,
            start: start.to_owned(),
            address: String::new(),
        };
        let ours = place("aa", 5, "now");
        let judged = |found: &Place, take| judge(node, Some(found), &ours, take);
        assert!(judge(node, None, &ours, false).is_ok(), "it is free");
        assert!(judged(&place("aa", 4, "before"), false).is_ok());
        assert!(judged(&place("aa", 5, "now"), false).is_ok(), "it was written, and the answer was lost");
        assert!(matches!(judged(&place("aa", 5, "copy"), false), Err(PlacesError::Copied { .. })));
        assert!(matches!(judged(&place("aa", 9, "copy"), false), Err(PlacesError::Copied { .. })));
        assert!(matches!(judged(&place("bb", 1, "other"), false), Err(PlacesError::OtherStore { .. })));
        assert!(judged(&place("bb", 1, "other"), true).is_ok(), "it was told to");
    }
}
