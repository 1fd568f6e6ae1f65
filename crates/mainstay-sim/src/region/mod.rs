//! The region machine: copies of a region, each with a journal, clients that repeat, and a source of views that keeps the seam's promises and
//! is otherwise as bad as it can be.
//!
//! ```text
//!   clients <── network: in order for each pair; late, lost with the connection ──> copy 1 … 6 ── journal
//!                                                                                     │ Wedge, Report, Settle, Cut, Fetch, Ready, Installed
//!                                                                                  source of views
//! ```

mod batches;
pub(crate) mod clients;
mod faults;
mod host;
mod linearizable;
pub(crate) mod oracle;
mod rest;
mod scene;
mod source;
mod source_acts;
pub(crate) mod world;

pub(crate) use batches::Batches;
pub(crate) use linearizable::{Seen, linearizable};
pub(crate) use oracle::Agreed;

use crate::random::Random;
use crate::reach::Reach;
use mainstay_region::limits::Limits;
use mainstay_types::rules::Rule;

/// In some runs a few operations, or a batch alone, fill what logs and held back entries may have in bytes.
pub(crate) fn limited_in_bytes(seed: u64, limits: Limits) -> Limits {
    let mut random = Random::new(seed ^ 0x6279_7465_7300_0000);
    match random.chance(300) {
        true => Limits {
            log_bytes_max: random.between(400, 4_000) as usize,
            hold_back_bytes_max: random.between(100, 1_500) as usize,
            held_payload_bytes_max: random.between(100, 1_500) as usize,
            // What copies may have follows from the longest entry, too: it must be one that there is.
            key_bytes_max: 64,
            value_bytes_max: 960,
            batch_bytes_max: 1024,
            ..limits
        },
        false => limits,
    }
}

/// In some runs there are more shards than copies, so that one copy stamps several.
pub(crate) fn many_shards(seed: u64, shards: u16) -> u16 {
    let mut random = Random::new(seed ^ 0x7368_6172_6473_0000);
    if random.chance(250) { u16::try_from(random.between(4, 8)).expect("it is small") } else { shards }
}

/// The rare branches that a campaign must reach.
pub(crate) const BRANCHES: &[Reach] = &[
    Reach::Kill,
    Reach::ConnectionBroken,
    Reach::FramesLost,
    Reach::TwoDown,
    Reach::AllDown,
    Reach::ViewInstalled,
    Reach::ViewGivenUp,
    Reach::MemberLeftOut,
    Reach::MemberPaused,
    Reach::MemberDeaf,
    Reach::ClientDiedSending,
    Reach::CameTogether,
    Reach::StoreFoundAgain,
    Reach::StoreLost,
    Reach::Joined,
    Reach::FilledBehindTheCut,
    Reach::ReportedNothing,
    Reach::CutCarried,
    Reach::Trim,
    Reach::FoundFromCheckpoint,
    Reach::AnsweredFromTable,
    Reach::RetriedElsewhere,
    Reach::ViewsDiffered,
    Reach::ValuesEnded,
    Reach::DoneAsOne,
    Reach::VersionVoid,
    Reach::PayloadFoundForGrant,
    Reach::VersionEarly,
    Reach::ViewEarly,
    Reach::HeldBack,
    Reach::SentAgain,
    Reach::CutWithUnstable,
    Reach::DroppedByCut,
    Reach::EndedUnknown,
    Reach::ToldObsolete,
    Reach::ToldEvicted,
    Reach::BusyRegion,
    Reach::LogBytesFull,
    Reach::LinearizableRead,
    Reach::ReadOfAnyCopy,
    Reach::ReadRefusedWithoutLease,
];

/// The rules that it shows broken.
pub(crate) const RULES: &[Rule] = &[
    Rule::RetryFromTable,
    Rule::VoidAgreed,
    Rule::AcceptedSafe,
    Rule::OlderViewRefused,
    Rule::WedgedTakesNothing,
    Rule::TableMovesWithData,
    Rule::TrimAfterCheckpoint,
    Rule::ReadUnderLease,
    Rule::ReadStable,
    Rule::ClocksWithinDrift,
];
