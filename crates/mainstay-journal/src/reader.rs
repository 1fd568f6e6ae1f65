//! Reading records back, in order, from segments that are durable.

use crate::accept::Acceptor;
use crate::catalog::Catalog;
use crate::format::{PAGE_HEADER_BYTES, RECORD_HEADER_BYTES, RecordHeader};
use crate::open::{Damage, DamageKind};
use crate::record::Record;
use crate::storage::{Failure, Storage, StorageError};
use mainstay_types::id::Lsn;

/// How much is read at once, at least, where the segment has as much left: enough that the system calls do not count.
const WINDOW_BYTES: u64 = 1 << 20;

/// How much is checked ahead of the record that is yielded, where the window has as much: little enough to be in a core's
/// nearest cache still when it is yielded.
const RUN_BYTES: usize = 16 << 10;

/// Reading stopped; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// An operation on a file failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What was durable does not parse.
    #[error("{0}")]
    Damaged(Damage),
}

/// Yields the records of a stretch of the log, checksums verified, the journal's own left out.
pub struct Reader<'a> {
    storage: &'a mut dyn Storage,
    catalog: &'a Catalog,
    acceptor: Acceptor,
    at: Lsn,
    /// The records from `at` to here are checked, and in the window.
    checked_to: Lsn,
    to: Lsn,
    own_kinds: bool,
    window: Vec<u8>,
    window_start: Lsn,
}

impl<'a> Reader<'a> {
    /// Reads from `from`, which must be where a record starts or ends, or the journal's first byte, up to `to`, which
    /// must be durable.
    #[must_use]
    pub fn new(storage: &'a mut dyn Storage, catalog: &'a Catalog, from: Lsn, to: Lsn) -> Self {
        let acceptor = Acceptor::new(&catalog.superblock, catalog.rules, catalog.generation_at(from));
        let window = Vec::new();
        Self {
            storage,
            catalog,
            acceptor,
            at: from,
            checked_to: from,
            to,
            own_kinds: false,
            window,
            window_start: from,
        }
    }

    /// The same, and the journal's own records are yielded too.
    #[must_use]
    pub fn all(mut self) -> Self {
        self.own_kinds = true;
        self
    }

    /// Where the next record is looked for.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.at
    }

    /// The next record, or nothing at the end.
    ///
    /// # Errors
    /// [`ReadError`]; later calls give the same.
    #[expect(
        clippy::should_implement_trait,
        reason = "the record borrows the reader's buffer, which no iterator can"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        loop {
            if self.at >= self.checked_to {
                self.check()?;
            }
            if self.at >= self.to {
                return Ok(None);
            }
            let lsn = self.at;
            let there = (lsn.0 - self.window_start.0) as usize;
            let header = RecordHeader::get(&self.window[there..]).expect("a checked record has a header");
            self.at = lsn.plus(header.bytes() as u64);
            if self.own_kinds || !header.kind.is_own() {
                let payload = there + RECORD_HEADER_BYTES;
                let bytes = if header.kind.is_pad() { 0 } else { header.payload_bytes as usize };
                return Ok(Some(Record {
                    lsn,
                    end: self.at,
                    kind: header.kind,
                    instance: header.instance,
                    generation: self.acceptor.generation(),
                    payload: &self.window[payload..payload + bytes],
                }));
            }
        }
    }

    /// Goes to where the next record starts, or to the end, and checks one record there at least.
    fn check(&mut self) -> Result<(), ReadError> {
        let geometry = self.catalog.geometry();
        let page_bytes = geometry.page_bytes as usize;
        while self.at < self.to {
            let page = geometry.page_of(self.at);
            let offset = geometry.offset_in_page(self.at);
            if offset == 0 {
                let window = self.window(self.at, PAGE_HEADER_BYTES)?;
                let header = &self.window[window..window + PAGE_HEADER_BYTES];
                if !self.acceptor.page(header, page, self.at) {
                    return Err(self.damaged(DamageKind::Record));
                }
                self.at = self.at.plus(PAGE_HEADER_BYTES as u64);
                continue;
            }
            if offset + RECORD_HEADER_BYTES > page_bytes {
                self.at = geometry.page_start(page + 1);
                continue;
            }
            let left = page_bytes - offset;
            let window = self.window(self.at, RECORD_HEADER_BYTES)?;
            let there = &self.window[window..];
            let mut checked = self.acceptor.run(&there[..there.len().min(left).min(RUN_BYTES)], self.at);
            if checked == 0 {
                checked = self.check_one(left)?;
            }
            self.checked_to = self.at.plus(checked as u64);
            break;
        }
        Ok(())
    }

    /// Checks the record here, of whatever length and life, and says how long it is; `left` is what remains of its page.
    fn check_one(&mut self, left: usize) -> Result<usize, ReadError> {
        let mut window = self.window(self.at, RECORD_HEADER_BYTES)?;
        let claimed = RecordHeader::get(&self.window[window..]).map_or(0, |header| header.bytes());
        if claimed <= left {
            window = self.window(self.at, claimed)?;
        }
        let there = &self.window[window..];
        match self.acceptor.record(&there[..there.len().min(left)], self.at) {
            Some(accepted) => Ok(accepted.header.bytes()),
            None => Err(self.damaged(DamageKind::Record)),
        }
    }

    /// Makes `bytes` of the log from `lsn` on readable and says where they start in the window.
    #[inline]
    fn window(&mut self, lsn: Lsn, bytes: usize) -> Result<usize, ReadError> {
        if let Some(start) = lsn.0.checked_sub(self.window_start.0)
            && let Ok(start) = usize::try_from(start)
            && start + bytes <= self.window.len()
        {
            return Ok(start);
        }
        self.fill(lsn, bytes)?;
        Ok(0)
    }

    #[cold]
    fn fill(&mut self, lsn: Lsn, bytes: usize) -> Result<(), ReadError> {
        let geometry = self.catalog.geometry();
        let place = geometry.place_of(lsn);
        let Some(file) = self.catalog.file_of(place.segment) else {
            return Err(self.damaged(DamageKind::SegmentMissing { segment: place.segment }));
        };
        let segment_left = geometry.segment_file_bytes() - place.offset;
        let wanted = segment_left.min(WINDOW_BYTES.max(bytes as u64));
        self.window.resize(usize::try_from(wanted).expect("a window is in memory"), 0);
        self.window_start = lsn;
        match self.storage.read(&file, place.offset, &mut self.window) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.window.clear();
                if error.failure == Failure::Short {
                    return Err(self.damaged(DamageKind::FileTruncated));
                }
                Err(error.into())
            }
        }
    }

    fn damaged(&self, kind: DamageKind) -> ReadError {
        let place = self.catalog.geometry().place_of(self.at);
        let file = self.catalog.file_of(place.segment).unwrap_or_default();
        ReadError::Damaged(Damage { kind, file, offset: place.offset, lsn: self.at, watermark: self.to })
    }
}
