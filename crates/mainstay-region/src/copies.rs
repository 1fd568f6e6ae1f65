//! The copies of a region in one view: its servers, the oldest first, who stamps which shard, and how many are enough.

use crate::limits::Acknowledgement;
use mainstay_types::view::{MemberId, MemberKind, View, ViewId};

/// The copies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Copies {
    /// The view.
    pub view: ViewId,
    members: Vec<(MemberId, u64)>,
    weight: u64,
}

impl Copies {
    /// Those of a view: administrators hold no data and stamp nothing.
    #[must_use]
    pub fn of(view: &View) -> Self {
        let servers = view.members.iter().filter(|member| member.offer.kind == MemberKind::Server);
        Self {
            view: view.id,
            members: servers.map(|member| (member.id(), u64::from(member.offer.weight))).collect(),
            weight: view.weight(),
        }
    }

    /// Their names, the oldest first.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = MemberId> + '_ {
        self.members.iter().map(|&(id, _)| id)
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Whether this is one of them.
    #[must_use]
    pub fn has(&self, member: MemberId) -> bool {
        self.ids().any(|id| id == member)
    }

    /// Who gives versions to a shard: the shards are dealt out over all copies.
    #[must_use]
    pub fn stamper(&self, shard: u16) -> Option<MemberId> {
        let count = self.members.len();
        (count > 0).then(|| self.members[usize::from(shard) % count].0)
    }

    /// The chain of a shard: its stamper, then the others by age, around.
    #[must_use]
    pub fn next_in_chain(&self, shard: u16, after: MemberId) -> Option<MemberId> {
        let count = self.members.len();
        let place = self.ids().position(|id| id == after)?;
        let next = self.members[(place + 1) % count].0;
        (Some(next) != self.stamper(shard)).then_some(next)
    }

    /// Whether those for which `has` is true are enough. A majority is one of votes, since that is what changes the view: the two then
    /// have a member in common.
    #[must_use]
    pub fn enough(&self, acknowledgement: Acknowledgement, has: impl Fn(MemberId) -> bool) -> bool {
        match acknowledgement {
            Acknowledgement::All => self.ids().all(has),
            Acknowledgement::Majority => {
                let votes: u64 =
                    self.members.iter().filter(|(id, _)| has(*id)).map(|(_, weight)| weight).sum();
                votes > self.weight / 2
            }
        }
    }
}
