//! Taking entries into the log: from the stamper, from the predecessor in the chain, from clients; and whom to tell.

use crate::effect::Effect;
use crate::log::Entry;
use crate::message::{Acknowledge, Acknowledged, Body, Numbered, Reached};
use crate::record::Accepted;
use crate::region::Region;
use crate::shard::Offered;
use mainstay_types::id::ClientId;
use mainstay_types::operation::Version;
use mainstay_types::rules::Rule;
use mainstay_types::view::MemberId;

impl Region {
    /// Takes an entry, keeps what is accepted by it, and tells whom it concerns.
    pub(crate) fn take_entry(
        &mut self,
        shard: u16,
        counter: u64,
        entry: Entry,
        tell: Acknowledge,
        out: &mut Vec<Effect>,
    ) -> Offered {
        let mut limits = self.config.limits;
        if self.stamps(shard) {
            // What the stamper itself holds back is limited when it stamps and grants.
            (limits.hold_back_entries_max, limits.hold_back_bytes_max) = (usize::MAX, usize::MAX);
        } else if counter > self.shard(shard).log.end()
            && (counter > self.shard(shard).everywhere + limits.log_entries_max
                || !self.has_room_as_copy(shard, counter, &entry))
        {
            // This copy has not heard yet what all have: the marks come with the next tick, and then the entry again.
            return Offered::Dropped;
        }
        let mut accepted = std::mem::take(&mut self.accepted);
        let offered = self.shard_mut(shard).offer(counter, entry, tell, &limits, &mut accepted);
        for (counter, tell) in accepted.drain(..) {
            let entry = self.shard(shard).log.get(counter).expect("it was accepted").entry.clone();
            if let Some(id) = entry.id() {
                self.caught_up(shard, id);
            }
            self.accept(Accepted { shard, counter, entry }, out);
            self.tell(shard, counter, tell);
        }
        self.accepted = accepted;
        offered
    }

    pub(crate) fn tell(&mut self, shard: u16, counter: u64, tell: Acknowledge) {
        let me = self.me.expect("a member accepts");
        match tell {
            Acknowledge::Nobody => {}
            Acknowledge::Stamper if self.stamps(shard) => {}
            Acknowledge::Stamper => self.owe_position(shard, counter, false),
            Acknowledge::Client(client) => self.acknowledge(shard, counter, client, false),
            Acknowledge::Chain(client) => match self.copies.next_in_chain(shard, me) {
                None => self.acknowledge(shard, counter, client, true),
                Some(_) => {
                    let Some(accepted) = self.shard(shard).log.get(counter) else { return };
                    let entry = Numbered { shard, counter, entry: accepted.entry.clone(), acknowledge: tell };
                    self.undrained.chain(entry);
                }
            },
        }
    }

    pub(crate) fn acknowledge(&mut self, shard: u16, counter: u64, client: ClientId, stable: bool) {
        let Some(accepted) = self.shard(shard).log.get(counter) else { return };
        let Some(id) = accepted.entry.id() else { return };
        let version = Version { view: self.copies.view, counter };
        let done = Acknowledged { stable, ..Body::acknowledged(id, version, accepted.outcome.clone()) };
        self.undrained.acknowledge(client, done);
    }

    pub(crate) fn received_entries(
        &mut self,
        member: MemberId,
        entries: Vec<Numbered>,
        reached: &[Reached],
        out: &mut Vec<Effect>,
    ) {
        let fenced = self.config.rules.keep(Rule::OlderViewRefused);
        let stamper = |region: &Self, shard| region.copies.stamper(shard) == Some(member) || !fenced;
        let before = |region: &Self, shard| {
            region.me.is_some() && region.copies.next_in_chain(shard, member) == region.me
        };
        let learn = |region: &mut Self, out: &mut Vec<Effect>| {
            for &Reached { shard, stable, everywhere } in reached {
                if shard < region.config.shards && (stamper(region, shard) || before(region, shard)) {
                    region.learn_marks(shard, stable, everywhere, out);
                }
            }
        };
        // What is dropped makes room, and what is taken may be stable already.
        learn(self, out);
        for entry in entries {
            let chained = matches!(entry.acknowledge, Acknowledge::Chain(_)) && before(self, entry.shard);
            if entry.shard < self.config.shards && (chained || stamper(self, entry.shard)) {
                self.received_entry(entry, out);
            }
        }
        learn(self, out);
    }

    fn received_entry(&mut self, entry: Numbered, out: &mut Vec<Effect>) {
        let Numbered { shard, counter, entry, acknowledge } = entry;
        if self.take_entry(shard, counter, entry, acknowledge, out) == Offered::Known {
            match acknowledge {
                // It asks again: it does not know.
                Acknowledge::Stamper if !self.stamps(shard) => {
                    let counter = self.shard(shard).log.end();
                    self.owe_position(shard, counter, true);
                }
                _ => self.tell(shard, counter, acknowledge),
            }
        }
    }
}
