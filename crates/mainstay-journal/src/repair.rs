//! Mending what opening refuses: a plan first, then only what the user agreed to.

use crate::open::OpenError;
use crate::storage::{Storage, StorageError};
use mainstay_types::id::Lsn;
use std::ops::Range;

/// One thing that can be done, and its price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// End the journal at the damage and give up everything after it. The files keep their bytes until they are
    /// written over.
    Cut {
        /// Where the journal will end. Every record below is kept.
        at: Lsn,
        /// What is given up although it was durable.
        lost: Range<Lsn>,
    },
    /// Rename a file that is not this journal's, or is of a newer format, to `quarantine-` and its name. If records of
    /// this journal were in it, the next plan shows what that costs.
    Quarantine {
        /// The file.
        file: String,
    },
}

/// What would be done. An empty plan means that opening will not refuse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairPlan {
    /// In this order. After a quarantine, plan again: more may show.
    pub remedies: Vec<Remedy>,
}

/// What the user was shown and agreed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement(pub RepairPlan);

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// The remedies applied, durably.
    pub applied: Vec<Remedy>,
}

/// Nothing was changed, except where [`RepairError::Storage`] arose while a remedy was applied: then each remedy is
/// applied or not, and the plan can be made again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RepairError {
    /// An operation on a file failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// No remedy is known.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The directory is not as it was when the user agreed.
    #[error("the journal has changed since the plan was made: make the plan again")]
    Changed {
        /// What would be done now.
        now: RepairPlan,
    },
}

/// Finds out what opening would refuse and what can be done about it. Changes nothing.
///
/// # Errors
/// Where no remedy is known: a missing or damaged superblock, a failed operation.
pub fn plan_repair(storage: &mut dyn Storage) -> Result<RepairPlan, OpenError> {
    let _ = storage;
    todo!()
}

/// Does what was agreed to, and nothing if that is no longer what is needed.
///
/// # Errors
/// [`RepairError`].
pub fn repair(storage: &mut dyn Storage, agreement: &Agreement) -> Result<RepairReport, RepairError> {
    let _ = (storage, agreement);
    todo!()
}
