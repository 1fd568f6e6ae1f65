//! A journal made again from bytes of its log that were kept elsewhere: the same identity, sizes and addresses, as a crash would have left it.
//!
//! ```text
//!   begin ── superblock.new ── put, put, … (segments) ── finish: sync, superblock ──> opened like any other after a crash
//! ```
//! The superblock gets its name last, so that a crash before leaves what counts as no journal.

use crate::catalog::{Catalog, remove_if_there, write_superblock_copies};
use crate::format::{
    Forgiven, PAGE_HEADER_BYTES, PageHeader, RING_FILE, SUPERBLOCK_FILE, SUPERBLOCK_FILE_BYTES,
    SUPERBLOCK_UNFINISHED_FILE, Superblock, segment_file_slot,
};
use crate::geometry::Geometry;
use crate::reader::ReadError;
use crate::storage::{Failure, Storage, StorageError};
use mainstay_types::id::{Generation, Lsn, StoreId};
use mainstay_types::rules::Rules;
use std::collections::BTreeMap;

/// The journal that is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its identity.
    pub store: StoreId,
    /// Its sizes.
    pub geometry: Geometry,
    /// The last life that anybody may have heard of: the next one has a higher number.
    pub generation: Generation,
    /// Where the bytes begin: where a page does.
    pub first: Lsn,
}

/// The journal was not made. The directory holds none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// An operation on a file failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// There is a journal already. Nothing was changed.
    #[error("there is a journal already: nothing was changed")]
    Occupied,
    /// The sizes cannot be, or the bytes begin in the middle of a page.
    #[error("{0:?} is no journal's")]
    Origin(Origin),
    /// The first bytes are no page of this journal.
    #[error("what was kept from LSN {first} on does not begin as a page of journal {store} does")]
    Foreign {
        /// Where it begins.
        first: Lsn,
        /// The journal.
        store: StoreId,
    },
}

/// A journal that is being made again.
pub struct Filling<'a> {
    storage: &'a mut dyn Storage,
    catalog: Catalog,
    at: Lsn,
    /// The beginning of the first page, until all of its header is there.
    head: Vec<u8>,
}

impl<'a> Filling<'a> {
    /// Begins in a directory without a journal. What an earlier attempt has left there is removed.
    ///
    /// # Errors
    /// [`FillError`].
    pub fn begin(storage: &'a mut dyn Storage, of: Origin) -> Result<Self, FillError> {
        if !of.geometry.is_valid() || of.geometry.offset_in_page(of.first) != 0 {
            return Err(FillError::Origin(of));
        }
        let files = storage.list()?;
        if files.iter().any(|file| file.name == SUPERBLOCK_FILE) {
            return Err(FillError::Occupied);
        }
        for file in files.iter().filter(|file| segment_file_slot(&file.name).is_some()) {
            storage.remove(&file.name)?;
        }
        remove_if_there(storage, RING_FILE)?;
        storage.sync_directory()?;
        remove_if_there(storage, SUPERBLOCK_UNFINISHED_FILE)?;
        storage.create(SUPERBLOCK_UNFINISHED_FILE, SUPERBLOCK_FILE_BYTES)?;
        storage.sync_directory()?;
        let superblock = Superblock {
            store: of.store,
            serial: 1,
            generation: of.generation,
            geometry: of.geometry,
            stripes: 1,
            first: of.first,
            first_generation: of.generation,
            watermark: of.first,
            last_start: of.first,
            forgiven: Forgiven { generation: Generation(0), lsn: Lsn::ZERO },
        };
        let catalog = Catalog {
            superblock,
            rules: Rules::KEPT,
            segments: BTreeMap::new(),
            free: Vec::new(),
            free_segments_max: 0,
            next_slot: 0,
            segment_serial: 0,
            lives: Vec::new(),
        };
        Ok(Self { storage, catalog, at: of.first, head: Vec::new() })
    }

    /// Adds the next bytes of the log.
    ///
    /// # Errors
    /// [`FillError`].
    pub fn put(&mut self, mut bytes: &[u8]) -> Result<(), FillError> {
        if self.head.len() < PAGE_HEADER_BYTES {
            let missing = PAGE_HEADER_BYTES - self.head.len();
            self.head.extend_from_slice(&bytes[..missing.min(bytes.len())]);
        }
        let geometry = self.catalog.geometry();
        while !bytes.is_empty() {
            let place = geometry.place_of(self.at);
            self.catalog.prepare(self.storage, place.segment)?;
            let file = self.catalog.file_of(place.segment).expect("it has just been prepared");
            let left = usize::try_from(geometry.segment_file_bytes() - place.offset);
            let (now, later) = bytes.split_at(bytes.len().min(left.unwrap_or(usize::MAX)));
            self.storage.write(&file, place.offset, now)?;
            self.at = self.at.plus(now.len() as u64);
            bytes = later;
        }
        Ok(())
    }

    /// Makes a journal of what was put, durably: nothing that was put may be missing when it is opened. Returns its end.
    ///
    /// # Errors
    /// [`FillError`].
    pub fn finish(mut self) -> Result<Lsn, FillError> {
        let superblock = self.catalog.superblock;
        let (store, first) = (superblock.store, superblock.first);
        let first_generation = if self.at == first {
            superblock.generation
        } else {
            // The life in force where the page begins, or the one that its first record begins: a reader takes either.
            let header = PageHeader::decode(store, &self.head)
                .filter(|header| header.page == superblock.geometry.page_of(first));
            header.ok_or(FillError::Foreign { first, store })?.generation
        };
        // An empty journal has a segment to begin in.
        self.catalog.prepare(self.storage, superblock.geometry.segment_of(self.at))?;
        for segment in self.catalog.segments() {
            let file = self.catalog.file_of(segment).expect("it is prepared");
            self.storage.sync(&file)?;
        }
        let generation = superblock.generation.max(first_generation);
        // A header without a record behind it does not count: the page is opened anew.
        let geometry = superblock.geometry;
        let end = match geometry.offset_in_page(self.at) {
            0..=PAGE_HEADER_BYTES => geometry.page_start(geometry.page_of(self.at)),
            _ => self.at,
        };
        let made = Superblock { first_generation, generation, watermark: end, last_start: end, ..superblock };
        write_superblock_copies(self.storage, SUPERBLOCK_UNFINISHED_FILE, &made)?;
        self.storage.rename(SUPERBLOCK_UNFINISHED_FILE, SUPERBLOCK_FILE)?;
        self.storage.sync_directory()?;
        Ok(end)
    }
}

/// Reads the bytes `from..to` of the log out of its segments, as they are, to keep them elsewhere; all must be durable. `each` gets them in order,
/// `bytes_max` at most at once.
///
/// # Errors
/// [`ReadError`] of what could not be read, or the error of `each`.
pub fn read_bytes<E: From<ReadError>>(
    storage: &mut dyn Storage,
    catalog: &Catalog,
    (from, to): (Lsn, Lsn),
    bytes_max: usize,
    mut each: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let geometry = catalog.geometry();
    let (mut at, mut bytes) = (from, Vec::new());
    while at < to {
        let place = geometry.place_of(at);
        let file = catalog.file_of(place.segment).ok_or_else(|| missing(place.segment))?;
        let left = (geometry.segment_file_bytes() - place.offset).min(to.0 - at.0);
        bytes.resize(usize::try_from(left).unwrap_or(bytes_max).min(bytes_max), 0);
        storage.read(&file, place.offset, &mut bytes).map_err(ReadError::from)?;
        each(&bytes)?;
        at = at.plus(bytes.len() as u64);
    }
    Ok(())
}

fn missing(segment: u64) -> ReadError {
    let file = format!("segment {segment}");
    StorageError { operation: crate::storage::Operation::Read, file, failure: Failure::NotFound }.into()
}
