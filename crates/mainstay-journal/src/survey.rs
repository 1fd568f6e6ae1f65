//! First look at a directory: its superblock, which file claims which segment. Reads only.

use crate::format::{
    FILE_HEADER_BYTES, FileHeader, FileKind, HeaderError, RING_FILE, SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_FILE,
    SUPERBLOCK_UNFINISHED_FILE, Superblock, segment_file_name, segment_file_slot, u64_at,
};
use crate::geometry::Geometry;
use crate::open::{Attempt, OpenError};
use crate::ring_image::{Ring, RingImage, read_ring};
use crate::storage::{FileEntry, Storage, StorageError};
use crate::striping::{Striping, check_identities, stripe_of_slot};
use mainstay_types::id::{Generation, Lsn, StoreId};
use std::collections::BTreeMap;

/// No journal reaches this address; one that is read is damage.
pub(crate) const LSN_LIMIT: u64 = 1 << 62;

/// One segment file with an intact header.
#[derive(Clone, Debug)]
pub(crate) struct SegmentEntry {
    pub(crate) slot: u64,
    pub(crate) bytes: u64,
    pub(crate) serial: u64,
    pub(crate) generation: Generation,
}

/// One segment file that holds nothing by its header.
#[derive(Clone, Debug)]
pub(crate) struct UnreadableEntry {
    pub(crate) slot: u64,
    pub(crate) bytes: u64,
}

/// What a directory holds.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    pub(crate) superblock: Superblock,
    /// One copy was damaged.
    pub(crate) superblock_damaged: bool,
    /// The copies differ: what is read may not be on the disk.
    pub(crate) superblock_unsettled: bool,
    pub(crate) segments: BTreeMap<u64, SegmentEntry>,
    /// Files whose header is unreadable.
    pub(crate) unreadable: Vec<UnreadableEntry>,
    /// Files that lost their segment to a later preparation of it.
    pub(crate) superseded: Vec<UnreadableEntry>,
    /// Directories whose identity file is unreadable.
    pub(crate) stripes_unreadable: Vec<u16>,
    pub(crate) ring: Ring,
}

impl Survey {
    pub(crate) fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// The ring of the last life.
    pub(crate) fn ring_image(&self) -> Option<&RingImage> {
        match &self.ring {
            Ring::Present(image) => Some(image),
            Ring::Stale(_) | Ring::Absent => None,
        }
    }

    pub(crate) fn attempt(&self) -> Option<Attempt> {
        match &self.ring {
            Ring::Present(image) => image.cells.attempt,
            Ring::Stale(attempt) => *attempt,
            Ring::Absent => None,
        }
    }

    /// The highest watermark that is known before anything is walked over.
    pub(crate) fn watermark(&self) -> Lsn {
        let ring = self.ring_image().map_or(Lsn::ZERO, |image| {
            self.superblock.believe(image.cells.watermark, self.superblock.generation)
        });
        self.superblock.watermark.max(ring)
    }

    /// One past the highest slot in use.
    pub(crate) fn next_slot(&self) -> u64 {
        let readable = self.segments.values().map(|entry| entry.slot);
        let others = self.unreadable.iter().chain(&self.superseded).map(|entry| entry.slot);
        readable.chain(others).max().map_or(0, |slot| slot.saturating_add(1))
    }

    /// Fills `into` with the bytes of page `page` as its segment has them, zeroes where the file ends, and says whether
    /// there is such a file.
    pub(crate) fn read_page(
        &self,
        storage: &mut dyn Storage,
        page: u64,
        into: &mut [u8],
    ) -> Result<bool, StorageError> {
        let geometry = self.geometry();
        let place = geometry.place_of(geometry.page_start(page));
        let Some(entry) = self.segments.get(&place.segment) else {
            into.fill(0);
            return Ok(false);
        };
        read_up_to(storage, &segment_file_name(entry.slot), entry.bytes, place.offset, into)?;
        Ok(true)
    }
}

/// Reads what a file of `bytes` has from `offset`, and zeroes beyond its end.
pub(crate) fn read_up_to(
    storage: &mut dyn Storage,
    file: &str,
    bytes: u64,
    offset: u64,
    into: &mut [u8],
) -> Result<(), StorageError> {
    let there = usize::try_from(bytes.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
    into[there..].fill(0);
    if there == 0 {
        return Ok(());
    }
    storage.read(file, offset, &mut into[..there])
}

/// Reads the two copies and takes the later intact one; also gives all intact ones.
pub(crate) fn read_superblock(
    storage: &mut dyn Storage,
    file: &FileEntry,
) -> Result<(Superblock, Vec<Superblock>), OpenError> {
    let mut copies = Vec::new();
    let mut newer = None;
    for offset in [0, SUPERBLOCK_COPY_OFFSET] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        read_up_to(storage, &file.name, file.bytes, offset, &mut bytes)?;
        match Superblock::decode(&bytes) {
            Ok(copy) if copy.first.0.max(copy.watermark.0) < LSN_LIMIT => copies.push(copy),
            Ok(_) | Err(HeaderError::Damaged) => {}
            Err(HeaderError::NewerVersion { found, supported }) => newer = Some((found, supported)),
        }
    }
    if let Some((found, supported)) = newer {
        return Err(newer_version(&file.name, found, supported));
    }
    let latest = copies.iter().copied().max_by_key(|copy| copy.serial).ok_or(OpenError::SuperblockDamaged)?;
    Ok((latest, copies))
}

pub(crate) fn newer_version(file: &str, found: u32, supported: u32) -> OpenError {
    OpenError::NewerVersion { file: file.to_owned(), found, supported }
}

pub(crate) fn check_store(file: &str, expected: StoreId, found: StoreId) -> Result<(), OpenError> {
    if expected == found {
        return Ok(());
    }
    Err(OpenError::ForeignStore { file: file.to_owned(), expected, found })
}

/// Looks at every file. Nothing if there is no superblock and no segment either.
///
/// # Errors
/// [`OpenError`], all but `NoJournal` and `Damaged`.
pub(crate) fn survey(storage: &mut dyn Storage) -> Result<Option<Survey>, OpenError> {
    let mut files = storage.list()?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let Some(root) = files.iter().find(|file| file.name == SUPERBLOCK_FILE) else {
        return Ok(None);
    };
    let (superblock, copies) = read_superblock(storage, root)?;
    let stripes_unreadable = check_identities(storage, &superblock, &files)?;
    let mut survey = Survey {
        superblock,
        superblock_damaged: copies.len() < 2,
        superblock_unsettled: copies != [superblock, superblock],
        segments: BTreeMap::new(),
        unreadable: Vec::new(),
        superseded: Vec::new(),
        stripes_unreadable,
        ring: Ring::Absent,
    };
    for file in &files {
        if file.name == RING_FILE {
            survey.ring = read_ring(storage, &superblock, file)?;
        } else if let Some(slot) = segment_file_slot(&file.name) {
            read_segment_header(storage, &mut survey, file, slot)?;
        }
    }
    Ok(Some(survey))
}

/// The same, where a journal must be.
///
/// # Errors
/// [`OpenError`], all but `Damaged`.
pub(crate) fn survey_present(storage: &mut dyn Storage) -> Result<Survey, OpenError> {
    if let Some(survey) = survey(storage)? {
        return Ok(survey);
    }
    let files = storage.list()?;
    let unfinished = files.iter().any(|file| file.name == SUPERBLOCK_UNFINISHED_FILE);
    let segment = files.into_iter().find(|file| segment_file_slot(&file.name).is_some());
    Err(match segment {
        Some(segment) if !unfinished => OpenError::SuperblockMissing { segment_file: segment.name },
        _ => OpenError::NoJournal,
    })
}

fn read_segment_header(
    storage: &mut dyn Storage,
    survey: &mut Survey,
    file: &FileEntry,
    slot: u64,
) -> Result<(), OpenError> {
    let mut bytes = [0; FILE_HEADER_BYTES];
    read_up_to(storage, &file.name, file.bytes, 0, &mut bytes)?;
    let geometry = survey.geometry();
    let header = match FileHeader::decode(FileKind::Segment, &bytes) {
        Err(HeaderError::NewerVersion { found, supported }) => {
            return Err(newer_version(&file.name, found, supported));
        }
        Err(HeaderError::Damaged) => {
            survey.unreadable.push(UnreadableEntry { slot, bytes: file.bytes });
            return Ok(());
        }
        Ok(header) => header,
    };
    check_store(&file.name, survey.superblock.store, header.store)?;
    let segment = header.fields[0];
    let stripes = survey.superblock.stripes;
    let [expected, named] =
        [slot, segment].map(|number| Striping { stripe: stripe_of_slot(number, stripes), stripes });
    let misplaced = header.striping != expected || named != expected;
    if header.geometry != geometry || misplaced || segment >= LSN_LIMIT / geometry.segment_bytes() {
        survey.unreadable.push(UnreadableEntry { slot, bytes: file.bytes });
        return Ok(());
    }
    let entry =
        SegmentEntry { slot, bytes: file.bytes, serial: header.serial, generation: header.generation };
    match survey.segments.get(&segment) {
        // Two preparations of one segment: the first one's sync failed and nothing was ever written behind its header.
        Some(present) if present.serial > entry.serial => {
            survey.superseded.push(UnreadableEntry { slot, bytes: file.bytes });
        }
        Some(present) => {
            survey.superseded.push(UnreadableEntry { slot: present.slot, bytes: present.bytes });
            survey.segments.insert(segment, entry);
        }
        None => {
            survey.segments.insert(segment, entry);
        }
    }
    Ok(())
}

/// Whether `bytes`, at `offset` of its page, claims to be the record at `lsn`.
#[inline]
pub(crate) fn claims(bytes: &[u8], lsn: Lsn) -> bool {
    bytes.len() >= crate::format::RECORD_HEADER_BYTES && u64_at(bytes, 8) == lsn.0
}
