//! What a run may contain. A failing run is made shorter by leaving things out of it.

use std::collections::BTreeSet;

/// A kind of trouble that a run can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    /// Messages are lost and doubled.
    Network,
    /// Syncs fail, the disk is full.
    Disk,
    /// The power goes.
    Power,
    /// The wall clock jumps.
    Clock,
    /// Bits of files flip.
    Damage,
    /// The service is stopped cleanly, or told to take a checkpoint.
    Orders,
    /// Clients repeat what is long answered, under the same body and others.
    Misuse,
    /// Clients that read.
    Reads,
    /// More than one client.
    Crowd,
    /// More nodes than there must be.
    Nodes,
    /// A crash in the life that a crash is followed by.
    CrashAgain,
}

impl Trouble {
    /// Every one, in the order in which leaving it out makes a history easiest to read.
    pub(crate) const ALL: [Self; 11] = [
        Self::Nodes,
        Self::Crowd,
        Self::Reads,
        Self::Misuse,
        Self::Network,
        Self::Disk,
        Self::Damage,
        Self::Clock,
        Self::Power,
        Self::CrashAgain,
        Self::Orders,
    ];
}

/// The plan of a run; the default leaves nothing out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Numbers of the requests that are made, in order; `None`: as many as the run has time for.
    pub(crate) requests: Option<Vec<u64>>,
    /// Of one process: after how many crash points each life ends, starts that failed included; later ones do not crash. Of
    /// several nodes: the numbers of the faults that come. `None`: drawn.
    pub(crate) crashes: Option<Vec<u64>>,
    /// What is left out.
    pub(crate) without: BTreeSet<Trouble>,
}

impl Plan {
    /// Whether fault `number` of several nodes may come.
    pub(crate) fn has_fault(&self, number: u64) -> bool {
        self.crashes.as_ref().is_none_or(|planned| planned.contains(&number))
    }

    /// Whether this trouble may come.
    pub(crate) fn has(&self, trouble: Trouble) -> bool {
        !self.without.contains(&trouble)
    }
}
