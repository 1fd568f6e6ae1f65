//! The group machine: processes that form views, one network that loses, delays, cuts and overtakes, one clock each.
//!
//! ```text
//!   process 1 … 9 ── messages, encoded ── network (loss, delay, order, cuts one way too)
//!      │ record: durable late, or not at all in a crash        arbiter (groups of two)
//!      │ regions: writes acknowledged by all or a majority of a view, reports, cuts
//! ```

pub(crate) mod faults;
pub(crate) mod judgement;
pub(crate) mod oracle;
pub(crate) mod process;
pub(crate) mod regions;
pub(crate) mod setup;
pub(crate) mod world;

use crate::reach::Reach;

/// The rare branches that a campaign must reach.
pub(crate) const BRANCHES: &[Reach] = &[
    Reach::Kill,
    Reach::AllDown,
    Reach::MessageLost,
    Reach::MessageDoubled,
    Reach::Partition,
    Reach::FailedSync,
    Reach::ViewInstalled,
    Reach::ProposalAdopted,
    Reach::CoordinatorFell,
    Reach::CrashWithPromise,
    Reach::StoreReturned,
    Reach::BeganAnew,
    Reach::StoreLost,
    Reach::Expelled,
    Reach::FilledFirst,
    Reach::JoinedAndDied,
    Reach::LeftInOrder,
    Reach::TwoGroups,
    Reach::SeveralJoined,
    Reach::OneWayCut,
    Reach::PausedPastLease,
    Reach::LeaseRanOut,
    Reach::Arbitrated,
    Reach::ArbiterHeldAnother,
    Reach::AddressReused,
    Reach::OutsiderSpoke,
    Reach::FactAcknowledged,
    Reach::TotalRestart,
    Reach::CutCarriedOver,
    Reach::WentOnWithoutDeaf,
];
