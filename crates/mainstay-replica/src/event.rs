//! What can happen to a node.

use crate::definition::RegionId;
use crate::message::Message;
use mainstay_group::ballot::Proposal;
use mainstay_region::effect::RecordNumber;
use mainstay_region::patterns::Pattern;
use mainstay_types::id::ClientId;

/// What the driver tells.
#[derive(Clone, Debug)]
pub enum Event {
    /// The time that [`crate::effect::Effect::Wake`] named has come.
    Tick,
    /// All that came together was told: what is said once for all of it leaves. It is said behind every batch, also one of a single event.
    Drained,
    /// A message came from another node, or from a client over the wire. Between two lives of two nodes messages are heard in the order in
    /// which they were sent, or not at all: one connection for each pair and direction, and what was lost with one is not made up for.
    Arrived(Message),
    /// A client of this node says something.
    Asked {
        /// Who.
        client: ClientId,
        /// About which region.
        region: RegionId,
        /// What.
        message: mainstay_region::message::Message,
    },
    /// It is so late by the wall clock of this machine: values of regions that end do so by it. Once a second is often enough.
    WallClock {
        /// Milliseconds since 1970, UTC.
        unix_ms: u64,
    },
    /// A client's connection is gone, and what it subscribed to with it.
    Disconnected {
        /// Who.
        client: ClientId,
    },
    /// The records of the group up to this ticket, it among them, are durable.
    Persisted {
        /// The ticket.
        ticket: u64,
    },
    /// Every record of the region up to this one is safe at the region's level.
    Appended {
        /// The region.
        region: RegionId,
        /// The record.
        record: RecordNumber,
    },
    /// A record, of the group or of a region, could not be made durable: this life ends.
    PersistFailed,
    /// What the arbiter holds as the successor of the view: the first that it was given.
    Arbitrated {
        /// It.
        chosen: Proposal,
    },
    /// Clients shall send first attempts to this region by another pattern, from the next view on: answered with [`crate::effect::Effect::Redefined`] or
    /// [`crate::effect::Effect::NotRedefined`].
    Redefine {
        /// The region.
        region: RegionId,
        /// The pattern.
        pattern: Pattern,
    },
    /// The owner wants this node out of the group.
    Leave,
}
