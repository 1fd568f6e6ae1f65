//! The acceptor: what a store promises and accepts about the view that follows, durably before it says so.
//!
//! With its first promise a member wedges for good in its view: the way out is the next view, which may have the same members. So what it
//! reports is all that it will ever have done in this view.

use crate::ballot::{Ballot, Promised, Proposal};
use crate::effect::Effect;
use crate::group::Group;
use crate::message::Body;
use mainstay_types::id::StoreId;
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, ViewId};
use std::collections::BTreeSet;

/// A process that has promised.
#[derive(Debug)]
pub(crate) struct Wedged {
    /// When it last heard of a change that goes on.
    pub(crate) since: Time,
    /// What its regions hold, once that is known. Nothing while they lack data of the view: then they have done nothing in it.
    report: Option<Vec<u8>>,
    /// The last request for it.
    request: Option<u64>,
    /// Who has proposed.
    proposers: BTreeSet<StoreId>,
    /// Whom it owes a promise that waits for the report.
    asked: Option<(Ballot, Address)>,
}

impl Group {
    pub(crate) fn prepared(&mut self, now: Time, ballot: Ballot, from: JoinerId, out: &mut Vec<Effect>) {
        let proposer = from.address;
        self.rounds_seen = self.rounds_seen.max(ballot.round);
        if ballot < self.record.promised {
            let promised = self.record.promised;
            self.send(proposer, Body::Rejected { promised }, out);
            return;
        }
        if ballot > self.record.promised {
            self.record.promised = ballot;
            self.persist(out);
            // Its own ballot, if it has one: this store accepts it no more.
            self.rejected(ballot);
        }
        let goes_on = self.is_patient_with(now, from);
        let wedged = self.wedge(now, goes_on, out);
        wedged.proposers.insert(from.store);
        wedged.asked = Some((ballot, proposer));
        self.promise(now, out);
    }

    /// Whether a proposal is a reason to wait for longer before this process makes its own. Patience with a proposer that cannot hear
    /// would never end: so with each once, and again with members that show that they hear.
    fn is_patient_with(&self, now: Time, proposer: JoinerId) -> bool {
        let again = self.wedged.as_ref().is_some_and(|wedged| wedged.proposers.contains(&proposer.store));
        let hears = self.is_member()
            && self.record.view().is_some_and(|view| view.member(&proposer).is_some())
            && !self.suspicion.is_silent(proposer.store, now, &self.config.timing);
        !again || hears || proposer.store == self.me.store
    }

    fn wedge(&mut self, now: Time, goes_on: bool, out: &mut Vec<Effect>) -> &mut Wedged {
        if self.wedged.is_none() {
            self.wedged = Some(Wedged {
                since: now,
                report: Some(Vec::new()),
                request: None,
                proposers: BTreeSet::new(),
                asked: None,
            });
            let rules = self.config.rules;
            let settled_once = rules.keep(Rule::ReadyBeforeVote) && rules.keep(Rule::SettledOnce);
            if self.record.is_ready() || !settled_once {
                self.ask_for_report(out);
            }
        }
        let wedged = self.wedged.as_mut().expect("it was just put there");
        if goes_on {
            wedged.since = now;
        }
        wedged
    }

    fn ask_for_report(&mut self, out: &mut Vec<Effect>) {
        if let Some(wedged) = &mut self.wedged {
            self.reports_asked += 1;
            (wedged.report, wedged.request) = (None, Some(self.reports_asked));
            out.push(Effect::Wedge { view: self.record.view_id(), request: self.reports_asked });
        }
    }

    /// What the regions hold is known.
    pub(crate) fn reported(
        &mut self,
        now: Time,
        (view, request): (ViewId, u64),
        bytes: Vec<u8>,
        out: &mut Vec<Effect>,
    ) {
        let wedged = self.wedged.as_mut().filter(|wedged| wedged.request == Some(request));
        if let Some(wedged) = wedged.filter(|_| view == self.record.view_id()) {
            wedged.report = Some(bytes);
            self.promise(now, out);
        }
    }

    /// The regions have all the data only now: a promise that says so must not go without their report.
    pub(crate) fn report_late(&mut self, out: &mut Vec<Effect>) {
        self.ask_for_report(out);
    }

    fn promise(&mut self, now: Time, out: &mut Vec<Effect>) {
        let Some(Wedged { report: Some(report), asked, .. }) = &mut self.wedged else { return };
        let Some((ballot, proposer)) = asked.take() else { return };
        let Some(view) = self.record.view() else { return };
        let began = self.returned_at.filter(|_| self.config.rules.keep(Rule::GrantsOutliveCrashes));
        let promised = Promised {
            accepted: self.record.accepted.clone(),
            report: report.clone(),
            grants: self.leases.owed(view, self.me.store, now, began, &self.config.timing),
            ready: self.record.ready,
        };
        self.send(proposer, Body::Promise { ballot, promised: Box::new(promised) }, out);
    }

    pub(crate) fn accept(
        &mut self,
        now: Time,
        ballot: Ballot,
        (proposal, proposer): (Proposal, Address),
        out: &mut Vec<Effect>,
    ) {
        self.rounds_seen = self.rounds_seen.max(ballot.round);
        if ballot < self.record.promised {
            let promised = self.record.promised;
            self.send(proposer, Body::Rejected { promised }, out);
            return;
        }
        self.wedge(now, true, out);
        let accepted = Some((ballot, proposal));
        if self.record.accepted != accepted {
            self.record.promised = ballot;
            self.record.accepted = accepted;
            self.persist(out);
        }
        self.send(proposer, Body::Accepted { ballot }, out);
    }
}
