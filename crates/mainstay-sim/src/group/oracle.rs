//! What a run has shown so far, and must never contradict.

use crate::group::process::{Fact, Process, take_facts};
use crate::properties::{
    Property, Violation, identity_once, one_side_serves, one_successor, outsiders_unheard,
};
use crate::reach::{Reach, Reached};
use mainstay_group::ballot::Proposal;
use mainstay_group::message::{Body, Message};
use mainstay_group::record::Record;
use mainstay_types::id::{ClusterId, StoreId};
use mainstay_types::view::{JoinerId, Member, MemberId, View, ViewId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct Oracle {
    /// Every view that was said to be decided.
    decided: BTreeMap<(ClusterId, ViewId), Proposal>,
    /// Who was which member.
    members: BTreeMap<(ClusterId, MemberId), JoinerId>,
    /// Members that a view named.
    named: BTreeSet<(ClusterId, MemberId)>,
    /// Who first offered what.
    offered: BTreeMap<(ClusterId, ViewId), (StoreId, Proposal)>,
    /// What was acknowledged to a client, and in which view.
    acknowledged: BTreeMap<Fact, (ClusterId, ViewId)>,
    /// Stores that were lost for good, and the newest view that was decided by then.
    lost: BTreeMap<StoreId, ViewId>,
}

impl Oracle {
    /// The newest decided view of the group.
    pub(crate) fn newest(&self, cluster: ClusterId) -> Option<&Proposal> {
        let (_, newest) =
            self.decided.range((cluster, ViewId::NONE)..=(cluster, ViewId(u64::MAX))).next_back()?;
        Some(newest)
    }

    /// A store of the group is lost for good.
    pub(crate) fn loses(&mut self, cluster: ClusterId, store: StoreId) {
        self.lost.insert(store, self.newest(cluster).map_or(ViewId::NONE, |newest| newest.view.id));
    }

    /// Whether the newest view can never be followed: it lets in stores that were lost before it was decided, and what is left has no majority of its votes.
    /// Who let them in had heard them ask, and could not know. That nobody goes on then is what keeps two sides from it; only the lost store would end it.
    ///
    /// Stores that were in a view when they were lost are no excuse: the world loses none that a majority needs.
    pub(crate) fn waits_for_lost(&self, cluster: ClusterId) -> bool {
        self.newest(cluster).is_some_and(|Proposal { view, .. }| {
            let is_lost = |member: &&Member| {
                member.born == view.id
                    && self.lost.get(&member.joiner.store).is_some_and(|&newest| newest < view.id)
            };
            let lost = view.members.iter().filter(is_lost).map(|member| u64::from(member.offer.weight));
            !view.is_majority(view.weight() - lost.sum::<u64>())
        })
    }

    /// Somebody says that this is decided.
    pub(crate) fn decided(
        &mut self,
        cluster: ClusterId,
        proposal: &Proposal,
        reached: &mut Reached,
    ) -> Result<(), Violation> {
        let key = (cluster, proposal.view.id);
        if let Some(known) = self.decided.get(&key) {
            return one_successor::check(known, proposal);
        }
        let held: BTreeSet<Fact> = take_facts(&proposal.cut).collect();
        // What was settled on once may have been read, whoever has begun the view since.
        let before = self.decided.range((cluster, ViewId::NONE)..key).next_back();
        let after = self.decided.range(key..=(cluster, ViewId(u64::MAX))).next();
        for (earlier, later) in
            [(before.map(|(_, one)| one), Some(proposal)), (Some(proposal), after.map(|(_, one)| one))]
        {
            let (Some(earlier), Some(later)) = (earlier, later) else { continue };
            let held: BTreeSet<Fact> = take_facts(&later.cut).collect();
            if let Some(fact) = take_facts(&earlier.cut).find(|fact| !held.contains(fact)) {
                return Err(lost(fact, earlier.view.id, later));
            }
        }
        reached.add(Reach::CutCarriedOver, u64::from(proposal.base.next() < proposal.view.id));
        for (fact, (of, view)) in &self.acknowledged {
            if *of == cluster && *view < proposal.view.id && !held.contains(fact) {
                return Err(lost(*fact, *view, proposal));
            }
        }
        let joined = proposal.view.members.iter().filter(|member| member.born == proposal.view.id);
        self.named.extend(joined.clone().map(|member| (cluster, member.id())));
        reached.add(Reach::SeveralJoined, u64::from(joined.count() > 1));
        let anew = proposal.view.members.iter().all(|member| member.born == proposal.view.id);
        reached.add(Reach::BeganAnew, u64::from(anew && proposal.view.id > ViewId(1)));
        self.decided.insert(key, proposal.clone());
        Ok(())
    }

    /// `proposer` wants this to be accepted.
    pub(crate) fn offered(
        &mut self,
        cluster: ClusterId,
        proposer: StoreId,
        proposal: &Proposal,
        reached: &mut Reached,
    ) {
        let key = (cluster, proposal.view.id);
        let (first, known) = self.offered.entry(key).or_insert_with(|| (proposer, proposal.clone()));
        reached.add(Reach::ProposalAdopted, u64::from(*first != proposer && known == proposal));
    }

    /// A process enters a view.
    pub(crate) fn enters(&mut self, cluster: ClusterId, view: &View, who: JoinerId) -> Result<(), Violation> {
        let Some(member) = view.members.iter().find(|member| member.joiner.address == who.address) else {
            return Ok(());
        };
        let first = *self.members.entry((cluster, member.id())).or_insert(who);
        identity_once::check(member.id(), &first, &who)
    }

    /// A client was told that `fact` is written, in `view`.
    pub(crate) fn acknowledged(
        &mut self,
        cluster: ClusterId,
        view: ViewId,
        fact: Fact,
    ) -> Result<(), Violation> {
        self.acknowledged.insert(fact, (cluster, view));
        let later = self.decided.range((cluster, view.next())..=(cluster, ViewId(u64::MAX)));
        for (_, proposal) in later {
            if !take_facts(&proposal.cut).any(|held| held == fact) {
                return Err(lost(fact, view, proposal));
            }
        }
        Ok(())
    }

    /// `one` serves now; so may nobody in another view.
    pub(crate) fn serves(
        &self,
        cluster: ClusterId,
        one: (MemberId, ViewId),
        now_ns: u64,
        processes: &[Process],
    ) -> Result<(), Violation> {
        for process in processes {
            let Some(running) = &process.running else { continue };
            let group = &running.group;
            let view = group.record().view_id();
            if view != one.1
                && group.record().cluster == Some(cluster)
                && group.serves(process.clock.shows(now_ns))
                && let Some(other) = group.member_id()
            {
                one_side_serves::check(one, (other, view))?;
            }
        }
        Ok(())
    }

    /// What a process says of its promises must be on its disk.
    pub(crate) fn leaves(&self, message: &Message, durable: Option<&Record>) -> Result<(), Violation> {
        let said = match &message.body {
            Body::Promise { ballot, .. } | Body::Accepted { ballot } => *ballot,
            _ => return Ok(()),
        };
        let accepts = matches!(message.body, Body::Accepted { .. });
        let holds = durable.is_some_and(|record| {
            let accepted = record.accepted.as_ref().map(|(ballot, _)| *ballot);
            record.view_id() > message.view
                || (record.view_id() == message.view
                    && record.promised >= said
                    && (!accepts || accepted >= Some(said)))
        });
        if holds {
            return Ok(());
        }
        let what = format!(
            "{} says {} about the successor of {}, and a crash now would forget it",
            message.from,
            message.body.name(),
            message.view
        );
        Err(Violation::new(Property::StableBeforeRelease, what))
    }

    /// Whether a message is from outside the receiver's view and says something about it.
    pub(crate) fn is_outside(message: &Message, record: &Record) -> bool {
        let about_view = !matches!(
            message.body,
            Body::Install { .. }
                | Body::Join { .. }
                | Body::Located { .. }
                | Body::Shunned { .. }
                | Body::Refused { .. }
        );
        let inside = message.cluster == record.cluster
            && message.view == record.view_id()
            && record.view().is_some_and(|view| {
                view.of_store(message.from.store)
                    .is_some_and(|member| member.joiner.life <= message.from.life)
            });
        about_view && !inside
    }

    pub(crate) fn heard_outside(message: &Message, before: &Record, after: &Record) -> Result<(), Violation> {
        outsiders_unheard::check(message, before, after)
    }

    /// How many members never entered the view that let them in.
    pub(crate) fn never_entered(&self) -> usize {
        self.named.iter().filter(|key| !self.members.contains_key(key)).count()
    }
}

fn lost(fact: Fact, view: ViewId, proposal: &Proposal) -> Violation {
    let what = format!(
        "write {fact} was acknowledged or settled on in view {view}, and the cut before {} lacks it",
        proposal.view
    );
    Violation::new(Property::AcknowledgedSurvives, what)
}
