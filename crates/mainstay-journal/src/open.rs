//! Opening a journal: find out what is there, refuse damage, cut the unsynced tail, make the rest durable.

use crate::catalog::{Catalog, remove_if_there, write_superblock_copies};
use crate::format::{
    Forgiven, Life, LifeReason, PAGE_HEADER_BYTES, RECORD_HEADER_BYTES, RING_FILE, RecordHeader,
    SUPERBLOCK_FILE, SUPERBLOCK_FILE_BYTES, SUPERBLOCK_UNFINISHED_FILE, Seed, Superblock, close_record,
    record_bytes, segment_file_name, segment_file_slot,
};
use crate::geometry::{BLOCK_BYTES, Geometry};
use crate::journal::Resume;
use crate::memory::CONTROL_BYTES;
use crate::options::OpenOptions;
use crate::record::Kind;
use crate::ring_image::Ring;
use crate::storage::{Failure, Storage, StorageError};
use crate::striping::{self, Striping};
use crate::survey::{Survey, survey};
use crate::walk::{Patched, Walked, walk};
use mainstay_types::id::{Generation, InstanceId, Lsn, StoreId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// An opened journal: everything below `report.end` is durable and in the segments.
#[derive(Debug)]
pub struct Opened {
    /// The segment files.
    pub catalog: Catalog,
    /// What [`crate::journal::Journal::start`] goes on from.
    pub resume: Resume,
    /// What was found and done.
    pub report: OpenReport,
}

/// From here on an attempt names something that has no record: no journal is as long.
pub const UNRECORDED: Lsn = Lsn(1 << 63);

/// The last delivery that was begun, and how often; all before it had ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The record being delivered, or, from [`UNRECORDED`] on, whatever its owner means by it.
    pub lsn: Lsn,
    /// Attempts begun so far; 0 once one has ended well.
    pub attempts: u32,
}

/// Bytes of a [`Note`].
pub const NOTE_BYTES: usize = 48;

/// What the owner of a journal noted last, where kill -9 cannot reach it; a power loss may, and a start that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The end of the record that it speaks of; what is gone from the journal takes it along.
    pub end: Lsn,
    /// Whatever the owner means by it.
    pub bytes: [u8; NOTE_BYTES],
}

/// What opening found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenReport {
    /// The identity of the directory.
    pub store: StoreId,
    /// The life that begins now.
    pub generation: Generation,
    /// The sizes of this journal.
    pub geometry: Geometry,
    /// The first byte still kept.
    pub first: Lsn,
    /// Where the next record goes; everything below is durable.
    pub end: Lsn,
    /// The highest durable watermark that was found.
    pub watermark: Lsn,
    /// Whether the last life ended with a clean stop.
    pub sealed: bool,
    /// Whether the journal was made just now.
    pub created: bool,
    /// Bytes that had been appended but never synced, and did not survive: from the end to the last trace of a page.
    pub cut: Option<Range<Lsn>>,
    /// The ring was not there, or not this life's, though the last life did not end cleanly: records acknowledged at
    /// level `Process` only may be lost, as after a power loss.
    pub ring_missing: bool,
    /// Pages that were damaged in their segment below the watermark and were mended from the ring, which still had them.
    /// Above zero, the disk has lost what it had promised to keep.
    pub pages_healed: u64,
    /// One copy of the superblock was damaged and has been rewritten from the other.
    pub repaired_superblock: bool,
    /// Records of users between `first` and `end`.
    pub records: u64,
    /// The delivery that was being made when the process died.
    pub attempt: Option<Attempt>,
    /// What the last life noted last, unless power was lost or the record that it speaks of is gone.
    pub note: Option<Note>,
}

/// What does not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// A record, or the header of its page, is not what was written.
    Record,
    /// No file holds the segment.
    SegmentMissing {
        /// Its number.
        segment: u64,
    },
    /// The file ends before its segment does.
    FileTruncated,
}

/// Damage at or below the durable watermark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What is wrong.
    pub kind: DamageKind,
    /// The file, or the names of the files whose headers are unreadable if none is known to hold the segment
    /// (empty if there is none either).
    pub file: String,
    /// Byte offset in the file.
    pub offset: u64,
    /// The same place in the log. Every record below is intact.
    pub lsn: Lsn,
    /// Everything below this was once durable.
    pub watermark: Lsn,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, file, offset, lsn, .. } = self;
        match kind {
            DamageKind::Record => write!(f, "`{file}` is damaged at byte {offset} (LSN {lsn})"),
            DamageKind::FileTruncated => {
                write!(f, "`{file}` is truncated and lacks what was at byte {offset} (LSN {lsn})")
            }
            DamageKind::SegmentMissing { segment } if file.is_empty() => {
                write!(f, "the file of segment {segment} (from LSN {lsn} on) is missing")
            }
            DamageKind::SegmentMissing { segment } => {
                write!(
                    f,
                    "no file holds segment {segment} (LSN {lsn}); its header may be the unreadable one of {file}"
                )
            }
        }
    }
}

/// The journal was not opened. Nothing was changed, except where [`OpenError::Storage`] arose while the intact journal
/// was being made durable, which can be repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// An operation on a file failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// There is no journal and none was to be made.
    #[error("there is no journal here")]
    NoJournal,
    /// Segments without a superblock.
    #[error(
        "`superblock` is missing but `{segment_file}` is there: restore the file from a copy of the directory; \
         nothing was changed"
    )]
    SuperblockMissing {
        /// One of the segment files.
        segment_file: String,
    },
    /// Both copies of the superblock are damaged.
    #[error(
        "both copies in `superblock` are damaged: restore the file from a copy of the directory; nothing was changed"
    )]
    SuperblockDamaged,
    /// The sizes asked for cannot be.
    #[error("a journal cannot have {geometry:?}: see the limits of each size")]
    InvalidGeometry {
        /// What was asked for.
        geometry: Geometry,
    },
    /// Written by a newer format.
    #[error(
        "`{file}` has format version {found}, this program reads up to {supported}: use a newer one; nothing was changed"
    )]
    NewerVersion {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
        /// The newest version known here.
        supported: u32,
    },
    /// A file of another directory.
    #[error("`{file}` belongs to journal {found}, not to {expected}: move it away; nothing was changed")]
    ForeignStore {
        /// The file.
        file: String,
        /// This directory's identity.
        expected: StoreId,
        /// The file's.
        found: StoreId,
    },
    /// One of the directories that the segments go round over is not there.
    #[error(
        "the journal lies in {stripes} directories and number {stripe} is missing (it has `{file}`): mount it, or put it back where \
         it was; nothing was changed"
    )]
    StripeMissing {
        /// Which.
        stripe: u16,
        /// How many there are.
        stripes: u16,
        /// The file that it is known by.
        file: String,
    },
    /// One of them is another journal's.
    #[error(
        "directory {stripe} of this journal belongs to journal {found}, not to {expected} (`{file}` says so): put the right one \
         there; nothing was changed"
    )]
    StripeForeign {
        /// Which.
        stripe: u16,
        /// The file that says so.
        file: String,
        /// This journal's identity.
        expected: StoreId,
        /// The directory's.
        found: StoreId,
    },
    /// One of them is in the place of another.
    #[error(
        "`{file}` is of directory {} of {}, and stands in number {} of {}: put the directories back into their order; nothing was \
         changed", found.stripe, found.stripes, expected.stripe, expected.stripes
    )]
    StripeExchanged {
        /// The file that says so.
        file: String,
        /// Which it should be.
        expected: Striping,
        /// Which it is.
        found: Striping,
    },
    /// More directories than there can be.
    #[error("a journal goes over 1 to {max} directories, not over {stripes}", max = striping::STRIPES_MAX)]
    InvalidStripes {
        /// What was asked for.
        stripes: u16,
    },
    /// Durable bytes are damaged.
    #[error(
        "{0}, below the durable watermark {watermark}: every record below LSN {lsn} is intact, nothing was changed; \
         `mainstay journal repair` shows what can be done",
        watermark = .0.watermark,
        lsn = .0.lsn
    )]
    Damaged(Damage),
}

/// Opens the journal in `storage`, making it if there is none and `options.create` says so.
///
/// The generation is raised durably, so that two openings never write the same life.
///
/// # Errors
/// See [`OpenError`]; nothing that was durable is ever dropped without one.
pub fn open(storage: &mut dyn Storage, options: &OpenOptions) -> Result<Opened, OpenError> {
    let (survey, created) = match survey(storage)? {
        Some(survey) => (survey, false),
        None => {
            make(storage, options, Generation(0))?;
            (survey(storage)?.expect("the journal was just made"), true)
        }
    };
    let mut walked = walk(storage, &survey, options.rules, &mut |_| {})?;
    if let Some(damage) = walked.damage {
        return Err(OpenError::Damaged(damage));
    }
    let cut = (walked.trace > walked.end).then_some(walked.end..walked.trace);
    let ring_missing = !created && !walked.sealed && ring_is_missing(&survey, &walked);
    let pages_healed = walked.patched.values().filter(|patched| patched.from < walked.watermark).count();
    // Before the padding, which holds no records.
    let recorded = walked.end;
    let padded = pad_short_tail(&survey, &mut walked);
    for &stripe in &survey.stripes_unreadable {
        striping::write_identity(storage, &survey.superblock, stripe)?;
    }
    let mut catalog = catalog_of(storage, &survey, &walked, options, created)?;
    if padded {
        bury_next_page(storage, &survey, &walked, &catalog)?;
    }
    settle(storage, &survey, &walked, &catalog)?;

    let generation = survey.superblock.generation.next();
    let raised =
        Superblock { generation, watermark: walked.end, last_start: walked.end, ..survey.superblock };
    catalog.write_superblock(storage, raised)?;
    catalog.lives.push((walked.end, generation));
    catalog.remove_surplus(storage)?;

    let geometry = survey.geometry();
    let reason = match (survey.superblock.generation, walked.sealed) {
        (Generation(0), _) => LifeReason::Created,
        (_, true) => LifeReason::CleanStop,
        (_, false) => LifeReason::Crash,
    };
    let last_segment = geometry.segment_of(walked.end);
    let prepared_to = (last_segment..).find(|segment| !catalog.segments.contains_key(segment));
    let report = OpenReport {
        store: survey.superblock.store,
        generation,
        geometry,
        first: survey.superblock.first,
        end: walked.end,
        watermark: walked.watermark,
        sealed: walked.sealed,
        created,
        cut,
        ring_missing,
        pages_healed: pages_healed as u64,
        repaired_superblock: survey.superblock_damaged,
        records: walked.records,
        // A record that is gone leaves its address to another one.
        attempt: survey.attempt().filter(|attempt| attempt.lsn < walked.end || attempt.lsn >= UNRECORDED),
        note: survey.ring_image().and_then(|image| image.cells.note).filter(|note| note.end <= recorded),
    };
    let resume = Resume {
        geometry,
        store: report.store,
        generation,
        first: report.first,
        end: report.end,
        reason,
        tail: walked.tail,
        prepared_to: prepared_to.expect("segments are finite"),
        rules: options.rules,
        buffer_only: options.buffer_only,
        half_bytes_min: options.half_bytes_min.max(BLOCK_BYTES) as usize,
        attempt: report.attempt,
        note: report.note,
        clear_ring: report.cut.is_some() || survey.ring_image().is_none(),
    };
    Ok(Opened { catalog, resume, report })
}

/// Makes an empty journal whose first opening is the life after `before`: for a directory that goes on from a line of a cluster whose
/// nodes know that life.
///
/// # Errors
/// [`OpenError`]; there must be no journal.
pub fn make_after(
    storage: &mut dyn Storage,
    options: &OpenOptions,
    before: Generation,
) -> Result<(), OpenError> {
    make(storage, options, before)
}

/// Makes an empty journal. The superblock gets its name last, so that a crash before leaves what the next opening
/// recognizes as unfinished and makes anew.
fn make(storage: &mut dyn Storage, options: &OpenOptions, before: Generation) -> Result<(), OpenError> {
    let files = storage.list()?;
    let unfinished = files.iter().any(|file| file.name == SUPERBLOCK_UNFINISHED_FILE);
    let mut segments = files.iter().filter(|file| segment_file_slot(&file.name).is_some());
    if let Some(segment) = segments.clone().next().filter(|_| !unfinished) {
        return Err(OpenError::SuperblockMissing { segment_file: segment.name.clone() });
    }
    if !options.create {
        return Err(OpenError::NoJournal);
    }
    if !options.geometry.is_valid() {
        return Err(OpenError::InvalidGeometry { geometry: options.geometry });
    }
    if !(Striping { stripe: 0, stripes: options.stripes }).is_valid() {
        return Err(OpenError::InvalidStripes { stripes: options.stripes });
    }
    segments.try_for_each(|file| storage.remove(&file.name))?;
    remove_if_there(storage, RING_FILE)?;
    if unfinished {
        // The unfinished superblock tells that the segments are nobody's: it goes after them.
        storage.sync_directory()?;
        storage.remove(SUPERBLOCK_UNFINISHED_FILE)?;
    }
    storage.create(SUPERBLOCK_UNFINISHED_FILE, SUPERBLOCK_FILE_BYTES)?;
    storage.sync_directory()?;
    let superblock = Superblock {
        store: options.new_store,
        serial: 1,
        generation: before,
        geometry: options.geometry,
        stripes: options.stripes,
        first: Lsn::ZERO,
        first_generation: Generation(0),
        watermark: Lsn::ZERO,
        last_start: Lsn::ZERO,
        forgiven: Forgiven { generation: Generation(0), lsn: Lsn::ZERO },
    };
    write_superblock_copies(storage, SUPERBLOCK_UNFINISHED_FILE, &superblock)?;
    striping::make_identities(storage, &superblock)?;
    let mut catalog = Catalog {
        superblock,
        rules: options.rules,
        segments: BTreeMap::new(),
        free: Vec::new(),
        free_segments_max: options.free_segments_max,
        next_slot: 0,
        segment_serial: 0,
        lives: Vec::new(),
    };
    catalog.prepare(storage, 0)?;
    storage.rename(SUPERBLOCK_UNFINISHED_FILE, SUPERBLOCK_FILE)?;
    storage.sync_directory()?;
    Ok(())
}

/// Whether records that only the ring had may be gone.
fn ring_is_missing(survey: &Survey, walked: &Walked) -> bool {
    let last = survey.superblock.generation;
    match survey.ring {
        Ring::Present(_) => false,
        // A life that has not come to formatting the ring has not appended anything either.
        Ring::Stale(_) => walked.generation() == last,
        Ring::Absent => last > Generation(1) || walked.end > Lsn::ZERO,
    }
}

/// Room for what the owner of the journal appends before anything can be written for it, in a ring that may have one page
/// only and before segments are prepared: which process this is, and a verdict.
const FIRST_RECORDS_BYTES: usize = 512;

/// The record that begins a life must not need a pad before it, since a pad belongs to a life: if the tail page has no
/// room for it, it is padded in the life that ended.
fn pad_short_tail(survey: &Survey, walked: &mut Walked) -> bool {
    let page_bytes = survey.geometry().page_bytes as usize;
    let left = page_bytes - walked.tail.len();
    if walked.tail.is_empty() || left >= record_bytes(Life::BYTES) + FIRST_RECORDS_BYTES {
        return false;
    }
    let header = RecordHeader {
        payload_bytes: u32::try_from(left - RECORD_HEADER_BYTES).expect("a pad is shorter than a page"),
        lsn: walked.end,
        instance: InstanceId(0),
        kind: Kind::PAD,
    };
    let mut pad = vec![0; left];
    header.put(&mut pad);
    close_record(&mut pad, 0, Seed::new(survey.superblock.store, walked.generation()));
    let mut page = std::mem::take(&mut walked.tail);
    page.extend_from_slice(&pad);
    let number = survey.geometry().page_of(walked.end);
    let from = walked.patched.get(&number).map_or(walked.end, |patched| patched.from);
    walked.patched.insert(number, Patched { from, bytes: page });
    walked.end = walked.end.plus(left as u64);
    true
}

/// Takes away what may lie behind the pad: a page of the life that ended, which outlived a power cut while the records
/// before it did not. Until the generation is raised the pad would lead an opening straight into it.
fn bury_next_page(
    storage: &mut dyn Storage,
    survey: &Survey,
    walked: &Walked,
    catalog: &Catalog,
) -> Result<(), StorageError> {
    let geometry = survey.geometry();
    let place = geometry.place_of(walked.end);
    if let Some(file) = catalog.file_of(place.segment) {
        storage.write(&file, place.offset, &[0; BLOCK_BYTES as usize])?;
        storage.sync(&file)?;
    }
    let page = geometry.page_of(walked.end);
    if survey.ring_image().and_then(|ring| ring.page(page)).is_some() {
        let slot = geometry.slot_of(page) as u64 * u64::from(geometry.page_bytes);
        storage.write(RING_FILE, CONTROL_BYTES as u64 + slot, &[0; PAGE_HEADER_BYTES])?;
        storage.sync(RING_FILE)?;
    }
    Ok(())
}

/// Sorts the segment files into needed ones and free ones, and makes every segment up to the end ready to be written.
fn catalog_of(
    storage: &mut dyn Storage,
    survey: &Survey,
    walked: &Walked,
    options: &OpenOptions,
    created: bool,
) -> Result<Catalog, StorageError> {
    let geometry = survey.geometry();
    let full = geometry.segment_file_bytes();
    let first = geometry.segment_of(survey.superblock.first);
    let last = geometry.segment_of(walked.end);
    let contiguous_to = (last + 1..)
        .find(|segment| survey.segments.get(segment).is_none_or(|entry| entry.bytes < full))
        .expect("segments are finite");
    let mut segments = BTreeMap::new();
    let mut unused = Vec::new();
    for (&segment, entry) in &survey.segments {
        if (first..contiguous_to).contains(&segment) {
            segments.insert(segment, entry.slot);
            extend_to(storage, &segment_file_name(entry.slot), entry.bytes, full)?;
        } else {
            unused.push((entry.slot, entry.bytes));
        }
    }
    unused.extend(survey.unreadable.iter().map(|entry| (entry.slot, entry.bytes)));
    unused.extend(survey.superseded.iter().map(|entry| (entry.slot, entry.bytes)));
    for &(slot, _) in unused.iter().filter(|&&(_, bytes)| bytes != full) {
        storage.remove(&segment_file_name(slot))?;
    }
    let free = unused.into_iter().filter(|&(_, bytes)| bytes == full).map(|(slot, _)| slot).collect();
    let mut catalog = Catalog {
        superblock: survey.superblock,
        rules: options.rules,
        segments,
        free,
        free_segments_max: options.free_segments_max,
        next_slot: survey.next_slot(),
        segment_serial: survey.segments.values().map(|entry| entry.serial).max().unwrap_or(0),
        lives: walked.lives.clone(),
    };
    if survey.superblock_unsettled {
        // Before any file that it gives up is written over.
        catalog.write_superblock(storage, survey.superblock)?;
    }
    for segment in first..=last {
        match catalog.prepare(storage, segment) {
            // Nothing lies in it yet: on a full disk the journal opens all the same, is read, and accepts again later.
            Err(error)
                if error.failure == Failure::NoSpace && geometry.segment_start(segment) == walked.end => {}
            result => result?,
        }
    }
    if !walked.sealed && !created {
        // The last life may have been killed while it made a segment ready: what shows here, header and name, may be in
        // the page cache alone, or not even on its way to the disk if a sync failed.
        let doubtful = geometry.segment_of(walked.watermark.min(walked.end));
        catalog.confirm(storage, doubtful)?;
    }
    Ok(catalog)
}

/// Gives a truncated file its full length again; what it lacked held nothing that was durable.
fn extend_to(storage: &mut dyn Storage, file: &str, bytes: u64, full: u64) -> Result<(), StorageError> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let mut at = bytes;
    while at < full {
        let chunk = CHUNK_BYTES.min(full - at);
        storage.write(file, at, &vec![0; usize::try_from(chunk).expect("a chunk is 1 MiB")])?;
        at += chunk;
    }
    if bytes < full { storage.sync(file) } else { Ok(()) }
}

/// Writes into the segments what the ring alone had and everything from the watermark to the end, and syncs it.
///
/// Also what the segments seem to have already: after a failed sync a page cache shows bytes that the disk does not
/// have, and only writing them again gets them there.
fn settle(
    storage: &mut dyn Storage,
    survey: &Survey,
    walked: &Walked,
    catalog: &Catalog,
) -> Result<(), StorageError> {
    let geometry = survey.geometry();
    let page_bytes = u64::from(geometry.page_bytes);
    let from = walked.watermark.max(survey.superblock.first);
    let unsettled = geometry.page_of(from)..walked.end.0.div_ceil(page_bytes);
    let mut pages: BTreeSet<u64> = if from < walked.end { unsettled.collect() } else { BTreeSet::new() };
    pages.extend(walked.patched.keys());
    let mut bytes = vec![0; geometry.page_bytes as usize];
    let mut segments = BTreeSet::new();
    for page in pages {
        let start = geometry.page_start(page);
        let begin = match walked.patched.get(&page) {
            Some(patched) => {
                bytes.copy_from_slice(&patched.bytes);
                patched.from.min(from)
            }
            None => {
                survey.read_page(storage, page, &mut bytes)?;
                from
            }
        };
        let [begin, data_end] = [begin, walked.end]
            .map(|at| usize::try_from(at.0.saturating_sub(start.0).min(page_bytes)).expect("within a page"));
        let block_bytes = BLOCK_BYTES as usize;
        bytes[data_end..].fill(0);
        let begin = begin / block_bytes * block_bytes;
        let place = geometry.place_of(start.plus(begin as u64));
        let file = catalog.file_of(place.segment).expect("every segment up to the end is prepared");
        storage.write(&file, place.offset, &bytes[begin..data_end.next_multiple_of(block_bytes)])?;
        segments.insert(file);
    }
    segments.iter().try_for_each(|file| storage.sync(file))
}
