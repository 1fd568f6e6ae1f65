//! What can happen to a group.

use crate::ballot::{Ballot, Proposal};
use crate::message::Message;
use mainstay_types::view::ViewId;

/// What the driver, or the composer beside it, tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The time that [`crate::effect::Effect::Wake`] named has come.
    Tick,
    /// A message came.
    Arrived(Message),
    /// The records up to this ticket, it among them, are durable.
    Persisted {
        /// The ticket.
        ticket: u64,
    },
    /// A record could not be made durable: this life ends.
    PersistFailed,
    /// What this process's regions hold, after they were wedged in that view.
    Report {
        /// The view.
        view: ViewId,
        /// Which request it answers. They may be answered late, or only the last of them.
        request: u64,
        /// Opaque.
        bytes: Vec<u8>,
    },
    /// What the regions settled on out of the reports.
    Cut {
        /// The view whose reports it came from.
        view: ViewId,
        /// The ballot that it was asked for.
        ballot: Ballot,
        /// Opaque.
        bytes: Vec<u8>,
    },
    /// The regions have everything up to the cut of that view.
    Fetched {
        /// The view.
        view: ViewId,
    },
    /// The regions of this process, which is in no view, have been filled ([`crate::effect::Effect::Learn`]).
    Learned,
    /// What the arbiter holds as the successor of the view: the first that it was given.
    Arbitrated {
        /// It.
        chosen: Proposal,
    },
    /// The regions have something to settle with the next view: agree on one, if that is not done already. Said by a server that serves;
    /// what comes of it is said by [`crate::effect::Effect::Installed`], and whether the regions got their way stands in its cut.
    Renew,
    /// The owner wants this process out.
    Leave,
}
