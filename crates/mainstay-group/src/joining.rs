//! Who waits to be let in, and how a process outside asks.
//!
//! It asks every address that it knows, again and again, until a view names it: whoever coordinates lets in, all others say who that is, and
//! stores that came back hear of each other. It is in only when a view names it, never because somebody said yes.
//!
//! A server that is new is shown the view first, and let in when its regions have learned what that has: a view that counted on it before
//! would wait for it.

use crate::ballot::{Because, Proposal, decides};
use crate::effect::Effect;
use crate::group::{Group, Standing};
use crate::message::{Body, Refusal};
use mainstay_types::id::{ClusterId, StoreId};
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, MEMBERS_MAX, MemberKind, Offer, ViewId};
use std::collections::{BTreeMap, BTreeSet};

/// One who waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    pub(crate) joiner: JoinerId,
    pub(crate) offer: Offer,
    /// The last view that its store knows, if it votes on what follows that.
    pub(crate) votes_after: Option<ViewId>,
    /// It has heard somebody who is in a view, so that it would hear that it is let in.
    pub(crate) hears: bool,
    /// Its regions have been filled.
    pub(crate) learned: bool,
    pub(crate) since: Time,
    pub(crate) heard: Time,
}

/// What a process outside knows.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    pub(crate) addresses: BTreeSet<Address>,
    pub(crate) since: Time,
    pub(crate) next: Time,
    /// When a member that is in a view was last heard.
    pub(crate) member_heard: Option<Time>,
    /// Other groups that were met, each said once.
    pub(crate) refused: BTreeSet<[u8; 16]>,
}

impl Group {
    /// Somebody asks to be let in.
    pub(crate) fn asked_in(&mut self, now: Time, knows: ViewId, asks: Waiting, out: &mut Vec<Effect>) {
        let from = asks.joiner;
        if let Some(installed) = self.record.installed.clone() {
            let view = &installed.view;
            let known = view.of_store(from.store);
            if known.is_some_and(|member| member.joiner.life > from.life) {
                return;
            }
            let is_in = self.is_member() && view.member(&from).is_some();
            let gone = view.members.iter().filter(|member| {
                member.joiner != from
                    && (member.joiner.store == from.store || member.joiner.address == from.address)
                    && member.joiner.store != self.me.store
            });
            self.verdicts.extend(gone.map(|member| (member.id(), Because::Replaced)));
            if knows < view.id && known.is_some() {
                // It is in and was not told, or it votes on what follows this view once it knows it.
                self.send(from.address, Body::Install { proposal: installed }, out);
            }
            if is_in {
                return;
            }
        }
        if self.is_member() {
            match self.coordinator(now) {
                // Who knows of a newer view says so when it hears of this one.
                Some(coordinator) if coordinator == self.me.store && knows <= self.record.view_id() => {
                    // Where the votes of who asks are not needed, it first has to show that it hears.
                    if self.serves(now) {
                        self.send(from.address, Body::Located { coordinator: self.me.address }, out);
                    }
                }
                // Where nobody is heard who could let in, the stores that come back do not wait for this member.
                None if knows <= self.record.view_id() => {}
                coordinator => {
                    let view = self.record.view();
                    let member = coordinator.and_then(|store| view?.of_store(store));
                    let coordinator = member.map_or(self.me.address, |member| member.joiner.address);
                    self.send(from.address, Body::Located { coordinator }, out);
                }
            }
            let members = self.record.view().map_or(0, |view| view.members.len());
            if members >= self.config.limits.members_max
                && self.record.view().is_some_and(|v| v.of_store(from.store).is_none())
            {
                let members = u16::try_from(self.config.limits.members_max).unwrap_or(u16::MAX);
                self.send(from.address, Body::Refused { refusal: Refusal::Full { members } }, out);
                return;
            }
            let lets_in = self.coordinator(now) == Some(self.me.store) && self.serves(now);
            if lets_in && knows < self.record.view_id() && self.learns_first(&asks, self.lacks_data(now)) {
                let proposal = self.record.installed.clone().expect("a member knows a view");
                self.send(from.address, Body::Install { proposal }, out);
            }
        }
        let known = self.joiners.get(&from.store);
        if known.is_some_and(|waiting| waiting.joiner.life > from.life) {
            return;
        }
        if known.is_none() && self.joiners.len() >= self.config.limits.joiners_max {
            let joiners = u16::try_from(self.config.limits.joiners_max).unwrap_or(u16::MAX);
            self.send(from.address, Body::Refused { refusal: Refusal::Busy { joiners } }, out);
            return;
        }
        let since = known.map_or(now, |waiting| waiting.since);
        // Who has no group yet could be led into another one by it.
        if self.standing == Standing::Outside && self.record.cluster.is_some() {
            self.learn_address(from.address);
        }
        if self.standing == Standing::Outside {
            self.name_askers(from, out);
        }
        self.joiners.insert(from.store, Waiting { since, ..asks });
    }

    /// Whether one who asks is to be filled before it is let in, so that the view does not wait for it: a server that is new here. A store of
    /// the view counts in any case; and while this member lacks the data itself, whoever comes may be the one who has it.
    pub(crate) fn learns_first(&self, waiting: &Waiting, lacks_data: bool) -> bool {
        let is_new = self.record.view().is_none_or(|view| view.of_store(waiting.joiner.store).is_none());
        is_new && !waiting.learned && waiting.offer.kind == MemberKind::Server && !lacks_data
    }

    /// Whether this member lacks the data of its view, and not only for as long as its disk is at the cut: who has what that builds on, has the rest soon.
    pub(crate) fn lacks_data(&self, now: Time) -> bool {
        let has_base =
            self.record.installed.as_ref().is_some_and(|installed| self.record.ready >= installed.base);
        let soon = now.since(self.entered_at) <= self.config.timing.change * 4;
        !(self.record.is_ready() || has_base && soon)
    }

    /// A member shows the view that it serves to this process, which is not in it.
    pub(crate) fn shown(
        &mut self,
        cluster: Option<ClusterId>,
        from: JoinerId,
        proposal: Proposal,
        out: &mut Vec<Effect>,
    ) {
        let Proposal { view, cut, .. } = proposal;
        let outside = self.standing == Standing::Outside && view.of_store(self.me.store).is_none();
        if !outside || self.learned || view.id <= self.record.view_id() || view.member(&from).is_none() {
            return;
        }
        if self.record.cluster.is_none() {
            if !self.has_asked(from.address) {
                return;
            }
            // What is learned is of this group, and found again only behind a record that says so.
            self.take_up(cluster);
            self.persist(out);
        }
        self.emit(Effect::Learn { view, cut }, out);
    }

    /// The regions have learned.
    pub(crate) fn filled(&mut self, now: Time) {
        if self.standing == Standing::Outside {
            self.learned = true;
            self.asking.next = now;
        }
    }

    /// Tells one who asks here, where nobody lets in, who else does: stores that know no address of each other meet so.
    fn name_askers(&mut self, to: JoinerId, out: &mut Vec<Effect>) {
        let others =
            self.joiners.values().map(|waiting| waiting.joiner).filter(|other| other.store != to.store);
        let joiners: Vec<_> = others.take(MEMBERS_MAX).collect();
        if !joiners.is_empty() {
            self.send(to.address, Body::Askers { joiners }, out);
        }
    }

    /// Others ask where this process does. Those that are in its last view are told of it: one that died before it knew cannot vote else.
    pub(crate) fn others_ask(&mut self, joiners: Vec<JoinerId>, out: &mut Vec<Effect>) {
        // Who has no group yet could be led into another one.
        if self.record.cluster.is_none() {
            return;
        }
        let me = self.me.store;
        for joiner in joiners.into_iter().filter(|joiner| joiner.store != me) {
            self.learn_address(joiner.address);
            self.tell_of_view(joiner, out);
        }
    }

    /// Tells a store, whose votes may be needed, of the view that names it.
    fn tell_of_view(&mut self, joiner: JoinerId, out: &mut Vec<Effect>) {
        let Some(installed) = self.record.installed.clone() else { return };
        let named = installed.view.of_store(joiner.store);
        if named.is_some_and(|member| member.joiner.life <= joiner.life) {
            self.send(joiner.address, Body::Install { proposal: installed }, out);
        }
    }

    /// Those who ask no more are forgotten, so that nobody is let in that is gone.
    pub(crate) fn forget_joiners(&mut self, now: Time) {
        let patience = self.config.timing.joining * 4;
        self.joiners.retain(|_, waiting| now.since(waiting.heard) <= patience);
    }

    /// A member told where to ask.
    pub(crate) fn located(
        &mut self,
        now: Time,
        (knows, from): (ViewId, JoinerId),
        at: Address,
        out: &mut Vec<Effect>,
    ) {
        if knows < self.record.view_id()
            && let Some(proposal) = self.record.installed.clone()
        {
            self.send(from.address, Body::Install { proposal }, out);
            return;
        }
        if self.record.cluster.is_none() && !self.has_asked(from.address) {
            // A group that it was not told to ask.
            return;
        }
        if !self.has_heard_a_member(now) {
            self.asking.next = now;
        }
        self.asking.member_heard = Some(now);
        self.learn_address(at);
        self.learn_address(from.address);
    }

    /// Whether this process asks there.
    fn has_asked(&self, at: Address) -> bool {
        self.config.ask_at.contains(&at) || self.asking.addresses.contains(&at)
    }

    pub(crate) fn learn_address(&mut self, address: Address) {
        if self.asking.addresses.len() < self.config.limits.addresses_max {
            self.asking.addresses.insert(address);
        }
    }

    /// This process is not let in.
    pub(crate) fn refused(&mut self, refusal: Refusal, out: &mut Vec<Effect>) {
        let first = match refusal {
            Refusal::OtherCluster { ours, .. } => {
                self.asking.refused.len() < self.config.limits.addresses_max
                    && self.asking.refused.insert(ours.0)
            }
            Refusal::Full { .. } | Refusal::Busy { .. } => true,
        };
        if first && self.standing == Standing::Outside {
            out.push(Effect::Refused { refusal });
        }
    }

    /// Asks to be let in, and begins the next view where enough stores of the last one have come back and nobody else does.
    pub(crate) fn ask(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.ask_everywhere(now, out);
        if self.change.is_none() && self.begins_anew(now) {
            self.begin_change(now, out);
        }
    }

    /// Asks at every address that it knows.
    pub(crate) fn ask_everywhere(&mut self, now: Time, out: &mut Vec<Effect>) {
        if now >= self.asking.next {
            self.asking.next = now.after(self.config.timing.joining);
            let mut addresses = self.asking.addresses.clone();
            addresses.extend(&self.config.ask_at);
            if let Some(view) = self.record.view() {
                addresses.extend(view.members.iter().map(|member| member.joiner.address));
            }
            addresses.remove(&self.me.address);
            let (offer, votes) = (self.config.offer.clone(), self.record.installed.is_some());
            let (hears, learned) = (self.has_heard_a_member(now), self.learned);
            for to in addresses.into_iter().take(self.config.limits.addresses_max) {
                self.send(to, Body::Join { offer: offer.clone(), votes, hears, learned }, out);
            }
            self.tell_members(out);
        }
    }

    /// Tells those members of its last view that do not ask here of it: they may have died before they knew.
    fn tell_members(&mut self, out: &mut Vec<Effect>) {
        let members = self.record.view().into_iter().flat_map(|view| &view.members);
        let unheard = members.filter(|member| {
            let store = member.joiner.store;
            store != self.me.store && !self.joiners.contains_key(&store)
        });
        for joiner in unheard.map(|member| member.joiner).collect::<Vec<_>>() {
            self.tell_of_view(joiner, out);
        }
    }

    /// Tells those who may have been left outside where the group is, by the addresses at which everybody asks.
    pub(crate) fn tell_where(&mut self, now: Time, out: &mut Vec<Effect>) {
        if now < self.asking.next {
            return;
        }
        self.asking.next = now.after(self.config.timing.joining * 4);
        let inside = self.others();
        let outside = self.config.ask_at.iter().filter(|at| !inside.contains(at) && **at != self.me.address);
        for to in outside.copied().collect::<Vec<_>>() {
            self.send(to, Body::Located { coordinator: self.me.address }, out);
        }
    }

    /// Whether somebody who is in a view was heard lately.
    fn has_heard_a_member(&self, now: Time) -> bool {
        let lately = self.config.timing.joining * 3;
        self.asking.member_heard.is_some_and(|heard| now.since(heard) <= lately)
    }

    /// Whether it is this store's turn to begin the next view out of stores that came back.
    fn begins_anew(&self, now: Time) -> bool {
        let Some(view) = self.record.view() else { return false };
        if self.has_heard_a_member(now) {
            return false;
        }
        let timing = &self.config.timing;
        let back = self.returned(now);
        let votes =
            view.weight_of(self.me.store) + back.keys().map(|&store| view.weight_of(store)).sum::<u64>();
        if !view.arbitrated && !decides(view, votes, self.config.rules) {
            return false;
        }
        let place = |store: StoreId| view.members.iter().position(|member| member.joiner.store == store);
        let rank = back.keys().filter(|&&store| place(store) < place(self.me.store)).count();
        // The oldest store begins; where nothing comes of it, or the oldest hears too few, the next one does.
        let turn = timing.change * u32::try_from(rank).unwrap_or(u32::MAX);
        match &self.wedged {
            Some(wedged) => now.since(wedged.since) > self.patience() + turn,
            None => now.since(self.asking.since) > timing.silence + turn,
        }
    }

    /// The stores of the last view that came back as another life, have their promises, and were heard lately.
    pub(crate) fn returned(&self, now: Time) -> BTreeMap<StoreId, JoinerId> {
        let Some(view) = self.record.view() else { return BTreeMap::new() };
        let lately = self.config.timing.joining * 3;
        let back = self.joiners.values().filter(|waiting| {
            waiting.votes_after == Some(view.id)
                && view
                    .of_store(waiting.joiner.store)
                    .is_some_and(|member| member.joiner.life <= waiting.joiner.life)
                && now.since(waiting.heard) <= lately
        });
        back.map(|waiting| (waiting.joiner.store, waiting.joiner)).collect()
    }
}
