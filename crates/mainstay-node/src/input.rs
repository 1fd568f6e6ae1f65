//! What comes to a node from its sockets, its disk and its owner.

use crate::budget::Held;
use crate::clients::ToSession;
use crate::head::Head;
use crate::native::Outgoing;
use bytes::Bytes;
use mainstay_group::ballot::Proposal;
use mainstay_region::conversation::Hello;
use mainstay_region::effect::RecordNumber;
use mainstay_replica::definition::RegionId;
use std::net::SocketAddr;

/// The disk has done something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DiskDone {
    /// The group's records up to this ticket are durable.
    Persisted { ticket: u64 },
    /// The region's records up to this one are durable.
    Appended { region: RegionId, record: RecordNumber },
    /// It failed, and is not tried again.
    Failed { what: String },
}

/// What comes.
#[derive(Debug)]
pub(crate) enum Input {
    /// Another node has connected: what it says by an earlier connection is not heard any more.
    LinkOpened { link: u64, head: Head },
    /// Messages from it, and the room that is held for them.
    Frames { link: u64, frames: Vec<Bytes>, held: Option<Held> },
    /// The connection is gone.
    LinkClosed { link: u64 },
    /// Another node does not hear this one.
    LinkRefused { by: SocketAddr, why: String },
    /// A client that speaks the region's own messages has connected.
    NativeOpened { connection: u64, hello: Hello, outgoing: Outgoing },
    /// It says this, and the room that is held for it.
    NativeFrames { connection: u64, frames: Vec<Bytes>, held: Option<Held> },
    /// It is gone.
    NativeClosed { connection: u64 },
    /// A client has connected.
    Opened { session: u64, to: ToSession },
    /// It says this.
    Commands { session: u64, commands: Vec<Vec<Bytes>> },
    /// It says something that is no command.
    Unreadable { session: u64, error: String },
    /// It is gone.
    Closed { session: u64 },
    /// The disk has done something.
    Disk(DiskDone),
    /// The arbiter holds this as the successor of the view.
    Arbitrated { chosen: Proposal },
    /// It does not say.
    ArbiterSilent { error: String },
    /// The owner wants the node to stop.
    Stop,
}
