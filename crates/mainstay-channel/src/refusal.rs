//! Why a session goes no further: what happened, what is safe, what to do.

use crate::frame::{Frame, FrameError, REFUSAL_BYTES_MAX};
use crate::hello::{Declared, PROTOCOL};
use mainstay_types::determinant::Point;
use mainstay_types::id::{ClusterId, DeliveryIndex, Incarnation, NodeId, Ssn, StoreId};
use mainstay_types::snapshot::SnapshotId;

/// A peer that cannot be talked to, or that broke the protocol. Nothing it said was taken in; the session, if it had come
/// so far, is to be ended by the caller. Retained messages stay retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is of another cluster.
    #[error(
        "{node} is of cluster {found}, this is cluster {expected}; nothing was taken from it: correct the list of nodes of the one \
         that is wrong"
    )]
    OtherCluster {
        /// What it calls itself.
        node: NodeId,
        /// Our cluster.
        expected: ClusterId,
        /// Its cluster.
        found: ClusterId,
    },
    /// It speaks another version of the protocol.
    #[error(
        "a node speaks version {found} of the protocol between nodes, this one version {expected}; what is retained stays \
         retained: run the same version of mainstay on all nodes"
    )]
    OtherProtocol {
        /// Our version.
        expected: u16,
        /// Its version.
        found: u16,
    },
    /// The connection led to another node than was meant.
    #[error(
        "{meant} was meant and {reached} was reached; nothing was exchanged: correct the addresses in the list of nodes"
    )]
    Misaddressed {
        /// Who was meant.
        meant: NodeId,
        /// Who was reached.
        reached: NodeId,
    },
    /// It is not in the list of nodes.
    #[error(
        "{node} is not in this cluster's list of nodes; nothing was taken from it: add it to the list of every node"
    )]
    Stranger {
        /// What it calls itself.
        node: NodeId,
    },
    /// A known node with another directory.
    #[error(
        "{node} speaks from directory {found}, and what was exchanged with it belongs to its directory {expected}; nothing was \
         taken from it: start it on its own directory"
    )]
    OtherStore {
        /// The node.
        node: NodeId,
        /// The directory it had.
        expected: StoreId,
        /// The directory it has.
        found: StoreId,
    },
    /// An older life of a node of which a newer one was seen.
    #[error(
        "{node} speaks as incarnation {found}, and its incarnation {seen} was seen already: an older life of it still runs, or its \
         directory was restored; nothing was taken from it: stop the older one, let the newer run"
    )]
    Fenced {
        /// The node.
        node: NodeId,
        /// The highest incarnation of it that was seen.
        seen: Incarnation,
        /// The incarnation that spoke.
        found: Incarnation,
    },
    /// Two policies that together guarantee nothing.
    #[error(
        "{node} logs by policy {} for {} failures, this node by policy {} for {}: together they guarantee nothing, so nothing was \
         exchanged: choose policies that go together",
        theirs.policy, theirs.failures_max, ours.policy, ours.failures_max
    )]
    Policies {
        /// The node.
        node: NodeId,
        /// Our policy.
        ours: Declared,
        /// Its policy.
        theirs: Declared,
    },
    /// It takes shorter messages than this node sends.
    #[error(
        "{node} takes messages of up to {theirs} bytes, this node sends up to {ours}: a longer one would block the link for ever, so \
         nothing was exchanged: set the same message_bytes_max on all nodes"
    )]
    MessageLimit {
        /// The node.
        node: NodeId,
        /// Our limit.
        ours: u32,
        /// Its limit.
        theirs: u32,
    },
    /// It gave up what it said it would never need again.
    #[error(
        "{node} said that its durable history covers the messages up to {covered}, and now holds those up to {received}: its \
         directory was put back to an older state; the messages between are gone here: restore the whole cluster to one line"
    )]
    Forgot {
        /// The node.
        node: NodeId,
        /// What it said it would never need again.
        covered: Ssn,
        /// What it holds now.
        received: Ssn,
    },
    /// It holds messages that this node lost and will not send again.
    #[error(
        "{node} holds messages of this node up to {received}, and this node's recovered history sent only up to {appended}: more was \
         lost at once than the logging policy survives; {node} depends on a lost state and must roll back before they talk again"
    )]
    Ahead {
        /// The node.
        node: NodeId,
        /// What it holds.
        received: Ssn,
        /// What this node's history sent.
        appended: Ssn,
    },
    /// It depends on a delivery that this node lost.
    #[error(
        "{node} depends on {} of this node's life {}, and life {ended} was recovered only up to {recovered}: more was lost at \
         once than the logging policy survives; what came after is lost, with every answer given for it, and {node} would have to go back \
         behind it: restore the whole cluster to one line",
        depends_on.delivery, depends_on.incarnation
    )]
    PeerOrphaned {
        /// The node.
        node: NodeId,
        /// The highest state of this node that it depends on.
        depends_on: Point,
        /// The life after which that was lost.
        ended: Incarnation,
        /// The last delivery that was recovered of it.
        recovered: DeliveryIndex,
    },
    /// This node depends on a delivery that the peer lost.
    #[error(
        "this node depends on {} of life {} of {node}, and life {ended} of it was recovered only up to {recovered}: more \
         was lost at once than the logging policy survives; what came after is lost, with every answer given for it, and this node would \
         have to go back behind it: restore the whole cluster to one line",
        depends_on.delivery, depends_on.incarnation
    )]
    Orphaned {
        /// The node.
        node: NodeId,
        /// The highest state of it that this node depends on.
        depends_on: Point,
        /// The life after which that was lost.
        ended: Incarnation,
        /// The last delivery that was recovered of it.
        recovered: DeliveryIndex,
    },
    /// Its messages do not follow one another.
    #[error(
        "{node} sent message {found} where {expected} comes next; it was not taken in: both sides greet again; if it happens again, \
         {node} has a defect"
    )]
    OutOfOrder {
        /// The node.
        node: NodeId,
        /// The next number.
        expected: Ssn,
        /// The number that came.
        found: Ssn,
    },
    /// It acknowledges what was never sent to it.
    #[error(
        "{node} acknowledges message {acknowledged}, and only those up to {sent} were sent to it; nothing was dropped: both sides \
         greet again; if it happens again, {node} has a defect"
    )]
    NeverSent {
        /// The node.
        node: NodeId,
        /// What it acknowledged.
        acknowledged: Ssn,
        /// What was sent.
        sent: Ssn,
    },
    /// It sends more than the window lets through.
    #[error(
        "{node} sent message {ssn} beyond the window of {messages_max} messages and {bytes_max} bytes; it was not taken in: both sides \
         greet again; if it happens again, {node} has a defect"
    )]
    Overrun {
        /// The node.
        node: NodeId,
        /// The message too many.
        ssn: Ssn,
        /// The window, in messages.
        messages_max: u32,
        /// The window, in bytes.
        bytes_max: u64,
    },
    /// It sent something longer than the limit.
    #[error(
        "{node} sent a {what} of {bytes} bytes, and the limit is {limit} bytes; it was not taken in: set the same limits on all nodes"
    )]
    TooLarge {
        /// The node.
        node: NodeId,
        /// What.
        what: &'static str,
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u32,
    },
    /// A frame that has no place at this moment.
    #[error("{node} sent {what} {when}; it was not taken in: {node} has a defect, or is no node")]
    OutOfTurn {
        /// The node.
        node: NodeId,
        /// The frame.
        what: &'static str,
        /// Why it has no place.
        when: &'static str,
    },
    /// One of the two was exchanged at a line, with all nodes that stopped there, and the other went on from before it in another version.
    #[error(
        "{node} runs version {} of the service, exchanged at line {}, this node version {}, exchanged at line {}: one of them did not stop \
         where the other was exchanged, and neither may take what the other's version told; nothing was exchanged: go back to the older \
         version on all nodes and repeat `mainstay snapshot --blocking --stop`; if the newer one has served already, start it here as well \
         after a clean stop, if it reads what the older one told",
        theirs.1, theirs.0, ours.1, ours.0
    )]
    OtherLine {
        /// The node.
        node: NodeId,
        /// Our line, and our version.
        ours: (SnapshotId, u32),
        /// Its line, and its version.
        theirs: (SnapshotId, u32),
    },
    /// This node is asked for what it holds for a peer, and can let some of it leave no more: its journal is poisoned.
    #[error(
        "a write or sync of this node's journal failed, and what {node} asks of it waits for that; nothing is lost that was acknowledged: \
         start this node again, and its next life answers"
    )]
    Poisoned {
        /// Who asks.
        node: NodeId,
    },
    /// Bytes that are no frame, or control bytes that no logging protocol writes.
    #[error(
        "bytes came that no node of this version writes; nothing was taken in: let only nodes of this cluster connect"
    )]
    Unreadable,
}

impl Refusal {
    /// The code of [`Self::Fenced`]: who is told this is an older life and should stop.
    pub const FENCED: u8 = 6;

    /// Its number in [`Frame::Refused`].
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::OtherCluster { .. } => 1,
            Self::OtherProtocol { .. } => 2,
            Self::Misaddressed { .. } => 3,
            Self::Stranger { .. } => 4,
            Self::OtherStore { .. } => 5,
            Self::Fenced { .. } => Self::FENCED,
            Self::Policies { .. } => 7,
            Self::MessageLimit { .. } => 8,
            Self::Forgot { .. } => 9,
            Self::Ahead { .. } => 10,
            Self::OutOfOrder { .. } => 11,
            Self::NeverSent { .. } => 12,
            Self::Overrun { .. } => 13,
            Self::TooLarge { .. } => 14,
            Self::OutOfTurn { .. } => 15,
            Self::Unreadable => 16,
            Self::PeerOrphaned { .. } => 17,
            Self::Orphaned { .. } => 18,
            Self::OtherLine { .. } => 19,
            Self::Poisoned { .. } => 20,
        }
    }

    /// Appends the frame that tells the peer.
    pub fn put(&self, out: &mut Vec<u8>) {
        let text = self.to_string();
        debug_assert!(text.len() <= REFUSAL_BYTES_MAX, "refusals are short");
        Frame::Refused { code: self.code(), text: &text }.put(out);
    }
}

impl From<FrameError> for Refusal {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Protocol { found } => Self::OtherProtocol { expected: PROTOCOL, found },
            _ => Self::Unreadable,
        }
    }
}
