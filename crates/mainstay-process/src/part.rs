//! A node's part of a snapshot as a file: what it holds, whether the parts of all nodes are one line, and how a directory is made
//! from it.
//!
//! ```text
//!   snapshot-….partial ── sync, rename, sync directory ──> snapshot-…        the bytes of a checkpoint, format in `checkpoint.rs`
//!                                                             │
//!                       read all, check the line <────────────┤
//!                                                             └──> restore: a new directory, sealed, with this as its checkpoint
//! ```
//! A *line* has a part of every node, and for every ordered pair of nodes: what the one's part no longer keeps for the other, the
//! other's part holds; and what the other's part holds, the one's part has sent.

use crate::checkpoint::{self, CheckpointError, Loaded, PARTIAL};
use crate::disk_at_once::DiskAtOnce;
use mainstay_channel::hello::Orphan;
use mainstay_channel::{RestoreError, SavedChannel, SavedLink};
use mainstay_journal::journal::{AppendError, Journal};
use mainstay_journal::memory::HeapPages;
use mainstay_journal::open::{OpenError, Opened, make_after, open};
use mainstay_journal::options::OpenOptions;
use mainstay_journal::storage::{Storage, StorageError};
use mainstay_types::codec::{Reader, Truncated, put_bytes};
use mainstay_types::determinant::Point;
use mainstay_types::id::{ClusterId, DeliveryIndex, Generation, Incarnation, NodeId, Ssn, StoreId};
use mainstay_types::snapshot::SnapshotId;

pub(crate) const PREFIX: &str = "snapshot-";

/// How many finished parts a node keeps: the newest.
pub const KEPT: usize = 2;

/// What a part says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which snapshot it is of.
    pub snapshot: SnapshotId,
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// The directory that it comes from.
    pub store: StoreId,
    /// The handler's name.
    pub name: String,
    /// The handler's version.
    pub version: u32,
    /// The life that took it.
    pub life: Incarnation,
    /// The last delivery it knows.
    pub executed: DeliveryIndex,
    /// Outputs whose fate it does not know.
    pub outputs_pending: usize,
    /// Requests taken that a later delivery is to answer.
    pub open_requests: usize,
    /// Ended lives of the node, with the last delivery that was recovered of each.
    pub ends: Vec<(Incarnation, DeliveryIndex)>,
    /// The links to all other nodes.
    pub links: Vec<SavedLink>,
}

/// Bytes that are no part of a snapshot. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// They are no whole checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// What they say of the links cannot be read.
    #[error(transparent)]
    Links(#[from] RestoreError),
    /// They come from a process that stands alone.
    #[error("they are a checkpoint of a process that is no node of a cluster")]
    StandsAlone,
}

impl From<Truncated> for PartError {
    fn from(error: Truncated) -> Self {
        Self::Links(error.into())
    }
}

/// Why parts are not one consistent line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistent {
    /// They are of different snapshots or clusters.
    #[error("the part of {node} is of another snapshot or cluster than the others")]
    Mixed {
        /// Whose.
        node: NodeId,
    },
    /// Nodes are missing, or there twice.
    #[error("{node} has {parts} parts, and the line needs one")]
    Parts {
        /// Which.
        node: NodeId,
        /// How many there are.
        parts: usize,
    },
    /// A part holds messages that the sender's part never sent: it is an orphan of it.
    #[error("{to} holds messages of {from} up to {received}, and {from} had sent those up to {sent}")]
    Orphan {
        /// The sender.
        from: NodeId,
        /// The receiver.
        to: NodeId,
        /// The last message that the receiver's part holds.
        received: Ssn,
        /// The last one that the sender's part sent.
        sent: Ssn,
    },
    /// Messages are in neither part: lost.
    #[error(
        "{from} keeps its messages to {to} from {dropped} on only, and {to} holds those up to {received}"
    )]
    Lost {
        /// The sender.
        from: NodeId,
        /// The receiver.
        to: NodeId,
        /// The last message that the sender's part does not keep.
        dropped: Ssn,
        /// The last one that the receiver's part holds.
        received: Ssn,
    },
    /// A part depends on a delivery that another part's history does not have.
    #[error("{to} depends on {} of life {} of {from}, which its part does not know", seen.delivery, seen.incarnation)]
    Unknown {
        /// Whose delivery.
        from: NodeId,
        /// Who depends on it.
        to: NodeId,
        /// The delivery.
        seen: Point,
    },
}

/// A directory could not be made from a part. What was written so far is worthless.
#[derive(Debug, thiserror::Error)]
pub enum RestorePartError {
    /// It is no part.
    #[error(transparent)]
    Part(#[from] PartError),
    /// The journal could not be made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The journal could not be sealed.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The files could not be written.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// The name under which the part in `snapshot` is written.
#[must_use]
pub fn temporary_name(snapshot: SnapshotId) -> String {
    format!("{}{PARTIAL}", final_name(snapshot))
}

/// The name of the part in `snapshot` once it is final.
#[must_use]
pub fn final_name(snapshot: SnapshotId) -> String {
    format!("{PREFIX}{snapshot}")
}

/// The snapshots whose parts a directory holds, rising.
pub(crate) fn present(storage: &mut dyn Storage) -> Result<Vec<SnapshotId>, StorageError> {
    let files = storage.list()?;
    let named = |name: &str| name.strip_prefix(PREFIX)?.parse().ok();
    let mut present: Vec<SnapshotId> = files.iter().filter_map(|file| named(&file.name)).collect();
    present.sort_unstable();
    Ok(present)
}

/// Makes a completely written temporary file the part in `snapshot`, durably, and removes all but the newest [`KEPT`].
///
/// # Errors
/// [`StorageError`]; the part may then be there or not.
pub fn publish(storage: &mut dyn Storage, snapshot: SnapshotId) -> Result<(), StorageError> {
    storage.sync(&temporary_name(snapshot))?;
    storage.rename(&temporary_name(snapshot), &final_name(snapshot))?;
    storage.sync_directory()?;
    let present = present(storage)?;
    for &old in &present[..present.len().saturating_sub(KEPT)] {
        storage.remove(&final_name(old))?;
    }
    Ok(())
}

impl Part {
    /// Reads a part's bytes, checksums and all.
    ///
    /// # Errors
    /// [`PartError`].
    pub fn read(bytes: &[u8]) -> Result<Self, PartError> {
        let loaded = checkpoint::parse(bytes, None)?;
        let (channel, _) = split_links(&loaded)?;
        Ok(Self {
            snapshot: channel.snapshot,
            cluster: channel.cluster,
            node: channel.node,
            store: loaded.store,
            life: channel.life(),
            executed: loaded.tables.executed,
            outputs_pending: loaded.tables.outbox.len(),
            open_requests: loaded.tables.open.len(),
            links: channel.links().collect(),
            name: loaded.name,
            version: loaded.version,
            ends: channel.ends,
        })
    }

    /// The link to `peer`.
    #[must_use]
    pub fn link(&self, peer: NodeId) -> Option<&SavedLink> {
        self.links.iter().find(|link| link.peer == peer)
    }

    /// Messages on their way to `to` in the line: this part keeps them, and `to`'s does not hold them.
    #[must_use]
    pub fn on_the_way(&self, to: &Self) -> u64 {
        let sent = self.link(to.node).map_or(0, |link| link.sent.0);
        let received = to.link(self.node).map_or(0, |link| link.received.0);
        sent.saturating_sub(received)
    }
}

/// Checks that `parts` are one consistent line of a whole cluster.
///
/// # Errors
/// [`Inconsistent`]: the line must not be restored.
pub fn check_line(parts: &[Part]) -> Result<(), Inconsistent> {
    let Some(first) = parts.first() else { return Ok(()) };
    let alike = |part: &&Part| (part.snapshot, part.cluster) != (first.snapshot, first.cluster);
    if let Some(other) = parts.iter().find(alike) {
        return Err(Inconsistent::Mixed { node: other.node });
    }
    for part in parts {
        for node in part.links.iter().map(|link| link.peer).chain([part.node]) {
            let found = parts.iter().filter(|part| part.node == node).count();
            if found != 1 {
                return Err(Inconsistent::Parts { node, parts: found });
            }
        }
    }
    for sender in parts {
        for receiver in parts.iter().filter(|part| part.node != sender.node) {
            check_link(sender, receiver)?;
        }
    }
    Ok(())
}

fn check_link(sender: &Part, receiver: &Part) -> Result<(), Inconsistent> {
    let (from, to) = (sender.node, receiver.node);
    let missing = |node| Inconsistent::Parts { node, parts: 0 };
    let &SavedLink { sent, dropped, .. } = sender.link(to).ok_or(missing(to))?;
    let &SavedLink { received, seen, .. } = receiver.link(from).ok_or(missing(from))?;
    if received > sent {
        return Err(Inconsistent::Orphan { from, to, received, sent });
    }
    if dropped > received {
        return Err(Inconsistent::Lost { from, to, dropped, received });
    }
    // Numbers are given again by a life that lost some: the deliveries that sent them tell whether they are the same messages.
    let later = seen.incarnation > sender.life || seen.delivery > sender.executed;
    if later || Orphan::of(seen, &sender.ends).is_some() {
        return Err(Inconsistent::Unknown { from, to, seen });
    }
    Ok(())
}

/// The life in which `node` goes on from a line: above every life of it that any part knows.
#[must_use]
pub fn next_life(parts: &[Part], node: NodeId) -> Incarnation {
    let own = parts.iter().filter(|part| part.node == node).map(|part| part.life);
    let seen = parts.iter().filter_map(|part| part.link(node)).map(|link| link.life);
    own.chain(seen).max().unwrap_or_default().next()
}

/// Makes a directory from a part, in an empty `storage`: a sealed journal without records, and the part as its checkpoint. The next
/// start is life `life`, which [`next_life`] gives.
///
/// The directory is a new store: the nodes of the line that it was taken of, and those of another restoration, refuse it. Outputs that
/// the part holds keep the keys they have; one that may be sent at most once may have left after the line, so that it is in doubt.
///
/// # Errors
/// [`RestorePartError`].
///
/// # Panics
/// If `life` is below 2: a line has been lived at least once.
pub fn restore(
    bytes: &[u8],
    storage: &mut dyn Storage,
    options: &OpenOptions,
    life: Incarnation,
) -> Result<(), RestorePartError> {
    let mut loaded = checkpoint::parse(bytes, None).map_err(PartError::from)?;
    let (mut channel, logging) = split_links(&loaded)?;
    channel.forget_stores();
    let (mut saved_channel, mut links) = (Vec::new(), Vec::new());
    channel.put(&mut saved_channel);
    put_bytes(&mut links, &saved_channel);
    put_bytes(&mut links, &logging);
    loaded.tables.carry_over(loaded.store);

    // The opening below is a life of its own: it seals, so that whoever starts here, in whatever version, has nothing to replay.
    let before = life.0.checked_sub(2).expect("a line has been lived at least once");
    make_after(storage, options, Generation(before))?;
    let Opened { catalog, resume, report } = open(storage, options)?;
    let geometry = report.geometry;
    let mut journal = Journal::start(resume, HeapPages::new(geometry.page_bytes, geometry.pages));
    let lsn = journal.end();
    let mut file = Vec::new();
    let identity = (lsn, report.store, loaded.version, loaded.name.as_str());
    checkpoint::save(&mut file, identity, &loaded.tables, &links, |into| into.write_all(&loaded.state))
        .expect("memory takes all");
    let temporary = checkpoint::temporary_name(lsn);
    storage.create(&temporary, 0)?;
    storage.write(&temporary, 0, &file)?;
    checkpoint::publish(storage, lsn)?;

    let mut disk = Vec::new();
    let sealed = journal.seal(&mut disk)?;
    let mut at_once = DiskAtOnce { storage, catalog: &catalog, disk: &mut disk };
    at_once.make_durable(&mut journal, sealed.end).map_err(|error| match error {
        crate::disk_at_once::DiskAtOnceError::Append(error) => RestorePartError::Append(error),
        crate::disk_at_once::DiskAtOnceError::Storage(error) => RestorePartError::Storage(error),
    })
}

/// The channel's share, and the logging protocol's, byte for byte.
fn split_links(loaded: &Loaded) -> Result<(SavedChannel, Vec<u8>), PartError> {
    if loaded.links.is_empty() {
        return Err(PartError::StandsAlone);
    }
    let mut reader = Reader::new(&loaded.links);
    let channel = SavedChannel::parse(reader.bytes()?)?;
    Ok((channel, reader.bytes()?.to_vec()))
}

/// The handler's state in a part's bytes.
///
/// # Errors
/// [`PartError`].
pub fn handler_state(bytes: &[u8]) -> Result<Vec<u8>, PartError> {
    Ok(checkpoint::parse(bytes, None)?.state)
}
