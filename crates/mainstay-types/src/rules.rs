//! The safety rules that the machines keep, each of which the simulator can turn off to show that its oracle would
//! notice. Outside the simulator, and tests that plant a loss, all rules are always kept.

/// One safety rule, as named by `mainstay sim --break`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Rule {
    /// An output leaves only when the delivery that made it is stable.
    SendAfterStable,
    /// An answer leaves only when the delivery that made it is stable.
    AcknowledgeAfterStable,
    /// The answer to a duplicate waits for what the first answer waits for.
    DuplicateAfterStable,
    /// The journal is trimmed only behind a checkpoint that is durable, with its directory.
    TrimAfterCheckpoint,
    /// A failed sync poisons the journal; nothing is taken as durable afterwards.
    FailedSyncPoisons,
    /// A record of a previous life of its bytes is not accepted.
    StaleRecordRefused,
    /// A request below its thread's floor is answered `Evicted`, never applied again.
    EvictedNotReapplied,
    /// An effect is released once.
    ReleaseOnce,
    /// A message to another node leaves only when its policy's row says so.
    MessageAfterLogged,
    /// Determinants ride on every message until enough nodes hold them.
    DeterminantsTravel,
    /// A node that depends on a state that was lost rolls back.
    OrphansRollBack,
    /// A message is kept until its receiver's history holds it, whatever the transport has acknowledged.
    KeepUntilCovered,
    /// A node takes its part in a snapshot before it takes in anything that came after another node took its own.
    CutBeforeDelivery,
    /// What is lost because more nodes failed at once than a policy survives is said.
    LossStated,
    /// In a blocking snapshot nobody cuts before no message is on the way.
    CutAfterDrained,
    /// An operation that has a version is answered from the table or driven again with it, never given a second one.
    RetryFromTable,
    /// A version that was granted is void only when every member has said that it has no payload for it.
    VoidAgreed,
    /// A copy says that it has accepted an entry when its record is safe.
    AcceptedSafe,
    /// A copy takes nothing of a view other than its own.
    OlderViewRefused,
    /// A copy that has reported for a view change takes nothing more in the view.
    WedgedTakesNothing,
    /// A stamper answers a linearizable read under its lease alone.
    ReadUnderLease,
    /// A read shows only what is stable.
    ReadStable,
    /// The duplicate table moves in the same image as the data.
    TableMovesWithData,
    /// The next view is agreed on by strictly more than half of the votes of the one before.
    StrictMajority,
    /// Who takes over a view change goes on with what may already have been decided.
    AdoptAccepted,
    /// What a store says of its promises leaves when they are durable.
    PromiseDurable,
    /// A member serves only while a majority has lately answered it.
    ServeWithinLease,
    /// A view is installed when nobody can serve the one before any more.
    LeasesRunOut,
    /// A store that came back waits for the leases that its earlier life gave.
    GrantsOutliveCrashes,
    /// What is said in another view is not heard.
    ViewFence,
    /// A view names lives, and another life at the same address is somebody else.
    BornOnce,
    /// Stores without the data do not decide alone what follows.
    ReadyBeforeVote,
    /// What was settled on before a view that nobody began goes into the next one as it is.
    SettledOnce,
    /// A region has another pattern from a view on, at all its members alike.
    PatternWithView,
    /// What a region is asked for while a role that it requires is missing is refused.
    RolesRequired,
    /// Clocks run at most so much faster or slower than others as leases allow for: the one rule that the world keeps, and no machine.
    ClocksWithinDrift,
}

impl Rule {
    /// The rules that a process keeps also when it stands alone.
    pub const OF_ONE_PROCESS: [Self; 8] = [
        Self::SendAfterStable,
        Self::AcknowledgeAfterStable,
        Self::DuplicateAfterStable,
        Self::TrimAfterCheckpoint,
        Self::FailedSyncPoisons,
        Self::StaleRecordRefused,
        Self::EvictedNotReapplied,
        Self::ReleaseOnce,
    ];

    /// Every rule.
    pub const ALL: [Self; 35] = [
        Self::SendAfterStable,
        Self::AcknowledgeAfterStable,
        Self::DuplicateAfterStable,
        Self::TrimAfterCheckpoint,
        Self::FailedSyncPoisons,
        Self::StaleRecordRefused,
        Self::EvictedNotReapplied,
        Self::ReleaseOnce,
        Self::MessageAfterLogged,
        Self::DeterminantsTravel,
        Self::OrphansRollBack,
        Self::KeepUntilCovered,
        Self::CutBeforeDelivery,
        Self::LossStated,
        Self::CutAfterDrained,
        Self::StrictMajority,
        Self::AdoptAccepted,
        Self::PromiseDurable,
        Self::ServeWithinLease,
        Self::LeasesRunOut,
        Self::ViewFence,
        Self::BornOnce,
        Self::ReadyBeforeVote,
        Self::SettledOnce,
        Self::RetryFromTable,
        Self::VoidAgreed,
        Self::AcceptedSafe,
        Self::OlderViewRefused,
        Self::WedgedTakesNothing,
        Self::TableMovesWithData,
        Self::PatternWithView,
        Self::RolesRequired,
        Self::ClocksWithinDrift,
        Self::ReadUnderLease,
        Self::ReadStable,
    ];

    /// Those of a group.
    pub const OF_A_GROUP: [Self; 9] = [
        Self::StrictMajority,
        Self::AdoptAccepted,
        Self::PromiseDurable,
        Self::ServeWithinLease,
        Self::LeasesRunOut,
        Self::ViewFence,
        Self::BornOnce,
        Self::ReadyBeforeVote,
        Self::SettledOnce,
    ];

    /// The name by which a person breaks it: what happens when it is off.
    #[must_use]
    pub fn broken_name(self) -> &'static str {
        match self {
            Self::SendAfterStable => "send-before-stable",
            Self::AcknowledgeAfterStable => "acknowledge-before-stable",
            Self::DuplicateAfterStable => "duplicate-answered-early",
            Self::TrimAfterCheckpoint => "trim-before-checkpoint-durable",
            Self::FailedSyncPoisons => "failed-sync-ignored",
            Self::StaleRecordRefused => "stale-record-accepted",
            Self::EvictedNotReapplied => "evicted-reapplied",
            Self::ReleaseOnce => "release-twice",
            Self::MessageAfterLogged => "message-before-logged",
            Self::DeterminantsTravel => "determinants-left-behind",
            Self::OrphansRollBack => "orphans-stay",
            Self::KeepUntilCovered => "transport-trusted",
            Self::CutBeforeDelivery => "marker-behind",
            Self::LossStated => "loss-unstated",
            Self::CutAfterDrained => "cut-before-drained",
            Self::RetryFromTable => "stamped-twice",
            Self::VoidAgreed => "void-alone",
            Self::AcceptedSafe => "accepted-before-safe",
            Self::OlderViewRefused => "older-view-taken",
            Self::WedgedTakesNothing => "taken-after-report",
            Self::ReadUnderLease => "read-without-lease",
            Self::ReadStable => "read-dirty",
            Self::TableMovesWithData => "table-left-behind",
            Self::StrictMajority => "view-without-majority",
            Self::AdoptAccepted => "predecessor-ignored",
            Self::PromiseDurable => "promise-before-durable",
            Self::ServeWithinLease => "served-past-lease",
            Self::LeasesRunOut => "leases-not-outlasted",
            Self::GrantsOutliveCrashes => "grants-forgotten",
            Self::ViewFence => "outsiders-heard",
            Self::BornOnce => "identity-repeated",
            Self::ReadyBeforeVote => "empty-stores-decide",
            Self::SettledOnce => "settled-again",
            Self::PatternWithView => "pattern-without-view",
            Self::RolesRequired => "roles-ignored",
            Self::ClocksWithinDrift => "clocks-drift-beyond",
        }
    }

    /// Where the rule comes from.
    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Self::SendAfterStable => {
                "output commit: Strom and Yemini 1985, section 2; Elnozahy et al. 2002, section 2.6"
            }
            Self::AcknowledgeAfterStable => {
                "pessimistic logging: Alvisi and Marzullo 1998, |Depend(e)| <= 1 until stable"
            }
            Self::DuplicateAfterStable => {
                "output commit applied to a repeated answer; IETF Idempotency-Key draft, section 2"
            }
            Self::TrimAfterCheckpoint => {
                "Johnson and Zwaenepoel 1987, log discarded behind a stable checkpoint"
            }
            Self::FailedSyncPoisons => "Rebello et al. 2020, Can Applications Recover from fsync Failures?",
            Self::StaleRecordRefused => {
                "write-ahead logging on recycled segments; docs/journal-format.md, generation"
            }
            Self::EvictedNotReapplied => "client sequence floors: Ongaro 2014, section 6.3",
            Self::ReleaseOnce => "output commit: an output is released exactly once per life",
            Self::MessageAfterLogged => {
                "the send rule: Johnson and Zwaenepoel 1987; Zhao 2014, section 2.3.2; deferred logging, section 2.3.1.2"
            }
            Self::DeterminantsTravel => {
                "Alvisi and Marzullo 1998: while |Log(e)| <= f, Depend(e) is within Log(e)"
            }
            Self::OrphansRollBack => "Strom and Yemini 1985: an orphan of a lost state rolls back",
            Self::LossStated => "docs/message-logging.md, more failures than a policy survives",
            Self::KeepUntilCovered => {
                "application-level reliable messaging: Zhao 2014, section 2.3.2, figure 2.12; Saltzer, Reed and Clark 1984"
            }
            Self::CutAfterDrained => "blocking checkpoints: Tamir and Séquin 1984; Mattern 1987, section 5",
            Self::CutBeforeDelivery => "the marker rule: Chandy and Lamport 1985; Lai and Yang 1987",
            Self::RetryFromTable => {
                "the duplicate table of a replicated service: Liskov and Cowling 2012, section 4.1; GEODE-6108"
            }
            Self::VoidAgreed => {
                "a gap is agreed by the quorum of an accept: Li et al. 2016 (NOPaxos), section 5.3"
            }
            Self::AcceptedSafe => "an acceptor's answer waits for its log: Lamport 2001, section 2.5",
            Self::OlderViewRefused => "fencing by view: Birman and Joseph 1987; docs/region.md",
            Self::WedgedTakesNothing => {
                "virtual synchrony, the wedge: Birman 2010; Jha et al. 2019 (Derecho), section 3.3"
            }
            Self::ReadUnderLease => "leases: Gray and Cheriton 1989",
            Self::ReadStable => {
                "the stamper's dirty reads: docs/region.md, one hop, acknowledged to the client"
            }
            Self::TableMovesWithData => {
                "GEODE-6195, GEODE-9913: state transfer without the versions of events seen"
            }
            Self::StrictMajority => {
                "strict majority of the view before: GEODE-9822; Lamport 1998, quorums intersect"
            }
            Self::AdoptAccepted => "Paxos: Lamport 2001, phase 2a; Derecho issue 126",
            Self::PromiseDurable => "Paxos on disk: Lamport 1998; an acknowledgement is an output",
            Self::ServeWithinLease => "leases: Gray and Cheriton 1989; Corosync issue 182",
            Self::LeasesRunOut => "leases: Gray and Cheriton 1989; Corosync issue 182",
            Self::GrantsOutliveCrashes => "leases: Gray and Cheriton 1989, section 5, recovery of a server",
            Self::ViewFence => "virtual synchrony: Birman and Joseph 1987; GEODE-8901",
            Self::BornOnce => "Schuchardt 2010, JGroups address reuse; foca issue 31",
            Self::ReadyBeforeVote => "state transfer before vote: Liskov and Cowling 2012, section 4.3",
            Self::SettledOnce => {
                "Paxos: a chosen value stays chosen: Lamport 2001; docs/group.md, enough data"
            }
            Self::ClocksWithinDrift => {
                "leases assume bounded drift: Gray and Cheriton 1989, section 5; docs/group.md, leases"
            }
            Self::RolesRequired => {
                "required roles and their loss actions: Schuchardt 2010, GemFire and Paxos"
            }
            Self::PatternWithView => {
                "a configuration changes at a point that all agree on: Lamport, Malkhi and Zhou 2009; docs/replica.md, another pattern"
            }
        }
    }
}

/// Which rules are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    broken: u64,
}

impl Rules {
    /// All of them: the only value outside the simulator and tests that plant a loss.
    pub const KEPT: Self = Self { broken: 0 };

    /// All but `rule`.
    #[must_use]
    pub fn without(rule: Rule) -> Self {
        Self { broken: 1 << rule as u64 }
    }

    /// Whether `rule` is kept.
    #[inline]
    #[must_use]
    pub fn keep(self, rule: Rule) -> bool {
        self.broken & (1 << rule as u64) == 0
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::KEPT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaking_one_rule_keeps_the_others() {
        for broken in Rule::ALL {
            let rules = Rules::without(broken);
            assert!(!rules.keep(broken));
            assert!(Rule::ALL.iter().filter(|&&rule| rule != broken).all(|&rule| rules.keep(rule)));
        }
    }
}
