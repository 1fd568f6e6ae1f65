//! Nothing that a copy keeps grows beyond its limit.

use super::{Property, Violation};

pub(crate) const SOURCE: &str =
    "every queue has a limit with a name and a unit: ARCHITECTURE.md, invariant 10";

/// Fails at the first size that is above its limit.
pub(crate) fn check(sizes: &[(&'static str, usize, usize)]) -> Result<(), Violation> {
    match sizes.iter().find(|(_, size, limit)| size > limit) {
        None => Ok(()),
        Some((name, size, limit)) => {
            let what = format!("{name} is {limit}, and there are {size}");
            Err(Violation::new(Property::RegionBounded, what))
        }
    }
}
