//! The bytes of everything that the journal writes: file headers, page headers, records. `docs/journal-format.md` is
//! this file in tables; a test pins the bytes.

use crate::geometry::{Geometry, SEGMENT_HEADER_BYTES};
use crate::memory::CONTROL_BYTES;
use crate::record::Kind;
use crate::striping::Striping;
use mainstay_checksum::crc32c_append;
use mainstay_types::id::{Generation, InstanceId, Lsn, StoreId};
use std::ops::RangeInclusive;

/// The newest format version read.
pub const FORMAT_VERSION: u32 = 3;

/// The format version written into the ring: a program that knows no staging buffer must not take what is left for all there is.
const FORMAT_VERSION_STAGED: u32 = 3;

/// The format version written into the other files of a journal over several directories.
const FORMAT_VERSION_STRIPED: u32 = 2;

/// The one written into them where there is one directory: a program that knows no other reads that too.
const FORMAT_VERSION_UNSTRIPED: u32 = 1;

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

/// Which file a header begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// The superblock.
    Superblock,
    /// A segment.
    Segment,
    /// The ring.
    Ring,
    /// The identity file of a directory after the first.
    Stripe,
}

impl FileKind {
    fn magic(self) -> [u8; 8] {
        match self {
            Self::Superblock => *b"MSTSUPER",
            Self::Segment => *b"MSTSEGMT",
            Self::Ring => *b"MSTRRING",
            Self::Stripe => *b"MSTRIPED",
        }
    }
}

/// The first 512 bytes of each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// The directory it belongs to.
    pub store: StoreId,
    /// Superblock: raised with every change. Segment: raised with every preparation. Ring: 0. The higher one of two
    /// that claim the same is the later one.
    pub serial: u64,
    /// The life that wrote it.
    pub generation: Generation,
    /// The sizes of the journal.
    pub geometry: Geometry,
    /// The directory it lies in; the ring does not say.
    pub striping: Striping,
    /// What the kind of file adds: see [`Superblock`]; for a segment the first is its number.
    pub fields: [u64; 6],
}

/// Why a file header was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not what was written, or never written.
    #[error("the header does not match its checksum")]
    Damaged,
    /// Of a newer format, and intact.
    #[error("the header has format version {found}")]
    NewerVersion {
        /// Its version.
        found: u32,
    },
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

impl FileHeader {
    /// The bytes of this header.
    #[must_use]
    pub fn encode(&self, kind: FileKind) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        put(&mut bytes, 0, &kind.magic());
        let Striping { stripe, stripes } = self.striping;
        let version = match (kind, stripes) {
            (FileKind::Ring, _) => FORMAT_VERSION_STAGED,
            (_, 1) => FORMAT_VERSION_UNSTRIPED,
            _ => FORMAT_VERSION_STRIPED,
        };
        put(&mut bytes, 8, &version.to_le_bytes());
        put(&mut bytes, 16, &self.store.0);
        put(&mut bytes, 32, &self.serial.to_le_bytes());
        put(&mut bytes, 40, &self.generation.0.to_le_bytes());
        put(&mut bytes, 48, &self.geometry.page_bytes.to_le_bytes());
        put(&mut bytes, 52, &self.geometry.segment_pages.to_le_bytes());
        put(&mut bytes, 56, &self.geometry.pages.to_le_bytes());
        put(&mut bytes, 58, &stripe.to_le_bytes());
        put(&mut bytes, 60, &(stripes - 1).to_le_bytes());
        for (place, field) in self.fields.iter().enumerate() {
            put(&mut bytes, 64 + 8 * place, &field.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes);
        put(&mut bytes, 12, &crc.to_le_bytes());
        bytes
    }

    /// Reads a header from the first [`FILE_HEADER_BYTES`] of `bytes`.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn decode(kind: FileKind, bytes: &[u8]) -> Result<Self, HeaderError> {
        let bytes = bytes.get(..FILE_HEADER_BYTES).ok_or(HeaderError::Damaged)?;
        let crc = crc32c::crc32c(&bytes[..12]);
        let crc = crc32c::crc32c_append(crc, &[0; 4]);
        let crc = crc32c::crc32c_append(crc, &bytes[16..]);
        if bytes[..8] != kind.magic() || crc != u32_at(bytes, 12) {
            return Err(HeaderError::Damaged);
        }
        let version = u32_at(bytes, 8);
        if version > FORMAT_VERSION {
            return Err(HeaderError::NewerVersion { found: version });
        }
        let geometry = Geometry {
            page_bytes: u32_at(bytes, 48),
            segment_pages: u32_at(bytes, 52),
            pages: u16_at(bytes, 56),
        };
        let striping = Striping { stripe: u16_at(bytes, 58), stripes: u16_at(bytes, 60).saturating_add(1) };
        if !geometry.is_valid() || !striping.is_valid() {
            return Err(HeaderError::Damaged);
        }
        Ok(Self {
            store: StoreId(bytes[16..32].try_into().expect("16 bytes")),
            serial: u64_at(bytes, 32),
            generation: Generation(u64_at(bytes, 40)),
            geometry,
            striping,
            fields: std::array::from_fn(|place| u64_at(bytes, 64 + 8 * place)),
        })
    }
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
pub fn record_bytes(payload: usize) -> usize {
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
    fn a_header_of_a_newer_version_is_told_from_a_damaged_one() {
        let header = FileHeader {
            store: StoreId([7; 16]),
            serial: 3,
            generation: Generation(4),
            geometry: Geometry::default(),
            striping: Striping { stripe: 2, stripes: 5 },
            fields: [9, 8, 7, 6, 5, 4],
        };
        let bytes = header.encode(FileKind::Segment);
        assert_eq!(FileHeader::decode(FileKind::Segment, &bytes), Ok(header));
        assert_eq!(FileHeader::decode(FileKind::Ring, &bytes), Err(HeaderError::Damaged));
        assert_eq!(FileHeader::decode(FileKind::Segment, &bytes[..511]), Err(HeaderError::Damaged));

        let mut newer = bytes;
        newer[8] = 4;
        assert_eq!(FileHeader::decode(FileKind::Segment, &newer), Err(HeaderError::Damaged));
        newer[12..16].fill(0);
        let crc = crc32c::crc32c(&newer);
        newer[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            FileHeader::decode(FileKind::Segment, &newer),
            Err(HeaderError::NewerVersion { found: 4 })
        );
    }

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
