//! What can happen to a region, and what it asks for.

use crate::message::{Message, Party};
use mainstay_types::time::Time;
use mainstay_types::view::{MemberId, View, ViewId};

/// The number of a record that the region appended, in this life of the process; the first is 1, and 0 waits for nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct RecordNumber(pub u64);

/// What can happen.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message came.
    Received {
        /// From whom: the driver knows it of the connection.
        from: Party,
        /// The message.
        message: Message,
    },
    /// Every record up to this is safe at the region's level.
    Appended(RecordNumber),
    /// All that came together was told: it is recorded, and what is said once for all of it leaves. Without it, both wait for the next event that is
    /// no message, or for `Tick`.
    Drained,
    /// Some time has gone by; several times within the shortest of the region's times.
    Tick,
    /// It is so late by the wall clock of this machine. Without it no value ends; once a second is often enough.
    WallClock {
        /// Milliseconds since 1970, UTC.
        unix_ms: u64,
    },
    /// Until then nobody else can stamp in this member's place, by this member's clock. It only ever grows within a view.
    Lease {
        /// The end of it.
        until: Time,
    },
    /// The view is about to be changed: accept nothing more in it, and report. Every one is answered. It comes behind the `Fetch` of its view, if
    /// this process takes part in that view.
    Wedge {
        /// The view that ends.
        view: ViewId,
        /// The group's number for this request.
        request: u64,
    },
    /// Members enough to change the view have reported this: make the cut.
    Settle {
        /// What members reported.
        reports: Vec<(MemberId, Vec<u8>)>,
    },
    /// The group has agreed on the next view, and on this cut with it: get what it names, and say `Ready`.
    Fetch {
        /// Who this member is in that view.
        me: MemberId,
        /// The view.
        view: View,
        /// The cut.
        cut: Vec<u8>,
        /// Who reported, and is therefore a full copy.
        sources: Vec<MemberId>,
    },
    /// The view begins. A member that does not have the cut yet gets it first.
    Installed {
        /// The view.
        view: ViewId,
    },
    /// The journal has grown: keep a checkpoint in it ([`Effect::Checkpointed`]), if [`crate::region::Region::can_checkpoint`].
    Checkpoint,
    /// This process is to join: let one of these fill it, while writes go on, and say [`Effect::Learned`]. What it had before is given up. Said again,
    /// it goes on with the one that fills it, if that is still among them.
    Learn {
        /// How this process is called until a view makes a member of it.
        me: MemberId,
        /// Members of the present view, those first that are full copies.
        sources: Vec<MemberId>,
    },
}

/// What a region asks for. Performed at once and in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Keep these bytes, in order; say when they are safe.
    Append {
        /// The record's number.
        record: RecordNumber,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Send this when every record up to `after` is safe. Messages to one party that wait for the same record stay in order.
    Send {
        /// To whom.
        to: Party,
        /// What.
        message: Message,
        /// What it waits for.
        after: RecordNumber,
    },
    /// The answer to `Wedge`. A copy that has nothing, or is being filled, reports just that.
    Report {
        /// The number of the request.
        request: u64,
        /// What it has accepted.
        bytes: Vec<u8>,
    },
    /// The answer to `Settle`.
    Cut(Vec<u8>),
    /// The answer to `Settle` if a report cannot be read, or if none is of a full copy: settle without it, if the others are enough.
    Unsettled {
        /// Whose report it is.
        member: MemberId,
    },
    /// The answer to `Fetch`, once what it fetched is safe.
    Ready {
        /// The view.
        view: ViewId,
        /// What it waits for.
        after: RecordNumber,
    },
    /// This copy has everything that the member that fills it has: the group may take it into a view.
    Learned,
    /// The checkpoint is whole and safe: this region's records before [`Event::Checkpoint`] are not needed any more, nor those of earlier lives.
    Checkpointed,
}
