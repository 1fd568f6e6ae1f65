//! The line of a blocking snapshot has no message on its way: what its coordinator called done is so, whoever crashed meanwhile.

use super::{Property, Violation};
use mainstay_types::snapshot::SnapshotId;

pub(crate) const SOURCE: &str =
    "global checkpoints of a quiescent system: Tamir and Séquin 1984; docs/snapshots.md";

/// `on_the_way`: by a run without failures over the histories of the line.
pub(crate) fn check(snapshot: SnapshotId, on_the_way: usize) -> Result<(), Violation> {
    if on_the_way == 0 {
        return Ok(());
    }
    let what = format!("{on_the_way} messages are on their way in the line of blocking snapshot {snapshot}");
    Err(Violation::new(Property::ChannelsEmpty, what))
}
