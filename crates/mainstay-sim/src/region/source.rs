//! Where views come from: one agreed sequence, without a protocol of its own. It keeps what a group promises the region (a report counts only
//! from a store that has the view's own cut; more than half of the view's stores report; no lease of who did not report is left when the next
//! view begins) and suspects, changes, gives up and leaves out as it likes otherwise.

use crate::random::Random;
use mainstay_types::view::{MemberId, View, ViewId};
use std::collections::{BTreeMap, BTreeSet};

/// What the source does at the moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Doing {
    /// The view serves.
    Nothing,
    /// It gathers reports of the view, from stores.
    Gathering { reports: BTreeMap<u8, (MemberId, Vec<u8>)>, since: u64 },
    /// One of them settles.
    Settling { reports: BTreeMap<u8, (MemberId, Vec<u8>)>, settler: u8, since: u64 },
    /// The next view is agreed, and its members take its cut.
    Preparing { ready: BTreeSet<u8>, since: u64 },
}

/// The source.
pub(crate) struct Source {
    pub(crate) view: View,
    pub(crate) cut: Vec<u8>,
    pub(crate) doing: Doing,
    /// Stores that have taken the view's cut.
    pub(crate) prepared: BTreeSet<u8>,
    /// The end of the latest lease that each store was given.
    pub(crate) leases: BTreeMap<u8, u64>,
    /// The view must not begin before.
    pub(crate) not_before: u64,
    /// The view has begun for some.
    pub(crate) begun: bool,
    pub(crate) next_change: u64,
}

impl Source {
    pub(crate) fn new(view: View) -> Self {
        Self {
            view,
            cut: Vec::new(),
            doing: Doing::Nothing,
            prepared: BTreeSet::new(),
            leases: BTreeMap::new(),
            not_before: 0,
            begun: false,
            next_change: 0,
        }
    }

    pub(crate) fn has_store(&self, store: u8) -> bool {
        self.view.members.iter().any(|member| member.joiner.store.0[0] == store)
    }

    pub(crate) fn members(&self) -> Vec<MemberId> {
        self.view.members.iter().map(mainstay_types::view::Member::id).collect()
    }

    /// Whether these stores are more than half of the view.
    pub(crate) fn majority<'a>(&self, stores: impl Iterator<Item = &'a u8>) -> bool {
        let votes = stores.filter(|store| self.has_store(**store)).count() as u64;
        self.view.is_majority(votes)
    }

    /// The view that the reports lead to.
    pub(crate) fn agree(
        &mut self,
        view: View,
        cut: Vec<u8>,
        reports: &BTreeMap<u8, (MemberId, Vec<u8>)>,
        now: u64,
    ) {
        assert!(view.id == self.view.id.next(), "views are agreed one after another");
        // Who reported takes nothing more in; whoever did not may still read under its lease.
        let unreported = self.leases.iter().filter(|(store, _)| !reports.contains_key(*store));
        self.not_before = unreported.map(|(_, &until)| until).max().unwrap_or(0).max(self.not_before);
        self.view = view;
        self.cut = cut;
        self.leases.clear();
        self.prepared.clear();
        self.begun = false;
        self.doing = Doing::Preparing { ready: BTreeSet::new(), since: now };
    }

    /// How long until it looks for something to change again.
    pub(crate) fn pause(&mut self, now: u64, random: &mut Random) {
        self.next_change = now + random.between(100, 800) * super::world::MILLISECOND;
    }

    pub(crate) fn id(&self) -> ViewId {
        self.view.id
    }
}
