//! The records that a life begins with: which life it is, and what its owner puts right behind that. On a full disk they wait for the
//! first page, in front of everything else.

use super::{AppendError, Journal};
use crate::format::{Life, record_bytes};
use crate::memory::PageMemory;
use crate::record::Kind;
use mainstay_types::id::InstanceId;

/// A record that waits for the first page of a life.
#[derive(Clone, Debug)]
pub(super) struct FirstRecord {
    kind: Kind,
    instance: InstanceId,
    payload: Vec<u8>,
}

impl<M: PageMemory> Journal<M> {
    /// Has a record stand in front of everything else that is appended from now on, though there is no room for it:
    /// [`Journal::append`] has just said [`AppendError::Full`]. So a life can begin, and be read, on a full disk; the
    /// record is there as soon as anything else is.
    ///
    /// # Errors
    /// [`AppendError::TooLarge`] if it does not fit a page beside the record that begins a life; nothing was changed.
    ///
    /// # Panics
    /// With a kind that is the journal's own, while a page is open, or if there is such a record already.
    pub fn append_first_when_there_is_room(
        &mut self,
        kind: Kind,
        instance: InstanceId,
        payload: &[u8],
    ) -> Result<(), AppendError> {
        assert!(!kind.is_own(), "kind {} is the journal's own", kind.0);
        assert!(!self.open, "an open page that has no room is closed by the append that finds it so");
        assert!(self.first_due.is_none(), "one record stands first");
        let payload_bytes_max = self.record_bytes_max() - record_bytes(Life::BYTES);
        if payload.len() > payload_bytes_max {
            return Err(AppendError::TooLarge { payload_bytes: payload.len(), payload_bytes_max });
        }
        self.first_due = Some(FirstRecord { kind, instance, payload: payload.to_vec() });
        Ok(())
    }

    /// Begins this life before its other records.
    pub(super) fn put_life(&mut self) {
        if let Some(life) = self.life_due.take() {
            self.put_record(Kind::LIFE, InstanceId(0), &[&life.encode()], Life::BYTES);
        }
        if let Some(FirstRecord { kind, instance, payload }) = self.first_due.take() {
            self.stats.appends += 1;
            self.stats.append_bytes += payload.len() as u64;
            self.put_record(kind, instance, &[&payload], payload.len());
        }
    }
}
