//! Blocking snapshots of the simulated cluster: the real coordinator, which asks one node after the other, and dies at any step.

use crate::cluster::world::{ClusterWorld, Happening};
use crate::properties::{Property, Violation, channels_empty};
use crate::random::Random;
use crate::reach::Reach;
use crate::world::{MICROSECOND, MILLISECOND};
use mainstay_journal::storage::Storage;
use mainstay_process::blocking::BlockReport;
use mainstay_process::checkpoint;
use mainstay_process::coordinator::{Aborted, Coordinator, Next};
use mainstay_process::event::{BlockEvent, Event};
use mainstay_process::part::Part;
use mainstay_process::snapshot::PartState;
use mainstay_types::id::NodeId;
use mainstay_types::snapshot::SnapshotId;
use std::collections::{BTreeMap, BTreeSet};

/// How often the coordinator dies instead of its next step.
const DIES_PER_MILLE: u64 = 15;
/// How long who looks after nodes that stopped waits for the others.
const OPERATOR_WAITS_NS: u64 = 40 * MILLISECOND;
/// How often an answer to it is lost.
const ANSWER_LOST_PER_MILLE: u64 = 10;

/// The blocking snapshots of a run.
#[derive(Debug, Default)]
pub(crate) struct Blocking {
    under_way: Option<Coordination>,
    /// Those that their coordinator called done.
    done: BTreeSet<SnapshotId>,
    /// Messages on their way in every finished line.
    on_the_way: BTreeMap<SnapshotId, usize>,
    /// Nodes that stopped at a line and were not started again.
    stopped: BTreeSet<NodeId>,
}

/// One blocking snapshot.
#[derive(Debug)]
struct Coordination {
    random: Random,
    nodes: Vec<NodeId>,
    /// Named by the first of them.
    snapshot: SnapshotId,
    stage: Stage,
    /// How many of `nodes` have been asked in this stage.
    asked: usize,
    /// The lives of the nodes that blocked.
    lives: BTreeMap<NodeId, u64>,
    reports: Vec<BlockReport>,
    coordinator: Coordinator,
    /// All are to stop at the line.
    stops: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Blocking,
    Looking,
    Cutting,
    /// All have cut; every part is to be final before anybody stops.
    Finishing,
    Stopping,
    Releasing,
}

impl Coordination {
    fn enter(&mut self, stage: Stage) {
        (self.stage, self.asked) = (stage, 0);
        self.reports.clear();
    }
}

impl ClusterWorld {
    /// Whether somebody takes a blocking snapshot.
    pub(crate) fn is_blocking(&self) -> bool {
        self.snapshots.blocking.under_way.is_some()
    }

    /// Somebody begins a blocking snapshot.
    pub(crate) fn begin_blocking(&mut self) {
        // Beside the other draws: a history goes on as it would without it.
        let mut random = Random::new(self.random.clone().draw());
        let mut nodes = self.ids();
        let first = random.index(nodes.len());
        nodes.rotate_left(first);
        let stops = random.chance(400);
        let rules = self.nodes[&nodes[0]].config.rules;
        self.snapshots.blocking.under_way = Some(Coordination {
            random,
            nodes,
            snapshot: SnapshotId::NONE,
            stage: Stage::Blocking,
            asked: 0,
            lives: BTreeMap::new(),
            reports: Vec::new(),
            coordinator: Coordinator::new(rules),
            stops,
        });
        self.after(1, Happening::Coordinate);
    }

    /// The coordinator asks the next node.
    pub(crate) fn coordinate(&mut self) -> Result<(), Violation> {
        let Some(mut work) = self.snapshots.blocking.under_way.take() else { return Ok(()) };
        if work.random.chance(DIES_PER_MILLE) {
            self.reached.hit(Reach::CoordinatorDied);
            return Ok(());
        }
        let heard = self.ask_blocked(&mut work)?;
        if !heard || work.random.chance(ANSWER_LOST_PER_MILLE) {
            if matches!(work.stage, Stage::Releasing | Stage::Stopping) {
                // Whoever does not hear it goes on when its time is over.
                work.asked += 1;
            } else {
                self.reached.hit(Reach::BlockAborted);
                work.enter(Stage::Releasing);
            }
        }
        if work.asked >= work.nodes.len() {
            match work.stage {
                Stage::Blocking | Stage::Cutting => work.enter(Stage::Looking),
                Stage::Looking => self.looked(&mut work)?,
                Stage::Finishing => {
                    let all = |is: fn(PartState) -> bool| work.reports.iter().all(|report| is(report.part));
                    let next = if all(|part| part == PartState::Final) {
                        Stage::Stopping
                    } else if all(|part| matches!(part, PartState::Final | PartState::Pending)) {
                        Stage::Finishing
                    } else {
                        self.reached.hit(Reach::BlockAborted);
                        Stage::Releasing
                    };
                    work.enter(next);
                }
                Stage::Stopping => return Ok(()),
                Stage::Releasing => return Ok(()),
            }
        }
        let delay_ns = work.random.between(1, self.setup.rates.link_us * MICROSECOND);
        self.after(delay_ns, Happening::Coordinate);
        self.snapshots.blocking.under_way = Some(work);
        Ok(())
    }

    /// Asks one node; `false` if it does not answer, or refuses.
    fn ask_blocked(&mut self, work: &mut Coordination) -> Result<bool, Violation> {
        let node = work.nodes[work.asked];
        let Some(life) = self.nodes[&node].life.as_ref() else { return Ok(false) };
        let snapshot = work.snapshot;
        let event = match work.stage {
            Stage::Blocking => {
                if work.asked == 0 {
                    let Ok(named) = life.process.next_snapshot() else { return Ok(false) };
                    work.snapshot = named;
                }
                let snapshot = work.snapshot;
                if life.process.may_block(snapshot).is_err() {
                    return Ok(false);
                }
                work.lives.insert(node, self.nodes[&node].lives);
                Event::Block(BlockEvent::Begin { snapshot })
            }
            Stage::Looking | Stage::Finishing => {
                let Some(report) = life.process.block_report(snapshot) else { return Ok(false) };
                if work.stage == Stage::Finishing && !report.blocked {
                    return Ok(false);
                }
                work.reports.push(report);
                work.asked += 1;
                if work.stage == Stage::Finishing {
                    self.step(node, Event::Block(BlockEvent::Renew { snapshot }))?;
                }
                return Ok(true);
            }
            Stage::Cutting if life.process.is_blocked_for(snapshot) => Event::TakeSnapshot { snapshot },
            Stage::Releasing => Event::Block(BlockEvent::Release { snapshot }),
            Stage::Stopping => Event::Block(BlockEvent::StopHere { snapshot }),
            Stage::Cutting => return Ok(false),
        };
        work.asked += 1;
        self.step(node, event)?;
        Ok(true)
    }

    fn looked(&mut self, work: &mut Coordination) -> Result<(), Violation> {
        let snapshot = work.snapshot;
        match work.coordinator.looked(&work.reports) {
            Next::LookAgain => work.enter(Stage::Looking),
            Next::Cut => work.enter(Stage::Cutting),
            Next::Done => {
                self.trace.line(self.now_ns, format_args!("blocking snapshot {snapshot}: all have cut"));
                self.snapshots.blocking.done.insert(snapshot);
                work.enter(if work.stops { Stage::Finishing } else { Stage::Releasing });
                self.check_channels_empty(snapshot)?;
            }
            Next::Abort(aborted) => {
                if let Aborted::NotBlocked { node } = aborted {
                    let lives = &self.nodes[&node].lives;
                    self.reached.add(Reach::BlockRanOut, u64::from(work.lives.get(&node) == Some(lives)));
                }
                self.trace.line(self.now_ns, format_args!("blocking snapshot {snapshot}: {aborted}"));
                self.reached.hit(Reach::BlockAborted);
                work.enter(Stage::Releasing);
            }
        }
        Ok(())
    }

    /// A line is finished.
    pub(crate) fn line_is_finished(
        &mut self,
        snapshot: SnapshotId,
        on_the_way: usize,
    ) -> Result<(), Violation> {
        self.snapshots.blocking.on_the_way.insert(snapshot, on_the_way);
        self.check_channels_empty(snapshot)
    }

    /// Once the coordinator has called it done and all its parts are final, whichever comes first.
    fn check_channels_empty(&mut self, snapshot: SnapshotId) -> Result<(), Violation> {
        let Blocking { done, on_the_way, .. } = &self.snapshots.blocking;
        match on_the_way.get(&snapshot) {
            Some(&on_the_way) if done.contains(&snapshot) => {
                self.reached.hit(Reach::LineWithEmptyChannels);
                channels_empty::check(snapshot, on_the_way)
            }
            _ => Ok(()),
        }
    }

    /// A node has stopped cleanly. Its operator starts it again: in the next version, together with all others, once all have stopped; in the
    /// old one if that has not come about before long.
    pub(crate) fn stopped(&mut self, id: NodeId) -> Result<(), Violation> {
        self.trace.line(self.now_ns, format_args!("{id} has stopped"));
        self.die(id);
        let node = self.node(id);
        node.doomed = false;
        node.disk.set_fuse(None);
        self.snapshots.blocking.stopped.insert(id);
        if self.snapshots.blocking.stopped.len() < self.nodes.len() {
            self.after(OPERATOR_WAITS_NS, Happening::Start { node: id });
            return Ok(());
        }
        self.reached.hit(Reach::ClusterUpgraded);
        self.check_nothing_is_left()?;
        for id in std::mem::take(&mut self.snapshots.blocking.stopped) {
            self.node(id).config.version += 1;
            self.after_up_to(MILLISECOND, Happening::Start { node: id });
        }
        Ok(())
    }

    /// A node starts before all others have stopped: the line was not reached.
    pub(crate) fn starts_again(&mut self, id: NodeId) {
        if self.snapshots.blocking.stopped.remove(&id) {
            self.reached.hit(Reach::StoppedAndWentOn);
        }
    }

    /// What the stopped nodes will begin with holds no message for anybody.
    fn check_nothing_is_left(&mut self) -> Result<(), Violation> {
        let mut parts = Vec::new();
        for id in self.ids() {
            let disk = &mut self.node(id).disk;
            let files = disk.list().unwrap_or_default();
            let newest =
                files.iter().filter_map(|file| Some((checkpoint::parse_name(&file.name)?, &file.name))).max();
            let bytes =
                newest.and_then(|(_, name)| disk.content(name)).map(<[u8]>::to_vec).unwrap_or_default();
            let part = Part::read(&bytes).map_err(|error| {
                Violation::new(
                    Property::ChannelsEmpty,
                    format!("{id} stopped, and its checkpoint cannot be read: {error}"),
                )
            })?;
            parts.push(part);
        }
        let on_the_way = |from: &Part| parts.iter().map(|to| from.on_the_way(to)).sum::<u64>();
        match parts.iter().map(on_the_way).sum::<u64>() {
            0 => Ok(()),
            left => {
                let what = format!(
                    "all nodes have stopped at a line, and {left} messages of the old version are left"
                );
                Err(Violation::new(Property::ChannelsEmpty, what))
            }
        }
    }
}
