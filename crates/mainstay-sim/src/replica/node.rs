//! One machine: its address, its disk, its clock, and the node on it while one runs.

use super::patterns::Wish;
use super::slow::{Slow, Writing};
use crate::group::process::Clock;
use crate::random::Random;
use crate::region::oracle::Watched;
use mainstay_group::record::Record;
use mainstay_region::effect::RecordNumber;
use mainstay_region::patterns::Pattern;
use mainstay_replica::config::Stored;
use mainstay_replica::definition::RegionId;
use mainstay_replica::replica::Replica;
use mainstay_types::id::StoreId;
use mainstay_types::rules::Rules;
use mainstay_types::view::{Address, Offer, ViewId};
use std::collections::{BTreeMap, VecDeque};

/// What was appended to the journal and is not safe.
pub(crate) struct Unsafe {
    pub(crate) region: RegionId,
    pub(crate) record: RecordNumber,
    pub(crate) bytes: Vec<u8>,
}

/// The machine.
pub(crate) struct Node {
    pub(crate) address: Address,
    pub(crate) store: StoreId,
    pub(crate) life: u64,
    pub(crate) offer: Offer,
    /// It begins the group, on its first store.
    pub(crate) begins: bool,
    pub(crate) clock: Clock,
    /// What the disk keeps.
    pub(crate) stored: Stored,
    /// Records of the group that are being written.
    pub(crate) writing: VecDeque<(u64, Vec<u8>)>,
    /// Length of the journal when checkpoints began, with what was not safe then.
    pub(crate) checkpoint_at: usize,
    /// The journal was trimmed once.
    pub(crate) trimmed: bool,
    /// Records of regions that are being written.
    pub(crate) appending: VecDeque<Unsafe>,
    /// Whether its disk is slow, and what it is at.
    pub(crate) slow: Slow,
    pub(crate) writing_record: Writing,
    pub(crate) running: Option<Replica>,
    /// Events since it was drained.
    pub(crate) undrained: u32,
    /// The last wake-up that was asked for.
    pub(crate) wakes: u64,
    pub(crate) paused_until_ns: u64,
    /// It left in order, and is not started again before that.
    pub(crate) rests_until_ns: u64,
    pub(crate) leaving: bool,
    /// It served a view that lacked no role last.
    pub(crate) had_roles: bool,
    pub(crate) wishes: BTreeMap<(RegionId, Pattern), Wish>,
    /// Of each region and shard: the last version that the oracle has seen.
    pub(crate) watched: BTreeMap<RegionId, Watched>,
    /// Of each region: the view that it was seen to serve, and whether it has stopped in it since.
    pub(crate) served: BTreeMap<RegionId, (ViewId, bool)>,
}

impl Node {
    pub(crate) fn new(number: usize, offer: Offer, rules: Rules, random: &mut Random) -> Self {
        Self {
            address: crate::group::setup::address(number, 7000),
            store: StoreId([u8::try_from(number + 1).expect("few machines"); 16]),
            life: 0,
            offer,
            begins: number == 0,
            clock: Clock::draw(random, rules),
            stored: Stored::default(),
            writing: VecDeque::new(),
            checkpoint_at: 0,
            trimmed: false,
            appending: VecDeque::new(),
            slow: Slow::default(),
            writing_record: Writing::default(),
            running: None,
            undrained: 0,
            wakes: 0,
            paused_until_ns: 0,
            rests_until_ns: 0,
            leaving: false,
            had_roles: false,
            wishes: BTreeMap::new(),
            watched: BTreeMap::new(),
            served: BTreeMap::new(),
        }
    }

    /// The durable record of the group.
    pub(crate) fn record(&self) -> Option<Record> {
        let bytes = self.stored.record.as_deref()?;
        Some(Record::parse(bytes).expect("what a node writes reads back"))
    }

    /// Takes the record of that ticket, and all before it, as durable.
    pub(crate) fn persist(&mut self, ticket: u64) {
        while self.writing.front().is_some_and(|(first, _)| *first <= ticket) {
            let (_, bytes) = self.writing.pop_front().expect("it was just there");
            self.stored.record = Some(bytes);
        }
    }

    /// Makes the oldest records of regions safe; says how far each region is now.
    pub(crate) fn sync(&mut self, at_most: usize) -> BTreeMap<RegionId, RecordNumber> {
        let mut safe = BTreeMap::new();
        for _ in 0..at_most {
            let Some(Unsafe { region, record, bytes }) = self.appending.pop_front() else { break };
            self.stored.records.push((region, bytes));
            safe.insert(region, record);
        }
        safe
    }

    /// Drops so many of the records before the last checkpoints began.
    pub(crate) fn trim(&mut self, random: &mut Random) {
        let most = self.checkpoint_at.min(self.stored.records.len());
        self.stored.records.drain(..if random.coin() { most } else { random.index(most + 1) });
        self.checkpoint_at = 0;
        self.trimmed = true;
    }

    /// kill -9, or the power goes: of what was being written any first part may be there all the same.
    pub(crate) fn crash(&mut self, random: &mut Random) {
        if let Some((last, _)) = self.writing.back().filter(|_| random.coin()) {
            let (first, last) = (self.writing.front().expect("there is a last one").0, *last);
            let reached = random.between(first, last);
            self.persist(reached);
        }
        let kept = random.index(self.appending.len() + 1);
        self.sync(kept);
        self.ends();
    }

    /// Nothing of this life is left but what the disk keeps.
    pub(crate) fn ends(&mut self) {
        self.writing.clear();
        self.appending.clear();
        self.writing_record = Writing::default();
        self.running = None;
        self.undrained = 0;
        self.paused_until_ns = 0;
        self.leaving = false;
        self.had_roles = false;
        self.wishes.clear();
        self.watched.clear();
        self.served.clear();
    }
}
