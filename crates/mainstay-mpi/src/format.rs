//! The bytes of a rank's log: file header, pages, record headers. Described in `docs/mpi-log-format.md`.

use crate::compression::Compression;
use crate::payload::Payload;

/// First eight bytes of a log.
pub const LOG_MAGIC: [u8; 8] = *b"MSMPILOG";
/// First eight bytes of the ring that holds the pages not written yet.
pub const RING_MAGIC: [u8; 8] = *b"MSMPIRNG";
/// First four bytes of a page.
pub const PAGE_MAGIC: [u8; 4] = *b"MSMP";
/// Of the format. Version 1 had no times and no numbers of requests; version 2 did not say what a log with a bound keeps, and its
/// header's checksum did not cover magic and version.
pub const VERSION: u32 = 3;
/// Length of the header of a log and of the control block of a ring, in bytes.
pub const FILE_HEADER_BYTES: usize = 4096;
/// Length of a page's header, in bytes.
pub const PAGE_HEADER_BYTES: usize = 64;
/// Length of a record's header, in bytes.
pub const RECORD_HEADER_BYTES: usize = 16;
/// Smallest page, in bytes.
pub const PAGE_BYTES_MIN: usize = 4096;
/// Largest page, in bytes.
pub const PAGE_BYTES_MAX: usize = 64 << 20;
/// Most pages in a ring.
pub const PAGES_MAX: usize = 64;
/// Longest record, all its fragments together, in bytes: a reader refuses more.
pub const RECORD_BYTES_MAX: usize = 1 << 34;

/// Where the control block of a ring says which call the rank is in.
pub const ENTERED_OFFSET: usize = 512;
/// Where the control block of a ring says that the process left by `_exit`, and with which status.
pub const LEFT_OFFSET: usize = 768;
/// Where the control block of a ring says that, and why, recording stopped early.
pub const STOPPED_OFFSET: usize = 1024;
/// In the place of an error's number: the disk did not keep up, and the program was not to wait.
pub const STOPPED_BEHIND: i32 = 1 << 20;

/// Why recording stopped early, in words.
#[must_use]
pub fn stop_reason(stopped: i32) -> String {
    if stopped == STOPPED_BEHIND {
        "the disk did not keep up, and the program was not to wait".to_owned()
    } else {
        std::io::Error::from_raw_os_error(stopped).to_string()
    }
}

/// Where the control block of a ring has what went into the call that the rank waits in: see [`decode_inputs`].
pub const INPUTS_OFFSET: usize = 1536;
/// Room for that, in bytes; of a longer call the beginning is kept.
pub const INPUTS_BYTES_MAX: usize = FILE_HEADER_BYTES - INPUTS_OFFSET - INPUTS_HEAD_BYTES;
/// Where the inputs begin behind their cell, in bytes.
pub const INPUTS_HEAD_BYTES: usize = 24;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// One call with its fields.
    Call = 1,
    /// A run of equal polls that found nothing: their number (8 bytes), then the fields of one.
    Misses = 2,
    /// A run of calls that were forwarded and not recorded: their number (8 bytes).
    Unhandled = 3,
    /// A datatype, flattened.
    Type = 4,
    /// A communicator: who is in it.
    Comm = 5,
    /// Fortran's numbers of predefined objects.
    Fortran = 6,
    /// Names of functions by number.
    Names = 7,
    /// What was started: keys and values.
    Start = 8,
    /// The end of the process.
    End = 9,
    /// The rest of the page, of no meaning.
    Pad = 10,
    /// One moment by all clocks.
    Clock = 11,
}

impl Kind {
    /// The kind with that number.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Call,
            2 => Self::Misses,
            3 => Self::Unhandled,
            4 => Self::Type,
            5 => Self::Comm,
            6 => Self::Fortran,
            7 => Self::Names,
            8 => Self::Start,
            9 => Self::End,
            10 => Self::Pad,
            11 => Self::Clock,
            _ => return None,
        })
    }
}

/// The record goes on in the next one.
pub const FLAG_MORE: u8 = 1;
/// The record is the continuation of the one before.
pub const FLAG_CONTINUED: u8 = 2;

/// A header that was read is not one of ours, or is damaged. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Too short, or another magic.
    #[error("it does not begin like a Mainstay MPI log")]
    Magic,
    /// Another version.
    #[error("it has format version {found}, this program reads {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
    /// A policy for payloads that this version does not know.
    #[error("its header names a policy for payloads, {found}, that this program does not know")]
    Payload {
        /// The number found.
        found: u32,
    },
    /// A compression that this version does not know.
    #[error("its header names a compression, {found}, that this program does not know")]
    Compression {
        /// The number found.
        found: u32,
    },
    /// The checksum is wrong.
    #[error("the checksum of its header is wrong")]
    Checksum,
    /// Page size or number of pages outside the limits.
    #[error("its header names {pages} pages of {page_bytes} bytes, outside the limits")]
    Geometry {
        /// Pages in the ring.
        pages: u32,
        /// Bytes of a page.
        page_bytes: u32,
    },
}

impl HeaderError {
    /// Whether the bytes are damaged, and not of another version or something that no version would write.
    #[must_use]
    pub fn is_damage(self) -> bool {
        matches!(self, Self::Magic | Self::Checksum)
    }
}

/// What both files of a rank begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Drawn for a run: bytes of another run have no matching checksum.
    pub run: [u8; 16],
    /// Length of a page in bytes, a power of two.
    pub page_bytes: u32,
    /// Pages in the ring.
    pub pages: u32,
    /// Which side logs the bytes of messages.
    pub payload: Payload,
    /// How pages stand in the log.
    pub compression: Compression,
    /// Pages that the log keeps behind its first, the latest ones; 0: all.
    pub kept_pages: u32,
}

impl FileHeader {
    /// How many pages are kept behind the first where a log may have so many bytes: one at least.
    #[must_use]
    pub fn kept_pages(bytes: u64, page_bytes: u32) -> u32 {
        let kept = (bytes / u64::from(page_bytes)).saturating_sub(1).max(1);
        u32::try_from(kept).unwrap_or(u32::MAX)
    }

    /// The header as the first [`FILE_HEADER_BYTES`] of a file.
    #[must_use]
    pub fn encode(&self, magic: [u8; 8]) -> Vec<u8> {
        let mut bytes = vec![0; FILE_HEADER_BYTES];
        bytes[..8].copy_from_slice(&magic);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.run);
        bytes[32..36].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.pages.to_le_bytes());
        bytes[40..44].copy_from_slice(&(self.payload as u32).to_le_bytes());
        bytes[44..48].copy_from_slice(&(self.compression as u32).to_le_bytes());
        bytes[48..52].copy_from_slice(&self.kept_pages.to_le_bytes());
        let crc = header_crc(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`HeaderError`] unless it is whole and within the limits.
    pub fn decode(bytes: &[u8], magic: [u8; 8]) -> Result<Self, HeaderError> {
        if bytes.len() < 64 || bytes[..8] != magic {
            return Err(HeaderError::Magic);
        }
        let (version, crc) = (u32_at(bytes, 8), u32_at(bytes, 12));
        // Before version 3 the checksum left out what stands before it.
        let whole = crc == header_crc(bytes) || version < 3 && crc == crc32c::crc32c(&bytes[16..64]);
        if !whole {
            return Err(HeaderError::Checksum);
        }
        if version != VERSION {
            return Err(HeaderError::Version { found: version });
        }
        let run = bytes[16..32].try_into().expect("sixteen bytes");
        let found = u32_at(bytes, 40);
        let payload = Payload::from_number(found).ok_or(HeaderError::Payload { found })?;
        let found = u32_at(bytes, 44);
        let compression = Compression::from_number(found).ok_or(HeaderError::Compression { found })?;
        let header = Self {
            run,
            page_bytes: u32_at(bytes, 32),
            pages: u32_at(bytes, 36),
            payload,
            compression,
            kept_pages: u32_at(bytes, 48),
        };
        let page_bytes = header.page_bytes as usize;
        let fits = page_bytes.is_power_of_two()
            && (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes)
            && (1..=PAGES_MAX).contains(&(header.pages as usize))
            && (header.kept_pages == 0 || compression == Compression::None);
        if fits {
            Ok(header)
        } else {
            Err(HeaderError::Geometry { pages: header.pages, page_bytes: header.page_bytes })
        }
    }

    /// What every checksum of a page begins from, so that what the page's place held before never parses.
    #[must_use]
    pub fn seed(&self, page: u64) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.run), &page.to_le_bytes())
    }

    /// Where a page stands in the log, in bytes.
    #[must_use]
    pub fn log_offset(&self, page: u64) -> u64 {
        FILE_HEADER_BYTES as u64 + page * u64::from(self.page_bytes)
    }

    /// The page in whose place a byte of the file is; the first for what is ahead of all.
    #[must_use]
    pub fn page_at(&self, offset: u64) -> u64 {
        offset.saturating_sub(FILE_HEADER_BYTES as u64) / u64::from(self.page_bytes)
    }

    /// Where a page stands in the ring, in bytes.
    #[must_use]
    pub fn ring_offset(&self, page: u64) -> usize {
        let slot = usize::try_from(page % u64::from(self.pages)).expect("a slot is small");
        FILE_HEADER_BYTES + slot * self.page_bytes as usize
    }
}

/// The checksum of a file's header: of all but itself.
fn header_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..64])
}

/// Writes the header of page number `page`, whose first call has the number `call`.
pub fn encode_page_header(bytes: &mut [u8], seed: u32, page: u64, call: u64) {
    bytes[..PAGE_HEADER_BYTES].fill(0);
    bytes[8..16].copy_from_slice(&page.to_le_bytes());
    bytes[16..24].copy_from_slice(&call.to_le_bytes());
    let crc = crc32c::crc32c_append(seed, &bytes[8..PAGE_HEADER_BYTES]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    bytes[..4].copy_from_slice(&PAGE_MAGIC);
}

/// The number of the first call in a page, if this is the header of page number `page`.
#[must_use]
pub fn decode_page_header(bytes: &[u8], seed: u32, page: u64) -> Option<u64> {
    let header = bytes.get(..PAGE_HEADER_BYTES)?;
    let whole = header[..4] == PAGE_MAGIC
        && u32_at(header, 4) == crc32c::crc32c_append(seed, &header[8..])
        && u64_at(header, 8) == page;
    whole.then(|| u64_at(header, 16))
}

/// The header of a record, without its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What it is.
    pub kind: Kind,
    /// [`FLAG_MORE`], [`FLAG_CONTINUED`].
    pub flags: u8,
    /// Number of the function, where the kind has one.
    pub function: u16,
    /// Which of the process's threads called, in the order of their first calls.
    pub thread: u16,
    /// Length of what follows in this fragment, in bytes.
    pub body_bytes: u32,
}

impl RecordHeader {
    /// The header with the first four bytes left for the checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[8] = self.kind as u8;
        bytes[9] = self.flags;
        bytes[10..12].copy_from_slice(&self.function.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.thread.to_le_bytes());
        bytes
    }

    /// How many bytes of a page the record takes.
    #[must_use]
    pub fn span(&self) -> usize {
        let body = if self.kind == Kind::Pad { 0 } else { self.body_bytes as usize };
        (RECORD_HEADER_BYTES + body).next_multiple_of(8)
    }

    /// The record at the beginning of `bytes`, the rest of a page: its header and body. `None` where none is whole: the
    /// log ends there.
    #[must_use]
    pub fn read(bytes: &[u8], seed: u32) -> Option<(Self, &[u8])> {
        let header = bytes.get(..RECORD_HEADER_BYTES)?;
        let kind = Kind::from_byte(header[8])?;
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let (function, thread, body_bytes) = (half(10), half(12), u32_at(header, 4));
        let found = Self { kind, flags: header[9], function, thread, body_bytes };
        let body_bytes = if kind == Kind::Pad { 0 } else { found.body_bytes as usize };
        let whole = bytes.get(..RECORD_HEADER_BYTES.checked_add(body_bytes)?)?;
        (u32_at(header, 0) == crc32c::crc32c_append(seed, &whole[4..]))
            .then(|| (found, &whole[RECORD_HEADER_BYTES..]))
    }
}

/// The cell of a ring's control block that says which call a rank is in: function, number of the call, and a checksum, so
/// that a cell that was being written says nothing.
#[must_use]
pub fn encode_cell(first: u64, second: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..16].copy_from_slice(&second.to_le_bytes());
    bytes[16..].copy_from_slice(&(!(first.rotate_left(17) ^ second)).to_le_bytes());
    bytes
}

/// What a cell says, unless it is torn or was never written.
#[must_use]
pub fn decode_cell(bytes: &[u8]) -> Option<(u64, u64)> {
    let cell = bytes.get(..24)?;
    let (first, second) = (u64_at(cell, 0), u64_at(cell, 8));
    (u64_at(cell, 16) == !(first.rotate_left(17) ^ second)).then_some((first, second))
}

/// What the cell says of a process that left by `_exit` with this status.
#[must_use]
pub fn left_cell(status: i32) -> (u64, u64) {
    (u64::from(status.cast_unsigned()), 1)
}

/// That cell. It takes no memory and no lock: a signal's handler may ask for it.
#[must_use]
pub fn encode_left(status: i32) -> [u8; 24] {
    let (first, second) = left_cell(status);
    encode_cell(first, second)
}

/// What [`encode_left`] wrote.
#[must_use]
pub fn decode_left(bytes: &[u8]) -> Option<i32> {
    let (status, _) = decode_cell(bytes).filter(|cell| cell.1 == 1)?;
    Some(u32::try_from(status).ok()?.cast_signed())
}

/// Number of the call that a rank waits in, and what went into it, from the control block of its ring: a cell with number and
/// length, then the fields. `None` if they are torn or were never written.
#[must_use]
pub fn decode_inputs(control_block: &[u8]) -> Option<(u64, &[u8])> {
    let area = control_block.get(INPUTS_OFFSET..FILE_HEADER_BYTES)?;
    let (call, length) = decode_cell(area)?;
    let length = usize::try_from(length).ok().filter(|length| *length <= INPUTS_BYTES_MAX)?;
    Some((call, &area[INPUTS_HEAD_BYTES..][..length]))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: FileHeader = FileHeader {
        run: [7; 16],
        page_bytes: 4096,
        pages: 2,
        payload: Payload::Sender,
        compression: Compression::Zstandard,
        kept_pages: 0,
    };

    #[test]
    fn a_header_is_read_back_and_any_flipped_byte_refused() {
        let bytes = HEADER.encode(LOG_MAGIC);
        assert_eq!(FileHeader::decode(&bytes, LOG_MAGIC), Ok(HEADER));
        assert_eq!(FileHeader::decode(&bytes, RING_MAGIC), Err(HeaderError::Magic));
        for at in 0..64 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            let error = FileHeader::decode(&flipped, LOG_MAGIC).expect_err("a flipped byte");
            assert!(matches!(error, HeaderError::Magic | HeaderError::Checksum), "byte {at}: {error}");
        }
    }

    #[test]
    fn a_log_of_another_version_is_told_from_a_damaged_one() {
        let mut newer = HEADER.encode(LOG_MAGIC);
        newer[8] = 4;
        let crc = header_crc(&newer);
        newer[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(FileHeader::decode(&newer, LOG_MAGIC), Err(HeaderError::Version { found: 4 }));
        let mut older = HEADER.encode(LOG_MAGIC);
        older[8] = 2;
        let crc = crc32c::crc32c(&older[16..64]);
        older[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(FileHeader::decode(&older, LOG_MAGIC), Err(HeaderError::Version { found: 2 }));
        let bounded = FileHeader { compression: Compression::None, kept_pages: 3, ..HEADER };
        assert_eq!(FileHeader::decode(&bounded.encode(LOG_MAGIC), LOG_MAGIC), Ok(bounded));
        assert_eq!((FileHeader::kept_pages(8 << 20, 4 << 20), FileHeader::kept_pages(1, 4096)), (1, 1));
    }

    #[test]
    fn a_record_of_another_page_or_run_is_none() {
        let header = RecordHeader { kind: Kind::Call, flags: 0, function: 9, thread: 1, body_bytes: 3 };
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(b"abc");
        let crc = crc32c::crc32c_append(HEADER.seed(5), &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(RecordHeader::read(&bytes, HEADER.seed(5)), Some((header, &b"abc"[..])));
        assert_eq!(RecordHeader::read(&bytes, HEADER.seed(7)), None, "the same slot, two pages on");
        assert_eq!(RecordHeader::read(&bytes[..18], HEADER.seed(5)), None, "torn");
        let other = FileHeader { run: [8; 16], ..HEADER };
        assert_eq!(RecordHeader::read(&bytes, other.seed(5)), None);
    }

    #[test]
    fn the_bytes_of_the_first_version_stay() {
        let header =
            RecordHeader { kind: Kind::Misses, flags: 1, function: 0x0203, thread: 4, body_bytes: 5 };
        assert_eq!(header.encode(), [0, 0, 0, 0, 5, 0, 0, 0, 2, 1, 3, 2, 4, 0, 0, 0]);
        let mut page = [0; PAGE_HEADER_BYTES];
        encode_page_header(&mut page, HEADER.seed(3), 3, 17);
        assert_eq!(&page[..4], b"MSMP");
        assert_eq!(decode_page_header(&page, HEADER.seed(3), 3), Some(17));
        assert_eq!(decode_page_header(&page, HEADER.seed(1), 1), None);
    }
}
