//! Running seeds: two threads, results merged in the order of the seeds, each seed judged by itself.

use crate::cluster::own::OwnSubject;
use crate::cluster::world::ClusterWorld;
use crate::group::world::GroupWorld;
use crate::journal_world::JournalWorld;
use crate::ledger::LedgerSubject;
use crate::plan::Plan;
use crate::properties::{Property, Violation};
use crate::quiet;
use crate::reach::{Reach, Reached};
use crate::region::world::RegionWorld;
use crate::replica::ReplicaWorld;
use crate::trace::{Lines, Trace};
use crate::world::{Ended, World};
use mainstay_types::rules::{Rule, Rules};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Seeds that a thread takes at a time.
const SEEDS_AT_A_TIME: u64 = 16;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimMachine {
    /// A whole service: process, journal, disk, network, clients, receivers.
    Process,
    /// The journal alone against the disk.
    Journal,
    /// Nodes that talk, under every logging policy.
    Cluster,
    /// The same, with more nodes down at once than their policies survive.
    Beyond,
    /// A group: views, leases, joins, losses.
    Group,
    /// Copies of a region with clients, under views that come and go.
    Region,
    /// Nodes as they are served: group, regions and composer together.
    Replica,
}

impl SimMachine {
    /// Every one.
    pub const ALL: [Self; 7] =
        [Self::Process, Self::Journal, Self::Cluster, Self::Beyond, Self::Group, Self::Region, Self::Replica];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Journal => "journal",
            Self::Cluster => "cluster",
            Self::Beyond => "beyond",
            Self::Group => "group",
            Self::Region => "region",
            Self::Replica => "replica",
        }
    }

    /// What it is, and what it is checked against.
    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Self::Process => {
                "mainstay-process over mainstay-journal: pessimistic message logging (Zhao 2014, section 2.3.1), output commit"
            }
            Self::Journal => "mainstay-journal alone: paged asynchronous log, docs/journal-format.md",
            Self::Group => {
                "mainstay-group: views agreed by Paxos among stores (Lamport 1998), leases (Gray and Cheriton 1989), docs/group.md"
            }
            Self::Beyond => {
                "the cluster, with more failures at once than the policies survive: what is lost is said, and all go on (docs/message-logging.md)"
            }
            Self::Cluster => {
                "mainstay-process, -channel and -recovery on several nodes: message logging (Alvisi and Marzullo 1998; Zhao 2014, chapter 2)"
            }
            Self::Region => {
                "mainstay-region: replicated, version-stamped data by six message patterns, docs/region.md (Schuchardt 2010)"
            }
            Self::Replica => {
                "mainstay-replica over mainstay-group and mainstay-region: nodes of replicated regions, end to end, docs/replica.md"
            }
        }
    }

    /// The rare branches it must reach.
    #[must_use]
    pub fn branches(self) -> &'static [Reach] {
        match self {
            Self::Process => Reach::of_process(),
            Self::Journal => crate::journal_world::BRANCHES,
            Self::Cluster => crate::cluster::BRANCHES,
            Self::Beyond => crate::cluster::BRANCHES_BEYOND,
            Self::Group => crate::group::BRANCHES,
            Self::Region => crate::region::BRANCHES,
            Self::Replica => crate::replica::BRANCHES,
        }
    }

    /// The rules that it shows broken: each is noticed within a thousand seeds.
    #[must_use]
    pub fn rules(self) -> &'static [Rule] {
        match self {
            Self::Process => &Rule::OF_ONE_PROCESS,
            Self::Journal => &[Rule::FailedSyncPoisons, Rule::StaleRecordRefused],
            Self::Beyond => &[Rule::LossStated, Rule::OrphansRollBack],
            Self::Group => &Rule::OF_A_GROUP,
            Self::Cluster => &[
                Rule::MessageAfterLogged,
                Rule::DeterminantsTravel,
                Rule::OrphansRollBack,
                Rule::KeepUntilCovered,
                Rule::SendAfterStable,
                Rule::AcknowledgeAfterStable,
                Rule::DuplicateAfterStable,
                Rule::TrimAfterCheckpoint,
                Rule::ReleaseOnce,
                Rule::CutBeforeDelivery,
                Rule::CutAfterDrained,
            ],
            Self::Region => crate::region::RULES,
            Self::Replica => crate::replica::RULES,
        }
    }
}

impl FromStr for SimMachine {
    type Err = UnknownMachine;

    fn from_str(given: &str) -> Result<Self, UnknownMachine> {
        let known = Self::ALL.into_iter().find(|machine| machine.name() == given);
        known.ok_or_else(|| UnknownMachine { given: given.to_owned() })
    }
}

/// Not the name of a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no simulated machine; `mainstay sim --list` shows them")]
pub struct UnknownMachine {
    /// What was given.
    pub given: String,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Which machine.
    pub machine: SimMachine,
    /// Which seeds.
    pub seeds: Range<u64>,
    /// Runs every seed that is a multiple of this twice, and compares the traces.
    pub twice_every: Option<NonZeroU64>,
    /// A safety rule to turn off in the machine; then the campaign ends with the first violation.
    pub broken: Option<Rule>,
}

/// How far a campaign is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimProgress {
    /// Seeds done.
    pub seeds: u64,
    /// Seeds in all.
    pub of: u64,
    /// Violations so far.
    pub violations: u64,
}

/// What a campaign found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SimReport {
    /// Seeds run.
    pub seeds: u64,
    /// Events handed to machines.
    pub steps: u64,
    /// Crashes.
    pub crashes: u64,
    /// Seeds that ended in a violation.
    pub violations: u64,
    /// The violation of the lowest seed.
    pub first_violation: Option<SimViolation>,
    /// How often each rare branch was taken.
    pub reached: BTreeMap<&'static str, u64>,
}

/// A violation, where it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SimViolation {
    /// The seed: `mainstay sim --seed` shows it again.
    pub seed: u64,
    /// The step at which it was noticed.
    pub step: u64,
    /// Name of the property, or `determinism`.
    pub property: &'static str,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for SimViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, step {}: {}: {}", self.seed, self.step, self.property, self.what)
    }
}

/// A name and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SimListed {
    /// As given on the command line.
    pub name: &'static str,
    /// Literature, or the document that defines it.
    pub source: &'static str,
}

/// Everything that can be named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SimList {
    /// What `--machine` takes.
    pub machines: Vec<SimListed>,
    /// What `--break` takes.
    pub rules: Vec<SimListed>,
    /// What the oracle checks.
    pub properties: Vec<SimListed>,
}

/// Names the machines, the rules that can be broken, and the properties.
#[must_use]
pub fn list() -> SimList {
    let machines =
        SimMachine::ALL.map(|machine| SimListed { name: machine.name(), source: machine.source() });
    let rules = Rule::ALL.map(|rule| SimListed { name: rule.broken_name(), source: rule.source() });
    let properties =
        Property::ALL.map(|property| SimListed { name: property.name(), source: property.source() });
    SimList { machines: machines.into(), rules: rules.into(), properties: properties.into() }
}

/// The trace of one seed, line by line, and how it ended.
#[must_use]
pub fn trace(machine: SimMachine, seed: u64, broken: Option<Rule>) -> (Vec<String>, Option<SimViolation>) {
    let lines = Lines::default();
    let ended = run_seed(machine, seed, rules(broken), Trace::kept_in(&lines));
    let violation = ended.violation.map(|(step, violation)| seen(seed, step, violation));
    (lines.take(), violation)
}

/// Runs a campaign. `progress` is called from time to time, from one thread at a time.
pub fn run(options: &SimOptions, progress: &mut (dyn FnMut(SimProgress) + Send)) -> SimReport {
    // With a broken rule the first violation answers the question; higher seeds need not be run.
    let stops = options.broken.is_some();
    let one = |tally: &mut Tally, seed| tally.seed(options, seed);
    let tally = in_parallel(options.seeds.clone(), stops, &one, progress);
    SimReport {
        seeds: tally.seeds,
        steps: tally.steps,
        crashes: tally.crashes,
        violations: tally.violations,
        first_violation: tally.first,
        reached: tally.reached.named(options.machine.branches()),
    }
}

/// Runs seeds on two threads. `one` runs a seed, adds it up and says whether there was a violation; with `stops`, seeds above
/// the lowest that has one need not be run.
pub(crate) fn in_parallel(
    seeds: Range<u64>,
    stops: bool,
    one: &(dyn Fn(&mut Tally, u64) -> bool + Sync),
    progress: &mut (dyn FnMut(SimProgress) + Send),
) -> Tally {
    let next = AtomicU64::new(seeds.start);
    let stop_at = AtomicU64::new(seeds.end);
    let of = seeds.end.saturating_sub(seeds.start);
    let state = std::sync::Mutex::new((Tally::default(), progress));
    let work = || {
        loop {
            let from = next.fetch_add(SEEDS_AT_A_TIME, Ordering::Relaxed);
            if from >= stop_at.load(Ordering::Relaxed) {
                return;
            }
            let mut tally = Tally::default();
            for seed in from..seeds.end.min(from + SEEDS_AT_A_TIME) {
                if one(&mut tally, seed) && stops {
                    stop_at.fetch_min(seed, Ordering::Relaxed);
                    break;
                }
            }
            let mut state = state.lock().expect("no thread panics with the lock");
            let (all, progress) = &mut *state;
            all.merge(tally);
            progress(SimProgress { seeds: all.seeds, of, violations: all.violations });
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    state.into_inner().expect("no thread panics with the lock").0
}

/// Sums, whose order does not matter.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) seeds: u64,
    pub(crate) steps: u64,
    pub(crate) crashes: u64,
    pub(crate) violations: u64,
    pub(crate) first: Option<SimViolation>,
    pub(crate) reached: Reached,
}

impl Tally {
    /// Returns whether there was a violation.
    fn seed(&mut self, options: &SimOptions, seed: u64) -> bool {
        let rules = rules(options.broken);
        let twice = options.twice_every.is_some_and(|every| seed % every == 0);
        let trace = || if twice { Trace::hashed() } else { Trace::off() };
        let ended = run_seed(options.machine, seed, rules, trace());
        let mut violation = ended.violation.map(|(step, violation)| seen(seed, step, violation));
        if twice && violation.is_none() {
            let again = run_seed(options.machine, seed, rules, trace());
            if again.trace.digest() != ended.trace.digest() {
                violation = Some(difference(options.machine, seed, rules));
            }
        }
        self.add(ended.steps, ended.crashes, &ended.reached, violation)
    }

    /// Adds a run; returns whether there was a violation.
    pub(crate) fn add(
        &mut self,
        steps: u64,
        crashes: u64,
        reached: &Reached,
        violation: Option<SimViolation>,
    ) -> bool {
        self.seeds += 1;
        self.steps += steps;
        self.crashes += crashes;
        self.reached.merge(reached);
        let violated = violation.is_some();
        self.violations += u64::from(violated);
        self.keep_first(violation);
        violated
    }

    fn keep_first(&mut self, violation: Option<SimViolation>) {
        let earlier = |first: &SimViolation| violation.as_ref().is_none_or(|found| first.seed <= found.seed);
        if !self.first.as_ref().is_some_and(earlier) {
            self.first = violation;
        }
    }

    fn merge(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.crashes += other.crashes;
        self.violations += other.violations;
        self.reached.merge(&other.reached);
        self.keep_first(other.first);
    }
}

fn rules(broken: Option<Rule>) -> Rules {
    broken.map_or(Rules::KEPT, Rules::without)
}

pub(crate) fn seen(seed: u64, step: u64, violation: Violation) -> SimViolation {
    SimViolation { seed, step, property: violation.property.name(), what: violation.what }
}

fn run_seed(machine: SimMachine, seed: u64, rules: Rules, trace: Trace) -> Ended {
    let run = AssertUnwindSafe(|| match machine {
        SimMachine::Process => {
            World::new(Rc::<LedgerSubject>::default(), Plan::default(), seed, rules, trace).run()
        }
        SimMachine::Journal => JournalWorld::new(seed, rules, trace).run(),
        SimMachine::Cluster => {
            ClusterWorld::new(Rc::new(OwnSubject::default()), seed, rules, trace).run(rules)
        }
        SimMachine::Group => GroupWorld::new(seed, rules, trace).run(),
        SimMachine::Beyond => {
            ClusterWorld::new(Rc::new(OwnSubject { beyond: true }), seed, rules, trace).run(rules)
        }
        SimMachine::Region => RegionWorld::new(seed, rules, trace).run(),
        SimMachine::Replica => ReplicaWorld::new(seed, rules, trace).run(),
    });
    // The world of a panicked run is dropped with it; nothing of it is looked at again.
    catch_unwind(run).unwrap_or_else(|payload| {
        let what = quiet::message(payload.as_ref());
        let violation = Violation::new(Property::Asserts, what);
        Ended {
            steps: 0,
            crashes: 0,
            reached: Reached::default(),
            violation: Some((0, violation)),
            trace: Trace::off(),
        }
    })
}

/// Two runs of one seed differ: where first?
fn difference(machine: SimMachine, seed: u64, rules: Rules) -> SimViolation {
    let run = || {
        let lines = Lines::default();
        run_seed(machine, seed, rules, Trace::kept_in(&lines));
        lines.take()
    };
    let (one, other) = (run(), run());
    let place =
        one.iter().zip(&other).position(|(one, other)| one != other).unwrap_or(one.len().min(other.len()));
    let line = |lines: &[String]| lines.get(place).cloned().unwrap_or_else(|| "(the end)".to_owned());
    SimViolation {
        seed,
        step: place as u64,
        property: "determinism",
        what: format!(
            "line {place} of the trace differs:\n  first:  {}\n  second: {}",
            line(&one),
            line(&other)
        ),
    }
}
