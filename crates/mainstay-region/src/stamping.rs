//! What the stamper of a shard does besides being a copy: gives versions, learns what is stable, answers for it, sends again what was lost, and
//! settles what was granted and never used.

use crate::drain::{parcels, together};
use crate::duplicates::{Known, Seen};
use crate::effect::Effect;
use crate::limits::Acknowledgement;
use crate::log::Entry;
use crate::message::{Acknowledge, Acknowledged, Body, Limit, Numbered, Party, Refusal};
use crate::operation::Outcome;
use crate::patterns::Pattern;
use crate::reads::WaitingRead;
use crate::region::Region;
use crate::shard::Offered;
use mainstay_types::id::ClientId;
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::MemberId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How an answer reaches a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Route {
    Direct(ClientId),
    Through(MemberId, ClientId),
}

/// What is to be told to whom, with one of the shards that it is about, all of which are stamped here.
pub(crate) type Answers = BTreeMap<Route, (u16, Vec<Acknowledged>)>;

impl Route {
    pub(crate) fn client(self) -> ClientId {
        match self {
            Self::Direct(client) | Self::Through(_, client) => client,
        }
    }

    pub(crate) fn carry(self, body: Body) -> (Party, Body) {
        match self {
            Self::Direct(client) => (Party::Client(client), body),
            Self::Through(member, _) => (Party::Member(member), Body::Relay(Box::new(body))),
        }
    }
}

/// How far a member is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) counter: u64,
    since: Time,
    /// When the member sent the last of its messages that came, by its clock, in nanoseconds.
    sent_ns: u64,
}

/// A version that was granted and not used yet.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    id: OperationId,
    deadline: Time,
    /// Members that have no payload for it and will take none from the client; `None`: nobody was asked yet.
    lacking: Option<BTreeSet<MemberId>>,
}

/// Somebody waits until a version is stable.
#[derive(Clone, Copy, Debug)]
struct WaitingWrite {
    counter: u64,
    route: Route,
    duplicate: bool,
}

/// What the stamper of one shard keeps, in one view.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stamping {
    /// The last version given.
    pub(crate) stamped: u64,
    pub(crate) positions: BTreeMap<MemberId, Progress>,
    pub(crate) grants: BTreeMap<u64, Grant>,
    /// The last version given to the end of values.
    pub(crate) expiring: u64,
    /// Stamped and not accepted yet, by operation: they wait for an earlier grant.
    ahead: BTreeMap<OperationId, u64>,
    /// Who waits for an answer, by version.
    waiting: VecDeque<WaitingWrite>,
    pub(crate) reads: Vec<WaitingRead>,
}

impl Stamping {
    fn progress(&mut self, member: MemberId, now: Time) -> &mut Progress {
        self.positions.entry(member).or_insert(Progress { counter: 0, since: now, sent_ns: 0 })
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.reads.len()
    }

    /// Behind all that wait for the same version or earlier ones: nearly always at the end.
    fn wait(&mut self, counter: u64, route: Route, duplicate: bool) {
        let place = match self.waiting.back() {
            Some(last) if last.counter > counter => {
                self.waiting.partition_point(|other| other.counter <= counter)
            }
            _ => self.waiting.len(),
        };
        self.waiting.insert(place, WaitingWrite { counter, route, duplicate });
    }
}

/// Whether an operation may be given a version.
enum Admitted {
    Fresh,
    /// It has one.
    At(u64),
    Granted(u64),
    Seen(Seen),
    No(Refusal),
}

impl Region {
    fn admit(&self, shard: u16, id: OperationId) -> Admitted {
        let (copy, stamping) = (self.shard(shard), self.stamping(shard));
        if !self.config.rules.keep(Rule::RetryFromTable) {
            return Admitted::Fresh;
        }
        // What is stable is in the table, also while the log still has it.
        match copy.state.duplicates.known(id) {
            Known::Seen(seen) => return Admitted::Seen(seen),
            Known::Obsolete => return Admitted::No(Refusal::Obsolete),
            known => {
                if let Some(counter) = copy.log.find(id).or_else(|| stamping.ahead.get(&id).copied()) {
                    return Admitted::At(counter);
                }
                if let Some((&counter, _)) = stamping.grants.iter().find(|(_, grant)| grant.id == id) {
                    return Admitted::Granted(counter);
                }
                if known == Known::Evicted {
                    return Admitted::No(Refusal::Evicted);
                }
            }
        }
        if stamping.stamped - copy.everywhere >= self.config.limits.log_entries_max {
            return Admitted::No(Refusal::Busy(Limit::LogEntries));
        }
        Admitted::Fresh
    }

    /// Gives an operation its version and sends it on as its pattern says; or does for a repetition what its first attempt lacks.
    pub(crate) fn stamp(
        &mut self,
        now: Time,
        shard: u16,
        route: Route,
        (id, retry, operation): (OperationId, bool, crate::operation::Operation),
        pattern: Pattern,
        out: &mut Vec<Effect>,
    ) {
        self.expire(now, shard, out);
        let entry = Entry::Operation { id, possible_duplicate: retry, operation };
        match self.admit(shard, id) {
            Admitted::No(refusal) => self.answer(shard, route, Body::Refused { id, refusal }, out),
            Admitted::Seen(seen) => {
                let again = Acknowledged { id, seen, duplicate: true, stable: true };
                self.answer(shard, route, Body::Acknowledged(vec![again]), out);
            }
            Admitted::At(counter) => self.drive_again(shard, route, id, counter, out),
            Admitted::Granted(counter) if !self.has_room_at(shard, counter, &entry) => {
                let refusal = Refusal::Busy(Limit::LogBytes);
                self.answer(shard, route, Body::Refused { id, refusal }, out);
            }
            Admitted::Fresh if !self.has_room(shard, entry.counted_bytes()) => {
                let refusal = Refusal::Busy(Limit::LogBytes);
                self.answer(shard, route, Body::Refused { id, refusal }, out);
            }
            Admitted::Granted(counter) => {
                // The payload has come another way than the pattern meant: it is one hop from here.
                if !self.wait_for(shard, counter, route, id, false, out) {
                    return;
                }
                self.spread(shard, counter, entry, out);
            }
            Admitted::Fresh => {
                if pattern == Pattern::OneHop
                    && self.stamping(shard).waiting() >= self.config.limits.waiting_max
                {
                    let refusal = Refusal::Busy(Limit::Waiting);
                    return self.answer(shard, route, Body::Refused { id, refusal }, out);
                }
                if self.shard(shard).hold_back.len() >= self.config.limits.hold_back_entries_max {
                    let refusal = Refusal::Busy(Limit::HoldBackEntries);
                    return self.answer(shard, route, Body::Refused { id, refusal }, out);
                }
                let stamping = self.stamping_mut(shard);
                stamping.stamped += 1;
                let counter = stamping.stamped;
                self.send_stamped(shard, counter, entry, route, pattern, out);
            }
        }
    }

    fn send_stamped(
        &mut self,
        shard: u16,
        counter: u64,
        entry: Entry,
        route: Route,
        pattern: Pattern,
        out: &mut Vec<Effect>,
    ) {
        let id = entry.id().expect("only operations are stamped");
        let possible_duplicate = matches!(&entry, Entry::Operation { possible_duplicate: true, .. });
        let sends = pattern.row().stamped(route.client());
        if sends.waits {
            self.stamping_mut(shard).wait(counter, route, false);
        }
        match sends.to_others {
            Some(acknowledge) => {
                self.undrained.spread(Numbered { shard, counter, entry: entry.clone(), acknowledge });
            }
            None if sends.version_alone => {
                for member in self.others() {
                    let body = Body::Stamp { counter, id, possible_duplicate };
                    self.send(shard, Party::Member(member), body, out);
                }
            }
            None => {}
        }
        if self.take_entry(shard, counter, entry, sends.own, out) == Offered::HeldBack {
            self.stamping_mut(shard).ahead.insert(id, counter);
        }
    }

    /// Sends an entry to every member, by one hop.
    pub(crate) fn spread(&mut self, shard: u16, counter: u64, entry: Entry, out: &mut Vec<Effect>) {
        self.stamping_mut(shard).grants.remove(&counter);
        let acknowledge = Acknowledge::Stamper;
        self.undrained.spread(Numbered { shard, counter, entry: entry.clone(), acknowledge });
        let id = entry.id();
        let offered = self.take_entry(shard, counter, entry, Acknowledge::Stamper, out);
        if let Some(id) = id
            && offered == Offered::HeldBack
        {
            self.stamping_mut(shard).ahead.insert(id, counter);
        }
    }

    /// A version asked for without its payload.
    pub(crate) fn grant(
        &mut self,
        now: Time,
        shard: u16,
        client: ClientId,
        id: OperationId,
        out: &mut Vec<Effect>,
    ) {
        self.expire(now, shard, out);
        let route = Route::Direct(client);
        let counter = match self.admit(shard, id) {
            Admitted::No(refusal) => return self.answer(shard, route, Body::Refused { id, refusal }, out),
            Admitted::Seen(seen) => {
                let again = Acknowledged { id, seen, duplicate: true, stable: true };
                return self.answer(shard, route, Body::Acknowledged(vec![again]), out);
            }
            Admitted::At(counter) => return self.drive_again(shard, route, id, counter, out),
            Admitted::Granted(counter) => counter,
            // How long its payload is, is not known: whether there is room is looked at again when it comes.
            Admitted::Fresh if !self.has_room(shard, 0) => {
                let refusal = Refusal::Busy(Limit::LogBytes);
                return self.answer(shard, route, Body::Refused { id, refusal }, out);
            }
            Admitted::Fresh if self.stamping(shard).grants.len() >= self.config.limits.grants_max => {
                let refusal = Refusal::Busy(Limit::Grants);
                return self.answer(shard, route, Body::Refused { id, refusal }, out);
            }
            Admitted::Fresh
                if self.shard(shard).hold_back.len() >= self.config.limits.hold_back_entries_max =>
            {
                let refusal = Refusal::Busy(Limit::HoldBackEntries);
                return self.answer(shard, route, Body::Refused { id, refusal }, out);
            }
            Admitted::Fresh => {
                let deadline = now.after(self.config.times.grant_max);
                let stamping = self.stamping_mut(shard);
                stamping.stamped += 1;
                stamping.grants.insert(stamping.stamped, Grant { id, deadline, lacking: None });
                stamping.stamped
            }
        };
        self.answer(shard, route, Body::Granted { id, counter }, out);
    }

    /// A repetition of what is in the log and not stable: every member is sent it again, with its first version, and the client is answered when
    /// it is stable. Stamping it anew would do it twice; answering it now could be undone.
    fn drive_again(
        &mut self,
        shard: u16,
        route: Route,
        id: OperationId,
        counter: u64,
        out: &mut Vec<Effect>,
    ) {
        if !self.wait_for(shard, counter, route, id, true, out) {
            return;
        }
        let behind: Vec<MemberId> = {
            let stamping = self.stamping(shard);
            let position =
                |member| stamping.positions.get(&member).map_or(0, |progress: &Progress| progress.counter);
            self.others().filter(|&member| position(member) < counter).collect()
        };
        let Some(entry) = self.shard(shard).log.get(counter).map(|accepted| accepted.entry.clone()) else {
            return;
        };
        for member in behind {
            self.send_entry(shard, member, counter, entry.clone(), Acknowledge::Stamper, out);
        }
    }

    /// Returns whether there was room.
    fn wait_for(
        &mut self,
        shard: u16,
        counter: u64,
        route: Route,
        id: OperationId,
        duplicate: bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        if self.stamping(shard).waiting() >= self.config.limits.waiting_max {
            let refusal = Refusal::Busy(Limit::Waiting);
            self.answer(shard, route, Body::Refused { id, refusal }, out);
            return false;
        }
        let stamping = self.stamping_mut(shard);
        let from = stamping.waiting.partition_point(|other| other.counter < counter);
        let mut same = stamping.waiting.range(from..).take_while(|other| other.counter == counter);
        // One answer for each way: a client that repeats does not fill the table.
        if !same.any(|other| other.route == route) {
            stamping.wait(counter, route, duplicate);
        }
        true
    }

    /// The payload of a granted version came to the stamper.
    pub(crate) fn use_grant(&mut self, shard: u16, counter: u64, id: OperationId) -> Option<bool> {
        let stamping = self.stamping_mut(shard);
        let grant = stamping.grants.get(&counter)?;
        if grant.id != id {
            return None;
        }
        let asked = grant.lacking.is_some();
        stamping.grants.remove(&counter);
        stamping.ahead.insert(id, counter);
        Some(asked)
    }

    /// A member has everything up to `counter`, and said so at `sent_ns` by its clock.
    pub(crate) fn positioned(
        &mut self,
        now: Time,
        shard: u16,
        member: MemberId,
        (counter, sent_ns): (u64, u64),
    ) {
        let progress = self.stamping_mut(shard).progress(member, now);
        progress.sent_ns = progress.sent_ns.max(sent_ns);
        if counter > progress.counter {
            (progress.counter, progress.since) = (counter, now);
            self.moved(shard);
        }
    }

    /// Finds out what is stable; who waited for it is to be told `answers`.
    pub(crate) fn learn_stable(
        &mut self,
        now: Time,
        shard: u16,
        answers: &mut Answers,
        out: &mut Vec<Effect>,
    ) {
        let positions = &self.stamping(shard).positions;
        let has = |member| positions.get(&member).map_or(0, |progress| progress.counter);
        let mut counters: Vec<u64> = self.copies.ids().map(has).collect();
        counters.sort_unstable();
        let enough = |acknowledgement| {
            let all = counters.iter().rev().copied();
            all.into_iter()
                .find(|&counter| self.copies.enough(acknowledgement, |member| has(member) >= counter))
                .unwrap_or(0)
        };
        let (stable, everywhere) = (enough(self.config.acknowledgement), enough(Acknowledgement::All));
        // The log is trimmed behind the answers, which are in it.
        self.learn_marks(shard, stable, 0, out);
        self.answer_writes(shard, answers);
        self.learn_marks(shard, stable, everywhere, out);
        self.answer_reads(now, shard, out);
    }

    /// What is to be told to who waited for what is stable now.
    fn answer_writes(&mut self, shard: u16, answers: &mut Answers) {
        let stable = self.shard(shard).stable;
        let waiting = &mut self.stamping_mut(shard).waiting;
        let mut answered = std::mem::take(waiting);
        *waiting = answered.split_off(answered.partition_point(|write| write.counter <= stable));
        for WaitingWrite { counter, route, duplicate } in answered {
            // What the client is not told here it asks for again, and finds in the duplicate table.
            let Some((id, outcome)) = self.outcome(shard, counter) else { continue };
            let seen = Seen { version: Version { view: self.copies.view, counter }, outcome };
            let done = Acknowledged { id, seen, duplicate, stable: true };
            answers.entry(route).or_insert_with(|| (shard, Vec::new())).1.push(done);
        }
    }

    /// Tells them.
    pub(crate) fn send_answers(&self, answers: Answers, out: &mut Vec<Effect>) {
        for (route, (shard, answers)) in answers {
            for answers in together(answers, self.config.limits.together_bytes_max) {
                self.answer(shard, route, Body::Acknowledged(answers), out);
            }
        }
    }

    /// What came of a version that is stable, as long as the log or the history has it.
    fn outcome(&self, shard: u16, counter: u64) -> Option<(OperationId, Outcome)> {
        let copy = self.shard(shard);
        if let Some(accepted) = copy.log.get(counter) {
            return accepted.entry.id().map(|id| (id, accepted.outcome.clone()));
        }
        // Everybody has it, so that the log has not.
        let version = Version { view: self.copies.view, counter };
        copy.state.history.iter().rev().find(|applied| applied.version == version)?.operation.clone()
    }

    /// What time brings to a stamper.
    pub(crate) fn tick_stamper(&mut self, now: Time, shard: u16, out: &mut Vec<Effect>) {
        self.ask_for_grants(now, shard, out);
        self.expire(now, shard, out);
        self.repair(now, shard, out);
        let marks = (self.shard(shard).stable, self.shard(shard).everywhere);
        let leased = now < self.lease_until;
        for member in self.others().collect::<Vec<_>>() {
            let echo_ns = if leased { self.stamping_mut(shard).progress(member, now).sent_ns } else { 0 };
            let body = Body::Marks { stable: marks.0, everywhere: marks.1, echo_ns };
            self.send(shard, Party::Member(member), body, out);
        }
        self.answer_reads(now, shard, out);
    }

    /// Sends to members that do not get further what they lack.
    fn repair(&mut self, now: Time, shard: u16, out: &mut Vec<Effect>) {
        let limits = self.config.limits;
        let end = self.shard(shard).log.end();
        for member in self.others().collect::<Vec<_>>() {
            let after = self.config.times.repair_after;
            let progress = self.stamping_mut(shard).progress(member, now);
            if progress.counter >= end {
                progress.since = now;
                continue;
            }
            if now.since(progress.since) < after {
                continue;
            }
            progress.since = now;
            let from = progress.counter;
            let lacked = (from + 1..=end.min(from + limits.repair_entries_max)).map(|counter| {
                let accepted = self.shard(shard).log.get(counter);
                let entry = accepted.expect("what a member lacks is kept").entry.clone();
                Numbered { shard, counter, entry, acknowledge: Acknowledge::Stamper }
            });
            for entries in parcels(lacked.collect(), limits.together_bytes_max) {
                self.send(0, Party::Member(member), self.with_reached(entries), out);
            }
        }
    }

    /// A granted version whose client does not come blocks the shard. The stamper asks whether anybody has the payload; only when every
    /// member has said that it has not, and will take none from the client any more, is the version void.
    fn ask_for_grants(&mut self, now: Time, shard: u16, out: &mut Vec<Effect>) {
        let late: Vec<u64> = {
            let grants = self.stamping(shard).grants.iter();
            grants.filter(|(_, grant)| grant.deadline <= now).map(|(&counter, _)| counter).collect()
        };
        for counter in late {
            let others: Vec<MemberId> = self.others().collect();
            let grant = self.stamping_mut(shard).grants.get_mut(&counter).expect("it was there");
            let lacking = grant.lacking.get_or_insert_default();
            let asked: Vec<MemberId> =
                others.into_iter().filter(|member| !lacking.contains(member)).collect();
            let alone = asked.is_empty() || !self.config.rules.keep(Rule::VoidAgreed);
            if alone {
                self.spread(shard, counter, Entry::Void, out);
                continue;
            }
            for member in asked {
                self.send(shard, Party::Member(member), Body::Inquire { counter }, out);
            }
        }
    }

    /// A member has no payload for a granted version.
    pub(crate) fn lacks(&mut self, shard: u16, member: MemberId, counter: u64, out: &mut Vec<Effect>) {
        let others = self.copies.count() - 1;
        let Some(grant) = self.stamping_mut(shard).grants.get_mut(&counter) else { return };
        let lacking = grant.lacking.get_or_insert_default();
        lacking.insert(member);
        if lacking.len() == others {
            self.spread(shard, counter, Entry::Void, out);
        }
    }

    /// A member has the payload of a granted version.
    pub(crate) fn has(&mut self, shard: u16, counter: u64, entry: Entry, out: &mut Vec<Effect>) {
        let granted = self.stamping(shard).grants.get(&counter).map(|grant| grant.id);
        // Without room for it, members are asked again with the next tick.
        if granted.is_some() && granted == entry.id() && self.has_room_at(shard, counter, &entry) {
            self.spread(shard, counter, entry, out);
        }
    }

    /// Whether an operation took effect. That it did not, only a stamper under its lease knows, and not of an operation that has a version and whose
    /// payload did not come here: the others may have it, and the client may know.
    pub(crate) fn inspect(
        &mut self,
        now: Time,
        shard: u16,
        client: ClientId,
        id: OperationId,
        out: &mut Vec<Effect>,
    ) {
        let route = Route::Direct(client);
        let refused = |refusal| Body::Refused { id, refusal };
        let body = match self.admit(shard, id) {
            Admitted::Seen(seen) => {
                Body::Acknowledged(vec![Acknowledged { id, seen, duplicate: true, stable: true }])
            }
            Admitted::At(counter) => return self.drive_again(shard, route, id, counter, out),
            Admitted::No(refusal @ (Refusal::Obsolete | Refusal::Evicted)) => refused(refusal),
            Admitted::Granted(_) => refused(Refusal::NotSettled),
            _ if now >= self.lease_until => refused(Refusal::NoLease),
            Admitted::No(_) | Admitted::Fresh => Body::NotSeen { id },
        };
        self.answer(shard, route, body, out);
    }

    /// Forgets what was ahead of the log, once it is in it.
    pub(crate) fn caught_up(&mut self, shard: u16, id: OperationId) {
        if let Some(stamping) = self.stampings.get_mut(usize::from(shard)) {
            stamping.ahead.remove(&id);
        }
    }

    fn answer(&self, shard: u16, route: Route, body: Body, out: &mut Vec<Effect>) {
        let (to, body) = route.carry(body);
        self.send(shard, to, body, out);
    }
}
