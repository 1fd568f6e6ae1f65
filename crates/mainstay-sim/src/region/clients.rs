//! Clients: they write, read, ask again what is long done, die in the middle, and note what they see.

use super::linearizable::{Done, Saw};
use super::world::{MILLISECOND, RegionWorld};
use crate::properties::{Property, Violation};
use crate::random::Random;
use crate::reach::Reach;
use mainstay_region::client::{Client, ClientConfig, ClientEffect, Ended};
use mainstay_region::duplicates::Seen;
use mainstay_region::limits::Config;
use mainstay_region::message::{Body, Freshness, Message, Party, Query, Refusal};
use mainstay_region::operation::{Operation, Outcome, shard_of};
use mainstay_region::patterns::Pattern;
use mainstay_types::id::{ClientId, ThreadId};
use mainstay_types::operation::OperationId;
use mainstay_types::time::Time;
use mainstay_types::view::{MemberId, View};
use std::collections::BTreeMap;
use std::time::Duration;

const KEYS: [&[u8]; 4] = [b"a", b"b", b"c", b"counter"];
/// Operations of a client in a run.
const OPERATIONS_MAX: u64 = 28;
/// A read that is not answered for so long is given up.
const READ_PATIENCE: u64 = 1_000 * MILLISECOND;

struct Call {
    key: Vec<u8>,
    place: usize,
    operation: Operation,
    attempts: u64,
    /// It was done before, and is only asked again.
    again: bool,
}

struct Read {
    key: Vec<u8>,
    place: usize,
    since: u64,
}

/// The client.
pub(crate) struct SimClient {
    number: u64,
    machine: Client,
    config: ClientConfig,
    lives: u64,
    calls: BTreeMap<OperationId, Call>,
    finished: Vec<(OperationId, Operation)>,
    read: Option<(u64, Read)>,
    requests: u64,
    made: u64,
    fixed: Option<Pattern>,
    /// Operations that came to a good end after the faults.
    good: bool,
}

impl SimClient {
    pub(crate) fn new(number: u64, region: &Config, random: &mut Random) -> Self {
        let config = ClientConfig {
            id: ClientId(number + 1),
            shards: region.shards,
            acknowledgement: region.acknowledgement,
            pattern: Pattern::OneHop,
            retry_after: Duration::from_millis(random.between(60, 250)),
            deadline: Duration::from_millis(2000),
            window_operations_max: 4.min(region.limits.duplicate_results_max),
        };
        let fixed = random.chance(500).then(|| *random.pick(&Pattern::VERSIONED));
        Self {
            number,
            machine: Client::new(config),
            config,
            lives: 0,
            calls: BTreeMap::new(),
            finished: Vec::new(),
            read: None,
            requests: 0,
            made: 0,
            fixed,
            good: false,
        }
    }

    pub(crate) fn has(&self, client: ClientId) -> bool {
        self.config.id == client
    }

    pub(crate) fn at_rest(&self) -> bool {
        self.calls.is_empty() && self.good
    }

    pub(crate) fn stuck(&self) -> String {
        format!("{}: {} calls, good {}", self.config.id, self.calls.len(), self.good)
    }
}

impl RegionWorld {
    pub(crate) fn client_tick(&mut self, at: usize) -> Result<(), Violation> {
        let now = Time(self.now);
        let mut out = Vec::new();
        self.clients[at].machine.tick(now, &mut out);
        self.client_effects(at, out)?;
        let client = &mut self.clients[at];
        if client.read.as_ref().is_some_and(|(_, read)| self.now - read.since > READ_PATIENCE) {
            client.read = None;
        }
        if !self.healed() && self.random.chance(4) {
            self.client_dies(at);
        }
        let healed = self.healed();
        let wants = if healed { !self.clients[at].good } else { self.clients[at].made < OPERATIONS_MAX };
        let free = self.clients[at].calls.len() < if healed { 1 } else { 3 };
        if wants && free && (healed || self.random.chance(400)) {
            match self.random.below(10) {
                0..=4 => self.write(at)?,
                5 if !healed => self.read_any(at),
                6 if !healed => self.ask_again(at)?,
                _ if self.clients[at].read.is_none() => self.read_linearizable(at),
                _ => self.write(at)?,
            }
        }
        Ok(())
    }

    /// A client is gone, with what it had under way; another one takes its place.
    fn client_dies(&mut self, at: usize) {
        let others = self.clients.len() as u64;
        let client = &mut self.clients[at];
        client.lives += 1;
        client.config.id = ClientId(client.number + 1 + client.lives * others);
        client.machine = Client::new(client.config);
        client.calls.clear();
        client.finished.clear();
        client.read = None;
    }

    fn write(&mut self, at: usize) -> Result<(), Violation> {
        let key = *self.random.pick(&KEYS);
        let fresh = self.clients[at].made.to_le_bytes()[0];
        let value = vec![self.clients[at].config.id.0.to_le_bytes()[0], fresh];
        let (operation, done) = match self.random.below(10) {
            0..=3 => {
                let by = 1;
                (Operation::Increment { key: b"counter".to_vec(), by }, Done::Add(by))
            }
            4..=6 => (Operation::Put { key: key.to_vec(), value: value.clone() }, Done::Put(value)),
            7 => (Operation::Remove { key: key.to_vec() }, Done::Remove),
            _ => {
                let expected =
                    self.random.coin().then(|| vec![self.random.between(1, 4).to_le_bytes()[0], fresh]);
                let operation = Operation::CompareAndSet {
                    key: key.to_vec(),
                    expected: expected.clone(),
                    value: Some(value.clone()),
                };
                (operation, Done::Swap(expected, Some(value)))
            }
        };
        let pattern = self.clients[at].fixed.unwrap_or_else(|| *self.random.pick(&Pattern::VERSIONED));
        let thread = ThreadId(1 + self.random.below(2) as u32);
        let client = &mut self.clients[at];
        client.machine.use_pattern(pattern);
        client.made += 1;
        let mut out = Vec::new();
        let Ok(id) = client.machine.call(Time(self.now), thread, operation.clone(), &mut out) else {
            return Ok(());
        };
        let key = operation.key().to_vec();
        let place = self.oracle.began(&key, self.now, done);
        self.trace_line(format_args!("{id:?} begins by {pattern:?}: {operation:?}"));
        self.clients[at].calls.insert(id, Call { key, place, operation, attempts: 0, again: false });
        self.client_effects(at, out)
    }

    /// Asks again what was answered.
    fn ask_again(&mut self, at: usize) -> Result<(), Violation> {
        let client = &mut self.clients[at];
        if client.finished.is_empty() {
            return Ok(());
        }
        let (id, operation) = self.random.pick(&client.finished).clone();
        if client.calls.contains_key(&id) {
            return Ok(());
        }
        let call = Call {
            key: operation.key().to_vec(),
            place: 0,
            operation: operation.clone(),
            attempts: 1,
            again: true,
        };
        client.calls.insert(id, call);
        let mut out = Vec::new();
        client.machine.call_again(Time(self.now), id, operation, &mut out);
        self.client_effects(at, out)
    }

    fn read_linearizable(&mut self, at: usize) {
        let key = self.random.pick(&KEYS).to_vec();
        let client = &mut self.clients[at];
        let shard = shard_of(&key, client.config.shards);
        let Some(stamper) = client.machine.copies().stamper(shard) else { return };
        client.requests += 1;
        let request = client.requests;
        let (from, view) = (Party::Client(client.config.id), client.machine.view());
        let place = self.oracle.began(&key, self.now, Done::Read);
        self.clients[at].read = Some((request, Read { key: key.clone(), place, since: self.now }));
        let body = Body::Read { request, query: Query::Get { key }, freshness: Freshness::Linearizable };
        self.send(from, Party::Member(stamper), Message { view, shard, body });
    }

    fn read_any(&mut self, at: usize) {
        let key = self.random.pick(&KEYS).to_vec();
        let client = &mut self.clients[at];
        let shard = shard_of(&key, client.config.shards);
        let copies: Vec<MemberId> = client.machine.copies().ids().collect();
        if copies.is_empty() {
            return;
        }
        let to = *self.random.pick(&copies);
        let client = &self.clients[at];
        let (from, view) = (Party::Client(client.config.id), client.machine.view());
        let body = Body::Read { request: 0, query: Query::Get { key }, freshness: Freshness::Any };
        self.send(from, Party::Member(to), Message { view, shard, body });
    }

    pub(crate) fn client_learns(&mut self, at: usize, view: &View) -> Result<(), Violation> {
        let mut out = Vec::new();
        let now = Time(self.now);
        self.clients[at].machine.view_known(now, view, &mut out);
        self.client_effects(at, out)
    }

    pub(crate) fn client_hears(
        &mut self,
        at: usize,
        client: ClientId,
        member: MemberId,
        message: Message,
    ) -> Result<(), Violation> {
        if !self.clients[at].has(client) {
            return Ok(());
        }
        match &message.body {
            Body::Answer { request: 0, found: Ok(found) } => {
                return self.oracle.read_of_any_copy(message.shard, found.at, found.digest);
            }
            Body::Answer { request, found } => {
                let asked = self.clients[at].read.take_if(|(asked, _)| asked == request);
                if let (Some((_, read)), Ok(found)) = (asked, found) {
                    let value = found.entries.first().map(|(_, stored)| stored.value.clone());
                    self.oracle.ended(&read.key, read.place, self.now, Saw::Value(value));
                    self.hit(Reach::LinearizableRead);
                }
                return Ok(());
            }
            Body::Refused { refusal: Refusal::OtherView(_), .. } => self.hit(Reach::ViewsDiffered),
            _ => {}
        }
        let mut out = Vec::new();
        let now = Time(self.now);
        self.clients[at].machine.received(now, member, message, &mut out);
        self.client_effects(at, out)
    }

    fn client_effects(&mut self, at: usize, out: Vec<ClientEffect>) -> Result<(), Violation> {
        for effect in out {
            match effect {
                ClientEffect::Send { to, message } => {
                    let client = &mut self.clients[at];
                    if let Body::Operate { id, .. } | Body::VersionRequest { id } | Body::Tagged { id, .. } =
                        &message.body
                        && let Some(call) = client.calls.get_mut(id)
                    {
                        call.attempts += 1;
                    }
                    let from = Party::Client(client.config.id);
                    self.send(from, Party::Member(to), message);
                }
                ClientEffect::AskView => {
                    let view = self.source.view.clone();
                    self.tell_view(at, view);
                }
                ClientEffect::Ended { id, ended } => self.call_ended(at, id, ended)?,
                ClientEffect::NotSeen { .. } => {}
            }
        }
        Ok(())
    }

    fn call_ended(&mut self, at: usize, id: OperationId, ended: Ended) -> Result<(), Violation> {
        let Some(call) = self.clients[at].calls.remove(&id) else { return Ok(()) };
        self.trace_line(format_args!("{id:?} ends: {ended:?}"));
        match ended {
            Ended::Done { seen, duplicate } => {
                let shard = shard_of(&call.key, self.config.shards);
                self.oracle.told(id, shard, seen, duplicate, call.attempts)?;
                if !call.again {
                    self.oracle.ended(&call.key, call.place, self.now, saw(seen));
                    self.clients[at].finished.push((id, call.operation));
                    if self.healed() {
                        self.clients[at].good = true;
                    }
                }
            }
            Ended::Unknown => self.hit(Reach::EndedUnknown),
            Ended::Obsolete => self.hit(Reach::ToldObsolete),
            Ended::Evicted => {
                self.hit(Reach::ToldEvicted);
                self.client_dies(at);
            }
            Ended::TooLong(too_long) => {
                return Err(Violation::new(
                    Property::Asserts,
                    format!("{id:?} is said to be too long: {too_long}"),
                ));
            }
        }
        Ok(())
    }
}

fn saw(seen: Seen) -> Saw {
    match seen.outcome {
        Outcome::Written => Saw::Written,
        Outcome::Removed { was_there } => Saw::Removed(was_there),
        Outcome::Differs => Saw::Differs,
        Outcome::Counted(sum) => Saw::Counted(sum),
        Outcome::NoCounter => Saw::NoCounter,
    }
}
