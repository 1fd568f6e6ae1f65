//! A request below its thread's floor is never delivered.

use super::{Property, Violation};
use mainstay_process::event::Identity;
use mainstay_types::id::{ClientId, Lsn, Sequence, ThreadId};
use std::collections::BTreeMap;

pub(crate) const SOURCE: &str = "client sequence floors: Ongaro 2014, section 6.3";

/// The floor of every thread ever seen, also of clients whose place was given away.
#[derive(Clone, Debug, Default)]
pub(crate) struct EvictedNotReapplied {
    floors: BTreeMap<(ClientId, ThreadId), Sequence>,
}

impl EvictedNotReapplied {
    /// Takes note of a delivery.
    pub(crate) fn deliver(&mut self, identity: &Identity, lsn: Lsn) -> Result<(), Violation> {
        let Identity::Client { client, thread, sequence } = identity else {
            return Ok(());
        };
        match self.floors.insert((*client, *thread), *sequence) {
            Some(floor) if floor > *sequence => {
                let what = format!("{identity:?} was delivered at {lsn} although its floor was {floor}");
                Err(Violation::new(Property::EvictedNotReapplied, what))
            }
            _ => Ok(()),
        }
    }
}
