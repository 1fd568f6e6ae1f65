//! What has arrived and not been handed to the process yet, and whether somebody drives.

use crate::core::Core;
use crate::mailbox::ReplyTo;
use crate::peers::event::PeerEvent;
use mainstay_process::event::{Event, Identity, Resolution};
use mainstay_types::id::OutputId;

/// The inbox. Its length is limited: requests by `requests_in_flight_max`, the rest by what the process has under way.
pub(crate) struct Inbox {
    pub(crate) items: Vec<Item>,
    /// Whether somebody drives the process now, or recovers it. Who sets this drives.
    pub(crate) driving: bool,
    /// Whether the disk has completions at hand.
    pub(crate) disk_ready: bool,
    pub(crate) phase: Phase,
}

/// What the service is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Replaying; nothing is taken.
    Recovering,
    /// Taking requests.
    Running,
    /// Stopped cleanly, or given up: nothing is taken any more.
    Ended,
}

/// A look at the process.
pub(crate) type Look = Box<dyn FnOnce(&Core) + Send>;

/// One arrival.
pub(crate) enum Item {
    Call {
        reply: ReplyTo,
        identity: Identity,
        body: Vec<u8>,
    },
    Query {
        reply: ReplyTo,
        body: Vec<u8>,
    },
    Register {
        reply: ReplyTo,
    },
    Resolve {
        reply: ReplyTo,
        output: OutputId,
        resolution: Resolution,
    },
    /// What needs no reply.
    Event(Event),
    /// What happened on a connection to another node.
    Peer(PeerEvent),
    /// A look at the process between two steps.
    Look(Look),
}

impl Item {
    /// Whether it counts as a request in flight.
    pub(crate) fn is_request(&self) -> bool {
        match self {
            Self::Call { .. } | Self::Query { .. } | Self::Register { .. } | Self::Resolve { .. } => true,
            Self::Event(_) | Self::Peer(_) | Self::Look(_) => false,
        }
    }
}

impl Inbox {
    /// Before the first recovery: whoever makes it drives.
    pub(crate) fn recovering() -> Self {
        Self { items: Vec::new(), driving: true, disk_ready: false, phase: Phase::Recovering }
    }
}
