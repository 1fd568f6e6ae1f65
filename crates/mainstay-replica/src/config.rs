//! What a node is told when it starts, and why it may not be able to.

use crate::definition::{Definition, DefinitionError, RegionId};
use mainstay_group::limits::{Limits as GroupLimits, Timing};
use mainstay_group::record::{Record, RecordError};
use mainstay_region::limits::{Config as RegionConfig, Limits as RegionLimits, Times};
use mainstay_region::record::RecoverError;
use mainstay_types::id::ClusterId;
use mainstay_types::rules::Rules;
use mainstay_types::view::{Address, JoinerId, Offer, ViewId};
use std::time::Duration;

/// What a node is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who it is. The life must be above every earlier one of the store.
    pub me: JoinerId,
    /// What it brings.
    pub offer: Offer,
    /// Where it asks to be let in first.
    pub ask_at: Vec<Address>,
    /// It begins a new group: said once, by a person, never concluded from hearing nobody. A store that has begun already is
    /// started without it.
    pub begin: Option<Begin>,
    /// What bounds the group's memory. The same on all nodes.
    pub group_limits: GroupLimits,
    /// How long everything in the group takes. The same on all nodes.
    pub timing: Timing,
    /// What bounds the memory of each region; of the logs, that of all of them. The same on all nodes.
    pub region_limits: RegionLimits,
    /// How long things in the regions are waited for.
    pub region_times: Times,
    /// Between two looks of the regions at the clock: several within the shortest of `region_times`.
    pub region_tick: Duration,
    /// Records of regions that a start would read, in bytes, at which checkpoints begin; later, where the regions hold much, at twice what the last checkpoints
    /// left.
    pub checkpoint_bytes_min: u64,
    /// A count at a key that begins so is set by nodes for themselves, also while a role is missing; `None`: there is none.
    pub own_keys: Option<&'static [u8]>,
    /// Which safety rules are kept: all, outside the simulator.
    pub rules: Rules,
}

impl Config {
    /// With the defaults for limits and times.
    #[must_use]
    pub fn of(me: JoinerId, ask_at: Vec<Address>, begin: Option<Begin>) -> Self {
        Self {
            me,
            offer: Offer::server(),
            ask_at,
            begin,
            group_limits: GroupLimits::default(),
            timing: Timing::default(),
            region_limits: RegionLimits::default(),
            region_times: Times::default(),
            region_tick: Duration::from_millis(15),
            checkpoint_bytes_min: 64 << 20,
            own_keys: None,
            rules: Rules::KEPT,
        }
    }

    /// What one of so many regions is set up with. What a view changes with is one message for all of them, so that they share what it may have.
    pub(crate) fn of_region(&self, definition: &Definition, regions: usize) -> RegionConfig {
        let log_bytes_max = self.region_limits.log_bytes_max / regions.max(1);
        let limits = RegionLimits { log_bytes_max, ..self.region_limits };
        definition.config(limits, self.region_times, self.rules)
    }
}

/// A new group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Begin {
    /// Its identity, drawn for it.
    pub cluster: ClusterId,
    /// Whether an outside arbiter decides on views: for groups of two.
    pub arbitrated: bool,
    /// Its regions.
    pub regions: Vec<Definition>,
}

/// What the store of an earlier life kept: nothing of a new one.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    /// The last bytes of [`crate::effect::Effect::PersistRecord`] that are durable.
    pub record: Option<Vec<u8>>,
    /// Every record of [`crate::effect::Effect::Append`] that was found, in order.
    pub records: Vec<(RegionId, Vec<u8>)>,
}

impl Stored {
    /// Whether the store knows where its group is: a view has named it.
    #[must_use]
    pub fn knows_group(&self) -> bool {
        let record = self.record.as_deref().map(Record::parse);
        // One that cannot be read is refused at the start, with what is wrong.
        record.is_some_and(|record| record.is_ok_and(|record| record.installed.is_some()))
    }
}

/// A node that cannot start so. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StartError {
    /// The group's record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The group.
    #[error(transparent)]
    Group(#[from] mainstay_group::group::StartError),
    /// The regions of the new group cannot be.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// What the regions are cannot be read out of the group's record.
    #[error(
        "what the regions are cannot be read in the record of the group: start the version of mainstay that wrote it"
    )]
    Cut,
    /// A region's journal.
    #[error(
        "region {region}: {error}; start it with a new store id on an empty directory, and it joins as new"
    )]
    Region {
        /// The region.
        region: RegionId,
        /// What is wrong.
        error: RecoverError,
    },
    /// The group's record says that the store has all the data of a view, and the region's journal has not: it was lost or put back.
    #[error(
        "region {region} stands at view {standing}, and the group counts on this store to have all of view {ready}: its journal was lost or \
         put back; start it with a new store id on an empty directory, and it joins as new"
    )]
    Behind {
        /// The region.
        region: RegionId,
        /// What its journal leads to.
        standing: ViewId,
        /// What the record says.
        ready: ViewId,
    },
    /// There are records of regions, and no record of the group: it was lost, and with it what this store promised.
    #[error(
        "there are journals of regions and no record of the group, so that this store does not know what it promised; start it with a new \
         store id on an empty directory, and it joins as new"
    )]
    RecordLost,
}
