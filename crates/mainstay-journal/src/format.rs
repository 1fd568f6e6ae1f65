//! The bytes of everything that the journal writes: file headers, page headers, records. `docs/journal-format.md` is
//! this file in tables; a test pins the bytes.

mod file_header;

pub use self::file_header::{FileHeader, FileKind, HeaderError};
use crate::geometry::{Geometry, SEGMENT_HEADER_BYTES};
use crate::memory::CONTROL_BYTES;
use crate::record::Kind;
use crate::striping::Striping;
use mainstay_checksum::crc32c_append;
use mainstay_types::id::{Generation, InstanceId, Lsn, StoreId};
use std::ops::RangeInclusive;

/// Bytes of a file header that its checksum covers: one sector, which a power cut writes whole or not at all.
pub const FILE_HEADER_BYTES: usize = 512;

/// Offset of the second copy in the superblock file. Another 4 KiB block than the first.
pub(crate) const SUPERBLOCK_COPY_OFFSET: u64 = 4096;
/// Length of the superblock file.
pub(crate) const SUPERBLOCK_FILE_BYTES: u64 = 8192;

/// Bytes of a page's header.
pub const PAGE_HEADER_BYTES: usize = 64;
/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = 32;
/// Records start at multiples of this many bytes.
pub const RECORD_ALIGNMENT_BYTES: usize = 8;

/// The name of the superblock file.
pub const SUPERBLOCK_FILE: &str = "superblock";
/// The name of a superblock whose journal is still being made.
pub(crate) const SUPERBLOCK_UNFINISHED_FILE: &str = "superblock.new";
/// The name of the ring's file.
pub const RING_FILE: &str = "ring";
const SEGMENT_PREFIX: &str = "segment-";

const PAGE_MAGIC: u32 = u32::from_le_bytes(*b"MSPG");

/// The file of physical slot `slot`. Which segment it holds stands in its header.
#[must_use]
pub fn segment_file_name(slot: u64) -> String {
    format!("{SEGMENT_PREFIX}{slot:016x}")
}

/// The slot of a segment file's name, if it is one.
#[must_use]
pub fn segment_file_slot(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(SEGMENT_PREFIX)?;
    let plain =
        digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if plain { u64::from_str_radix(digits, 16).ok() } else { None }
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// What a repair gave up: watermarks of these lives beyond this place are not believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgiven {
    /// The last life concerned.
    pub generation: Generation,
    /// Where that repair cut.
    pub lsn: Lsn,
}

/// The root of a journal: two copies of it are kept, in blocks of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The identity of the directory.
    pub store: StoreId,
    /// Raised with every change.
    pub serial: u64,
    /// The last life that was begun.
    pub generation: Generation,
    /// The sizes of the journal.
    pub geometry: Geometry,
    /// Over how many directories its segments go round.
    pub stripes: u16,
    /// The first byte still needed: a record starts here, or a page.
    pub first: Lsn,
    /// The life in force at `first`.
    pub first_generation: Generation,
    /// Everything below was durable when this was written.
    pub watermark: Lsn,
    /// Where the last life begins: from here on, nothing of an earlier life counts.
    pub last_start: Lsn,
    /// What the last repair gave up.
    pub forgiven: Forgiven,
}

impl Superblock {
    /// The bytes of one copy.
    #[must_use]
    pub fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        FileHeader {
            store: self.store,
            serial: self.serial,
            generation: self.generation,
            geometry: self.geometry,
            striping: Striping { stripe: 0, stripes: self.stripes },
            fields: [
                self.first.0,
                self.first_generation.0,
                self.watermark.0,
                self.last_start.0,
                self.forgiven.generation.0,
                self.forgiven.lsn.0,
            ],
        }
        .encode(FileKind::Superblock)
    }

    /// Reads one copy.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let header = FileHeader::decode(FileKind::Superblock, bytes)?;
        let [first, first_generation, watermark, last_start, forgiven_generation, forgiven_lsn] =
            header.fields;
        Ok(Self {
            store: header.store,
            serial: header.serial,
            generation: header.generation,
            geometry: header.geometry,
            stripes: header.striping.stripes,
            first: Lsn(first),
            first_generation: Generation(first_generation),
            watermark: Lsn(watermark),
            last_start: Lsn(last_start),
            forgiven: Forgiven { generation: Generation(forgiven_generation), lsn: Lsn(forgiven_lsn) },
        })
    }

    /// How much of a watermark that was written in life `generation` is believed.
    pub(crate) fn believe(&self, watermark: Lsn, generation: Generation) -> Lsn {
        if generation <= self.forgiven.generation { watermark.min(self.forgiven.lsn) } else { watermark }
    }
}

/// What every checksum of a life starts from: the CRC-32C of the store's id and the generation. Bytes of another store
/// or of another life therefore never parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    crc: u32,
    /// The state of the checksum that four bytes of zero turn into `crc`.
    before_four_zeroes: u32,
}

impl Seed {
    /// The seed of life `generation` of `store`.
    #[must_use]
    pub fn new(store: StoreId, generation: Generation) -> Self {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&store.0), &generation.0.to_le_bytes());
        Self { crc, before_four_zeroes: before_four_zeroes(!crc) }
    }

    #[inline]
    fn crc(self, bytes: &[u8]) -> u32 {
        crc32c_append(self.crc, bytes)
    }

    /// The checksum of `bytes` but for the first four. They are run through all the same, on a state that cancels
    /// whatever they are: a checksum that begins where the record does takes whole aligned words, which takes a fifth
    /// less time for a record of 128 bytes than four single bytes and the rest.
    #[inline]
    fn crc_behind_first_four(self, bytes: &[u8]) -> u32 {
        let state = self.before_four_zeroes ^ u32_at(bytes, 0);
        crc32c_append(!state, bytes)
    }
}

/// The CRC-32C polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The state of a CRC-32C that four bytes of zero turn into `state`.
fn before_four_zeroes(state: u32) -> u32 {
    (0..32).fold(state, |after, _| {
        // A step shifts right and adds the polynomial, whose highest bit is set, if a one was shifted out.
        if after >> 31 == 1 { ((after ^ POLYNOMIAL) << 1) | 1 } else { after << 1 }
    })
}

/// The header of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHeader {
    /// Number of the page in the endless sequence of pages.
    pub page: u64,
    /// The life in which the page was opened.
    pub generation: Generation,
    /// Everything below was durable when the page was opened.
    pub watermark: Lsn,
}

impl PageHeader {
    /// The bytes of this header.
    #[must_use]
    pub fn encode(&self, store: StoreId) -> [u8; PAGE_HEADER_BYTES] {
        let mut bytes = [0; PAGE_HEADER_BYTES];
        put(&mut bytes, 0, &PAGE_MAGIC.to_le_bytes());
        put(&mut bytes, 8, &self.page.to_le_bytes());
        put(&mut bytes, 16, &self.generation.0.to_le_bytes());
        put(&mut bytes, 24, &self.watermark.0.to_le_bytes());
        let crc = Seed::new(store, self.generation).crc(&bytes[8..]);
        put(&mut bytes, 4, &crc.to_le_bytes());
        bytes
    }

    /// Reads a page header, whatever page it names; nothing if it is not one of `store`.
    #[must_use]
    pub fn decode(store: StoreId, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..PAGE_HEADER_BYTES)?;
        if u32_at(bytes, 0) != PAGE_MAGIC {
            return None;
        }
        let generation = Generation(u64_at(bytes, 16));
        if Seed::new(store, generation).crc(&bytes[8..]) != u32_at(bytes, 4) {
            return None;
        }
        Some(Self { page: u64_at(bytes, 8), generation, watermark: Lsn(u64_at(bytes, 24)) })
    }
}

/// The bytes that a record with `payload` bytes takes, padding included.
#[inline]
#[must_use]
pub const fn record_bytes(payload: usize) -> usize {
    (RECORD_HEADER_BYTES + payload + (RECORD_ALIGNMENT_BYTES - 1)) & !(RECORD_ALIGNMENT_BYTES - 1)
}

/// A record's header without its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) payload_bytes: u32,
    pub(crate) lsn: Lsn,
    pub(crate) instance: InstanceId,
    pub(crate) kind: Kind,
}

impl RecordHeader {
    /// Writes the first 32 bytes of a record, its checksum as zero. Whole words, because the checksum is computed from whole
    /// words: one that was written in pieces, or that nobody wrote, has to come from memory first.
    #[inline]
    pub(crate) fn put(&self, bytes: &mut [u8]) {
        let bytes: &mut [u8; RECORD_HEADER_BYTES] =
            (&mut bytes[..RECORD_HEADER_BYTES]).try_into().expect("a record starts with its header");
        bytes[..8].copy_from_slice(&(u64::from(self.payload_bytes) << 32).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.lsn.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.instance.0.to_le_bytes());
        bytes[24..].copy_from_slice(&u64::from(self.kind.0).to_le_bytes());
    }

    /// Reads a record header without looking at its checksum.
    #[inline]
    pub(crate) fn get(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        Some(Self {
            payload_bytes: u32_at(bytes, 4),
            lsn: Lsn(u64_at(bytes, 8)),
            instance: InstanceId(u64_at(bytes, 16)),
            kind: Kind(u16_at(bytes, 24)),
        })
    }

    /// Bytes that its checksum covers beyond the header: none of a pad's.
    #[inline]
    fn checked_payload_bytes(&self) -> usize {
        if self.kind == Kind::PAD { 0 } else { self.payload_bytes as usize }
    }

    /// Bytes up to the next record.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        record_bytes(self.payload_bytes as usize)
    }
}

/// Puts the checksum in front of the record whose other bytes are in place.
#[inline]
pub(crate) fn close_record(record: &mut [u8], checked_payload: usize, seed: Seed) {
    let crc = seed.crc_behind_first_four(&record[..RECORD_HEADER_BYTES + checked_payload]);
    put_checksum(record, crc);
}

/// The checksum of a record's header, to be continued with its payload.
pub(crate) fn begin_checksum(header: &[u8], seed: Seed) -> u32 {
    seed.crc_behind_first_four(&header[..RECORD_HEADER_BYTES])
}

/// Puts a checksum in front of the record it is of.
#[inline]
pub(crate) fn put_checksum(record: &mut [u8], crc: u32) {
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The record at the start of `bytes`, which end with its page, if its checksum holds for `seed`. Whether it is the
/// one that belongs there (its LSN) is for the caller to say.
#[inline]
pub(crate) fn parse_record(bytes: &[u8], seed: Seed) -> Option<RecordHeader> {
    let header = RecordHeader::get(bytes)?;
    let fits = (header.payload_bytes as usize) <= bytes.len() - RECORD_HEADER_BYTES;
    if !fits || header.kind.0 == 0 {
        return None;
    }
    let checked = &bytes[..RECORD_HEADER_BYTES + header.checked_payload_bytes()];
    (seed.crc_behind_first_four(checked) == u32_at(bytes, 0)).then_some(header)
}

/// Why a life began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum LifeReason {
    /// The journal was made.
    Created = 0,
    /// The previous life was sealed by a clean stop.
    CleanStop = 1,
    /// The previous life ended without a seal.
    Crash = 2,
}

/// The payload of the first record of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The life that begins.
    pub generation: Generation,
    /// Where the previous life ended, after repair.
    pub previous_end: Lsn,
    /// Why it began.
    pub reason: LifeReason,
}

impl Life {
    /// Bytes of the payload.
    pub const BYTES: usize = 24;

    /// The bytes of the payload.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &self.generation.0.to_le_bytes());
        put(&mut bytes, 8, &self.previous_end.0.to_le_bytes());
        put(&mut bytes, 16, &(self.reason as u64).to_le_bytes());
        bytes
    }

    /// Reads the payload.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let reason = match u64_at(bytes, 16) {
            0 => LifeReason::Created,
            1 => LifeReason::CleanStop,
            2 => LifeReason::Crash,
            _ => return None,
        };
        Some(Self { generation: Generation(u64_at(bytes, 0)), previous_end: Lsn(u64_at(bytes, 8)), reason })
    }
}

/// The record of a life that begins at the start of `bytes`, if it is one of `lives` and its checksum holds for the
/// life it names.
pub(crate) fn parse_life(
    bytes: &[u8],
    store: StoreId,
    lives: RangeInclusive<Generation>,
) -> Option<(RecordHeader, Life)> {
    let header = RecordHeader::get(bytes)?;
    if header.kind != Kind::LIFE || header.payload_bytes as usize != Life::BYTES {
        return None;
    }
    let life = Life::decode(bytes.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + Life::BYTES)?)?;
    if !lives.contains(&life.generation) {
        return None;
    }
    parse_record(bytes, Seed::new(store, life.generation)).map(|header| (header, life))
}

/// The watermark that a [`Kind::MARK`] or [`Kind::SEAL`] carries.
pub(crate) fn watermark_of(kind: Kind, payload: &[u8]) -> Option<Lsn> {
    let carries = kind == Kind::MARK || kind == Kind::SEAL;
    (carries && payload.len() == 8).then(|| Lsn(u64_at(payload, 0)))
}

const _: () =
    assert!(SEGMENT_HEADER_BYTES as usize >= FILE_HEADER_BYTES && CONTROL_BYTES >= FILE_HEADER_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_byte_of_a_record_is_noticed_and_so_is_another_life() {
        let store = StoreId([1; 16]);
        let seed = Seed::new(store, Generation(5));
        let mut bytes = [0xee; 64];
        let header = RecordHeader {
            payload_bytes: 13,
            lsn: Lsn(640),
            instance: InstanceId(2),
            kind: Kind::FIRST_USER,
        };
        header.put(&mut bytes);
        close_record(&mut bytes, 13, seed);
        assert_eq!(parse_record(&bytes, seed), Some(header));
        assert_eq!(parse_record(&bytes, Seed::new(store, Generation(6))), None);
        assert_eq!(parse_record(&bytes, Seed::new(StoreId([2; 16]), Generation(5))), None);
        for at in 0..RECORD_HEADER_BYTES + 13 {
            bytes[at] ^= 0x10;
            assert_eq!(parse_record(&bytes, seed), None, "byte {at}");
            bytes[at] ^= 0x10;
        }
    }

    #[test]
    fn a_checksum_that_begins_at_the_record_is_that_of_the_bytes_behind_the_first_four() {
        let seed = Seed::new(StoreId([3; 16]), Generation(9));
        let bytes: [u8; 200] = std::array::from_fn(|at| (at * 37 + 11) as u8);
        for end in 4..bytes.len() {
            assert_eq!(seed.crc_behind_first_four(&bytes[..end]), seed.crc(&bytes[4..end]), "{end} bytes");
        }
    }

    #[test]
    fn only_names_of_sixteen_digits_are_segments() {
        assert_eq!(segment_file_slot(&segment_file_name(0xabc)), Some(0xabc));
        for name in
            ["segment-", "segment-00000000000000zz", "segment-+000000000000001", "segment-0000000000000ABC"]
        {
            assert_eq!(segment_file_slot(name), None, "{name}");
        }
    }
}
