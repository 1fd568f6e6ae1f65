//! Clients: they write, read, ask again what is long done, die in the middle, and note what they see.

use super::linearizable::{Done, Saw};
use super::oracle::Oracle;
use super::world::MILLISECOND;
use crate::properties::{Property, Violation};
use crate::random::Random;
use crate::reach::{Reach, Reached};
use crate::trace::Trace;
use mainstay_region::batch::Batch;
use mainstay_region::client::{Client, ClientConfig, ClientEffect, Ended};
use mainstay_region::duplicates::Seen;
use mainstay_region::limits::Config;
use mainstay_region::message::{Body, Freshness, Message, Query, Refusal};
use mainstay_region::operation::{Condition, End, Operation, Outcome, shard_of};
use mainstay_region::patterns::Pattern;
use mainstay_types::id::{ClientId, ThreadId};
use mainstay_types::operation::OperationId;
use mainstay_types::time::Time;
use mainstay_types::view::{MemberId, View};
use std::collections::BTreeMap;
use std::time::Duration;

const KEYS: [&[u8]; 5] = [b"a", b"b", b"c", b"counter", PAIR[0]];
/// Two keys of one shard, which are written together alone and must always be alike.
const PAIR: [&[u8]; 2] = [b"{p}x", b"{p}y"];
/// Keys whose values end; they have no history.
const ENDING: [&[u8]; 3] = [b"end1", b"end2", b"end3"];
/// Operations of a client in a run.
const OPERATIONS_MAX: u64 = 28;
/// A read that is not answered for so long is given up.
const READ_PATIENCE: u64 = 1_000 * MILLISECOND;

struct Call {
    key: Vec<u8>,
    /// In the key's history; `None`: it has none.
    place: Option<usize>,
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

/// The world around a client in one of its steps.
pub(crate) struct Scene<'a> {
    pub(crate) random: &'a mut Random,
    pub(crate) now: u64,
    pub(crate) healed: bool,
    pub(crate) oracle: &'a mut Oracle,
    pub(crate) reached: &'a mut Reached,
    pub(crate) trace: &'a mut Trace,
    /// Clients in the world.
    pub(crate) clients: u64,
    /// What the client asks for.
    pub(crate) asks: Vec<Ask>,
}

/// What a client asks for.
pub(crate) enum Ask {
    /// Send this in its name.
    Send(ClientId, MemberId, Box<Message>),
    /// Find out the view.
    View,
    /// This one is gone, and some of its connections broke with what was under way.
    Gone(ClientId),
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
    /// It reads for the most part: so it stays in an old view for as long as a stamper of that answers.
    reads: bool,
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
            reads: random.chance(300),
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

    pub(crate) fn tick(&mut self, scene: &mut Scene<'_>) -> Result<(), Violation> {
        let mut out = Vec::new();
        self.machine.tick(Time(scene.now), &mut out);
        self.effects(out, scene)?;
        if self.read.as_ref().is_some_and(|(_, read)| scene.now - read.since > READ_PATIENCE) {
            self.read = None;
        }
        if !scene.healed && scene.random.chance(4) {
            self.dies(scene);
        }
        let wants = if scene.healed { !self.good } else { self.made < OPERATIONS_MAX };
        let free = self.calls.len() < if scene.healed { 1 } else { 3 };
        if wants && free && (scene.healed || scene.random.chance(400)) {
            match scene.random.below(10) {
                0..=4 if self.reads && !scene.healed && scene.random.chance(900) => {
                    if self.read.is_none() {
                        self.read_linearizable(scene);
                    }
                }
                0..=4 => self.write(scene)?,
                5 if !scene.healed => self.read_any(scene),
                6 if !scene.healed => self.ask_again(scene)?,
                _ if self.read.is_none() => self.read_linearizable(scene),
                _ => self.write(scene)?,
            }
        }
        Ok(())
    }

    /// It is gone, with what it had under way; another one takes its place.
    fn dies(&mut self, scene: &Scene<'_>) {
        self.lives += 1;
        self.config.id = ClientId(self.number + 1 + self.lives * scene.clients);
        self.machine = Client::new(self.config);
        self.calls.clear();
        self.finished.clear();
        self.read = None;
    }

    fn write(&mut self, scene: &mut Scene<'_>) -> Result<(), Violation> {
        let key = *scene.random.pick(&KEYS[..4]);
        let fresh = self.made.to_le_bytes()[0];
        let value = vec![self.config.id.0.to_le_bytes()[0], fresh];
        let (operation, done) = match scene.random.below(14) {
            0..=3 => {
                let by = 1;
                (Operation::Increment { key: b"counter".into(), by }, Some(Done::Add(by)))
            }
            4..=6 => {
                (Operation::Put { key: key.into(), value: value.as_slice().into() }, Some(Done::Put(value)))
            }
            7 => (Operation::Remove { key: key.into() }, Some(Done::Remove)),
            8 | 9 => (exchange(&value), Some(Done::Exchange(value))),
            10 | 11 => (self.set_ending(value, scene), None),
            _ => {
                let expected =
                    scene.random.coin().then(|| vec![scene.random.between(1, 4).to_le_bytes()[0], fresh]);
                let operation = Operation::CompareAndSet {
                    key: key.into(),
                    expected: expected.clone().map(Into::into),
                    value: Some(value.as_slice().into()),
                };
                (operation, Some(Done::Swap(expected, Some(value))))
            }
        };
        let pattern = self.fixed.unwrap_or_else(|| *scene.random.pick(&Pattern::VERSIONED));
        let thread = ThreadId(1 + scene.random.below(2) as u32);
        self.machine.use_pattern(pattern);
        self.made += 1;
        let mut out = Vec::new();
        let Ok(id) = self.machine.call(Time(scene.now), thread, operation.clone(), &mut out) else {
            return Ok(());
        };
        let key = operation.key().to_vec();
        let place = done.map(|done| scene.oracle.began(&key, scene.now, done));
        scene.trace.line(scene.now, format_args!("{id:?} begins by {pattern:?}: {operation:?}"));
        self.calls.insert(id, Call { key, place, operation, attempts: 0, again: false });
        self.effects(out, scene)
    }

    /// Sets a value that ends soon, or says of one when it does.
    fn set_ending(&self, value: Vec<u8>, scene: &mut Scene<'_>) -> Operation {
        let key = (*scene.random.pick(&ENDING)).into();
        let value = value.into();
        let end_ms = scene.now / MILLISECOND + scene.random.between(1, 800);
        match scene.random.below(4) {
            0 => Operation::Expire { key, ends_at_ms: scene.random.coin().then_some(end_ms) },
            1 => Operation::Append { key, value },
            _ => {
                let (condition, end) = (Condition::Always, End::At(end_ms));
                Operation::Set { key, value, condition, end, returns_before: scene.random.coin() }
            }
        }
    }

    /// Asks again what was answered.
    fn ask_again(&mut self, scene: &mut Scene<'_>) -> Result<(), Violation> {
        if self.finished.is_empty() {
            return Ok(());
        }
        let (id, operation) = scene.random.pick(&self.finished).clone();
        if self.calls.contains_key(&id) {
            return Ok(());
        }
        if scene.random.chance(300) {
            let mut out = Vec::new();
            self.machine.inspect(id, operation.key(), &mut out);
            return self.effects(out, scene);
        }
        let call = Call {
            key: operation.key().to_vec(),
            place: None,
            operation: operation.clone(),
            attempts: 1,
            again: true,
        };
        self.calls.insert(id, call);
        let mut out = Vec::new();
        self.machine.call_again(Time(scene.now), id, operation, &mut out);
        self.effects(out, scene)
    }

    fn read_linearizable(&mut self, scene: &mut Scene<'_>) {
        // Who reads for the most part looks where others write most.
        let hot = self.reads && scene.random.coin();
        let key = if hot { b"counter".to_vec() } else { scene.random.pick(&KEYS).to_vec() };
        let shard = shard_of(&key, self.config.shards);
        let Some(stamper) = self.machine.copies().stamper(shard) else { return };
        self.requests += 1;
        let (request, view) = (self.requests, self.machine.view());
        let place = scene.oracle.began(&key, scene.now, Done::Read);
        self.read = Some((request, Read { key: key.clone(), place, since: scene.now }));
        let body = Body::Read { request, query: Query::Get { key }, freshness: Freshness::Linearizable };
        let message = Box::new(Message { view, shard, body });
        scene.asks.push(Ask::Send(self.config.id, stamper, message));
    }

    fn read_any(&self, scene: &mut Scene<'_>) {
        let key = scene.random.pick(&KEYS).to_vec();
        let shard = shard_of(&key, self.config.shards);
        let copies: Vec<MemberId> = self.machine.copies().ids().collect();
        if copies.is_empty() {
            return;
        }
        let to = *scene.random.pick(&copies);
        let view = self.machine.view();
        let body = Body::Read { request: 0, query: Query::Get { key }, freshness: Freshness::Any };
        let message = Box::new(Message { view, shard, body });
        scene.asks.push(Ask::Send(self.config.id, to, message));
    }

    pub(crate) fn learns(&mut self, view: &View, scene: &mut Scene<'_>) -> Result<(), Violation> {
        let mut out = Vec::new();
        self.machine.view_known(Time(scene.now), view, &mut out);
        self.effects(out, scene)
    }

    /// Hears of a member what is meant for this life of it.
    pub(crate) fn hears(
        &mut self,
        member: MemberId,
        message: Message,
        scene: &mut Scene<'_>,
    ) -> Result<(), Violation> {
        match &message.body {
            Body::Answer { request: 0, found: Ok(found) } => {
                return scene.oracle.read_of_any_copy(message.shard, found.at, found.digest);
            }
            Body::Answer { request, found } => {
                let asked = self.read.take_if(|(asked, _)| asked == request);
                if let (Some((_, read)), Ok(found)) = (asked, found) {
                    let value = found.entries.first().map(|(_, stored)| stored.value.to_vec());
                    scene.oracle.ended(&read.key, read.place, scene.now, Saw::Value(value));
                    scene.reached.hit(Reach::LinearizableRead);
                }
                return Ok(());
            }
            Body::Refused { refusal: Refusal::OtherView(_), .. } => scene.reached.hit(Reach::ViewsDiffered),
            _ => {}
        }
        let mut out = Vec::new();
        self.machine.received(Time(scene.now), member, message, &mut out);
        self.effects(out, scene)
    }

    fn effects(&mut self, out: Vec<ClientEffect>, scene: &mut Scene<'_>) -> Result<(), Violation> {
        let sends_payloads = out.iter().any(|effect| {
            matches!(effect, ClientEffect::Send { message, .. } if matches!(message.body, Body::Payload { .. } | Body::Tagged { .. }))
        });
        let id = self.config.id;
        self.perform(out, scene)?;
        if sends_payloads && !scene.healed && scene.random.chance(30) {
            scene.reached.hit(Reach::ClientDiedSending);
            scene.asks.push(Ask::Gone(id));
            self.dies(scene);
        }
        Ok(())
    }

    fn perform(&mut self, out: Vec<ClientEffect>, scene: &mut Scene<'_>) -> Result<(), Violation> {
        for effect in out {
            match effect {
                ClientEffect::Send { to, message } => {
                    if let Body::Operate { id, .. } | Body::VersionRequest { id } | Body::Tagged { id, .. } =
                        &message.body
                        && let Some(call) = self.calls.get_mut(id)
                    {
                        call.attempts += 1;
                    }
                    scene.asks.push(Ask::Send(self.config.id, to, Box::new(message)));
                }
                ClientEffect::AskView => scene.asks.push(Ask::View),
                ClientEffect::Ended { id, ended } => self.call_ended(id, ended, scene)?,
                // Only what is done is asked about.
                ClientEffect::NotSeen { id } => scene.oracle.not_seen(id)?,
            }
        }
        Ok(())
    }

    fn call_ended(&mut self, id: OperationId, ended: Ended, scene: &mut Scene<'_>) -> Result<(), Violation> {
        let Some(call) = self.calls.remove(&id) else { return Ok(()) };
        scene.trace.line(scene.now, format_args!("{id:?} ends: {ended:?}"));
        match ended {
            Ended::Done { seen, duplicate } => {
                let shard = shard_of(&call.key, self.config.shards);
                scene.oracle.told(id, shard, seen.clone(), duplicate, call.attempts)?;
                if !call.again {
                    if matches!(seen.outcome, Outcome::Batch(_)) {
                        scene.reached.hit(Reach::DoneAsOne);
                    }
                    if let Some(place) = call.place {
                        scene.oracle.ended(&call.key, place, scene.now, saw(seen)?);
                    }
                    self.finished.push((id, call.operation));
                    if scene.healed {
                        self.good = true;
                    }
                }
            }
            Ended::Unknown => scene.reached.hit(Reach::EndedUnknown),
            Ended::Obsolete => scene.reached.hit(Reach::ToldObsolete),
            Ended::Evicted => {
                scene.reached.hit(Reach::ToldEvicted);
                self.dies(scene);
            }
            refused @ (Ended::TooLong(_) | Ended::OtherShard) => {
                return Err(Violation::new(Property::Asserts, format!("{id:?} is refused: {refused:?}")));
            }
        }
        Ok(())
    }
}

/// Reads both keys of the pair and puts the same into them, as one.
fn exchange(value: &[u8]) -> Operation {
    let get = PAIR.map(|key| Operation::Get { key: key.into() });
    let put = PAIR.map(|key| Operation::Put { key: key.into(), value: value.into() });
    Operation::Batch(Batch { watched: Vec::new(), steps: get.into_iter().chain(put).collect() })
}

fn saw(seen: Seen) -> Result<Saw, Violation> {
    Ok(match seen.outcome {
        Outcome::Batch(outcomes) => match outcomes.as_slice() {
            [Outcome::Value(first), Outcome::Value(second), ..] if first == second => {
                Saw::Value(first.as_ref().map(|value| value.bytes.to_vec()))
            }
            outcomes => {
                let what = format!("half of what is written as one was seen: {outcomes:?}");
                return Err(Violation::new(Property::RegionLinearizable, what));
            }
        },
        Outcome::Written => Saw::Written,
        Outcome::Removed { was_there } => Saw::Removed(was_there),
        Outcome::Differs => Saw::Differs,
        Outcome::Counted(sum) => Saw::Counted(sum),
        Outcome::NoCounter => Saw::NoCounter,
        other => {
            let what = format!("what has a history came to {other:?}");
            return Err(Violation::new(Property::Asserts, what));
        }
    })
}
