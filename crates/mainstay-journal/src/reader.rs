//! Reading records back, in order, from segments that are durable.

use crate::catalog::Catalog;
use crate::open::Damage;
use crate::record::Record;
use crate::storage::{Storage, StorageError};
use mainstay_types::id::Lsn;

/// Reading stopped; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// An operation on a file failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What was durable does not parse.
    #[error("{:?} damaged in `{}` at byte {} (LSN {})", .0.kind, .0.file, .0.offset, .0.lsn)]
    Damaged(Damage),
}

/// Yields the records of a stretch of the log, checksums verified, the journal's own left out.
pub struct Reader<'a> {
    storage: &'a mut dyn Storage,
    catalog: &'a Catalog,
}

impl<'a> Reader<'a> {
    /// Reads from `from`, which must be where a record starts or the journal's first byte, up to `to`, which must be durable.
    #[must_use]
    pub fn new(storage: &'a mut dyn Storage, catalog: &'a Catalog, from: Lsn, to: Lsn) -> Self {
        let _ = (from, to);
        Self { storage, catalog }
    }

    /// The same, and the journal's own records are yielded too.
    #[must_use]
    pub fn all(self) -> Self {
        self
    }

    /// The next record, or nothing at the end.
    ///
    /// # Errors
    /// [`ReadError`]; later calls give the same.
    #[expect(clippy::should_implement_trait, reason = "the record borrows the reader's buffer, which no iterator can")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        let _ = (&mut self.storage, &self.catalog);
        todo!()
    }
}
