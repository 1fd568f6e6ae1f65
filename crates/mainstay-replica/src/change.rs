//! What the group asks of the regions when the view changes, and what they answer: several regions as one.
//!
//! An answer goes to the group when it is whole, and only the one to the last question counts.

use crate::definition::{Definition, RegionId};
use crate::effect::Effect;
use crate::hosted::Hosted;
use crate::message::outside;
use crate::packed::{Cuts, RegionCut, RegionReport, Reports};
use crate::replica::Replica;
use mainstay_group::ballot::Ballot;
use mainstay_group::event::Event as GroupEvent;
use mainstay_region::effect::{Effect as RegionEffect, Event as RegionEvent};
use mainstay_region::limits::Config as RegionConfig;
use mainstay_region::region::{Phase, Region};
use mainstay_types::id::StoreId;
use mainstay_types::machine::Machine;
use mainstay_types::time::Time;
use mainstay_types::view::{JoinerId, MemberId, View, ViewId};
use std::collections::{BTreeMap, BTreeSet};

/// Reports are gathered.
#[derive(Debug)]
pub(crate) struct Reporting {
    view: ViewId,
    request: u64,
    reports: BTreeMap<RegionId, RegionReport>,
}

/// Regions settle.
#[derive(Debug)]
pub(crate) struct Settling {
    view: ViewId,
    ballot: Ballot,
    full: Vec<StoreId>,
    cuts: BTreeMap<RegionId, Vec<u8>>,
}

/// Regions fetch.
#[derive(Debug)]
pub(crate) struct Fetching {
    view: ViewId,
    ready: BTreeSet<RegionId>,
}

/// What a region that never was begins with.
pub(crate) fn founding(config: RegionConfig) -> Vec<u8> {
    let mut out = Vec::new();
    Region::new(config).step(Time::EPOCH, RegionEvent::Settle { reports: Vec::new() }, &mut out);
    let cut = out.into_iter().find_map(|effect| match effect {
        RegionEffect::Cut(cut) => Some(cut),
        _ => None,
    });
    cut.expect("no reports lead to an empty cut")
}

impl Replica {
    /// A view ends: the regions stop and report.
    pub(crate) fn wedge(&mut self, now: Time, view: ViewId, request: u64) {
        self.reporting = Some(Reporting { view, request, reports: BTreeMap::new() });
        self.each_region(now, |_| RegionEvent::Wedge { view, request });
        self.report();
    }

    /// A region has reported.
    pub(crate) fn reported(&mut self, region: RegionId, request: u64, bytes: Vec<u8>) {
        let asked = self.reporting.as_mut().filter(|reporting| reporting.request == request);
        let Some(reporting) = asked else { return };
        let machine = &self.regions[&region].machine;
        let full = machine.phase() != Phase::Learning && machine.standing() == reporting.view;
        reporting.reports.insert(region, RegionReport { region, full, bytes });
        self.report();
    }

    fn report(&mut self) {
        let whole = |reporting: &mut Reporting| reporting.reports.len() == self.regions.len();
        let Some(Reporting { view, request, reports }) = self.reporting.take_if(whole) else { return };
        let bytes = Reports { regions: reports.into_values().collect() }.encode();
        self.tell(GroupEvent::Report { view, request, bytes });
    }

    /// Stores enough have reported: each region makes its cut.
    pub(crate) fn settle(
        &mut self,
        now: Time,
        (view, ballot): (ViewId, Ballot),
        reports: &[(JoinerId, Vec<u8>)],
        out: &mut Vec<Effect>,
    ) {
        let mut full = Vec::new();
        let mut of_regions: BTreeMap<RegionId, Vec<(MemberId, Vec<u8>)>> = BTreeMap::new();
        for (joiner, bytes) in reports {
            let Ok(Reports { regions }) = Reports::decode(bytes) else {
                return out.push(Effect::Unreadable { from: Some(*joiner) });
            };
            if regions.len() == self.regions.len() && regions.iter().all(|report| report.full) {
                full.push(joiner.store);
            }
            for report in regions {
                of_regions.entry(report.region).or_default().push((outside(joiner), report.bytes));
            }
        }
        self.settling = Some(Settling { view, ballot, full, cuts: BTreeMap::new() });
        self.each_region(now, |region| RegionEvent::Settle {
            reports: of_regions.remove(&region).unwrap_or_default(),
        });
        self.conclude();
    }

    /// A region has settled.
    pub(crate) fn cut(&mut self, region: RegionId, bytes: Vec<u8>) {
        if let Some(settling) = &mut self.settling {
            settling.cuts.insert(region, bytes);
        }
        self.conclude();
    }

    /// A region could not read a report: nothing comes of this attempt.
    pub(crate) fn unsettled(&mut self, out: &mut Vec<Effect>) {
        self.settling = None;
        out.push(Effect::Unreadable { from: None });
    }

    fn conclude(&mut self) {
        let whole = |settling: &mut Settling| settling.cuts.len() == self.regions.len();
        let Some(Settling { view, ballot, full, cuts }) = self.settling.take_if(whole) else { return };
        let regions = cuts.into_iter().map(|(region, bytes)| {
            let definition = self.next_definition(region);
            RegionCut { region, definition, bytes }
        });
        let bytes = Cuts { regions: regions.collect(), full }.encode();
        self.tell(GroupEvent::Cut { view, ballot, bytes });
    }

    /// A view is decided: the regions get what they lack of it.
    pub(crate) fn fetch(&mut self, now: Time, view: &View, cut: &[u8], out: &mut Vec<Effect>) {
        let Ok(cuts) = Cuts::decode(cut) else {
            return out.push(Effect::Unreadable { from: None });
        };
        let me = view.member(&self.config.me).map_or_else(|| outside(&self.config.me), |member| member.id());
        let sources = cuts.sources(view, self.config.me.store);
        self.learned.clear();
        self.fetching = Some(Fetching { view: view.id, ready: BTreeSet::new() });
        let count = cuts.regions.len();
        for RegionCut { region, definition, bytes: cut } in cuts.regions {
            self.host(region, definition, count);
            let (view, sources) = (view.clone(), sources.clone());
            self.region_step(now, region, RegionEvent::Fetch { me, view, cut, sources });
        }
        self.fetched();
    }

    /// A view shows itself to this node, which is in none: the regions are filled by its members.
    pub(crate) fn learn(&mut self, now: Time, view: &View, cut: &[u8], out: &mut Vec<Effect>) {
        if self.view().is_some() || view.id <= self.group().record().view_id() {
            // It is old news: what was shown waited for the record.
            return;
        }
        let Ok(cuts) = Cuts::decode(cut) else {
            return out.push(Effect::Unreadable { from: None });
        };
        let (me, sources) = (outside(&self.config.me), cuts.sources(view, self.config.me.store));
        self.learned.clear();
        let count = cuts.regions.len();
        for RegionCut { region, definition, .. } in cuts.regions {
            self.host(region, definition, count);
            self.region_step(now, region, RegionEvent::Learn { me, sources: sources.clone() });
        }
        self.all_learned();
    }

    /// A region has been filled.
    pub(crate) fn learned(&mut self, region: RegionId) {
        self.learned.insert(region);
        self.all_learned();
    }

    fn all_learned(&mut self) {
        if self.learned.len() == self.regions.len() {
            self.tell(GroupEvent::Learned);
        }
    }

    /// Takes up a region that another node told of, or what one is from this view on.
    fn host(&mut self, region: RegionId, definition: Definition, regions: usize) {
        match self.regions.get_mut(&region) {
            Some(hosted) => hosted.define(definition),
            None => {
                let machine = Region::new(self.config.of_region(&definition, regions));
                self.regions.insert(region, Hosted::new(definition, machine));
            }
        }
    }

    /// A region has what a view begins with, safely.
    pub(crate) fn ready(&mut self, region: RegionId, view: ViewId) {
        if let Some(fetching) = self.fetching.as_mut().filter(|fetching| fetching.view == view) {
            fetching.ready.insert(region);
        }
        self.fetched();
    }

    fn fetched(&mut self) {
        let whole = |fetching: &mut Fetching| fetching.ready.len() == self.regions.len();
        if let Some(Fetching { view, .. }) = self.fetching.take_if(whole) {
            self.founded();
            self.tell(GroupEvent::Fetched { view });
        }
    }
}
