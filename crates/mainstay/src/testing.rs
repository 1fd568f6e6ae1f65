//! Fault campaigns on a service's own handlers, for `cargo test`: the service in a simulated world that crashes it at every
//! step, beside an oracle. Needs the feature `testing`.
//!
//! ```
//! # use mainstay::{Context, Refusal, Service};
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Default, Serialize, Deserialize)]
//! # struct Counter { total: i64 }
//! # #[derive(Deserialize)]
//! # struct Add { amount: i64 }
//! # impl Service for Counter {
//! #     const NAME: &'static str = "counter";
//! #     type Command = Add;
//! #     type Answer = i64;
//! #     type Query = ();
//! #     type View = i64;
//! #     fn handle(&mut self, add: Add, _: &mut Context<'_>) -> Result<i64, Refusal> {
//! #         if add.amount < 0 { return Err("only upwards".into()); }
//! #         self.total += add.amount;
//! #         Ok(self.total)
//! #     }
//! #     fn query(&self, (): ()) -> Result<i64, Refusal> { Ok(self.total) }
//! # }
//! // #[test]
//! fn the_counter_survives_every_crash() {
//!     mainstay::testing::campaign::<Counter>(0..20)
//!         .commands(|random| serde_json::json!({ "amount": random.between(0, 9) as i64 - 2 }))
//!         .invariant(|counter| assert!(counter.total >= 0))
//!         .run();
//! }
//! # the_counter_survives_every_crash();
//! ```
//!
//! Each seed is one history: clients that repeat, kills and power cuts at any step, also within recovery and checkpoints, a disk
//! that fails, outputs to receivers that are told twice. The oracle compares everything that leaves, and the state after every
//! delivery, with a run of the same handler without failures; a handler that is not deterministic, or whose saved state
//! forgets something, is found that way. What a failing seed prints is the shortest history found that still fails.
//!
//! [`campaign_of_instances`] does the same with instances on several nodes.

use crate::instance::Node;
use crate::service::Service;
use crate::typed::{Typed, check};
use mainstay_process::port::Port;
use mainstay_runtime::service::Unfit;
use mainstay_sim::campaign::{CampaignOptions, run};
use mainstay_sim::exercise::{Exercise, ExercisedHandler};
use mainstay_sim::run::SimProgress;
use serde::Serialize;
use serde_json::Value;
use std::any::Any;
use std::ops::Range;

mod instances;

pub use instances::{AtRest, Call, InstanceCampaign};
pub use mainstay_process::port::Guarantee;
pub use mainstay_sim::campaign::{CampaignFailure, CampaignReport};
pub use mainstay_sim::random::Random;

/// The environment variable that gives a campaign other seeds: `7`, or `0..100000`.
pub const SEEDS_VARIABLE: &str = "MAINSTAY_SEEDS";

/// Bytes of a command's JSON at most, unless [`Campaign::command_bytes_max`] says otherwise.
const COMMAND_BYTES_MAX: usize = 2000;
/// Runs that may be spent on making a failing history shorter.
const SHORTENING_RUNS_MAX: u32 = 1000;

/// Draws one command, as JSON.
type DrawCommand = Box<dyn Fn(&mut Random) -> Vec<u8> + Sync>;

/// A campaign on a service that begins with its default.
#[must_use]
pub fn campaign<S: Service + Default>(seeds: Range<u64>) -> Campaign<S> {
    Campaign::new(S::default, seeds)
}

/// A campaign on the instances of a node, over 1 to 4 nodes that tell each other.
pub fn campaign_of_instances(node: Node, seeds: Range<u64>) -> InstanceCampaign {
    InstanceCampaign::new(node, seeds)
}

/// A campaign: what is asked of the service, and what must always hold.
pub struct Campaign<S> {
    make: Box<dyn Fn() -> S + Sync>,
    seeds: Range<u64>,
    commands: Option<DrawCommand>,
    queries: Vec<Vec<u8>>,
    invariant: Box<dyn Fn(&S) + Sync>,
    ports: Vec<Port>,
    command_bytes_max: usize,
    may_panic: bool,
}

impl<S: Service> Campaign<S> {
    /// A campaign on a service that begins as `make` makes it.
    #[must_use]
    pub fn new(make: impl Fn() -> S + Sync + 'static, seeds: Range<u64>) -> Self {
        // The read of a service whose query is `()`.
        let null = b"null".to_vec();
        let queries = if check::<S::Query>()(&null).is_ok() { vec![null] } else { Vec::new() };
        Self {
            make: Box::new(make),
            seeds,
            commands: None,
            queries,
            invariant: Box::new(|_| {}),
            ports: Vec::new(),
            command_bytes_max: COMMAND_BYTES_MAX,
            may_panic: false,
        }
    }

    /// What clients ask for: each call gives one command, as `S::Command` reads it. All chance must come from the argument.
    #[must_use]
    pub fn commands<C: Serialize>(mut self, draw: impl Fn(&mut Random) -> C + Sync + 'static) -> Self {
        self.commands = Some(Box::new(move |random| json(&draw(random))));
        self
    }

    /// What clients read, all of it. Without this `null`, if `S::Query` takes it.
    #[must_use]
    pub fn queries<Q: Serialize>(mut self, queries: impl IntoIterator<Item = Q>) -> Self {
        self.queries = queries.into_iter().map(|query| json(&query)).collect();
        self
    }

    /// Asserts what must hold after every delivery: a panic is a violation.
    #[must_use]
    pub fn invariant(mut self, assert: impl Fn(&S) + Sync + 'static) -> Self {
        self.invariant = Box::new(assert);
        self
    }

    /// Declares an output port; a simulated receiver with that guarantee stands behind it.
    #[must_use]
    pub fn output(mut self, name: &str, guarantee: Guarantee) -> Self {
        self.ports.push(Port { name: name.to_owned(), guarantee, lines: false });
        self
    }

    /// Bytes of the longest command as JSON; 2000 without this.
    #[must_use]
    pub fn command_bytes_max(mut self, bytes: usize) -> Self {
        self.command_bytes_max = bytes;
        self
    }

    /// The handler may panic, always on the same: its request is given up. Without this a panic is a violation.
    #[must_use]
    pub fn may_panic(mut self) -> Self {
        self.may_panic = true;
        self
    }

    /// Runs it: the seeds given, or those of the environment variable [`SEEDS_VARIABLE`]. Says on standard output what was done.
    ///
    /// # Panics
    /// With the shortest history found, and the line that shows it again, when something was violated; when no commands, or
    /// commands that are none of the service's, were given.
    pub fn run(mut self) -> CampaignReport {
        self.seeds = seeds_of_environment().unwrap_or(self.seeds);
        told(self.report())
    }

    /// Runs the seeds given and returns what was found; says on standard error how far it is.
    ///
    /// # Panics
    /// When no commands, or commands that are none of the service's, were given.
    #[must_use]
    pub fn report(&self) -> CampaignReport {
        self.check_commands();
        run(&Untyped(self), &options(&self.seeds), &mut tell_tenths(S::NAME))
    }

    fn command(&self, random: &mut Random) -> Vec<u8> {
        let draw = self.commands.as_ref().expect("a campaign needs `.commands(…)`: what clients ask for");
        draw(random)
    }

    /// A command that the service would refuse before recording it tests nothing.
    fn check_commands(&self) {
        let check_command = check::<S::Command>();
        let mut random = Random::new(self.seeds.start);
        for _ in 0..100 {
            let body = self.command(&mut random);
            if let Err(Unfit::Content { message } | Unfit::Syntax { message }) = check_command(&body) {
                panic!("{} is no command of `{}`: {message}", String::from_utf8_lossy(&body), S::NAME);
            }
        }
    }
}

/// A campaign as the simulator sees it: bytes.
struct Untyped<'a, S>(&'a Campaign<S>);

impl<S: Service> Exercise for Untyped<'_, S> {
    fn name(&self) -> &str {
        S::NAME
    }

    fn ports(&self) -> &[Port] {
        &self.0.ports
    }

    fn handler(&self) -> Box<dyn ExercisedHandler> {
        Box::new(Typed((self.0.make)()))
    }

    fn request(&self, random: &mut Random) -> Vec<u8> {
        self.0.command(random)
    }

    fn queries(&self) -> &[Vec<u8>] {
        &self.0.queries
    }

    fn body_bytes_max(&self) -> usize {
        self.0.command_bytes_max
    }

    fn assert_invariant(&self, handler: &dyn Any) {
        let handler = handler.downcast_ref::<Typed<S>>().expect("it is one that this campaign made");
        (self.0.invariant)(&handler.0);
    }

    fn may_panic(&self) -> bool {
        self.0.may_panic
    }

    fn is_same(&self, one: &[u8], other: &[u8]) -> bool {
        one == other
            || match (unordered::<S>(one), unordered::<S>(other)) {
                (Some(one), Some(other)) => one == other,
                // Keys that JSON cannot have: the same bytes in any order.
                _ => counted(one) == counted(other),
            }
    }

    fn show(&self, state: &[u8]) -> String {
        let text = value::<S>(state).map(|value| value.to_string());
        text.unwrap_or_else(|| format!("{} bytes", state.len()))
    }
}

/// A saved state as JSON.
fn value<S: Service>(state: &[u8]) -> Option<Value> {
    serde_json::to_value(postcard::from_bytes::<S>(state).ok()?).ok()
}

/// The same without any order: a hash map that is only looked up in is saved in another order each time, and rightly so.
fn unordered<S: Service>(state: &[u8]) -> Option<Value> {
    let mut value = value::<S>(state)?;
    forget_order(&mut value);
    Some(value)
}

fn forget_order(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(forget_order);
            items.sort_by_cached_key(Value::to_string);
        }
        Value::Object(fields) => fields.values_mut().for_each(forget_order),
        _ => {}
    }
}

/// How often each byte occurs.
fn counted(bytes: &[u8]) -> [usize; 256] {
    bytes.iter().fold([0; 256], |mut counts, &byte| {
        counts[usize::from(byte)] += 1;
        counts
    })
}

fn options(seeds: &Range<u64>) -> CampaignOptions {
    CampaignOptions { seeds: seeds.clone(), shortening_runs_max: SHORTENING_RUNS_MAX }
}

/// Says on standard error how far a campaign is, ten times.
fn tell_tenths(name: &str) -> impl FnMut(SimProgress) + Send {
    let mut told = 0;
    move |progress| {
        let tenths = progress.seeds * 10 / progress.of.max(1);
        if tenths > told {
            told = tenths;
            eprintln!("campaign on `{name}`: {} of {} seeds", progress.seeds, progress.of);
        }
    }
}

/// Prints the report of a campaign without violations, panics with that of another.
fn told(report: CampaignReport) -> CampaignReport {
    if let Some(failure) = &report.failure {
        panic!("{report}\nagain: {}", again(failure.seed));
    }
    println!("{report}");
    report
}

fn seeds_of_environment() -> Option<Range<u64>> {
    let given = std::env::var(SEEDS_VARIABLE).ok()?;
    let read = seeds(&given);
    Some(read.unwrap_or_else(|| panic!("{SEEDS_VARIABLE} is a seed or a range like 0..1000, not {given:?}")))
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("a command can be written as JSON")
}

/// `7` or `0..100`.
fn seeds(given: &str) -> Option<Range<u64>> {
    if let Ok(seed) = given.parse() {
        return Some(seed..seed + 1);
    }
    let (from, to) = given.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}

/// The command that runs one seed again. The test harness names its threads after its tests.
fn again(seed: u64) -> String {
    let test = std::thread::current().name().filter(|name| *name != "main").map(str::to_owned);
    format!("{SEEDS_VARIABLE}={seed} cargo test {}", test.unwrap_or_default()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_compared_without_the_order_of_what_has_none() {
        let read = |text: &str| {
            let mut value = serde_json::from_str(text).expect("it is JSON");
            forget_order(&mut value);
            value
        };
        assert_eq!(read(r#"{"a": [3, [1, 2]], "b": 0}"#), read(r#"{"b": 0, "a": [[2, 1], 3]}"#));
        assert_ne!(read(r#"{"a": [1, 1, 2]}"#), read(r#"{"a": [1, 2, 2]}"#));
        assert_eq!(counted(&[1, 2, 1]), counted(&[2, 1, 1]));
        assert_ne!(counted(&[1, 2, 2]), counted(&[2, 1, 1]));
    }

    #[test]
    fn seeds_are_one_or_a_range() {
        assert_eq!(seeds("7"), Some(7..8));
        assert_eq!(seeds("0..100"), Some(0..100));
        assert_eq!((seeds("a"), seeds("1.."), seeds("")), (None, None, None));
        assert!(again(7).starts_with("MAINSTAY_SEEDS=7 cargo test testing::tests::seeds_are_one"));
    }
}
