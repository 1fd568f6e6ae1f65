//! Copies apply one and the same sequence, each operation once: where two stand at the same version, they are the same.

use super::{Property, Violation};
use crate::region::Agreed;
use mainstay_region::state::{Applied, State};
use mainstay_types::operation::{OperationId, Version};
use std::collections::BTreeMap;

pub(crate) const SOURCE: &str =
    "state machine replication: Schneider 1990; virtual synchrony: Birman and Joseph 1987";

/// Fails if another copy applied something else there, or the operation was applied elsewhere too.
pub(crate) fn check_applied(
    agreed: &mut BTreeMap<(u16, Version), Agreed>,
    versions: &mut BTreeMap<OperationId, Version>,
    copy: u8,
    shard: u16,
    applied: &Applied,
) -> Result<(), Violation> {
    let first = agreed.entry((shard, applied.version)).or_insert_with(|| applied.operation.clone());
    if *first != applied.operation {
        let (version, operation) = (applied.version, &applied.operation);
        let what =
            format!("shard {shard}, version {version}: n{copy} applied {operation:?}, and another {first:?}");
        return Err(Violation::new(Property::RegionCopiesAgree, what));
    }
    if let &Some((id, _)) = &applied.operation {
        let once = *versions.entry(id).or_insert(applied.version);
        if once != applied.version {
            let what = format!("shard {shard}: {id:?} took effect as {once} and as {}", applied.version);
            return Err(Violation::new(Property::RegionCopiesAgree, what));
        }
    }
    Ok(())
}

/// Fails if another copy had another map at this version.
pub(crate) fn check_digest(
    digests: &mut BTreeMap<(u16, Version), u64>,
    copy: u8,
    shard: u16,
    state: &State,
) -> Result<(), Violation> {
    let first = *digests.entry((shard, state.at)).or_insert(state.digest);
    if first == state.digest {
        return Ok(());
    }
    let what = format!("shard {shard}, version {}: the map of n{copy} is not that of another copy", state.at);
    Err(Violation::new(Property::RegionCopiesAgree, what))
}

/// Fails if copies differ in the end.
pub(crate) fn check_end(shard: u16, digests: &[u64]) -> Result<(), Violation> {
    if digests.windows(2).all(|two| two[0] == two[1]) {
        return Ok(());
    }
    Err(Violation::new(Property::RegionCopiesAgree, format!("shard {shard}: copies differ in the end")))
}

/// What a read showed is no state that there was.
pub(crate) fn differs(shard: u16, at: Version) -> Violation {
    let what = format!("shard {shard}: a read showed a map that no copy had at {at}");
    Violation::new(Property::RegionCopiesAgree, what)
}
