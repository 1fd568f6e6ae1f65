//! Where views come from: one agreed sequence, without a protocol of its own. It keeps what a group promises the region (more than half of the view's
//! stores report, and enough of them have the data; no lease of who did not report is left when the next view begins) and is as bad as a group can be
//! otherwise: views begin while members are still being filled, members are let in that have nothing yet, reports are asked for twice and come late.

use crate::random::Random;
use mainstay_types::view::{MemberId, View, ViewId};
use std::collections::{BTreeMap, BTreeSet};

/// What the source does at the moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Doing {
    /// The view serves.
    Nothing,
    /// It gathers reports of the view, from stores: the answers to this request and later ones.
    Gathering { reports: BTreeMap<u8, (MemberId, Vec<u8>)>, first: u64, since: u64 },
    /// One of them settles.
    Settling { reports: BTreeMap<u8, (MemberId, Vec<u8>)>, settler: u8, since: u64 },
    /// The next view is agreed, and has not begun.
    Preparing,
}

/// The source.
pub(crate) struct Source {
    pub(crate) view: View,
    pub(crate) cut: Vec<u8>,
    pub(crate) doing: Doing,
    /// The latest view that has begun.
    pub(crate) begun: ViewId,
    /// The view whose data the cut ends.
    pub(crate) base: ViewId,
    /// Stores that have taken the view's cut.
    pub(crate) prepared: BTreeSet<u8>,
    /// The latest view whose cut each store has taken.
    pub(crate) ready: BTreeMap<u8, ViewId>,
    /// The view that each request for reports was about.
    pub(crate) requests: Vec<ViewId>,
    /// The end of the latest lease that each store was given.
    pub(crate) leases: BTreeMap<u8, u64>,
    /// The view must not begin before.
    pub(crate) not_before: u64,
    pub(crate) next_change: u64,
}

impl Source {
    pub(crate) fn new(view: View) -> Self {
        Self {
            begun: ViewId::NONE,
            base: ViewId::NONE,
            view,
            cut: Vec::new(),
            doing: Doing::Preparing,
            prepared: BTreeSet::new(),
            ready: BTreeMap::new(),
            requests: Vec::new(),
            leases: BTreeMap::new(),
            not_before: 0,
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

    /// The latest view that one of these has the data of.
    fn latest<'a>(&self, stores: impl Iterator<Item = &'a u8>) -> ViewId {
        stores.filter_map(|store| self.ready.get(store).copied()).max().unwrap_or_default()
    }

    /// Whether one of these has all the data of the view, so that there is something to settle; else the view's own cut goes into the next one.
    pub(crate) fn settles(&self, reports: &BTreeMap<u8, (MemberId, Vec<u8>)>) -> bool {
        self.latest(reports.keys()) >= self.view.id
    }

    /// Whether these may decide the next view: a majority, of which one has the data that the view's cut came of.
    pub(crate) fn enough(&self, reports: &BTreeMap<u8, (MemberId, Vec<u8>)>) -> bool {
        self.majority(reports.keys()) && self.latest(reports.keys()) >= self.base
    }

    /// The base of a next view with these stores, if one of them has its data: else nobody could take the cut. Who proposes a view is in it, so that
    /// there is none of nobody, also where the data is what every copy begins with.
    pub(crate) fn base_of(&self, settles: bool, stores: &[u8]) -> Option<ViewId> {
        let base = if settles { self.view.id } else { self.base };
        (!stores.is_empty() && self.latest(stores.iter()) >= base).then_some(base)
    }

    /// The view that the reports lead to.
    pub(crate) fn agree(
        &mut self,
        view: View,
        base: ViewId,
        cut: Vec<u8>,
        reports: &BTreeMap<u8, (MemberId, Vec<u8>)>,
    ) {
        assert!(view.id == self.view.id.next(), "views are agreed one after another");
        // Who reported takes nothing more in; whoever did not may still read under its lease.
        let unreported = self.leases.iter().filter(|(store, _)| !reports.contains_key(*store));
        self.not_before = unreported.map(|(_, &until)| until).max().unwrap_or(0).max(self.not_before);
        self.base = base;
        self.view = view;
        self.cut = cut;
        self.leases.clear();
        self.prepared.clear();
        self.doing = Doing::Preparing;
    }

    /// The number of a new request for reports.
    pub(crate) fn request(&mut self) -> u64 {
        self.requests.push(self.view.id);
        self.requests.len() as u64
    }

    /// The view that a request was about.
    pub(crate) fn asked(&self, request: u64) -> ViewId {
        self.requests[usize::try_from(request).expect("requests are few") - 1]
    }

    /// How long until it looks for something to change again.
    pub(crate) fn pause(&mut self, now: u64, random: &mut Random) {
        self.next_change = now + random.between(100, 800) * super::world::MILLISECOND;
    }

    pub(crate) fn id(&self) -> ViewId {
        self.view.id
    }
}
