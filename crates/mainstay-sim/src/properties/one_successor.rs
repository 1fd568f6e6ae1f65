//! A view is followed by one view, the same wherever it is known: members, cut and departures.

use super::{Property, Violation};
use mainstay_group::ballot::Proposal;

pub(crate) const SOURCE: &str =
    "agreement: Lamport 1998; primary-partition membership, Birman and Joseph 1987; Derecho issue 126";

/// `known` was decided once under the number of `found`.
pub(crate) fn check(known: &Proposal, found: &Proposal) -> Result<(), Violation> {
    if known == found {
        return Ok(());
    }
    let what = format!(
        "two views have one number: {} with a cut of {} bytes, and {} with one of {} bytes",
        known.view,
        known.cut.len(),
        found.view,
        found.cut.len()
    );
    Err(Violation::new(Property::OneSuccessor, what))
}
