//! What the journal asks of a disk while it runs, and what it is told.

use crate::geometry::Place;
use crate::storage::Failure;
use mainstay_types::id::Lsn;

/// Names one request, so that its completion can be told from others. Never reused within a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A request to the disk. The driver performs requests in any order and in parallel, except that a `Sync` covers every
/// `Write` whose completion was reported before the `Sync` was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskEffect {
    /// Write `from..to` (bytes in the slot, multiples of a block) of ring slot `slot` to `place`.
    Write {
        /// Names the request.
        ticket: Ticket,
        /// The ring slot that holds the bytes.
        slot: usize,
        /// First byte within the slot.
        from: u32,
        /// End within the slot.
        to: u32,
        /// Where the first byte goes.
        place: Place,
        /// Whether completion must mean that these bytes are past a sync; else they may sit in a cache.
        durable: bool,
    },
    /// Make every completed write to these segments durable.
    Sync {
        /// Names the request.
        ticket: Ticket,
        /// First segment concerned.
        first_segment: u64,
        /// Last segment concerned.
        last_segment: u64,
    },
    /// Make segment number `segment` ready to be written: [`crate::catalog::Catalog::prepare`] on a thread of its own.
    Prepare {
        /// Its number in the endless sequence.
        segment: u64,
    },
    /// Remember durably that nothing below `first` is needed, then recycle what lies wholly below:
    /// [`crate::catalog::Catalog::trim`].
    Trim {
        /// The first byte still needed.
        first: Lsn,
    },
}

/// What the disk reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// A `Write` or a `Sync` is complete.
    Done {
        /// The request.
        ticket: Ticket,
    },
    /// A `Write` or a `Sync` failed. The journal poisons itself: it never tries a failed sync again.
    Failed {
        /// The request.
        ticket: Ticket,
        /// Why.
        failure: Failure,
    },
    /// The segment may be written now.
    Prepared {
        /// Its number.
        segment: u64,
    },
    /// The segment could not be made ready; with [`Failure::NoSpace`] the journal stops accepting and asks again when
    /// told to by [`crate::journal::Journal::retry`].
    PrepareFailed {
        /// Its number.
        segment: u64,
        /// Why.
        failure: Failure,
    },
    /// Nothing below `first` is kept any more.
    Trimmed {
        /// The first byte still kept.
        first: Lsn,
    },
    /// Trimming failed; what would have gone is still there. It is asked for again with the next checkpoint.
    TrimFailed {
        /// Why.
        failure: Failure,
    },
}
