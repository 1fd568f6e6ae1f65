//! A view that was decided: entering it, knowing it as a store that came back, or being out of it.

use crate::ballot::{Departure, Proposal};
use crate::effect::Effect;
use crate::explain::Explanation;
use crate::group::{Group, Standing};
use mainstay_types::id::ClusterId;
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::ViewId;

impl Group {
    /// Takes in a decided view. Whoever says it, it is true; older ones are old news.
    pub(crate) fn learn(&mut self, now: Time, proposal: Proposal, out: &mut Vec<Effect>) {
        let id = proposal.view.id;
        if id <= self.record.view_id() {
            return;
        }
        self.remember(&proposal.departures);
        let view = &proposal.view;
        let here = view.members.iter().find(|member| member.joiner.address == self.me.address);
        let named = match self.config.rules.keep(Rule::BornOnce) {
            true => view.member(&self.me).is_some(),
            false => here.is_some(),
        };
        let known = view.of_store(self.me.store).is_some_and(|member| member.joiner.life <= self.me.life);
        if !named && !known {
            return self.out_of(id, now, out);
        }
        let was_member = self.is_member();
        self.joiners.retain(|store, waiting| {
            view.of_store(*store).is_none_or(|member| member.joiner.life < waiting.joiner.life)
        });
        let (view, base, cut) = (view.clone(), proposal.base, proposal.cut.clone());
        self.record.installed = Some(proposal);
        self.record.promised = crate::ballot::Ballot::NONE;
        self.record.accepted = None;
        (self.entered, self.entered_at) = (self.persist(out), now);
        self.forget_view();
        self.learned = false;
        if named {
            self.standing = Standing::Member { installed: None };
            self.leases.begin();
            self.suspicion.begin(&view, self.me.store, now);
            out.push(Effect::Fetch { view, base, cut });
            self.beat(now, out);
        } else {
            self.outside(now);
            // Its store votes on what follows, and counts for more once it has the data.
            out.push(Effect::Fetch { view, base, cut });
            if was_member {
                out.push(Effect::Expelled { explanation: self.explain(now) });
            }
        }
    }

    /// The regions have everything up to the cut.
    pub(crate) fn fetched(&mut self, view: ViewId, out: &mut Vec<Effect>) {
        let Some(proposal) = self.record.installed.clone() else { return };
        if proposal.view.id != view || self.record.is_ready() {
            return;
        }
        self.record.ready = view;
        let ticket = self.persist(out);
        self.report_late(out);
        if !self.is_member() {
            return;
        }
        self.standing = Standing::Member { installed: Some(ticket) };
        if self.wedged.is_none() {
            self.emit(Effect::Installed { view: proposal.view, cut: proposal.cut }, out);
        }
    }

    /// A member of a newer view says that this process is not in it.
    pub(crate) fn shunned(
        &mut self,
        now: Time,
        view: ViewId,
        departure: Option<Departure>,
        out: &mut Vec<Effect>,
    ) {
        if view <= self.record.view_id() {
            return;
        }
        if let Some(departure) = departure {
            self.remember(&[departure]);
        }
        self.out_of(view, now, out);
    }

    /// The view `newer` goes on without this process.
    fn out_of(&mut self, newer: ViewId, now: Time, out: &mut Vec<Effect>) {
        self.newest = self.newest.max(newer);
        if !self.is_member() {
            return;
        }
        self.forget_view();
        if self.leaving {
            self.standing = Standing::Gone;
            out.push(Effect::Left);
            return;
        }
        self.outside(now);
        let explanation: Explanation = self.explain(now);
        out.push(Effect::Expelled { explanation });
    }

    fn outside(&mut self, now: Time) {
        self.standing = Standing::Outside;
        self.asking.since = now;
        self.learned = false;
    }

    fn forget_view(&mut self) {
        self.wedged = None;
        self.change = None;
        self.verifying = None;
        self.verdicts.clear();
        self.leavers.clear();
        self.ready.clear();
        self.ending.clear();
        self.acquitted = None;
        self.rounds_seen = 0;
    }

    fn remember(&mut self, departures: &[Departure]) {
        for departure in departures {
            if !self.departures.contains(departure) {
                self.departures.push_back(*departure);
            }
        }
        while self.departures.len() > self.config.limits.departures_max {
            self.departures.pop_front();
        }
    }

    /// Takes up the group that a view names, once.
    pub(crate) fn take_up(&mut self, cluster: Option<ClusterId>) {
        if self.record.cluster.is_none() {
            self.record.cluster = cluster;
        }
    }
}
