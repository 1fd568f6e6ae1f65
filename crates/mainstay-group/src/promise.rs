//! The acceptor: what a store promises and accepts about the view that follows, durably before it says so.
//!
//! With its first promise a member wedges for good in its view: the way out is the next view, which may have the same members. So what it
//! reports is all that it will ever have done in this view.

use crate::ballot::{Ballot, Promised, Proposal};
use crate::effect::Effect;
use crate::group::Group;
use crate::message::Body;
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, ViewId};

/// A process that has promised.
#[derive(Debug)]
pub(crate) struct Wedged {
    /// When it last heard of a change that goes on.
    pub(crate) since: Time,
    report: Option<Vec<u8>>,
    /// How many reports were asked for and have not come. Only the last one counts.
    reports_due: u32,
    /// Whom it owes a promise that waits for the report.
    asked: Option<(Ballot, Address)>,
}

impl Group {
    pub(crate) fn prepared(&mut self, now: Time, ballot: Ballot, proposer: Address, out: &mut Vec<Effect>) {
        self.rounds_seen = self.rounds_seen.max(ballot.round);
        if ballot < self.record.promised {
            let promised = self.record.promised;
            self.send(proposer, Body::Rejected { promised }, out);
            return;
        }
        if ballot > self.record.promised {
            self.record.promised = ballot;
            self.persist(out);
        }
        self.wedge(now, out).asked = Some((ballot, proposer));
        self.promise(now, out);
    }

    fn wedge(&mut self, now: Time, out: &mut Vec<Effect>) -> &mut Wedged {
        let view = self.record.view_id();
        let wedged = self.wedged.get_or_insert_with(|| {
            out.push(Effect::Wedge { view });
            Wedged { since: now, report: None, reports_due: 1, asked: None }
        });
        wedged.since = now;
        wedged
    }

    /// What the regions hold is known.
    pub(crate) fn reported(&mut self, now: Time, view: ViewId, bytes: Vec<u8>, out: &mut Vec<Effect>) {
        if view != self.record.view_id() {
            return;
        }
        if let Some(wedged) = &mut self.wedged {
            wedged.reports_due = wedged.reports_due.saturating_sub(1);
            if wedged.reports_due == 0 {
                wedged.report = Some(bytes);
                self.promise(now, out);
            }
        }
    }

    /// The regions have got more than they reported: a promise that says they have it must not go with the older report.
    pub(crate) fn report_again(&mut self, out: &mut Vec<Effect>) {
        let view = self.record.view_id();
        if let Some(wedged) = &mut self.wedged {
            wedged.report = None;
            wedged.reports_due += 1;
            out.push(Effect::Wedge { view });
        }
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
            ready: self.record.ready.clone(),
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
        self.wedge(now, out);
        let accepted = Some((ballot, proposal));
        if self.record.accepted != accepted {
            self.record.promised = ballot;
            self.record.accepted = accepted;
            self.persist(out);
        }
        self.send(proposer, Body::Accepted { ballot }, out);
    }
}
