//! The consensus on the next view: ballots, what is proposed, and which promises are enough (Paxos: Lamport 1998, 2001).

use crate::message::MessageError;
use mainstay_types::codec::{Reader, Truncated, put_bytes};
use mainstay_types::id::StoreId;
use mainstay_types::rules::{Rule, Rules};
use mainstay_types::view::{MEMBERS_MAX, Member, MemberId, View, ViewId};
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
        let because = match kind {
            0 => Because::Left,
            1 => Because::Silent { votes },
            2 => Because::Replaced,
            3 => Because::Absent,
            kind => return Err(MessageError::Reason { kind }),
        };
        Ok(Self { member, store, because, view: ViewId(from.u64()?) })
    }
}

/// What is agreed on: the next view, what of the old one counts, and who is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The view.
    pub view: View,
    /// What the regions of the old view settled on; opaque here.
    pub cut: Vec<u8>,
    /// Who was in the old view and is not in this one.
    pub departures: Vec<Departure>,
}

impl Proposal {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.view.put(out);
        put_bytes(out, &self.cut);
        let count = u16::try_from(self.departures.len()).expect("departures are limited by members");
        out.extend_from_slice(&count.to_le_bytes());
        self.departures.iter().for_each(|departure| departure.put(out));
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, MessageError> {
        let view = View::take(from)?;
        let cut = from.bytes()?.to_vec();
        let count = usize::from(from.u16()?);
        if count > MEMBERS_MAX {
            return Err(MessageError::TooMany { what: "departures", count });
        }
        let departures = (0..count).map(|_| Departure::take(from)).collect::<Result<_, _>>()?;
        Ok(Self { view, cut, departures })
    }
}

/// Which view a store last had all the data of, with the votes in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ready {
    /// The view.
    pub view: ViewId,
    /// Its stores, with their votes.
    pub votes: Vec<(StoreId, u32)>,
}

impl Ready {
    pub(crate) fn in_view(view: &View) -> Self {
        let votes = |member: &Member| (member.joiner.store, member.offer.weight);
        Self { view: view.id, votes: view.members.iter().map(votes).collect() }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.view.0.to_le_bytes());
        out.extend_from_slice(&u16::try_from(self.votes.len()).expect("members are limited").to_le_bytes());
        for (store, weight) in &self.votes {
            out.extend_from_slice(&store.0);
            out.extend_from_slice(&weight.to_le_bytes());
        }
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, MessageError> {
        let view = ViewId(from.u64()?);
        let count = usize::from(from.u16()?);
        if count > MEMBERS_MAX {
            return Err(MessageError::TooMany { what: "votes", count });
        }
        let mut votes = Vec::with_capacity(count);
        for _ in 0..count {
            let store = StoreId(from.take(16)?.try_into().expect("16 bytes were taken"));
            votes.push((store, from.u32()?));
        }
        Ok(Self { view, votes })
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
    /// What its regions hold; opaque here.
    pub report: Vec<u8>,
    /// How long, in nanoseconds by its clock, members may still serve because of beats that it answered.
    pub grants: Vec<(MemberId, u64)>,
    /// The last view that it had all the data of.
    pub ready: Option<Ready>,
}

/// Whether these promises hold everything that the view, and those before it, ever acknowledged.
///
/// Two conditions. A strict majority of the view's votes: so they meet every majority that accepted something in it. And the data from
/// before it: one of them has had all of it (is *ready*); or none has, so that nothing was acknowledged in it, and they hold a majority of
/// the last view that one of them was ready in.
pub(crate) fn suffice(view: &View, promises: &BTreeMap<StoreId, Promised>, rules: Rules) -> bool {
    let votes: u64 = promises.keys().map(|&store| view.weight_of(store)).sum();
    if !view.arbitrated && !decides(view, votes, rules) {
        return false;
    }
    if !rules.keep(Rule::ReadyBeforeVote) {
        return true;
    }
    let ready = |promised: &Promised| promised.ready.as_ref().map_or(ViewId::NONE, |ready| ready.view);
    let Some(latest) =
        promises.values().filter_map(|promised| promised.ready.as_ref()).max_by_key(|r| r.view)
    else {
        return false;
    };
    if latest.view == view.id {
        return true;
    }
    if view.arbitrated {
        // All members acknowledge there, so that one who was ready in the view before holds all of it, if nobody served since.
        return latest.view.next() == view.id
            && view.members.iter().all(|m| promises.contains_key(&m.joiner.store));
    }
    let all: u64 = latest.votes.iter().map(|&(_, weight)| u64::from(weight)).sum();
    let held =
        latest.votes.iter().filter(|(store, _)| promises.get(store).is_some_and(|p| ready(p) == latest.view));
    held.map(|&(_, weight)| u64::from(weight)).sum::<u64>() > all / 2
}

/// The proposal that must be gone on with: that of the highest ballot which any of them accepted.
pub(crate) fn adopted(promises: &BTreeMap<StoreId, Promised>, rules: Rules) -> Option<Proposal> {
    if !rules.keep(Rule::AdoptAccepted) {
        return None;
    }
    let accepted = promises.values().filter_map(|promised| promised.accepted.as_ref());
    accepted.max_by_key(|(ballot, _)| *ballot).map(|(_, proposal)| proposal.clone())
}
