//! The cluster machine: several nodes, each the real process over the real journal, one clock, one seed.
//!
//! ```text
//!   clients <── network ──> node 1 ── storage ──> disk 1      crash points in every step, effect, operation
//!                             │ connections: in order each; they break at any time, with what is under way
//!   receivers <── network ── node 2 … 8
//! ```

mod blocking;
mod clients;
mod disk_work;
mod failing;
mod network;
mod node;
pub(crate) mod own;
pub(crate) mod recorded;
pub(crate) mod service;
pub(crate) mod setup;
mod snapshots;
pub(crate) mod subject;
pub(crate) mod world;

use crate::reach::Reach;

/// The rare branches that a campaign must reach.
pub(crate) const BRANCHES: &[Reach] = &[
    Reach::Kill,
    Reach::PowerCut,
    Reach::CrashInOpen,
    Reach::CrashInRecovery,
    Reach::CrashInCheckpointSave,
    Reach::CrashInCheckpointPublish,
    Reach::CrashInPrepare,
    Reach::CrashInTrim,
    Reach::TornWrite,
    Reach::SectorLost,
    Reach::NameLost,
    Reach::Stall,
    Reach::Trim,
    Reach::DuplicateLive,
    Reach::DuplicateAfterCrash,
    Reach::Read,
    Reach::InDoubtAfterCrash,
    Reach::Resolved,
    Reach::OutputAgain,
    Reach::DuplicateDropped,
    Reach::Checkpoint,
    Reach::CheckpointUsed,
    Reach::ClockJumpBack,
    Reach::MessageLost,
    Reach::ConnectionBroken,
    Reach::FramesLost,
    Reach::Partition,
    Reach::ReconnectedUnnoticed,
    Reach::CrashWhileCollecting,
    Reach::TwoDown,
    Reach::AllDown,
    Reach::NodeRolledBack,
    Reach::Collected,
    Reach::MixedPolicies,
    Reach::BusySenderLog,
    Reach::Spilled,
    Reach::SpillFailed,
    Reach::SnapshotBegun,
    Reach::SnapshotRefused,
    Reach::SnapshotSuperseded,
    Reach::CrashInSnapshot,
    Reach::PartFinal,
    Reach::LineFinished,
    Reach::LineWithMessagesOnTheWay,
    Reach::BlockAborted,
    Reach::BlockRanOut,
    Reach::CoordinatorDied,
    Reach::BusyBlocked,
    Reach::LineWithEmptyChannels,
    Reach::ClusterUpgraded,
    Reach::StoppedAndWentOn,
    Reach::LineRestored,
];

/// Those of nodes that fail in greater numbers than their policies survive.
pub(crate) const BRANCHES_BEYOND: &[Reach] = &[
    Reach::Kill,
    Reach::PowerCut,
    Reach::CrashInRecovery,
    Reach::CrashWhileCollecting,
    Reach::CheckpointUsed,
    Reach::TwoDown,
    Reach::AllDown,
    Reach::NodeRolledBack,
    Reach::Collected,
    Reach::MixedPolicies,
    Reach::LossStated,
    Reach::OrphanWentBack,
    Reach::OrphanRefused,
    Reach::StaysStopped,
    Reach::AnsweredAnew,
];
