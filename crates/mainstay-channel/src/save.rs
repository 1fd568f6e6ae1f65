//! What a checkpoint holds of the channel, byte for byte as in docs/channel.md.

use crate::channel::Channel;
use crate::frame::{FrameError, put_place, take_place};
use crate::hello::{put_ends, take_ends, take_id};
use crate::link::Link;
use crate::sender_log::{Entry, SenderLog};
use mainstay_types::codec::{Reader, Truncated, put_bytes};
use mainstay_types::determinant::Point;
use mainstay_types::id::{ClusterId, Incarnation, NodeId, Ssn, StoreId};

/// The version of these bytes.
const FORMAT: u16 = 1;

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

pub(crate) fn save(channel: &Channel, out: &mut Vec<u8>) {
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&channel.identity.cluster.0);
    out.extend_from_slice(&channel.identity.node.0.to_le_bytes());
    put_ends(&channel.ends, out);
    let links = u32::try_from(channel.links.len()).expect("a cluster has fewer than 2^32 nodes");
    out.extend_from_slice(&links.to_le_bytes());
    for link in &channel.links {
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

pub(crate) fn restore(channel: &mut Channel, bytes: &[u8]) -> Result<(), RestoreError> {
    let mut reader = Reader::new(bytes);
    let found = reader.u16()?;
    if found != FORMAT {
        return Err(RestoreError::Format { found });
    }
    let (cluster, node) = (ClusterId(take_id(&mut reader)?), NodeId(reader.u32()?));
    if (cluster, node) != (channel.identity.cluster, channel.identity.node) {
        return Err(RestoreError::OtherNode { cluster, found: node, expected: channel.identity.node });
    }
    let ends = take_ends(&mut reader)?;
    let count = reader.u32()?;
    let mut links: Vec<Link> = Vec::new();
    for _ in 0..count {
        let link = take_link(&mut reader)?;
        if links.last().is_some_and(|last| last.peer >= link.peer) {
            return Err(RestoreError::Order { peer: link.peer });
        }
        let untouched = link.delivered == Ssn(0) && link.log.appended() == Ssn(0);
        match channel.find(link.peer) {
            Some(_) => links.push(link),
            None if untouched => {}
            None => return Err(RestoreError::Stranger { peer: link.peer }),
        }
    }
    match reader.rest().len() {
        0 => {}
        bytes => return Err(FrameError::Trailing { bytes }.into()),
    }
    channel.ends = ends;
    for link in links {
        let place = channel.find(link.peer).expect("it was found a few lines above");
        channel.links[place] = link;
    }
    Ok(())
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
        let (stamp, body) = (from.bytes()?.to_vec(), from.bytes()?.into());
        link.log.append(Entry { origin, place, stamp, body });
    }
    link.released = Ssn(appended);
    Ok(link)
}
