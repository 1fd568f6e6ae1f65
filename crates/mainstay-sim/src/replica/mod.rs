//! The replica machine: nodes as they are served (the real group and the real regions, joined by the real composer), with a disk and a clock
//! each, clients, and one network between all of them.
//!
//! ```text
//!   clients ── operations, reads ──┐
//!                                  v
//!   node 1 … 7 ── connections, in order, late, lost with what is under way; cuts, one way too
//!      │ record of the group: durable late, by beats while a disk is slow, or not at all in a crash
//!      │ journal of the regions: durable late, in order; a crash keeps any first part of what was not
//! ```

mod faults;
mod judge;
mod network;
mod node;
mod patterns;
mod roles;
mod setup;
mod slow;
mod world;

pub(crate) use world::World as ReplicaWorld;

use crate::reach::Reach;
use mainstay_types::rules::Rule;

/// The rare branches that a campaign must reach.
pub(crate) const BRANCHES: &[Reach] = &[
    Reach::Kill,
    Reach::AllDown,
    Reach::TotalRestart,
    Reach::FailedSync,
    Reach::SlowDisk,
    Reach::CameTogether,
    Reach::ConnectionBroken,
    Reach::FramesLost,
    Reach::Partition,
    Reach::OneWayCut,
    Reach::PausedPastLease,
    Reach::StoreLost,
    Reach::StoreReturned,
    Reach::LeftInOrder,
    Reach::ViewInstalled,
    Reach::PatternChanged,
    Reach::PatternAskedAgain,
    Reach::PatternUnknown,
    Reach::WriteWithoutRole,
    Reach::ReadWithoutRole,
    Reach::Reconnected,
    Reach::SeveralJoined,
    Reach::BeganAnew,
    Reach::ProposalAdopted,
    Reach::ImageSent,
    Reach::FilledFirst,
    Reach::Trim,
    Reach::FoundFromCheckpoint,
    Reach::AnsweredFromTable,
    Reach::RetriedElsewhere,
    Reach::ViewsDiffered,
    Reach::ViewEarly,
    Reach::CutWithUnstable,
    Reach::DroppedByCut,
    Reach::EndedUnknown,
    Reach::ClientDiedSending,
    Reach::LinearizableRead,
    Reach::ReadOfAnyCopy,
    Reach::ReadRefusedWithoutLease,
];

/// The rules that it shows broken, end to end.
pub(crate) const RULES: &[Rule] = &[
    Rule::StrictMajority,
    Rule::AdoptAccepted,
    Rule::PromiseDurable,
    Rule::ServeWithinLease,
    Rule::LeasesRunOut,
    Rule::ViewFence,
    Rule::RetryFromTable,
    Rule::VoidAgreed,
    Rule::AcceptedSafe,
    Rule::OlderViewRefused,
    Rule::WedgedTakesNothing,
    Rule::TableMovesWithData,
    Rule::TrimAfterCheckpoint,
    Rule::PatternWithView,
    Rule::RolesRequired,
    Rule::ClocksWithinDrift,
];
