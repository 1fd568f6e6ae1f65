//! A user's service in the world of one process: their handler, their requests, their invariant.

use crate::clients::Kind;
use crate::plan::{Plan, Trouble};
use crate::properties::{Property, Violation};
use crate::quiet;
use crate::random::{Random, SplitMix};
use crate::subject::{FailureFree, Stopped, Subject, saved};
use mainstay_journal::geometry::Geometry;
use mainstay_process::config::Config;
use mainstay_process::dry_run::{self, Call, Given, Performed};
use mainstay_process::handler::{Answer, Handler};
use mainstay_process::port::Port;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub use crate::story::shown;

/// Bytes of a page that are not the body of the longest request.
const PAGE_OVERHEAD_BYTES: usize = 1024;
/// Bytes of a page at least.
const PAGE_BYTES_MIN: usize = 4096;

/// A handler of any type, which the exercise that made it knows again. Behind a pointer, so that the simulator is compiled once and not for each
/// service.
pub trait ExercisedHandler: Handler + Any {}

impl<H: Handler + Any> ExercisedHandler for H {}

/// A service of a user, bytes in and bytes out, with what is asked of it and what must always hold.
pub trait Exercise: Sync {
    /// The service's name.
    fn name(&self) -> &str;

    /// The ports that it sends to.
    fn ports(&self) -> &[Port];

    /// A handler that nothing was delivered to yet.
    fn handler(&self) -> Box<dyn ExercisedHandler>;

    /// The body of a request, of at most [`Self::body_bytes_max`] bytes. The same draws give the same body.
    fn request(&self, random: &mut Random) -> Vec<u8>;

    /// All reads that clients ask for; none: nobody reads.
    fn queries(&self) -> &[Vec<u8>];

    /// Bytes of a request's body at most.
    fn body_bytes_max(&self) -> usize;

    /// Panics when the handler, one of [`Self::handler`], is in a state that it must never be in.
    fn assert_invariant(&self, handler: &dyn Any);

    /// Whether the handler may panic, as one that gives up a request does. If not, a panic is a violation.
    fn may_panic(&self) -> bool;

    /// Whether two saved states are the same. What has no order may be saved in any.
    fn is_same(&self, one: &[u8], other: &[u8]) -> bool {
        one == other
    }

    /// A saved state for people.
    fn show(&self, state: &[u8]) -> String {
        shown(state)
    }
}

/// An exercise under a plan.
pub(crate) struct Exercised<'a> {
    exercise: &'a dyn Exercise,
    seed: u64,
    requests: Option<Vec<u64>>,
    clients: &'static [Kind],
    /// Requests made so far.
    made: Cell<u64>,
}

impl<'a> Exercised<'a> {
    pub(crate) fn new(exercise: &'a dyn Exercise, seed: u64, plan: &Plan) -> Self {
        let reads = plan.has(Trouble::Reads) && !exercise.queries().is_empty();
        let clients: &[Kind] = match (plan.has(Trouble::Crowd), reads) {
            (true, true) => &[Kind::Key, Kind::Numbered, Kind::Key, Kind::Numbered, Kind::Reader],
            (true, false) => &[Kind::Key, Kind::Numbered, Kind::Key, Kind::Numbered],
            (false, true) => &[Kind::Key, Kind::Reader],
            (false, false) => &[Kind::Key],
        };
        Self { exercise, seed, requests: plan.requests.clone(), clients, made: Cell::new(0) }
    }

    /// Requests made so far.
    pub(crate) fn made(&self) -> u64 {
        self.made.get()
    }

    /// The same run, by a handler that is saved and restored before every delivery.
    pub(crate) fn failure_free_restoring(&self) -> Alone<'a> {
        Alone { restores: true, ..self.failure_free() }
    }

    /// The body of request `number`, whichever others are made.
    fn body(&self, number: u64) -> Vec<u8> {
        let mut random = Random::new(SplitMix(self.seed ^ number.rotate_left(32)).draw());
        let body = self.exercise.request(&mut random);
        let most = self.exercise.body_bytes_max();
        assert!(body.len() <= most, "a request has {} bytes, at most {most} were announced", body.len());
        body
    }
}

impl<'a> Subject for Exercised<'a> {
    type Handler = Box<dyn ExercisedHandler>;
    type FailureFree = Alone<'a>;

    fn settle(&self, config: &mut Config, geometry: &mut Geometry) {
        self.exercise.name().clone_into(&mut config.name);
        config.ports = self.exercise.ports().to_vec();
        let limits = &mut config.limits;
        limits.body_bytes_max = self.exercise.body_bytes_max();
        // What users rely on: a key is remembered longer than anybody repeats it.
        limits.keys_max = 1 << 20;
        limits.key_retention = Duration::from_secs(100 * 365 * 24 * 3600);
        let page_bytes =
            (limits.body_bytes_max + PAGE_OVERHEAD_BYTES).next_power_of_two().max(PAGE_BYTES_MIN);
        geometry.page_bytes = u32::try_from(page_bytes).expect("a request has less than 2 GiB");
    }

    fn handler(&self) -> Box<dyn ExercisedHandler> {
        self.exercise.handler()
    }

    fn failure_free(&self) -> Alone<'a> {
        Alone { exercise: self.exercise, handler: self.exercise.handler(), restores: false }
    }

    fn clients(&self) -> &'static [Kind] {
        self.clients
    }

    fn request(&self, _: u64, _: &mut Random) -> Option<Vec<u8>> {
        let made = self.made.get();
        let number = match &self.requests {
            Some(planned) => *planned.get(usize::try_from(made).expect("a list fits in memory"))?,
            None => made,
        };
        self.made.set(made + 1);
        Some(self.body(number))
    }

    fn another_body(&self, _: u64, random: &mut Random) -> Option<Vec<u8>> {
        Some(self.body(u64::MAX - random.below(1 << 20)))
    }

    fn all_asked(&self) -> bool {
        self.requests.as_ref().is_some_and(|planned| planned.len() as u64 <= self.made.get())
    }

    fn queries(&self) -> &[Vec<u8>] {
        self.exercise.queries()
    }

    fn bad_weather(&self, _: u32) {}

    fn waits_for_timers(&self) -> bool {
        false
    }

    fn is_same(&self, one: &[u8], other: &[u8]) -> bool {
        self.exercise.is_same(one, other)
    }

    fn show(&self, state: &[u8]) -> String {
        self.exercise.show(state)
    }
}

/// A user's handler in a run without failures.
pub(crate) struct Alone<'a> {
    exercise: &'a dyn Exercise,
    handler: Box<dyn ExercisedHandler>,
    restores: bool,
}

impl FailureFree for Alone<'_> {
    fn deliver(&mut self, call: Call<'_>, given: Given<'_>) -> Result<Performed, Stopped> {
        if self.restores {
            let state = saved(&self.handler);
            self.handler = self.exercise.handler();
            if let Err(error) = self.handler.restore(&state) {
                return Err(Violation::new(Property::StateSaved, error.to_string()).into());
            }
        }
        let delivery = given.delivery;
        let performed = match dry_run::deliver(&mut self.handler, call, given) {
            Ok(performed) => performed,
            Err(panicked) if self.exercise.may_panic() => return Err(Stopped::Panics(panicked.message)),
            Err(panicked) => {
                let what = format!(
                    "delivery {delivery}, {}: {panicked}{}",
                    of_call(call),
                    quiet::last_panic_place()
                );
                return Err(Violation::new(Property::HandlerPanics, what).into());
            }
        };
        // The handler itself: the box around it is one, too.
        let asserted = catch_unwind(AssertUnwindSafe(|| self.exercise.assert_invariant(&*self.handler)));
        if let Err(payload) = asserted {
            let what = format!(
                "after delivery {delivery}, {}: {}{}\n  the state: {}",
                of_call(call),
                quiet::message(payload.as_ref()),
                quiet::last_panic_place(),
                self.exercise.show(&saved(&self.handler))
            );
            return Err(Violation::new(Property::Invariant, what).into());
        }
        Ok(performed)
    }

    fn query(&self, query: &[u8]) -> Answer {
        self.handler.query(query)
    }

    fn state(&self) -> Vec<u8> {
        saved(&self.handler)
    }
}

fn of_call(call: Call<'_>) -> String {
    match call {
        Call::Request(body) => format!("request {}", shown(body)),
        Call::Message(from, body) => format!("message of {from}: {}", shown(body)),
        Call::Timer(token) => format!("timer {token}"),
        Call::Settled(output, outcome) => format!("output {output} settled: {outcome:?}"),
    }
}
