//! One simulated process: its disk, its clock, and regions that hold a set of facts.

use crate::random::Random;
use mainstay_group::ballot::Proposal;
use mainstay_group::group::Group;
use mainstay_group::record::Record;
use mainstay_types::id::StoreId;
use mainstay_types::rules::{Rule, Rules};
use mainstay_types::time::Time;
use mainstay_types::view::{Address, Offer, ViewId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a run writes: numbers, each once.
pub(crate) type Fact = u32;

/// A machine with a disk, and the process on it while one runs.
pub(crate) struct Process {
    pub(crate) address: Address,
    pub(crate) store: StoreId,
    pub(crate) life: u64,
    pub(crate) offer: Offer,
    /// It begins a group with its first life: the first byte of the group's identity.
    pub(crate) begins: Option<u8>,
    /// Machines at which a person told it to ask, beside those that all ask at.
    pub(crate) told: Vec<usize>,
    pub(crate) clock: Clock,
    /// The durable record, and those being written.
    pub(crate) record: Option<Record>,
    pub(crate) writing: VecDeque<(u64, Vec<u8>)>,
    /// What the regions of this store hold; a write is durable at once.
    pub(crate) facts: BTreeSet<Fact>,
    pub(crate) running: Option<Running>,
    pub(crate) paused_until_ns: u64,
    /// It left in order, and is not started again before that.
    pub(crate) rests_until_ns: u64,
}

/// A life.
pub(crate) struct Running {
    pub(crate) group: Group,
    /// Which stores have each of my writes that is not acknowledged yet.
    pub(crate) open: BTreeMap<Fact, (ViewId, BTreeSet<StoreId>)>,
    /// It was told to leave.
    pub(crate) leaving: bool,
    /// What the arbiter was asked and has not answered.
    pub(crate) asks: Option<Proposal>,
}

/// A clock that runs a little wrong, and from any beginning.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) offset_ns: u64,
    /// Deviation, in millionths.
    pub(crate) drift_ppm: i64,
}

impl Clock {
    /// One that keeps within what is assumed of clocks, unless that is to be broken: then it may run by a third too fast or too slow.
    pub(crate) fn draw(random: &mut Random, rules: Rules) -> Self {
        let most: u64 = if rules.keep(Rule::ClocksWithinDrift) { 900 } else { 330_000 };
        let drift = |drawn: u64| i64::try_from(drawn).expect("it is small") - most.cast_signed();
        Self { offset_ns: random.below(1 << 40), drift_ppm: drift(random.below(2 * most + 1)) }
    }

    fn rate(self) -> u128 {
        u128::try_from(1_000_000 + self.drift_ppm).expect("clocks go forward")
    }

    /// What it shows at a true time.
    pub(crate) fn shows(self, now_ns: u64) -> Time {
        let passed = u128::from(now_ns) * self.rate() / 1_000_000;
        Time(self.offset_ns + u64::try_from(passed).expect("runs are short"))
    }

    /// The true time at which it shows `at`.
    pub(crate) fn true_ns(self, at: Time) -> u64 {
        let passed = u128::from(at.0.saturating_sub(self.offset_ns)) * 1_000_000;
        u64::try_from(passed.div_ceil(self.rate())).expect("runs are short")
    }
}

pub(crate) fn put_facts(facts: &BTreeSet<Fact>) -> Vec<u8> {
    facts.iter().flat_map(|fact| fact.to_le_bytes()).collect()
}

pub(crate) fn take_facts(bytes: &[u8]) -> impl Iterator<Item = Fact> + '_ {
    bytes.chunks_exact(4).map(|four| Fact::from_le_bytes(four.try_into().expect("four bytes")))
}

impl Process {
    /// Takes the record of that ticket, and all before it, as durable.
    pub(crate) fn persist(&mut self, ticket: u64) {
        while let Some((first, _)) = self.writing.front()
            && *first <= ticket
        {
            let (_, bytes) = self.writing.pop_front().expect("it was just there");
            self.record = Some(Record::parse(&bytes).expect("what a group writes reads back"));
        }
    }

    /// Whether this process has, durably, all the data before the view that its store knows.
    pub(crate) fn is_ready(&self) -> bool {
        self.record.as_ref().is_some_and(Record::is_ready)
    }
}
