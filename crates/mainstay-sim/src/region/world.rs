//! The world: one clock, one queue of what is to happen, copies, clients, a source of views, and an oracle that sees all of it.

use super::batches::Batches;
use super::clients::SimClient;
use super::host::{Host, Waiting};
use super::oracle::Oracle;
use super::source::Source;
use crate::group::process::Clock;
use crate::properties::{Property, Violation};
use crate::random::Random;
use crate::reach::{Reach, Reached};
use crate::trace::Trace;
use crate::world::Ended;
use mainstay_region::effect::{Effect, Event};
use mainstay_region::limits::{Acknowledgement, Config, Limits, Times};
use mainstay_region::message::{Body, Message, Party};
use mainstay_region::region::{Phase, Region};
use mainstay_types::id::ClientId;
use mainstay_types::machine::Machine;
use mainstay_types::rules::Rules;
use mainstay_types::time::Time;
use mainstay_types::view::{View, ViewId};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const MILLISECOND: u64 = 1_000_000;
/// Between two ticks of a machine.
const TICK: u64 = 20 * MILLISECOND;
/// Faults come for so long.
const FAULTS_UNTIL: u64 = 3_000 * MILLISECOND;
/// After the faults, everything must have come to an end.
const END: u64 = FAULTS_UNTIL + 20_000 * MILLISECOND;
/// Length of a lease.
const LEASE: u64 = 150 * MILLISECOND;
/// What comes together comes within this time.
const TOGETHER: u64 = 3 * MILLISECOND;

/// What is to happen.
#[derive(Debug)]
pub(crate) enum Next {
    Deliver {
        from: Party,
        to: Party,
        message: Box<Message>,
        connection: u64,
    },
    Tick(usize),
    /// What came together at a server, in this life of it, is all.
    Drain(usize, u64),
    ClientTick(usize),
    Sync(usize),
    Source,
    Restart(usize),
    /// What the source says to a server, in this life of it.
    Say(usize, u64, Box<Event>),
    /// What a client finds out.
    View(usize, Box<View>),
    Fault,
}

/// The world.
pub(crate) struct RegionWorld {
    pub(crate) random: Random,
    pub(crate) now: u64,
    pub(crate) config: Config,
    pub(crate) hosts: Vec<Host>,
    pub(crate) clients: Vec<SimClient>,
    pub(crate) source: Source,
    pub(crate) oracle: Oracle,
    queue: BTreeMap<(u64, u64), Next>,
    queued: u64,
    /// Of each pair: when the last message arrives, and which connection it is.
    pub(crate) links: BTreeMap<(Party, Party), (u64, u64)>,
    steps: u64,
    pub(crate) crashes: u64,
    pub(crate) reached: Reached,
    pub(crate) trace: Trace,
    pub(crate) next_store: u8,
    /// The next crash comes within the effects of a step.
    pub(crate) crash_soon: Option<usize>,
    /// Longest write of a disk, in nanoseconds.
    disk_ns_max: u64,
    batches: Batches,
}

impl RegionWorld {
    pub(crate) fn new(seed: u64, rules: Rules, trace: Trace) -> Self {
        let mut random = Random::new(seed);
        let acknowledgement = if random.coin() { Acknowledgement::All } else { Acknowledgement::Majority };
        let small = random.chance(250);
        let limits = Limits {
            key_bytes_max: 16,
            value_bytes_max: 64,
            log_entries_max: if small { 8 } else { 64 },
            hold_back_entries_max: if small { 2 } else { 32 },
            held_payloads_max: if small { 4 } else { 64 },
            held_payloads_per_client_max: if small { 2 } else { 16 },
            early_messages_max: if small { 1 } else { 16 },
            early_versions_max: if small { 1 } else { 16 },
            grants_max: if small { 2 } else { 16 },
            waiting_max: if small { 4 } else { 64 },
            duplicate_threads_max: if random.chance(300) { 3 } else { 16 },
            duplicate_results_max: if random.chance(300) { 4 } else { 32 },
            history_entries_max: 512,
            duplicate_result_bytes_max: if random.chance(200) { 700 } else { 4096 },
            batch_bytes_max: 1024,
            expire_keys_max: 2,
            image_chunk_bytes_max: 8,
            together_bytes_max: if small { 8 } else { 200 },
            checkpoint_tick_bytes_max: 300,
            repair_entries_max: 8,
            ..Limits::default()
        };
        let limits = super::limited_in_bytes(seed, limits);
        let times = Times {
            repair_after: Duration::from_millis(60),
            grant_max: Duration::from_millis(120),
            held_max: Duration::from_millis(400),
            image_patience: Duration::from_millis(300),
        };
        let shards = u16::try_from(random.between(1, 3)).expect("it is small");
        let shards = super::many_shards(seed, shards);
        let config = Config { shards, acknowledgement, limits, times, rules, ..Config::default() };
        let members = random.between(1, 5);
        let spare = random.between(0, 1);
        let number = |at: u64| u8::try_from(at).expect("servers are few");
        let mut host = |at| Host::new(number(at), config, Clock::draw(&mut random, rules));
        let hosts: Vec<Host> = (1..=members + spare).map(&mut host).collect();
        let first = hosts.iter().take(usize::try_from(members).expect("few"));
        let first = View {
            id: ViewId(1),
            arbitrated: false,
            members: first.map(|host| host.member(ViewId(1))).collect(),
        };
        let clients = (0..random.between(2, 4)).map(|at| SimClient::new(at, &config, &mut random)).collect();
        let mut world = Self {
            now: MILLISECOND,
            next_store: number(members + spare + 1),
            source: Source::new(first),
            oracle: Oracle::new(config),
            queue: BTreeMap::new(),
            queued: 0,
            links: BTreeMap::new(),
            steps: 0,
            crashes: 0,
            reached: Reached::default(),
            trace,
            crash_soon: None,
            disk_ns_max: if random.chance(400) { 100 * MILLISECOND } else { 4 * MILLISECOND },
            batches: Batches::draw(seed),
            random,
            config,
            hosts,
            clients,
        };
        world.found();
        world
    }

    /// The first view begins.
    fn found(&mut self) {
        let mut out = Vec::new();
        Region::new(self.config).step(Time(1), Event::Settle { reports: Vec::new() }, &mut out);
        if let Some(Effect::Cut(cut)) = out.pop() {
            self.source.cut = cut;
        }
        for at in 0..self.hosts.len() {
            if self.is_member(at) {
                self.say_fetch(at);
            }
        }
        for at in 0..self.hosts.len() {
            let after = self.random.below(TICK);
            self.push(after, Next::Tick(at));
        }
        for at in 0..self.clients.len() {
            let after = self.random.below(TICK);
            self.push(after, Next::ClientTick(at));
        }
        self.push(MILLISECOND, Next::Source);
        let after = self.random.between(50, 300) * MILLISECOND;
        self.push(after, Next::Fault);
    }

    pub(crate) fn run(mut self) -> Ended {
        let violation = self.go().err();
        let (steps, crashes) = (self.steps, self.crashes);
        let violation = violation.map(|violation| (steps, violation));
        self.reached.merge(&self.oracle.reached);
        Ended { steps, crashes, reached: self.reached, violation, trace: self.trace }
    }

    fn go(&mut self) -> Result<(), Violation> {
        while let Some(((time, _), next)) = self.queue.pop_first() {
            self.now = time;
            if self.now > END {
                return Err(Violation::new(Property::Progress, self.stuck()));
            }
            self.happen(next)?;
            if self.healed() && self.at_rest() {
                let copies: Vec<&Region> =
                    self.hosts.iter().filter_map(|host| host.region.as_ref()).collect();
                return self.oracle.end(&copies, &mut self.trace, self.now);
            }
        }
        Ok(())
    }

    pub(crate) fn healed(&self) -> bool {
        self.now > FAULTS_UNTIL
    }

    pub(crate) fn hit(&mut self, reach: Reach) {
        self.reached.hit(reach);
    }

    pub(crate) fn push(&mut self, after: u64, next: Next) {
        self.queued += 1;
        self.queue.insert((self.now + after.max(1), self.queued), next);
    }

    fn happen(&mut self, next: Next) -> Result<(), Violation> {
        match next {
            Next::Deliver { from, to, message, connection } => self.deliver(from, to, *message, connection),
            Next::Tick(at) => self.tick(at),
            Next::Drain(at, life) => self.drain_late(at, life),
            Next::ClientTick(at) => {
                self.push(TICK, Next::ClientTick(at));
                self.client_tick(at)
            }
            Next::Sync(at) => self.sync(at),
            Next::Source => {
                let after = self.random.between(5, 25) * MILLISECOND;
                self.push(after, Next::Source);
                self.act_as_source();
                Ok(())
            }
            Next::Restart(at) => self.restart(at),
            Next::Say(at, life, event) => {
                if self.hosts[at].life == life && self.hosts[at].up() {
                    return self.step(at, *event);
                }
                Ok(())
            }
            Next::View(at, view) => self.client_learns(at, &view),
            Next::Fault => {
                self.fault();
                Ok(())
            }
        }
    }

    fn tick(&mut self, at: usize) -> Result<(), Violation> {
        self.push(TICK, Next::Tick(at));
        if !self.hosts[at].up() || self.hosts[at].paused_until > self.now {
            return Ok(());
        }
        let unix_ms = self.now / MILLISECOND + self.hosts[at].clock_ahead_ms;
        self.step(at, Event::WallClock { unix_ms })?;
        self.step(at, Event::Tick)?;
        self.checkpoint(at)?;
        if let Some(region) = &self.hosts[at].region {
            for shard in 0..self.config.shards {
                if region.phase() != Phase::Serving {
                    continue;
                }
                crate::properties::region_bounded::check(&region.sizes(shard))?;
            }
        }
        Ok(())
    }

    fn sync(&mut self, at: usize) -> Result<(), Violation> {
        let some = self.random.index(4) + 1;
        if !self.hosts[at].up() {
            return Ok(());
        }
        let (safe, released) = self.hosts[at].sync(some);
        for waiting in released {
            self.release(at, waiting);
        }
        self.step(at, Event::Appended(safe))?;
        if self.hosts[at].unsynced() > 0 {
            let after = self.random.between(100_000, self.disk_ns_max);
            self.push(after, Next::Sync(at));
        }
        Ok(())
    }

    fn release(&mut self, at: usize, waiting: Waiting) {
        match waiting {
            Waiting::Send(to, message) => {
                let host = &self.hosts[at];
                let asks = matches!(
                    message.body,
                    Body::ImageRequest { .. } | Body::ImageNext { .. } | Body::ImageTaken { .. }
                );
                let id = host.learn_id.filter(|_| asks).unwrap_or(host.id);
                self.send(Party::Member(id), to, *message);
            }
            Waiting::Ready(view) => {
                let region = self.hosts[at].region.as_ref().expect("it is up");
                let behind =
                    |shard| region.state(shard).at.view == view && region.state(shard).at.counter > 0;
                if (0..self.config.shards).any(behind) && region.phase() == Phase::Wedged {
                    self.hit(Reach::FilledBehindTheCut);
                }
                self.ready(at, view);
            }
        }
    }

    /// Sends: in order for each pair, late, and lost with its connection.
    pub(crate) fn send(&mut self, from: Party, to: Party, message: Message) {
        let bytes = message.encode();
        let message = Message::decode(&bytes, &self.config.limits).expect("what was encoded is read");
        if self.healed() || !self.random.chance(3) {
            let slow = !self.healed() && self.random.chance(20);
            let delay = if slow {
                self.random.between(10, 150) * MILLISECOND
            } else {
                self.random.between(50, 2_000) * 1000
            };
            let link = self.links.entry((from, to)).or_default();
            link.0 = (self.now + delay).max(link.0 + 1);
            let (at, connection) = *link;
            let message = Box::new(message);
            let after = at - self.now;
            self.push(after, Next::Deliver { from, to, message, connection });
        } else {
            // The connection breaks, with what is under way.
            self.links.entry((from, to)).or_default().1 += 1;
            self.hit(Reach::ConnectionBroken);
        }
    }

    /// Some connections of a client break, with what is under way.
    pub(crate) fn breaks_off(&mut self, client: ClientId) {
        let mut random = self.random.clone();
        self.random.draw();
        let links = self.links.iter_mut().filter(|((from, _), _)| *from == Party::Client(client));
        links.filter(|_| random.coin()).for_each(|(_, link)| link.1 += 1);
    }

    fn deliver(
        &mut self,
        from: Party,
        to: Party,
        message: Message,
        connection: u64,
    ) -> Result<(), Violation> {
        if self.links.get(&(from, to)).is_some_and(|link| link.1 != connection) {
            self.hit(Reach::FramesLost);
            return Ok(());
        }
        match (from, to) {
            (_, Party::Member(member)) => {
                let Some(at) = self
                    .hosts
                    .iter()
                    .position(|host| host.up() && (host.id == member || host.learn_id == Some(member)))
                else {
                    return Ok(());
                };
                if self.hosts[at].paused_until > self.now {
                    let after = self.hosts[at].paused_until - self.now;
                    let message = Box::new(message);
                    self.push(after, Next::Deliver { from, to, message, connection });
                    return Ok(());
                }
                self.step(at, Event::Received { from, message })
            }
            (Party::Member(member), Party::Client(client)) => {
                let Some(at) = self.clients.iter().position(|other| other.has(client)) else { return Ok(()) };
                self.trace_line(format_args!("{client} hears of {member}: {:?}", message));
                self.client_hears(at, client, member, message)
            }
            (Party::Client(_), Party::Client(_)) => Ok(()),
        }
    }

    pub(crate) fn trace_line(&mut self, line: std::fmt::Arguments<'_>) {
        self.trace.line(self.now, line);
    }

    /// A step of a copy, what it leads to, and what is said behind it, unless more comes first.
    pub(crate) fn step(&mut self, at: usize, event: Event) -> Result<(), Violation> {
        self.step_once(at, event)?;
        let host = &mut self.hosts[at];
        if !host.up() {
            return Ok(());
        }
        host.undrained += 1;
        if !self.batches.more() {
            return self.drain(at);
        }
        if host.undrained == 1 {
            let (life, after) = (host.life, self.batches.pause_ns(TOGETHER));
            self.push(after, Next::Drain(at, life));
        }
        Ok(())
    }

    fn drain(&mut self, at: usize) -> Result<(), Violation> {
        if std::mem::take(&mut self.hosts[at].undrained) > 1 {
            self.hit(Reach::CameTogether);
        }
        self.step_once(at, Event::Drained)
    }

    /// A server that stands still is drained when it goes on.
    fn drain_late(&mut self, at: usize, life: u64) -> Result<(), Violation> {
        let host = &self.hosts[at];
        let is_due = host.up() && host.life == life && host.undrained > 0;
        if is_due && host.paused_until > self.now {
            let after = host.paused_until - self.now;
            self.push(after, Next::Drain(at, life));
            return Ok(());
        }
        if is_due { self.drain(at) } else { Ok(()) }
    }

    /// One step; a crash may come between any two effects.
    fn step_once(&mut self, at: usize, event: Event) -> Result<(), Violation> {
        let host = &mut self.hosts[at];
        let now = host.clock.shows(self.now);
        let (id, number) = (host.id, host.number);
        let Some(region) = &mut host.region else { return Ok(()) };
        let mut out = Vec::new();
        if !matches!(event, Event::Tick | Event::Drained | Event::WallClock { .. } | Event::Appended(_)) {
            self.trace.line(self.now, format_args!("n{number} {id} takes {event:?}"));
        }
        let said_in = match &event {
            Event::Received { from: Party::Member(_), message } => {
                Some((message.view, is_image(&message.body)))
            }
            Event::Received { message, .. } => Some((message.view, false)),
            _ => None,
        };
        self.steps += 1;
        let ticked = matches!(event, Event::Tick);
        region.step(now, event, &mut out);
        self.oracle.answered(region, self.now, &out)?;
        let sends_again = |effect: &Effect| matches!(effect, Effect::Send { message, .. } if matches!(message.body, Body::Entries { .. }));
        if ticked && out.iter().any(sends_again) {
            self.reached.hit(Reach::SentAgain);
        }
        self.oracle.stepped(host.looked_at(&out), said_in)?;
        let crash_at = match self.crash_soon {
            // Most of what a copy does it does when it is drained, behind a step without effects.
            Some(chosen) if chosen == at && (!out.is_empty() || self.random.chance(300)) => {
                Some(self.random.index(out.len() + 1))
            }
            _ => None,
        };
        for (place, effect) in out.into_iter().enumerate() {
            if crash_at == Some(place) {
                break;
            }
            self.perform(at, effect);
        }
        if crash_at.is_some() {
            self.crash_soon = None;
            self.crash(at);
        }
        Ok(())
    }

    fn perform(&mut self, at: usize, effect: Effect) {
        let number = self.hosts[at].number;
        match effect {
            Effect::Append { .. } => {
                self.hosts[at].append(effect);
                if self.hosts[at].unsynced() == 1 {
                    let after = self.random.between(50_000, self.disk_ns_max);
                    self.push(after, Next::Sync(at));
                }
            }
            Effect::Send { to, message, after } => {
                self.count(&message.body);
                if let Some(waiting) = self.hosts[at].hold(after, Waiting::Send(to, Box::new(message))) {
                    self.release(at, waiting);
                }
            }
            Effect::Ready { view, after } => {
                if let Some(waiting) = self.hosts[at].hold(after, Waiting::Ready(view)) {
                    self.release(at, waiting);
                }
            }
            Effect::Report { request, bytes } => self.reported(at, request, bytes),
            Effect::Cut(cut) => self.settled(at, cut),
            Effect::Unsettled { member } => panic!("the report of {member} cannot be read"),
            Effect::Checkpointed => self.trim(at),
            Effect::Learned => {
                self.trace.line(self.now, format_args!("n{number} has learned"));
                self.hosts[at].learned = true;
            }
        }
    }

    /// Says something to a server, a little later.
    pub(crate) fn say(&mut self, at: usize, event: Event) {
        let slow = !self.healed() && self.random.chance(50);
        let after = self.random.between(50, if slow { 100_000 } else { 2_000 }) * 1000;
        let paused = self.hosts[at].paused_until.max(self.hosts[at].deaf_until).saturating_sub(self.now);
        let host = &mut self.hosts[at];
        host.hears_until = (self.now + after.max(paused)).max(host.hears_until + 1);
        let (life, after) = (host.life, host.hears_until - self.now);
        self.push(after, Next::Say(at, life, Box::new(event)));
    }

    /// Says a view to a client.
    pub(crate) fn tell_view(&mut self, at: usize, view: View) {
        let after = self.random.between(50, 3_000) * 1000;
        self.push(after, Next::View(at, Box::new(view)));
    }

    pub(crate) fn lease(&mut self, at: usize) {
        let store = self.hosts[at].store;
        // It is counted by the clock of who has it, and waited for by whoever gave it, for as long as clocks may differ.
        let until = Time(self.hosts[at].clock.shows(self.now).0 + LEASE);
        self.source.leases.insert(store, self.now + LEASE + LEASE * 3 / 1_000);
        self.say(at, Event::Lease { until });
    }
}

fn is_image(body: &Body) -> bool {
    matches!(
        body,
        Body::ImageRequest { .. } | Body::Image { .. } | Body::ImageNext { .. } | Body::ImageTaken { .. }
    )
}
