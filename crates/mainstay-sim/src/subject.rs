//! What the world of one process is put around: a handler, what is asked of it, and its run without failures.

use crate::clients::Kind;
use crate::properties::Violation;
use crate::random::Random;
use crate::story::shown;
use mainstay_journal::geometry::Geometry;
use mainstay_process::config::Config;
use mainstay_process::dry_run::{Call, Given, Performed};
use mainstay_process::handler::{Answer, Handler};

/// A service to be simulated.
pub(crate) trait Subject {
    type Handler: Handler;
    type FailureFree: FailureFree;

    /// Its name, its ports and the limits that it needs, over what was drawn.
    fn settle(&self, config: &mut Config, geometry: &mut Geometry);

    /// The handler as every life begins with it.
    fn handler(&self) -> Self::Handler;

    /// The run of the same handler without failures, at its beginning.
    fn failure_free(&self) -> Self::FailureFree;

    /// Who asks.
    fn clients(&self) -> &'static [Kind];

    /// The body of request `number`; `None` when nothing more is to be asked.
    fn request(&self, number: u64, random: &mut Random) -> Option<Vec<u8>>;

    /// A body with which a client asks under an identity that it has used for another.
    fn another_body(&self, number: u64, random: &mut Random) -> Option<Vec<u8>>;

    /// Whether no request is left to be made; only where there is an end to them.
    fn all_asked(&self) -> bool {
        false
    }

    /// All reads that clients ask for.
    fn queries(&self) -> &[Vec<u8>];

    /// So many of the coming deliveries panic, if they never succeeded.
    fn bad_weather(&self, deliveries: u32);

    /// Whether a run is over only when no timer is set any more.
    fn waits_for_timers(&self) -> bool;

    /// Whether two saved states are the same. What has no order may be saved in any.
    fn is_same(&self, one: &[u8], other: &[u8]) -> bool {
        one == other
    }

    /// A state for people.
    fn show(&self, state: &[u8]) -> String {
        shown(state)
    }
}

/// Deliveries one after another, with nothing that could fail.
pub(crate) trait FailureFree {
    /// Runs one. After an error it is not used any further.
    fn deliver(&mut self, call: Call<'_>, given: Given<'_>) -> Result<Performed, Stopped>;

    /// What a read of the present state answers.
    fn query(&self, query: &[u8]) -> Answer;

    /// The present state, as the handler saves it.
    fn state(&self) -> Vec<u8>;
}

/// Why a delivery did not run.
pub(crate) enum Stopped {
    /// The handler panics on it: only a verdict lets the run go on. What the panic said.
    Panics(String),
    Violated(Violation),
}

impl From<Violation> for Stopped {
    fn from(violation: Violation) -> Self {
        Self::Violated(violation)
    }
}

/// The state as `handler` saves it.
pub(crate) fn saved(handler: &impl Handler) -> Vec<u8> {
    let mut bytes = Vec::new();
    handler.save(&mut bytes).expect("a vector takes all");
    bytes
}
