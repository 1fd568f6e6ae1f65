//! One run: one queue of happenings, one source of chance, faults first, then time for all to come together again.

use crate::group::faults::Cut;
use crate::group::oracle::Oracle;
use crate::group::process::{Clock, Fact, Process, Running, put_facts, take_facts};
use crate::group::setup::{BEAT_NS, Setup, address, machine};
use crate::properties::{Property, Violation};
use crate::random::Random;
use crate::reach::{Reach, Reached};
use crate::trace::Trace;
use crate::world::Ended;
use mainstay_group::ballot::{Ballot, Because, Proposal};
use mainstay_group::effect::Effect;
use mainstay_group::event::Event;
use mainstay_group::explain::Explanation;
use mainstay_group::group::{Begin, Config, Group};
use mainstay_group::limits::Limits;
use mainstay_group::message::{Body, Message, Refusal};
use mainstay_types::id::{ClusterId, Incarnation, StoreId};
use mainstay_types::machine::Machine;
use mainstay_types::rules::Rules;
use mainstay_types::view::{Address, JoinerId, View, ViewId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Steps that no run needs.
const STEPS_MAX: u64 = 400_000;

/// What happens at a time.
pub(crate) enum Happening {
    Wake { machine: usize, life: u64 },
    Deliver { to: Address, from: usize, bytes: Vec<u8> },
    Persisted { machine: usize, life: u64, ticket: u64 },
    Regions { machine: usize, life: u64, done: Done },
    Arbiter { machine: usize, life: u64, from: ViewId, proposal: Proposal },
    Write { machine: usize, again: bool },
    Strand { machine: usize, life: u64 },
    Store { machine: usize, writer: (usize, u64), view: ViewId, fact: Fact },
    Stored { machine: usize, life: u64, view: ViewId, fact: Fact, by: StoreId },
    Start { machine: usize },
    Fault,
    Betrayal { served: usize, traitor: usize },
    Heal,
    Judge,
}

/// What the regions of a process were asked for.
pub(crate) enum Done {
    Report { view: ViewId, request: u64 },
    Cut { view: ViewId, ballot: Ballot, bytes: Vec<u8> },
    Fetched { view: View, base: ViewId, cut: Vec<u8> },
    Learned,
}

struct Scheduled {
    at_ns: u64,
    number: u64,
    happening: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

pub(crate) type GroupWorld = World;

/// The world of one run.
pub(crate) struct World {
    pub(crate) random: Random,
    trace: Trace,
    pub(crate) reached: Reached,
    pub(crate) rules: Rules,
    pub(crate) setup: Setup,
    pub(crate) now_ns: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    pub(crate) processes: Vec<Process>,
    pub(crate) cuts: Vec<Cut>,
    pub(crate) oracle: Oracle,
    /// The group that is watched.
    pub(crate) cluster: ClusterId,
    pub(crate) arbiter: BTreeMap<ViewId, Proposal>,
    pub(crate) facts: Fact,
    pub(crate) faulty: bool,
    pub(crate) all_were_down: bool,
    steps: u64,
    pub(crate) crashes: u64,
    pub(crate) violation: Option<Violation>,
    pub(crate) over: bool,
    /// It hears nothing, although all other faults have ended.
    pub(crate) deaf: Option<usize>,
    /// Since when all have to come together.
    pub(crate) whole_since_ns: u64,
    /// The newest view that was judged, and since when it is the newest.
    pub(crate) newest_since: (ViewId, u64),
    effects: Vec<Effect>,
}

impl World {
    pub(crate) fn new(seed: u64, rules: Rules, trace: Trace) -> Self {
        let mut random = Random::new(seed ^ 0x6772_6F75_7000_0000);
        let setup = Setup::draw(&mut random);
        let machines = setup.processes + usize::from(setup.two_groups);
        let processes = (0..machines)
            .map(|number| {
                let begins = match number {
                    0 => Some(1),
                    _ if number == setup.processes => Some(2),
                    _ => None,
                };
                Process {
                    address: address(number, 7000),
                    store: StoreId([u8::try_from(number + 1).expect("few machines"); 16]),
                    life: 0,
                    offer: setup.offer(if begins.is_some() { 0 } else { number }, &mut random),
                    begins,
                    told: Vec::new(),
                    clock: Clock::draw(&mut random, rules),
                    record: None,
                    writing: std::collections::VecDeque::new(),
                    facts: BTreeSet::new(),
                    running: None,
                    paused_until_ns: 0,
                    rests_until_ns: 0,
                }
            })
            .collect();
        Self {
            random,
            trace,
            reached: Reached::default(),
            rules,
            setup,
            now_ns: 0,
            queue: BinaryHeap::new(),
            scheduled: 0,
            processes,
            cuts: Vec::new(),
            oracle: Oracle::default(),
            cluster: ClusterId([1; 16]),
            arbiter: BTreeMap::new(),
            facts: 0,
            faulty: true,
            all_were_down: false,
            steps: 0,
            crashes: 0,
            violation: None,
            over: false,
            deaf: None,
            whole_since_ns: 0,
            newest_since: (ViewId::NONE, 0),
            effects: Vec::new(),
        }
    }

    pub(crate) fn run(mut self) -> Ended {
        for machine in 0..self.processes.len() {
            let late = if machine == 0 { 0 } else { self.random.below(20 * BEAT_NS) };
            self.schedule(late, Happening::Start { machine });
            self.schedule(late, Happening::Write { machine, again: true });
        }
        self.schedule(5 * BEAT_NS, Happening::Fault);
        self.schedule(self.setup.faults_end_ns, Happening::Heal);
        while !self.over
            && self.violation.is_none()
            && let Some(Reverse(next)) = self.queue.pop()
        {
            self.now_ns = self.now_ns.max(next.at_ns);
            if self.steps > STEPS_MAX {
                let what = format!("no end after {STEPS_MAX} steps");
                self.violation = Some(Violation::new(Property::Progress, what));
            }
            self.happens(next.happening);
        }
        self.reached.add(Reach::JoinedAndDied, self.oracle.never_entered() as u64);
        let Self { steps, crashes, reached, trace, violation, .. } = self;
        Ended { steps, crashes, reached, violation: violation.map(|violation| (steps, violation)), trace }
    }

    pub(crate) fn schedule(&mut self, after_ns: u64, happening: Happening) {
        self.scheduled += 1;
        let scheduled = Scheduled { at_ns: self.now_ns + after_ns, number: self.scheduled, happening };
        self.queue.push(Reverse(scheduled));
    }

    pub(crate) fn trace_line(&mut self, line: std::fmt::Arguments<'_>) {
        self.trace.line(self.now_ns, line);
    }

    fn happens(&mut self, happening: Happening) {
        // A process that stands still takes everything in when it goes on.
        let sleeper = match &happening {
            Happening::Wake { machine, .. }
            | Happening::Persisted { machine, .. }
            | Happening::Regions { machine, .. }
            | Happening::Store { machine, .. }
            | Happening::Stored { machine, .. } => Some(*machine),
            Happening::Deliver { to, .. } => Some(machine(*to)),
            _ => None,
        };
        if let Some(process) = sleeper.map(|machine| &self.processes[machine])
            && process.running.is_some()
            && process.paused_until_ns > self.now_ns
        {
            let left = process.paused_until_ns - self.now_ns;
            return self.schedule(left, happening);
        }
        match happening {
            Happening::Wake { machine, life } => self.event(machine, life, Event::Tick),
            Happening::Deliver { to, from, bytes } => self.deliver(to, from, &bytes),
            Happening::Persisted { machine, life, ticket } => {
                if self.is_alive(machine, life) {
                    self.processes[machine].persist(ticket);
                    self.event(machine, life, Event::Persisted { ticket });
                }
            }
            Happening::Regions { machine, life, done } => self.regions(machine, life, done),
            Happening::Arbiter { machine, life, from, proposal } => {
                self.arbitrate(machine, life, from, proposal);
            }
            Happening::Write { machine, again } => self.write(machine, again),
            Happening::Store { machine, writer, view, fact } => self.store(machine, writer, view, fact),
            Happening::Stored { machine, life, view, fact, by } => {
                self.stored(machine, life, (view, fact, by));
            }
            Happening::Start { machine } => self.start(machine),
            Happening::Strand { machine, life } => {
                if self.faulty && self.is_alive(machine, life) {
                    self.kill(machine);
                    let down = self.random.between(10, 60) * BEAT_NS;
                    self.schedule(down, Happening::Start { machine });
                }
            }
            Happening::Fault if self.faulty => self.fault(),
            Happening::Betrayal { served, traitor } if self.faulty => self.betrayal(served, traitor),
            Happening::Fault | Happening::Betrayal { .. } => {}
            Happening::Heal => self.heal(),
            Happening::Judge => self.judge(),
        }
    }

    pub(crate) fn is_alive(&self, machine: usize, life: u64) -> bool {
        let process = &self.processes[machine];
        process.running.is_some() && process.life == life
    }

    fn event(&mut self, machine: usize, life: u64, event: Event) {
        if self.is_alive(machine, life) {
            self.step(machine, event);
        }
    }

    /// Where new processes ask.
    pub(crate) fn known_machines(&self) -> [usize; 3] {
        [0, 1, self.setup.processes - 1]
    }

    fn start(&mut self, machine: usize) {
        let process = &self.processes[machine];
        if process.running.is_some() || process.rests_until_ns > self.now_ns {
            return;
        }
        // The other port of the machine, sometimes: a range of two must do.
        let port = 7000 + u16::from(self.random.chance(300));
        // The other group is met by who began it: a process that asked both could be let into both.
        let asked = self.known_machines().into_iter().chain(self.processes[machine].told.iter().copied());
        let ask_at = asked.flat_map(|other| [address(other, 7000), address(other, 7001)]).collect();
        let process = &mut self.processes[machine];
        process.address = address(machine, port);
        process.life += 1;
        let me = JoinerId { address: process.address, store: process.store, life: Incarnation(process.life) };
        let cluster = process.begins.map(|byte| ClusterId([byte; 16]));
        let fresh = process.record.is_none();
        let begin = cluster
            .filter(|_| fresh)
            .map(|cluster| (cluster, self.setup.arbitrated && cluster == self.cluster))
            .map(|(cluster, arbitrated)| Begin { cluster, arbitrated, cut: Vec::new() });
        let config = Config {
            me,
            offer: process.offer.clone(),
            ask_at,
            begin,
            limits: Limits::default(),
            timing: self.setup.timing,
            rules: self.rules,
        };
        let mut effects = Vec::new();
        let record = process.record.clone();
        let returns = record.as_ref().is_some_and(|record| record.view().is_some());
        let group = Group::start(config, record, process.clock.shows(self.now_ns), &mut effects);
        let group = group.expect("the world starts processes as it should");
        process.running = Some(Running { group, open: BTreeMap::new(), leaving: false, asks: None });
        self.reached.add(Reach::StoreReturned, u64::from(returns));
        if std::mem::take(&mut self.all_were_down) {
            self.reached.hit(Reach::TotalRestart);
        }
        self.trace_line(format_args!("process {machine} starts as {me}"));
        self.perform(machine, effects);
    }

    /// One step of a process, and what it asks for.
    pub(crate) fn step(&mut self, machine: usize, event: Event) {
        self.steps += 1;
        let process = &mut self.processes[machine];
        let now = process.clock.shows(self.now_ns);
        let Some(running) = &mut process.running else { return };
        let mut effects = std::mem::take(&mut self.effects);
        running.group.step(now, event, &mut effects);
        let serves = running.group.serves(now);
        let cluster = running.group.record().cluster;
        let member = running.group.member_id();
        let view = running.group.record().view_id();
        if let (true, Some(cluster), Some(member)) = (serves, cluster, member)
            && let Err(violation) = self.oracle.serves(cluster, (member, view), self.now_ns, &self.processes)
        {
            self.violation = Some(violation);
        }
        let effects_left = self.perform(machine, effects);
        self.effects = effects_left;
    }

    /// Performs effects in order; a crash comes between any two.
    fn perform(&mut self, machine: usize, mut effects: Vec<Effect>) -> Vec<Effect> {
        let life = self.processes[machine].life;
        for effect in effects.drain(..) {
            let installs = matches!(&effect, Effect::Send { message, .. } if matches!(message.body, Body::Install { .. }));
            let chance =
                if installs { self.setup.crash_per_million * 20 } else { self.setup.crash_per_million };
            if self.faulty && chance > 0 && self.random.below(1_000_000) < chance {
                self.reached.add(Reach::CoordinatorFell, u64::from(installs));
                self.kill(machine);
                let down = self.random.below(20 * BEAT_NS);
                self.schedule(down, Happening::Start { machine });
            }
            if !self.is_alive(machine, life) || self.violation.is_some() {
                break;
            }
            if let Err(violation) = self.performs(machine, life, effect) {
                self.violation = Some(violation);
            }
        }
        effects
    }

    fn performs(&mut self, machine: usize, life: u64, effect: Effect) -> Result<(), Violation> {
        let millisecond = 1_000_000;
        let process = &mut self.processes[machine];
        let cluster = process.running.as_ref().and_then(|running| running.group.record().cluster);
        match effect {
            Effect::Send { to, message } => return self.send(machine, to, &message),
            Effect::Persist { ticket, record } => {
                process.writing.push_back((ticket, record));
                if self.faulty && self.random.chance(2) {
                    self.reached.hit(Reach::FailedSync);
                    self.processes[machine].writing.clear();
                    self.step(machine, Event::PersistFailed);
                    return Ok(());
                }
                let slow = if self.random.chance(30) { 300 } else { 10 };
                let takes = self.random.below(slow * millisecond);
                self.schedule(takes, Happening::Persisted { machine, life, ticket });
            }
            Effect::Wake { at } => {
                let at_ns = process.clock.true_ns(at);
                let jitter = self.random.below(millisecond);
                self.schedule(at_ns.saturating_sub(self.now_ns) + jitter, Happening::Wake { machine, life });
            }
            Effect::Wedge { view, request } => {
                self.ask_regions(machine, life, Done::Report { view, request });
            }
            Effect::Settle { view, ballot, reports } => {
                let facts: BTreeSet<Fact> =
                    reports.iter().flat_map(|(_, report)| take_facts(report)).collect();
                self.ask_regions(machine, life, Done::Cut { view, ballot, bytes: put_facts(&facts) });
            }
            Effect::Fetch { view, base, cut } => {
                let who =
                    JoinerId { address: process.address, store: process.store, life: Incarnation(life) };
                let installed =
                    process.running.as_ref().and_then(|running| running.group.record().installed.clone());
                if let (Some(cluster), Some(installed)) = (cluster, installed) {
                    self.oracle.decided(cluster, &installed, &mut self.reached)?;
                }
                let is_member =
                    process.running.as_ref().is_some_and(|running| running.group.view().is_some());
                if let Some(cluster) = cluster.filter(|_| is_member) {
                    self.reached.hit(Reach::ViewInstalled);
                    self.oracle.enters(cluster, &view, who)?;
                }
                self.trace_line(format_args!("process {machine} knows {view}"));
                self.ask_regions(machine, life, Done::Fetched { view, base, cut });
            }
            Effect::Learn { .. } => {
                self.reached.hit(Reach::FilledFirst);
                self.ask_regions(machine, life, Done::Learned);
            }
            Effect::Installed { view, cut } => {
                let held = take_facts(&cut).all(|fact| process.facts.contains(&fact));
                assert!(held, "nothing is installed before it is fetched");
                let running = process.running.as_mut().expect("it is alive");
                running.open.retain(|_, (of, _)| *of == view.id);
                // What is done right after a view begins is what the next one forgets most easily.
                let soon = self.random.below(2 * BEAT_NS);
                self.schedule(soon, Happening::Write { machine, again: false });
                if self.faulty && self.random.chance(60) {
                    // Whoever has the data goes, before the others have fetched it.
                    let soon = self.random.below(2 * BEAT_NS);
                    self.schedule(soon, Happening::Strand { machine, life });
                }
            }
            Effect::Expelled { explanation } => {
                let told = matches!(explanation, Explanation::Outside { departure: Some(gone), .. } if gone.because != Because::Left);
                self.reached.add(Reach::Expelled, u64::from(told));
            }
            Effect::AskArbiter { from, proposal } => {
                let running = process.running.as_mut().expect("it is alive");
                if running.asks.as_ref() != Some(&proposal) || self.random.chance(300) {
                    running.asks = Some(proposal.clone());
                    let takes = self.random.below(3 * BEAT_NS);
                    self.schedule(takes, Happening::Arbiter { machine, life, from, proposal });
                }
            }
            Effect::Refused { refusal } => {
                self.reached
                    .add(Reach::TwoGroups, u64::from(matches!(refusal, Refusal::OtherCluster { .. })));
            }
            Effect::Left => {
                let rest = self.random.below(30 * BEAT_NS);
                process.rests_until_ns = self.now_ns + rest;
                process.running = None;
                process.writing.clear();
                self.reached.hit(Reach::LeftInOrder);
                self.schedule(rest, Happening::Start { machine });
            }
            Effect::Stopped => {
                self.kill(machine);
                self.schedule(BEAT_NS, Happening::Start { machine });
            }
        }
        Ok(())
    }

    fn send(&mut self, machine: usize, to: Address, message: &Message) -> Result<(), Violation> {
        let process = &self.processes[machine];
        self.oracle.leaves(message, process.record.as_ref())?;
        if let Body::Install { proposal } = &message.body {
            let cluster = message.cluster.expect("who knows a view knows its group");
            self.oracle.decided(cluster, proposal, &mut self.reached)?;
        }
        if let Body::Accept { ballot, proposal } = &message.body {
            let cluster = message.cluster.expect("who knows a view knows its group");
            self.oracle.offered(cluster, ballot.proposer, proposal, &mut self.reached);
        }
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        if self.is_cut(machine, crate::group::setup::machine(to))
            || self.random.chance(self.setup.lost_per_mille * u64::from(self.faulty))
        {
            self.reached.hit(Reach::MessageLost);
            return Ok(());
        }
        let doubled = self.faulty && self.random.chance(5);
        for _ in 0..=u32::from(doubled) {
            let late = self.faulty && self.random.chance(self.setup.late_per_mille);
            let delay = self.random.below(if late { 60 * BEAT_NS } else { BEAT_NS / 3 });
            self.schedule(delay, Happening::Deliver { to, from: machine, bytes: bytes.clone() });
        }
        self.reached.add(Reach::MessageDoubled, u64::from(doubled));
        Ok(())
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        let carried =
            |cut: &Cut| cut.from >> from & 1 == 1 && cut.to >> to & 1 == 1 && cut.until_ns > self.now_ns;
        from != to && self.cuts.iter().any(carried)
    }

    fn deliver(&mut self, to: Address, _from: usize, bytes: &[u8]) {
        let place = machine(to);
        let process = &self.processes[place];
        if process.address != to || process.running.is_none() {
            return;
        }
        let message = Message::parse(bytes).expect("what a group sends reads back");
        let running = process.running.as_ref().expect("it was just there");
        let before = running.group.record();
        let outside = Oracle::is_outside(&message, before).then(|| (before.clone(), message.clone()));
        self.trace.line(
            self.now_ns,
            format_args!(
                "{place} hears {} of {} in {}",
                message.body.name(),
                message.from.address,
                message.view
            ),
        );
        self.step(place, Event::Arrived(message));
        if let Some((before, message)) = outside
            && let Some(running) = &self.processes[place].running
        {
            self.reached.hit(Reach::OutsiderSpoke);
            if let Err(violation) = Oracle::heard_outside(&message, &before, running.group.record()) {
                self.violation = Some(violation);
            }
        }
    }
}
