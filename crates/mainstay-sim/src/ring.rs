//! The ring of a simulated process: memory that outlives it, as a shared mapping does.

use mainstay_journal::memory::{HeapPages, PageMemory};
use std::cell::RefCell;
use std::rc::Rc;

/// Where a ring's bytes are found once its process is gone.
pub(crate) type Left = Rc<RefCell<Option<Vec<u8>>>>;

/// A ring.
#[derive(Debug)]
pub(crate) struct Ring {
    pages: HeapPages,
    left: Left,
}

impl Ring {
    /// A ring with the bytes of its file, control block first.
    pub(crate) fn new(file: &[u8], page_bytes: u32, count: u16, left: &Left) -> Self {
        Self { pages: HeapPages::of_file(file, page_bytes, count), left: Rc::clone(left) }
    }

    /// The bytes of its file.
    pub(crate) fn image(&self) -> Vec<u8> {
        self.pages.to_file()
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

    fn staging(&self) -> &[u8] {
        self.pages.staging()
    }

    fn staging_mut(&mut self) -> &mut [u8] {
        self.pages.staging_mut()
    }

    fn destage(&mut self, slot: usize, at: usize, bytes: usize) {
        self.pages.destage(slot, at, bytes);
    }

    fn control(&self) -> &[u8] {
        self.pages.control()
    }

    fn control_mut(&mut self) -> &mut [u8] {
        self.pages.control_mut()
    }
}
