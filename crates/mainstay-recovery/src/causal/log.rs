//! The determinant log: every determinant known here, of any node, in the order in which it came, each with the nodes
//! known to hold it.
//!
//! Positions number the entries; they go up, never back, and are not given twice within a life, so that they can name on
//! the wire how much of the log a peer has taken. This node's delivery depends at most on what stands before it.

use super::positions::Positions;
use super::wire::{Determinant, What};
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId};
use std::collections::{BTreeMap, VecDeque};

/// What an entry takes in memory beside the record of an input, in bytes, as counted against the limit.
const ENTRY_BYTES: u64 = 160;

/// How many settled entries that nobody needs are let stand before the log is compacted.
const LEFTOVERS_MAX: usize = 1024;

/// One determinant, as known here.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) position: u64,
    pub(super) owner: NodeId,
    pub(super) place: Place,
    pub(super) what: What,
    /// The sender's delivery that emitted it; only for messages delivered here.
    pub(super) origin: Point,
    /// Bit per node that is known to hold it.
    holders: u64,
    /// More than `f` nodes hold it, or a disk does.
    stable: bool,
    /// Nobody will ever ask for it.
    gone: bool,
}

impl Entry {
    pub(super) fn held_by(&self, node: NodeId) -> bool {
        self.holders & bit(node) != 0
    }

    pub(super) fn stable(&self) -> bool {
        self.stable
    }

    pub(super) fn gone(&self) -> bool {
        self.gone
    }
}

pub(super) fn bit(node: NodeId) -> u64 {
    1 << node.0
}

/// See the page.
#[derive(Debug)]
pub(super) struct Log {
    me: NodeId,
    f: u32,
    entries: VecDeque<Entry>,
    /// Position of every entry that is not gone.
    at: Positions,
    end: u64,
    /// How many entries at the front are stable or gone, all without a gap.
    settled: usize,
    gone_settled: usize,
    recoverable: DeliveryIndex,
    own_stable: DeliveryIndex,
    /// Where the own delivery stands that each of the two prefixes ends before, 0 until it is looked up: nearly every change asks again.
    own_awaited: [u64; 2],
    own_last: DeliveryIndex,
    bytes: BTreeMap<NodeId, u64>,
    foreign_bytes: u64,
}

impl Log {
    pub(super) fn new(me: NodeId, f: u8) -> Self {
        Self {
            me,
            f: u32::from(f),
            entries: VecDeque::new(),
            at: Positions::default(),
            end: 0,
            settled: 0,
            gone_settled: 0,
            recoverable: DeliveryIndex(0),
            own_stable: DeliveryIndex(0),
            own_awaited: [0; 2],
            own_last: DeliveryIndex(0),
            bytes: BTreeMap::new(),
            foreign_bytes: 0,
        }
    }

    /// This node goes on behind delivery `last` of a checkpoint, which with everything it depends on is durable.
    pub(super) fn start_behind(&mut self, last: DeliveryIndex) {
        assert!(self.own_last == DeliveryIndex(0), "a checkpoint is restored before anything is delivered");
        (self.own_last, self.own_stable, self.recoverable) = (last, last, last);
    }

    /// Position of the last entry.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The last own delivery.
    pub(super) fn own_last(&self) -> DeliveryIndex {
        self.own_last
    }

    /// Own deliveries up to this are stable, taken by themselves.
    pub(super) fn own_stable(&self) -> DeliveryIndex {
        self.own_stable
    }

    /// Own deliveries up to this are stable with everything they depend on, all of which stands before them.
    pub(super) fn recoverable(&self) -> DeliveryIndex {
        self.recoverable
    }

    /// What the determinants of other nodes take, in bytes.
    pub(super) fn foreign_bytes(&self) -> u64 {
        self.foreign_bytes
    }

    /// The other node whose determinants take most, and how many bytes.
    pub(super) fn heaviest(&self) -> Option<(NodeId, u64)> {
        let foreign = self.bytes.iter().filter(|&(&owner, _)| owner != self.me);
        foreign.map(|(&owner, &bytes)| (owner, bytes)).max_by_key(|&(_, bytes)| bytes)
    }

    /// How many determinants are known.
    pub(super) fn known(&self) -> usize {
        self.at.known()
    }

    pub(super) fn knows(&self, owner: NodeId, delivery: DeliveryIndex) -> bool {
        self.at.get(owner, delivery).is_some()
    }

    /// The place of `delivery` of `owner`, as known here.
    pub(super) fn place(&self, owner: NodeId, delivery: DeliveryIndex) -> Option<Place> {
        self.position(owner, delivery).map(|position| self.entries[self.index_behind(position) - 1].place)
    }

    /// Position of a determinant that is known and not covered.
    pub(super) fn position(&self, owner: NodeId, delivery: DeliveryIndex) -> Option<u64> {
        self.at.get(owner, delivery)
    }

    /// The entries behind `position`, in order.
    pub(super) fn behind(&self, position: u64) -> impl Iterator<Item = &Entry> {
        self.entries.range(self.index_behind(position)..)
    }

    fn index_behind(&self, position: u64) -> usize {
        let index = self.index_from(position);
        index + usize::from(self.entries.get(index).is_some_and(|entry| entry.position == position))
    }

    /// Where the first entry stands whose position is not below `position`.
    fn index_from(&self, position: u64) -> usize {
        // Only settled entries are ever taken out: from behind them on positions follow each other without a gap.
        let from_end = (self.end + 1).saturating_sub(position);
        let index = (self.entries.len() as u64).checked_sub(from_end).map(|index| index as usize);
        match index {
            Some(index) if self.entries.get(index).is_none_or(|entry| entry.position == position) => index,
            _ => self.entries.partition_point(|entry| entry.position < position),
        }
    }

    fn entry_mut(&mut self, position: u64) -> &mut Entry {
        let index = self.index_from(position);
        let entry = &mut self.entries[index];
        assert!(entry.position == position, "positions handed out name entries");
        entry
    }

    /// An own delivery is executed: returns its position. One that a peer had given back has its position already.
    pub(super) fn push_own(&mut self, place: Place, what: What, origin: Point) -> u64 {
        assert!(place.delivery == self.own_last.next(), "deliveries come in order, without a gap");
        self.own_last = place.delivery;
        if let Some(position) = self.position(self.me, place.delivery) {
            let known = self.entry_mut(position);
            if known.place == place {
                known.origin = origin;
                self.settle();
                return position;
            }
            // What was told of this place belongs to a life that lost it.
            self.drop_own(place.delivery);
        }
        self.push(Determinant { owner: self.me, place, what }, origin, 0);
        self.settle();
        self.end
    }

    /// Another life than the one that a peer told first gave the place.
    pub(super) fn drop_own(&mut self, delivery: DeliveryIndex) {
        self.drop_range(self.me, delivery, delivery, |_| true);
    }

    /// Own deliveries that were given back, and not replayed: they stand behind a hole, and their places are given again.
    pub(super) fn drop_not_replayed(&mut self) {
        self.drop_range(self.me, self.own_last.next(), DeliveryIndex(u64::MAX), |_| true);
    }

    /// A determinant that `from` told, or one more copy of a known one.
    pub(super) fn merge(&mut self, from: NodeId, determinant: Determinant) {
        let holders = bit(from) | bit(determinant.owner) | bit(self.me);
        match self.position(determinant.owner, determinant.place.delivery) {
            Some(position) => {
                let f = self.f;
                hold(self.entry_mut(position), holders, f);
            }
            None => self.push(determinant, Point::default(), holders),
        }
    }

    fn push(&mut self, determinant: Determinant, origin: Point, holders: u64) {
        let Determinant { owner, place, what } = determinant;
        self.end += 1;
        let bytes = footprint(&what);
        *self.bytes.entry(owner).or_default() += bytes;
        if owner != self.me {
            self.foreign_bytes += bytes;
        }
        self.at.insert(owner, place.delivery, self.end);
        let mut entry =
            Entry { position: self.end, owner, place, what, origin, holders: 0, stable: false, gone: false };
        hold(&mut entry, holders | bit(self.me) | bit(owner), self.f);
        self.entries.push_back(entry);
    }

    /// `peer` holds everything in the positions above `after` up to `upto`.
    pub(super) fn held(&mut self, peer: NodeId, after: u64, upto: u64) {
        let first = self.index_behind(after);
        for entry in self.entries.range_mut(first..) {
            if entry.position > upto {
                break;
            }
            hold(entry, bit(peer), self.f);
        }
    }

    /// `peer` lost its memory: what is not stable yet cannot count on its copy.
    pub(super) fn forgotten_by(&mut self, peer: NodeId) {
        for entry in &mut self.entries {
            if !entry.stable && entry.owner != peer {
                entry.holders &= !bit(peer);
            }
        }
    }

    /// A disk, or enough nodes, hold the entry at `position`, if it still is there.
    pub(super) fn make_stable(&mut self, position: u64) {
        let index = self.index_from(position);
        if let Some(entry) = self.entries.get_mut(index).filter(|entry| entry.position == position) {
            entry.stable = true;
        }
    }

    /// `owner` knows its deliveries above `after` up to `upto` to be stable.
    pub(super) fn make_stable_of(&mut self, owner: NodeId, after: DeliveryIndex, upto: DeliveryIndex) {
        if upto <= after {
            return;
        }
        if after.next() == upto {
            if let Some(position) = self.position(owner, upto) {
                self.make_stable(position);
            }
            return;
        }
        let told: Vec<u64> = self.at.range(owner, after.next()..=upto).map(|(_, at)| at).collect();
        for position in told {
            self.make_stable(position);
        }
    }

    /// A durable checkpoint of this node holds everything up to `position`.
    pub(super) fn make_stable_upto(&mut self, position: u64) {
        for entry in self.entries.range_mut(self.settled..) {
            if entry.position > position {
                break;
            }
            entry.stable = true;
        }
    }

    /// Nobody will ever ask for these of `owner`: those up to `index` are in its checkpoint.
    pub(super) fn drop_covered(&mut self, owner: NodeId, index: DeliveryIndex) {
        self.drop_range(owner, DeliveryIndex(0), index, |_| true);
    }

    /// Nobody will ever ask for those of `owner` above `last` that belong to a life before `incarnation`: they are lost.
    pub(super) fn drop_lost(&mut self, owner: NodeId, last: DeliveryIndex, incarnation: Incarnation) {
        self.drop_range(owner, last.next(), DeliveryIndex(u64::MAX), |entry| entry.place.life < incarnation);
    }

    fn drop_range(
        &mut self,
        owner: NodeId,
        first: DeliveryIndex,
        last: DeliveryIndex,
        which: impl Fn(&Entry) -> bool,
    ) {
        if owner == self.me {
            self.own_awaited = [0; 2];
        }
        let found: Vec<(DeliveryIndex, u64)> = self.at.range(owner, first..=last).collect();
        for (delivery, position) in found {
            let settled = self.index_behind(position) <= self.settled;
            let entry = self.entry_mut(position);
            if !which(entry) {
                continue;
            }
            entry.gone = true;
            let bytes = footprint(&entry.what);
            if let What::Input { record, .. } = &mut entry.what {
                *record = None;
            }
            self.at.remove(owner, delivery);
            self.gone_settled += usize::from(settled);
            *self.bytes.get_mut(&owner).expect("an entry's bytes were counted when it came") -= bytes;
            if owner != self.me {
                self.foreign_bytes -= bytes;
            }
        }
    }

    /// Moves the two prefixes on as far as they reach. Called after every change.
    pub(super) fn settle(&mut self) {
        while let Some(entry) = self.entries.get(self.settled) {
            if !entry.stable && !entry.gone {
                break;
            }
            self.gone_settled += usize::from(entry.gone);
            self.settled += 1;
        }
        while self.own_stable < self.own_last {
            let next = self.own_stable.next();
            if let Some(position) = self.own_awaited(STABLE, next)
                && !self.entry_mut(position).stable
            {
                break;
            }
            (self.own_stable, self.own_awaited[STABLE]) = (next, 0);
        }
        while self.recoverable < self.own_last {
            let next = self.recoverable.next();
            // What is gone is in a checkpoint, with everything it depends on.
            let awaited = self.own_awaited(RECOVERABLE, next);
            if awaited.is_some_and(|position| self.index_behind(position) > self.settled) {
                break;
            }
            (self.recoverable, self.own_awaited[RECOVERABLE]) = (next, 0);
        }
        if self.gone_settled > LEFTOVERS_MAX && self.gone_settled * 2 > self.entries.len() {
            // Only what is settled is counted.
            let settled = self.settled;
            let mut index = 0;
            self.entries.retain(|entry| {
                index += 1;
                index > settled || !entry.gone
            });
            self.settled -= self.gone_settled;
            self.gone_settled = 0;
        }
    }

    /// Position of the own delivery `next`, which the prefix `which` ends before.
    fn own_awaited(&mut self, which: usize, next: DeliveryIndex) -> Option<u64> {
        if self.own_awaited[which] == 0 {
            self.own_awaited[which] = self.position(self.me, next)?;
        }
        Some(self.own_awaited[which])
    }

    /// The last own delivery before any that stands at `position` or behind it.
    pub(super) fn own_before(&self, position: u64) -> DeliveryIndex {
        let own = self.behind(position - 1).filter(|entry| entry.owner == self.me);
        own.map(|entry| DeliveryIndex(entry.place.delivery.0 - 1))
            .min()
            .unwrap_or(self.own_last)
            .min(self.own_last)
    }

    /// The last position that own deliveries up to `index` stand at.
    pub(super) fn last_position_upto(&self, index: DeliveryIndex) -> Option<u64> {
        self.at.range(self.me, DeliveryIndex(0)..=index).map(|(_, position)| position).max()
    }
}

/// The prefixes of [`Log::own_awaited`].
const STABLE: usize = 0;
const RECOVERABLE: usize = 1;

fn footprint(what: &What) -> u64 {
    match what {
        What::Input { record: Some(record), .. } => ENTRY_BYTES + record.len() as u64,
        What::Input { record: None, .. } | What::Message { .. } => ENTRY_BYTES,
    }
}

/// Copies in other nodes count only where they include the content: an input too long to be carried is stable by its
/// owner's journal alone.
fn hold(entry: &mut Entry, holders: u64, f: u32) {
    entry.holders |= holders;
    if entry.what.carried() && entry.holders.count_ones() > f {
        entry.stable = true;
    }
}
