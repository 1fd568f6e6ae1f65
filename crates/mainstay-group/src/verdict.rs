//! Verify before verdict: a member counts as dead when a majority of votes hears nothing of it, never because one says so.
//!
//! A link that is cut between two members only, or in one direction only, therefore changes no view.

use crate::ballot::{Because, decides};
use crate::effect::Effect;
use crate::group::Group;
use crate::message::Body;
use mainstay_types::id::StoreId;
use mainstay_types::time::Time;
use mainstay_types::view::MemberId;
use std::collections::BTreeSet;

/// The others are being asked about a member.
#[derive(Debug)]
pub(crate) struct Verification {
    suspect: MemberId,
    since: Time,
    silent: BTreeSet<StoreId>,
}

impl Group {
    /// Asks about the first member that this one does not hear, and ends a question that found no majority.
    pub(crate) fn verify(&mut self, now: Time, out: &mut Vec<Effect>) {
        let Some(view) = self.record.view() else { return };
        if let Some(verification) = &self.verifying {
            if now.since(verification.since) <= self.config.timing.verification {
                return;
            }
            // The others hear it: so it is this member that does not. Another one may be dead all the same.
            self.acquitted = Some(verification.suspect);
            self.verifying = None;
            self.suspicion.doubt();
            return;
        }
        let behind =
            self.acquitted.and_then(|last| view.members.iter().position(|member| member.id() == last));
        let start = behind.map_or(0, |place| place + 1);
        let silent = view.members[start..].iter().chain(&view.members[..start]).find(|member| {
            let store = member.joiner.store;
            store != self.me.store
                && !self.verdicts.contains_key(&member.id())
                && self.suspicion.is_silent(store, now, &self.config.timing)
        });
        let Some(suspect) = silent.map(|member| member.id()) else { return };
        if view.arbitrated {
            // Whoever is left asks the arbiter; there is nobody else to ask.
            self.verdicts.insert(suspect, Because::Silent { votes: view.weight_of(self.me.store) });
            return;
        }
        let others: Vec<_> = self.others();
        self.verifying = Some(Verification { suspect, since: now, silent: BTreeSet::from([self.me.store]) });
        for to in others {
            self.send(to, Body::Verify { suspect }, out);
        }
        self.judge(now);
    }

    /// Somebody asks whether this member hears `suspect`.
    pub(crate) fn asked_about(&mut self, now: Time, from: StoreId, suspect: MemberId, out: &mut Vec<Effect>) {
        let Some(view) = self.record.view() else { return };
        let (Some(asker), Some(member)) = (view.of_store(from), view.named(suspect)) else { return };
        let (asker, store) = (asker.joiner.address, member.joiner.store);
        let mine = store == self.me.store;
        let silent = !mine
            && self.suspicion.unheard(store, now).is_some_and(|unheard| unheard > self.config.timing.lease);
        if mine {
            self.suspicion.doubt();
            self.beat(now, out);
        }
        self.send(asker, Body::Verified { suspect, silent }, out);
    }

    /// Somebody answered.
    pub(crate) fn answered_about(&mut self, now: Time, from: StoreId, suspect: MemberId, silent: bool) {
        if let Some(verification) =
            self.verifying.as_mut().filter(|verification| verification.suspect == suspect)
        {
            if silent {
                verification.silent.insert(from);
            }
            self.judge(now);
        }
    }

    fn judge(&mut self, now: Time) {
        let (Some(view), Some(verification)) = (self.record.view(), &self.verifying) else { return };
        let votes = verification.silent.iter().map(|&store| view.weight_of(store)).sum();
        let heard_since = view.named(verification.suspect).is_none_or(|member| {
            self.suspicion.unheard(member.joiner.store, now).is_some_and(|u| u <= self.config.timing.lease)
        });
        if heard_since {
            self.verifying = None;
        } else if decides(view, votes, self.config.rules) {
            self.verdicts.insert(verification.suspect, Because::Silent { votes });
            self.verifying = None;
        }
    }
}
