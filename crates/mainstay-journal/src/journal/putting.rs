//! Copying a record into the open page, and its checksum.

use super::{Appended, Journal};
use crate::format::{RECORD_HEADER_BYTES, RecordHeader, close_record, close_record_around, record_bytes};
use crate::memory::PageMemory;
use crate::record::Kind;
use mainstay_checksum::copy_past_caches;
use mainstay_types::id::InstanceId;

/// Payloads of so many bytes or more go past the processor's caches: mostly the disk alone reads them, and takes them faster from memory than
/// from a core that works. Shorter ones are faster through the caches (`docs/benchmarks/journal.md`, "Streaming").
const PAST_CACHES_BYTES_MIN: usize = 4096;

impl<M: PageMemory> Journal<M> {
    /// Puts a record where there is room for it.
    #[inline]
    pub(super) fn put_record(
        &mut self,
        kind: Kind,
        instance: InstanceId,
        parts: &[&[u8]],
        payload: usize,
    ) -> Appended {
        let bytes = record_bytes(payload);
        let lsn = self.end;
        let record = &mut self.memory.page_mut(self.slot)[self.fill..self.fill + bytes];
        // The alignment gap is zeroed before the payload is copied over what of these bytes is not gap.
        record[bytes - 8..].fill(0);
        let payload_bytes = u32::try_from(payload).expect("a record is shorter than a page");
        RecordHeader { payload_bytes, lsn, instance, kind }.put(record);
        let (header, body) = record.split_at_mut(RECORD_HEADER_BYTES);
        let mut at = 0;
        if payload < PAST_CACHES_BYTES_MIN {
            for part in parts {
                body[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            close_record(record, payload, self.seed);
        } else {
            let copy = |crc, part: &&[u8]| {
                at += part.len();
                copy_past_caches(crc, &mut body[at - part.len()..at], part)
            };
            close_record_around(header, self.seed, |crc| parts.iter().fold(crc, copy));
        }
        self.fill += bytes;
        self.end = lsn.plus(bytes as u64);
        Appended { lsn, end: self.end }
    }
}
