//! The place in a ring where a process that leaves by `_exit` says with which status.

use super::Pages;
use crate::format::{self, LEFT_OFFSET};
use std::sync::Arc;

impl Pages {
    /// Says in the ring that the process left by `_exit`.
    pub fn mark_left(&mut self, status: i32) {
        let (first, second) = format::left_cell(status);
        self.put_cell(LEFT_OFFSET, first, second);
    }

    /// Where a process that leaves at once is to put the bytes of [`format::encode_left`]: it cannot wait for who has the pages. Good
    /// for as long as the process lives, for the mapping is never taken back then.
    #[must_use]
    pub fn place_of_left(&self) -> *mut u8 {
        std::mem::forget(Arc::clone(&self.map));
        // SAFETY: within the control block.
        unsafe { self.map.as_mut_ptr().add(LEFT_OFFSET) }
    }
}
