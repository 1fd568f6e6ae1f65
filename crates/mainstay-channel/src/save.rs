//! What a checkpoint holds of the channel, byte for byte as in docs/channel.md.

use crate::channel::Channel;
use crate::frame::{FrameError, put_place, take_place};
use crate::hello::{put_ends, take_ends, take_id};
use crate::link::Link;
use crate::sender_log::{Entry, SenderLog};
use crate::spill::Body;
use mainstay_types::codec::{Reader, Truncated, put_bytes};
use mainstay_types::determinant::Point;
use mainstay_types::id::{ClusterId, DeliveryIndex, Incarnation, NodeId, Ssn, StoreId};
use mainstay_types::snapshot::SnapshotId;

/// The version of these bytes.
const FORMAT: u16 = 3;

/// A checkpoint's part of the channel cannot be taken back. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// It is of another version.
    #[error("the links were saved in format {found}, and this version reads format {FORMAT}")]
    Format {
        /// Its version.
        found: u16,
    },
    /// It is another node's.
    #[error("the links are those of {found} of cluster {cluster}, and this is {expected}")]
    OtherNode {
        /// The cluster of the node that saved it.
        cluster: ClusterId,
        /// The node that saved it.
        found: NodeId,
        /// This node.
        expected: NodeId,
    },
    /// A node that was talked to is not in the list of nodes any more.
    #[error("{peer} is not in the list of nodes any more, and this node has a history with it")]
    Stranger {
        /// The node.
        peer: NodeId,
    },
    /// The peers are not in order.
    #[error("{peer} stands behind one that should follow it")]
    Order {
        /// The node.
        peer: NodeId,
    },
    /// It holds more messages for a peer than were ever sent to it.
    #[error("the link to {peer} retains {retained} messages, and only {appended} were ever sent")]
    Count {
        /// The node.
        peer: NodeId,
        /// How many are retained.
        retained: u64,
        /// How many were sent.
        appended: u64,
    },
    /// Its bytes are damaged.
    #[error("the saved links are damaged: {0}")]
    Damaged(#[from] FrameError),
}

impl From<Truncated> for RestoreError {
    fn from(error: Truncated) -> Self {
        Self::Damaged(error.into())
    }
}

/// What a checkpoint holds of the channel, without a node that runs: to be looked at, or to be carried to another directory.
#[derive(Debug)]
pub struct SavedChannel {
    /// The cluster of the node that saved it.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// The highest snapshot that it had taken part in.
    pub snapshot: SnapshotId,
    /// The line at which its service was exchanged together with those of all other nodes.
    pub line: SnapshotId,
    /// The line that the life which saved it stopped at.
    pub stopped_at: SnapshotId,
    /// Its ended lives, in order, with the last delivery that was recovered of each.
    pub ends: Vec<(Incarnation, DeliveryIndex)>,
    links: Vec<Link>,
}

/// One link of a [`SavedChannel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedLink {
    /// The other end.
    pub peer: NodeId,
    /// The last message to the peer that the history emitted.
    pub sent: Ssn,
    /// The last one that is not kept, because the peer had said that it never needs it again.
    pub dropped: Ssn,
    /// The last message of the peer that the history holds.
    pub received: Ssn,
    /// The highest state of the peer that one of them came from.
    pub seen: Point,
    /// The highest life of the peer that is known.
    pub life: Incarnation,
}

impl SavedChannel {
    /// Reads what [`Channel::save`] wrote.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, RestoreError> {
        let mut reader = Reader::new(bytes);
        let found = reader.u16()?;
        if found != FORMAT {
            return Err(RestoreError::Format { found });
        }
        let (cluster, node) = (ClusterId(take_id(&mut reader)?), NodeId(reader.u32()?));
        let mut named = || SnapshotId::take(&mut reader);
        let (snapshot, line, stopped_at) = (named()?, named()?, named()?);
        let ends = take_ends(&mut reader)?;
        let count = reader.u32()?;
        let mut links: Vec<Link> = Vec::new();
        for _ in 0..count {
            let link = take_link(&mut reader)?;
            if links.last().is_some_and(|last| last.peer >= link.peer) {
                return Err(RestoreError::Order { peer: link.peer });
            }
            links.push(link);
        }
        match reader.rest().len() {
            0 => Ok(Self { cluster, node, snapshot, line, stopped_at, ends, links }),
            bytes => Err(FrameError::Trailing { bytes }.into()),
        }
    }

    /// Its links, by peer.
    pub fn links(&self) -> impl Iterator<Item = SavedLink> + '_ {
        self.links.iter().map(|link| SavedLink {
            peer: link.peer,
            sent: link.log.appended(),
            dropped: link.log.covered(),
            received: link.delivered,
            seen: link.seen,
            life: link.incarnation,
        })
    }

    /// The life that saved it: the one after the last that ended.
    #[must_use]
    pub fn life(&self) -> Incarnation {
        self.ends.last().map_or(Incarnation(1), |(ended, _)| ended.next())
    }

    /// Forgets which directories the peers have: they speak from new ones.
    pub fn forget_stores(&mut self) {
        self.links.iter_mut().for_each(|link| link.store = None);
    }

    /// Writes it as [`Channel::save`] does.
    pub fn put(&self, out: &mut Vec<u8>) {
        let named = [self.snapshot, self.line, self.stopped_at];
        put((self.cluster, self.node), named, &self.ends, &self.links, out);
    }
}

impl Channel {
    /// Writes what a checkpoint of this moment must hold: numbers, cursors, and the retained messages with their places. The same
    /// state gives the same bytes.
    pub fn save(&self, out: &mut Vec<u8>) {
        let named = [self.snapshot, self.line, self.stopped_at];
        put((self.identity.cluster, self.identity.node), named, &self.ends, &self.links, out);
    }

    /// Takes back what [`Self::save`] wrote into a channel made just now. Everything in it may leave: the checkpoint is durable, and
    /// with it the deliveries that emitted it.
    ///
    /// # Errors
    /// [`RestoreError`]; the channel is as it was.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let saved = SavedChannel::parse(bytes)?;
        let SavedChannel { cluster, node, snapshot, line, stopped_at, ends, mut links } = saved;
        if (cluster, node) != (self.identity.cluster, self.identity.node) {
            return Err(RestoreError::OtherNode { cluster, found: node, expected: self.identity.node });
        }
        let untouched = |link: &Link| link.delivered == Ssn(0) && link.log.appended() == Ssn(0);
        if let Some(link) = links.iter().find(|link| self.find(link.peer).is_none() && !untouched(link)) {
            return Err(RestoreError::Stranger { peer: link.peer });
        }
        links.retain(|link| self.find(link.peer).is_some());
        (self.ends, self.snapshot) = (ends, snapshot);
        (self.line, self.stopped_at) = (line, stopped_at);
        for link in links {
            let place = self.find(link.peer).expect("only such are left");
            self.links[place] = link;
        }
        Ok(())
    }

    /// This node takes part in a snapshot: it says so in every greeting from now on.
    pub fn take_part(&mut self, snapshot: SnapshotId) {
        self.snapshot = self.snapshot.max(snapshot);
    }

    /// This life ends at the line of `snapshot`, together with those of all other nodes.
    pub fn stop_at(&mut self, snapshot: SnapshotId) {
        self.stopped_at = snapshot;
    }

    /// A life begins, in another version of the service than the life before or in the same. The same one goes on as if it had not stopped.
    pub fn begin(&mut self, in_another_version: bool) {
        let stopped_at = std::mem::replace(&mut self.stopped_at, SnapshotId::NONE);
        if in_another_version && stopped_at != SnapshotId::NONE {
            self.line = stopped_at;
        }
    }

    /// The line at which the service was exchanged together with those of all other nodes.
    #[must_use]
    pub fn line(&self) -> SnapshotId {
        self.line
    }

    /// The highest snapshot that this node took part in.
    #[must_use]
    pub fn snapshot(&self) -> SnapshotId {
        self.snapshot
    }
}

fn put(
    (cluster, node): (ClusterId, NodeId),
    named: [SnapshotId; 3],
    ends: &[(Incarnation, DeliveryIndex)],
    links: &[Link],
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&cluster.0);
    out.extend_from_slice(&node.0.to_le_bytes());
    named.iter().for_each(|snapshot| snapshot.put(out));
    put_ends(ends, out);
    let count = u32::try_from(links.len()).expect("a cluster has fewer than 2^32 nodes");
    out.extend_from_slice(&count.to_le_bytes());
    for link in links {
        save_link(link, out);
    }
}

fn save_link(link: &Link, out: &mut Vec<u8>) {
    out.extend_from_slice(&link.peer.0.to_le_bytes());
    out.extend_from_slice(&link.delivered.0.to_le_bytes());
    out.extend_from_slice(&link.covered.0.to_le_bytes());
    link.seen.put(out);
    out.extend_from_slice(&link.incarnation.0.to_le_bytes());
    out.push(u8::from(link.store.is_some()));
    if let Some(store) = link.store {
        out.extend_from_slice(&store.0);
    }
    out.extend_from_slice(&link.log.appended().0.to_le_bytes());
    let entries = link.log.entries();
    out.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    for entry in entries {
        entry.origin.put(out);
        put_place(entry.place, out);
        put_bytes(out, &entry.stamp);
        put_bytes(out, &entry.body);
    }
}

fn take_link(from: &mut Reader<'_>) -> Result<Link, RestoreError> {
    let peer = NodeId(from.u32()?);
    let mut link = Link::new(peer);
    link.delivered = Ssn(from.u64()?);
    link.covered = Ssn(from.u64()?);
    if link.covered > link.delivered {
        let (covered, received) = (link.covered, link.delivered);
        return Err(FrameError::CoveredAboveReceived { covered, received }.into());
    }
    link.seen = Point::take(from)?;
    link.incarnation = Incarnation(from.u64()?);
    link.store = match from.u8()? {
        0 => None,
        1 => Some(StoreId(take_id(from)?)),
        flag => return Err(FrameError::Flag { flag }.into()),
    };
    let (appended, retained) = (from.u64()?, from.u64()?);
    let covered = appended.checked_sub(retained).ok_or(RestoreError::Count { peer, retained, appended })?;
    link.log = SenderLog::starting_at(Ssn(covered));
    for _ in 0..retained {
        let (origin, place) = (Point::take(from)?, take_place(from)?);
        let (stamp, body) = (from.bytes()?.to_vec(), Body::Memory(from.bytes()?.into()));
        link.log.append(Entry { origin, place, stamp, body });
    }
    link.released = Ssn(appended);
    Ok(link)
}
