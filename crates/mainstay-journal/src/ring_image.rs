//! The ring as a life has left it: reading its file, and putting what was staged into its page.

use crate::format::{
    FileHeader, FileKind, HeaderError, PAGE_HEADER_BYTES, PageHeader, RECORD_ALIGNMENT_BYTES,
    RECORD_HEADER_BYTES, RecordHeader, Seed, Superblock, parse_record,
};
use crate::geometry::Geometry;
use crate::memory::{CONTROL_BYTES, STAGING_BYTES};
use crate::open::{Attempt, OpenError};
use crate::record::Kind;
use crate::ring::{self, Cells};
use crate::storage::{FileEntry, Storage};
use crate::survey::{check_store, claims, newer_version, read_up_to};
use mainstay_types::id::{InstanceId, Lsn, StoreId};

/// The ring as the last life left it.
#[derive(Clone, Debug)]
pub(crate) struct RingImage {
    pub(crate) cells: Cells,
    geometry: Geometry,
    store: StoreId,
    pages: Vec<u8>,
}

impl RingImage {
    /// The bytes of page number `page`, if its slot holds that page.
    pub(crate) fn page(&self, page: u64) -> Option<(&[u8], PageHeader)> {
        let page_bytes = self.geometry.page_bytes as usize;
        let bytes = &self.pages[self.geometry.slot_of(page) * page_bytes..][..page_bytes];
        let header = PageHeader::decode(self.store, &bytes[..PAGE_HEADER_BYTES])?;
        (header.page == page).then_some((bytes, header))
    }

    /// Puts the records of the staging buffer, which begins at LSN `first`, where they belong and the page has none: a power loss leaves the file with
    /// parts of different moments, and the page may be the newer one.
    fn put_staged(&mut self, staging: &[u8], first: Lsn, seed: Seed) {
        let (page, begin) = (self.geometry.page_of(first), self.geometry.offset_in_page(first));
        if self.page(page).is_none() || begin < PAGE_HEADER_BYTES {
            return;
        }
        let page_bytes = self.geometry.page_bytes as usize;
        let page = &mut self.pages[self.geometry.slot_of(page) * page_bytes..][begin..page_bytes];
        let staging = &staging[..staging.len().min(page.len())];
        let record_at = |bytes: &[u8], lsn| parse_record(bytes, seed).filter(|header| header.lsn == lsn);
        let mut at = 0;
        while at + RECORD_HEADER_BYTES <= staging.len() {
            let (lsn, staged, place) = (first.plus(at as u64), &staging[at..], &mut page[at..]);
            if !claims(staged, lsn) {
                at += RECORD_ALIGNMENT_BYTES;
                continue;
            }
            // Of a record that was being copied when the process died, or is damaged, the header remains: a trace.
            let whole = record_at(staged, lsn).map(|header| header.bytes().min(staged.len()));
            let bytes = whole.unwrap_or(RECORD_HEADER_BYTES);
            if record_at(place, lsn).is_none() {
                place[..bytes].copy_from_slice(&staged[..bytes]);
            }
            at += whole.unwrap_or(RECORD_ALIGNMENT_BYTES);
        }
        // At least one had been begun.
        if record_at(page, first).is_none() && !claims(page, first) && page.len() >= RECORD_HEADER_BYTES {
            RecordHeader { payload_bytes: 0, lsn: first, instance: InstanceId(0), kind: Kind(0) }.put(page);
        }
    }

    /// The numbers of the pages it holds, in order.
    pub(crate) fn page_numbers(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self
            .pages
            .chunks_exact(self.geometry.page_bytes as usize)
            .filter_map(|bytes| PageHeader::decode(self.store, bytes))
            .map(|header| header.page)
            .filter(|&page| self.page(page).is_some())
            .collect();
        numbers.sort_unstable();
        numbers
    }
}

/// What became of the ring.
#[derive(Clone, Debug)]
pub(crate) enum Ring {
    /// It is the last life's.
    Present(RingImage),
    /// It is of an earlier life: everything in it was settled when the last life began.
    Stale(Option<Attempt>),
    /// It is not there, or unreadable.
    Absent,
}

/// Reads the ring's file.
///
/// # Errors
/// [`OpenError`]: a newer version, another store, or an operation on the file that failed.
pub(crate) fn read_ring(
    storage: &mut dyn Storage,
    superblock: &Superblock,
    file: &FileEntry,
) -> Result<Ring, OpenError> {
    let mut control = [0; CONTROL_BYTES];
    read_up_to(storage, &file.name, file.bytes, 0, &mut control)?;
    let header = match FileHeader::decode(FileKind::Ring, &control) {
        Err(HeaderError::NewerVersion { found, supported }) => {
            return Err(newer_version(&file.name, found, supported));
        }
        Err(HeaderError::Damaged) => return Ok(Ring::Absent),
        Ok(header) => header,
    };
    check_store(&file.name, superblock.store, header.store)?;
    let geometry = superblock.geometry;
    if header.geometry != geometry {
        return Ok(Ring::Absent);
    }
    let cells = ring::read_cells(&control, header.generation);
    if header.generation != superblock.generation {
        return Ok(Ring::Stale(cells.attempt));
    }
    let pages_bytes = geometry.page_bytes as usize * usize::from(geometry.pages);
    // Before the pages, so that whoever reads beside the owner finds there what has left the staging buffer meanwhile. Zeroes where a ring from before
    // there was one ends.
    let mut staging = [0; STAGING_BYTES];
    read_up_to(storage, &file.name, file.bytes, (CONTROL_BYTES + pages_bytes) as u64, &mut staging)?;
    let mut pages = vec![0; pages_bytes];
    read_up_to(storage, &file.name, file.bytes, CONTROL_BYTES as u64, &mut pages)?;
    let mut image = RingImage { cells, geometry, store: superblock.store, pages };
    if let Some(first) = ring::read_staged(&control, &staging) {
        image.put_staged(&staging, first, Seed::new(header.store, header.generation));
    }
    Ok(Ring::Present(image))
}
