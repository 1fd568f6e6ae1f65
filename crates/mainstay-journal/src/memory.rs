//! The ring of pages that appends are copied into, as seen by the journal: bytes that outlive this process when they
//! are a shared mapping, and a heap when they are not.

use mainstay_checksum::copy_through_caches;

/// Bytes of the control block before the pages: its own header, then cells that survive kill -9 (see
/// `docs/journal-format.md`).
pub const CONTROL_BYTES: usize = 4096;

/// Page slots and one control block. The driver may read a slot (to write it to disk) while the journal fills bytes
/// behind the range being written; such bytes are not promised to anyone before they are written again.
pub trait PageMemory {
    /// The bytes of a slot.
    fn page(&self, slot: usize) -> &[u8];
    /// The bytes of a slot, to be filled.
    fn page_mut(&mut self, slot: usize) -> &mut [u8];
    /// Copies `part` to `at` in a slot and returns the CRC-32C continued with it. For long parts, of which it matters how they are copied.
    fn put_long(&mut self, slot: usize, at: usize, part: &[u8], crc: u32) -> u32 {
        copy_through_caches(crc, &mut self.page_mut(slot)[at..][..part.len()], part)
    }
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
}

impl HeapPages {
    /// `pages` slots of `page_bytes` zeroes.
    #[must_use]
    pub fn new(page_bytes: u32, pages: u16) -> Self {
        Self {
            control: vec![0; CONTROL_BYTES],
            pages: vec![vec![0; page_bytes as usize]; usize::from(pages)],
        }
    }
}

impl PageMemory for HeapPages {
    fn page(&self, slot: usize) -> &[u8] {
        &self.pages[slot]
    }

    fn page_mut(&mut self, slot: usize) -> &mut [u8] {
        &mut self.pages[slot]
    }

    fn control(&self) -> &[u8] {
        &self.control
    }

    fn control_mut(&mut self) -> &mut [u8] {
        &mut self.control
    }
}
