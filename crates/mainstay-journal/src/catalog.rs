//! Which file holds which segment, and which files are free for reuse.

use crate::geometry::Geometry;
use crate::storage::{Storage, StorageError};
use mainstay_types::id::{Generation, Lsn};
use std::collections::BTreeMap;

/// The segment files of a journal. Owned by whoever performs [`crate::effect::DiskEffect::Prepare`] and
/// [`crate::effect::DiskEffect::Trim`]; a driver publishes the names that [`Catalog::file_of`] gives to its writers
/// after each.
#[derive(Clone, Debug)]
pub struct Catalog {
    geometry: Geometry,
    segments: BTreeMap<u64, u64>,
    free: Vec<u64>,
    lives: Vec<(Lsn, Generation)>,
}

impl Catalog {
    /// The sizes of this journal.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The name of the file that holds segment number `segment`, if it is prepared.
    #[must_use]
    pub fn file_of(&self, segment: u64) -> Option<String> {
        let _ = (&self.segments, segment, &self.free, &self.lives);
        todo!()
    }

    /// The numbers of all segments that have a file, in order.
    pub fn segments(&self) -> impl Iterator<Item = u64> + '_ {
        self.segments.keys().copied()
    }

    /// Makes segment number `segment` ready to be written: takes a free file, or creates one written in full, and puts
    /// its header there, synced. Nothing happens if it is ready already.
    ///
    /// # Errors
    /// The failed operation; the segment is not ready and no record is affected. The call may be repeated.
    pub fn prepare(&mut self, storage: &mut dyn Storage, segment: u64) -> Result<(), StorageError> {
        let _ = (storage, segment);
        todo!()
    }

    /// Remembers durably (both copies of the superblock) that nothing below `first` is needed, then recycles the
    /// segment files that lie wholly below it, and removes those beyond the limit of free files.
    ///
    /// # Errors
    /// The failed operation; nothing at or above `first` is affected, and the call may be repeated.
    pub fn trim(&mut self, storage: &mut dyn Storage, first: Lsn) -> Result<(), StorageError> {
        let _ = (storage, first);
        todo!()
    }
}
