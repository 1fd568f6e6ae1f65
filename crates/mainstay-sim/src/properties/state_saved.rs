//! A handler that was saved and restored goes on as if it had not been.

use super::{Property, Violation};
use crate::order::Differs;

pub(crate) const SOURCE: &str =
    "a checkpoint holds the whole state: Elnozahy et al. 2002, section 2.1; Handler::save and restore";

/// The violation of a handler that did something else when it was saved and restored before every delivery.
pub(crate) fn violated(differs: &Differs) -> Violation {
    let Differs { delivery, told, what } = differs;
    let what = format!(
        "delivery {delivery}, {told}: by a handler that was saved and restored before it, as a recovery from a checkpoint does, it \
         does something else: {what}\n  The usual culprits: a field that is not saved (#[serde(skip)]), or saved otherwise than \
         it is read; state outside of the service's own type"
    );
    Violation::new(Property::StateSaved, what)
}
