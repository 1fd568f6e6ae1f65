//! The pages of a rank's log: copied into a ring in a shared mapping, written to the file behind the program's back.
//!
//! This is the seed's scheme: a call is copied into the current page; a full page is written by another thread while the
//! next one fills; the program waits only when no page is free, and that *stall* is measured. The ring is a shared mapping, so
//! that its pages outlive a killed process. A write that fails stops the recording, never the program.

mod leaving;
mod parts;
mod space;

use crate::compression::{self, Compression};
use crate::format::{
    self, ENTERED_OFFSET, FILE_HEADER_BYTES, FLAG_CONTINUED, FLAG_MORE, FileHeader, INPUTS_BYTES_MAX,
    INPUTS_HEAD_BYTES, INPUTS_OFFSET, Kind, LOG_MAGIC, PAGE_HEADER_BYTES, RECORD_HEADER_BYTES, RING_MAGIC,
    RecordHeader, STOPPED_BEHIND, STOPPED_OFFSET,
};
use mainstay_checksum::{crc32c_append, crc32c_append_two};
use memmap2::MmapRaw;
use parts::Parts;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// The log of a rank could not be made. Nothing is recorded; what was made of it is removed.
#[derive(Debug, thiserror::Error)]
#[error("the log {} cannot be made", path.display())]
pub struct CreateError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Figures of one log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Pages that were filled.
    pub pages_filled: u64,
    /// Times that no page was free.
    pub pages_awaited: u64,
    /// How long the program waited for a free page, all in all, in nanoseconds.
    pub stall_ns: u64,
    /// How long the program copied and checksummed, waits left out, in nanoseconds; 0 unless [`Pages::measure_copies`].
    pub copy_ns: u64,
}

/// What becomes of a page that is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writing {
    /// It is written, as far as the page cache.
    #[default]
    PageCache,
    /// It is written, and on the disk before its slot is used again.
    Synced,
    /// It is never written: the cost of buffering alone. Such a log cannot be replayed.
    Never,
}

/// What the thread that writes pages has used, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterFigures {
    /// In writing, waits for the disk included.
    pub write_ns: u64,
    /// Of processor time.
    pub cpu_ns: u64,
}

/// The pages of one rank, open for appending.
#[derive(Debug)]
pub struct Pages {
    header: FileHeader,
    ring_path: PathBuf,
    map: Arc<MmapRaw>,
    /// Number of the page that is being filled, and how far, in bytes.
    page: u64,
    offset: usize,
    /// Where that page stands in the mapping, in bytes.
    base: usize,
    /// Of that page's checksums.
    seed: u32,
    /// Where the last record begins, if it is in this page and may still count up: see [`Pages::count_up`].
    last: Option<usize>,
    shared: Arc<Shared>,
    orders: Option<Sender<u64>>,
    writer: Option<JoinHandle<WriterFigures>>,
    figures: Figures,
    writing: Writing,
    measures_copies: bool,
    /// Whether recording ends when no page is free, and whether it has.
    drops: bool,
    behind: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    log: File,
    synced: AtomicBool,
    /// Where the next compressed page begins, in bytes. Pages are written one after the other.
    end: AtomicU64,
}

impl Shared {
    fn put_page(&self, header: &FileHeader, page: u64, bytes: &[u8]) -> io::Result<()> {
        match header.compression {
            Compression::None => {
                space::give_back_before(&self.log, header, page)?;
                self.log.write_all_at(bytes, header.log_offset(page))
            }
            Compression::Zstandard => {
                let frame = compression::compress(bytes, header, page);
                let at = self.end.fetch_add(frame.len() as u64, Ordering::Relaxed);
                self.log.write_all_at(&frame, at)
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// Pages whose write is complete: all below this number.
    written: u64,
    failed: Option<i32>,
}

/// Less room than this for a body is not used, in bytes: a record is cut rather than leave room, but not into crumbs.
const BODY_BYTES_MIN: usize = 64;

/// What a record says about itself besides its body.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// Number of the function, 0 where there is none.
    pub function: u16,
    /// Number of the calling thread.
    pub thread: u16,
    /// Number of the call that begins the next page, should one begin within this record.
    pub call: u64,
}

impl Pages {
    /// Makes the log at `path` with its ring at `ring_path`. A log with a bound ([`FileHeader::kept_pages`]) gives the pages between
    /// its first and its latest back as it goes.
    ///
    /// # Errors
    /// [`CreateError`] when a file cannot be made at its full length, or the file system cannot give back the midst of a file that
    /// is to have a bound; nothing is left behind.
    pub fn create(path: &Path, ring_path: &Path, header: FileHeader) -> Result<Self, CreateError> {
        let failed = |at: &Path| {
            let at = at.to_owned();
            move |source| {
                let _ = std::fs::remove_file(path);
                let _ = std::fs::remove_file(ring_path);
                CreateError { path: at, source }
            }
        };
        let log = create_new(path).map_err(failed(path))?;
        log.write_all_at(&header.encode(LOG_MAGIC), 0).map_err(failed(path))?;
        space::can_give_back(&log, &header).map_err(failed(path))?;
        let ring_bytes = FILE_HEADER_BYTES + header.pages as usize * header.page_bytes as usize;
        let ring = create_new(ring_path).map_err(failed(ring_path))?;
        // Allocated, not only as long: a store into a hole of a full disk would kill the program.
        space::allocate(&ring, ring_bytes as u64).map_err(failed(ring_path))?;
        ring.write_all_at(&header.encode(RING_MAGIC), 0).map_err(failed(ring_path))?;
        let map = MmapRaw::map_raw(&ring).map_err(failed(ring_path))?;
        let map = Arc::new(map);

        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            log,
            synced: AtomicBool::new(false),
            end: AtomicU64::new(FILE_HEADER_BYTES as u64),
        });
        let (orders, queue) = channel();
        let writer = std::thread::Builder::new()
            .name("mainstay-mpi".to_owned())
            .spawn({
                let (shared, map) = (Arc::clone(&shared), Arc::clone(&map));
                move || write_pages(&shared, &map, header, &queue)
            })
            .map_err(failed(path))?;
        let mut pages = Self {
            header,
            ring_path: ring_path.to_owned(),
            map,
            page: 0,
            offset: 0,
            base: header.ring_offset(0),
            seed: 0,
            last: None,
            shared,
            orders: Some(orders),
            writer: Some(writer),
            figures: Figures::default(),
            writing: Writing::default(),
            measures_copies: false,
            drops: false,
            behind: false,
        };
        pages.begin_page(1).expect("nothing was written yet, so nothing has failed");
        Ok(pages)
    }

    /// Says what becomes of full pages from now on.
    pub fn set_writing(&mut self, writing: Writing) {
        self.writing = writing;
        self.shared.synced.store(writing == Writing::Synced, Ordering::Relaxed);
    }

    /// Says that recording ends rather than let the program wait for a free page.
    pub fn drop_when_behind(&mut self) {
        self.drops = true;
    }

    /// Number of the page that is being filled.
    #[must_use]
    pub fn page(&self) -> u64 {
        self.page
    }

    /// Measures from now on how long copying takes, at the price of two looks at a clock for each record.
    pub fn measure_copies(&mut self) {
        self.measures_copies = true;
    }

    /// Appends a record whose body is `parts` one after the other. It is in the log when this returns.
    ///
    /// # Errors
    /// The system's number of the error that an earlier page's write failed with. Nothing more can be appended; what the
    /// ring holds stays.
    pub fn append(&mut self, head: Head, parts: &[&[u8]]) -> Result<(), i32> {
        if !self.measures_copies {
            return self.append_unmeasured(head, parts);
        }
        let (begun, stalled_ns) = (Instant::now(), self.figures.stall_ns);
        let appended = self.append_unmeasured(head, parts);
        let took_ns = elapsed_ns(begun);
        self.figures.copy_ns += took_ns.saturating_sub(self.figures.stall_ns - stalled_ns);
        appended
    }

    fn append_unmeasured(&mut self, head: Head, parts: &[&[u8]]) -> Result<(), i32> {
        if let [body] = parts
            && let room = self.header.page_bytes as usize - self.offset
            && room >= RECORD_HEADER_BYTES + body.len().max(BODY_BYTES_MIN)
        {
            self.put_whole(head, body);
            return Ok(());
        }
        let mut left: usize = parts.iter().map(|part| part.len()).sum();
        let mut source = Parts::of(parts);
        let mut continued = 0;
        loop {
            let room = self.room(head.call)?;
            let body = left.min(room);
            left -= body;
            let more = if left > 0 { FLAG_MORE } else { 0 };
            let header = RecordHeader {
                kind: head.kind,
                flags: more | continued,
                function: head.function,
                thread: head.thread,
                body_bytes: u32::try_from(body).expect("a page is below 4 GiB"),
            };
            self.put(&header, &mut source);
            if left == 0 {
                return Ok(());
            }
            continued = FLAG_CONTINUED;
        }
    }

    /// Adds one to the number that the last record's body begins with, if that record is still in the current page.
    /// Whether it was; if not, the caller appends a new one.
    pub fn count_up(&mut self) -> bool {
        let Some(at) = self.last else {
            return false;
        };
        let (seed, span) = (self.seed, self.offset - at);
        let record = &mut self.current()[at..at + span];
        let count = record[RECORD_HEADER_BYTES..][..8].try_into().expect("a run begins with its number");
        let count = u64::from_le_bytes(count) + 1;
        record[RECORD_HEADER_BYTES..][..8].copy_from_slice(&count.to_le_bytes());
        // Readers know what a kill between these two leaves: a number that is one ahead of its checksum.
        compiler_fence(Ordering::Release);
        let body = u32::from_le_bytes(record[4..8].try_into().expect("four bytes")) as usize;
        let crc = crc32c_append(seed, &record[4..RECORD_HEADER_BYTES + body]);
        record[..4].copy_from_slice(&crc.to_le_bytes());
        true
    }

    /// Says which call the rank is about to enter. Found again after a kill.
    pub fn enter(&mut self, function: u16, call: u64) {
        self.put_cell(ENTERED_OFFSET, u64::from(function), call);
    }

    /// Says what went into the call that the rank is about to wait in.
    pub fn enter_with(&mut self, call: u64, inputs: [&[u8]; 2]) {
        // Somebody may look at a running process: not valid while it is written.
        self.put_cell(INPUTS_OFFSET, 0, 0);
        compiler_fence(Ordering::Release);
        let mut length = 0;
        for part in inputs {
            let part = &part[..part.len().min(INPUTS_BYTES_MAX - length)];
            let at = INPUTS_OFFSET + INPUTS_HEAD_BYTES + length;
            // SAFETY: within the control block, by the line above; only this thread of the owner writes to it.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), self.map.as_mut_ptr().add(at), part.len());
            };
            length += part.len();
        }
        compiler_fence(Ordering::Release);
        self.put_cell(INPUTS_OFFSET, call, length as u64);
    }

    /// Says that the files have other names now.
    pub fn renamed(&mut self, ring_path: &Path) {
        ring_path.clone_into(&mut self.ring_path);
    }

    /// Says in the ring that nothing follows after `call` calls, and why: the system's number of an error.
    pub fn mark_stopped(&mut self, errno: i32, call: u64) {
        self.put_cell(STOPPED_OFFSET, u64::from(errno.unsigned_abs()), call);
    }

    /// Figures so far.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// Bytes of log so far, those of pages that are never written included.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.header.log_offset(self.page) + self.offset as u64
    }

    /// Writes what is in the ring and removes the ring. After a failure of a write the ring stays: it holds the end.
    ///
    /// # Errors
    /// The system's number of the error that a write failed with.
    pub fn finish(mut self) -> Result<WriterFigures, i32> {
        let (page, offset) = (self.page, self.offset);
        self.wait_written(page);
        let mut failed = self.state().failed;
        if failed.is_none() && self.writing != Writing::Never {
            let bytes = &self.current()[..offset];
            let bytes = bytes.to_vec();
            failed = self.shared.put_page(&self.header, page, &bytes).err().map(|error| errno_of(&error));
        }
        let used = self.stop_writer();
        match failed.or(self.behind.then_some(STOPPED_BEHIND)) {
            None => {
                let _ = std::fs::remove_file(&self.ring_path);
                Ok(used)
            }
            Some(errno) => Err(errno),
        }
    }

    /// Bytes of body that fit into the current page, after a new page if there is no sensible room in this one.
    fn room(&mut self, call: u64) -> Result<usize, i32> {
        let page_bytes = self.header.page_bytes as usize;
        if page_bytes - self.offset < RECORD_HEADER_BYTES + BODY_BYTES_MIN {
            self.end_page();
            self.begin_page(call)?;
        }
        Ok((page_bytes - self.offset - RECORD_HEADER_BYTES) & !7)
    }

    /// Puts a record that is not cut: nearly all are.
    fn put_whole(&mut self, head: Head, body: &[u8]) {
        let header = RecordHeader {
            kind: head.kind,
            flags: 0,
            function: head.function,
            thread: head.thread,
            body_bytes: u32::try_from(body.len()).expect("a page is below 4 GiB"),
        };
        let encoded = header.encode();
        let crc = crc32c_append_two(self.seed, &encoded[4..], body);
        let (at, span) = (self.offset, header.span());
        let record = &mut self.current()[at..at + span];
        record[4..RECORD_HEADER_BYTES].copy_from_slice(&encoded[4..]);
        record[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + body.len()].copy_from_slice(body);
        self.finish_record(&header, crc);
    }

    fn put(&mut self, header: &RecordHeader, source: &mut Parts<'_>) {
        let (at, body, seed) = (self.offset, header.body_bytes as usize, self.seed);
        let record = &mut self.current()[at..at + header.span()];
        let encoded = header.encode();
        record[4..RECORD_HEADER_BYTES].copy_from_slice(&encoded[4..]);
        let target = &mut record[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + body];
        let crc = source.copy_to(target, crc32c_append(seed, &encoded[4..]));
        self.finish_record(header, crc);
    }

    /// The record at the current offset is all there but its checksum.
    fn finish_record(&mut self, header: &RecordHeader, crc: u32) {
        let at = self.offset;
        // Last: before this the record does not parse.
        compiler_fence(Ordering::Release);
        self.current()[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        self.offset += header.span();
        self.last =
            (header.flags == 0 && matches!(header.kind, Kind::Misses | Kind::Unhandled)).then_some(at);
    }

    fn end_page(&mut self) {
        if self.offset == self.header.page_bytes as usize && (self.behind || self.state().failed.is_some()) {
            self.page += 1;
            return;
        }
        let left = self.header.page_bytes as usize - self.offset;
        if left >= RECORD_HEADER_BYTES {
            let pad = RecordHeader { kind: Kind::Pad, flags: 0, function: 0, thread: 0, body_bytes: 0 };
            self.put(&pad, &mut Parts::of(&[]));
        }
        self.figures.pages_filled += 1;
        if let Some(orders) = &self.orders
            && self.writing != Writing::Never
        {
            // The writer ends only after this end of the channel is dropped.
            orders.send(self.page).expect("the writer lives as long as the pages");
        }
        self.page += 1;
    }

    fn begin_page(&mut self, call: u64) -> Result<(), i32> {
        // The page that had this slot before must be in the file. Where its write failed, the slot has the only copy.
        let before = (self.page + 1).saturating_sub(u64::from(self.header.pages));
        self.behind |= self.drops && self.writing != Writing::Never && self.state().written < before;
        if !self.behind {
            self.wait_written(before);
        }
        let failed = if self.behind { Some(STOPPED_BEHIND) } else { self.state().failed };
        if let Some(errno) = failed {
            // The page before is the current one again: `base` was not moved.
            self.page -= 1;
            self.offset = self.header.page_bytes as usize;
            return Err(errno);
        }
        let seed = self.header.seed(self.page);
        let page = self.page;
        self.base = self.header.ring_offset(page);
        self.seed = seed;
        self.offset = PAGE_HEADER_BYTES;
        self.last = None;
        format::encode_page_header(self.current(), seed, page, call);
        Ok(())
    }

    fn wait_written(&mut self, count: u64) {
        if self.writing == Writing::Never {
            return;
        }
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.written >= count {
            return;
        }
        let begun = Instant::now();
        while state.written < count {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.figures.pages_awaited += 1;
        self.figures.stall_ns += elapsed_ns(begun);
    }

    fn current(&mut self) -> &mut [u8] {
        let at = self.base;
        // SAFETY: the mapping is as long as header and pages; the writer thread reads only pages that were ordered, and a
        // slot becomes current again only after its write is complete (`wait_written`).
        unsafe {
            std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(at), self.header.page_bytes as usize)
        }
    }

    fn put_cell(&mut self, at: usize, first: u64, second: u64) {
        let cell = format::encode_cell(first, second);
        // SAFETY: the control block is within the mapping, and only this thread of the owner writes to it.
        unsafe {
            std::ptr::copy_nonoverlapping(cell.as_ptr(), self.map.as_mut_ptr().add(at), cell.len());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop_writer(&mut self) -> WriterFigures {
        self.orders = None;
        self.writer.take().and_then(|writer| writer.join().ok()).unwrap_or_default()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.stop_writer();
    }
}

/// Writes ordered pages until the other end of the channel is gone. After a failure it takes orders and writes nothing, so
/// that nobody waits for it.
fn write_pages(shared: &Shared, map: &MmapRaw, header: FileHeader, queue: &Receiver<u64>) -> WriterFigures {
    let mut figures = WriterFigures::default();
    for page in queue {
        let failed_before = shared.state.lock().unwrap_or_else(PoisonError::into_inner).failed;
        let mut failed = failed_before;
        if failed.is_none() {
            // SAFETY: an ordered page is within the mapping, and nobody writes to it until it is called written below.
            let bytes = unsafe {
                std::slice::from_raw_parts(
                    map.as_mut_ptr().add(header.ring_offset(page)).cast_const(),
                    header.page_bytes as usize,
                )
            };
            let begun = Instant::now();
            let mut written = shared.put_page(&header, page, bytes);
            if shared.synced.load(Ordering::Relaxed) {
                written = written.and_then(|()| shared.log.sync_data());
            }
            figures.write_ns += elapsed_ns(begun);
            failed = written.err().map(|error| errno_of(&error));
        }
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failed = failed;
        state.written = page + 1;
        drop(state);
        shared.changed.notify_all();
    }
    figures.cpu_ns = thread_cpu_ns();
    figures
}

/// Processor time that the calling thread has used, in nanoseconds.
fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the buffer is of the right type. This clock always answers.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

fn elapsed_ns(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
