//! What a node asks for. The driver performs it at once and in order; nothing that is asked for here has to wait for anything any more.

use crate::definition::RegionId;
use crate::message::Message;
use crate::redefining::RedefineError;
use mainstay_group::ballot::Proposal;
use mainstay_group::explain::Explanation;
use mainstay_group::message::Refusal;
use mainstay_region::effect::RecordNumber;
use mainstay_region::patterns::Pattern;
use mainstay_types::id::ClientId;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, View, ViewId};

/// What the driver does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send it to another node. It may be lost, and a connection that breaks may take others with it; what arrives of one life arrives in order.
    Send {
        /// Where.
        to: Address,
        /// What.
        message: Message,
    },
    /// Tell a client. If it is not connected here any more, drop it: clients ask again.
    Answer {
        /// Whom.
        client: ClientId,
        /// About which region.
        region: RegionId,
        /// What.
        message: mainstay_region::message::Message,
    },
    /// Note where the journal ends now: checkpoints of all regions follow. It takes the place of an earlier note.
    CheckpointBegins,
    /// What is before the place that was noted last is not needed any more, once all that was appended since is durable at level `Disk`.
    Trim,
    /// A client asked about a region that there is not. Nothing was done.
    NoRegion {
        /// Whom to tell.
        client: ClientId,
        /// What it asked for.
        region: RegionId,
    },
    /// Make these bytes durable in the place of those before, at level `Disk`, and say so ([`crate::event::Event::Persisted`]). They are the
    /// `record` that the next life is started with.
    PersistRecord {
        /// Its number; a later record holds all of an earlier one.
        ticket: u64,
        /// The record.
        bytes: Vec<u8>,
    },
    /// Append a record to the region's journal, behind all earlier ones, and say when it is safe at the region's level
    /// ([`crate::event::Event::Appended`]). The next life is given all of them in order.
    Append {
        /// The region.
        region: RegionId,
        /// Its number: 1 for the first of this life.
        record: RecordNumber,
        /// The record.
        bytes: Vec<u8>,
    },
    /// Tell the time again then. A later one takes the place of an earlier one.
    Wake {
        /// When, by the clock of this process.
        at: Time,
    },
    /// The successor of the view is this, unless the arbiter holds another ([`crate::event::Event::Arbitrated`]).
    AskArbiter {
        /// The view that is followed.
        from: ViewId,
        /// What would follow it.
        proposal: Proposal,
    },
    /// This node serves the view from now on. For clients that ask for the view, and for people.
    Serving {
        /// The view.
        view: View,
    },
    /// It does not serve any more, or not yet.
    NotServing {
        /// Why, and who does.
        explanation: Explanation,
    },
    /// This node is not let in; it goes on asking. For people.
    Refused {
        /// Why.
        refusal: Refusal,
    },
    /// What another node's regions reported or agreed on cannot be read, so that the view change waits: the nodes run different versions. For people.
    Unreadable {
        /// Whose it is, if that is known.
        from: Option<JoinerId>,
    },
    /// The region has the pattern that was asked for, at all nodes, from this view on.
    Redefined {
        /// The region.
        region: RegionId,
        /// Its pattern.
        pattern: Pattern,
        /// The view.
        view: ViewId,
    },
    /// The region has not the pattern that was asked for, or may not.
    NotRedefined {
        /// The region.
        region: RegionId,
        /// The pattern that was asked for.
        pattern: Pattern,
        /// Why.
        error: RedefineError,
    },
    /// It has left in order: the end.
    Left,
    /// A record could not be made durable: nothing is promised any more in this life. The end.
    Stopped,
}
