//! One node: its disk, its lives, and how it is started and stepped.

use crate::cluster::disk_work::{CheckpointWork, Duty, Operation};
use crate::cluster::setup::Setup;
use crate::cluster::snapshots::PartWork;
use crate::cluster::subject::Hosted;
use crate::cluster::world::{ClusterWorld, Happening};
use crate::disk::Disk;
use crate::plan::Trouble;
use crate::properties::{Property, Violation, survivors_run_on};
use crate::quiet;
use crate::random::Random;
use crate::reach::Reach;
use crate::ring::{Left, Ring};
use crate::world::{MICROSECOND, MILLISECOND};
use mainstay_journal::catalog::Catalog;
use mainstay_journal::format::RING_FILE;
use mainstay_journal::journal::Journal;
use mainstay_journal::memory::ring_bytes;
use mainstay_journal::open::{OpenError, Opened, open};
use mainstay_journal::options::OpenOptions;
use mainstay_journal::storage::{Failure, Storage, StorageError};
use mainstay_process::config::Config;
use mainstay_process::effect::{Abandoned, Effect};
use mainstay_process::event::Event;
use mainstay_process::loss::{Loss, RollBack};
use mainstay_process::process::Process;
use mainstay_process::recover::{RecoverError, Start};
use mainstay_types::id::NodeId;
use mainstay_types::rules::Rules;
use mainstay_types::snapshot::SnapshotId;
use mainstay_types::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// The wall clock at the beginning.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;

/// A node, up or down.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) config: Config,
    pub(crate) options: OpenOptions,
    pub(crate) disk: Disk,
    left: Left,
    /// Older contents of the ring that the page cache may have written back.
    pub(crate) ring_images: Vec<Vec<u8>>,
    pub(crate) life: Option<Life>,
    pub(crate) lives: u64,
    /// It will crash within a few operations.
    pub(crate) doomed: bool,
    /// It has crashed, and not everyone who is up has greeted it since.
    pub(crate) rejoins: bool,
    /// What the next life has to take back.
    pub(crate) roll_back: Option<RollBack>,
    /// The epoch of the connection that it believes to have with a peer.
    pub(crate) sessions: BTreeMap<NodeId, u64>,
    skew_ns: i64,
}

/// One life of a node.
pub(crate) struct Life {
    pub(crate) process: Process<Box<dyn Hosted>, Ring>,
    pub(crate) catalog: Catalog,
    pub(crate) operations: BTreeMap<u64, Operation>,
    pub(crate) next_operation: u64,
    pub(crate) duties: VecDeque<Duty>,
    pub(crate) checkpoint: Option<CheckpointWork>,
    /// Parts of snapshots under way.
    pub(crate) parts: BTreeMap<SnapshotId, PartWork>,
    pub(crate) drain_queued: bool,
    was_collecting: bool,
    clock_ns: u64,
    began_ns: u64,
}

/// How a start ended that did not lead to a life.
enum NoStart {
    Crashed(Reach),
    Violated(Violation),
    /// It depends on what is lost, and cannot go back.
    StaysStopped,
}

impl Node {
    pub(crate) fn new(id: NodeId, setup: &Setup, random: &mut Random, rules: Rules) -> Self {
        Self {
            id,
            config: setup.config(id, rules),
            options: setup.options(random, id, rules),
            disk: Disk::new(Random::new(random.draw())),
            left: Left::default(),
            ring_images: Vec::new(),
            life: None,
            lives: 0,
            doomed: false,
            rejoins: false,
            roll_back: None,
            sessions: BTreeMap::new(),
            skew_ns: 0,
        }
    }

    /// Whether it counts among those that are down at the same time: from the crash until its recovery is over and the others have
    /// told it again what it keeps for them.
    pub(crate) fn is_down(&self) -> bool {
        self.doomed || self.rejoins || self.life.as_ref().is_none_or(|life| life.process.is_collecting())
    }

    /// The bytes of the ring's file, made if it is not there: what mapping it does.
    fn ring_file(&mut self, page_bytes: u32, pages: u16) -> Result<Vec<u8>, StorageError> {
        let bytes = ring_bytes(page_bytes, pages);
        let present = self.disk.content(RING_FILE).map(<[u8]>::len);
        if present.is_some_and(|present| present != bytes) {
            self.disk.remove(RING_FILE)?;
        }
        if present != Some(bytes) {
            self.disk.create(RING_FILE, bytes as u64)?;
        }
        Ok(self.disk.content(RING_FILE).expect("it is there now").to_vec())
    }

    /// What the mapping held is still in its file.
    pub(crate) fn save_ring(&mut self) {
        if let Some(image) = self.left.borrow_mut().take() {
            self.ring_images.push(image.clone());
            self.disk.replace(RING_FILE, image);
        }
    }

    fn not_opened(&self, error: OpenError) -> NoStart {
        match error {
            OpenError::Storage(StorageError { failure: Failure::Crashed, .. }) => {
                NoStart::Crashed(Reach::CrashInOpen)
            }
            error => {
                let what = format!("{}: the journal is refused: {error}", self.id);
                NoStart::Violated(Violation::new(Property::Recovers, what))
            }
        }
    }

    fn not_recovered(&mut self, error: &RecoverError) -> NoStart {
        self.save_ring();
        if self.disk.crashed() {
            return NoStart::Crashed(Reach::CrashInRecovery);
        }
        if let RecoverError::HandlerPanicked(abandoned) = error {
            return NoStart::Violated(panicked(self.id, abandoned));
        }
        if matches!(error, RecoverError::CannotGoBack { .. }) {
            return NoStart::StaysStopped;
        }
        let what = format!("{}: recovery is refused: {error} ({error:?})", self.id);
        NoStart::Violated(Violation::new(Property::Recovers, what))
    }
}

fn panicked(node: NodeId, abandoned: &Abandoned) -> Violation {
    let what = format!("{node}: the handler panicked: {}{}", abandoned.message, quiet::last_panic_place());
    Violation::new(Property::HandlerPanics, what)
}

impl ClusterWorld {
    pub(crate) fn node(&mut self, node: NodeId) -> &mut Node {
        self.nodes.get_mut(&node).expect("happenings name nodes that there are")
    }

    pub(crate) fn start(&mut self, id: NodeId) -> Result<(), Violation> {
        if self.nodes[&id].life.is_some() {
            return Ok(());
        }
        self.starts_again(id);
        if !self.ending && self.nodes[&id].lives > 0 {
            let again = self.random.chance(self.setup.rates.again_per_mille);
            let points = 1 + self.random.below(200);
            let skew_ns = self.random.below(40 * MILLISECOND).cast_signed() - 20 * MILLISECOND.cast_signed();
            let jumps = self.random.chance(200);
            // A rollback is no crash: a crash on top of it is one more node down, if that is allowed.
            let allowed = self.may_fail(id);
            let (jumps, again) =
                (jumps && self.plan.has(Trouble::Clock), again && self.plan.has(Trouble::CrashAgain));
            let node = self.node(id);
            node.skew_ns = if jumps { skew_ns } else { node.skew_ns };
            if again && allowed {
                node.doomed = true;
                node.disk.set_fuse(Some(points));
            }
        }
        match self.try_start(id) {
            Ok(()) => Ok(()),
            Err(NoStart::Violated(violation)) => Err(violation),
            Err(NoStart::StaysStopped) if self.setup.beyond => {
                self.stays_stopped = true;
                Ok(())
            }
            Err(NoStart::StaysStopped) => {
                let what = format!("{id} cannot go back behind what is lost, and nothing can be");
                Err(Violation::new(Property::SurvivorsRunOn, what))
            }
            Err(NoStart::Crashed(during)) => {
                self.reached.hit(during);
                self.crash(id, during);
                Ok(())
            }
        }
    }

    fn try_start(&mut self, id: NodeId) -> Result<(), NoStart> {
        let entropy = self.random.draw();
        let now_ns = self.now_ns;
        let node = self.nodes.get_mut(&id).expect("happenings name nodes that there are");
        let opened = open(&mut node.disk, &node.options).map_err(|error| node.not_opened(error))?;
        let Opened { catalog, resume, report } = opened;
        self.trace.line(now_ns, format_args!("{id} opened {report:?}"));
        node.ring_images.clear();
        let geometry = report.geometry;
        let ring = node.ring_file(geometry.page_bytes, geometry.pages);
        let ring = ring.map_err(|_| NoStart::Crashed(Reach::CrashInRecovery))?;
        node.ring_images.push(ring.clone());
        let ring = Ring::new(&ring, geometry.page_bytes, geometry.pages, &node.left);
        let journal = Journal::start(resume, ring);
        let mut out = Vec::new();
        let wall = Time((EPOCH_NS + now_ns).saturating_add_signed(node.skew_ns));
        let start = Start {
            config: Config { entropy, ..node.config.clone() },
            handler: self.subject.handler(id),
            journal,
            report: &report,
            storage: &mut node.disk,
            catalog: &catalog,
            now: wall,
            roll_back: node.roll_back.clone(),
            progress: None,
        };
        let (process, recovery) =
            Process::recover(start, &mut out).map_err(|error| node.not_recovered(&error))?;
        self.trace.line(now_ns, format_args!("{id} recovered {recovery:?}"));
        let life = node.lives + 1;
        self.story.borrow_mut().tell(|| {
            let checkpoint = if recovery.checkpoint.is_some() { " behind a checkpoint" } else { "" };
            format!("{id} life {life} begins and replays {} deliveries{checkpoint}", recovery.replayed)
        });
        node.roll_back = None;
        node.lives += 1;
        self.reached.add(Reach::OutputAgain, recovery.outputs_again);
        self.reached.add(Reach::InDoubtAfterCrash, recovery.outputs_in_doubt);
        self.reached.add(Reach::CheckpointUsed, u64::from(recovery.checkpoint.is_some()));
        self.reached.add(Reach::ClockJumpBack, u64::from(recovery.time > wall));
        node.life = Some(Life {
            was_collecting: process.is_collecting(),
            process,
            catalog,
            operations: BTreeMap::new(),
            next_operation: 0,
            duties: VecDeque::new(),
            checkpoint: None,
            parts: BTreeMap::new(),
            drain_queued: false,
            clock_ns: wall.0.max(recovery.time.0),
            began_ns: now_ns,
        });
        let life = node.lives;
        if node.doomed {
            self.after_up_to(10 * MILLISECOND, Happening::Kill { node: id, life });
        }
        self.queue_drain(id);
        for other in self.ids() {
            self.after_up_to(2 * MILLISECOND, Happening::Dial { one: id, other });
        }
        self.perform(id, out).map_err(NoStart::Violated)
    }

    pub(crate) fn clock(&self, id: NodeId) -> Time {
        let life = self.nodes[&id].life.as_ref().expect("only a living node reads its clock");
        Time(life.clock_ns + (self.now_ns - life.began_ns))
    }

    /// Hands an event to a node and performs what it wants. The node may be dead afterwards.
    pub(crate) fn step(&mut self, id: NodeId, event: Event) -> Result<(), Violation> {
        if self.nodes[&id].life.is_none() {
            return Ok(());
        }
        if self.node(id).disk.passes_point() {
            self.crash(id, Reach::Kill);
            return Ok(());
        }
        let now = self.clock(id);
        self.trace.line(self.now_ns, format_args!("{id} > {event:?}"));
        let more_may_come = !matches!(event, Event::Drained);
        let keeps_image = self.random.chance(20);
        let mut out = Vec::new();
        self.steps += 1;
        let node = self.nodes.get_mut(&id).expect("it was just seen");
        let life = node.life.as_mut().expect("it was just seen");
        life.process.step(now, event, &mut out);
        let collecting = life.process.is_collecting();
        if life.was_collecting && !collecting {
            self.reached.hit(Reach::Collected);
            self.trace.line(self.now_ns, format_args!("{id} has collected"));
        }
        life.was_collecting = collecting;
        if keeps_image && node.ring_images.len() < 4 {
            node.ring_images.push(life.process.journal().memory().image());
        }
        if more_may_come {
            self.queue_drain(id);
        }
        self.perform(id, out)
    }

    fn perform(&mut self, id: NodeId, effects: Vec<Effect>) -> Result<(), Violation> {
        let mut at_once = Vec::new();
        for effect in effects {
            if self.node(id).disk.passes_point() {
                self.crash(id, Reach::Kill);
                return Ok(());
            }
            self.trace.line(self.now_ns, format_args!("{id} < {effect:?}"));
            let life = self.nodes[&id].lives;
            match effect {
                Effect::Disk(effect) => at_once.extend(self.disk_effect(id, &effect)),
                Effect::Reply { token, reply } => self.replied(id, token, reply)?,
                Effect::Output(output) => self.let_out(id, output)?,
                Effect::Withdraw { .. } => unreachable!("whoever decides there does so of outputs in doubt"),
                Effect::SaveCheckpoint { lsn } => self.save_checkpoint(id, lsn),
                Effect::PublishCheckpoint { .. } => {
                    self.after_up_to(
                        2 * MILLISECOND,
                        Happening::Checkpoint { node: id, life, publish: true },
                    );
                }
                Effect::SaveSnapshot { snapshot } => self.save_part(id, snapshot),
                Effect::PublishSnapshot { snapshot } => self.publish_part(id, snapshot),
                Effect::DiscardSnapshot { snapshot } => self.discard_part(id, snapshot),
                Effect::Wake(at) => {
                    let delay_ns = at.0.saturating_sub(self.clock(id).0);
                    self.after(delay_ns, Happening::Wake { node: id, life });
                }
                Effect::Frames { to, bytes } => self.send_frames(id, to, bytes),
                Effect::Spill(spill) => self.spill(id, spill),
                Effect::Keep { .. } | Effect::Confirm { .. } => {
                    unreachable!("no simulated node is at level peers")
                }
                Effect::HangUp { peer, why } if self.setup.beyond && survivors_run_on::may_refuse(&why) => {
                    self.reached.hit(Reach::OrphanRefused);
                    // Who hangs up hears no more of that connection.
                    self.node(id).sessions.remove(&peer);
                    self.break_connection(id, peer);
                }
                Effect::Lost(loss) if self.setup.beyond => {
                    self.reached.add(Reach::LossStated, u64::from(matches!(loss, Loss::Recovered { .. })));
                    self.reached.add(Reach::OrphanWentBack, u64::from(matches!(loss, Loss::Undone { .. })));
                    self.stated.take(id, &loss);
                }
                Effect::HangUp { peer, why } => return Err(survivors_run_on::hung_up(id, peer, &why)),
                Effect::Lost(loss) => return Err(survivors_run_on::stated_loss(id, &loss)),
                Effect::RollBack(rolled_back) => {
                    if !self.setup.beyond {
                        survivors_run_on::rolls_back(id, self.setup.policies[&id], &rolled_back)?;
                    }
                    self.reached.hit(Reach::NodeRolledBack);
                    self.die(id);
                    self.node(id).roll_back = Some(rolled_back);
                    self.after_up_to(MILLISECOND, Happening::Start { node: id });
                    return Ok(());
                }
                Effect::Abandon(abandoned) => {
                    return Err(panicked(id, &abandoned));
                }
                Effect::Stopped => return self.stopped(id),
            }
        }
        for event in at_once {
            self.step(id, Event::Disk(event))?;
        }
        Ok(())
    }

    pub(crate) fn queue_drain(&mut self, id: NodeId) {
        let round_us = self.setup.rates.round_us;
        let node = self.node(id);
        let life = node.lives;
        if let Some(living) = &mut node.life
            && !living.drain_queued
        {
            living.drain_queued = true;
            self.after_up_to(round_us * MICROSECOND, Happening::Drained { node: id, life });
        }
    }

    pub(crate) fn drained(&mut self, id: NodeId) -> Result<(), Violation> {
        self.node(id).life.as_mut().expect("it lives").drain_queued = false;
        self.step(id, Event::Drained)
    }
}
