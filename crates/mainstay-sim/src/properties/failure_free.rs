//! State, answers and outputs are those of a run without failures over the surviving order.

use super::{Property, Violation};
use std::fmt::Debug;

pub(crate) const SOURCE: &str = "piecewise determinism: Strom and Yemini 1985; recovery is correct if some failure-free run looks the same: Elnozahy et al. 2002, section 2.2";

/// Fails unless the machine shows what the model shows.
pub(crate) fn same<T: PartialEq + Debug>(what: &str, machine: &T, model: &T) -> Result<(), Violation> {
    if machine == model {
        return Ok(());
    }
    let what = format!("{what}: the machine has {machine:?}, a run without failures {model:?}");
    Err(Violation::new(Property::FailureFree, what))
}

pub(crate) fn violated(what: String) -> Violation {
    Violation::new(Property::FailureFree, what)
}
