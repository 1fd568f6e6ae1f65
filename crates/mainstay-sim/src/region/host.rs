//! One server: a copy of the region, its journal, and what waits for the journal.

use super::oracle::{Inspected, Watched};
use crate::group::process::Clock;
use crate::random::Random;
use mainstay_region::effect::{Effect, RecordNumber};
use mainstay_region::limits::Config;
use mainstay_region::message::{Message, Party};
use mainstay_region::region::Region;
use mainstay_types::id::{Incarnation, StoreId};
use mainstay_types::view::{Address, JoinerId, Member, MemberId, Offer, ViewId};
use std::collections::VecDeque;

/// What waits for a record.
#[derive(Debug)]
pub(crate) enum Waiting {
    Send(Party, Box<Message>),
    Ready(ViewId),
}

/// The server.
pub(crate) struct Host {
    pub(crate) number: u8,
    pub(crate) region: Option<Region>,
    /// Safe records of the store.
    journal: Vec<Vec<u8>>,
    /// Its length when a checkpoint began, with what was not safe then.
    checkpoint_at: usize,
    /// It was trimmed once.
    pub(crate) trimmed: bool,
    /// Appended and not safe.
    unsafe_records: VecDeque<(RecordNumber, Vec<u8>)>,
    safe: RecordNumber,
    waiting: VecDeque<(RecordNumber, Waiting)>,
    pub(crate) store: u8,
    pub(crate) life: u64,
    /// What it is called in the view that it is in, or wants to be in.
    pub(crate) id: MemberId,
    pub(crate) paused_until: u64,
    /// What the source says comes no earlier.
    pub(crate) deaf_until: u64,
    pub(crate) clock: Clock,
    /// How far its wall clock is ahead, in milliseconds.
    pub(crate) clock_ahead_ms: u64,
    /// Events since it was drained.
    pub(crate) undrained: u32,
    /// When the last thing that the source said to it arrives: it hears all in order.
    pub(crate) hears_until: u64,
    /// The view that it reported for last.
    pub(crate) reported: Option<ViewId>,
    /// It is being filled, or was.
    pub(crate) learned: bool,
    pub(crate) learning: bool,
    pub(crate) learns_from: Option<MemberId>,
    /// What it was called when it asked to be filled: so it goes on being called for that.
    pub(crate) learn_id: Option<MemberId>,
    /// What the oracle has seen.
    pub(crate) watched: Watched,
}

impl Host {
    pub(crate) fn new(number: u8, config: Config, clock: Clock) -> Self {
        let id = MemberId { address: Address::v4([10, 0, 0, number], 7171), born: ViewId(1) };
        Self {
            number,
            region: Some(Region::new(config)),
            journal: Vec::new(),
            checkpoint_at: 0,
            trimmed: false,
            unsafe_records: VecDeque::new(),
            safe: RecordNumber(0),
            waiting: VecDeque::new(),
            store: number,
            life: 1,
            id,
            paused_until: 0,
            deaf_until: 0,
            clock,
            clock_ahead_ms: u64::from(number) * 40,
            undrained: 0,
            hears_until: 0,
            reported: None,
            learned: false,
            learning: false,
            learns_from: None,
            learn_id: None,
            watched: Watched::new(config.shards),
        }
    }

    /// As a member of a view, born in `born`.
    pub(crate) fn member(&self, born: ViewId) -> Member {
        let joiner = JoinerId {
            address: self.id.address,
            store: StoreId([self.store; 16]),
            life: Incarnation(self.life),
        };
        Member { born, joiner, offer: Offer::server() }
    }

    pub(crate) fn up(&self) -> bool {
        self.region.is_some()
    }

    /// Keeps an effect that waits; returns it if it need not.
    pub(crate) fn hold(&mut self, after: RecordNumber, waiting: Waiting) -> Option<Waiting> {
        if after <= self.safe {
            return Some(waiting);
        }
        self.waiting.push_back((after, waiting));
        None
    }

    /// For the oracle, behind a step that led to `out`.
    pub(crate) fn looked_at<'a>(&'a mut self, out: &'a [Effect]) -> Inspected<'a> {
        let appended = out.iter().filter_map(|effect| match effect {
            Effect::Append { bytes, .. } => Some(bytes.as_slice()),
            _ => None,
        });
        Inspected {
            number: self.number,
            region: self.region.as_ref().expect("it has just taken a step"),
            watched: &mut self.watched,
            reported: self.reported,
            appended: appended.collect(),
            lacks_role: None,
        }
    }

    pub(crate) fn append(&mut self, effect: Effect) {
        if let Effect::Append { record, bytes } = effect {
            self.unsafe_records.push_back((record, bytes));
        }
    }

    /// Makes the oldest records safe; returns the last safe one, and what waited for those.
    pub(crate) fn sync(&mut self, at_most: usize) -> (RecordNumber, Vec<Waiting>) {
        for _ in 0..at_most {
            let Some((record, bytes)) = self.unsafe_records.pop_front() else { break };
            self.journal.push(bytes);
            self.safe = record;
        }
        let safe = self.safe;
        let mut released = Vec::new();
        self.waiting.retain_mut(|(after, waiting)| {
            let keep = *after > safe;
            if !keep {
                released.push(std::mem::replace(waiting, Waiting::Ready(ViewId::NONE)));
            }
            keep
        });
        (safe, released)
    }

    pub(crate) fn unsynced(&self) -> usize {
        self.unsafe_records.len()
    }

    /// kill -9, or the power goes: of what was not safe any first part may be there all the same.
    pub(crate) fn crash(&mut self, random: &mut Random) {
        let kept = random.index(self.unsafe_records.len() + 1);
        let kept: Vec<Vec<u8>> = self.unsafe_records.drain(..kept).map(|(_, bytes)| bytes).collect();
        self.journal.extend(kept);
        self.unsafe_records.clear();
        self.waiting.clear();
        self.safe = RecordNumber(0);
        self.region = None;
        self.undrained = 0;
        self.reported = None;
        (self.learned, self.learning) = (false, false);
        (self.learns_from, self.learn_id) = (None, None);
    }

    /// A new life, on the store as it is, or on an empty one.
    pub(crate) fn start(&mut self, config: Config, lost: bool, next_store: u8) -> Result<(), String> {
        self.life += 1;
        if lost {
            self.journal.clear();
            self.store = next_store;
            self.trimmed = false;
        }
        self.watched = Watched::new(config.shards);
        let records = self.journal.iter().map(Vec::as_slice);
        self.region = Some(Region::recover(config, records).map_err(|error| error.to_string())?);
        Ok(())
    }

    /// A checkpoint begins.
    pub(crate) fn mark(&mut self) {
        self.checkpoint_at = self.journal.len() + self.unsafe_records.len();
    }

    /// Drops so many of the records before the last checkpoint began.
    pub(crate) fn trim(&mut self, random: &mut Random) {
        let most = self.checkpoint_at.min(self.journal.len());
        self.journal.drain(..if random.coin() { most } else { random.index(most + 1) });
        self.checkpoint_at = 0;
        self.trimmed = true;
    }

    /// Records on the store.
    pub(crate) fn has_records(&self) -> bool {
        !self.journal.is_empty()
    }
}
