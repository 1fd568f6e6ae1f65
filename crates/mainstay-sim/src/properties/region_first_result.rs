//! A repetition gets the first version and outcome; what was asked for once is not said to be a repetition. (A late answer to the first attempt may come
//! as the answer to a repetition, without the flag.)

use super::{Property, Violation};
use mainstay_region::duplicates::Seen;
use mainstay_types::operation::OperationId;
use std::collections::BTreeMap;

pub(crate) const SOURCE: &str =
    "the client table: Liskov and Cowling 2012, section 4.1; GEODE-6108, GEODE-9913";

/// Fails if the client was told something else before, or the flag is wrong.
pub(crate) fn check(
    told: &BTreeMap<OperationId, (u16, Seen)>,
    id: OperationId,
    seen: &Seen,
    duplicate: bool,
    attempts: u64,
) -> Result<(), Violation> {
    let before = told.get(&id).map(|(_, before)| before);
    let what = if before.is_some_and(|before| before != seen) {
        format!("{id:?} was told as {before:?}, and now as {seen:?}")
    } else if duplicate && attempts < 2 {
        format!("{id:?} was asked for once, and is said to be a repetition")
    } else {
        return Ok(());
    };
    Err(Violation::new(Property::RegionFirstResult, what))
}

/// Fails if the client was told before it asked that the operation is done.
pub(crate) fn check_not_seen(
    told: &BTreeMap<OperationId, (u16, Seen)>,
    id: OperationId,
) -> Result<(), Violation> {
    match told.get(&id) {
        Some((_, seen)) => {
            let what = format!("{id:?} was told as {seen:?}, and then that it was never seen");
            Err(Violation::new(Property::RegionFirstResult, what))
        }
        None => Ok(()),
    }
}
