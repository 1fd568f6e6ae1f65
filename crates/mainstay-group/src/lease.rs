//! Until when a member may serve its view, and how long others may because of what it answered (leases: Gray and Cheriton 1989).
//!
//! A member serves for [`Timing::lease`] after it *sent* a beat that a majority has echoed. Who echoes a beat owes it that time: once it
//! has promised to a ballot it echoes no more, and says in its promise for how long others may still serve. Any majority of promises meets
//! any majority of echoes, so that the proposer, who waits these times out before it installs, knows of every lease that runs. Clocks need
//! not agree; only their rates do, within [`Timing::clock_drift_ppm_max`], and they must go on while the machine is suspended
//! (`CLOCK_BOOTTIME`).

use crate::limits::Timing;
use mainstay_types::id::StoreId;
use mainstay_types::time::Time;
use mainstay_types::view::{MemberId, View};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// Of my beats, the latest that each has echoed, by my clock.
    echoed: BTreeMap<StoreId, Time>,
    /// Of the beats of others, the latest that I took in: when it was sent, by their clock, and when it came, by mine.
    taken: BTreeMap<StoreId, (u64, Time)>,
    /// When the latest that I have echoed came, by my clock: it was sent before, and gives a lease from then on, however often it is echoed.
    granted: BTreeMap<StoreId, Time>,
    until: Time,
}

impl Leases {
    /// A new view begins: nothing of the old one counts.
    pub(crate) fn begin(&mut self) {
        *self = Self::default();
    }

    /// A beat of `store` came.
    pub(crate) fn beat(&mut self, store: StoreId, sent: u64, now: Time) {
        let (latest, came) = self.taken.entry(store).or_default();
        if sent > *latest {
            (*latest, *came) = (sent, now);
        }
    }

    /// What is echoed to `store`; with `grants` it is owed a lease for it.
    pub(crate) fn echo(&mut self, store: StoreId, grants: bool) -> u64 {
        let Some(&(sent, came)) = self.taken.get(&store) else { return 0 };
        if grants {
            self.granted.insert(store, came);
        }
        sent
    }

    /// `store` has echoed a beat of mine, so that I may serve for longer.
    pub(crate) fn echoed(&mut self, view: &View, me: StoreId, store: StoreId, echo: Time, timing: &Timing) {
        let latest = self.echoed.entry(store).or_default();
        *latest = echo.max(*latest);
        let mut echoes: Vec<(Time, u64)> = view
            .members
            .iter()
            .filter(|member| member.joiner.store != me)
            .map(|m| {
                (self.echoed.get(&m.joiner.store).copied().unwrap_or_default(), u64::from(m.offer.weight))
            })
            .collect();
        echoes.sort_unstable_by_key(|&(at, _)| std::cmp::Reverse(at));
        let mut votes = view.weight_of(me);
        for (at, weight) in echoes {
            votes += weight;
            // With an arbiter one member may go on alone, so that nobody serves without all.
            let enough = if view.arbitrated { votes == view.weight() } else { view.is_majority(votes) };
            if enough {
                if at > Time::EPOCH {
                    self.until = self.until.max(at.after(timing.lease));
                }
                return;
            }
        }
    }

    /// Until when I may serve; for ever where I need nobody.
    pub(crate) fn until(&self, view: &View, me: StoreId) -> Time {
        let mine = view.weight_of(me);
        let alone = if view.arbitrated { mine == view.weight() } else { view.is_majority(mine) };
        if alone { Time(u64::MAX) } else { self.until }
    }

    /// For how long, in nanoseconds, each other member may still serve because of what I answered. `started` is when this life began:
    /// what an earlier one answered is not known any more, and taken to be all that was possible.
    pub(crate) fn owed(
        &self,
        view: &View,
        me: StoreId,
        now: Time,
        started: Option<Time>,
        timing: &Timing,
    ) -> Vec<(MemberId, u64)> {
        let lasts = timing.outlasting(timing.lease);
        let owed = |store: StoreId| {
            let since = self.granted.get(&store).copied().max(started)?;
            let left = since.after(lasts).since(now);
            (!left.is_zero()).then(|| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
        };
        let others = view.members.iter().filter(|member| member.joiner.store != me);
        others.filter_map(|member| Some((member.id(), owed(member.joiner.store)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::Incarnation;
    use mainstay_types::view::{Address, JoinerId, Member, Offer, ViewId};

    fn view() -> View {
        let members = (1..=3).map(|number| {
            let address = Address::v4([10, 0, 0, number], 1);
            let joiner = JoinerId { address, store: StoreId([number; 16]), life: Incarnation(1) };
            Member { born: ViewId(1), joiner, offer: Offer::server() }
        });
        View { id: ViewId(1), arbitrated: false, members: members.collect() }
    }

    #[test]
    fn a_lease_runs_from_the_sending_of_a_beat_that_a_majority_echoed() {
        let (view, timing, me) = (view(), Timing::default(), StoreId([1; 16]));
        let mut leases = Leases::default();
        assert_eq!(leases.until(&view, me), Time::EPOCH);
        leases.echoed(&view, me, StoreId([2; 16]), Time(500), &timing);
        assert_eq!(leases.until(&view, me), Time(500).after(timing.lease));
        leases.echoed(&view, me, StoreId([3; 16]), Time(400), &timing);
        assert_eq!(
            leases.until(&view, me),
            Time(500).after(timing.lease),
            "an older beat takes nothing away"
        );
    }

    #[test]
    fn a_store_that_came_back_owes_a_whole_lease_to_everybody() {
        let (view, timing, me) = (view(), Timing::default(), StoreId([1; 16]));
        let started = Time(1_000_000_000);
        let mut leases = Leases::default();
        assert_eq!(leases.owed(&view, me, started, None, &timing), []);
        let owed = leases.owed(&view, me, started, Some(started), &timing);
        let whole = u64::try_from(timing.outlasting(timing.lease).as_nanos()).expect("it is short");
        assert_eq!(owed.iter().map(|&(_, left_ns)| left_ns).collect::<Vec<_>>(), [whole; 2]);
        let later = started.after(timing.lease * 2);
        assert_eq!(leases.owed(&view, me, later, Some(started), &timing), []);
        leases.beat(StoreId([2; 16]), 7, later);
        assert_eq!(leases.echo(StoreId([2; 16]), true), 7);
        assert_eq!(leases.owed(&view, me, later, Some(started), &timing), [(view.members[1].id(), whole)]);
    }

    #[test]
    fn a_beat_that_is_echoed_again_gives_no_longer_lease() {
        let (view, timing, me) = (view(), Timing::default(), StoreId([1; 16]));
        let came = Time(1_000_000_000);
        let mut leases = Leases::default();
        leases.beat(StoreId([2; 16]), 7, came);
        let later = came.after(timing.lease * 2);
        assert_eq!(leases.echo(StoreId([2; 16]), true), 7);
        leases.beat(StoreId([2; 16]), 7, later);
        assert_eq!(leases.echo(StoreId([2; 16]), true), 7);
        assert_eq!(leases.owed(&view, me, later, None, &timing), []);
    }
}
