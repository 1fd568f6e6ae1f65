//! Everything acknowledged is found by every later recovery.

use super::{Property, Violation};
use mainstay_types::id::Lsn;

pub(crate) const SOURCE: &str = "durability: Alvisi and Marzullo 1998, stable(e) after release; issue of the foundation, \"nothing acknowledged is lost\"";

/// How far the journal must reach after every recovery.
#[derive(Debug, Default)]
pub(crate) struct AcknowledgedSurvives {
    promised: Lsn,
    by: String,
}

impl AcknowledgedSurvives {
    /// Something was released that depends on all records that end at or below `end`.
    pub(crate) fn promise(&mut self, end: Lsn, by: impl FnOnce() -> String) {
        if end > self.promised {
            self.promised = end;
            self.by = by();
        }
    }

    /// The journal was found to reach `end`.
    pub(crate) fn recovered(&self, end: Lsn) -> Result<(), Violation> {
        if end >= self.promised {
            return Ok(());
        }
        let what =
            format!("the journal ends at {end} after recovery, but {} depends on {}", self.by, self.promised);
        Err(Violation::new(Property::AcknowledgedSurvives, what))
    }

    /// A failure beyond what was promised happened: only what `end` says is left to be kept.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}
