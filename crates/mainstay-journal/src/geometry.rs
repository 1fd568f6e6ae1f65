//! How large pages and segments are, and where a log sequence number lies.

use mainstay_types::id::Lsn;

/// Smallest unit of a write, in bytes: what direct I/O is aligned to.
pub const BLOCK_BYTES: u32 = 4096;

/// Largest page, in bytes.
pub const PAGE_BYTES_MAX: u32 = 64 << 20;

/// Pages in the ring, at most.
pub const PAGES_MAX: u16 = 64;

/// Pages in one segment file, at most.
pub const SEGMENT_PAGES_MAX: u32 = 65_536;

/// Bytes before the first page of a segment file: its header block.
pub const SEGMENT_HEADER_BYTES: u64 = 4096;

/// The sizes of a journal; fixed when its directory is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of one page: a power of two, [`BLOCK_BYTES`] to [`PAGE_BYTES_MAX`].
    pub page_bytes: u32,
    /// Pages in the ring: 1 (the synchronous baseline) to [`PAGES_MAX`].
    pub pages: u16,
    /// Pages in one segment file: 1 to [`SEGMENT_PAGES_MAX`].
    pub segment_pages: u32,
}

impl Default for Geometry {
    /// Three pages of 4 MiB, segments of 64 MiB.
    fn default() -> Self {
        Self { page_bytes: 4 << 20, pages: 3, segment_pages: 16 }
    }
}

/// Where a byte of the log lies in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the segment in the endless sequence of segments.
    pub segment: u64,
    /// Byte offset in the segment's file.
    pub offset: u64,
}

impl Geometry {
    /// Whether each size is within its limits.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.page_bytes.is_power_of_two()
            && (BLOCK_BYTES..=PAGE_BYTES_MAX).contains(&self.page_bytes)
            && (1..=PAGES_MAX).contains(&self.pages)
            && (1..=SEGMENT_PAGES_MAX).contains(&self.segment_pages)
    }

    /// Bytes of log in one segment, its header not counted.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        u64::from(self.page_bytes) * u64::from(self.segment_pages)
    }

    /// Length of a segment's file, in bytes.
    #[must_use]
    pub fn segment_file_bytes(&self) -> u64 {
        SEGMENT_HEADER_BYTES + self.segment_bytes()
    }

    /// The number of the page that holds `lsn`, in the endless sequence of pages.
    #[inline]
    #[must_use]
    pub fn page_of(&self, lsn: Lsn) -> u64 {
        lsn.0 >> self.page_bytes.trailing_zeros()
    }

    /// The first byte of page number `page`.
    #[must_use]
    pub fn page_start(&self, page: u64) -> Lsn {
        Lsn(page * u64::from(self.page_bytes))
    }

    /// The ring slot of page number `page`.
    #[must_use]
    pub fn slot_of(&self, page: u64) -> usize {
        usize::try_from(page % u64::from(self.pages)).expect("a slot is below 64")
    }

    /// The offset of `lsn` in its page.
    #[inline]
    #[must_use]
    pub fn offset_in_page(&self, lsn: Lsn) -> usize {
        (lsn.0 & (u64::from(self.page_bytes) - 1)) as usize
    }

    /// The number of the segment that holds `lsn`.
    #[must_use]
    pub fn segment_of(&self, lsn: Lsn) -> u64 {
        lsn.0 / self.segment_bytes()
    }

    /// The first byte of segment number `segment`.
    #[must_use]
    pub fn segment_start(&self, segment: u64) -> Lsn {
        Lsn(segment * self.segment_bytes())
    }

    /// Where `lsn` lies in the segment files.
    #[must_use]
    pub fn place_of(&self, lsn: Lsn) -> Place {
        Place {
            segment: lsn.0 / self.segment_bytes(),
            offset: SEGMENT_HEADER_BYTES + lsn.0 % self.segment_bytes(),
        }
    }
}
