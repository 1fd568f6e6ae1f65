//! Performs one write or sync on the calling thread: shared by the fast path and by all backends.

use crate::failure::failure_of;
use crate::file_storage::FileStorage;
use crate::lock::DirectoryLock;
use crate::mapped_pages::Mapping;
use crate::record::{Recorded, Recorder};
use crate::write_method::{WriteMethod, write_all};
use mainstay_journal::effect::{DiskEffect, DiskEvent, Ticket};
use mainstay_journal::geometry::{BLOCK_BYTES, Place};
use mainstay_journal::storage::Failure;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, PoisonError, RwLock};

/// A segment's file, open for writing.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    pub(crate) name: String,
    pub(crate) file: File,
}

/// What is needed to write pages: the ring, the files, and how.
#[derive(Debug)]
pub(crate) struct Performer {
    mapping: Arc<Mapping>,
    storage: FileStorage,
    method: WriteMethod,
    files: RwLock<BTreeMap<u64, Arc<SegmentFile>>>,
    /// Held by every thread that writes: the directory is free only when none is left.
    lock: Option<DirectoryLock>,
}

/// The bytes of one write: in the ring, or in a copy where they must not change while they are recorded.
pub(crate) struct Source {
    pub(crate) address: *const u8,
    pub(crate) length: usize,
    _copy: Option<Copied>,
}

// SAFETY: the address is passed to the kernel only; what it points to is kept mapped by the performer or by the copy.
unsafe impl Send for Source {}

/// Bytes aligned for direct writes.
struct Copied {
    bytes: Vec<Block>,
}

#[derive(Clone)]
#[repr(align(4096))]
struct Block {
    _bytes: [u8; BLOCK_BYTES as usize],
}

impl Performer {
    pub(crate) fn new(
        mapping: Arc<Mapping>,
        storage: FileStorage,
        method: WriteMethod,
        lock: Option<DirectoryLock>,
    ) -> Self {
        Self { mapping, storage, method, files: RwLock::default(), lock }
    }

    pub(crate) fn lock(&self) -> Option<&DirectoryLock> {
        self.lock.as_ref()
    }

    pub(crate) fn method(&self) -> WriteMethod {
        self.method
    }

    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.storage.recorder()
    }

    /// Opens the file of a segment for writes to come.
    pub(crate) fn add_segment(&self, segment: u64, name: &str) -> Result<(), Failure> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if self.method == WriteMethod::Direct {
            options.custom_flags(libc::O_DIRECT);
        }
        let file = options.open(self.storage.path(name)).map_err(|error| failure_of(&error))?;
        let entry = Arc::new(SegmentFile { name: name.to_owned(), file });
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(segment, entry);
        Ok(())
    }

    /// Closes the files of segments that `is_kept` does not want.
    pub(crate) fn retain_segments(&self, is_kept: impl Fn(u64) -> bool) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).retain(|&segment, _| is_kept(segment));
    }

    pub(crate) fn segment(&self, segment: u64) -> Option<Arc<SegmentFile>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(&segment).cloned()
    }

    /// Performs a write or a sync; the outcome is the event.
    ///
    /// # Panics
    /// On a `Prepare` or a `Trim`: those change the catalog, which is not here.
    pub(crate) fn perform(&self, effect: &DiskEffect) -> DiskEvent {
        let (ticket, outcome) = match *effect {
            DiskEffect::Write { ticket, slot, from, to, place, durable } => {
                (ticket, self.write(slot, from, to, place, durable))
            }
            DiskEffect::Sync { ticket, first_segment, last_segment } => {
                (ticket, self.sync(first_segment, last_segment))
            }
            DiskEffect::Prepare { .. } | DiskEffect::Trim { .. } => unreachable!("the catalog's duty"),
        };
        completion(ticket, outcome)
    }

    fn write(&self, slot: usize, from: u32, to: u32, place: Place, durable: bool) -> Result<(), Failure> {
        let segment = self.segment(place.segment).ok_or(Failure::NotFound)?;
        let durable = durable && !self.skips_sync();
        let source = self.source(slot, from, to);
        let recorded = self.begin_write(&segment, &source, place, durable);
        // SAFETY: the ring or the copy outlives the call.
        let write =
            |flags| unsafe { write_all(&segment.file, source.address, source.length, place.offset, flags) };
        let outcome = match (self.method, durable) {
            (WriteMethod::Direct, true) => write(libc::RWF_DSYNC),
            (WriteMethod::Buffered, true) => {
                write(0).and_then(|()| segment.file.sync_data().map_err(|error| failure_of(&error)))
            }
            (_, false) => write(0),
        };
        self.end(recorded, outcome.is_ok());
        outcome
    }

    fn sync(&self, first_segment: u64, last_segment: u64) -> Result<(), Failure> {
        if self.skips_sync() {
            return Ok(());
        }
        for number in first_segment..=last_segment {
            let segment = self.segment(number).ok_or(Failure::NotFound)?;
            let recorded = self.begin_sync(&segment);
            let outcome = segment.file.sync_data().map_err(|error| failure_of(&error));
            self.end(recorded, outcome.is_ok());
            outcome?;
        }
        Ok(())
    }

    /// The bytes of a write. With a recorder they are copied first: what is recorded must be what is written, while the
    /// journal may be appending to the same block.
    pub(crate) fn source(&self, slot: usize, from: u32, to: u32) -> Source {
        let address = self.mapping.address(slot, from, to);
        let length = (to - from) as usize;
        if self.recorder().is_none() {
            return Source { address, length, _copy: None };
        }
        let block = Block { _bytes: [0; BLOCK_BYTES as usize] };
        let mut copy = Copied { bytes: vec![block; length.div_ceil(BLOCK_BYTES as usize)] };
        let into = copy.bytes.as_mut_ptr().cast::<u8>();
        for at in 0..length {
            // SAFETY: both ranges are `length` long; volatile, because the journal may be writing the source.
            unsafe { into.add(at).write(address.add(at).read_volatile()) };
        }
        Source { address: into, length, _copy: Some(copy) }
    }

    pub(crate) fn begin_write(
        &self,
        segment: &SegmentFile,
        source: &Source,
        place: Place,
        durable: bool,
    ) -> Option<u64> {
        let recorder = self.recorder()?;
        // SAFETY: with a recorder the source is a copy that nobody changes.
        let bytes = unsafe { std::slice::from_raw_parts(source.address, source.length) };
        let entry = Recorded::Write { file: &segment.name, offset: place.offset, bytes, durable };
        Some(recorder.begin(&entry))
    }

    pub(crate) fn begin_sync(&self, segment: &SegmentFile) -> Option<u64> {
        Some(self.recorder()?.begin(&Recorded::Sync { file: &segment.name }))
    }

    pub(crate) fn end(&self, recorded: Option<u64>, done: bool) {
        if let (Some(recorder), Some(ticket)) = (self.recorder(), recorded) {
            recorder.end(ticket, done);
        }
    }

    pub(crate) fn skips_sync(&self) -> bool {
        self.recorder().is_some_and(Recorder::skips_sync)
    }
}

pub(crate) fn completion(ticket: Ticket, outcome: Result<(), Failure>) -> DiskEvent {
    match outcome {
        Ok(()) => DiskEvent::Done { ticket },
        Err(failure) => DiskEvent::Failed { ticket, failure },
    }
}
