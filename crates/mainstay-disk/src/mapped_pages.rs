//! The ring of pages in a file mapped shared: what is copied into it survives kill -9 without a system call.

use crate::copy_way::CopyWay;
use crate::failure::failure_of;
use crate::file_storage::FileStorage;
use crate::past_caches::copy_past_caches;
use crate::worker_threads::join_unless_self;
use mainstay_journal::memory::{CONTROL_BYTES, PageMemory, STAGING_BYTES, ring_bytes};
use mainstay_journal::storage::{Operation, Storage, StorageError};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// A ring file mapped into this process, unmapped when the last handle is dropped. Disk threads hold a handle each: they
/// pass addresses in it to the kernel and never look at the bytes themselves.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    page_bytes: usize,
}

// SAFETY: the mapping is plain memory that belongs to no thread. Bytes are read and written only through `MappedPages`,
// which is one object with the usual borrow rules; other threads use addresses only (`Mapping::address`).
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out addresses, no references to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The address of byte `from` of ring slot `slot`, good for `to - from` bytes.
    ///
    /// # Panics
    /// When the range is not inside one slot: the caller would read foreign memory.
    pub(crate) fn address(&self, slot: usize, from: u32, to: u32) -> *const u8 {
        let (from, to) = (from as usize, to as usize);
        assert!(from <= to && to <= self.page_bytes, "a write lies within one page");
        // SAFETY: a place within a slot is inside the mapping.
        unsafe { self.base.as_ptr().add(self.slot_start(slot) + from) }
    }

    fn slot_start(&self, slot: usize) -> usize {
        let start = CONTROL_BYTES + slot * self.page_bytes;
        assert!(start + self.page_bytes <= self.staging_start(), "a slot lies within the ring");
        start
    }

    fn staging_start(&self) -> usize {
        self.bytes - STAGING_BYTES
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and bytes are what mmap returned, and no handle is left that could use them.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The ring of one journal. There is one such object per mapping, owned by the journal.
#[derive(Debug)]
pub struct MappedPages {
    mapping: Arc<Mapping>,
    copy_way: CopyWay,
    _populating: Option<Populating>,
}

impl MappedPages {
    /// Maps `file` of `storage`'s directory as `pages` slots of `page_bytes`, keeping what an existing file holds.
    ///
    /// All its blocks are reserved before it is mapped, so that a full disk is an error here and never a signal
    /// (`SIGBUS`) at an append. Its pages are faulted in by a thread of their own, so that an append later faults only after
    /// write-back and a recovery does not wait for it.
    /// A file of another length is replaced: it is no ring of this geometry. One from before there was a staging buffer gets one.
    ///
    /// # Errors
    /// [`mainstay_journal::storage::Failure::NoSpace`] when the ring does not fit on the disk; nothing is left behind then.
    pub fn open(
        storage: &mut FileStorage,
        file: &str,
        page_bytes: u32,
        pages: u16,
    ) -> Result<Self, StorageError> {
        let bytes = ring_bytes(page_bytes, pages);
        let page_bytes = page_bytes as usize;
        let unstaged = (bytes - STAGING_BYTES) as u64;
        let present = storage.list()?.into_iter().find(|entry| entry.name == file);
        let short = present.as_ref().is_some_and(|entry| entry.bytes == unstaged);
        match present {
            Some(entry) if entry.bytes == bytes as u64 || short => {}
            Some(_) => {
                storage.remove(file)?;
                storage.create(file, bytes as u64)?;
            }
            None => storage.create(file, bytes as u64)?,
        }
        let fault = |error: io::Error| StorageError {
            operation: Operation::Create,
            file: file.to_owned(),
            failure: failure_of(&error),
        };
        let handle = OpenOptions::new().read(true).write(true).open(storage.path(file)).map_err(fault)?;
        if short {
            handle.write_all_at(&[0; STAGING_BYTES], unstaged).map_err(fault)?;
        }
        reserve(&handle, bytes).map_err(fault)?;
        let mapping = Arc::new(map(&handle, bytes, page_bytes).map_err(fault)?);
        let populating = Populating::begin(&mapping);
        Ok(Self { mapping, copy_way: CopyWay::default(), _populating: populating })
    }

    /// A handle by which disk threads find the bytes to write.
    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.mapping)
    }

    fn bytes(&self, start: usize, length: usize) -> &[u8] {
        assert!(start + length <= self.mapping.bytes, "the range lies within the ring");
        // SAFETY: the range is inside the mapping, whose blocks are reserved; only this object hands out references to
        // its bytes, under the usual borrow rules.
        unsafe { std::slice::from_raw_parts(self.mapping.base.as_ptr().add(start), length) }
    }

    fn bytes_mut(&mut self, start: usize, length: usize) -> &mut [u8] {
        assert!(start + length <= self.mapping.bytes, "the range lies within the ring");
        // SAFETY: as in `bytes`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base.as_ptr().add(start), length) }
    }
}

impl PageMemory for MappedPages {
    fn page(&self, slot: usize) -> &[u8] {
        self.bytes(self.mapping.slot_start(slot), self.mapping.page_bytes)
    }

    fn page_mut(&mut self, slot: usize) -> &mut [u8] {
        self.bytes_mut(self.mapping.slot_start(slot), self.mapping.page_bytes)
    }

    fn put_long(&mut self, slot: usize, at: usize, part: &[u8], crc: u32) -> u32 {
        let turn = self.copy_way.next();
        let since = turn.timed.then(Instant::now);
        let crc = turn.copy(crc, &mut self.page_mut(slot)[at..][..part.len()], part);
        if let Some(since) = since {
            self.copy_way.took(turn, since.elapsed(), part.len());
        }
        crc
    }

    fn staging(&self) -> &[u8] {
        self.bytes(self.mapping.staging_start(), STAGING_BYTES)
    }

    fn staging_mut(&mut self) -> &mut [u8] {
        self.bytes_mut(self.mapping.staging_start(), STAGING_BYTES)
    }

    fn destage(&mut self, slot: usize, at: usize, bytes: usize) {
        let (page_start, page_bytes) = (self.mapping.slot_start(slot), self.mapping.page_bytes);
        let staging_start = self.mapping.staging_start();
        let (slots, staging) = self.bytes_mut(0, self.mapping.bytes).split_at_mut(staging_start);
        let page = &mut slots[page_start..][..page_bytes];
        copy_past_caches(&mut page[at..at + bytes], &staging[..bytes]);
    }

    fn control(&self) -> &[u8] {
        self.bytes(0, CONTROL_BYTES)
    }

    fn control_mut(&mut self) -> &mut [u8] {
        self.bytes_mut(0, CONTROL_BYTES)
    }
}

/// Fills holes that a copied ring file may have; does nothing to blocks that exist. File systems that cannot reserve
/// are left with what `create` wrote in full.
fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).expect("a ring is far below 2^63 bytes");
    // SAFETY: plain call on an open file.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        error => Err(error),
    }
}

fn map(file: &File, bytes: usize, page_bytes: usize) -> io::Result<Mapping> {
    // SAFETY: a fresh shared mapping of a file that is at least `bytes` long; the kernel picks the address.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let base = NonNull::new(base.cast::<u8>()).expect("mmap never gives address zero unasked");
    Ok(Mapping { base, bytes, page_bytes })
}

/// Bytes faulted in by one call: what else wants to change the address space, a fork for a checkpoint, waits no longer than
/// for these.
const POPULATE_BYTES: usize = 256 << 10;

/// The thread that faults the ring in. It ends with the ring, so that whoever has closed a journal may unmount what it was on.
///
/// Without it, or where the kernel (before 5.14) does not know the advice, appends fault once per page of memory, which
/// costs time only: the blocks are reserved.
#[derive(Debug)]
struct Populating {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Populating {
    fn begin(mapping: &Arc<Mapping>) -> Option<Self> {
        let mapping = Arc::clone(mapping);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let populate = move || {
            for start in (0..mapping.bytes).step_by(POPULATE_BYTES) {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let length = POPULATE_BYTES.min(mapping.bytes - start);
                // SAFETY: the range is inside the mapping, which this thread's handle keeps.
                unsafe {
                    libc::madvise(mapping.base.as_ptr().add(start).cast(), length, libc::MADV_POPULATE_WRITE)
                };
            }
        };
        match std::thread::Builder::new().name("mainstay-ring".to_owned()).spawn(populate) {
            Ok(thread) => Some(Self { stop, thread: Some(thread) }),
            Err(error) => {
                tracing::debug!(%error, "no thread to fault in the ring; appends will");
                None
            }
        }
    }
}

impl Drop for Populating {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        join_unless_self(self.thread.take().expect("dropped once"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_unmapping_and_slots_do_not_overlap() {
        let directory = tempfile::tempdir().unwrap();
        let mut storage = FileStorage::new(directory.path());
        let mut ring = MappedPages::open(&mut storage, "ring", 8192, 2).unwrap();
        ring.control_mut()[0] = 7;
        ring.page_mut(0).fill(1);
        ring.page_mut(1).fill(2);
        drop(ring);
        let ring = MappedPages::open(&mut storage, "ring", 8192, 2).unwrap();
        assert_eq!(ring.control()[..2], [7, 0]);
        assert!(ring.page(0).iter().all(|&byte| byte == 1));
        assert!(ring.page(1).iter().all(|&byte| byte == 2));
        assert_eq!(ring.page(1).len(), 8192);
    }

    #[test]
    fn a_ring_of_another_geometry_is_replaced_and_holes_are_filled() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let mut storage = FileStorage::new(directory.path());
        File::create(storage.path("ring")).unwrap().set_len(4096 + 8192 + 16384).unwrap();
        let ring = MappedPages::open(&mut storage, "ring", 8192, 1).unwrap();
        assert!(std::fs::metadata(storage.path("ring")).unwrap().blocks() * 512 >= 4096 + 8192 + 16384);
        drop(ring);
        File::options().write(true).open(storage.path("ring")).unwrap().set_len(4096 + 8192).unwrap();
        let mut ring = MappedPages::open(&mut storage, "ring", 8192, 1).unwrap();
        ring.page_mut(0).fill(7);
        assert!(ring.staging().iter().all(|&byte| byte == 0), "it was short of these");
        drop(ring);
        let ring = MappedPages::open(&mut storage, "ring", 8192, 1).unwrap();
        assert!(ring.page(0).iter().all(|&byte| byte == 7), "it is the same file");
        drop(ring);
        let ring = MappedPages::open(&mut storage, "ring", 4096, 2).unwrap();
        assert_eq!(ring.page(1).len(), 4096);
        drop(ring);
        let ring = MappedPages::open(&mut storage, "ring", 4096, 3).unwrap();
        assert_eq!(ring.page(2).len(), 4096);
    }

    #[test]
    fn long_parts_stand_where_they_were_put_and_nothing_beside_them_changes() {
        let directory = tempfile::tempdir().unwrap();
        let mut storage = FileStorage::new(directory.path());
        let mut ring = MappedPages::open(&mut storage, "ring", 16384, 2).unwrap();
        for turn in 0..200 {
            let part = vec![turn; 5000 + usize::from(turn)];
            let at = 16384 - part.len() - usize::from(turn % 7);
            ring.page_mut(0).fill(0xEE);
            ring.page_mut(1).fill(0xEE);
            assert_eq!(ring.put_long(1, at, &part, 9), mainstay_checksum::crc32c_append(9, &part));
            let (before, rest) = ring.page(1).split_at(at);
            let (put, behind) = rest.split_at(part.len());
            assert!(put == part && ring.page(0).iter().chain(before).chain(behind).all(|&byte| byte == 0xEE));
        }
    }

    #[test]
    fn what_is_staged_survives_unmapping_and_stands_where_it_was_put_and_nowhere_else() {
        let directory = tempfile::tempdir().unwrap();
        let mut storage = FileStorage::new(directory.path());
        let mut ring = MappedPages::open(&mut storage, "ring", 8192, 2).unwrap();
        ring.page_mut(0).fill(1);
        ring.page_mut(1).fill(2);
        ring.control_mut().fill(3);
        let staged: Vec<u8> = (0..STAGING_BYTES).map(|at| (at * 7).to_le_bytes()[0]).collect();
        ring.staging_mut().copy_from_slice(&staged);
        drop(ring);
        let mut ring = MappedPages::open(&mut storage, "ring", 8192, 2).unwrap();
        assert_eq!(ring.staging(), staged);
        for (at, bytes) in [(0, 8192), (72, 160), (8191, 1), (64, 6000), (4096, 0)] {
            ring.page_mut(1).fill(2);
            ring.destage(1, at, bytes);
            let (before, rest) = ring.page(1).split_at(at);
            let (put, behind) = rest.split_at(bytes);
            assert_eq!(put, &staged[..bytes]);
            assert!(before.iter().chain(behind).all(|&byte| byte == 2));
            assert!(
                ring.page(0).iter().all(|&byte| byte == 1) && ring.control().iter().all(|&byte| byte == 3)
            );
            assert_eq!(ring.staging(), staged);
        }
    }

    #[test]
    #[should_panic(expected = "within one page")]
    fn addresses_outside_a_page_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut storage = FileStorage::new(directory.path());
        let ring = MappedPages::open(&mut storage, "ring", 4096, 2).unwrap();
        ring.mapping().address(0, 0, 8192);
    }
}
