//! Performs what a journal asks of the disk: inline on the calling thread, or in the background.

use crate::catalog_thread::{CatalogThread, Segments};
use crate::completions::Completions;
use crate::file_storage::FileStorage;
use crate::lock::DirectoryLock;
use crate::mapped_pages::MappedPages;
use crate::performer::Performer;
use crate::uring::Uring;
use crate::worker_threads::WorkerThreads;
use crate::write_method::{self, WriteMethod};
use mainstay_journal::catalog::Catalog;
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::storage::Failure;
use mainstay_types::id::Lsn;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// What is called when a completion is ready.
pub type Notify = Box<dyn Fn() + Send + Sync>;

/// What performs writes in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring where the kernel has it, else threads.
    #[default]
    Auto,
    /// A few threads with plain calls.
    Threads,
    /// io_uring; threads, with the reason logged, where the kernel refuses.
    Uring,
}

/// Not the name of a backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no disk backend; the backends are auto, threads and uring")]
pub struct UnknownBackend {
    /// What was given.
    pub given: String,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Threads => "threads",
            Self::Uring => "uring",
        })
    }
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(given: &str) -> Result<Self, UnknownBackend> {
        match given {
            "auto" => Ok(Self::Auto),
            "threads" => Ok(Self::Threads),
            "uring" => Ok(Self::Uring),
            _ => Err(UnknownBackend { given: given.to_owned() }),
        }
    }
}

/// What was chosen at the start, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Never [`Backend::Auto`].
    pub backend: Backend,
    /// Why this backend.
    pub backend_reason: String,
    /// How pages are written.
    pub method: WriteMethod,
    /// Why this method.
    pub method_reason: String,
}

/// The disk of one journal. Dropping it finishes what was submitted, then releases the directory.
///
/// All calls may come from any thread; completions go to whoever asks first.
#[derive(Debug)]
pub struct Disk {
    background: Background,
    catalog_thread: CatalogThread,
    performer: Arc<Performer>,
    segments: Arc<Segments>,
    completions: Arc<Completions>,
    chosen: Chosen,
}

#[derive(Debug)]
enum Background {
    Threads(WorkerThreads),
    Uring(Uring),
}

/// The disk could not be started.
#[derive(Debug, thiserror::Error)]
pub enum DiskStartError {
    /// The segment being written could not be opened.
    #[error("the journal's last segment cannot be opened for writing: {failure}")]
    Segment {
        /// Why.
        failure: Failure,
    },
    /// No thread could be started.
    #[error("cannot start a disk thread: {source}")]
    Thread {
        /// Why.
        source: io::Error,
    },
}

impl Disk {
    /// Starts the threads for a journal that goes on at `end`, and finds out by trying what this machine can do.
    ///
    /// # Errors
    /// See [`DiskStartError`]; nothing was changed.
    pub fn start(
        backend: Backend,
        storage: &FileStorage,
        catalog: Catalog,
        pages: &MappedPages,
        end: Lsn,
        lock: Option<DirectoryLock>,
    ) -> Result<Self, DiskStartError> {
        let mapping = pages.mapping();
        let (method, method_reason) = write_method::choose_for_all(storage.directories(), &mapping);
        Self::start_with(backend, method, method_reason, storage, catalog, pages, end, lock)
    }

    /// As [`Disk::start`], with the method of writing given: to compare them.
    ///
    /// # Errors
    /// See [`DiskStartError`]; nothing was changed.
    #[expect(clippy::too_many_arguments, reason = "one caller, and a builder would only rename them")]
    pub(crate) fn start_with(
        backend: Backend,
        method: WriteMethod,
        method_reason: String,
        storage: &FileStorage,
        catalog: Catalog,
        pages: &MappedPages,
        end: Lsn,
        lock: Option<DirectoryLock>,
    ) -> Result<Self, DiskStartError> {
        let performer = Arc::new(Performer::new(pages.mapping(), storage.clone(), method, lock));
        let segment = catalog.geometry().place_of(end).segment;
        let under_way_max = bytes_max(catalog.geometry(), storage.directories().count());
        let segments = Arc::new(Segments::new(catalog, storage.clone(), Arc::clone(&performer)));
        segments.open_from(segment).map_err(|failure| DiskStartError::Segment { failure })?;
        let completions = Arc::new(Completions::default());
        let thread_error = |source| DiskStartError::Thread { source };
        let (background, backend, backend_reason) =
            start_background(backend, &performer, &completions, under_way_max).map_err(thread_error)?;
        let catalog_thread = CatalogThread::start(&segments, &completions).map_err(thread_error)?;
        let chosen = Chosen { backend, backend_reason, method, method_reason };
        tracing::info!(
            backend = ?chosen.backend,
            reason = %chosen.backend_reason,
            method = %chosen.method,
            method_reason = %chosen.method_reason,
            "disk started"
        );
        Ok(Self { background, catalog_thread, performer, segments, completions, chosen })
    }

    /// What was chosen at the start, and why.
    #[must_use]
    pub fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    /// Performs `effect` on the calling thread: no other thread has to wake up for it.
    pub fn perform(&self, effect: &DiskEffect) -> DiskEvent {
        match effect {
            DiskEffect::Write { .. } | DiskEffect::Sync { .. } => self.performer.perform(effect),
            DiskEffect::Prepare { .. } | DiskEffect::Trim { .. } => self.segments.perform(effect),
        }
    }

    /// Performs `effect` in the background; its completion is among those that [`Disk::poll`] gives.
    pub fn submit(&self, effect: DiskEffect) {
        match (&effect, &self.background) {
            (DiskEffect::Prepare { .. } | DiskEffect::Trim { .. }, _) => self.catalog_thread.submit(effect),
            (_, Background::Threads(threads)) => threads.submit(effect),
            (_, Background::Uring(uring)) => uring.submit(effect),
        }
    }

    /// Moves the completions that are ready into `into`.
    pub fn poll(&self, into: &mut Vec<DiskEvent>) {
        self.completions.take(into);
    }

    /// Waits for a completion, at most `timeout`, and moves what is ready into `into`.
    pub fn wait(&self, timeout: Duration, into: &mut Vec<DiskEvent>) {
        self.completions.wait(timeout, into);
    }

    /// Calls `notify`, on a thread of this disk, whenever a completion is ready. The call should be short, must not set
    /// or clear the callback, and must not drop the disk.
    pub fn set_notify(&self, notify: Notify) {
        self.completions.set_notify(Some(notify));
    }

    /// Calls nothing any more. Returns when no call is running.
    pub fn clear_notify(&self) {
        self.completions.set_notify(None);
    }

    /// Which file holds which segment now. Waits while a segment is being prepared.
    #[must_use]
    pub fn catalog(&self) -> Catalog {
        self.segments.catalog()
    }
}

/// Bytes of writes that io_uring has under way at most, for segments over so many `directories`. One page of the ring stays at hand where there are
/// more than directories: some virtual disks report what they have written only when nothing more is asked of them (`docs/benchmarks/journal.md`,
/// "Streaming"); had such a disk all pages, it would give all back at once, and stand still until the first is full again.
fn bytes_max(geometry: Geometry, directories: usize) -> usize {
    let pages = usize::from(geometry.pages);
    let under_way = if pages > directories { pages - 1 } else { pages };
    under_way * geometry.page_bytes as usize
}

fn start_background(
    backend: Backend,
    performer: &Arc<Performer>,
    completions: &Arc<Completions>,
    under_way_max: usize,
) -> io::Result<(Background, Backend, String)> {
    let threads = || WorkerThreads::start(performer, completions).map(Background::Threads);
    if backend == Backend::Threads {
        return Ok((threads()?, Backend::Threads, "asked for".to_owned()));
    }
    match Uring::start(performer, completions, under_way_max) {
        Ok(uring) => {
            let reason = if backend == Backend::Auto { "the kernel has io_uring" } else { "asked for" };
            Ok((Background::Uring(uring), Backend::Uring, reason.to_owned()))
        }
        Err(error) => Ok((threads()?, Backend::Threads, format!("no io_uring here: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_stays_at_hand_where_there_are_more_than_directories() {
        let pages_max = |pages, directories| {
            let geometry = Geometry { page_bytes: 4096, pages, segment_pages: 1 };
            bytes_max(geometry, directories) / 4096
        };
        assert_eq!([1, 2, 3, 8].map(|pages| pages_max(pages, 1)), [1, 1, 2, 7]);
        assert_eq!([1, 2, 3, 8].map(|pages| pages_max(pages, 3)), [1, 2, 3, 7]);
    }
}
