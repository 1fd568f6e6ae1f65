//! Prepares and recycles segments, one request at a time, on a thread of its own.

use crate::completions::Completions;
use crate::file_storage::FileStorage;
use crate::performer::Performer;
use crate::worker_threads::join_unless_self;
use mainstay_journal::catalog::Catalog;
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::storage::Failure;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// The segment files and what changes them. The catalog's lock is held while a segment is filled, which takes long: it
/// is for this thread and for readers at the start, never for a writer of pages.
#[derive(Debug)]
pub(crate) struct Segments {
    catalog: Mutex<Catalog>,
    storage: FileStorage,
    performer: Arc<Performer>,
}

impl Segments {
    pub(crate) fn new(catalog: Catalog, storage: FileStorage, performer: Arc<Performer>) -> Self {
        Self { catalog: Mutex::new(catalog), storage, performer }
    }

    /// What the catalog says now.
    pub(crate) fn catalog(&self) -> Catalog {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens the newest prepared segments for writing, from `first` on.
    pub(crate) fn open_from(&self, first: u64) -> Result<(), Failure> {
        let catalog = self.catalog();
        for segment in catalog.segments().filter(|&segment| segment >= first) {
            let name = catalog.file_of(segment).expect("a listed segment has a file");
            self.performer.add_segment(segment, &name)?;
        }
        Ok(())
    }

    /// # Panics
    /// On a `Write` or a `Sync`.
    pub(crate) fn perform(&self, effect: &DiskEffect) -> DiskEvent {
        let mut storage = self.storage.clone();
        let mut catalog = self.catalog.lock().unwrap_or_else(PoisonError::into_inner);
        match *effect {
            DiskEffect::Prepare { segment } => {
                let prepared =
                    catalog.prepare(&mut storage, segment).map_err(|error| error.failure).and_then(|()| {
                        let name = catalog.file_of(segment).expect("prepared just now");
                        self.performer.add_segment(segment, &name)
                    });
                match prepared {
                    Ok(()) => DiskEvent::Prepared { segment },
                    Err(failure) => DiskEvent::PrepareFailed { segment, failure },
                }
            }
            DiskEffect::Trim { first } => {
                let trimmed = catalog.trim(&mut storage, first);
                self.performer.retain_segments(|segment| catalog.file_of(segment).is_some());
                match trimmed {
                    Ok(()) => DiskEvent::Trimmed { first },
                    Err(error) => {
                        tracing::warn!(%error, "trimming failed; it is asked for again with the next checkpoint");
                        DiskEvent::TrimFailed { failure: error.failure }
                    }
                }
            }
            DiskEffect::Write { .. } | DiskEffect::Sync { .. } => unreachable!("the performer's duty"),
        }
    }
}

/// The thread. Its queue is bounded by the journal: one preparation and one trim at a time.
#[derive(Debug)]
pub(crate) struct CatalogThread {
    queue: Option<Sender<DiskEffect>>,
    worker: Option<JoinHandle<()>>,
}

impl CatalogThread {
    pub(crate) fn start(segments: &Arc<Segments>, completions: &Arc<Completions>) -> io::Result<Self> {
        let (queue, effects) = channel::<DiskEffect>();
        let (segments, completions) = (Arc::clone(segments), Arc::clone(completions));
        let worker = thread::Builder::new().name("mainstay-segments".to_owned()).spawn(move || {
            for effect in effects {
                completions.push(segments.perform(&effect));
            }
        })?;
        Ok(Self { queue: Some(queue), worker: Some(worker) })
    }

    pub(crate) fn submit(&self, effect: DiskEffect) {
        let queue = self.queue.as_ref().expect("the queue is there until the drop");
        queue.send(effect).expect("the thread ends only with the queue");
    }
}

impl Drop for CatalogThread {
    fn drop(&mut self) {
        self.queue = None;
        join_unless_self(self.worker.take().expect("dropped once"));
    }
}
