//! The machine: one copy of a region, all its shards. Routes events; what is done about them stands in the files beside.

use crate::checkpoint::Checkpointing;
use crate::copies::Copies;
use crate::drain::Undrained;
use crate::early::Early;
use crate::effect::{Effect, Event, RecordNumber};
use crate::expiry::WallClock;
use crate::image::{Filling, Learning};
use crate::limits::Config;
use crate::log::Entry;
use crate::message::{Acknowledge, Body, Limit, Message, Numbered, Party, Refusal};
use crate::operation::Operation;
use crate::patterns::Pattern;
use crate::record::Record;
use crate::shard::{EarlyVersion, Shard};
use crate::stamping::{Route, Stamping};
use crate::state::{Applied, Forgotten, State};
use mainstay_types::id::ClientId;
use mainstay_types::machine::Machine;
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::{MemberId, ViewId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What this copy may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It is no full copy: it has nothing, or is being filled.
    Learning,
    /// It is a full copy of its view, and takes nothing in: the view ends, has not begun, or belongs to an earlier life of this store.
    Wedged,
    /// It serves.
    Serving,
}

/// One copy of a region.
#[derive(Clone, Debug)]
pub struct Region {
    pub(crate) config: Config,
    pub(crate) me: Option<MemberId>,
    pub(crate) copies: Copies,
    pub(crate) phase: Phase,
    /// The view whose cut the state has, or that it was accepted in.
    pub(crate) standing: ViewId,
    /// The latest view that it was asked to report of: in that one and earlier ones it takes nothing more in.
    pub(crate) wedged: ViewId,
    pub(crate) lease_until: Time,
    pub(crate) wall_clock: Option<WallClock>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) stampings: Vec<Stamping>,
    /// Records appended.
    pub(crate) record: RecordNumber,
    /// Records up to this one are safe.
    pub(crate) safe: RecordNumber,
    /// Positions that are not safe yet: record, shard, counter.
    undurable: VecDeque<(RecordNumber, u16, u64)>,
    pub(crate) fillings: BTreeMap<MemberId, Filling>,
    pub(crate) learning: Option<Learning>,
    pub(crate) checkpointing: Option<Checkpointing>,
    /// The view to begin once this copy has its cut.
    pub(crate) awaited: Option<crate::change::Awaited>,
    pub(crate) early: Early,
    subscribers: BTreeSet<(u16, ClientId)>,
    pub(crate) undrained: Undrained,
    /// Kept for its room.
    pub(crate) accepted: Vec<(u64, Acknowledge)>,
}

impl Region {
    /// A copy of a region that never was: it can found one, or be filled.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let shards = usize::from(config.shards);
        Self {
            config,
            me: None,
            copies: Copies::default(),
            phase: Phase::Wedged,
            standing: ViewId::NONE,
            wedged: ViewId::NONE,
            lease_until: Time::EPOCH,
            wall_clock: None,
            shards: vec![Shard::default(); shards],
            stampings: vec![Stamping::default(); shards],
            record: RecordNumber::default(),
            safe: RecordNumber::default(),
            undurable: VecDeque::new(),
            fillings: BTreeMap::new(),
            learning: None,
            checkpointing: None,
            awaited: None,
            early: Early::default(),
            subscribers: BTreeSet::new(),
            undrained: Undrained::default(),
            accepted: Vec::new(),
        }
    }

    /// What it may do.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The view that its state belongs to.
    #[must_use]
    pub fn standing(&self) -> ViewId {
        self.standing
    }

    /// The stable state of a shard.
    #[must_use]
    pub fn state(&self, shard: u16) -> &State {
        &self.shard(shard).state
    }

    /// What a shard has accepted in this view and not dropped yet, with its counters.
    pub fn log(&self, shard: u16) -> impl Iterator<Item = (u64, &Entry)> {
        self.shard(shard).log.iter().map(|(counter, accepted)| (counter, &accepted.entry))
    }

    /// Whether clients may send operations to copies that do not stamp them, from the next [`Event::Fetch`] on: part of what a view begins with, and
    /// so the same at all its members.
    pub fn allow_payloads(&mut self, allowed: bool) {
        self.config.payloads_from_clients = allowed;
    }

    pub(crate) fn shard(&self, shard: u16) -> &Shard {
        &self.shards[usize::from(shard)]
    }

    pub(crate) fn shard_mut(&mut self, shard: u16) -> &mut Shard {
        &mut self.shards[usize::from(shard)]
    }

    pub(crate) fn stamping(&self, shard: u16) -> &Stamping {
        &self.stampings[usize::from(shard)]
    }

    pub(crate) fn stamping_mut(&mut self, shard: u16) -> &mut Stamping {
        &mut self.stampings[usize::from(shard)]
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.copies.ids().filter(|&id| Some(id) != self.me)
    }

    pub(crate) fn stamps(&self, shard: u16) -> bool {
        self.me.is_some() && self.copies.stamper(shard) == self.me
    }

    /// Sends at once.
    pub(crate) fn send(&self, shard: u16, to: Party, body: Body, out: &mut Vec<Effect>) {
        let message = Message { view: self.copies.view, shard, body };
        out.push(Effect::Send { to, message, after: RecordNumber::default() });
    }

    /// Sends when everything accepted until now is safe: all of it is recorded.
    pub(crate) fn send_safe(&self, shard: u16, to: Party, body: Body, out: &mut Vec<Effect>) {
        let message = Message { view: self.copies.view, shard, body };
        let held = self.config.rules.keep(Rule::AcceptedSafe);
        assert!(!self.undrained.has_unrecorded(), "what it waits for has no record");
        let after = if held { self.record } else { RecordNumber::default() };
        out.push(Effect::Send { to, message, after });
    }

    /// Behind what was accepted until now. Returns its length, in bytes.
    pub(crate) fn append(&mut self, record: &Record, out: &mut Vec<Effect>) -> usize {
        self.record_accepted(out);
        self.append_now(record, out)
    }

    pub(crate) fn append_now(&mut self, record: &Record, out: &mut Vec<Effect>) -> usize {
        self.record.0 += 1;
        let bytes = record.encode();
        let length = bytes.len();
        out.push(Effect::Append { record: self.record, bytes });
        length
    }

    pub(crate) fn append_marks(&mut self, shard: u16, out: &mut Vec<Effect>) {
        let (stable, everywhere) = (self.shard(shard).stable, self.shard(shard).everywhere);
        self.append(&Record::Marks { shard, stable, everywhere }, out);
    }

    pub(crate) fn send_entry(
        &self,
        shard: u16,
        to: MemberId,
        counter: u64,
        entry: Entry,
        acknowledge: Acknowledge,
        out: &mut Vec<Effect>,
    ) {
        let body = self.with_reached(vec![Numbered { shard, counter, entry, acknowledge }]);
        self.send(0, Party::Member(to), body, out);
    }

    pub(crate) fn received(&mut self, now: Time, from: Party, message: Message, out: &mut Vec<Effect>) {
        let Message { view, shard, body } = message;
        if shard >= self.config.shards {
            if let (Party::Client(_), Some(id)) = (from, body.operation()) {
                self.send(0, from, Body::Refused { id, refusal: Refusal::NoShard }, out);
            }
            return;
        }
        if let (
            Body::ImageRequest { .. } | Body::Image { .. } | Body::ImageNext { .. } | Body::ImageTaken { .. },
            Party::Member(member),
        ) = (&body, from)
        {
            return self.received_image(now, member, shard, body, out);
        }
        let serving = self.phase == Phase::Serving
            || (self.phase == Phase::Wedged
                && self.me.is_some()
                && !self.config.rules.keep(Rule::WedgedTakesNothing));
        let fenced = view != self.copies.view && self.config.rules.keep(Rule::OlderViewRefused);
        if !serving || fenced {
            if let Some(Message { body, .. }) = self.keep_early(from, Message { view, shard, body }) {
                self.refuse_other_view(from, shard, &body, out);
            }
            return;
        }
        match from {
            Party::Client(client) => self.received_from_client(now, client, shard, body, out),
            Party::Member(member)
                if self.copies.has(member) || !self.config.rules.keep(Rule::OlderViewRefused) =>
            {
                self.received_from_member(now, member, shard, body, out);
            }
            Party::Member(_) => {}
        }
    }

    fn refuse_other_view(&self, from: Party, shard: u16, body: &Body, out: &mut Vec<Effect>) {
        let refusal = Refusal::OtherView(self.copies.view);
        let answer = match (from, body, body.operation()) {
            (Party::Client(_), Body::Read { request, .. }, _) => {
                Body::Answer { request: *request, found: Err(refusal) }
            }
            (Party::Client(_), Body::Subscribe { .. }, _) => Body::NotSubscribed(refusal),
            (Party::Client(_), _, Some(id)) => Body::Refused { id, refusal },
            _ => return,
        };
        self.send(shard, from, answer, out);
    }

    fn received_from_client(
        &mut self,
        now: Time,
        client: ClientId,
        shard: u16,
        body: Body,
        out: &mut Vec<Effect>,
    ) {
        let (from, limits) = (Party::Client(client), self.config.limits);
        if let Some((id, operation)) = payload_of(&body) {
            let refusal = match operation.check(&limits) {
                Err(too_long) => Some(Refusal::TooLong(too_long)),
                Ok(()) => (!operation.is_of(shard, self.config.shards)).then_some(Refusal::OtherShard),
            };
            if let Some(refusal) = refusal {
                return self.send(shard, from, Body::Refused { id, refusal }, out);
            }
        }
        let payloads = self.config.payloads_from_clients;
        let apart = matches!(body, Body::VersionRequest { .. } | Body::Tagged { .. } | Body::Payload { .. });
        if let Some(id) = body.operation()
            && (matches!(body, Body::Unversioned { .. }) != self.config.unversioned || apart && !payloads)
        {
            return self.send(shard, from, Body::Refused { id, refusal: Refusal::OtherPattern }, out);
        }
        let stamps = self.stamps(shard);
        match body {
            Body::Operate { id, retry, pattern, operation } if stamps => {
                let kept = pattern.row().through_operate() && (payloads || !pattern.clients_send_payloads());
                let pattern = if kept { pattern } else { Pattern::OneHop };
                self.stamp(now, shard, Route::Direct(client), (id, retry, operation), pattern, out);
            }
            Body::Operate { id, retry, operation, .. } => {
                let stamper = self.copies.stamper(shard).expect("a view that serves has copies");
                self.send(shard, Party::Member(stamper), Body::Forwarded { id, retry, operation }, out);
            }
            Body::VersionRequest { id } if stamps => self.grant(now, shard, client, id, out),
            Body::Inspect { id } if stamps => self.inspect(now, shard, client, id, out),
            Body::VersionRequest { id } | Body::Inspect { id } => {
                self.send(shard, from, Body::Refused { id, refusal: Refusal::NotStamper }, out);
            }
            Body::Tagged { id, operation } if stamps => {
                let route = Route::Direct(client);
                self.stamp(now, shard, route, (id, false, operation), Pattern::Tagged, out);
            }
            Body::Tagged { id, operation } => self.hold_payload(now, client, shard, id, operation, out),
            Body::Payload { id, counter, operation } => {
                self.received_payload(client, shard, (id, counter, operation), out);
            }
            Body::Unversioned { id, operation } => self.unversioned(client, shard, id, operation, out),
            Body::Read { request, query, freshness } => {
                self.read(now, client, shard, request, query, freshness, out);
            }
            Body::Subscribe { from } => self.subscribe(client, shard, from, out),
            _ => {}
        }
    }

    fn received_from_member(
        &mut self,
        now: Time,
        member: MemberId,
        shard: u16,
        body: Body,
        out: &mut Vec<Effect>,
    ) {
        let stamps = self.stamps(shard);
        let fenced = self.config.rules.keep(Rule::OlderViewRefused);
        let of_stamper = self.copies.stamper(shard) == Some(member) || !fenced;
        match body {
            Body::Forwarded { id, retry, operation } if stamps => {
                let route = Route::Through(member, id.client);
                self.stamp(now, shard, route, (id, retry, operation), Pattern::OneHop, out);
            }
            Body::Relay(body) if of_stamper => {
                if let Some(id) = body.operation() {
                    self.send(shard, Party::Client(id.client), *body, out);
                }
            }
            Body::Entries { entries, reached } => self.received_entries(member, entries, &reached, out),
            Body::Stamp { counter, id, possible_duplicate } if of_stamper => {
                self.received_stamp(shard, counter, EarlyVersion { id, possible_duplicate }, out);
            }
            Body::Marks { stable, everywhere, echo_ns } if of_stamper => {
                self.learn_marks(shard, stable, everywhere, out);
                let copy = self.shard_mut(shard);
                if echo_ns > 0 && copy.stable >= stable {
                    copy.fresh_at = copy.fresh_at.max(Some(Time(echo_ns)));
                }
            }
            Body::Positions { positions, sent_ns } => {
                for (shard, counter) in positions {
                    if shard < self.config.shards && self.stamps(shard) {
                        self.positioned(now, shard, member, (counter, sent_ns));
                    }
                }
            }
            Body::Inquire { counter } if of_stamper => self.inquired(member, shard, counter, out),
            Body::Lacks { counter } if stamps => self.lacks(shard, member, counter, out),
            Body::Has { counter, entry } if stamps => self.has(shard, counter, entry, out),
            _ => {}
        }
    }

    /// How far the shard is, as the stamper knows or says.
    pub(crate) fn learn_marks(&mut self, shard: u16, stable: u64, everywhere: u64, out: &mut Vec<Effect>) {
        let (view, limits, shards) = (self.copies.view, self.config.limits, self.shards.len());
        let told = !self.fillings.is_empty()
            || self.checkpointing.is_some()
            || self.subscribers.iter().any(|(of, _)| *of == shard);
        let mut applied = Vec::new();
        let copy = self.shard_mut(shard);
        copy.apply_to(view, stable, &limits, told.then_some(&mut applied));
        copy.trim(everywhere);
        let unrecorded = copy.everywhere - copy.recorded_everywhere;
        let recorded = unrecorded >= (limits.log_entries_max / 8).max(1)
            || (unrecorded > 0 && copy.unrecorded_bytes >= limits.log_bytes_max / 8 / shards);
        if recorded {
            (copy.recorded_everywhere, copy.unrecorded_bytes) = (copy.everywhere, 0);
            self.append_marks(shard, out);
        }
        self.publish(shard, &applied, out);
    }

    /// Tells subscribers and members that are being filled what became stable.
    pub(crate) fn publish(&mut self, shard: u16, applied: &[(Applied, Forgotten)], out: &mut Vec<Effect>) {
        for (applied, forgotten) in applied {
            let subscribers: Vec<ClientId> =
                self.subscribers.iter().filter(|(of, _)| *of == shard).map(|&(_, client)| client).collect();
            for client in subscribers {
                self.send(shard, Party::Client(client), Body::Changed(applied.clone()), out);
            }
            self.fill_change(shard, applied, forgotten, out);
            self.checkpoint_change(shard, applied, forgotten, out);
        }
    }

    fn subscribe(&mut self, client: ClientId, shard: u16, from: Version, out: &mut Vec<Effect>) {
        let party = Party::Client(client);
        let state = &self.shard(shard).state;
        let behind: Vec<Applied> =
            state.history.iter().filter(|applied| applied.version > from).cloned().collect();
        let oldest = state.oldest_known();
        let refusal = if from < oldest {
            Some(Refusal::TooOld(oldest))
        } else if self.subscribers.iter().filter(|(of, _)| *of == shard).count()
            >= self.config.limits.subscribers_max
            && !self.subscribers.contains(&(shard, client))
        {
            Some(Refusal::Busy(Limit::Subscribers))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return self.send(shard, party, Body::NotSubscribed(refusal), out);
        }
        self.subscribers.insert((shard, client));
        for applied in behind {
            self.send(shard, party, Body::Changed(applied), out);
        }
    }

    /// The client's connection is gone, and what it subscribed to with it.
    pub fn disconnected(&mut self, client: ClientId) {
        self.subscribers.retain(|&(_, subscriber)| subscriber != client);
        self.early.forget(Party::Client(client));
    }

    fn appended(&mut self, now: Time, record: RecordNumber, out: &mut Vec<Effect>) {
        while let Some(&(number, shard, counter)) = self.undurable.front() {
            if number > record {
                break;
            }
            self.undurable.pop_front();
            let copy = self.shard_mut(shard);
            copy.durable = copy.durable.max(counter);
            if let Some(me) = self.me
                && self.phase == Phase::Serving
                && self.stamps(shard)
            {
                self.positioned(now, shard, me, (counter, now.0));
            }
        }
        self.safe = self.safe.max(record);
        self.ask_for_next_part(out);
        self.finish_checkpoint(out);
    }

    /// Everything up to `counter` is safe when the last record is.
    pub(crate) fn wait_for_durable(&mut self, shard: u16, counter: u64) {
        match self.undurable.back_mut() {
            Some((record, of, last)) if (*record, *of) == (self.record, shard) => *last = counter,
            _ => self.undurable.push_back((self.record, shard, counter)),
        }
    }

    /// What was accepted in the view before is settled with it.
    pub(crate) fn forget_undurable(&mut self) {
        assert!(!self.undrained.has_unrecorded(), "its record would count in the view that follows");
        self.undurable.clear();
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.tick_image(now, out);
        self.tick_checkpoint(out);
        if self.phase != Phase::Serving {
            return;
        }
        let mut positions = Vec::new();
        for shard in 0..self.config.shards {
            if self.stamps(shard) {
                self.tick_stamper(now, shard, out);
                continue;
            }
            let held_max = self.config.times.held_max;
            let copy = self.shard_mut(shard);
            copy.held.retain(|_, held| now.since(held.since) < held_max);
            // Said also where nothing is new: the echo tells how old this copy's state is at most.
            positions.push((shard, copy.durable));
        }
        self.send_positions(now, positions, out);
        self.drained(now, out);
    }
}

impl Machine for Region {
    type Event = Event;
    type Effect = Effect;

    fn step(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        if !matches!(event, Event::Received { .. } | Event::Appended(_) | Event::Drained) {
            self.hand_on(out);
        }
        match event {
            Event::Received { from, message } => self.received(now, from, message, out),
            Event::Appended(record) => self.appended(now, record, out),
            Event::Drained => self.drained(now, out),
            Event::Tick => self.tick(now, out),
            Event::WallClock { unix_ms } => self.wall_clock = Some(WallClock { at: now, unix_ms }),
            Event::Lease { until } => self.lease_until = self.lease_until.max(until),
            Event::Wedge { view, request } => self.wedge(view, request, out),
            Event::Settle { reports } => self.settle(&reports, out),
            Event::Fetch { me, view, cut, sources } => self.fetch(now, me, &view, cut, sources, out),
            Event::Installed { view } => self.installed(now, view, out),
            Event::Checkpoint => self.checkpoint(out),
            Event::Learn { me, sources } => self.learn_ahead(now, me, sources, out),
        }
        self.take_early(now, out);
    }
}

/// The operation that a client sent.
fn payload_of(body: &Body) -> Option<(OperationId, &Operation)> {
    match body {
        Body::Operate { id, operation, .. }
        | Body::Payload { id, operation, .. }
        | Body::Tagged { id, operation }
        | Body::Unversioned { id, operation } => Some((*id, operation)),
        _ => None,
    }
}
