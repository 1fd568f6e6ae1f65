//! Looking at a journal without changing it; damage is data here, not an error.

use crate::geometry::Geometry;
use crate::open::{Damage, OpenError};
use crate::record::Record;
use crate::storage::Storage;
use mainstay_types::id::{Generation, Lsn, StoreId};
use std::ops::Range;

/// One segment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFile {
    /// Its name.
    pub file: String,
    /// The segment it holds; nothing if its header is unreadable.
    pub segment: Option<u64>,
    /// The log addresses it covers; empty if its header is unreadable.
    pub range: Range<Lsn>,
    /// The life in which it was prepared.
    pub generation: Generation,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// Whether records between first and end lie in it.
    pub in_use: bool,
}

/// What a directory holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The identity of the directory.
    pub store: StoreId,
    /// The last life.
    pub generation: Generation,
    /// The sizes of this journal.
    pub geometry: Geometry,
    /// The first byte still kept.
    pub first: Lsn,
    /// The address after the last intact record.
    pub end: Lsn,
    /// The highest durable watermark found.
    pub watermark: Lsn,
    /// Whether the last life ended with a clean stop.
    pub sealed: bool,
    /// Bytes above the watermark that do not parse: opening will cut them.
    pub tail: Option<Range<Lsn>>,
    /// Whether a ring of the last life is there.
    pub ring: bool,
    /// Whether one copy of the superblock is damaged.
    pub superblock_damaged: bool,
    /// Records of users.
    pub records: u64,
    /// Payload bytes of these.
    pub record_bytes: u64,
    /// The segment files, in the order of their numbers, unreadable ones last.
    pub segments: Vec<SegmentFile>,
    /// Damage at or below the watermark: opening refuses it.
    pub damage: Option<Damage>,
}

/// Walks over every record, the journal's own included, and passes it to `each`. Changes nothing.
///
/// # Errors
/// As [`crate::open::open`], except that damage to records is reported in [`Inspection::damage`].
pub fn inspect(
    storage: &mut dyn Storage,
    each: &mut dyn FnMut(&Record<'_>),
) -> Result<Inspection, OpenError> {
    let _ = (storage, each);
    todo!()
}
