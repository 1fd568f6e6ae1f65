//! What comes in: the fence of the view, and what is said to those outside it.
//!
//! A message about the view is heard only from a store of the very same view, and, but for ballots, only from the life that is the member.
//! Nothing else changes anything here; who is behind is told what was decided, who is out is told that it is.

use crate::effect::Effect;
use crate::group::{Group, Standing};
use crate::joining::Waiting;
use crate::message::{Body, Message, Refusal};
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::{JoinerId, ViewId};

impl Group {
    pub(crate) fn hear(&mut self, now: Time, message: Message, out: &mut Vec<Effect>) {
        let Message { cluster, view, from, body } = message;
        if self.standing == Standing::Gone || (from.store == self.me.store && from.life != self.me.life) {
            return;
        }
        if let (Some(ours), Some(theirs)) = (self.record.cluster, cluster)
            && ours != theirs
        {
            match body {
                Body::Join { .. } => {
                    let refusal = Refusal::OtherCluster { ours, theirs };
                    self.send(from.address, Body::Refused { refusal }, out);
                }
                Body::Refused { refusal } => self.refused(refusal, out),
                _ => {}
            }
            return;
        }
        match body {
            Body::Install { proposal } => {
                if proposal.view.of_store(self.me.store).is_some() {
                    self.take_up(cluster);
                }
                self.learn(now, proposal.clone(), out);
                self.shown(cluster, from, proposal, out);
            }
            Body::Join { offer, votes, hears, learned } => {
                let asks = Waiting {
                    joiner: from,
                    offer,
                    votes_after: votes.then_some(view),
                    hears,
                    learned,
                    since: now,
                    heard: now,
                };
                self.asked_in(now, view, asks, out);
            }
            Body::Located { coordinator } => {
                if self.standing == Standing::Outside {
                    self.located(now, (view, from), coordinator, out);
                } else if view > self.record.view_id() {
                    // The others have gone on: whoever lets in there answers this member too.
                    self.learn_address(coordinator);
                    self.asking.member_heard = Some(now);
                }
            }
            Body::Askers { joiners } => self.others_ask(joiners, out),
            Body::Shunned { departure } => self.shunned(now, view, departure, out),
            Body::Refused { refusal } => self.refused(refusal, out),
            body => match self.may_speak(view, &from, &body) {
                true => self.take_in(now, from, body, out),
                false => self.turn_away(view, from, out),
            },
        }
    }

    /// Whether the one who speaks is heard in the view that it names.
    fn may_speak(&self, named: ViewId, from: &JoinerId, body: &Body) -> bool {
        let Some(view) = self.record.view() else { return false };
        if named != view.id && self.config.rules.keep(Rule::ViewFence) {
            return false;
        }
        let about_ballots = matches!(
            body,
            Body::Prepare { .. }
                | Body::Promise { .. }
                | Body::Rejected { .. }
                | Body::Accept { .. }
                | Body::Accepted { .. }
        );
        view.of_store(from.store).is_some_and(|member| {
            member.joiner == *from || (about_ballots && member.joiner.life <= from.life)
        })
    }

    fn take_in(&mut self, now: Time, from: JoinerId, body: Body, out: &mut Vec<Effect>) {
        match body {
            Body::Beat { sent, echo, grants, ready } if self.is_member() => {
                let (view, timing) = (self.record.view().expect("a member has a view"), &self.config.timing);
                self.leases.beat(from.store, sent, now);
                if grants && echo > 0 {
                    self.leases.echoed(view, self.me.store, from.store, Time(echo), timing);
                }
                // Who does not hear cannot go on with anything, so that it counts as silent however loud it is.
                if echo > 0 && now.since(Time(echo)) <= timing.lease {
                    self.suspicion.hear(from.store, now);
                }
                match grants {
                    true => self.ending.remove(&from.store),
                    false => self.ending.insert(from.store),
                };
                if ready {
                    self.ready.insert(from.store);
                }
                if echo == 0 && sent > 0 {
                    // It knew the view later than it was beaten to, and has nothing of this member that it could grant a lease for. The answer has an
                    // echo, and is answered by nobody.
                    self.beat_to(now, from, out);
                }
            }
            Body::Verify { suspect } if self.is_member() => self.asked_about(now, from.store, suspect, out),
            Body::Verified { suspect, silent } => self.answered_about(now, from.store, suspect, silent),
            Body::Leave => {
                self.leavers.insert(from.store);
            }
            Body::Prepare { ballot } => self.prepared(now, ballot, from, out),
            Body::Promise { ballot, promised } => self.promised(now, from, (ballot, *promised), out),
            Body::Rejected { promised } => self.rejected(promised),
            Body::Accept { ballot, proposal } => self.accept(now, ballot, (proposal, from.address), out),
            Body::Accepted { ballot } => self.accepted(now, from.store, ballot, out),
            _ => {}
        }
    }

    /// Tells who speaks from outside the view where it stands, at most once in a beat.
    fn turn_away(&mut self, named: ViewId, from: JoinerId, out: &mut Vec<Effect>) {
        let Some(installed) = &self.record.installed else { return };
        if named >= installed.view.id || !self.told.insert(from.address) {
            return;
        }
        let behind =
            installed.view.of_store(from.store).is_some_and(|member| member.joiner.life <= from.life);
        let body = if behind {
            Body::Install { proposal: installed.clone() }
        } else {
            let departure = self.departures.iter().rev().find(|departure| departure.store == from.store);
            Body::Shunned { departure: departure.copied() }
        };
        self.send(from.address, body, out);
    }
}
