//! What benchmarks work in: a scratch directory that is gone afterwards, and memory aligned for direct writes.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fs;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// A new directory, removed with all it holds when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes one in `parent`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(parent: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("mainstay-bench-{}-{number}", std::process::id()));
        fs::create_dir_all(parent)?;
        fs::create_dir(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Size of a huge page, in bytes.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes aligned to 4 KiB; in huge pages where there are enough of them.
#[derive(Debug)]
pub struct AlignedBytes {
    base: NonNull<u8>,
    layout: Layout,
    in_huge_pages: bool,
}

// SAFETY: plain owned memory, like a boxed slice.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `length` bytes of `value`.
    ///
    /// # Panics
    /// When `length` is zero.
    #[must_use]
    pub fn filled(length: usize, value: u8) -> Self {
        assert!(length > 0, "an empty buffer has no address");
        let alignment = if length >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 4096 };
        let layout = Layout::from_size_align(length, alignment).expect("a power of two");
        // Not `alloc_zeroed`, which touches every byte of an aligned layout: the advice below would come too late.
        // SAFETY: the layout is not empty.
        let Some(base) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        // A device takes fewer and larger requests from memory that is contiguous. Refused, it is only slower.
        // SAFETY: advice on memory that was just allocated and is owned.
        let advise = |advice| unsafe { libc::madvise(base.as_ptr().cast(), length, advice) } == 0;
        let is_large = length >= HUGE_PAGE_BYTES;
        if is_large {
            advise(libc::MADV_HUGEPAGE);
        }
        // SAFETY: as long as the layout.
        unsafe { base.write_bytes(value, length) };
        // The allocator may have given memory that was in use before, in small pages.
        let in_huge_pages = is_large && advise(libc::MADV_COLLAPSE);
        Self { base, layout, in_huge_pages }
    }

    /// Whether the kernel says that all whole huge pages among them are such.
    #[must_use]
    pub fn in_huge_pages(&self) -> bool {
        self.in_huge_pages
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: allocated with this length, initialized, owned.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}
