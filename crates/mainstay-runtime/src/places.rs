//! The places of a cluster's nodes, kept in a replicated region: which directory is which node, in which life, and where it listens.
//!
//! ```text
//!   key mainstay/CLUSTER/NODE     {"store": "…", "life": 7, "start": "…", "address": "127.0.0.1:7171"}
//!
//!   file DIRECTORY/place          {"start": "…", "before": "…"}      the starts of this directory that may have the place
//!
//!   at the start, before anything is answered:
//!     free, or a start's of that file ──> the file has a new start, then the entry ──> taken
//!     another start's of this store ────> refused, unless told to take it: a copy of this directory has been started
//!     another store's ──────────────────> refused: the other nodes know that one's history
//!
//!   as long as it runs, every LOOK_EVERY:
//!     the own entry is gone, or the one before ──────────> written again: the region has lost it
//!     the own entry is another start's ──────────────────> the node ends as if killed
//!     another's address is another one ──────────────────> dialled there from now on
//!     the region cannot be reached ──────────────────────> the node goes on; nobody can take its place meanwhile
//! ```
//!
//! Starts tell a directory from a copy of it: the one that is started last has the new start in its file, and the other has not. Lives would not,
//! since each attempt at a start is one, and each recovery in place.
//!
//! No lease: who has lost its place goes on for up to [`LOOK_EVERY`] and the time of a few reads.

use crate::driver::EndProcessOnPanic;
use crate::peering::Transport;
use mainstay_disk::replace::replace;
use mainstay_region_client::{Client, ConnectError, Outcome, ReadError, Settings, WriteError};
use mainstay_types::id::{NodeId, StoreId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Between two looks at the places.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long finding the region, and one read or write, may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The file in a node's directory.
const NOTE: &str = "place";

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
    /// Whether this directory takes the place of a copy of it, which is gone for good.
    pub take: bool,
}

/// Who has a place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The identity of its directory.
    pub store: String,
    /// How often that directory has been opened.
    pub life: u64,
    /// Drawn at its start.
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
    #[error(
        "the region that keeps the places of nodes cannot be reached, and nothing was answered: {0}. Start its nodes, or correct --places and --places-region"
    )]
    Connect(#[from] ConnectError),
    /// It did not answer.
    #[error(
        "who has the place of {node} cannot be read, and nothing was answered: {source}. Start it again when the region serves"
    )]
    Read {
        /// The node.
        node: NodeId,
        /// Why.
        source: ReadError,
    },
    /// The file in the directory cannot be read or written.
    #[error(
        "{path}, which tells this directory from copies of it, cannot be used, and nothing was answered: {source}. Without the file the directory \
         counts as an old copy: then --take-place, if no copy of it was started since",
        path = path.display()
    )]
    Note {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
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
        "{node} is {by}, and this is another directory: the other nodes know that one's history, and would not hear this one. Start that one, \
         or a copy of it"
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

/// The starts of this directory that may have the place.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Note {
    /// The last one.
    start: String,
    /// The one that had the place before it: the last one may not have got it.
    before: String,
}

impl Note {
    fn read(directory: &Path) -> Result<Self, PlacesError> {
        let path = directory.join(NOTE);
        let read = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        };
        read.map_err(|source| PlacesError::Note { path, source })
    }

    /// Past a sync, in the place of the one before.
    fn write(&self, directory: &Path) -> Result<(), PlacesError> {
        let bytes = serde_json::to_vec(self).expect("it is plain data");
        replace(directory, NOTE, &bytes)
            .map_err(|source| PlacesError::Note { path: directory.join(NOTE), source })
    }

    fn has(&self, start: &str) -> bool {
        !start.is_empty() && (start == self.start || start == self.before)
    }
}

/// Whether a directory with this note and of this store may take the place of `found`.
fn judge(
    node: NodeId,
    found: Option<&Place>,
    note: &Note,
    store: &str,
    take: bool,
) -> Result<(), PlacesError> {
    match found {
        None => Ok(()),
        Some(found) if note.has(&found.start) => Ok(()),
        Some(found) if found.store != store => Err(PlacesError::OtherStore { node, by: found.clone() }),
        Some(_) if take => Ok(()),
        Some(found) => Err(PlacesError::Copied { node, by: found.clone() }),
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
    note: Note,
    ours: Place,
    /// Instead of where it listens.
    address: Option<String>,
    /// Whether the region was reached at the last look.
    reached: bool,
}

impl Places {
    /// Takes the place of `node`, before it answers anything. `others` are the nodes that it dials.
    pub(crate) fn take(
        settings: &PlacesSettings,
        node: NodeId,
        others: Vec<NodeId>,
        directory: &Path,
        (store, life): (StoreId, u64),
    ) -> Result<Self, PlacesError> {
        let note = Note::read(directory)?;
        let patience = Settings { deadline: ANSWER_MAX, ..Settings::default() };
        let client = Client::connect(&settings.servers, &settings.region, patience)?;
        let start = format!("{:016x}", fastrand::u64(..));
        let ours = Place { store: store.to_string(), life, start, address: String::new() };
        let (cluster, address) = (settings.cluster.clone(), settings.address.clone());
        let mut places = Self { client, cluster, node, others, note, ours, address, reached: true };
        loop {
            let found = places.read(node)?;
            let has = found.as_ref().map(|(_, place)| place);
            judge(node, has, &places.note, &places.ours.store, settings.take)?;
            let before = has.map_or_else(|| places.note.start.clone(), |place| place.start.clone());
            let note = Note { start: places.ours.start.clone(), before };
            note.write(directory)?;
            if places.replace(found)? {
                places.note = note;
                return Ok(places);
            }
        }
    }

    /// The others are told with the next look where this node listens.
    pub(crate) fn listens(&mut self, at: SocketAddr) {
        self.ours.address = self.address.clone().unwrap_or_else(|| at.to_string());
    }

    fn key(&self, node: NodeId) -> String {
        format!("mainstay/{}/{}", self.cluster, node.0)
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

    /// Writes the own entry over what was found; whether that was there still.
    fn replace(&mut self, found: Option<(Vec<u8>, Place)>) -> Result<bool, PlacesError> {
        let key = self.key(self.node);
        let bytes = serde_json::to_vec(&self.ours).expect("it is plain data");
        let expected = found.as_ref().map(|(bytes, _)| bytes.as_slice());
        let written = self
            .client
            .compare_and_set(key.as_bytes(), expected, Some(&bytes))
            .map_err(|source| PlacesError::Write { node: self.node, source })?;
        Ok(written.outcome != Outcome::Differs)
    }

    fn look(&mut self, transport: &Transport) -> Result<Looked, PlacesError> {
        match self.read(self.node)? {
            Some((_, place)) if place == self.ours => {}
            Some((_, place)) if !self.note.has(&place.start) => return Ok(Looked::Taken(place)),
            // Not told yet where it listens; or the region has lost what it was told. Who was quicker is seen at the next look.
            lost => drop(self.replace(lost)?),
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
    ) -> io::Result<Kept> {
        let (kept, dropped): (_, Receiver<()>) = channel();
        std::thread::Builder::new().name("places".to_owned()).spawn(move || {
            let _end = EndProcessOnPanic;
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
    fn a_place_is_taken_by_its_directory_and_by_no_copy_that_it_does_not_descend_from() {
        let node = NodeId(2);
        let place = |store: &str, start: &str| Place {
            store: store.to_owned(),
            life: 5,
            start: start.to_owned(),
            address: String::new(),
        };
        let note = Note { start: "last".to_owned(), before: "before".to_owned() };
        let judged = |found: &Place, take| judge(node, Some(found), &note, "aa", take);
        assert!(judge(node, None, &note, "aa", false).is_ok(), "it is free");
        assert!(judged(&place("aa", "last"), false).is_ok());
        assert!(judged(&place("aa", "before"), false).is_ok(), "the last one did not get it");
        assert!(matches!(judged(&place("aa", "copy"), false), Err(PlacesError::Copied { .. })));
        assert!(judged(&place("aa", "copy"), true).is_ok(), "it was told to");
        assert!(matches!(judged(&place("bb", "other"), true), Err(PlacesError::OtherStore { .. })));
        let fresh = judge(node, Some(&place("aa", "")), &Note::default(), "aa", false);
        assert!(fresh.is_err(), "a directory that never had a place");
    }

    #[test]
    fn a_note_reads_back_and_one_that_cannot_be_read_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        assert_eq!(Note::read(folder.path()).expect("there is none"), Note::default());
        let note = Note { start: "b".to_owned(), before: "a".to_owned() };
        note.write(folder.path()).expect("there is room");
        assert_eq!(Note::read(folder.path()).expect("it is there"), note);
        fs::write(folder.path().join(NOTE), "torn").expect("there is room");
        assert!(matches!(Note::read(folder.path()), Err(PlacesError::Note { .. })));
    }
}
