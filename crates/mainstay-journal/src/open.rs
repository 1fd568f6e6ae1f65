//! Opening a journal: find out what is there, refuse damage, cut the unsynced tail, make the rest durable.

use crate::catalog::Catalog;
use crate::geometry::Geometry;
use crate::journal::Resume;
use crate::options::OpenOptions;
use crate::storage::{Storage, StorageError};
use mainstay_types::id::{Generation, Lsn, StoreId};
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

/// A delivery that was being made when the process died, and how often it has been tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The record being delivered.
    pub lsn: Lsn,
    /// Attempts begun so far.
    pub attempts: u32,
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
    /// One copy of the superblock was damaged and has been rewritten from the other.
    pub repaired_superblock: bool,
    /// Records of users between `first` and `end`.
    pub records: u64,
    /// The delivery that was being made when the process died.
    pub attempt: Option<Attempt>,
}

/// What does not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// A record, or the header of its page, is not what was written.
    Record,
    /// No file holds the segment.
    SegmentMissing,
    /// The file ends before its segment does.
    FileTruncated,
}

/// Damage at or below the durable watermark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What is wrong.
    pub kind: DamageKind,
    /// The file, or the names of the files whose headers are unreadable if none is known to hold the segment.
    pub file: String,
    /// Byte offset in the file.
    pub offset: u64,
    /// The same place in the log. Every record below is intact.
    pub lsn: Lsn,
    /// Everything below this was once durable.
    pub watermark: Lsn,
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
    #[error("both copies in `superblock` are damaged: restore the file from a copy of the directory; nothing was changed")]
    SuperblockDamaged,
    /// The sizes asked for cannot be.
    #[error("a journal cannot have {geometry:?}: see the limits of each size")]
    InvalidGeometry {
        /// What was asked for.
        geometry: Geometry,
    },
    /// Written by a newer format.
    #[error("`{file}` has format version {found}, this program reads up to {supported}: use a newer one; nothing was changed")]
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
    /// Durable bytes are damaged.
    #[error(
        "{:?} damaged in `{}` at byte {} (LSN {}), below the durable watermark {}: every record below LSN {} is intact, \
         nothing was changed; `mainstay journal repair` shows what can be done",
        .0.kind, .0.file, .0.offset, .0.lsn, .0.watermark, .0.lsn
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
    let _ = (storage, options);
    todo!()
}
