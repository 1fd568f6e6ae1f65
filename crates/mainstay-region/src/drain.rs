//! What is said once for all that came together, and not for each message: how far this copy is, what is stable, and the answers that waited for it.
//!
//! ```text
//!   Received, Received, … Appended ──> Drained ──> Position to each stamper whose entries are safe now
//!                                              ──> of shards stamped here: stable, answers to clients
//! ```
//!
//! The more comes at once, the fewer messages an operation takes. Nothing waits for more to come: the driver drains when there is nothing else.

use crate::effect::Effect;
use crate::message::{Body, Party};
use crate::region::{Phase, Region};
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;

/// Shards that something is to be said about. A shard is here once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Undrained {
    /// Their stampers wait to be told how far this copy is.
    owing: Vec<u16>,
    /// Members have got on, at the shards that are stamped here.
    moved: Vec<u16>,
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

    /// All that came together was told.
    pub(crate) fn drained(&mut self, now: Time, out: &mut Vec<Effect>) {
        let owing = std::mem::take(&mut self.undrained.owing);
        let moved = std::mem::take(&mut self.undrained.moved);
        if self.phase != Phase::Serving {
            return;
        }
        for shard in owing {
            self.tell_position(now, shard, out);
        }
        for shard in moved {
            if self.stamps(shard) {
                self.learn_stable(now, shard, out);
            }
        }
    }

    fn tell_position(&mut self, now: Time, shard: u16, out: &mut Vec<Effect>) {
        let safe_alone = self.config.rules.keep(Rule::AcceptedSafe);
        let stamper = self.copies.stamper(shard).expect("a view that serves has copies");
        let copy = self.shard_mut(shard);
        let counter = if safe_alone { copy.durable } else { copy.log.end() };
        if counter > copy.position_told {
            copy.position_told = counter;
            let body = Body::Position { counter, sent_ns: now.0 };
            self.send(shard, Party::Member(stamper), body, out);
        }
        let copy = self.shard(shard);
        if copy.position_told < copy.position_owed {
            note(&mut self.undrained.owing, shard);
        }
    }
}
