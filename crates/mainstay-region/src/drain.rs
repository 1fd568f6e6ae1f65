//! What is done once for all that came together, and not for each message: one record of what was accepted, one message to each member of what was
//! stamped, how far this copy is, what is stable, and the answers that waited for it.
//!
//! ```text
//!   Received, Received, … Appended ──> Drained ──> one record, and what was stamped to the other members
//!                                              ──> Positions to each stamper whose entries are safe now
//!                                              ──> of shards stamped here: stable, answers to clients
//! ```
//!
//! The more comes at once, the fewer messages and records an operation takes. Nothing waits for more to come: the driver drains when there is nothing
//! else. What was accepted is recorded, and sent on, before anything else happens to the copy but messages and safe records.

use crate::effect::Effect;
use crate::log::ENTRY_BYTES;
use crate::message::{Acknowledged, Body, Numbered, Party, Reached};
use crate::record::{Accepted, Record};
use crate::region::{Phase, Region};
use crate::shard::Shard;
use crate::stamping::Answers;
use mainstay_types::id::ClientId;
use mainstay_types::operation::OperationId;
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::MemberId;
use std::collections::BTreeMap;

/// What is to be done when all that came together was told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Undrained {
    /// Accepted, and in no record yet.
    accepted: Vec<Accepted>,
    /// What these take in a record, in bytes.
    accepted_bytes: usize,
    /// Stamped here, and to be sent to all others.
    spread: Vec<Numbered>,
    /// To be sent to the next in the chain, when it is safe here: each once, however often it is asked for, so that it is no more than the logs.
    chained: BTreeMap<(u16, u64), Numbered>,
    /// To be told to clients, when it is safe here; each once, too.
    acknowledged: BTreeMap<ClientId, BTreeMap<OperationId, Acknowledged>>,
    /// Shards whose stampers wait to be told how far this copy is; each once.
    owing: Vec<u16>,
    /// Shards that are stamped here and whose members have got on; each once.
    moved: Vec<u16>,
}

impl Undrained {
    pub(crate) fn has_unrecorded(&self) -> bool {
        !self.accepted.is_empty()
    }

    /// Nothing waits to be recorded or sent on.
    pub(crate) fn is_handed_on(&self) -> bool {
        self.accepted.is_empty()
            && self.spread.is_empty()
            && self.chained.is_empty()
            && self.acknowledged.is_empty()
    }

    pub(crate) fn spread(&mut self, entry: Numbered) {
        self.spread.push(entry);
    }

    pub(crate) fn chain(&mut self, entry: Numbered) {
        self.chained.insert((entry.shard, entry.counter), entry);
    }

    pub(crate) fn acknowledge(&mut self, client: ClientId, done: Acknowledged) {
        let of_client = self.acknowledged.entry(client).or_default();
        let stable = of_client.get(&done.id).is_some_and(|said| said.stable);
        of_client.insert(done.id, Acknowledged { stable: done.stable || stable, ..done });
    }
}

/// Divides what leaves together into messages of so many bytes and one more piece at most, in order.
fn divide<T>(all: Vec<T>, bytes_max: usize, bytes_of: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut messages: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for piece in all {
        let piece_bytes = bytes_of(&piece);
        match messages.last_mut() {
            Some(message) if bytes < bytes_max => message.push(piece),
            _ => {
                bytes = 0;
                messages.push(vec![piece]);
            }
        }
        bytes += piece_bytes;
    }
    messages
}

/// Acknowledgements that leave in one message each.
pub(crate) fn together(all: Vec<Acknowledged>, bytes_max: usize) -> Vec<Vec<Acknowledged>> {
    divide(all, bytes_max, |done| ENTRY_BYTES + done.seen.outcome.bytes())
}

/// Entries that leave in one message each.
pub(crate) fn parcels(all: Vec<Numbered>, bytes_max: usize) -> Vec<Vec<Numbered>> {
    divide(all, bytes_max, |entry| entry.entry.written_bytes())
}

fn note(shards: &mut Vec<u16>, shard: u16) {
    if !shards.contains(&shard) {
        shards.push(shard);
    }
}

impl Region {
    /// The stamper is to be told when everything up to `counter` is safe; once more, if it was told before.
    pub(crate) fn owe_position(&mut self, shard: u16, counter: u64, again: bool) {
        let copy = self.shard_mut(shard);
        copy.position_owed = copy.position_owed.max(counter);
        if again {
            copy.position_told = 0;
        }
        note(&mut self.undrained.owing, shard);
    }

    /// Members have got on.
    pub(crate) fn moved(&mut self, shard: u16) {
        note(&mut self.undrained.moved, shard);
    }

    /// Keeps what was accepted with others in one record.
    pub(crate) fn accept(&mut self, accepted: Accepted, out: &mut Vec<Effect>) {
        self.undrained.accepted_bytes += accepted.entry.written_bytes();
        self.undrained.accepted.push(accepted);
        if self.undrained.accepted_bytes >= self.config.limits.together_bytes_max {
            self.record_accepted(out);
        }
    }

    /// What was accepted and is in no record yet, in its order.
    pub fn unrecorded(&self) -> impl Iterator<Item = &Accepted> {
        self.undrained.accepted.iter()
    }

    /// Records what was accepted until now.
    pub(crate) fn record_accepted(&mut self, out: &mut Vec<Effect>) {
        if !self.undrained.has_unrecorded() {
            return;
        }
        self.undrained.accepted_bytes = 0;
        let record = Record::Accepted { entries: std::mem::take(&mut self.undrained.accepted) };
        self.append_now(&record, out);
        let Record::Accepted { mut entries } = record else { unreachable!("it was made so") };
        for accepted in entries.drain(..) {
            self.wait_for_durable(accepted.shard, accepted.counter);
        }
        self.undrained.accepted = entries;
    }

    /// Entries with how far their shards are.
    pub(crate) fn with_reached(&self, entries: Vec<Numbered>) -> Body {
        let mut shards = Vec::new();
        entries.iter().for_each(|entry| note(&mut shards, entry.shard));
        let reached = |shard| {
            let Shard { stable, everywhere, .. } = *self.shard(shard);
            Reached { shard, stable, everywhere }
        };
        Body::Entries { entries, reached: shards.into_iter().map(reached).collect() }
    }

    /// Records what was accepted, and sends on what is to be sent on.
    pub(crate) fn hand_on(&mut self, out: &mut Vec<Effect>) {
        self.record_accepted(out);
        let bytes_max = self.config.limits.together_bytes_max;
        let spread = std::mem::take(&mut self.undrained.spread);
        for entries in parcels(spread, bytes_max) {
            let body = self.with_reached(entries);
            for member in self.others() {
                self.send(0, Party::Member(member), body.clone(), out);
            }
        }
        let mut onward: BTreeMap<MemberId, Vec<Numbered>> = BTreeMap::new();
        for entry in std::mem::take(&mut self.undrained.chained).into_values() {
            let next = self.me.and_then(|me| self.copies.next_in_chain(entry.shard, me));
            if let Some(next) = next {
                onward.entry(next).or_default().push(entry);
            }
        }
        for (next, entries) in onward {
            for entries in parcels(entries, bytes_max) {
                self.send_safe(0, Party::Member(next), self.with_reached(entries), out);
            }
        }
        for (client, done) in std::mem::take(&mut self.undrained.acknowledged) {
            for done in together(done.into_values().collect(), bytes_max) {
                self.send_safe(0, Party::Client(client), Body::Acknowledged(done), out);
            }
        }
    }

    /// All that came together was told.
    pub(crate) fn drained(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.hand_on(out);
        let owing = std::mem::take(&mut self.undrained.owing);
        let moved = std::mem::take(&mut self.undrained.moved);
        if self.phase != Phase::Serving {
            return;
        }
        let positions = owing.into_iter().filter_map(|shard| self.position_to_tell(shard)).collect();
        self.send_positions(now, positions, out);
        let mut answers = Answers::new();
        for shard in moved {
            if self.stamps(shard) {
                self.learn_stable(now, shard, &mut answers, out);
            }
        }
        self.send_answers(answers, out);
    }

    /// What is safe and the stamper was not told.
    fn position_to_tell(&mut self, shard: u16) -> Option<(u16, u64)> {
        let safe_alone = self.config.rules.keep(Rule::AcceptedSafe);
        let copy = self.shard_mut(shard);
        let counter = if safe_alone { copy.durable } else { copy.log.end() };
        let new = counter > copy.position_told;
        copy.position_told = copy.position_told.max(counter);
        if copy.position_told < copy.position_owed {
            note(&mut self.undrained.owing, shard);
        }
        new.then_some((shard, counter))
    }

    /// Tells each stamper how far this copy has its shards.
    pub(crate) fn send_positions(&self, now: Time, positions: Vec<(u16, u64)>, out: &mut Vec<Effect>) {
        let mut of_stampers: BTreeMap<MemberId, Vec<(u16, u64)>> = BTreeMap::new();
        for (shard, counter) in positions {
            let stamper = self.copies.stamper(shard).expect("a view that serves has copies");
            of_stampers.entry(stamper).or_default().push((shard, counter));
        }
        for (stamper, positions) in of_stampers {
            self.send(0, Party::Member(stamper), Body::Positions { positions, sent_ns: now.0 }, out);
        }
    }
}
