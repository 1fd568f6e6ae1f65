//! Campaigns on a user's own service: seeds until one is violated, and that one made as short as it will go.

use crate::cluster::world::ClusterWorld;
use crate::exercise::{Exercise, Exercised};
use crate::exercise_of_nodes::{ExerciseOfNodes, ExercisedNodes};
use crate::plan::{Plan, Trouble};
use crate::properties::{Property, Violation, deterministic, state_saved};
use crate::quiet;
use crate::reach::{Reach, Reached};
use crate::run::{SimProgress, in_parallel, seen};
use crate::story::Story;
use crate::trace::Trace;
use crate::world::World;
use mainstay_types::rules::Rules;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often a plan is tried before it counts as one that does not fail: what is not deterministic fails now and then.
const TRIES: u32 = 3;

/// What to run.
#[derive(Clone, Debug)]
pub struct CampaignOptions {
    /// Which seeds.
    pub seeds: Range<u64>,
    /// Runs that may be spent on making a failing history shorter.
    pub shortening_runs_max: u32,
}

/// What a campaign did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CampaignReport {
    /// The service.
    pub name: String,
    /// Seeds run.
    pub seeds: u64,
    /// Events handed to the process.
    pub steps: u64,
    /// Different requests made.
    pub requests: u64,
    /// Deliveries in the histories that survived.
    pub deliveries: u64,
    /// Crashes.
    pub crashes: u64,
    /// How often each rare branch was taken.
    pub reached: BTreeMap<&'static str, u64>,
    /// The violation of the lowest seed.
    pub failure: Option<CampaignFailure>,
}

/// A violation, and the shortest history found that shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CampaignFailure {
    /// The seed.
    pub seed: u64,
    /// Name of the property.
    pub property: &'static str,
    /// What was seen, in the shortest history.
    pub what: String,
    /// Requests and crashes of the run that showed it first.
    pub first: (u64, u64),
    /// Requests and crashes of the shortest one.
    pub shortest: (u64, u64),
    /// The shortest one, step by step.
    pub history: Vec<String>,
}

impl fmt::Display for CampaignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, seeds, steps, requests, deliveries, crashes, .. } = self;
        write!(
            f,
            "campaign on `{name}`: {seeds} seeds, {steps} steps, {requests} requests, {deliveries} deliveries, {crashes} crashes ("
        )?;
        let kinds = CRASHES.iter().map(|kind| kind.name());
        let counts = kinds.map(|kind| format!("{} {}", kind.replace('_', " "), self.reached[kind]));
        write!(f, "{})", counts.collect::<Vec<_>>().join(", "))?;
        match &self.failure {
            None => write!(f, ": no violation"),
            Some(failure) => write!(f, "\n{failure}"),
        }
    }
}

impl fmt::Display for CampaignFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, property, what, first, shortest, history } = self;
        writeln!(f, "seed {seed} violates `{property}`: {what}")?;
        writeln!(
            f,
            "the shortest history that shows it ({} requests, {} crashes; first seen with {} and {}):",
            shortest.0, shortest.1, first.0, first.1
        )?;
        for (number, line) in history.iter().enumerate() {
            writeln!(f, "{:>4}  {line}", number + 1)?;
        }
        Ok(())
    }
}

/// Where a crash can hit, in the order of the final line.
const CRASHES: [Reach; 8] = [
    Reach::Kill,
    Reach::PowerCut,
    Reach::CrashInOpen,
    Reach::CrashInRecovery,
    Reach::CrashInCheckpointSave,
    Reach::CrashInCheckpointPublish,
    Reach::CrashInPrepare,
    Reach::CrashInTrim,
];

/// Runs a campaign on a service of one process; it ends with the first violation. `progress` is called from time to time, from one
/// thread at a time.
pub fn run(
    exercise: &dyn Exercise,
    options: &CampaignOptions,
    progress: &mut (dyn FnMut(SimProgress) + Send),
) -> CampaignReport {
    run_any(&OneProcess(exercise), options, progress)
}

/// The same on a service of several nodes.
pub fn run_nodes<E: ExerciseOfNodes>(
    exercise: &Arc<E>,
    options: &CampaignOptions,
    progress: &mut (dyn FnMut(SimProgress) + Send),
) -> CampaignReport {
    run_any(&Nodes(Arc::clone(exercise)), options, progress)
}

/// What seeds are run of.
trait Campaign: Sync {
    fn name(&self) -> &str;

    /// The branches that are counted.
    fn branches(&self) -> &'static [Reach];

    fn run_once(&self, seed: u64, plan: &Plan, tells: bool) -> Ran;
}

fn run_any(
    campaign: &dyn Campaign,
    options: &CampaignOptions,
    progress: &mut (dyn FnMut(SimProgress) + Send),
) -> CampaignReport {
    let (requests, deliveries) = (AtomicU64::new(0), AtomicU64::new(0));
    let tally = in_parallel(
        options.seeds.clone(),
        true,
        &|tally, seed| {
            let ran = campaign.run_once(seed, &Plan::default(), false);
            requests.fetch_add(ran.requests, Ordering::Relaxed);
            deliveries.fetch_add(ran.deliveries, Ordering::Relaxed);
            let violation = ran.violation.map(|violation| seen(seed, ran.steps, violation));
            tally.add(ran.steps, ran.crashes, &ran.reached, violation)
        },
        progress,
    );
    let failure = tally.first.map(|first| {
        let mut shortening =
            Shortening { campaign, seed: first.seed, runs_left: options.shortening_runs_max };
        shortening.run().unwrap_or_else(|| CampaignFailure {
            seed: first.seed,
            property: first.property,
            what: format!("{} (seen once in {TRIES} runs of this seed and one)", first.what),
            first: (0, 0),
            shortest: (0, 0),
            history: Vec::new(),
        })
    });
    CampaignReport {
        name: campaign.name().to_owned(),
        seeds: tally.seeds,
        steps: tally.steps,
        requests: requests.into_inner(),
        deliveries: deliveries.into_inner(),
        crashes: tally.crashes,
        reached: tally.reached.named(campaign.branches()),
        failure,
    }
}

/// One run of one seed.
struct Ran {
    steps: u64,
    requests: u64,
    deliveries: u64,
    crashes: u64,
    /// What [`Plan::crashes`] says of this run.
    faults: Vec<u64>,
    reached: Reached,
    violation: Option<Violation>,
    story: Vec<String>,
}

/// What a world came to that may have panicked: of such a one only numbers and histories are looked at.
fn ended(go: impl FnOnce() -> Option<(u64, Violation)>) -> Option<Violation> {
    let ended = catch_unwind(AssertUnwindSafe(go)).unwrap_or_else(|payload| {
        let what = format!("{}{}", quiet::message(payload.as_ref()), quiet::last_panic_place());
        Some((0, Violation::new(Property::Asserts, what)))
    });
    ended.map(|(_, violation)| violation)
}

/// A service of one process.
struct OneProcess<'a>(&'a dyn Exercise);

impl Campaign for OneProcess<'_> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn branches(&self) -> &'static [Reach] {
        Reach::of_process()
    }

    fn run_once(&self, seed: u64, plan: &Plan, tells: bool) -> Ran {
        quiet::quietly(|| {
            let subject = Rc::new(Exercised::new(self.0, seed, plan));
            let mut world = World::new(Rc::clone(&subject), plan.clone(), seed, Rules::KEPT, Trace::off());
            if tells {
                world.oracle.story = Story::kept();
            }
            let found = ended(|| world.go());
            let violation = judge(&world, &subject, found);
            Ran {
                steps: world.steps,
                requests: subject.made(),
                deliveries: world.oracle.order.model.executed,
                crashes: world.crashes,
                faults: world.fuses.iter().copied().filter(|&points| points != u64::MAX).collect(),
                reached: world.reached.clone(),
                violation,
                story: world.oracle.story.take(),
            }
        })
    }
}

/// A service of several nodes.
struct Nodes<E>(Arc<E>);

impl<E: ExerciseOfNodes> Campaign for Nodes<E> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn branches(&self) -> &'static [Reach] {
        crate::cluster::BRANCHES
    }

    fn run_once(&self, seed: u64, plan: &Plan, tells: bool) -> Ran {
        quiet::quietly(|| {
            let story = if tells { Story::kept() } else { Story::default() };
            let subject = Rc::new(ExercisedNodes::new(&self.0, seed, plan, story));
            let as_subject: Rc<dyn crate::cluster::subject::Subject> =
                Rc::<ExercisedNodes<E>>::clone(&subject);
            let mut world = ClusterWorld::planned(as_subject, plan.clone(), seed, Rules::KEPT, Trace::off());
            world.story = Rc::clone(&subject.story);
            let found = ended(|| world.go());
            let violation = subject.review(&world, found);
            Ran {
                steps: world.steps,
                requests: subject.made(),
                deliveries: subject.deliveries(),
                crashes: world.crashes,
                faults: world.faults_done,
                reached: world.reached,
                violation,
                story: subject.story.borrow_mut().take(),
            }
        })
    }
}

/// Runs the history that survived again. What does not do the same there is the handler's doing, however the world noticed.
fn judge<'a>(
    world: &World<Exercised<'a>>,
    subject: &Exercised<'a>,
    found: Option<Violation>,
) -> Option<Violation> {
    use crate::subject::Subject;
    if let Some(Violation { property: Property::Invariant | Property::HandlerPanics, .. }) = found {
        return found;
    }
    let order = &world.oracle.order;
    let runs = if found.is_some() { deterministic::RUNS_AGAIN } else { 1 };
    let differs = (0..runs).find_map(|_| order.again(subject.failure_free()).err());
    if let Some(differs) = differs {
        return Some(deterministic::violated(&differs));
    }
    match order.again(subject.failure_free_restoring()) {
        Err(differs) => Some(state_saved::violated(&differs)),
        Ok(()) => found,
    }
}

/// A failing seed being made shorter.
struct Shortening<'a> {
    campaign: &'a dyn Campaign,
    seed: u64,
    runs_left: u32,
}

impl Shortening<'_> {
    fn run(&mut self) -> Option<CampaignFailure> {
        let first = (0..TRIES).find_map(|_| {
            let ran = self.campaign.run_once(self.seed, &Plan::default(), true);
            ran.violation.is_some().then_some(ran)
        })?;
        let property = first.violation.as_ref()?.property;
        let (first_size, first_story) = ((first.requests, first.crashes), first.story.clone());
        let plan = Plan {
            requests: Some((0..first.requests).collect()),
            crashes: Some(first.faults.clone()),
            ..Plan::default()
        };
        let mut shortest = first;
        if let Some((plan, _)) = self.fails(plan, property) {
            let plan = self.shorten(plan, property);
            let told = (0..TRIES * deterministic::RUNS_AGAIN)
                .map(|_| self.campaign.run_once(self.seed, &plan, true))
                .find(|ran| ran.violation.as_ref().is_some_and(|violation| violation.property == property));
            shortest = told.unwrap_or(shortest);
        }
        let Ran { requests, crashes, violation, story, .. } = shortest;
        Some(CampaignFailure {
            seed: self.seed,
            property: property.name(),
            what: violation?.what,
            first: first_size,
            shortest: (requests, crashes),
            history: if story.is_empty() { first_story } else { story },
        })
    }

    /// The plan, cut to what was used of it, if a run of it violates `property`.
    fn fails(&mut self, mut plan: Plan, property: Property) -> Option<(Plan, Ran)> {
        for _ in 0..TRIES {
            self.runs_left = self.runs_left.checked_sub(1)?;
            let ran = self.campaign.run_once(self.seed, &plan, false);
            if ran.violation.as_ref().is_some_and(|violation| violation.property == property) {
                if let Some(requests) = &mut plan.requests {
                    requests.truncate(usize::try_from(ran.requests).expect("a list fits in memory"));
                }
                if let Some(crashes) = &mut plan.crashes {
                    crashes.clone_from(&ran.faults);
                }
                return Some((plan, ran));
            }
            if property != Property::Deterministic {
                break;
            }
        }
        None
    }

    /// Leaves out kinds of trouble, crashes and requests, again and again until nothing more can be left out.
    fn shorten(&mut self, mut plan: Plan, property: Property) -> Plan {
        loop {
            let before = plan.clone();
            for trouble in Trouble::ALL {
                if plan.has(trouble) {
                    let mut without = plan.clone();
                    without.without.insert(trouble);
                    plan = self.fails(without, property).map_or(plan, |(shorter, _)| shorter);
                }
            }
            plan = self.shorten_list(plan, property, |plan| &mut plan.crashes);
            plan = self.shorten_list(plan, property, |plan| &mut plan.requests);
            if plan == before || self.runs_left == 0 {
                return plan;
            }
        }
    }

    /// Leaves out pieces of a list: halves first, single ones last (delta debugging: Zeller and Hildebrandt 2002).
    fn shorten_list(
        &mut self,
        mut plan: Plan,
        property: Property,
        list: impl Fn(&mut Plan) -> &mut Option<Vec<u64>>,
    ) -> Plan {
        let length = |plan: &mut Plan| list(plan).as_ref().map_or(0, Vec::len);
        let mut piece = length(&mut plan).div_ceil(2);
        while piece > 0 {
            let mut at = 0;
            while at < length(&mut plan) {
                let mut without = plan.clone();
                let whole = list(&mut without).as_mut().expect("only lists that there are have a length");
                whole.drain(at..whole.len().min(at + piece));
                match self.fails(without, property) {
                    Some((shorter, _)) => plan = shorter,
                    None => at += piece,
                }
            }
            piece = if piece == 1 { 0 } else { piece.div_ceil(2) };
        }
        plan
    }
}
