//! Mending what opening refuses: a plan first, then only what the user agreed to.

use crate::catalog::write_superblock_copies;
use crate::format::{Forgiven, SUPERBLOCK_FILE, Superblock};
use crate::open::OpenError;
use crate::storage::{Storage, StorageError};
use crate::survey::survey_present;
use crate::walk::walk;
use mainstay_types::id::Lsn;
use mainstay_types::rules::Rules;
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
    let survey = match survey_present(storage) {
        Ok(survey) => survey,
        Err(OpenError::NewerVersion { file, .. } | OpenError::ForeignStore { file, .. })
            if file != SUPERBLOCK_FILE =>
        {
            return Ok(RepairPlan { remedies: vec![Remedy::Quarantine { file }] });
        }
        Err(error) => return Err(error),
    };
    let walked = walk(storage, &survey, Rules::KEPT, &mut |_| {})?;
    let cut = walked.damage.map(|damage| Remedy::Cut { at: damage.lsn, lost: damage.lsn..damage.watermark });
    Ok(RepairPlan { remedies: cut.into_iter().collect() })
}

/// Does what was agreed to, and nothing if that is no longer what is needed.
///
/// A cut is one change of the superblock: watermarks of all lives so far are believed up to the cut only. The next
/// opening then finds an unsynced tail there and goes on.
///
/// # Errors
/// [`RepairError`].
pub fn repair(storage: &mut dyn Storage, agreement: &Agreement) -> Result<RepairReport, RepairError> {
    let now = plan_repair(storage)?;
    if now != agreement.0 {
        return Err(RepairError::Changed { now });
    }
    for remedy in &now.remedies {
        match remedy {
            Remedy::Quarantine { file } => {
                storage.rename(file, &format!("quarantine-{file}"))?;
                storage.sync_directory()?;
            }
            Remedy::Cut { at, .. } => {
                let superblock = survey_present(storage)?.superblock;
                let cut = Superblock {
                    serial: superblock.serial + 1,
                    watermark: superblock.watermark.min(*at),
                    last_start: superblock.last_start.min(*at),
                    forgiven: Forgiven { generation: superblock.generation, lsn: *at },
                    ..superblock
                };
                write_superblock_copies(storage, SUPERBLOCK_FILE, &cut)?;
            }
        }
    }
    Ok(RepairReport { applied: now.remedies })
}
