//! The simulated world of a cluster: one clock, one queue of happenings, one source of chance; faults, then peace, then judgement.

use crate::cluster::clients::{Call, Who};
use crate::cluster::network::Link;
use crate::cluster::node::Node;
use crate::cluster::setup::Setup;
use crate::cluster::snapshots::Snapshots;
use crate::cluster::subject::{Hosted, Subject};
use crate::plan::Plan;
use crate::properties::legal_order::{Alone, LegalOrder};
use crate::properties::losses_stated::{Made, Stated};
use crate::properties::{Property, Violation, nothing_pinned, outputs_of_nodes};
use crate::random::Random;
use crate::reach::{Reach, Reached};
use crate::story::Story;
use crate::trace::Trace;
use crate::world::{MICROSECOND, MILLISECOND};
use mainstay_process::event::{Event, ReplyToken, SpillEvent};
use mainstay_process::handler::Answer;
use mainstay_process::port::OutputState;
use mainstay_types::id::{NodeId, OutputId};
use mainstay_types::rules::Rules;
use mainstay_types::snapshot::SnapshotId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Steps of a run before faults end.
const STEPS_MIN: u64 = 600;
/// Crashes of a run before faults end.
const CRASHES_MIN: u64 = 4;
/// Steps of a run after which faults end whatever else.
const FAULTY_STEPS_MAX: u64 = 30_000;
/// Steps within which everything must come to its end once faults have ended.
const ENDING_STEPS_MAX: u64 = 40_000;
/// Checkpoints of every node at the end, after which nobody may keep anything for anybody.
const LAST_CHECKPOINTS: u32 = 4;

/// How long nothing may be delivered, with everybody up and connected, while somebody waits for an answer.
const STUCK_AFTER_NS: u64 = 1_000 * MILLISECOND;
/// Timers that are waited for once all is at rest.
const LAST_TIMERS: u32 = 8;

/// Something that happens at its time.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A client thinks of something new to ask for.
    NewCall,
    /// A client asks, or asks again.
    Ask {
        call: usize,
    },
    /// A request or a read reaches a node.
    Arrive {
        node: NodeId,
        token: ReplyToken,
    },
    /// Somebody reads.
    Read,
    /// An output reaches its receiver.
    Output {
        node: NodeId,
        life: u64,
        output: OutputId,
        port: usize,
        key: String,
        body: Vec<u8>,
    },
    /// A receiver's answer reaches a node.
    Settled {
        node: NodeId,
        life: u64,
        output: OutputId,
    },
    /// A person looks after outputs in doubt.
    Operator,
    /// The node has everything that was at hand.
    Drained {
        node: NodeId,
        life: u64,
    },
    Wake {
        node: NodeId,
        life: u64,
    },
    Disk {
        node: NodeId,
        life: u64,
        operation: u64,
    },
    Background {
        node: NodeId,
        life: u64,
    },
    Checkpoint {
        node: NodeId,
        life: u64,
        publish: bool,
    },
    /// Somebody wants a snapshot.
    BeginSnapshot,
    /// Who takes a blocking snapshot asks the next node.
    Coordinate,
    /// A node's part in a snapshot is written, or published.
    Part {
        node: NodeId,
        life: u64,
        snapshot: SnapshotId,
        publish: bool,
    },
    /// One side calls the other.
    Dial {
        one: NodeId,
        other: NodeId,
    },
    Connected {
        node: NodeId,
        peer: NodeId,
        epoch: u64,
    },
    Frames {
        from: NodeId,
        to: NodeId,
        epoch: u64,
        bytes: Vec<u8>,
    },
    Disconnected {
        node: NodeId,
        peer: NodeId,
        epoch: u64,
    },
    /// Also into a later life than the one that asked.
    Spilled {
        node: NodeId,
        event: SpillEvent,
    },
    /// Something goes wrong.
    Fault,
    /// What was to crash within a few operations crashes now.
    Kill {
        node: NodeId,
        life: u64,
    },
    Start {
        node: NodeId,
    },
}

/// One run.
pub(crate) struct ClusterWorld {
    pub(crate) subject: Rc<dyn Subject>,
    pub(crate) plan: Plan,
    pub(crate) story: Rc<RefCell<Story>>,
    pub(crate) random: Random,
    pub(crate) now_ns: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    queued: u64,
    /// Frames, outputs, answers and requests on their way.
    pub(crate) under_way: u64,
    pub(crate) trace: Trace,
    pub(crate) reached: Reached,
    pub(crate) setup: Setup,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) links: BTreeMap<(NodeId, NodeId), Link>,
    pub(crate) calls: Vec<Call>,
    pub(crate) tokens: Vec<Who>,
    /// What readers asked.
    pub(crate) queries: Vec<Vec<u8>>,
    /// What they saw: node, number of the query, answer, and when.
    pub(crate) reads: Vec<(NodeId, usize, Answer, Made)>,
    /// What nodes say is lost.
    pub(crate) stated: Stated,
    /// A node can go back to no state that depends on nothing lost, and says so: a person has to help.
    pub(crate) stays_stopped: bool,
    /// What receivers got: port, body, times, and whether one is on its way.
    pub(crate) outputs: BTreeMap<(NodeId, OutputId), outputs_of_nodes::Received>,
    pub(crate) steps: u64,
    pub(crate) crashes: u64,
    pub(crate) ending: bool,
    last_checkpoints: u32,
    /// Faults so far, those that were left out counted as well.
    pub(crate) faults: u64,
    /// Numbers of the faults that did something.
    pub(crate) faults_done: Vec<u64>,
    /// Deliveries executed by all nodes when one was seen last, and when that was.
    executed: (u64, u64),
    last_timers: u32,
    /// Until when only a timer is waited for.
    pub(crate) waits_until_ns: u64,
    pub(crate) steps_min: u64,
    pub(crate) crashes_min: u64,
    pub(crate) snapshots: Snapshots,
}

impl ClusterWorld {
    /// A run with nothing left out.
    pub(crate) fn new(subject: Rc<dyn Subject>, seed: u64, rules: Rules, trace: Trace) -> Self {
        Self::planned(subject, Plan::default(), seed, rules, trace)
    }

    pub(crate) fn planned(
        subject: Rc<dyn Subject>,
        plan: Plan,
        seed: u64,
        rules: Rules,
        trace: Trace,
    ) -> Self {
        let mut random = Random::new(seed ^ 0xC1_0571);
        let setup = subject.setup(&mut random);
        let nodes: BTreeMap<NodeId, Node> =
            setup.policies.keys().map(|&node| (node, Node::new(node, &setup, &mut random, rules))).collect();
        let mut world = Self::with(subject, plan, random, setup, nodes, trace);
        let mut kinds: Vec<_> = world.setup.policies.values().collect();
        kinds.dedup();
        world.reached.add(Reach::MixedPolicies, u64::from(kinds.len() > 1));
        world.trace.line(0, format_args!("seed {seed}: {:?}", world.setup));
        world
    }

    /// A world of these nodes, in which nothing has happened.
    pub(crate) fn with(
        subject: Rc<dyn Subject>,
        plan: Plan,
        random: Random,
        setup: Setup,
        nodes: BTreeMap<NodeId, Node>,
        trace: Trace,
    ) -> Self {
        let ids: Vec<NodeId> = nodes.keys().copied().collect();
        let pairs = ids.iter().flat_map(|&one| ids.iter().map(move |&other| (one, other)));
        let links = pairs.filter(|(one, other)| one < other).map(|pair| (pair, Link::default())).collect();
        Self {
            subject,
            plan,
            story: Rc::default(),
            random,
            now_ns: 0,
            queue: BTreeMap::new(),
            queued: 0,
            under_way: 0,
            trace,
            reached: Reached::default(),
            setup,
            nodes,
            links,
            calls: Vec::new(),
            tokens: Vec::new(),
            queries: Vec::new(),
            reads: Vec::new(),
            stated: Stated::default(),
            stays_stopped: false,
            outputs: BTreeMap::new(),
            steps: 0,
            crashes: 0,
            ending: false,
            last_checkpoints: 0,
            faults: 0,
            faults_done: Vec::new(),
            executed: (0, 0),
            last_timers: 0,
            waits_until_ns: 0,
            steps_min: STEPS_MIN,
            crashes_min: CRASHES_MIN,
            snapshots: Snapshots::default(),
        }
    }

    /// Runs to the end, and leaves what it came to.
    pub(crate) fn go(&mut self) -> Option<(u64, Violation)> {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        for node in nodes {
            self.after_up_to(MILLISECOND, Happening::Start { node });
        }
        self.after_up_to(3 * MILLISECOND, Happening::NewCall);
        self.after_up_to(5 * MILLISECOND, Happening::Operator);
        self.after_up_to(5 * MILLISECOND, Happening::Read);
        self.after_up_to(8 * MILLISECOND, Happening::Fault);
        if self.setup.snapshot_ms > 0 && self.snapshots.are_taken() {
            self.after_up_to(self.setup.snapshot_ms * MILLISECOND, Happening::BeginSnapshot);
        }
        let violation = self.go_on().err().map(|violation| (self.steps, violation));
        for node in self.nodes.values() {
            self.reached.add_disk(node.disk.counts);
        }
        violation
    }

    fn go_on(&mut self) -> Result<(), Violation> {
        let mut ending_since = 0;
        let mut idle_since_ns = 0;
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            self.now_ns = at;
            let steps = self.steps;
            self.happen(happening)?;
            if self.stays_stopped {
                self.reached.hit(Reach::StaysStopped);
                return Ok(());
            }
            if self.steps > steps {
                idle_since_ns = at;
            }
            self.note_executed();
            if !self.ending && (self.has_enough() || self.steps >= FAULTY_STEPS_MAX) {
                self.end_faults();
                ending_since = self.steps;
            }
            if self.ending {
                if at < self.waits_until_ns {
                    continue;
                }
                if self.is_stuck() {
                    if self.waits_for_timer() {
                        continue;
                    }
                    return Err(self.never_answered());
                }
                let silent = at - idle_since_ns.max(self.waits_until_ns) > 1_000 * MILLISECOND;
                if self.steps - ending_since > ENDING_STEPS_MAX || silent {
                    return Err(self.no_progress());
                }
                if self.is_at_rest() {
                    if self.last_timers < LAST_TIMERS && self.waits_for_timer() {
                        self.last_timers += 1;
                        continue;
                    }
                    if self.last_checkpoints == LAST_CHECKPOINTS {
                        return Rc::clone(&self.subject).judge(self);
                    }
                    self.last_checkpoints += 1;
                    self.trace.line(self.now_ns, format_args!("all is at rest"));
                    ending_since = self.steps;
                    for node in self.ids() {
                        self.step(node, Event::CheckpointNow)?;
                    }
                }
            }
        }
        Err(Violation::new(Property::Progress, "nothing is left to happen and not all is done".to_owned()))
    }

    pub(crate) fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    fn end_faults(&mut self) {
        self.trace.line(
            self.now_ns,
            format_args!("faults end after {} steps, {} crashes", self.steps, self.crashes),
        );
        self.ending = true;
        self.heal();
        for node in self.nodes.values_mut() {
            node.doomed = false;
            node.disk.set_fuse(None);
        }
    }

    /// Whether every client has its answer and no node waits for anything.
    fn is_at_rest(&self) -> bool {
        let idle = |node: &Node| {
            node.life.as_ref().is_some_and(|life| {
                let stats = life.process.stats();
                let quiet = stats.held == 0 && stats.backlog == 0 && stats.outputs_pending == 0;
                let saved = life.checkpoint.is_none() && life.parts.is_empty();
                let done = life.operations.is_empty() && life.duties.is_empty() && saved;
                quiet
                    && done
                    && !life.drain_queued
                    && !life.process.is_collecting()
                    && life.process.handler().open() == 0
            })
        };
        self.under_way == 0
            && !self.calls.iter().any(Call::waits)
            && self.links.values().all(|link| link.stands)
            && self.nodes.values().all(idle)
    }

    /// Whether faults may end: after enough steps and crashes, or when all that was planned has happened.
    fn has_enough(&self) -> bool {
        let asked = self.calls.len() >= self.setup.calls;
        match &self.plan.crashes {
            None => asked && self.steps >= self.steps_min && self.crashes >= self.crashes_min,
            Some(planned) => (asked || self.is_stuck()) && planned.iter().all(|&fault| fault < self.faults),
        }
    }

    fn note_executed(&mut self) {
        let of = |node: &Node| node.life.as_ref().map_or(0, |life| life.process.executed().0);
        let executed = self.nodes.values().map(of).sum();
        if executed != self.executed.0 {
            self.executed = (executed, self.now_ns);
        }
    }

    /// Whether somebody waits, everybody is up and connected, and nothing comes of it.
    fn is_stuck(&self) -> bool {
        let well = |node: &Node| node.life.as_ref().is_some_and(|life| !life.process.is_collecting());
        self.now_ns - self.executed.1.max(self.waits_until_ns) > STUCK_AFTER_NS
            && self.calls.iter().any(Call::waits)
            && self.nodes.values().all(well)
            && self.links.values().all(|link| link.stands)
    }

    /// Lets time pass until the next timer is due; `false`: there is none.
    fn waits_for_timer(&mut self) -> bool {
        let due = |node: &Node| {
            let life = node.life.as_ref()?;
            let due = life.process.handler().next_timer()?;
            Some(due.0.saturating_sub(self.clock(node.id).0))
        };
        let Some(delay_ns) = self.nodes.values().filter_map(due).min() else { return false };
        self.waits_until_ns = self.now_ns + delay_ns + MILLISECOND;
        true
    }

    fn never_answered(&self) -> Violation {
        let waiting = self.calls.iter().filter(|call| call.waits());
        let told = waiting.map(|call| format!("\n  {} of {}", self.subject.show(&call.body), call.home));
        let what = format!(
            "every message has arrived and no timer is to come, but nobody has answered{}",
            told.collect::<String>()
        );
        Violation::new(Property::Progress, what)
    }

    fn no_progress(&self) -> Violation {
        let waiting: Vec<_> = self
            .calls
            .iter()
            .enumerate()
            .filter(|(_, call)| call.waits())
            .map(|(number, _)| number)
            .collect();
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .map(|(id, node)| {
                let of = |life: &crate::cluster::node::Life| {
                    let stats = life.process.stats();
                    let outputs: Vec<_> = life
                        .process
                        .outputs()
                        .map(|output| (output.id, output.state, output.waits_for))
                        .collect();
                    format!(
                        "{id}: collecting {}, held {}, backlog {}, outputs {outputs:?}, open {}, operations {}, duties {}, checkpoint {}",
                        life.process.is_collecting(),
                        stats.held,
                        stats.backlog,
                        life.process.handler().open(),
                        life.operations.len(),
                        life.duties.len(),
                        life.checkpoint.is_some()
                    )
                };
                node.life.as_ref().map_or_else(|| format!("{id}: down"), of)
            })
            .collect();
        let what = format!(
            "after the last fault, calls {waiting:?} wait, {} under way, {} links stand, nodes {nodes:#?}",
            self.under_way,
            self.links.values().filter(|link| link.stands).count()
        );
        Violation::new(Property::Progress, what)
    }

    /// The handler of a node, at rest.
    pub(crate) fn handler(&self, node: NodeId) -> &dyn Hosted {
        &**self.nodes[&node].life.as_ref().expect("all nodes are up at rest").process.handler()
    }

    /// What a client asked as `call`, and of which node.
    pub(crate) fn asked(&self, call: u64) -> Option<(u32, Vec<u8>)> {
        let call = self.calls.get(usize::try_from(call).ok()?)?;
        Some((call.home.0, call.body.clone()))
    }

    /// What readers of a node asked and saw.
    pub(crate) fn reads_of(&self, node: NodeId) -> Vec<(&[u8], &Answer)> {
        let reads = self.reads.iter().filter(|(of, ..)| *of == node);
        reads.map(|(_, query, shown, _)| (self.queries[*query].as_slice(), shown)).collect()
    }

    /// Compares what clients and receivers saw with a run without failures; nobody may keep anything for anybody.
    pub(crate) fn compare<A: Alone>(&self, order: &LegalOrder<A>) -> Result<(), Violation> {
        for (number, call) in self.calls.iter().enumerate() {
            call.check(number as u64, order, &self.stated)?;
        }
        let nodes = self.nodes.keys().copied();
        outputs_of_nodes::check(&self.setup.ports, &self.outputs, order, &self.stated, nodes)?;
        for (&id, node) in &self.nodes {
            let life = node.life.as_ref().expect("all nodes are up at rest");
            nothing_pinned::check(id, life.process.retained())?;
        }
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::NewCall => self.new_call(),
            Happening::BeginSnapshot => self.begin_snapshot()?,
            Happening::Coordinate => self.coordinate()?,
            Happening::Part { node, life, snapshot, publish } if self.lives(node, life) => {
                self.part_done(node, snapshot, publish)?;
            }
            Happening::Ask { call } => self.ask(call),
            Happening::Arrive { node, token } => self.arrive(node, token)?,
            Happening::Read => self.read(),
            Happening::Output { node, life, output, port, key, body } => {
                self.output_arrives((node, life), output, port, &key, body)?;
            }
            Happening::Settled { node, life, output } => self.settled(node, life, output)?,
            Happening::Operator => self.operator()?,
            Happening::Drained { node, life } if self.lives(node, life) => self.drained(node)?,
            Happening::Wake { node, life } if self.lives(node, life) => self.step(node, Event::Tick)?,
            Happening::Disk { node, life, operation } if self.lives(node, life) => {
                self.disk_done(node, operation)?;
            }
            Happening::Background { node, life } if self.lives(node, life) => self.background(node)?,
            Happening::Checkpoint { node, life, publish } if self.lives(node, life) => {
                self.checkpoint_done(node, publish)?;
            }
            Happening::Spilled { node, event } => self.spilled(node, event)?,
            Happening::Dial { one, other } => self.dial(one, other),
            Happening::Connected { node, peer, epoch } => self.connected(node, peer, epoch)?,
            Happening::Frames { from, to, epoch, bytes } => self.frames_arrive(from, to, epoch, bytes)?,
            Happening::Disconnected { node, peer, epoch } => self.disconnected(node, peer, epoch)?,
            Happening::Fault if !self.ending => self.fault()?,
            Happening::Kill { node, life } if self.lives(node, life) && self.nodes[&node].doomed => {
                self.crash(node, Reach::Kill);
            }
            Happening::Start { node } => self.start(node)?,
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn lives(&self, node: NodeId, life: u64) -> bool {
        let node = &self.nodes[&node];
        node.life.is_some() && node.lives == life
    }

    /// A person decides about outputs in doubt, once nothing of them is on its way.
    fn operator(&mut self) -> Result<(), Violation> {
        let waits_ns = self.waits_until_ns.saturating_sub(self.now_ns);
        let pause_ns = self.random.between(1, 4 * MILLISECOND);
        self.after(pause_ns + waits_ns, Happening::Operator);
        let mut doubtful = Vec::new();
        for (&id, node) in &self.nodes {
            let Some(life) = node.life.as_ref().filter(|life| !life.process.is_collecting()) else {
                continue;
            };
            let in_doubt = life.process.outputs().filter(|output| output.state == OutputState::InDoubt);
            doubtful.extend(in_doubt.map(|output| (id, output.id)));
        }
        for (node, output) in doubtful {
            self.resolve(node, output)?;
        }
        Ok(())
    }

    pub(crate) fn after(&mut self, delay_ns: u64, happening: Happening) {
        self.at(self.now_ns + delay_ns, happening);
    }

    pub(crate) fn at(&mut self, time_ns: u64, happening: Happening) {
        self.queued += 1;
        self.queue.insert((time_ns, self.queued), happening);
    }

    /// At a time drawn between now and `delay_ns_max` from now.
    pub(crate) fn after_up_to(&mut self, delay_ns_max: u64, happening: Happening) {
        let delay_ns = self.random.between(1, delay_ns_max.max(MICROSECOND));
        self.after(delay_ns, happening);
    }
}
