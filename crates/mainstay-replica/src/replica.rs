//! The machine: starting on what a store kept, routing between group, regions and the world, and when it serves.

use crate::change::{Fetching, Reporting, Settling, founding};
use crate::checkpointing::Checkpointing;
use crate::config::{Config, StartError, Stored};
use crate::definition::{Definition, RegionId, numbered};
use crate::effect::Effect;
use crate::event::Event;
use crate::hosted::{Hosted, Leaving};
use crate::message::{Message, outside};
use crate::packed::{Cuts, RegionCut};
use crate::restricting::refusal;
use mainstay_group::effect::Effect as GroupEffect;
use mainstay_group::event::Event as GroupEvent;
use mainstay_group::explain::Explanation;
use mainstay_group::group::{Begin, Config as GroupConfig, Group};
use mainstay_group::record::Record;
use mainstay_group::roles::{Restriction, restriction};
use mainstay_region::effect::{Effect as RegionEffect, Event as RegionEvent, RecordNumber};
use mainstay_region::message::{Body, Message as RegionMessage, Party};
use mainstay_region::patterns::Pattern;
use mainstay_region::region::{Phase, Region};
use mainstay_types::id::{ClientId, ClusterId};
use mainstay_types::machine::Machine;
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::{MemberId, View, ViewId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The request for a report that nobody wants: the group's begin at 1.
const UNASKED: u64 = 0;

/// What is on its way from one machine to another, in order.
#[derive(Debug)]
pub(crate) enum Routed {
    /// The group asks.
    OfGroup(GroupEffect),
    /// A region asks.
    OfRegion(RegionId, RegionEffect),
    /// The group is told.
    ToGroup(GroupEvent),
}

/// One node.
#[derive(Debug)]
pub struct Replica {
    pub(crate) config: Config,
    group: Group,
    pub(crate) regions: BTreeMap<RegionId, Hosted>,
    pub(crate) reporting: Option<Reporting>,
    pub(crate) settling: Option<Settling>,
    pub(crate) fetching: Option<Fetching>,
    /// Regions that were filled before this node is let in.
    pub(crate) learned: BTreeSet<RegionId>,
    pub(crate) checkpointing: Checkpointing,
    /// Patterns that regions shall have, until a view has them.
    pub(crate) wished: BTreeMap<RegionId, Pattern>,
    /// The records of a new group: they leave when the first records of its regions are safe.
    founding: Option<Vec<(u64, Vec<u8>)>>,
    /// No record of the group is durable yet: none of a region may be either, since they mean nothing without it.
    unrecorded: bool,
    /// What the regions are to fetch when one is.
    deferred: Option<(View, Vec<u8>)>,
    queue: VecDeque<Routed>,
    /// Kept for their room.
    group_out: Vec<GroupEffect>,
    region_out: Vec<RegionEffect>,
    /// The view that it was last said to serve.
    serving: Option<ViewId>,
    /// What the regions were told of the lease.
    leased: Time,
    group_wakes: Time,
    regions_wake: Time,
    ended: bool,
}

impl Replica {
    /// Starts a life, on what the store kept.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        config: Config,
        stored: Stored,
        now: Time,
        out: &mut Vec<Effect>,
    ) -> Result<Self, StartError> {
        let record = stored.record.as_deref().map(Record::parse).transpose()?;
        let installed = record.as_ref().and_then(|record| record.installed.as_ref());
        let begins = installed.is_none() && config.begin.is_some();
        let defined = match (installed, &config.begin) {
            (Some(installed), _) => {
                let cuts = Cuts::decode(&installed.cut).map_err(|_| StartError::Cut)?;
                cuts.regions.into_iter().map(|cut| (cut.region, cut.definition)).collect()
            }
            (None, Some(begin)) => numbered(&begin.regions)?,
            (None, None) => Vec::new(),
        };
        let ready = record.as_ref().map_or(ViewId::NONE, |record| record.ready);
        // A store that was let in nowhere vouches for nothing: what it had learned, it learns again.
        let vouches = installed.is_some() || record.is_none();
        let kept_bytes = stored.records.iter().map(|(_, record)| record.len() as u64).sum();
        let checkpointing = Checkpointing::new(kept_bytes, config.checkpoint_bytes_min);
        let records = if vouches { stored.records } else { Vec::new() };
        let regions = recover(&config, defined, records, ready, begins)?;
        let unrecorded = record.is_none() && !begins;
        let group_config = GroupConfig {
            me: config.me,
            offer: config.offer.clone(),
            ask_at: config.ask_at.clone(),
            begin: config.begin.as_ref().map(|begin| Begin {
                cluster: begin.cluster,
                arbitrated: begin.arbitrated,
                cut: founding_cuts(&config, &regions),
            }),
            limits: config.group_limits,
            timing: config.timing,
            rules: config.rules,
        };
        let mut effects = Vec::new();
        let group = Group::start(group_config, record, now, &mut effects)?;
        let mut replica = Self {
            config,
            group,
            regions,
            reporting: None,
            settling: None,
            fetching: None,
            learned: BTreeSet::new(),
            checkpointing,
            wished: BTreeMap::new(),
            founding: begins.then(Vec::new),
            unrecorded,
            deferred: None,
            queue: effects.into_iter().map(Routed::OfGroup).collect(),
            group_out: Vec::new(),
            region_out: Vec::new(),
            serving: None,
            leased: Time::EPOCH,
            group_wakes: now,
            regions_wake: now,
            ended: false,
        };
        if begins && let Some(installed) = replica.group.record().installed.clone() {
            replica.fetch(now, &installed.view, &installed.cut, out);
        }
        replica.route(now, out);
        replica.look(now, out);
        out.push(Effect::Wake { at: now });
        Ok(replica)
    }

    /// The group: its view, who serves, its explanation.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The view that this node is in: what clients are told who ask for it.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.group.view()
    }

    /// The group's identity, once it is known.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        self.group.record().cluster
    }

    /// How this node is called towards regions: as a member, or as who is outside.
    #[must_use]
    pub fn name(&self) -> MemberId {
        self.group.member_id().unwrap_or_else(|| outside(&self.config.me))
    }

    /// Whether this node serves its view at `now`, which must have been read after the request came in.
    #[must_use]
    pub fn serves(&self, now: Time) -> bool {
        let serving = |hosted: &Hosted| {
            hosted.machine.phase() == Phase::Serving
                && hosted.machine.standing() == self.group.record().view_id()
        };
        !self.ended && self.group.serves(now) && self.regions.values().all(serving)
    }

    /// Which side goes on, and why.
    #[must_use]
    pub fn explain(&self, now: Time) -> Explanation {
        self.group.explain(now)
    }

    /// The regions that this node has a copy of.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, &Definition, &Region)> {
        self.regions.iter().map(|(id, hosted)| (*id, &hosted.definition, &hosted.machine))
    }

    /// What a region must not do in the view that this node is in, since nobody offers a role that it requires.
    #[must_use]
    pub fn restriction(&self, region: RegionId) -> Option<Restriction> {
        restriction(self.view()?, &self.regions.get(&region)?.definition.requirement)
    }

    /// The region of that name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<RegionId> {
        self.regions().find(|(_, definition, _)| definition.name == name).map(|(id, _, _)| id)
    }

    pub(crate) fn tell(&mut self, event: GroupEvent) {
        self.queue.push_back(Routed::ToGroup(event));
    }

    pub(crate) fn group_step(&mut self, now: Time, event: GroupEvent) {
        self.group.step(now, event, &mut self.group_out);
        self.queue.extend(self.group_out.drain(..).map(Routed::OfGroup));
    }

    pub(crate) fn region_step(&mut self, now: Time, region: RegionId, event: RegionEvent) {
        let Some(hosted) = self.regions.get_mut(&region) else { return };
        hosted.machine.step(now, event, &mut self.region_out);
        self.queue.extend(self.region_out.drain(..).map(|effect| Routed::OfRegion(region, effect)));
    }

    pub(crate) fn each_region(&mut self, now: Time, mut event: impl FnMut(RegionId) -> RegionEvent) {
        for region in self.regions.keys().copied().collect::<Vec<_>>() {
            self.region_step(now, region, event(region));
        }
    }

    /// The first records of a new group's regions are safe: so may the group's be.
    pub(crate) fn founded(&mut self) {
        for (ticket, record) in self.founding.take().into_iter().flatten() {
            self.queue.push_back(Routed::OfGroup(GroupEffect::Persist { ticket, record }));
        }
    }

    /// Brings everything to where it belongs.
    fn route(&mut self, now: Time, out: &mut Vec<Effect>) {
        while let Some(routed) = self.queue.pop_front() {
            match routed {
                Routed::ToGroup(event) => self.group_step(now, event),
                Routed::OfGroup(effect) => self.perform_of_group(now, effect, out),
                Routed::OfRegion(region, effect) => self.perform_of_region(now, region, effect, out),
            }
        }
    }

    fn perform_of_group(&mut self, now: Time, effect: GroupEffect, out: &mut Vec<Effect>) {
        match effect {
            GroupEffect::Send { to, message } => {
                out.push(Effect::Send { to, message: Message::Group(message) });
            }
            GroupEffect::Persist { ticket, record } => match &mut self.founding {
                Some(waiting) => waiting.push((ticket, record)),
                None => out.push(Effect::PersistRecord { ticket, bytes: record }),
            },
            GroupEffect::Wake { at } => self.group_wakes = at,
            GroupEffect::Wedge { view, request } => self.wedge(now, view, request),
            GroupEffect::Settle { view, ballot, reports } => self.settle(now, (view, ballot), &reports, out),
            GroupEffect::Fetch { view, cut, .. } if self.unrecorded => self.deferred = Some((view, cut)),
            GroupEffect::Fetch { view, cut, .. } => self.fetch(now, &view, &cut, out),
            GroupEffect::Learn { view, cut } => self.learn(now, &view, &cut, out),
            GroupEffect::Installed { view, .. } => {
                // The view's lease is told anew, however long it is.
                self.leased = Time::EPOCH;
                self.each_region(now, |_| RegionEvent::Installed { view: view.id });
                self.look_at_wishes(view.id, out);
            }
            GroupEffect::Expelled { .. } => {
                self.stop(now);
                self.drop_wishes(out);
            }
            GroupEffect::AskArbiter { from, proposal } => out.push(Effect::AskArbiter { from, proposal }),
            GroupEffect::Refused { refusal } => out.push(Effect::Refused { refusal }),
            GroupEffect::Left => self.end(now, Effect::Left, out),
            GroupEffect::Stopped => self.end(now, Effect::Stopped, out),
        }
    }

    /// The regions take nothing in any more in the view that they are in.
    fn stop(&mut self, now: Time) {
        for region in self.regions.keys().copied().collect::<Vec<_>>() {
            let view = self.regions[&region].machine.standing();
            self.region_step(now, region, RegionEvent::Wedge { view, request: UNASKED });
        }
    }

    fn end(&mut self, now: Time, how: Effect, out: &mut Vec<Effect>) {
        self.stop(now);
        self.drop_wishes(out);
        self.ended = true;
        out.push(how);
    }

    fn perform_of_region(
        &mut self,
        now: Time,
        region: RegionId,
        effect: RegionEffect,
        out: &mut Vec<Effect>,
    ) {
        match effect {
            RegionEffect::Append { record, bytes } => {
                self.checkpointing.appended(bytes.len());
                out.push(Effect::Append { region, record, bytes });
            }
            RegionEffect::Send { to, message, after } => {
                let leaving = match to {
                    Party::Client(client) => Leaving::Answer(client, message),
                    Party::Member(to) => Leaving::Send(to.address, self.addressed(region, to, message)),
                };
                self.leave(now, region, after, leaving, out);
            }
            RegionEffect::Ready { view, after } => {
                self.leave(now, region, after, Leaving::Ready(view), out);
            }
            RegionEffect::Report { request, bytes } => self.reported(region, request, bytes),
            RegionEffect::Cut(bytes) => self.cut(region, bytes),
            RegionEffect::Unsettled { .. } => self.unsettled(out),
            RegionEffect::Learned => self.learned(region),
            RegionEffect::Checkpointed => self.checkpointed(region, out),
        }
    }

    /// A message of a region between two lives.
    fn addressed(&self, region: RegionId, to: MemberId, message: RegionMessage) -> Message {
        let cluster = self.cluster().expect("a region comes with the group that it is of");
        // Who is filled is called by its life, before, while and after it becomes a member.
        let asks = matches!(
            message.body,
            Body::ImageRequest { .. } | Body::ImageNext { .. } | Body::ImageTaken { .. }
        );
        let from = if asks { outside(&self.config.me) } else { self.name() };
        Message::Region { cluster, region, from, to, message }
    }

    fn leave(
        &mut self,
        now: Time,
        region: RegionId,
        after: RecordNumber,
        leaving: Leaving,
        out: &mut Vec<Effect>,
    ) {
        let hosted = self.regions.get_mut(&region).expect("it has just asked");
        if let Some(leaving) = hosted.hold(after, leaving) {
            self.leaves(now, region, leaving, out);
        }
    }

    fn leaves(&mut self, now: Time, region: RegionId, leaving: Leaving, out: &mut Vec<Effect>) {
        match leaving {
            Leaving::Send(to, message) if to == self.config.me.address => self.hear(now, message, out),
            Leaving::Send(to, message) => out.push(Effect::Send { to, message }),
            Leaving::Answer(client, message) => out.push(Effect::Answer { client, region, message }),
            Leaving::Ready(view) => self.ready(region, view),
        }
    }

    /// A message came.
    fn hear(&mut self, now: Time, message: Message, out: &mut Vec<Effect>) {
        match message {
            Message::Group(message) => self.group_step(now, GroupEvent::Arrived(message)),
            Message::Region { cluster, region, from, to, message } => {
                if self.cluster() == Some(cluster) {
                    self.hear_region(now, region, (from, to), message, out);
                }
            }
            Message::Request { cluster, region, client, message } => {
                if self.cluster() == Some(cluster) {
                    self.asked(now, client, region, message, out);
                }
            }
            Message::Answer { .. } => {}
        }
    }

    /// A copy speaks: a member of the same view, or one that is filled or fills.
    fn hear_region(
        &mut self,
        now: Time,
        region: RegionId,
        (from, to): (MemberId, MemberId),
        message: RegionMessage,
        out: &mut Vec<Effect>,
    ) {
        let Some(hosted) = self.regions.get(&region) else { return };
        let is_member = self.view().is_some_and(|view| view.named(from).is_some());
        let to_me = to == self.name();
        let heard = match message.body {
            Body::Image { image, .. } if hosted.machine.phase() != Phase::Learning => {
                // What said that no more is needed was lost.
                let taken = RegionMessage { body: Body::ImageTaken { image }, ..message };
                let message = self.addressed(region, from, taken);
                return out.push(Effect::Send { to: from.address, message });
            }
            Body::Image { .. } => to == outside(&self.config.me),
            Body::ImageRequest { .. } | Body::ImageNext { .. } | Body::ImageTaken { .. } => to_me,
            _ => (to_me && is_member) || !self.config.rules.keep(Rule::OlderViewRefused),
        };
        if heard {
            self.region_step(now, region, RegionEvent::Received { from: Party::Member(from), message });
        }
    }

    fn asked(
        &mut self,
        now: Time,
        client: ClientId,
        region: RegionId,
        message: RegionMessage,
        out: &mut Vec<Effect>,
    ) {
        let restriction = self.restriction(region).filter(|_| self.config.rules.keep(Rule::RolesRequired));
        let refused = restriction.and_then(|without| refusal(&message.body, &without, self.config.own_keys));
        if let Some(body) = refused {
            out.push(Effect::Answer { client, region, message: RegionMessage { body, ..message } });
        } else if self.regions.contains_key(&region) {
            self.region_step(now, region, RegionEvent::Received { from: Party::Client(client), message });
        } else {
            out.push(Effect::NoRegion { client, region });
        }
    }

    fn appended(&mut self, now: Time, region: RegionId, record: RecordNumber, out: &mut Vec<Effect>) {
        let Some(hosted) = self.regions.get_mut(&region) else { return };
        for leaving in hosted.safe(record) {
            self.leaves(now, region, leaving, out);
        }
        self.region_step(now, region, RegionEvent::Appended(record));
    }

    fn persisted(&mut self, now: Time, ticket: u64, out: &mut Vec<Effect>) {
        self.unrecorded = false;
        if let Some((view, cut)) = self.deferred.take() {
            self.fetch(now, &view, &cut, out);
        }
        self.group_step(now, GroupEvent::Persisted { ticket });
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Effect>) {
        if now >= self.group_wakes {
            self.group_step(now, GroupEvent::Tick);
        }
        if now >= self.regions_wake {
            self.regions_wake = now.after(self.config.region_tick);
            self.drive_checkpoints(now, out);
            self.each_region(now, |_| RegionEvent::Tick);
        }
    }

    /// Tells the regions of the lease, and the world whether this node serves.
    fn look(&mut self, now: Time, out: &mut Vec<Effect>) {
        let until = self.group.serves_until();
        if until != self.leased {
            self.leased = until;
            self.each_region(now, |_| RegionEvent::Lease { until });
            self.route(now, out);
        }
        let serves = self.serves(now).then(|| self.group.record().view_id());
        if serves == self.serving {
            return;
        }
        self.serving = serves;
        match self.view().filter(|_| serves.is_some()) {
            Some(view) => out.push(Effect::Serving { view: view.clone() }),
            None => out.push(Effect::NotServing { explanation: self.explain(now) }),
        }
    }
}

impl Machine for Replica {
    type Event = Event;
    type Effect = Effect;

    fn step(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        if self.ended {
            return;
        }
        let ticked = matches!(event, Event::Tick);
        // What many of these have changed is looked at once, behind them.
        let looks = !matches!(
            event,
            Event::Arrived(Message::Region { .. } | Message::Request { .. })
                | Event::Asked { .. }
                | Event::Appended { .. }
        );
        match event {
            Event::Drained => self.each_region(now, |_| RegionEvent::Drained),
            Event::Tick => self.tick(now, out),
            Event::Arrived(message) => self.hear(now, message, out),
            Event::Asked { client, region, message } => self.asked(now, client, region, message, out),
            Event::WallClock { unix_ms } => self.each_region(now, |_| RegionEvent::WallClock { unix_ms }),
            Event::Disconnected { client } => {
                self.regions.values_mut().for_each(|hosted| hosted.machine.disconnected(client));
            }
            Event::Persisted { ticket } => self.persisted(now, ticket, out),
            Event::Appended { region, record } => self.appended(now, region, record, out),
            Event::PersistFailed => self.group_step(now, GroupEvent::PersistFailed),
            Event::Arbitrated { chosen } => self.group_step(now, GroupEvent::Arbitrated { chosen }),
            Event::Redefine { region, pattern } => self.redefine(now, region, pattern, out),
            Event::Leave => self.group_step(now, GroupEvent::Leave),
        }
        self.route(now, out);
        if looks {
            self.look(now, out);
        }
        if ticked && !self.ended {
            out.push(Effect::Wake { at: self.group_wakes.min(self.regions_wake) });
        }
    }
}

fn founding_cuts(config: &Config, regions: &BTreeMap<RegionId, Hosted>) -> Vec<u8> {
    let regions = regions.iter().map(|(&region, hosted)| RegionCut {
        region,
        definition: hosted.definition.clone(),
        bytes: founding(config.of_region(&hosted.definition, regions.len())),
    });
    Cuts { regions: regions.collect(), full: vec![config.me.store] }.encode()
}

/// The copies that the store's earlier lives were. `ready` is the view that the group counts on this store to have all of.
fn recover(
    config: &Config,
    defined: Vec<(RegionId, Definition)>,
    records: Vec<(RegionId, Vec<u8>)>,
    ready: ViewId,
    begins: bool,
) -> Result<BTreeMap<RegionId, Hosted>, StartError> {
    if defined.is_empty() && !records.is_empty() {
        return Err(StartError::RecordLost);
    }
    let mut of_regions: BTreeMap<RegionId, Vec<Vec<u8>>> = BTreeMap::new();
    for (region, record) in records {
        of_regions.entry(region).or_default().push(record);
    }
    let (mut regions, count) = (BTreeMap::new(), defined.len());
    for (region, definition) in defined {
        let records = of_regions.remove(&region).unwrap_or_default();
        let machine =
            Region::recover(config.of_region(&definition, count), records.iter().map(Vec::as_slice))
                .map_err(|error| StartError::Region { region, error })?;
        let standing = machine.standing();
        if standing < ready {
            return Err(StartError::Behind { region, standing, ready });
        }
        if begins && standing > ViewId::NONE.next() {
            return Err(StartError::RecordLost);
        }
        regions.insert(region, Hosted::new(definition, machine));
    }
    Ok(regions)
}
