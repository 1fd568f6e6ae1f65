//! What the source of views does, pass by pass.

use super::source::Doing;
use super::world::{MILLISECOND, RegionWorld};
use crate::reach::Reach;
use mainstay_region::effect::Event;
use mainstay_region::region::Phase;
use mainstay_types::view::{Member, MemberId, View, ViewId};
use std::collections::BTreeMap;

/// How long the source waits for one thing before it tries something else.
const PATIENCE: u64 = 250 * MILLISECOND;

impl RegionWorld {
    pub(crate) fn act_as_source(&mut self) {
        match self.source.doing.clone() {
            Doing::Nothing => self.watch(),
            Doing::Gathering { reports, first, since } => self.gather(&reports, first, since),
            Doing::Settling { reports, settler, since } => {
                let gone = !self.hosts.iter().any(|host| host.number == settler && host.up());
                if gone || self.now - since > PATIENCE {
                    let first = self.source.request();
                    self.source.doing = Doing::Gathering { reports, first, since: self.now };
                }
            }
            Doing::Preparing => self.prepare(),
        }
    }

    fn serves(&self, at: usize) -> bool {
        let region = self.hosts[at].region.as_ref();
        region.is_some_and(|region| region.phase() == Phase::Serving && region.standing() == self.source.id())
    }

    fn full(&self, at: usize) -> bool {
        let region = self.hosts[at].region.as_ref();
        region
            .is_some_and(|region| region.phase() != Phase::Learning && region.standing() == self.source.id())
    }

    /// Whether it had all the data of the view that was settled last: by whom others can be filled, also before it has taken that view's cut.
    fn had_all(&self, at: usize) -> bool {
        let region = self.hosts[at].region.as_ref();
        region
            .is_some_and(|region| region.phase() != Phase::Learning && region.standing() >= self.source.base)
    }

    pub(crate) fn is_member(&self, at: usize) -> bool {
        self.hosts[at].up() && self.source.members().contains(&self.hosts[at].id)
    }

    fn watch(&mut self) {
        for at in 0..self.hosts.len() {
            if self.is_member(at) && (self.healed() || self.random.chance(950)) {
                self.lease(at);
            }
        }
        self.fill_others();
        self.fill_members();
        if self.now < self.source.next_change {
            return;
        }
        let up: Vec<usize> = (0..self.hosts.len()).filter(|&at| self.hosts[at].up()).collect();
        let missing = self.source.members().iter().any(|id| !up.iter().any(|&at| self.hosts[at].id == *id));
        let joins = up.iter().any(|&at| !self.is_member(at) && self.can_join(at));
        let whim = !self.healed() && self.random.chance(20);
        if missing || joins || whim {
            self.begin_gathering();
        }
    }

    /// Whether it has everything, or nearly, that a member of the next view needs. Where no member has, whoever comes may be the one who does: a group
    /// lets it in (docs/group.md, learn first), and would wait for ever if it did not. Members that are about to have it are waited for.
    fn can_join(&self, at: usize) -> bool {
        let waited = self.now >= self.source.next_change + 1_000 * MILLISECOND;
        self.hosts[at].learned || self.full(at) || (waited && self.none_full())
    }

    /// Whether no member has the data of the view.
    fn none_full(&self) -> bool {
        !(0..self.hosts.len()).any(|at| self.is_member(at) && self.full(at))
    }

    /// Lets those that are not in the view be filled by those that are.
    fn fill_others(&mut self) {
        let serving: Vec<usize> =
            (0..self.hosts.len()).filter(|&at| self.is_member(at) && self.serves(at)).collect();
        if serving.is_empty() {
            return;
        }
        for at in 0..self.hosts.len() {
            let host = &self.hosts[at];
            if !host.up() || self.is_member(at) || self.full(at) {
                continue;
            }
            let from =
                host.learns_from.filter(|from| serving.iter().any(|&other| self.hosts[other].id == *from));
            if host.learning && from.is_some() {
                continue;
            }
            let from = self.hosts[*self.random.pick(&serving)].id;
            let host = &mut self.hosts[at];
            (host.learning, host.learns_from, host.learn_id) = (true, Some(from), Some(host.id));
            host.learned = false;
            let me = host.id;
            self.say(at, Event::Learn { me, sources: vec![from] });
        }
    }

    /// Members that are not full yet are told again who could fill them.
    fn fill_members(&mut self) {
        for at in 0..self.hosts.len() {
            if self.is_member(at) && !self.full(at) && self.random.chance(50) {
                self.say_fetch(at);
            }
        }
    }

    fn begin_gathering(&mut self) {
        let first = self.ask_for_reports();
        self.source.doing = Doing::Gathering { reports: BTreeMap::new(), first, since: self.now };
    }

    fn ask_for_reports(&mut self) -> u64 {
        let (view, request) = (self.source.id(), self.source.request());
        for at in 0..self.hosts.len() {
            let host = &self.hosts[at];
            if !host.up() || !self.source.has_store(host.store) {
                continue;
            }
            if !self.source.prepared.contains(&host.store) {
                self.say_fetch(at);
            }
            self.say(at, Event::Wedge { view, request });
        }
        request
    }

    pub(crate) fn say_fetch(&mut self, at: usize) {
        let (me, view) = (self.hosts[at].id, self.source.view.clone());
        let cut = self.source.cut.clone();
        let sources = (0..self.hosts.len()).filter(|&at| self.had_all(at));
        let sources = sources.map(|at| self.hosts[at].id).collect();
        self.say(at, Event::Fetch { me, view, cut, sources });
    }

    pub(crate) fn reported(&mut self, at: usize, request: u64, report: Vec<u8>) {
        let (store, id, view) = (self.hosts[at].store, self.hosts[at].id, self.source.id());
        let asked = self.source.asked(request);
        self.hosts[at].reported = Some(asked).max(self.hosts[at].reported);
        let nothing = self.hosts[at].region.as_ref().is_some_and(|region| region.phase() == Phase::Learning);
        if nothing {
            self.hit(Reach::ReportedNothing);
        }
        let counts = self.source.has_store(store) && asked == view;
        if let Doing::Gathering { reports, first, .. } = &mut self.source.doing
            && counts
            && request >= *first
        {
            reports.insert(store, (id, report));
        }
    }

    fn gather(&mut self, reports: &BTreeMap<u8, (MemberId, Vec<u8>)>, first: u64, since: u64) {
        let up: Vec<u8> = self.hosts.iter().filter(|host| host.up()).map(|host| host.store).collect();
        let all =
            up.iter().filter(|store| self.source.has_store(**store)).all(|store| reports.contains_key(store));
        let enough = self.source.enough(reports);
        if enough && (all || self.now - since > PATIENCE || self.random.chance(100)) {
            if !self.source.settles(reports) {
                self.hit(Reach::CutCarried);
                return self.conclude(self.source.cut.clone(), &reports.clone());
            }
            let able: Vec<usize> = (0..self.hosts.len())
                .filter(|&at| self.hosts[at].up() && reports.contains_key(&self.hosts[at].store))
                .collect();
            if able.is_empty() {
                return;
            }
            let settler = *self.random.pick(&able);
            let number = self.hosts[settler].number;
            let said = reports.values().cloned().collect();
            self.source.doing =
                Doing::Settling { reports: reports.clone(), settler: number, since: self.now };
            self.say(settler, Event::Settle { reports: said });
        } else if self.now - since > PATIENCE {
            self.source.doing = Doing::Gathering { reports: reports.clone(), first, since: self.now };
            self.ask_for_reports();
        }
    }

    pub(crate) fn settled(&mut self, at: usize, cut: Vec<u8>) {
        let Doing::Settling { reports, settler, .. } = &self.source.doing else { return };
        if self.hosts[at].number != *settler {
            return;
        }
        let reports = reports.clone();
        self.conclude(cut, &reports);
    }

    /// The next view is agreed.
    fn conclude(&mut self, cut: Vec<u8>, reports: &BTreeMap<u8, (MemberId, Vec<u8>)>) {
        let id = ViewId(self.source.id().0 + 1);
        let mut members: Vec<Member> = Vec::new();
        let mut left_out = false;
        for host in self.hosts.iter().filter(|host| host.up() && reports.contains_key(&host.store)) {
            // Now and then one is left out that did report: suspicion is no knowledge.
            if !self.healed()
                && !members.is_empty()
                && self.random.clone().chance(40)
                && self.source.view.members.len() > 2
            {
                left_out = true;
                continue;
            }
            let born = self
                .source
                .view
                .members
                .iter()
                .find(|member| member.id() == host.id)
                .map(|member| member.born);
            members.push(host.member(born.unwrap_or(id)));
        }
        self.random.draw();
        if left_out {
            self.hit(Reach::MemberLeftOut);
        }
        let bold = !self.healed() && self.random.chance(150);
        let none_full = self.none_full();
        let full = reports.keys().filter(|store| self.source.prepared.contains(store)).count();
        for host in self.hosts.iter().filter(|host| host.up() && !reports.contains_key(&host.store)) {
            // Those that have no copy yet are at most as many as the others. Now and then one is let in that has nothing at all.
            if none_full || ((host.learned || bold) && members.len() < 2 * full) {
                members.push(host.member(id));
            }
        }
        members.sort_by_key(|member| member.born);
        let stores: Vec<u8> = members.iter().map(|member| member.joiner.store.0[0]).collect();
        let Some(base) = self.source.base_of(self.source.settles(reports), &stores) else {
            return self.begin_gathering();
        };
        let view = View { id, arbitrated: false, members };
        for host in &mut self.hosts {
            if let Some(member) = view.members.iter().find(|member| member.joiner.store.0[0] == host.store) {
                host.id = member.id();
            }
        }
        self.trace_line(format_args!("agreed: {view}"));
        self.source.agree(view, base, cut, reports);
        for at in 0..self.hosts.len() {
            if self.is_member(at) {
                self.say_fetch(at);
            }
        }
    }

    pub(crate) fn ready(&mut self, at: usize, view: ViewId) {
        let store = self.hosts[at].store;
        let known = self.source.ready.entry(store).or_default();
        *known = view.max(*known);
        if view == self.source.id() && self.source.has_store(store) {
            self.source.prepared.insert(store);
            if self.source.begun == view && self.is_member(at) {
                self.say(at, Event::Installed { view });
            }
            if let Doing::Gathering { reports, .. } = &mut self.source.doing {
                // It has the data only now: what it reported before does not count as the report of one who has.
                reports.remove(&store);
            }
        }
    }

    /// The view begins as soon as no lease of the one before is left, whoever of its members has its cut by then.
    fn prepare(&mut self) {
        let members: Vec<usize> = (0..self.hosts.len()).filter(|&at| self.is_member(at)).collect();
        let whole = members.len() == self.source.view.members.len();
        if !whole && self.random.chance(300) {
            self.hit(Reach::ViewGivenUp);
            self.begin_gathering();
            return;
        }
        if self.now < self.source.not_before || self.random.chance(300) {
            return;
        }
        self.source.doing = Doing::Nothing;
        self.hit(Reach::ViewInstalled);
        let view = self.source.id();
        self.source.begun = view;
        for at in members {
            if self.hosts[at].learned {
                self.hit(Reach::Joined);
            }
            let host = &mut self.hosts[at];
            (host.learned, host.learning, host.learns_from) = (false, false, None);
            // A group says so to nobody who has not said that it has the cut, safely: what it did before would not count as a report.
            if self.source.prepared.contains(&self.hosts[at].store) {
                self.say(at, Event::Installed { view });
            }
        }
        let mut random = self.random.clone();
        self.random.draw();
        let now = self.now;
        self.source.pause(now, &mut random);
    }

    /// It is gone: nobody need fill it any more.
    pub(crate) fn filled(&mut self, at: usize) {
        let names = [Some(self.hosts[at].id), self.hosts[at].learn_id];
        for name in names.into_iter().flatten() {
            let regions = self.hosts.iter_mut().filter_map(|host| host.region.as_mut());
            regions.for_each(|region| region.stop_filling(name));
        }
    }
}
