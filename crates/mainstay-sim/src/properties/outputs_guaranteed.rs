//! Each port gives its guarantee: once where the receiver drops a key or can be asked, never lost at least once, never
//! doubled at most once.

use super::{Property, Violation};
use mainstay_process::handler::Outcome;
use mainstay_process::port::Guarantee;

pub(crate) const SOURCE: &str = "ports and their guarantees: docs/ports.md; exactly-once delivery needs a receiver's help: Elnozahy et al. 2002, section 2.6";

/// A receiver took an output for the `times`th time; `allowed` is how often a person asked for it.
pub(crate) fn taken(guarantee: Guarantee, key: &str, times: u64, allowed: u64) -> Result<(), Violation> {
    let doubled = match guarantee {
        Guarantee::Deduplicated | Guarantee::Asked => times > 1,
        Guarantee::AtMostOnce => times > allowed,
        Guarantee::AtLeastOnce => false,
    };
    if !doubled {
        return Ok(());
    }
    let what = format!("output {key} took effect {times} times behind a port that is {guarantee}");
    Err(Violation::new(Property::OutputsGuaranteed, what))
}

/// An output's fate was recorded while the receiver had taken it `times` times.
pub(crate) fn settled(
    guarantee: Guarantee,
    key: &str,
    outcome: &Outcome,
    times: u64,
) -> Result<(), Violation> {
    let lost = matches!(outcome, Outcome::Delivered { .. }) && times == 0;
    if !lost {
        return Ok(());
    }
    let what =
        format!("output {key} behind a port that is {guarantee} is recorded as delivered, but never arrived");
    Err(Violation::new(Property::OutputsGuaranteed, what))
}
