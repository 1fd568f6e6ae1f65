//! What a client was told is in every later view, with its version and outcome. It holds for a member that joins too: it serves from its first view on.

use super::{Property, Violation};
use crate::region::Agreed;
use mainstay_region::duplicates::Seen;
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::view::ViewId;
use std::collections::BTreeMap;

pub(crate) const SOURCE: &str =
    "durability of acknowledged writes: Liskov and Cowling 2012, section 8; GEODE-6195";

/// Fails if something that was told as a version of an earlier view is not in the agreed sequence when `view` begins.
pub(crate) fn check(
    told: &BTreeMap<OperationId, (u16, Seen)>,
    agreed: &BTreeMap<(u16, Version), Agreed>,
    view: ViewId,
) -> Result<(), Violation> {
    for (id, (shard, seen)) in told.iter().filter(|(_, (_, seen))| seen.version.view < view) {
        let there = agreed.get(&(*shard, seen.version)).and_then(Option::as_ref);
        if there.is_none_or(|(other, outcome)| (other, outcome) != (id, &seen.outcome)) {
            let what = format!("{id:?} was told as {seen:?}; shard {shard} has {there:?} there in {view}");
            return Err(Violation::new(Property::RegionAcknowledgedStays, what));
        }
    }
    Ok(())
}
