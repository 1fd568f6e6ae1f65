//! Copying a record into the open page, and its checksum.

use super::{Appended, Journal};
use crate::format::{
    RECORD_HEADER_BYTES, RecordHeader, begin_checksum, close_record, put_checksum, record_bytes,
};
use crate::memory::PageMemory;
use crate::record::Kind;
use mainstay_checksum::copy_through_caches;
use mainstay_types::id::InstanceId;

/// Parts of so many bytes or more are long: the memory chooses how they are copied. Shorter ones are faster through the processor's caches
/// (`docs/benchmarks/journal.md`, "Streaming").
const LONG_BYTES_MIN: usize = 4096;

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
        let mut at = RECORD_HEADER_BYTES;
        if payload < LONG_BYTES_MIN {
            for part in parts {
                record[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            close_record(record, payload, self.seed);
        } else {
            let mut crc = begin_checksum(record, self.seed);
            for part in parts {
                crc = if part.len() < LONG_BYTES_MIN {
                    let into = &mut self.memory.page_mut(self.slot)[self.fill + at..][..part.len()];
                    copy_through_caches(crc, into, part)
                } else {
                    self.memory.put_long(self.slot, self.fill + at, part, crc)
                };
                at += part.len();
            }
            assert_eq!(at, RECORD_HEADER_BYTES + payload, "the parts are the payload");
            put_checksum(&mut self.memory.page_mut(self.slot)[self.fill..], crc);
        }
        self.fill += bytes;
        self.end = lsn.plus(bytes as u64);
        Appended { lsn, end: self.end }
    }
}
