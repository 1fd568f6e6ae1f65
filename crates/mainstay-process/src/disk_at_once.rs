//! Performs what a journal asks of its disk on the spot, while recovery is alone with the directory.
//!
//! A verdict has to be durable before anything is tried that depends on it, and a ring of one page may have to be written
//! before the first records of a life fit: neither can wait for a driver that does not run yet.

use mainstay_journal::catalog::Catalog;
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::journal::{AppendError, Appended, Journal};
use mainstay_journal::memory::PageMemory;
use mainstay_journal::record::Kind;
use mainstay_journal::storage::{Failure, Operation, Storage, StorageError};
use mainstay_types::id::{InstanceId, Lsn};

/// A directory during recovery. What is left in `disk` (preparing segments) is for the driver.
pub(crate) struct DiskAtOnce<'a> {
    pub(crate) storage: &'a mut dyn Storage,
    pub(crate) catalog: &'a Catalog,
    pub(crate) disk: &'a mut Vec<DiskEffect>,
}

/// The record is not appended, or not durable. Recovery ends; the next one finds the same or a little more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DiskAtOnceError {
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl DiskAtOnce<'_> {
    /// Appends a record, writing pages out if none is free.
    pub(crate) fn append<M: PageMemory>(
        &mut self,
        journal: &mut Journal<M>,
        kind: Kind,
        instance: InstanceId,
        payload: &[u8],
    ) -> Result<Appended, DiskAtOnceError> {
        match journal.append(kind, instance, &[payload], self.disk) {
            Err(AppendError::Stalled) => {
                self.write_out(journal)?;
                match journal.append(kind, instance, &[payload], self.disk) {
                    Err(AppendError::Stalled) => Err(full_at(journal, journal.end())),
                    appended => Ok(appended?),
                }
            }
            appended => Ok(appended?),
        }
    }

    /// Makes everything up to `end` durable.
    pub(crate) fn make_durable<M: PageMemory>(
        &mut self,
        journal: &mut Journal<M>,
        end: Lsn,
    ) -> Result<(), DiskAtOnceError> {
        journal.flush(self.disk);
        self.write_out(journal)?;
        if journal.durable() >= end {
            return Ok(());
        }
        Err(full_at(journal, end))
    }

    fn write_out<M: PageMemory>(&mut self, journal: &mut Journal<M>) -> Result<(), DiskAtOnceError> {
        while let Some(place) = self.disk.iter().position(is_write_or_sync) {
            let effect = self.disk.remove(place);
            let ticket = self.perform(journal, &effect)?;
            journal.step(DiskEvent::Done { ticket }, self.disk);
        }
        Ok(())
    }

    fn perform<M: PageMemory>(
        &mut self,
        journal: &Journal<M>,
        effect: &DiskEffect,
    ) -> Result<mainstay_journal::effect::Ticket, StorageError> {
        match *effect {
            DiskEffect::Write { ticket, slot, from, to, place, durable } => {
                let file = self.file_of(place.segment)?;
                let bytes = &journal.memory().page(slot)[from as usize..to as usize];
                self.storage.write(&file, place.offset, bytes)?;
                if durable {
                    self.storage.sync(&file)?;
                }
                Ok(ticket)
            }
            DiskEffect::Sync { ticket, first_segment, last_segment } => {
                for segment in first_segment..=last_segment {
                    let file = self.file_of(segment)?;
                    self.storage.sync(&file)?;
                }
                Ok(ticket)
            }
            DiskEffect::Prepare { .. } | DiskEffect::Trim { .. } => {
                unreachable!("only writes and syncs are taken out")
            }
        }
    }

    fn file_of(&self, segment: u64) -> Result<String, StorageError> {
        let missing =
            || StorageError { operation: Operation::Write, file: String::new(), failure: Failure::NotFound };
        self.catalog.file_of(segment).ok_or_else(missing)
    }
}

/// With all pages written, only a segment can be what is waited for, and opening prepares it unless the disk is full.
fn full_at<M: PageMemory>(journal: &Journal<M>, lsn: Lsn) -> DiskAtOnceError {
    let segment = journal.geometry().segment_of(lsn);
    AppendError::Full { segment, failure: Failure::NoSpace }.into()
}

fn is_write_or_sync(effect: &DiskEffect) -> bool {
    matches!(effect, DiskEffect::Write { .. } | DiskEffect::Sync { .. })
}
