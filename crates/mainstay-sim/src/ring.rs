//! The ring of a simulated process: memory that outlives it, as a shared mapping does.

use mainstay_journal::memory::{CONTROL_BYTES, HeapPages, PageMemory};
use std::cell::RefCell;
use std::rc::Rc;

/// Where a ring's bytes are found once its process is gone.
pub(crate) type Left = Rc<RefCell<Option<Vec<u8>>>>;

/// A ring.
#[derive(Debug)]
pub(crate) struct Ring {
    pages: HeapPages,
    count: u16,
    left: Left,
}

impl Ring {
    /// A ring with the bytes of its file, control block first.
    pub(crate) fn new(file: &[u8], page_bytes: u32, count: u16, left: &Left) -> Self {
        let mut pages = HeapPages::new(page_bytes, count);
        pages.control_mut().copy_from_slice(&file[..CONTROL_BYTES]);
        for (slot, page) in file[CONTROL_BYTES..].chunks_exact(page_bytes as usize).enumerate() {
            pages.page_mut(slot).copy_from_slice(page);
        }
        Self { pages, count, left: Rc::clone(left) }
    }

    /// The bytes of its file.
    pub(crate) fn image(&self) -> Vec<u8> {
        let mut file = self.pages.control().to_vec();
        for slot in 0..usize::from(self.count) {
            file.extend_from_slice(self.pages.page(slot));
        }
        file
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        *self.left.borrow_mut() = Some(self.image());
    }
}

impl PageMemory for Ring {
    fn page(&self, slot: usize) -> &[u8] {
        self.pages.page(slot)
    }

    fn page_mut(&mut self, slot: usize) -> &mut [u8] {
        self.pages.page_mut(slot)
    }

    fn control(&self) -> &[u8] {
        self.pages.control()
    }

    fn control_mut(&mut self) -> &mut [u8] {
        self.pages.control_mut()
    }
}
