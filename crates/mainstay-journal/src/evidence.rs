//! Looking ahead of the place where a walk stopped, for proof that what is missing there was once durable.
//!
//! Proof is a watermark: in a page header, in a record, in the ring, in the superblock. Intact records beyond the place
//! prove nothing by themselves: unsynced writes reach a disk in any order. What a life before the one in force at
//! the place has written proves nothing beyond it either: that life ended, durably, at or before the place.

use crate::format::{
    PAGE_HEADER_BYTES, PageHeader, RECORD_ALIGNMENT_BYTES, RECORD_HEADER_BYTES, Seed, parse_life,
    parse_record, segment_file_name, watermark_of,
};
use crate::geometry::SEGMENT_HEADER_BYTES;
use crate::storage::{Storage, StorageError};
use crate::survey::{LSN_LIMIT, Survey, claims, read_up_to};
use mainstay_types::id::{Generation, Lsn};

/// What lies beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// The highest watermark.
    pub(crate) watermark: Lsn,
    /// The end of the last intact page header or record, or the place itself.
    pub(crate) trace: Lsn,
}

/// Looks at the rest of the page of `place`, at all later pages of all segments, at files whose headers are
/// unreadable, and at the ring.
///
/// # Errors
/// An operation on a file that failed.
pub(crate) fn look_ahead(
    storage: &mut dyn Storage,
    survey: &Survey,
    generation: Generation,
    place: Lsn,
) -> Result<Evidence, StorageError> {
    let last = survey.superblock.generation;
    let earliest = if place >= survey.superblock.last_start { last } else { generation };
    let mut scan = Scan {
        survey,
        lives: vec![earliest],
        earliest,
        evidence: Evidence { watermark: Lsn::ZERO, trace: place },
    };
    scan.believe_life(last);
    let geometry = survey.geometry();
    let mut bytes = vec![0; geometry.page_bytes as usize];

    let stopped_page = geometry.page_of(place);
    let stopped_offset = geometry.offset_in_page(place);
    survey.read_page(storage, stopped_page, &mut bytes)?;
    scan.page(&bytes, stopped_page, stopped_offset);
    if let Some(ring) = survey.ring_image() {
        for page in ring.page_numbers().into_iter().filter(|&page| page >= stopped_page) {
            let (bytes, _) = ring.page(page).expect("the ring listed this page");
            if page == stopped_page {
                scan.claim(bytes, place);
            }
            scan.page(bytes, page, if page == stopped_page { stopped_offset } else { 0 });
        }
    }

    let segment_pages = u64::from(geometry.segment_pages);
    for (&segment, entry) in survey.segments.range(geometry.segment_of(place)..) {
        let file = segment_file_name(entry.slot);
        for index in 0..segment_pages {
            let page = segment * segment_pages + index;
            if page > stopped_page {
                scan.page_of_file(storage, &file, entry.bytes, index, &mut bytes, |named| named == page)?;
            }
        }
    }
    for entry in &survey.unreadable {
        let file = segment_file_name(entry.slot);
        for index in 0..segment_pages {
            let may_be = |named: u64| named % segment_pages == index && named >= stopped_page;
            scan.page_of_file(storage, &file, entry.bytes, index, &mut bytes, may_be)?;
        }
    }
    Ok(scan.evidence)
}

struct Scan<'a> {
    survey: &'a Survey,
    /// Lives whose records are looked for: those that are known to have written something.
    lives: Vec<Generation>,
    earliest: Generation,
    evidence: Evidence,
}

impl Scan<'_> {
    fn believe_life(&mut self, generation: Generation) {
        let may_be = generation >= self.earliest && generation <= self.survey.superblock.generation;
        if may_be && !self.lives.contains(&generation) {
            self.lives.push(generation);
        }
    }

    fn watermark(&mut self, watermark: Lsn, generation: Generation) {
        let believed = self.survey.superblock.believe(watermark, generation);
        self.evidence.watermark = self.evidence.watermark.max(believed);
    }

    fn trace(&mut self, end: Lsn) {
        self.evidence.trace = self.evidence.trace.max(end);
    }

    /// A record that was being copied into the ring when the process died is a trace. In a segment the same bytes may as
    /// well be of a life that was cut there.
    fn claim(&mut self, bytes: &[u8], place: Lsn) {
        let offset = self.survey.geometry().offset_in_page(place);
        if offset > 0 && claims(&bytes[offset..], place) {
            let end = crate::format::RecordHeader::get(&bytes[offset..]).map_or(0, |header| header.bytes());
            self.trace(place.plus(end.min(bytes.len() - offset) as u64));
        }
    }

    fn page_of_file(
        &mut self,
        storage: &mut dyn Storage,
        file: &str,
        file_bytes: u64,
        index: u64,
        bytes: &mut [u8],
        may_be: impl Fn(u64) -> bool,
    ) -> Result<(), StorageError> {
        let geometry = self.survey.geometry();
        let offset = SEGMENT_HEADER_BYTES + index * u64::from(geometry.page_bytes);
        let mut header = [0; PAGE_HEADER_BYTES];
        read_up_to(storage, file, file_bytes, offset, &mut header)?;
        let Some(header) = PageHeader::decode(self.survey.superblock.store, &header) else {
            return Ok(());
        };
        let in_range = header.page < LSN_LIMIT / u64::from(geometry.page_bytes);
        if in_range && may_be(header.page) && header.generation >= self.earliest {
            read_up_to(storage, file, file_bytes, offset, bytes)?;
            self.page(bytes, header.page, 0);
        }
        Ok(())
    }

    /// Takes what the bytes of `page` prove from `offset` on.
    fn page(&mut self, bytes: &[u8], page: u64, offset: usize) {
        let store = self.survey.superblock.store;
        let last = self.survey.superblock.generation;
        let start = self.survey.geometry().page_start(page);
        if let Some(header) = PageHeader::decode(store, bytes).filter(|header| header.page == page) {
            let may_be = header.generation >= self.earliest && header.generation <= last;
            self.believe_life(header.generation);
            if may_be {
                self.watermark(header.watermark, header.generation);
                if offset == 0 {
                    self.trace(start.plus(PAGE_HEADER_BYTES as u64));
                }
            }
        }
        let mut at = offset.max(PAGE_HEADER_BYTES);
        while at + RECORD_HEADER_BYTES <= bytes.len() {
            let lsn = start.plus(at as u64);
            if claims(&bytes[at..], lsn)
                && let Some(past) = self.record(&bytes[at..], lsn, last)
            {
                at += past;
                continue;
            }
            at += RECORD_ALIGNMENT_BYTES;
        }
    }

    /// Takes what a record proves and says how long it is; nothing if it is none of the lives looked for.
    fn record(&mut self, bytes: &[u8], lsn: Lsn, last: Generation) -> Option<usize> {
        let store = self.survey.superblock.store;
        let own = self
            .lives
            .iter()
            .find_map(|&life| parse_record(bytes, Seed::new(store, life)).map(|header| (header, life)));
        let (header, generation) = own.or_else(|| {
            parse_life(bytes, store, self.earliest..=last).map(|(header, life)| (header, life.generation))
        })?;
        self.believe_life(generation);
        let payload = &bytes[RECORD_HEADER_BYTES..][..header.payload_bytes as usize];
        if let Some(watermark) = watermark_of(header.kind, payload) {
            self.watermark(watermark, generation);
        }
        self.trace(lsn.plus(header.bytes() as u64));
        Some(header.bytes())
    }
}
