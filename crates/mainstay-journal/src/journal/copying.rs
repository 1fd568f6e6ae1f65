//! Copying stretches of the log out of the ring, byte for byte, for whoever keeps them elsewhere.

use super::Journal;
use crate::format::PageHeader;
use crate::memory::PageMemory;
use mainstay_types::id::Lsn;

/// The page of a byte that was asked for is not in the ring any more: it is in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page of LSN {lsn} is not in the ring any more")]
pub struct NotInRing {
    /// The first byte that is not there.
    pub lsn: Lsn,
}

impl<M: PageMemory> Journal<M> {
    /// Adds the bytes `from..to` of the log to `into`, page headers and padding included, as segments hold them. What has just been appended is
    /// there until the completion of a write is told to [`Journal::step`].
    ///
    /// # Errors
    /// [`NotInRing`]; the bytes before that place have been added.
    ///
    /// # Panics
    /// When `to` is beyond [`Journal::end`].
    pub fn copy(&self, from: Lsn, to: Lsn, into: &mut Vec<u8>) -> Result<(), NotInRing> {
        assert!(to <= self.end, "only what was appended is copied");
        let staged = Lsn(self.end.0 - self.staged_bytes as u64);
        let mut at = from;
        while at < to.min(staged) {
            let page = self.geometry.page_of(at);
            let bytes = self.memory.page(self.geometry.slot_of(page));
            if PageHeader::decode(self.store, bytes).is_none_or(|header| header.page != page) {
                return Err(NotInRing { lsn: at });
            }
            let start = self.geometry.page_start(page);
            let until = to.min(staged).min(start.plus(self.page_bytes as u64));
            into.extend_from_slice(&bytes[self.geometry.offset_in_page(at)..(until.0 - start.0) as usize]);
            at = until;
        }
        if at < to {
            let [at, to] = [at, to].map(|lsn| (lsn.0 - staged.0) as usize);
            into.extend_from_slice(&self.memory.staging()[at..to]);
        }
        Ok(())
    }
}
