//! Snapshots of the simulated cluster: begun at random moments, their parts written as the driver does, and one finished line of a run
//! restored in a new world, whose clients ask again for everything.

use crate::cluster::blocking::Blocking;
use crate::cluster::clients::Call;
use crate::cluster::node::Node;
use crate::cluster::world::{ClusterWorld, Happening};
use crate::plan::Plan;
use crate::properties::line_restorable::{self, Line};
use crate::properties::outputs_of_nodes::Received;
use crate::properties::{Property, Violation};
use crate::random::Random;
use crate::reach::Reach;
use crate::trace::Trace;
use crate::world::{Ended, MILLISECOND};
use mainstay_journal::storage::Storage;
use mainstay_process::event::{Event, SnapshotEvent};
use mainstay_process::handler::Answer;
use mainstay_process::part;
use mainstay_types::id::{NodeId, OutputId, StoreId};
use mainstay_types::rules::Rules;
use mainstay_types::snapshot::SnapshotId;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Steps and crashes of a restored world before faults end: the line is what is looked at, not another whole run.
const RESTORED_STEPS_MIN: u64 = 150;
const RESTORED_CRASHES_MIN: u64 = 1;

/// A node's part under way.
#[derive(Clone, Debug)]
pub(crate) struct PartWork {
    pub(crate) bytes: Vec<u8>,
    /// What the node had answered, by call.
    answered: BTreeMap<usize, Answer>,
}

/// The snapshots of a run.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    /// Parts that were final once, by snapshot and node.
    parts: BTreeMap<SnapshotId, BTreeMap<NodeId, PartWork>>,
    /// The last whole line.
    line: Option<SnapshotId>,
    /// A restored world takes none.
    none: bool,
    pub(crate) blocking: Blocking,
}

impl Snapshots {
    pub(crate) fn are_taken(&self) -> bool {
        !self.none
    }
}

impl ClusterWorld {
    /// Runs to the end; then, if there was a snapshot, the world that goes on from it.
    pub(crate) fn run(mut self, rules: Rules) -> Ended {
        let mut violation = self.go();
        if violation.is_none() {
            violation = self.run_restored(rules);
        }
        let Self { steps, crashes, reached, trace, .. } = self;
        Ended { steps, crashes, reached, violation, trace }
    }

    fn run_restored(&mut self, rules: Rules) -> Option<(u64, Violation)> {
        let mut world = match self.restored(rules) {
            Ok(world) => world?,
            Err(violation) => return Some((self.steps, violation)),
        };
        std::mem::swap(&mut self.trace, &mut world.trace);
        let violation = world.go();
        std::mem::swap(&mut self.trace, &mut world.trace);
        self.reached.merge(&world.reached);
        (self.steps, self.crashes) = (self.steps + world.steps, self.crashes + world.crashes);
        violation.map(|(step, Violation { property, what })| {
            (step, Violation::new(property, format!("in the world that goes on from a snapshot: {what}")))
        })
    }

    /// Somebody asks a node for a snapshot.
    pub(crate) fn begin_snapshot(&mut self) -> Result<(), Violation> {
        if self.ending {
            return Ok(());
        }
        self.after_up_to(self.setup.snapshot_ms * MILLISECOND, Happening::BeginSnapshot);
        if self.setup.blocks && !self.is_blocking() {
            self.begin_blocking();
            return Ok(());
        }
        let ids = self.ids();
        let id = ids[self.random.index(ids.len())];
        let asked = self.nodes[&id].life.as_ref().map(|life| life.process.next_snapshot());
        match asked {
            Some(Ok(snapshot)) => {
                self.reached.hit(Reach::SnapshotBegun);
                self.step(id, Event::TakeSnapshot { snapshot })
            }
            Some(Err(_)) => {
                self.reached.hit(Reach::SnapshotRefused);
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(crate) fn save_part(&mut self, id: NodeId, snapshot: SnapshotId) {
        let answered = self.calls.iter().enumerate().filter(|(_, call)| call.home == id);
        let answered = answered.filter_map(|(at, call)| Some((at, call.answer.clone()?))).collect();
        let node = self.node(id);
        let lives = node.lives;
        let life = node.life.as_mut().expect("effects are performed for a living node");
        let mut bytes = Vec::new();
        life.process.save(&mut bytes).expect("a vector takes all");
        life.parts.insert(snapshot, PartWork { bytes, answered });
        let happening = Happening::Part { node: id, life: lives, snapshot, publish: false };
        self.after_up_to(3 * MILLISECOND, happening);
    }

    pub(crate) fn discard_part(&mut self, id: NodeId, snapshot: SnapshotId) {
        self.reached.hit(Reach::SnapshotSuperseded);
        let node = self.node(id);
        let life = node.life.as_mut().expect("effects are performed for a living node");
        life.parts.remove(&snapshot);
        // A crash in it leaves the file to the next life.
        let _ = node.disk.remove(&part::temporary_name(snapshot));
    }

    pub(crate) fn publish_part(&mut self, id: NodeId, snapshot: SnapshotId) {
        let life = self.nodes[&id].lives;
        let happening = Happening::Part { node: id, life, snapshot, publish: true };
        self.after_up_to(2 * MILLISECOND, happening);
    }

    pub(crate) fn part_done(
        &mut self,
        id: NodeId,
        snapshot: SnapshotId,
        publishes: bool,
    ) -> Result<(), Violation> {
        let node = self.node(id);
        let life = node.life.as_mut().expect("it lives");
        let Some(work) = life.parts.get(&snapshot) else { return Ok(()) };
        let done = if publishes {
            part::publish(&mut node.disk, snapshot).map(|()| SnapshotEvent::Published { snapshot })
        } else {
            let name = part::temporary_name(snapshot);
            let written = node
                .disk
                .create(&name, 0)
                .and_then(|()| node.disk.write(&name, 0, &work.bytes))
                .and_then(|()| node.disk.sync(&name));
            written.map(|()| SnapshotEvent::Saved { snapshot })
        };
        let event = done.unwrap_or(SnapshotEvent::Failed { snapshot });
        if node.disk.crashed() {
            self.reached.hit(Reach::CrashInSnapshot);
            self.crash(id, Reach::CrashInSnapshot);
            return Ok(());
        }
        let ended = publishes || matches!(event, SnapshotEvent::Failed { .. });
        let work = if ended { life.parts.remove(&snapshot) } else { None };
        if let (SnapshotEvent::Published { .. }, Some(work)) = (event, work) {
            self.reached.hit(Reach::PartFinal);
            self.part_is_final(id, snapshot, work)?;
        }
        self.step(id, Event::Snapshot(event))
    }

    fn part_is_final(&mut self, id: NodeId, snapshot: SnapshotId, work: PartWork) -> Result<(), Violation> {
        let nodes = self.nodes.len();
        let parts = self.snapshots.parts.entry(snapshot).or_default();
        parts.insert(id, work);
        if parts.len() < nodes {
            return Ok(());
        }
        self.reached.hit(Reach::LineFinished);
        self.trace.line(self.now_ns, format_args!("snapshot {snapshot} is finished"));
        let bytes = parts.iter().map(|(&id, work)| (id, work.bytes.as_slice())).collect();
        let line = Line::read(&bytes)?;
        let on_the_way = line.check(&|call| self.asked(call))?;
        self.reached.add(Reach::LineWithMessagesOnTheWay, u64::from(on_the_way > 0));
        self.snapshots.line = Some(snapshot);
        self.line_is_finished(snapshot, on_the_way)
    }

    /// The world that goes on from the last line of this one; `None` if there is no line.
    pub(crate) fn restored(&mut self, rules: Rules) -> Result<Option<Self>, Violation> {
        let Some(snapshot) = self.snapshots.line else { return Ok(None) };
        let parts = self.snapshots.parts.remove(&snapshot).expect("the line is whole");
        let bytes = parts.iter().map(|(&id, work)| (id, work.bytes.as_slice())).collect();
        let line = Line::read(&bytes)?;
        self.trace.line(self.now_ns, format_args!("a new world begins with snapshot {snapshot}"));
        let mut random = Random::new(self.random.draw());
        let mut nodes = BTreeMap::new();
        for (&id, work) in &parts {
            let mut node = Node::new(id, &self.setup, &mut random, rules);
            node.options.new_store = StoreId([id.0 as u8 + 100; 16]);
            let life = part::next_life(line.parts(), id);
            part::restore(&work.bytes, &mut node.disk, &node.options, life).map_err(|error| {
                let what = format!("{id}: no directory can be made from its part: {error}");
                Violation::new(Property::LineRestorable, what)
            })?;
            nodes.insert(id, node);
        }
        let answered: BTreeMap<usize, Answer> = parts.into_values().flat_map(|work| work.answered).collect();
        let calls = std::mem::take(&mut self.calls).into_iter().enumerate();
        let calls: Vec<Call> = calls.map(|(at, call)| call.anew(answered.get(&at).cloned())).collect();
        let known = line_restorable::outputs(&line);
        let outputs =
            std::mem::take(&mut self.outputs).into_iter().filter(|(output, _)| known.contains(output));
        let outputs: BTreeMap<(NodeId, OutputId), Received> = outputs
            .map(|(output, received)| (output, Received { decision: None, under_way: 0, ..received }))
            .collect();
        let (subject, plan) = (Rc::clone(&self.subject), Plan::default());
        let mut world = Self::with(subject, plan, random, self.setup.clone(), nodes, Trace::off());
        world.snapshots.none = true;
        world.reached.hit(Reach::LineRestored);
        (world.steps_min, world.crashes_min) = (RESTORED_STEPS_MIN, RESTORED_CRASHES_MIN);
        (world.calls, world.outputs) = (calls, outputs);
        // Who has no key does not dare to ask again.
        for call in (0..world.calls.len()).filter(|&call| world.calls[call].waits()).collect::<Vec<_>>() {
            world.after_up_to(30 * MILLISECOND, Happening::Ask { call });
        }
        Ok(Some(world))
    }
}
