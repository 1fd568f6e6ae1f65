//! Looking at a journal without changing it; damage is data here, not an error.

use crate::format::segment_file_name;
use crate::geometry::Geometry;
use crate::open::{Damage, OpenError};
use crate::record::Record;
use crate::storage::Storage;
use crate::survey::survey_present;
use crate::walk::walk;
use mainstay_types::id::{Generation, Lsn, StoreId};
use mainstay_types::rules::Rules;
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
    let survey = survey_present(storage)?;
    let walked = walk(storage, &survey, Rules::KEPT, each)?;
    let geometry = survey.geometry();
    let used = geometry.segment_of(survey.superblock.first)..=geometry.segment_of(walked.end);
    let mut segments: Vec<SegmentFile> = survey
        .segments
        .iter()
        .map(|(&segment, entry)| SegmentFile {
            file: segment_file_name(entry.slot),
            segment: Some(segment),
            range: geometry.segment_start(segment)..geometry.segment_start(segment + 1),
            generation: entry.generation,
            bytes: entry.bytes,
            in_use: used.contains(&segment),
        })
        .collect();
    segments.extend(survey.unreadable.iter().chain(&survey.superseded).map(|entry| SegmentFile {
        file: segment_file_name(entry.slot),
        segment: None,
        range: Lsn::ZERO..Lsn::ZERO,
        generation: Generation(0),
        bytes: entry.bytes,
        in_use: false,
    }));
    let intact = walked.damage.is_none();
    Ok(Inspection {
        store: survey.superblock.store,
        generation: survey.superblock.generation,
        geometry,
        first: survey.superblock.first,
        end: walked.end,
        watermark: walked.watermark,
        sealed: walked.sealed,
        tail: (intact && walked.trace > walked.end).then_some(walked.end..walked.trace),
        ring: survey.ring_image().is_some(),
        superblock_damaged: survey.superblock_damaged,
        records: walked.records,
        record_bytes: walked.record_bytes,
        segments,
        damage: walked.damage,
    })
}
