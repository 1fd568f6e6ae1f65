//! Payloads and versions that come apart from each other, and payloads that have no version at all.

use crate::duplicates::{Known, Seen};
use crate::effect::Effect;
use crate::log::Entry;
use crate::message::{Acknowledge, Acknowledged, Body, Limit, Party, Refusal};
use crate::operation::Operation;
use crate::record::Record;
use crate::region::Region;
use crate::shard::{EarlyVersion, HeldPayload};
use crate::state::{Applied, Forgotten};
use mainstay_types::id::ClientId;
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::time::Time;
use mainstay_types::view::MemberId;

impl Region {
    /// A client sent an operation with the version that it was given.
    pub(crate) fn received_payload(
        &mut self,
        client: ClientId,
        shard: u16,
        (id, counter, operation): (OperationId, u64, Operation),
        out: &mut Vec<Effect>,
    ) {
        let tell = Acknowledge::Client(client);
        let entry = Entry::Operation { id, possible_duplicate: false, operation };
        if self.shard(shard).log.get(counter).is_some_and(|accepted| accepted.entry.id() == Some(id)) {
            return self.tell(shard, counter, tell);
        }
        if self.stamps(shard) {
            // One that comes while there is no room is as good as lost on the way: others are asked for it at its deadline.
            if !self.has_room_at(shard, counter, &entry) {
                return;
            }
            if let Some(others_refuse_it) = self.use_grant(shard, counter, id) {
                if others_refuse_it {
                    for member in self.others().collect::<Vec<_>>() {
                        self.send_entry(shard, member, counter, entry.clone(), tell, out);
                    }
                }
                self.take_entry(shard, counter, entry, tell, out);
            }
            return;
        }
        // Counted with what is held back, also when it comes next: the stamper may lack it.
        if !self.shard(shard).fenced.contains(&counter) && self.has_room(shard, entry.counted_bytes()) {
            self.take_entry(shard, counter, entry, tell, out);
        }
    }

    /// A client sent an operation whose version comes from the stamper.
    pub(crate) fn hold_payload(
        &mut self,
        now: Time,
        client: ClientId,
        shard: u16,
        id: OperationId,
        operation: Operation,
        out: &mut Vec<Effect>,
    ) {
        let limits = self.config.limits;
        let copy = self.shard(shard);
        if let Some(counter) = copy.log.find(id) {
            return self.acknowledge(shard, counter, client, false);
        }
        if let Known::Seen(seen) = copy.state.duplicates.known(id) {
            let again = Acknowledged { id, seen, duplicate: true, stable: true };
            return self.send(shard, Party::Client(client), Body::Acknowledged(vec![again]), out);
        }
        let early =
            copy.early.iter().find(|(_, early)| early.id == id).map(|(&counter, &early)| (counter, early));
        if let Some((counter, early)) = early {
            self.shard_mut(shard).early.remove(&counter);
            let entry = Entry::Operation { id, possible_duplicate: early.possible_duplicate, operation };
            self.take_entry(shard, counter, entry, Acknowledge::Client(client), out);
            return;
        }
        let full = copy.held.len() >= limits.held_payloads_max
            || copy.held_bytes() >= limits.held_payload_bytes_max
            || copy.held_of(client) >= limits.held_payloads_per_client_max;
        if full && !copy.held.contains_key(&id) {
            let refusal = Refusal::Busy(Limit::HeldPayloads);
            return self.send(shard, Party::Client(client), Body::Refused { id, refusal }, out);
        }
        // The first one stays: an operation has one content.
        self.shard_mut(shard).held.entry(id).or_insert(HeldPayload { operation, since: now });
    }

    pub(crate) fn received_stamp(
        &mut self,
        shard: u16,
        counter: u64,
        early: EarlyVersion,
        out: &mut Vec<Effect>,
    ) {
        let early_max = self.config.limits.early_versions_max;
        let copy = self.shard_mut(shard);
        if counter <= copy.log.end() || copy.hold_back.contains_key(&counter) {
            return;
        }
        match copy.held.remove(&early.id) {
            Some(held) => {
                let EarlyVersion { id, possible_duplicate } = early;
                let entry = Entry::Operation { id, possible_duplicate, operation: held.operation };
                self.take_entry(shard, counter, entry, Acknowledge::Client(id.client), out);
            }
            // Beyond the limit it is forgotten: the stamper sends the entry whole to whoever lags.
            None if copy.early.len() >= early_max => {}
            None => {
                copy.early.insert(counter, early);
            }
        }
    }

    pub(crate) fn inquired(&mut self, stamper: MemberId, shard: u16, counter: u64, out: &mut Vec<Effect>) {
        let copy = self.shard_mut(shard);
        let held = copy.hold_back.get(&counter).map(|(entry, _)| entry.clone());
        let found = held.or_else(|| copy.log.get(counter).map(|accepted| accepted.entry.clone()));
        let body = match found {
            Some(entry) => Body::Has { counter, entry },
            None if counter <= copy.log.end() => return,
            None => {
                copy.fenced.insert(counter);
                Body::Lacks { counter }
            }
        };
        self.send(shard, Party::Member(stamper), body, out);
    }

    /// An operation without version is done as it comes: copies may differ afterwards. It is there to measure what a version costs.
    pub(crate) fn unversioned(
        &mut self,
        client: ClientId,
        shard: u16,
        id: OperationId,
        operation: Operation,
        out: &mut Vec<Effect>,
    ) {
        let seen = match self.shard(shard).state.duplicates.known(id) {
            Known::Seen(seen) => seen,
            Known::Obsolete | Known::Evicted => {
                let refusal = Refusal::Obsolete;
                return self.send(shard, Party::Client(client), Body::Refused { id, refusal }, out);
            }
            Known::Not => {
                let entry = Entry::Operation { id, possible_duplicate: false, operation };
                let (seen, changed) = self.do_unversioned(shard, &entry);
                self.append(&Record::Unversioned { shard, entry }, out);
                if let Some((applied, forgotten)) = changed {
                    self.checkpoint_change(shard, &applied, &forgotten, out);
                }
                seen
            }
        };
        let version = Version { view: self.copies.view, counter: 0 };
        self.undrained.acknowledge(client, Body::acknowledged(id, version, seen.outcome));
    }

    /// Does an operation that has no version: it gets one of this copy's own. Also what a checkpoint has to know of it, if one is taken.
    fn do_unversioned(&mut self, shard: u16, entry: &Entry) -> (Seen, Option<(Applied, Forgotten)>) {
        let (limits, told) = (self.config.limits, self.checkpointing.is_some());
        let state = &mut self.shard_mut(shard).state;
        let Entry::Operation { id, operation, .. } = entry else { unreachable!("only operations are done") };
        let (outcome, changes) = operation.evaluate(|key| state.held(key), &limits);
        let seen = Seen { version: state.at.next(), outcome };
        let operation = Some((*id, seen.outcome.clone()));
        let applied = Applied { version: seen.version, operation, possible_duplicate: false, changes };
        let copy = told.then(|| applied.clone());
        let forgotten = state.apply(applied, &limits);
        (seen, copy.map(|applied| (applied, forgotten)))
    }

    pub(crate) fn redo_unversioned(&mut self, shard: u16, entry: Entry) -> Option<()> {
        let known = shard < self.config.shards && entry.id().is_some();
        known.then(|| {
            self.do_unversioned(shard, &entry);
        })
    }
}
