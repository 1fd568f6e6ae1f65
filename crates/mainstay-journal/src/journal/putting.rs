//! Putting a record where there is room for it, with its checksum: a short one into the staging buffer, a long one into the open page.
//!
//! A page was read for the disk when it was last filled, on a virtual machine by whichever core the host has chosen. To take its lines back one record after
//! another is slow where that core is far away; many records at once are copied there past the caches, and the staging buffer stays in those of
//! this core (`docs/benchmarks/journal.md`, "Append and replay"). Price: a second copy. Kill -9 leaves both: opening puts staged records where they belong.
//!
//! ```text
//!            payload ≥ 4 KiB: first what is staged, then itself
//!                 │
//!     page  ┌─────┴──────┬──────────┬─────────┐      staging  ┌──────────┬──────┐
//!           │  records   │          │ free    │               │ records  │ free │
//!           └────────────┴──────────┴─────────┘               └──────────┴──────┘
//!                        └──── destage ◄──────────────────────┴──────────┘
//!                                   ^ fill                    staged_bytes
//! ```

use super::{Appended, Journal};
use crate::format::{
    RECORD_ALIGNMENT_BYTES, RECORD_HEADER_BYTES, RecordHeader, begin_checksum, close_record, put_checksum,
    record_bytes,
};
use crate::memory::{PageMemory, STAGING_BYTES};
use crate::record::Kind;
use crate::ring;
use mainstay_checksum::crc32c_append;
use mainstay_types::id::{InstanceId, Lsn};

/// Payloads, and parts of them, of so many bytes or more are long: they are copied into their page at once, and the memory chooses how
/// (`docs/benchmarks/journal.md`, "Streaming").
const LONG_BYTES_MIN: usize = 4096;

const _: () = assert!(
    record_bytes(LONG_BYTES_MIN) <= STAGING_BYTES,
    "an empty staging buffer has room for a short record"
);

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
        if payload < LONG_BYTES_MIN {
            self.stage(kind, instance, parts, payload);
        } else {
            self.put_into_page(kind, instance, parts, payload);
        }
        let lsn = self.end;
        let bytes = record_bytes(payload);
        self.fill += bytes;
        self.end = lsn.plus(bytes as u64);
        Appended { lsn, end: self.end }
    }

    #[inline]
    fn stage(&mut self, kind: Kind, instance: InstanceId, parts: &[&[u8]], payload: usize) {
        let bytes = record_bytes(payload);
        if self.staged_bytes + bytes > STAGING_BYTES {
            self.destage();
        }
        if self.staged_bytes == 0 {
            ring::write_staged(self.memory.control_mut(), Some(self.end));
        }
        let record = &mut self.memory.staging_mut()[self.staged_bytes..][..bytes];
        begin_record(record, self.end, kind, instance, payload);
        let mut at = RECORD_HEADER_BYTES;
        for part in parts {
            record[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        close_record(record, payload, self.seed);
        self.staged_bytes += bytes;
    }

    #[inline(never)]
    fn put_into_page(&mut self, kind: Kind, instance: InstanceId, parts: &[&[u8]], payload: usize) {
        self.destage();
        let record = &mut self.memory.page_mut(self.slot)[self.fill..][..record_bytes(payload)];
        begin_record(record, self.end, kind, instance, payload);
        let mut crc = begin_checksum(record, self.seed);
        let mut at = RECORD_HEADER_BYTES;
        for part in parts {
            crc = if part.len() < LONG_BYTES_MIN {
                self.memory.page_mut(self.slot)[self.fill + at..][..part.len()].copy_from_slice(part);
                crc32c_append(crc, part)
            } else {
                self.memory.put_long(self.slot, self.fill + at, part, crc)
            };
            at += part.len();
        }
        assert_eq!(at, RECORD_HEADER_BYTES + payload, "the parts are the payload");
        put_checksum(&mut self.memory.page_mut(self.slot)[self.fill..], crc);
    }

    /// Copies what is staged into the open page.
    pub(super) fn destage(&mut self) {
        if self.staged_bytes == 0 {
            return;
        }
        self.memory.destage(self.slot, self.fill - self.staged_bytes, self.staged_bytes);
        ring::write_staged(self.memory.control_mut(), None);
        self.staged_bytes = 0;
    }
}

/// Puts the header, and zeroes the alignment gap before the payload is copied over what of these bytes is not gap.
#[inline]
fn begin_record(record: &mut [u8], lsn: Lsn, kind: Kind, instance: InstanceId, payload: usize) {
    let gap_from = record.len() - RECORD_ALIGNMENT_BYTES;
    record[gap_from..].fill(0);
    let payload_bytes = u32::try_from(payload).expect("a record is shorter than a page");
    RecordHeader { payload_bytes, lsn, instance, kind }.put(record);
}
