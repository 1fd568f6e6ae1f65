//! What may have happened is never taken as not happened: an output whose fate is not recorded stays listed.

use super::{Property, Violation};
use mainstay_types::id::OutputId;

pub(crate) const SOURCE: &str =
    "in-doubt outcomes: Gray and Reuter 1993, section 10.3; two generals: Akkoyunlu et al. 1975";

/// Fails unless the machine lists exactly the outputs whose fate the surviving order does not record.
pub(crate) fn listed(machine: &[OutputId], model: &[OutputId]) -> Result<(), Violation> {
    if machine == model {
        return Ok(());
    }
    let what = format!("the fate of outputs {model:?} is not recorded, but {machine:?} are listed");
    Err(Violation::new(Property::UnknownNotAbsent, what))
}
