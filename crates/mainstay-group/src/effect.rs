//! What a group asks for.

use crate::ballot::{Ballot, Proposal};
use crate::explain::Explanation;
use crate::message::{Message, Refusal};
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, View, ViewId};

/// What the driver, or the composer, does at once and in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send it. It may be lost, late, doubled or overtaken.
    Send {
        /// Where.
        to: Address,
        /// What.
        message: Message,
    },
    /// Make this record durable in the place of the one before, and say so ([`crate::event::Event::Persisted`]).
    Persist {
        /// Its number; a later record holds all of an earlier one.
        ticket: u64,
        /// [`crate::record::Record`].
        record: Vec<u8>,
    },
    /// Tell the time again then.
    Wake {
        /// When, by the clock of this process.
        at: Time,
    },
    /// The regions, which have all the data of this view, take nothing in in it any more, for good, and report
    /// ([`crate::event::Event::Report`]). Only the answer to the last request counts.
    Wedge {
        /// The view.
        view: ViewId,
        /// Which request this is; they grow for as long as the process lives.
        request: u64,
    },
    /// The regions settle what of the view counts: everything that any of these hold ([`crate::event::Event::Cut`]).
    Settle {
        /// The view.
        view: ViewId,
        /// For whose ballot: the answer to another one is not taken.
        ballot: Ballot,
        /// The reports of the stores that promised and had all the data of the view, and where they are.
        reports: Vec<(JoinerId, Vec<u8>)>,
    },
    /// The regions take in the cut, and fetch what they lack before it from those who had all the data of `base` or a later view
    /// ([`crate::event::Event::Fetched`]).
    Fetch {
        /// The view that begins with it.
        view: View,
        /// The view that the cut ends. Regions that had all the data of a later one have taken in this very cut already.
        base: ViewId,
        /// The cut.
        cut: Vec<u8>,
    },
    /// A view that serves is shown to this process, which is in none: the regions get filled by its members, and say so
    /// ([`crate::event::Event::Learned`]); then it is let in. Said again and again until then, and with every newer view.
    Learn {
        /// The view.
        view: View,
        /// What it began with.
        cut: Vec<u8>,
    },
    /// This process is in the view and has all the data before it: it may serve, under the lease.
    Installed {
        /// The view.
        view: View,
        /// The cut.
        cut: Vec<u8>,
    },
    /// This process is in no view any more, and asks to be let in again by itself. It serves nothing.
    Expelled {
        /// Which side went on, and why.
        explanation: Explanation,
    },
    /// The successor of the view is this, unless the arbiter holds another ([`crate::event::Event::Arbitrated`]).
    AskArbiter {
        /// The view that is followed.
        from: ViewId,
        /// What would follow it.
        proposal: Proposal,
    },
    /// This process is not let in; it goes on asking. For people.
    Refused {
        /// Why.
        refusal: Refusal,
    },
    /// It has left in order: the end.
    Left,
    /// A record could not be made durable: nothing is promised any more in this life. The end.
    Stopped,
}
