//! The walk over a whole journal: from its first byte, taking each record from its segment or from the ring, to the
//! first place where neither has one; then the judgement whether that place is the end or damage.

use crate::accept::Acceptor;
use crate::evidence::{Evidence, look_ahead};
use crate::format::{PAGE_HEADER_BYTES, RECORD_HEADER_BYTES, segment_file_name, watermark_of};
use crate::open::{Damage, DamageKind};
use crate::record::{Kind, Record};
use crate::storage::{Storage, StorageError};
use crate::survey::Survey;
use mainstay_types::id::{Generation, Lsn};
use mainstay_types::rules::Rules;
use std::collections::BTreeMap;

/// What a walk found.
#[derive(Clone, Debug)]
pub(crate) struct Walked {
    /// Where the first record is missing; at the start of a page if the page has none.
    pub(crate) end: Lsn,
    /// Which life was in force from where on, in order.
    pub(crate) lives: Vec<(Lsn, Generation)>,
    pub(crate) records: u64,
    pub(crate) record_bytes: u64,
    /// The last record is a seal, and nothing before it was unsynced.
    pub(crate) sealed: bool,
    /// The highest watermark found anywhere.
    pub(crate) watermark: Lsn,
    /// The end of the last trace of this or a later life beyond `end`.
    pub(crate) trace: Lsn,
    /// Pages of which the ring had more than their segment, by number.
    pub(crate) patched: BTreeMap<u64, Patched>,
    /// The bytes of the page of `end` below it.
    pub(crate) tail: Vec<u8>,
    /// Why `end` cannot be the end.
    pub(crate) damage: Option<Damage>,
}

/// A page put together from its segment and the ring.
#[derive(Clone, Debug)]
pub(crate) struct Patched {
    /// The first place that only the ring had.
    pub(crate) from: Lsn,
    pub(crate) bytes: Vec<u8>,
}

impl Walked {
    /// The life in force at the end.
    pub(crate) fn generation(&self) -> Generation {
        self.lives.last().expect("a walk starts in a life").1
    }
}

/// Walks over every record and passes it to `each`, the journal's own included.
///
/// # Errors
/// An operation on a file that failed.
pub(crate) fn walk(
    storage: &mut dyn Storage,
    survey: &Survey,
    rules: Rules,
    each: &mut dyn FnMut(&Record<'_>),
) -> Result<Walked, StorageError> {
    let superblock = &survey.superblock;
    let geometry = survey.geometry();
    let page_bytes = geometry.page_bytes as usize;
    let mut acceptor = Acceptor::new(superblock, rules, superblock.first_generation);
    let mut walked = Walked {
        end: superblock.first,
        lives: vec![(superblock.first, superblock.first_generation)],
        records: 0,
        record_bytes: 0,
        sealed: false,
        watermark: survey.watermark(),
        trace: Lsn::ZERO,
        patched: BTreeMap::new(),
        tail: Vec::new(),
        damage: None,
    };
    // The end of the last user's record: a seal before which only the journal's own were unsynced is a seal.
    let mut content_end = superblock.first;
    let mut bytes = vec![0; page_bytes];
    loop {
        let page = geometry.page_of(walked.end);
        survey.read_page(storage, page, &mut bytes)?;
        let start = geometry.page_start(page);
        let ring = survey.ring_image().and_then(|ring| ring.page(page)).map(|(bytes, _)| bytes);
        let mut offset = geometry.offset_in_page(walked.end);
        let mut patched = None;
        if offset == 0 {
            match ring {
                _ if acceptor.page(&bytes, page, start) => {}
                Some(ring) if acceptor.page(ring, page, start) => {
                    bytes[..PAGE_HEADER_BYTES].copy_from_slice(&ring[..PAGE_HEADER_BYTES]);
                    patched = Some(start);
                }
                _ => break,
            }
            offset = PAGE_HEADER_BYTES;
        } else if let Some(ring) = ring.filter(|_| !survey.segments.contains_key(&geometry.segment_of(start)))
        {
            // The page begins in the ring alone; what lies below `first` is not walked over but belongs to the page.
            bytes[..offset].copy_from_slice(&ring[..offset]);
            patched = Some(start);
        }
        let records_from = offset;
        while offset + RECORD_HEADER_BYTES <= page_bytes {
            let lsn = start.plus(offset as u64);
            let accepted = match acceptor.record(&bytes[offset..], lsn) {
                Some(accepted) => accepted,
                None => match ring.and_then(|ring| acceptor.record(&ring[offset..], lsn)) {
                    Some(accepted) => {
                        let ring = ring.expect("the record was found in it");
                        let end = (offset + accepted.header.bytes()).min(page_bytes);
                        bytes[offset..end].copy_from_slice(&ring[offset..end]);
                        patched.get_or_insert(lsn);
                        accepted
                    }
                    None => break,
                },
            };
            let header = accepted.header;
            let end = offset + header.bytes();
            let payload_from = offset + RECORD_HEADER_BYTES;
            let payload = &bytes[payload_from..payload_from + header.payload_bytes as usize];
            if let Some(life) = accepted.life {
                walked.lives.push((lsn, life.generation));
            }
            if let Some(watermark) = watermark_of(header.kind, payload) {
                let believed = superblock.believe(watermark, acceptor.generation());
                walked.watermark = walked.watermark.max(believed);
            }
            let seals = header.kind == Kind::SEAL;
            walked.sealed =
                seals && watermark_of(header.kind, payload).is_some_and(|mark| mark >= content_end);
            if !header.kind.is_own() {
                content_end = start.plus(end as u64);
            }
            if !header.kind.is_own() {
                walked.records += 1;
                walked.record_bytes += u64::from(header.payload_bytes);
            }
            each(&Record {
                lsn,
                end: start.plus(end as u64),
                kind: header.kind,
                instance: header.instance,
                generation: acceptor.generation(),
                payload: if header.kind.is_pad() { &[] } else { payload },
            });
            offset = end;
        }
        let full = offset + RECORD_HEADER_BYTES > page_bytes;
        let empty = offset == records_from && records_from == PAGE_HEADER_BYTES && !full;
        walked.end = match (full, empty) {
            (true, _) => geometry.page_start(page + 1),
            (false, true) => start,
            (false, false) => start.plus(offset as u64),
        };
        if !full {
            walked.tail = if empty { Vec::new() } else { bytes[..offset].to_vec() };
        }
        if let Some(from) = patched.filter(|_| !empty) {
            walked.patched.insert(page, Patched { from, bytes: bytes.clone() });
        }
        if !full {
            break;
        }
    }
    judge(storage, survey, acceptor.generation(), &mut walked)?;
    Ok(walked)
}

/// Looks beyond the end for proof that more was durable.
fn judge(
    storage: &mut dyn Storage,
    survey: &Survey,
    generation: Generation,
    walked: &mut Walked,
) -> Result<(), StorageError> {
    let Evidence { watermark, trace } = look_ahead(storage, survey, generation, walked.end)?;
    walked.watermark = walked.watermark.max(watermark);
    walked.trace = trace;
    if walked.end < walked.watermark {
        walked.damage = Some(damage_at(survey, walked.end, walked.watermark));
    }
    Ok(())
}

/// Says what lies in the way at `lsn`, below `watermark`.
fn damage_at(survey: &Survey, lsn: Lsn, watermark: Lsn) -> Damage {
    let place = survey.geometry().place_of(lsn);
    let (kind, file) = match survey.segments.get(&place.segment) {
        Some(entry) if entry.bytes < survey.geometry().segment_file_bytes() => {
            (DamageKind::FileTruncated, segment_file_name(entry.slot))
        }
        Some(entry) => (DamageKind::Record, segment_file_name(entry.slot)),
        None => {
            let unreadable: Vec<String> =
                survey.unreadable.iter().map(|entry| segment_file_name(entry.slot)).collect();
            (DamageKind::SegmentMissing { segment: place.segment }, unreadable.join(", "))
        }
    };
    Damage { kind, file, offset: place.offset, lsn, watermark }
}
