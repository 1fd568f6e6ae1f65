//! The ring that appends are copied into, pages and a staging buffer, as seen by the journal: bytes that outlive this process when they
//! are a shared mapping, and a heap when they are not.

use mainstay_checksum::crc32c_append;

/// Bytes of the control block before the pages: its own header, then cells that survive kill -9 (see
/// `docs/journal-format.md`).
pub const CONTROL_BYTES: usize = 4096;

/// Bytes of the staging buffer behind the pages: short records are put there, and from there into their page many at a time. Larger, it pushes what
/// its users work on out of a core's first cache; smaller, fewer records share the wait at the end of a copy past the caches.
pub const STAGING_BYTES: usize = 16 << 10;

/// Bytes of the file of a ring of `pages` slots of `page_bytes`.
#[must_use]
pub fn ring_bytes(page_bytes: u32, pages: u16) -> usize {
    CONTROL_BYTES + page_bytes as usize * usize::from(pages) + STAGING_BYTES
}

/// Page slots, one control block and a staging buffer. The driver may read a slot (to write it to disk) while the journal fills bytes
/// behind the range being written; such bytes are not promised to anyone before they are written again.
pub trait PageMemory {
    /// The bytes of a slot.
    fn page(&self, slot: usize) -> &[u8];
    /// The bytes of a slot, to be filled.
    fn page_mut(&mut self, slot: usize) -> &mut [u8];
    /// Copies `part` to `at` in a slot and returns the CRC-32C continued with it. For long parts, of which it matters how they are copied.
    fn put_long(&mut self, slot: usize, at: usize, part: &[u8], crc: u32) -> u32 {
        self.page_mut(slot)[at..][..part.len()].copy_from_slice(part);
        crc32c_append(crc, part)
    }
    /// The staging buffer, [`STAGING_BYTES`] long. No effect names it, so that its bytes stay in the caches of who appends: only the kernel's write-back of
    /// the ring's file reads them.
    fn staging(&self) -> &[u8];
    /// The staging buffer, to be filled.
    fn staging_mut(&mut self) -> &mut [u8];
    /// Copies the first `bytes` of the staging buffer to `at` in a slot. Whoever is told to write them finds them there.
    fn destage(&mut self, slot: usize, at: usize, bytes: usize);
    /// The control block, [`CONTROL_BYTES`] long.
    fn control(&self) -> &[u8];
    /// The control block, to be changed.
    fn control_mut(&mut self) -> &mut [u8];
}

/// A ring in the heap: level `Memory`, for simulations, tests and measurements.
#[derive(Clone, Debug)]
pub struct HeapPages {
    control: Vec<u8>,
    pages: Vec<Vec<u8>>,
    staging: Vec<u8>,
}

impl HeapPages {
    /// `pages` slots of `page_bytes` zeroes.
    #[must_use]
    pub fn new(page_bytes: u32, pages: u16) -> Self {
        Self {
            control: vec![0; CONTROL_BYTES],
            pages: vec![vec![0; page_bytes as usize]; usize::from(pages)],
            staging: vec![0; STAGING_BYTES],
        }
    }

    /// The ring of a file's bytes.
    ///
    /// # Panics
    /// When it is not [`ring_bytes`] long.
    #[must_use]
    pub fn of_file(file: &[u8], page_bytes: u32, pages: u16) -> Self {
        assert_eq!(file.len(), ring_bytes(page_bytes, pages), "a ring is as long as its sizes say");
        let (control, rest) = file.split_at(CONTROL_BYTES);
        let (slots, staging) = rest.split_at(rest.len() - STAGING_BYTES);
        Self {
            control: control.to_vec(),
            pages: slots.chunks_exact(page_bytes as usize).map(<[u8]>::to_vec).collect(),
            staging: staging.to_vec(),
        }
    }

    /// The bytes of its file, as a shared mapping would leave them there.
    #[must_use]
    pub fn to_file(&self) -> Vec<u8> {
        [&self.control, &self.pages.concat(), &self.staging].map(Vec::as_slice).concat()
    }
}

impl PageMemory for HeapPages {
    fn page(&self, slot: usize) -> &[u8] {
        &self.pages[slot]
    }

    fn page_mut(&mut self, slot: usize) -> &mut [u8] {
        &mut self.pages[slot]
    }

    fn staging(&self) -> &[u8] {
        &self.staging
    }

    fn staging_mut(&mut self) -> &mut [u8] {
        &mut self.staging
    }

    fn destage(&mut self, slot: usize, at: usize, bytes: usize) {
        self.pages[slot][at..at + bytes].copy_from_slice(&self.staging[..bytes]);
    }

    fn control(&self) -> &[u8] {
        &self.control
    }

    fn control_mut(&mut self) -> &mut [u8] {
        &mut self.control
    }
}
