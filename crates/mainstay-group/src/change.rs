//! The proposer: from PREPARE over promises, the cut, ACCEPT and the running out of leases to INSTALL.
//!
//! Any store of the view may propose at any time without harm; that it is the oldest member which hears a majority, or the next one when
//! nothing comes of it, only keeps proposers out of each other's way.

use crate::ballot::{Ballot, Because, Departure, Ground, Promised, Proposal, adopted, decides, ground};
use crate::effect::Effect;
use crate::group::{Group, leads};
use crate::joining::Waiting;
use crate::message::Body;
use mainstay_types::id::StoreId;
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, Member, MemberId, View, ViewId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Patience is doubled at most so often.
const DOUBLED_MAX: u32 = 2;

/// A change of the view under way.
#[derive(Debug)]
pub(crate) struct Change {
    ballot: Ballot,
    /// When it last got on: one more has promised or accepted, or this process's own disk has kept it waiting.
    since: Time,
    /// When it is said again to those who have not answered, and how long after that once more: what is said can be long.
    again: Time,
    pause: Duration,
    /// Its proposer lacked the data when it began: whoever comes may be the one who has it. What has become of that since counts for the next change; else
    /// one that was begun to let somebody in would not.
    lacks_data: bool,
    /// Who asked to be let in, and heard, when it began: nobody who serves answers them meanwhile, so that they would say that they hear nothing any more.
    hearing: BTreeSet<JoinerId>,
    phase: Phase,
    promises: BTreeMap<StoreId, Promised>,
    /// Who promised.
    from: BTreeMap<StoreId, JoinerId>,
    /// Until when members may still serve, by this clock.
    leases: BTreeMap<MemberId, Time>,
}

#[derive(Debug)]
enum Phase {
    /// Promises come in.
    Preparing,
    /// The regions settle on what was done in `base`.
    Settling { base: ViewId },
    /// Acceptances come in.
    Accepting { proposal: Proposal, accepted: BTreeSet<StoreId> },
    /// The arbiter was asked.
    Arbitrating { proposal: Proposal },
    /// It is decided, and somebody may still serve the old view.
    Outlasting { proposal: Proposal },
}

impl Group {
    /// Begins to agree on the next view.
    pub(crate) fn begin_change(&mut self, now: Time, out: &mut Vec<Effect>) {
        let round = self.rounds_seen.max(self.record.promised.round).saturating_add(1);
        let ballot = Ballot { round, proposer: self.me.store };
        self.change = Some(Change {
            ballot,
            since: now,
            again: now.after(self.config.timing.beat),
            pause: self.config.timing.beat,
            lacks_data: self.lacks_data(now),
            hearing: self.joiners.values().filter(|asks| asks.hears).map(|asks| asks.joiner).collect(),
            phase: Phase::Preparing,
            promises: BTreeMap::new(),
            from: BTreeMap::new(),
            leases: BTreeMap::new(),
        });
        // Before anybody hears of the ballot: no later life of this store uses it again.
        self.record.promised = ballot;
        self.persist(out);
        for (_, to) in self.acceptors(now) {
            self.send(to, Body::Prepare { ballot }, out);
        }
    }

    /// Agrees on the next view though nobody comes or goes. Any store of the view may propose; where a change is under way, or has wedged this
    /// member, the next view comes anyhow.
    pub(crate) fn renew(&mut self, now: Time, out: &mut Vec<Effect>) {
        let me = self.view().and_then(|view| view.of_store(self.me.store));
        if me.is_some_and(leads) && self.admits() && self.change.is_none() {
            self.begin_change(now, out);
        }
    }

    /// The stores of the view and where each is to be found: as a member, or come back as another life.
    fn acceptors(&self, now: Time) -> BTreeMap<StoreId, Address> {
        let members = self.record.view().into_iter().flat_map(|view| &view.members);
        let mut found: BTreeMap<_, _> =
            members.map(|member| (member.joiner.store, member.joiner.address)).collect();
        found.extend(self.returned(now).into_iter().map(|(store, joiner)| (store, joiner.address)));
        found.insert(self.me.store, self.me.address);
        found
    }

    pub(crate) fn promised(
        &mut self,
        now: Time,
        from: JoinerId,
        (ballot, promised): (Ballot, Promised),
        out: &mut Vec<Effect>,
    ) {
        let timing = self.config.timing;
        let Some(change) = self.change.as_mut().filter(|change| change.ballot == ballot) else { return };
        if !matches!(change.phase, Phase::Preparing) {
            return;
        }
        for &(member, left_ns) in &promised.grants {
            let ends = now.after(timing.outlasting(Duration::from_nanos(left_ns)));
            let latest = change.leases.entry(member).or_insert(ends);
            *latest = ends.max(*latest);
        }
        if change.promises.insert(from.store, promised).is_none() {
            change.since = now;
        }
        change.from.insert(from.store, from);
        self.enough_promises(now, out);
    }

    fn enough_promises(&mut self, now: Time, out: &mut Vec<Effect>) {
        let (Some(installed), Some(change)) = (&self.record.installed, &self.change) else { return };
        let Some(ground) = ground(installed, &change.promises, self.config.rules) else { return };
        let waits = now.since(change.since) <= self.config.timing.preparation;
        let missing = installed.view.members.iter().any(|member| {
            let store = member.joiner.store;
            !change.promises.contains_key(&store) && self.is_reachable(now, member)
        });
        if waits && missing {
            return;
        }
        if let Some(proposal) = adopted(&change.promises, self.config.rules) {
            return self.propose(now, proposal, out);
        }
        match ground {
            Ground::Reports(base) => self.settle(now, base, out),
            Ground::Cut => {
                let (base, cut) = (installed.base, installed.cut.clone());
                self.propose_next(now, (base, cut), out);
            }
        }
    }

    /// Asks the regions what of the view counts.
    fn settle(&mut self, now: Time, base: ViewId, out: &mut Vec<Effect>) {
        let (Some(view), Some(change)) = (self.record.view(), &mut self.change) else { return };
        change.phase = Phase::Settling { base };
        change.since = now;
        let ready = change.promises.iter().filter(|(_, promised)| promised.ready == base);
        let reports = ready.map(|(store, promised)| (change.from[store], promised.report.clone())).collect();
        out.push(Effect::Settle { view: view.id, ballot: change.ballot, reports });
    }

    fn is_reachable(&self, now: Time, member: &Member) -> bool {
        let judged = self.verdicts.contains_key(&member.id());
        let heard =
            self.is_member() && !self.suspicion.is_silent(member.joiner.store, now, &self.config.timing);
        (heard && !judged) || self.returned(now).contains_key(&member.joiner.store)
    }

    /// The regions have settled.
    pub(crate) fn settled(
        &mut self,
        now: Time,
        (view, ballot): (ViewId, Ballot),
        cut: Vec<u8>,
        out: &mut Vec<Effect>,
    ) {
        let asked = self.change.as_ref().filter(|change| change.ballot == ballot);
        if let Some(Phase::Settling { base }) = asked.map(|change| &change.phase)
            && view == self.record.view_id()
        {
            self.propose_next(now, (*base, cut), out);
        }
    }

    fn propose_next(&mut self, now: Time, (base, cut): (ViewId, Vec<u8>), out: &mut Vec<Effect>) {
        let next = self.next_view(base, &self.who_leaves());
        match next.or_else(|| self.next_view(base, &BTreeSet::new())) {
            Some((view, departures)) => self.propose(now, Proposal { view, base, cut, departures }, out),
            None => self.change = None,
        }
    }

    /// The view that this process would have next. `None` if nobody could lead it, or has the data of `base`.
    fn next_view(&self, base: ViewId, leave: &BTreeSet<StoreId>) -> Option<(View, Vec<Departure>)> {
        let old = self.record.view()?;
        let id = old.id.next();
        let change = self.change.as_ref()?;
        let because = |member: &Member| {
            if leave.contains(&member.joiner.store) {
                return Some(Because::Left);
            }
            if member.joiner.store == self.me.store {
                return (!self.is_member()).then_some(Because::Replaced);
            }
            let up = change.from.get(&member.joiner.store) == Some(&member.joiner);
            match self.verdicts.get(&member.id()) {
                // It was silent, and is not any more.
                Some(Because::Silent { .. }) if up => return None,
                Some(because) => return Some(*because),
                None => {}
            }
            // Out of stores that came back: only those members are known to be up that have promised.
            (!self.is_member() && !up).then_some(Because::Absent)
        };
        let (mut members, mut departures) = (Vec::new(), Vec::new());
        for member in &old.members {
            match because(member) {
                None => members.push(member.clone()),
                Some(because) => departures.push(Departure {
                    member: member.id(),
                    store: member.joiner.store,
                    because,
                    view: id,
                }),
            }
        }
        let place = |store: StoreId| {
            old.members.iter().position(|member| member.joiner.store == store).unwrap_or(usize::MAX)
        };
        let hears = |waiting: &&Waiting| {
            waiting.hears
                || change.hearing.contains(&waiting.joiner)
                || change.from.get(&waiting.joiner.store) == Some(&waiting.joiner)
        };
        let joiners = self
            .joiners
            .values()
            .filter(hears)
            .filter(|waiting| !self.learns_first(waiting, change.lacks_data));
        let mut joiners: Vec<_> =
            joiners.map(|waiting| (waiting.since, waiting.joiner, &waiting.offer)).collect();
        if !self.is_member() {
            joiners.push((Time::EPOCH, self.me, &self.config.offer));
        }
        joiners.sort_by_key(|(since, joiner, _)| (place(joiner.store), *since, joiner.address));
        for (_, joiner, offer) in joiners {
            let taken = members.iter().any(|member: &Member| {
                member.joiner.store == joiner.store || member.joiner.address == joiner.address
            });
            if !taken && members.len() < self.config.limits.members_max {
                members.push(Member { born: id, joiner, offer: offer.clone() });
            }
        }
        // Not all who have data may go while those who come have none.
        let has_data = |member: &Member| {
            let promised = change.promises.get(&member.joiner.store);
            member.offer.weight > 0 && promised.is_some_and(|promised| promised.ready >= base)
        };
        let can_go_on = members.iter().any(leads) && members.iter().any(has_data);
        can_go_on.then_some((View { id, arbitrated: old.arbitrated, members }, departures))
    }

    fn propose(&mut self, now: Time, proposal: Proposal, out: &mut Vec<Effect>) {
        let arbitrated = self.record.view().is_some_and(|view| view.arbitrated);
        let from = self.record.view_id();
        let (acceptors, beat) = (self.acceptors(now), self.config.timing.beat);
        let Some(change) = &mut self.change else { return };
        let ballot = change.ballot;
        if arbitrated {
            change.phase = Phase::Arbitrating { proposal: proposal.clone() };
            self.emit(Effect::AskArbiter { from, proposal }, out);
            return;
        }
        change.phase = Phase::Accepting { proposal: proposal.clone(), accepted: BTreeSet::new() };
        (change.since, change.again, change.pause) = (now, now.after(beat), beat);
        for to in acceptors.into_values() {
            self.send(to, Body::Accept { ballot, proposal: proposal.clone() }, out);
        }
    }

    pub(crate) fn accepted(&mut self, now: Time, from: StoreId, ballot: Ballot, out: &mut Vec<Effect>) {
        let Some(change) = self.change.as_mut().filter(|change| change.ballot == ballot) else { return };
        let Phase::Accepting { proposal, accepted } = &mut change.phase else { return };
        if accepted.insert(from) {
            change.since = now;
        }
        let (proposal, accepted) = (proposal.clone(), accepted.clone());
        let view = self.record.view().expect("who proposes knows a view");
        let votes = accepted.iter().map(|&store| view.weight_of(store)).sum();
        if decides(view, votes, self.config.rules) {
            self.decided(now, proposal, out);
        }
    }

    /// The arbiter holds this as the successor of the view.
    pub(crate) fn arbitrated(&mut self, now: Time, chosen: Proposal, out: &mut Vec<Effect>) {
        let asked =
            self.change.as_ref().is_some_and(|change| matches!(change.phase, Phase::Arbitrating { .. }));
        if asked && chosen.view.id == self.record.view_id().next() {
            self.decided(now, chosen, out);
        }
    }

    fn decided(&mut self, now: Time, proposal: Proposal, out: &mut Vec<Effect>) {
        if let Some(change) = &mut self.change {
            change.phase = Phase::Outlasting { proposal };
        }
        self.outlast(now, out);
    }

    /// Installs what is decided once nobody can serve the old view any more.
    fn outlast(&mut self, now: Time, out: &mut Vec<Effect>) {
        let (Some(view), Some(change)) = (self.record.view(), &self.change) else { return };
        let Phase::Outlasting { proposal } = &change.phase else { return };
        let serves = |member: &Member| {
            let wedged = change.promises.contains_key(&member.joiner.store);
            !wedged && change.leases.get(&member.id()).is_some_and(|&ends| now < ends)
        };
        if self.config.rules.keep(Rule::LeasesRunOut) && view.members.iter().any(serves) {
            return;
        }
        let proposal = proposal.clone();
        let others = view.members.iter().chain(&proposal.view.members).map(|member| member.joiner.address);
        let mut others: BTreeSet<Address> = others.collect();
        others.extend(self.returned(now).values().map(|joiner| joiner.address));
        let moved =
            self.joiners.values().filter(|waiting| proposal.view.of_store(waiting.joiner.store).is_some());
        others.extend(moved.map(|waiting| waiting.joiner.address));
        others.remove(&self.me.address);
        for to in others {
            self.send(to, Body::Install { proposal: proposal.clone() }, out);
        }
        self.learn(now, proposal, out);
    }

    /// Somebody has promised a higher ballot: this one comes to nothing.
    pub(crate) fn rejected(&mut self, promised: Ballot) {
        self.rounds_seen = self.rounds_seen.max(promised.round);
        let outdated = |change: &Change| {
            change.ballot < promised
                && !matches!(change.phase, Phase::Outlasting { .. } | Phase::Arbitrating { .. })
        };
        if self.change.as_ref().is_some_and(outdated) {
            self.change = None;
        }
    }

    /// How long nothing may come of a ballot before another one is tried. Each ballot of a view has twice the patience of the one before: a ballot that
    /// is given up while disks are at it costs another write of each, so that no view would ever be agreed on with disks slower than a fixed time.
    pub(crate) fn patience(&self) -> Duration {
        let rounds = self.rounds_seen.max(self.record.promised.round);
        self.config.timing.change * (1 << rounds.saturating_sub(1).min(DOUBLED_MAX))
    }

    /// Whether one who has not answered is heard: then its answer comes, when its disk is done with it.
    fn waits_for_others(&self, now: Time, change: &Change) -> bool {
        let answered = |store: &StoreId| match &change.phase {
            Phase::Preparing => change.promises.contains_key(store),
            Phase::Accepting { accepted, .. } => accepted.contains(store),
            _ => true,
        };
        let mut members = self.record.view().into_iter().flat_map(|view| &view.members);
        members.any(|member| !answered(&member.joiner.store) && self.is_reachable(now, member))
    }

    /// Says again what may have been lost, goes on without those who do not answer, and gives up after a while.
    pub(crate) fn drive_change(&mut self, now: Time, out: &mut Vec<Effect>) {
        let (acceptors, from) = (self.acceptors(now), self.record.view_id());
        let (patience, waits_for_disk) = (self.patience(), !self.is_recorded());
        let unanswered = self.change.as_ref().is_some_and(|change| self.waits_for_others(now, change));
        let Some(change) = &mut self.change else { return };
        if waits_for_disk {
            // Nothing was said yet that others could answer.
            change.since = now;
        }
        let says_again = now >= change.again;
        if says_again {
            change.pause = (change.pause * 2).min(self.config.timing.beat * 8);
            change.again = now.after(change.pause);
        }
        let ballot = change.ballot;
        let given_up = now.since(change.since) > patience && !unanswered;
        match &change.phase {
            Phase::Outlasting { .. } => self.outlast(now, out),
            Phase::Arbitrating { proposal } => {
                let proposal = proposal.clone();
                self.emit(Effect::AskArbiter { from, proposal }, out);
            }
            _ if given_up => self.change = None,
            Phase::Preparing => {
                // What this process promised before it had the data says that it has none.
                let (me, ready) = (self.me.store, self.record.ready);
                let holds = |store: &StoreId, promise: &Promised| *store != me || promise.ready == ready;
                let promised = change.promises.iter().filter(|(store, promise)| holds(store, promise));
                let promised: BTreeSet<_> = promised.map(|(store, _)| *store).collect();
                for (_, to) in
                    acceptors.into_iter().filter(|(store, _)| says_again && !promised.contains(store))
                {
                    self.send(to, Body::Prepare { ballot }, out);
                }
                self.enough_promises(now, out);
            }
            Phase::Settling { .. } => {}
            Phase::Accepting { .. } if !says_again => {}
            Phase::Accepting { proposal, accepted } => {
                let (proposal, accepted) = (proposal.clone(), accepted.clone());
                for (_, to) in acceptors.into_iter().filter(|(store, _)| !accepted.contains(store)) {
                    self.send(to, Body::Accept { ballot, proposal: proposal.clone() }, out);
                }
            }
        }
    }
}
