//! A handler does the same again over the same history, with the same time and the same random numbers.

use super::{Property, Violation};
use crate::order::Differs;

pub(crate) const SOURCE: &str = "piecewise determinism: Strom and Yemini 1985, section 2; what replay relies on: README, rules for a handler";

/// How often a history is run again to see whether it does the same: a hash map of two may be walked in the same order every other time.
pub(crate) const RUNS_AGAIN: u32 = 32;

/// The violation of a handler that did something else when its history was run again.
pub(crate) fn violated(differs: &Differs) -> Violation {
    let Differs { delivery, told, what } = differs;
    let what = format!(
        "delivery {delivery}, {told}: run again over the same history, with the same time and random numbers, it does something \
         else: {what}\n  The usual culprits: a HashMap or HashSet walked in its random order (take a BTreeMap or BTreeSet); \
         SystemTime::now or Instant::now (take context.now()); random numbers of its own (take context.random_u64()); a static, a \
         thread-local, a file or the environment that the handler reads"
    );
    Violation::new(Property::Deterministic, what)
}
