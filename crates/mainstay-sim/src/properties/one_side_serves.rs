//! No two views of a group are served at the same moment, by whatever clocks.

use super::{Property, Violation};
use mainstay_types::view::{MemberId, ViewId};

pub(crate) const SOURCE: &str = "leases: Gray and Cheriton 1989; GEODE-9822, Corosync issue 182";

/// Both serve now.
pub(crate) fn check(one: (MemberId, ViewId), other: (MemberId, ViewId)) -> Result<(), Violation> {
    if one.1 == other.1 {
        return Ok(());
    }
    let what = format!("{} serves view {} while {} serves view {}", one.0, one.1, other.0, other.1);
    Err(Violation::new(Property::OneSideServes, what))
}
