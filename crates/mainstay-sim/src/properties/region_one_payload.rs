//! At most one content for each version, at whatever copy.

use super::{Property, Violation};
use mainstay_region::log::Entry;
use mainstay_types::operation::Version;
use std::collections::BTreeMap;

pub(crate) const SOURCE: &str =
    "one stamper for each shard and view: docs/region.md; agreement of Paxos, Lamport 1998";

/// Fails if another copy accepted something else as this version. The flag for possible duplicates may differ: a client's own sending does not have it.
pub(crate) fn check(
    contents: &mut BTreeMap<(u16, Version), Entry>,
    copy: u8,
    shard: u16,
    version: Version,
    entry: Entry,
) -> Result<(), Violation> {
    let plain = match entry {
        Entry::Operation { id, operation, .. } => {
            Entry::Operation { id, operation, possible_duplicate: false }
        }
        own @ (Entry::Void | Entry::Expire { .. }) => own,
    };
    let first = contents.entry((shard, version)).or_insert_with(|| plain.clone());
    if *first == plain {
        return Ok(());
    }
    let what = format!("shard {shard}, version {version}: n{copy} accepted {plain:?}, and another {first:?}");
    Err(Violation::new(Property::RegionOnePayload, what))
}
