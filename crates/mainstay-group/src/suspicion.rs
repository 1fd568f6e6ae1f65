//! Who was heard when. A member that does not hear enough doubts itself first (Lifeguard: Dadgar et al. 2018).

use crate::limits::Timing;
use mainstay_types::id::StoreId;
use mainstay_types::time::Time;
use mainstay_types::view::View;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often over a member doubts itself at most: it then waits so many times as long, and once more, before it suspects another.
const DOUBT_MAX: u32 = 4;

#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    heard: BTreeMap<StoreId, Time>,
    doubt: u32,
}

impl Suspicion {
    /// A view begins: all other members count as heard.
    pub(crate) fn begin(&mut self, view: &View, me: StoreId, now: Time) {
        let stores = view.members.iter().map(|member| member.joiner.store);
        self.heard = stores.filter(|&store| store != me).map(|store| (store, now)).collect();
    }

    pub(crate) fn hear(&mut self, store: StoreId, now: Time) {
        if let Some(heard) = self.heard.get_mut(&store) {
            *heard = now;
        }
    }

    /// This process stood still: what it did not hear meanwhile says nothing about others.
    pub(crate) fn stood_still(&mut self, now: Time) {
        self.heard.values_mut().for_each(|heard| *heard = now);
        self.doubt();
    }

    /// Something says that it is this member which does not hear, or is not heard.
    pub(crate) fn doubt(&mut self) {
        self.doubt = (self.doubt + 1).min(DOUBT_MAX);
    }

    /// Everybody was heard lately: doubt shrinks.
    pub(crate) fn look(&mut self, now: Time, timing: &Timing) {
        if self.heard.values().all(|heard| now.since(*heard) <= timing.beat * 2) {
            self.doubt = self.doubt.saturating_sub(1);
        }
    }

    /// How long nothing was heard of a store; `None` if it is not watched.
    pub(crate) fn unheard(&self, store: StoreId, now: Time) -> Option<Duration> {
        self.heard.get(&store).map(|heard| now.since(*heard))
    }

    /// Whether a store is to be suspected.
    pub(crate) fn is_silent(&self, store: StoreId, now: Time, timing: &Timing) -> bool {
        self.unheard(store, now).is_some_and(|unheard| unheard > timing.silence * (1 + self.doubt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::Incarnation;
    use mainstay_types::view::{Address, JoinerId, Member, Offer, ViewId};

    #[test]
    fn a_process_that_stood_still_suspects_nobody_and_waits_longer_from_then_on() {
        let timing = Timing::default();
        let store = StoreId([1; 16]);
        let joiner = JoinerId { address: Address::v4([10, 0, 0, 1], 1), store, life: Incarnation(1) };
        let members = vec![Member { born: ViewId(1), joiner, offer: Offer::server() }];
        let mut suspicion = Suspicion::default();
        let view = View { id: ViewId(1), arbitrated: false, members };
        suspicion.begin(&view, StoreId([2; 16]), Time::EPOCH);
        let late = Time::EPOCH.after(timing.silence * 3 / 2);
        assert!(suspicion.is_silent(store, late, &timing));
        suspicion.stood_still(late);
        assert!(!suspicion.is_silent(store, late.after(timing.silence * 3 / 2), &timing));
        assert!(suspicion.is_silent(store, late.after(timing.silence * 5 / 2), &timing));
    }

    #[test]
    fn doubt_goes_once_all_others_are_heard() {
        let timing = Timing::default();
        let [me, other] = [1, 2].map(|number| Member {
            born: ViewId(1),
            joiner: JoinerId {
                address: Address::v4([10, 0, 0, number], 1),
                store: StoreId([number; 16]),
                life: Incarnation(1),
            },
            offer: Offer::server(),
        });
        let (mine, theirs) = (me.joiner.store, other.joiner.store);
        let view = View { id: ViewId(1), arbitrated: false, members: vec![me, other] };
        let mut suspicion = Suspicion::default();
        suspicion.begin(&view, mine, Time::EPOCH);
        suspicion.doubt();
        let later = Time::EPOCH.after(timing.silence);
        suspicion.hear(theirs, later);
        suspicion.look(later, &timing);
        assert!(suspicion.is_silent(theirs, later.after(timing.silence * 3 / 2), &timing));
    }
}
