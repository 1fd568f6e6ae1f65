//! What must hold in every run: one file per property, each with its source.

pub(crate) mod acknowledged_survives;
pub(crate) mod channels_empty;
pub(crate) mod delivered_once;
pub(crate) mod deterministic;
pub(crate) mod evicted_not_reapplied;
pub(crate) mod failure_free;
pub(crate) mod handler_panics;
pub(crate) mod identity_once;
pub(crate) mod invariant;
pub(crate) mod legal_order;
pub(crate) mod line_restorable;
pub(crate) mod losses_stated;
pub(crate) mod nothing_pinned;
pub(crate) mod one_side_serves;
pub(crate) mod one_successor;
pub(crate) mod outputs_guaranteed;
pub(crate) mod outputs_of_nodes;
pub(crate) mod outsiders_unheard;
pub(crate) mod region_acknowledged_stays;
pub(crate) mod region_age_stated;
pub(crate) mod region_bounded;
pub(crate) mod region_copies_agree;
pub(crate) mod region_fenced;
pub(crate) mod region_first_result;
pub(crate) mod region_linearizable;
pub(crate) mod region_one_definition;
pub(crate) mod region_one_payload;
pub(crate) mod region_roles_decide;
pub(crate) mod rejoins;
pub(crate) mod released_once;
pub(crate) mod same_answer;
pub(crate) mod stable_before_release;
pub(crate) mod state_saved;
pub(crate) mod survivors_run_on;
pub(crate) mod unknown_not_absent;

use std::fmt;

/// A property of the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Property {
    /// Nothing is released that a failure of its level could still undo.
    StableBeforeRelease,
    /// Everything acknowledged is found by every later recovery.
    AcknowledgedSurvives,
    /// No request is delivered twice.
    DeliveredOnce,
    /// A request below its floor is never delivered.
    EvictedNotReapplied,
    /// The same request gets the same answer.
    SameAnswer,
    /// An effect is released once per life.
    ReleasedOnce,
    /// Each port gives its guarantee.
    OutputsGuaranteed,
    /// State, answers and outputs are those of a run without failures over the surviving order.
    FailureFree,
    /// What may have happened is never taken as not happened.
    UnknownNotAbsent,
    /// Nodes show what a crash-free run of some legal order shows.
    LegalOrder,
    /// A finished snapshot is a consistent global state that the cluster can go on from.
    LineRestorable,
    /// The line of a blocking snapshot has no message on its way.
    ChannelsEmpty,
    /// Who did not fail goes on, unless its policy says that it may roll back.
    SurvivorsRunOn,
    /// What is stated as lost is exactly what is missing.
    LossesStated,
    /// No message is kept for ever.
    NothingPinned,
    /// Recovery succeeds after every fault that it is made for.
    Recovers,
    /// Once faults end, everything asked for comes to an end.
    Progress,
    /// No assertion of a machine fails.
    Asserts,
    /// A handler does the same again over the same history.
    Deterministic,
    /// A handler that was saved and restored goes on as if it had not been.
    StateSaved,
    /// What a user asserts of every state.
    Invariant,
    /// A handler that is not meant to panic does not.
    HandlerPanics,
    /// A view is followed by one view, the same wherever it is known.
    OneSuccessor,
    /// No two lives are ever the same member.
    IdentityOnce,
    /// No two views of a group are served at the same moment.
    OneSideServes,
    /// What is said outside a view changes no promise in it.
    OutsidersUnheard,
    /// Who was cut off, or down, is in the view again by itself.
    Rejoins,
    /// A version of a region has one content.
    RegionOnePayload,
    /// A region is the same at all members of a view, and what somebody asked for.
    RegionOneDefinition,
    /// A region does what the roles in its view allow, and refuses the rest alone.
    RegionRolesDecide,
    /// Copies of a region that stand at the same version are the same.
    RegionCopiesAgree,
    /// A copy of a region takes nothing of another view, and nothing after its report.
    RegionFenced,
    /// What a region's client was told is in every later view.
    RegionAcknowledgedStays,
    /// A repetition gets the first version and outcome.
    RegionFirstResult,
    /// What clients saw of a key has an order.
    RegionLinearizable,
    /// A read of any copy is not older than it says.
    RegionAgeStated,
    /// Nothing that a copy of a region keeps grows beyond its limit.
    RegionBounded,
}

impl Property {
    /// Every property.
    pub(crate) const ALL: [Self; 37] = [
        Self::StableBeforeRelease,
        Self::AcknowledgedSurvives,
        Self::DeliveredOnce,
        Self::EvictedNotReapplied,
        Self::SameAnswer,
        Self::ReleasedOnce,
        Self::OutputsGuaranteed,
        Self::FailureFree,
        Self::UnknownNotAbsent,
        Self::LegalOrder,
        Self::LineRestorable,
        Self::ChannelsEmpty,
        Self::SurvivorsRunOn,
        Self::LossesStated,
        Self::NothingPinned,
        Self::Recovers,
        Self::Progress,
        Self::Asserts,
        Self::Deterministic,
        Self::StateSaved,
        Self::Invariant,
        Self::HandlerPanics,
        Self::OneSuccessor,
        Self::IdentityOnce,
        Self::OneSideServes,
        Self::OutsidersUnheard,
        Self::Rejoins,
        Self::RegionOnePayload,
        Self::RegionOneDefinition,
        Self::RegionRolesDecide,
        Self::RegionCopiesAgree,
        Self::RegionFenced,
        Self::RegionAcknowledgedStays,
        Self::RegionFirstResult,
        Self::RegionLinearizable,
        Self::RegionAgeStated,
        Self::RegionBounded,
    ];

    /// Its name in reports.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::StableBeforeRelease => "stable-before-release",
            Self::AcknowledgedSurvives => "acknowledged-survives",
            Self::DeliveredOnce => "delivered-once",
            Self::EvictedNotReapplied => "evicted-not-reapplied",
            Self::SameAnswer => "same-answer",
            Self::ReleasedOnce => "released-once",
            Self::OutputsGuaranteed => "outputs-guaranteed",
            Self::FailureFree => "failure-free",
            Self::UnknownNotAbsent => "unknown-not-absent",
            Self::LegalOrder => "legal-order",
            Self::LineRestorable => "line-restorable",
            Self::ChannelsEmpty => "channels-empty",
            Self::SurvivorsRunOn => "survivors-run-on",
            Self::LossesStated => "losses-stated",
            Self::NothingPinned => "nothing-pinned",
            Self::Recovers => "recovers",
            Self::Progress => "progress",
            Self::Asserts => "asserts",
            Self::Deterministic => "deterministic",
            Self::StateSaved => "state-saved",
            Self::Invariant => "invariant",
            Self::HandlerPanics => "handler-panics",
            Self::OneSuccessor => "one-successor",
            Self::IdentityOnce => "identity-once",
            Self::OneSideServes => "one-side-serves",
            Self::OutsidersUnheard => "outsiders-unheard",
            Self::Rejoins => "rejoins",
            Self::RegionOnePayload => "region-one-payload",
            Self::RegionOneDefinition => "region-one-definition",
            Self::RegionRolesDecide => "region-roles-decide",
            Self::RegionCopiesAgree => "region-copies-agree",
            Self::RegionFenced => "region-fenced",
            Self::RegionAcknowledgedStays => "region-acknowledged-stays",
            Self::RegionFirstResult => "region-first-result",
            Self::RegionLinearizable => "region-linearizable",
            Self::RegionAgeStated => "region-age-stated",
            Self::RegionBounded => "region-bounded",
        }
    }

    /// Where it comes from.
    #[must_use]
    pub(crate) fn source(self) -> &'static str {
        match self {
            Self::StableBeforeRelease => stable_before_release::SOURCE,
            Self::AcknowledgedSurvives => acknowledged_survives::SOURCE,
            Self::DeliveredOnce => delivered_once::SOURCE,
            Self::EvictedNotReapplied => evicted_not_reapplied::SOURCE,
            Self::SameAnswer => same_answer::SOURCE,
            Self::ReleasedOnce => released_once::SOURCE,
            Self::OutputsGuaranteed => outputs_guaranteed::SOURCE,
            Self::FailureFree => failure_free::SOURCE,
            Self::UnknownNotAbsent => unknown_not_absent::SOURCE,
            Self::LegalOrder => legal_order::SOURCE,
            Self::LineRestorable => line_restorable::SOURCE,
            Self::ChannelsEmpty => channels_empty::SOURCE,
            Self::SurvivorsRunOn => survivors_run_on::SOURCE,
            Self::LossesStated => losses_stated::SOURCE,
            Self::NothingPinned => nothing_pinned::SOURCE,
            Self::Recovers => {
                "journal and process: only damage below the durable watermark may refuse to start"
            }
            Self::Progress => "liveness under fairness: Alpern and Schneider 1985",
            Self::Asserts => "the machines' own assertions",
            Self::Deterministic => deterministic::SOURCE,
            Self::StateSaved => state_saved::SOURCE,
            Self::Invariant => invariant::SOURCE,
            Self::HandlerPanics => handler_panics::SOURCE,
            Self::OneSuccessor => one_successor::SOURCE,
            Self::IdentityOnce => identity_once::SOURCE,
            Self::OneSideServes => one_side_serves::SOURCE,
            Self::OutsidersUnheard => outsiders_unheard::SOURCE,
            Self::Rejoins => rejoins::SOURCE,
            Self::RegionOnePayload => region_one_payload::SOURCE,
            Self::RegionOneDefinition => region_one_definition::SOURCE,
            Self::RegionRolesDecide => region_roles_decide::SOURCE,
            Self::RegionCopiesAgree => region_copies_agree::SOURCE,
            Self::RegionFenced => region_fenced::SOURCE,
            Self::RegionAcknowledgedStays => region_acknowledged_stays::SOURCE,
            Self::RegionFirstResult => region_first_result::SOURCE,
            Self::RegionLinearizable => region_linearizable::SOURCE,
            Self::RegionAgeStated => region_age_stated::SOURCE,
            Self::RegionBounded => region_bounded::SOURCE,
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A property that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Which.
    pub property: Property,
    /// What was seen, for people.
    pub what: String,
}

impl Violation {
    pub(crate) fn new(property: Property, what: String) -> Self {
        Self { property, what }
    }
}
