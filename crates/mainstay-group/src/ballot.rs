//! The consensus on the next view: ballots, what is proposed, and which promises are enough (Paxos: Lamport 1998, 2001).

use crate::message::MessageError;
use mainstay_types::codec::{Reader, Truncated, put_bytes};
use mainstay_types::id::StoreId;
use mainstay_types::rules::{Rule, Rules};
use mainstay_types::view::{MEMBERS_MAX, MemberId, View, ViewId};
use std::collections::BTreeMap;

/// Numbers an attempt to agree on the successor of one view. No two stores have one in common; the higher one takes over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ballot {
    /// One more than any that its proposer has seen in this view.
    pub round: u32,
    /// Who proposes.
    pub proposer: StoreId,
}

impl Ballot {
    /// Below every attempt.
    pub const NONE: Self = Self { round: 0, proposer: StoreId([0; 16]) };

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.round.to_le_bytes());
        out.extend_from_slice(&self.proposer.0);
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, Truncated> {
        let round = from.u32()?;
        Ok(Self { round, proposer: StoreId(from.take(16)?.try_into().expect("16 bytes were taken")) })
    }
}

/// Why a member is not in the next view.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Because {
    /// It asked to leave.
    Left,
    /// So many votes, a majority, had heard nothing of it for [`crate::limits::Timing::silence`].
    Silent {
        /// The votes.
        votes: u64,
    },
    /// Its store came back as another life, or another store speaks from its address.
    Replaced,
    /// The view began anew with the stores that came back, and it was not among those that were heard.
    Absent,
}

/// One who is not in the next view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departure {
    /// Who.
    pub member: MemberId,
    /// Its store.
    pub store: StoreId,
    /// Why.
    pub because: Because,
    /// The first view without it.
    pub view: ViewId,
}

impl Departure {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.member.put(out);
        out.extend_from_slice(&self.store.0);
        let (kind, votes) = match self.because {
            Because::Left => (0, 0),
            Because::Silent { votes } => (1, votes),
            Because::Replaced => (2, 0),
            Because::Absent => (3, 0),
        };
        out.push(kind);
        out.extend_from_slice(&votes.to_le_bytes());
        out.extend_from_slice(&self.view.0.to_le_bytes());
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, MessageError> {
        let member = MemberId::take(from)?;
        let store = StoreId(from.take(16)?.try_into().expect("16 bytes were taken"));
        let (kind, votes) = (from.u8()?, from.u64()?);
        let because = match (kind, votes) {
            (0, 0) => Because::Left,
            (1, votes) => Because::Silent { votes },
            (2, 0) => Because::Replaced,
            (3, 0) => Because::Absent,
            (kind, _) => return Err(MessageError::Reason { kind }),
        };
        Ok(Self { member, store, because, view: ViewId(from.u64()?) })
    }
}

/// What is agreed on: the next view, what of the old one counts, and who is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The view.
    pub view: View,
    /// The view whose regions settled on the cut: the one before, or an earlier one if nobody has done anything since.
    pub base: ViewId,
    /// What they settled on; opaque here.
    pub cut: Vec<u8>,
    /// Who was in the old view and is not in this one.
    pub departures: Vec<Departure>,
}

impl Proposal {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.view.put(out);
        out.extend_from_slice(&self.base.0.to_le_bytes());
        put_bytes(out, &self.cut);
        let count = u16::try_from(self.departures.len()).expect("departures are limited by members");
        out.extend_from_slice(&count.to_le_bytes());
        self.departures.iter().for_each(|departure| departure.put(out));
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, MessageError> {
        let view = View::take(from)?;
        let base = ViewId(from.u64()?);
        let cut = from.bytes()?.to_vec();
        let count = usize::from(from.u16()?);
        if count > MEMBERS_MAX {
            return Err(MessageError::TooMany { what: "departures", count });
        }
        let departures = (0..count).map(|_| Departure::take(from)).collect::<Result<_, _>>()?;
        Ok(Self { view, base, cut, departures })
    }
}

/// Whether `weight` votes decide about the successor of `view`.
pub(crate) fn decides(view: &View, weight: u64, rules: Rules) -> bool {
    view.is_majority(weight) || (!rules.keep(Rule::StrictMajority) && weight * 2 >= view.weight())
}

/// What a promise says of its store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Promised {
    /// The proposal of the highest ballot that it has accepted.
    pub accepted: Option<(Ballot, Proposal)>,
    /// What its regions hold, if it has all the data of the view; opaque here.
    pub report: Vec<u8>,
    /// How long, in nanoseconds by its clock, members may still serve because of beats that it answered.
    pub grants: Vec<(MemberId, u64)>,
    /// The last view that it had all the data of; 0 for none.
    pub ready: ViewId,
}

/// What the next view builds on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ground {
    /// What the reports of those who had all the data of this view hold.
    Reports(ViewId),
    /// The cut that this view began with.
    Cut,
}

/// What the successor of `installed` can build on, out of these promises. `None`: they are not enough.
///
/// A strict majority of the view's votes meets every majority that accepted something in it. If one of them has had all the data of the
/// view (is *ready*), everything it ever acknowledged can be settled out of their reports. If none has, nobody acknowledged anything in
/// it, and nothing is settled a second time: what was settled before it goes into the next view as it is. So that somebody can still take
/// that in, one of them must have the data that it was settled on.
pub(crate) fn ground(
    installed: &Proposal,
    promises: &BTreeMap<StoreId, Promised>,
    rules: Rules,
) -> Option<Ground> {
    let view = &installed.view;
    let votes: u64 = promises.keys().map(|&store| view.weight_of(store)).sum();
    // With an arbiter all members acknowledge, so that any of them knows.
    let enough = if view.arbitrated { votes > 0 } else { decides(view, votes, rules) };
    if !enough {
        return None;
    }
    let latest = latest(view, promises);
    let settled_again = latest > ViewId::NONE && !rules.keep(Rule::SettledOnce);
    if latest == view.id || settled_again || !rules.keep(Rule::ReadyBeforeVote) {
        return Some(Ground::Reports(latest));
    }
    (latest >= installed.base).then_some(Ground::Cut)
}

/// The last view that one who votes in `view` and promised had all the data of.
fn latest(view: &View, promises: &BTreeMap<StoreId, Promised>) -> ViewId {
    let voters = promises.iter().filter(|(store, _)| view.weight_of(**store) > 0);
    voters.map(|(_, promised)| promised.ready).max().unwrap_or(ViewId::NONE)
}

/// The proposal that must be gone on with: that of the highest ballot which any of them accepted.
pub(crate) fn adopted(promises: &BTreeMap<StoreId, Promised>, rules: Rules) -> Option<Proposal> {
    if !rules.keep(Rule::AdoptAccepted) {
        return None;
    }
    let accepted = promises.values().filter_map(|promised| promised.accepted.as_ref());
    accepted.max_by_key(|(ballot, _)| *ballot).map(|(_, proposal)| proposal.clone())
}
