//! One run: one queue of what is to happen, one source of chance, faults first, then time for all to come together again.

use super::network::{End, Link};
use super::node::{Node, Unsafe};
use super::roles::Roles;
use super::setup::Setup;
use crate::group::faults::Cut;
use crate::group::oracle::Oracle as Views;
use crate::group::setup::{BEAT_NS, machine};
use crate::properties::region_one_definition::Definitions;
use crate::properties::{Property, Violation, one_successor};
use crate::random::Random;
use crate::reach::{Reach, Reached};
use crate::region::Batches;
use crate::region::clients::SimClient;
use crate::region::oracle::Oracle;
use crate::trace::Trace;
use crate::world::Ended;
use mainstay_group::ballot::Proposal;
use mainstay_group::limits::Limits as GroupLimits;
use mainstay_group::message::Body as GroupBody;
use mainstay_region::limits::Config as RegionConfig;
use mainstay_region::message::Body;
use mainstay_replica::config::{Begin, Config};
use mainstay_replica::definition::{Definition, RegionId};
use mainstay_replica::effect::Effect;
use mainstay_replica::event::Event;
use mainstay_replica::message::Message;
use mainstay_replica::replica::Replica;
use mainstay_types::id::{ClusterId, Incarnation};
use mainstay_types::machine::Machine;
use mainstay_types::rules::Rules;
use mainstay_types::view::{JoinerId, Offer, View, ViewId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Steps that no run needs. The longest are calm ones of seven nodes with two regions on the slowest disks: 430 s of ticks.
const STEPS_MAX: u64 = 2_000_000;
/// Between two ticks of a client, in nanoseconds.
const CLIENT_TICK_NS: u64 = BEAT_NS / 2;
/// What comes together comes within this time, in nanoseconds.
const TOGETHER_NS: u64 = BEAT_NS / 10;

/// What happens at a time.
pub(crate) enum Next {
    Wake { node: usize, life: u64, number: u64 },
    Drain { node: usize, life: u64 },
    Deliver { from: End, to: End, bytes: Vec<u8>, broke: u64 },
    Persisted { node: usize, life: u64, ticket: u64 },
    Sync { node: usize, life: u64 },
    ClientTick { client: usize },
    View { client: usize, view: View },
    Start { node: usize },
    Redefine,
    Fault,
    Watch,
    Heal,
    Judge,
}

/// The world of one run.
pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) trace: Trace,
    pub(crate) reached: Reached,
    rules: Rules,
    pub(crate) setup: Setup,
    batches: Batches,
    pub(crate) roles: Roles,
    pub(crate) now_ns: u64,
    queue: BTreeMap<(u64, u64), Next>,
    scheduled: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) clients: Vec<SimClient>,
    pub(crate) links: BTreeMap<(End, End), Link>,
    pub(crate) cuts: Vec<Cut>,
    /// What the views have shown.
    pub(crate) views: Views,
    pub(crate) decided: BTreeMap<ViewId, Proposal>,
    /// What regions are in each view.
    pub(crate) definitions: Definitions,
    /// What each region has shown.
    pub(crate) oracles: BTreeMap<RegionId, Oracle>,
    pub(crate) cluster: ClusterId,
    pub(crate) faulty: bool,
    pub(crate) all_were_down: bool,
    /// In a calm run: when somebody served last, or was killed.
    pub(crate) disturbed_ns: u64,
    steps: u64,
    pub(crate) crashes: u64,
    violation: Option<Violation>,
    pub(crate) over: bool,
}

impl World {
    pub(crate) fn new(seed: u64, rules: Rules, trace: Trace) -> Self {
        let mut random = Random::new(seed ^ 0x7265_706C_6963_6100);
        let mut setup = Setup::draw(&mut random);
        let roles = match setup.calm {
            // Who reconnects lets nobody serve for longer than a calm run does.
            Some(_) => Roles::none(),
            None => Roles::draw(seed, setup.nodes, &mut setup.regions),
        };
        let equal = random.chance(700);
        let nodes = (0..setup.nodes)
            .map(|number| {
                let weight = if equal { 1 } else { 1 + random.below(3) as u32 };
                Node::new(number, Offer { weight, ..Offer::server() }, rules, &mut random)
            })
            .collect();
        let config = |definition: &Definition| RegionConfig {
            shards: definition.shards,
            acknowledgement: definition.acknowledgement(),
            limits: setup.limits,
            times: setup.times,
            ..RegionConfig::default()
        };
        let configs: Vec<RegionConfig> = setup.regions.iter().map(config).collect();
        let oracles = (1..).map(RegionId).zip(configs.iter().map(|config| Oracle::new(*config))).collect();
        let clients = (0..random.between(2, 4)).map(|number| {
            let home = usize::try_from(number).expect("few clients") % configs.len();
            SimClient::new(number, &configs[home], &mut random)
        });
        let definitions = Definitions::of(&setup.regions);
        Self {
            clients: clients.collect(),
            random,
            trace,
            reached: Reached::default(),
            rules,
            setup,
            batches: Batches::draw(seed),
            roles,
            now_ns: 0,
            queue: BTreeMap::new(),
            scheduled: 0,
            nodes,
            links: BTreeMap::new(),
            cuts: Vec::new(),
            views: Views::default(),
            decided: BTreeMap::new(),
            definitions,
            oracles,
            cluster: ClusterId([1; 16]),
            faulty: true,
            all_were_down: false,
            disturbed_ns: 0,
            steps: 0,
            crashes: 0,
            violation: None,
            over: false,
        }
    }

    pub(crate) fn run(mut self) -> Ended {
        for node in 0..self.nodes.len() {
            let late = if node == 0 { 0 } else { self.random.below(20 * BEAT_NS) };
            self.schedule(late, Next::Start { node });
        }
        for client in 0..self.clients.len() {
            let late = self.random.below(CLIENT_TICK_NS);
            self.schedule(late, Next::ClientTick { client });
        }
        match self.setup.calm {
            // Every pattern is one more view, and how long nobody serves is bounded for one.
            Some(beats_max) => self.begin_calm(beats_max),
            None => self.schedule(10 * BEAT_NS, Next::Redefine),
        }
        self.schedule(10 * BEAT_NS, Next::Fault);
        self.schedule(self.setup.faults_end_ns, Next::Heal);
        while !self.over
            && self.violation.is_none()
            && let Some(((at_ns, _), next)) = self.queue.pop_first()
        {
            self.now_ns = at_ns;
            if self.steps > STEPS_MAX {
                let what = format!("no end after {STEPS_MAX} steps");
                self.violation = Some(Violation::new(Property::Progress, what));
            }
            self.happens(next);
        }
        for oracle in self.oracles.values() {
            self.reached.merge(&oracle.reached);
        }
        let Self { steps, crashes, reached, trace, violation, .. } = self;
        Ended { steps, crashes, reached, violation: violation.map(|violation| (steps, violation)), trace }
    }

    pub(crate) fn schedule(&mut self, after_ns: u64, next: Next) {
        self.scheduled += 1;
        self.queue.insert((self.now_ns + after_ns, self.scheduled), next);
    }

    pub(crate) fn trace_line(&mut self, line: std::fmt::Arguments<'_>) {
        self.trace.line(self.now_ns, line);
    }

    /// Keeps the first violation.
    pub(crate) fn found(&mut self, ended: Result<(), Violation>) {
        if let Err(violation) = ended {
            self.violation.get_or_insert(violation);
        }
    }

    fn happens(&mut self, next: Next) {
        // A node that stands still takes everything in when it goes on.
        let sleeper = match &next {
            Next::Wake { node, .. }
            | Next::Drain { node, .. }
            | Next::Persisted { node, .. }
            | Next::Sync { node, .. } => Some(*node),
            Next::Deliver { to: End::Node(node), .. } => Some(*node),
            _ => None,
        };
        if let Some(node) = sleeper.map(|node| &self.nodes[node])
            && node.running.is_some()
            && node.paused_until_ns > self.now_ns
        {
            let left = node.paused_until_ns - self.now_ns;
            return self.schedule(left, next);
        }
        match next {
            Next::Wake { node, life, number } => {
                if self.is_alive(node, life) && self.nodes[node].wakes == number {
                    self.step(node, Event::Tick, None);
                }
            }
            Next::Drain { node, life } => {
                if self.is_alive(node, life) && self.nodes[node].undrained > 0 {
                    self.drain(node);
                }
            }
            Next::Deliver { from, to, bytes, broke } => self.deliver(from, to, &bytes, broke),
            Next::Persisted { node, life, ticket } => {
                if self.is_alive(node, life) {
                    self.nodes[node].persist(ticket);
                    self.step(node, Event::Persisted { ticket }, None);
                }
            }
            Next::Sync { node, life } => self.sync(node, life),
            Next::ClientTick { client } => {
                self.schedule(CLIENT_TICK_NS, Next::ClientTick { client });
                self.with_client(client, SimClient::tick);
            }
            Next::View { client, view } => {
                self.with_client(client, |client, scene| client.learns(&view, scene));
            }
            Next::Start { node } => self.start(node),
            Next::Redefine if self.faulty => self.ask_for_pattern(),
            Next::Fault if self.faulty => self.fault(),
            Next::Redefine | Next::Fault => {}
            Next::Watch => self.watch_calm(),
            Next::Heal => self.heal(),
            Next::Judge => self.judge(),
        }
    }

    fn is_alive(&self, node: usize, life: u64) -> bool {
        let node = &self.nodes[node];
        node.running.is_some() && node.life == life
    }

    fn start(&mut self, at: usize) {
        let node = &self.nodes[at];
        if node.running.is_some() || node.rests_until_ns > self.now_ns {
            return;
        }
        let ask_at = [0, 1, self.setup.nodes - 1].map(|other| self.nodes[other].address);
        let node = &mut self.nodes[at];
        node.life += 1;
        let me = JoinerId { address: node.address, store: node.store, life: Incarnation(node.life) };
        let returns = node.stored.record.is_some();
        let begin = (node.begins && !returns).then(|| Begin {
            cluster: self.cluster,
            arbitrated: false,
            regions: self.setup.regions.clone(),
        });
        let config = Config {
            offer: Offer { roles: self.roles.offered_by(at), ..node.offer.clone() },
            group_limits: GroupLimits::default(),
            timing: self.setup.timing,
            region_limits: self.setup.limits,
            region_times: self.setup.times,
            region_tick: Duration::from_nanos(BEAT_NS * 2 / 3),
            checkpoint_bytes_min: self.setup.checkpoint_bytes_min,
            rules: self.rules,
            ..Config::of(me, ask_at.to_vec(), begin)
        };
        let mut effects = Vec::new();
        let started =
            Replica::start(config, node.stored.clone(), node.clock.shows(self.now_ns), &mut effects);
        match started {
            Ok(running) => node.running = Some(running),
            Err(error) => {
                let what = format!("node {at} does not start on what it kept: {error}");
                return self.found(Err(Violation::new(Property::Recovers, what)));
            }
        }
        self.reached.add(Reach::StoreReturned, u64::from(returns));
        self.reached.add(Reach::FoundFromCheckpoint, u64::from(self.nodes[at].trimmed));
        if std::mem::take(&mut self.all_were_down) {
            self.reached.hit(Reach::TotalRestart);
        }
        self.trace_line(format_args!("node {at} starts as {me}"));
        self.perform(at, effects);
    }

    /// A message came to a node.
    pub(crate) fn hears(&mut self, at: usize, message: Message) {
        let said = match &message {
            Message::Region { region, message, .. } | Message::Request { region, message, .. } => {
                let is_image = matches!(
                    message.body,
                    Body::ImageRequest { .. } | Body::Image { .. } | Body::ImageNext { .. }
                );
                Some((*region, (message.view, is_image)))
            }
            _ => None,
        };
        if !matches!(&message, Message::Group(message) if matches!(message.body, GroupBody::Beat { .. })) {
            self.trace_line(format_args!("n{at} hears {message:?}"));
        }
        self.step(at, Event::Arrived(message), said);
    }

    /// A step of a node, and what it says behind it, unless more comes first.
    pub(crate) fn step(&mut self, at: usize, event: Event, said: Option<(RegionId, (ViewId, bool))>) {
        let life = self.nodes[at].life;
        self.step_once(at, event, said);
        if !self.is_alive(at, life) {
            return;
        }
        self.nodes[at].undrained += 1;
        if !self.batches.more() {
            self.drain(at);
        } else if self.nodes[at].undrained == 1 {
            let after_ns = self.batches.pause_ns(TOGETHER_NS);
            self.schedule(after_ns, Next::Drain { node: at, life });
        }
    }

    fn drain(&mut self, at: usize) {
        if std::mem::take(&mut self.nodes[at].undrained) > 1 {
            self.reached.hit(Reach::CameTogether);
        }
        self.step_once(at, Event::Drained, None);
    }

    /// One step, and what it asks for.
    fn step_once(&mut self, at: usize, event: Event, said: Option<(RegionId, (ViewId, bool))>) {
        self.steps += 1;
        let node = &mut self.nodes[at];
        let now = node.clock.shows(self.now_ns);
        let Some(running) = &mut node.running else { return };
        let mut effects = Vec::new();
        let ticked = matches!(event, Event::Tick);
        running.step(now, event, &mut effects);
        let looked = self.look(at, said, ticked, &effects);
        self.found(looked);
        self.perform(at, effects);
    }

    /// Performs effects in order; a crash comes between any two.
    fn perform(&mut self, at: usize, effects: Vec<Effect>) {
        let life = self.nodes[at].life;
        for effect in effects {
            if self.faulty && self.random.below(1_000_000) < self.setup.crash_per_million {
                self.kill(at);
                let down = self.random.below(20 * BEAT_NS);
                self.schedule(down, Next::Start { node: at });
            }
            if !self.is_alive(at, life) || self.violation.is_some() {
                break;
            }
            let performed = self.performs(at, life, effect);
            self.found(performed);
        }
    }

    fn performs(&mut self, at: usize, life: u64, effect: Effect) -> Result<(), Violation> {
        match effect {
            Effect::Send { to, message } => {
                self.watch(at, &message)?;
                if let Message::Region { message, .. } = &message {
                    self.count(&message.body);
                }
                self.send(End::Node(at), End::Node(machine(to)), &message);
            }
            Effect::Answer { client, region, message } => {
                self.judge_answered(at, region, &message)?;
                self.count(&message.body);
                let from = self.nodes[at].running.as_ref().expect("it is alive").name();
                if let Some(place) = self.client_at(client) {
                    let message = Message::Answer { region, from, client, message };
                    self.send(End::Node(at), End::Client(place), &message);
                }
            }
            Effect::PersistRecord { ticket, bytes } => {
                self.nodes[at].writing.push_back((ticket, bytes));
                if self.faulty && self.setup.calm.is_none() && self.random.chance(1) {
                    self.reached.hit(Reach::FailedSync);
                    self.nodes[at].writing.clear();
                    self.step(at, Event::PersistFailed, None);
                    return Ok(());
                }
                let takes = self.persist_ns(at);
                self.schedule(takes, Next::Persisted { node: at, life, ticket });
            }
            Effect::Append { region, record, bytes } => {
                self.nodes[at].appending.push_back(Unsafe { region, record, bytes });
                if self.nodes[at].appending.len() == 1 {
                    self.begin_sync(at, life);
                }
            }
            Effect::CheckpointBegins => {
                let node = &mut self.nodes[at];
                node.checkpoint_at = node.stored.records.len() + node.appending.len();
            }
            Effect::Trim if self.random.chance(200) => {}
            Effect::Trim => {
                self.nodes[at].trim(&mut self.random);
                self.reached.hit(Reach::Trim);
            }
            Effect::Wake { at: time } => {
                let node = &mut self.nodes[at];
                node.wakes += 1;
                let (at_ns, number) = (node.clock.true_ns(time), node.wakes);
                let jitter = self.random.below(BEAT_NS / 100);
                let after_ns = at_ns.saturating_sub(self.now_ns) + jitter;
                self.schedule(after_ns, Next::Wake { node: at, life, number });
            }
            Effect::Serving { view } => {
                self.trace_line(format_args!("n{at} serves {view}"));
                self.look_for_roles(at, &view);
            }
            Effect::NotServing { explanation } => {
                self.trace_line(format_args!("n{at} does not serve: {explanation}"));
            }
            Effect::Refused { .. } | Effect::NoRegion { .. } | Effect::AskArbiter { .. } => {}
            Effect::Unreadable { from } => {
                let what = format!("n{at} cannot read what the regions of {from:?} said");
                return Err(Violation::new(Property::Asserts, what));
            }
            Effect::Redefined { region, pattern, view } => self.redefined(at, (region, pattern), Ok(view))?,
            Effect::NotRedefined { region, pattern, error } => {
                self.redefined(at, (region, pattern), Err(error))?;
            }
            Effect::Left => {
                let rest = self.random.below(30 * BEAT_NS);
                let node = &mut self.nodes[at];
                node.ends();
                node.rests_until_ns = self.now_ns + rest;
                self.disconnect(at);
                self.reached.hit(Reach::LeftInOrder);
                self.schedule(rest, Next::Start { node: at });
            }
            Effect::Stopped => {
                self.kill(at);
                self.schedule(BEAT_NS, Next::Start { node: at });
            }
        }
        Ok(())
    }

    /// What a message of the group says to the oracle of views.
    fn watch(&mut self, at: usize, message: &Message) -> Result<(), Violation> {
        let Message::Group(message) = message else { return Ok(()) };
        self.views.leaves(message, self.nodes[at].record().as_ref())?;
        match &message.body {
            GroupBody::Install { proposal } => {
                if let Some(known) = self.decided.get(&proposal.view.id) {
                    return one_successor::check(known, proposal);
                }
                self.judge_departures(proposal)?;
                self.decided.insert(proposal.view.id, proposal.clone());
                self.reached.hit(Reach::ViewInstalled);
                self.look_at_definitions(proposal)?;
                // That oracle would take what regions settled on for facts.
                let proposal = Proposal { cut: Vec::new(), ..proposal.clone() };
                self.views.decided(self.cluster, &proposal, &mut self.reached)?;
            }
            GroupBody::Join { learned, .. } => {
                self.reached.add(Reach::FilledFirst, u64::from(*learned));
            }
            GroupBody::Accept { ballot, proposal } => {
                self.views.offered(self.cluster, ballot.proposer, proposal, &mut self.reached);
            }
            _ => {}
        }
        Ok(())
    }

    fn sync(&mut self, at: usize, life: u64) {
        if !self.is_alive(at, life) {
            return;
        }
        let covered = self.nodes[at].writing_record.covers;
        for (region, record) in self.nodes[at].sync(covered) {
            self.step(at, Event::Appended { region, record }, None);
        }
        if self.is_alive(at, life) && !self.nodes[at].appending.is_empty() {
            self.begin_sync(at, life);
        }
    }
}
