//! A read says how old the state is that it shows: it has all that any copy that served had applied so long ago.

use super::{Property, Violation};
use mainstay_region::message::Found;
use mainstay_types::operation::Version;

pub(crate) const SOURCE: &str =
    "stated staleness: docs/region.md, reads; Terry et al. 2013, bounded staleness";

/// Fails if a copy that served had applied more at that moment. `applied` is what the first one to do so applied, with the time, in its order.
pub(crate) fn check(
    applied: &[(u64, Version)],
    shard: u16,
    found: &Found,
    now: u64,
) -> Result<(), Violation> {
    let Some(age_ns) = found.age_ns else { return Ok(()) };
    let then = now.saturating_sub(age_ns);
    let before = &applied[..applied.partition_point(|&(time, _)| time < then)];
    match before.last() {
        Some(&(time, version)) if version > found.at => {
            let what = format!(
                "shard {shard}: a read shows {} and says that it is at most {age_ns} ns old at {now}, and {version} was applied at {time}",
                found.at
            );
            Err(Violation::new(Property::RegionAgeStated, what))
        }
        _ => Ok(()),
    }
}
