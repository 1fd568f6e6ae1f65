//! Nothing is released that a failure of its level could still undo, checked against the bytes that the disk would keep now.

use super::{Property, Violation};
use crate::disk::Disk;
use crate::order::Order;
use crate::subject::Subject;
use mainstay_journal::catalog::Catalog;
use mainstay_types::id::Lsn;

pub(crate) const SOURCE: &str =
    "output commit: Strom and Yemini 1985, section 2; pessimistic row of Alvisi and Marzullo 1998";

/// Fails unless every record that ends at or below `end` would survive a power cut now.
pub(crate) fn check<S: Subject>(
    order: &mut Order<S>,
    disk: &Disk,
    catalog: &Catalog,
    end: Lsn,
    released: impl FnOnce() -> String,
) -> Result<(), Violation> {
    match order.first_not_durable(disk, catalog, end) {
        None => Ok(()),
        Some(lsn) => {
            let what = format!(
                "{} depends on {end}, but the record at {lsn} would not survive a power cut",
                released()
            );
            Err(Violation::new(Property::StableBeforeRelease, what))
        }
    }
}
