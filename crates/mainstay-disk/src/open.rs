//! Opens a journal's directory: lock, recorder, repair, ring, disk.

use crate::disk::{Backend, Disk, DiskStartError};
use crate::file_storage::FileStorage;
use crate::lock::{DirectoryLock, LOCK_FILE, LockError};
use crate::mapped_pages::MappedPages;
use crate::record::{RecordError, RecordOptions, Recorder};
use crate::spill;
use crate::stripes;
use mainstay_journal::format::{RING_FILE, SUPERBLOCK_FILE};
use mainstay_journal::journal::Journal;
use mainstay_journal::open::{OpenError, OpenReport};
use mainstay_journal::options::OpenOptions;
use mainstay_journal::storage::StorageError;
use mainstay_types::id::StoreId;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Names, or beginnings of names, that a directory may hold while its superblock is not there yet: a journal whose
/// making was cut short.
const OWN_NAMES: [&str; 5] = [SUPERBLOCK_FILE, RING_FILE, "segment-", "stripe-", LOCK_FILE];

/// That a region keeps the journal, and what it is called until it is whole.
pub(crate) const KEPT_NAMES: [&str; 2] = ["keep", "keep.partial"];

/// What a file system puts into its root by itself.
pub(crate) const TOLERATED_NAME: &str = "lost+found";

/// How to open a directory.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How to open the journal in it. A `new_store` of zeroes is replaced by one drawn at random.
    pub journal: OpenOptions,
    /// What performs writes in the background.
    pub backend: Backend,
    /// Make the directory, and those above it, if it does not exist.
    pub create_directory: bool,
    /// What this process tells about itself, for people who find the directory in use.
    pub hint: String,
    /// Further directories, each on a disk of its own, that a journal that is made now is striped over. One that is there knows its
    /// own; what is named here must be the same then, in the same order.
    pub stripes: Vec<PathBuf>,
    /// A region keeps the journal, or is to keep it: the file that says so is there before the journal is.
    pub kept: bool,
    /// Record every change, for the check of power cuts.
    pub record: Option<RecordOptions>,
}

/// An opened directory, locked until `disk` is dropped.
#[derive(Debug)]
pub struct OpenDisk {
    /// The journal, ready for appends.
    pub journal: Journal<MappedPages>,
    /// What performs its effects. [`Disk::catalog`] is for a reader of what was there.
    pub disk: Disk,
    /// The files, recorded if that was asked for.
    pub storage: FileStorage,
    /// What was found and done.
    pub report: OpenReport,
}

/// The directory was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenDiskError {
    /// It does not exist.
    #[error("there is no directory {directory}", directory = directory.display())]
    NoDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// It could not be made or looked into. Nothing in it was changed.
    #[error("cannot use {directory}: {source}", directory = directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It holds other files and no journal. Nothing was changed.
    #[error(
        "{directory} holds `{file}` and no journal: it is in use for something else. Nothing was changed; name an empty \
         or a new directory",
        directory = directory.display()
    )]
    ForeignFiles {
        /// The directory.
        directory: PathBuf,
        /// One of its files.
        file: String,
    },
    /// A directory that the journal is striped over is not there. Nothing was changed.
    #[error(
        "directory {stripe} of this journal, {directory}, is not there: mount it; if it has moved, change the link to it. Nothing \
         was changed",
        directory = directory.display()
    )]
    StripeMissing {
        /// Which, counted from 1 for the one after the first.
        stripe: usize,
        /// Where it should be.
        directory: PathBuf,
    },
    /// It is another one of the same journal, or of another.
    #[error(
        "{directory} stands in place of directory {expected} of this journal, and is a directory {found}: exchange the links back. \
         Nothing was changed",
        directory = directory.display()
    )]
    StripeExchanged {
        /// The directory.
        directory: PathBuf,
        /// Which it should be.
        expected: usize,
        /// Which it says it is.
        found: usize,
    },
    /// Other directories were named than the journal has.
    #[error(
        "{directory} is striped over {}, not over {}: name the same, in the same order, or none. Nothing was changed",
        stripes::in_words(listed), stripes::in_words(given), directory = directory.display()
    )]
    OtherStripes {
        /// The first directory.
        directory: PathBuf,
        /// Those that it has, after the first.
        listed: Vec<PathBuf>,
        /// Those that were named.
        given: Vec<PathBuf>,
    },
    /// One directory was named twice, or is the first one. Nothing was changed.
    #[error("{directory} is named twice: a journal is striped over directories that differ", directory = directory.display())]
    StripeTwice {
        /// The directory.
        directory: PathBuf,
    },
    /// It could not be locked. Nothing was changed.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Recording could not begin. The directory was not changed.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The journal was refused, see there.
    #[error("{directory}: {source}", directory = directory.display())]
    Journal {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// The ring could not be reserved. What the journal holds is intact.
    #[error(
        "{directory}: the ring cannot be reserved on the disk: {source}. What the journal holds is intact",
        directory = directory.display()
    )]
    Ring {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: StorageError,
    },
    /// The disk could not be started. What the journal holds is intact.
    #[error("{directory}: {source}", directory = directory.display())]
    Disk {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: DiskStartError,
    },
}

/// Opens the journal in `directory`, making it if `options` say so, and starts its disk.
///
/// # Errors
/// See [`OpenDiskError`]; nothing that was durable is lost.
pub fn open(directory: &Path, options: &Options) -> Result<OpenDisk, OpenDiskError> {
    make_directory(directory, options.create_directory)?;
    refuse_foreign_files(directory, |name| options.kept && KEPT_NAMES.contains(&name))?;
    let mut lock = DirectoryLock::acquire(directory, &options.hint)?;
    let present = directory.join(SUPERBLOCK_FILE).exists();
    stripes::link_or_compare(directory, &options.stripes, present, options.create_directory)?;
    for link in stripes::links(directory) {
        lock.add(DirectoryLock::acquire(&link, &options.hint)?);
    }
    spill::remove_left_behind(directory)
        .map_err(|source| OpenDiskError::Directory { directory: directory.to_owned(), source })?;
    let mut storage = FileStorage::new(directory);
    if let Some(record) = &options.record {
        let recorder = Recorder::start(&mut storage, record)?;
        storage = storage.recorded(recorder);
    }
    let mut journal_options = options.journal;
    journal_options.stripes = u16::try_from(storage.directories().count()).expect("there are few");
    if journal_options.new_store == StoreId([0; 16]) {
        let directory_error = |source| OpenDiskError::Directory { directory: directory.to_owned(), source };
        journal_options.new_store = draw_store_id().map_err(directory_error)?;
    }
    let opened = mainstay_journal::open::open(&mut storage, &journal_options)
        .map_err(|source| OpenDiskError::Journal { directory: directory.to_owned(), source })?;
    let geometry = opened.report.geometry;
    let pages = MappedPages::open(&mut storage, RING_FILE, geometry.page_bytes, geometry.pages)
        .map_err(|source| OpenDiskError::Ring { directory: directory.to_owned(), source })?;
    let end = opened.report.end;
    let disk = Disk::start(options.backend, &storage, opened.catalog, &pages, end, Some(lock))
        .map_err(|source| OpenDiskError::Disk { directory: directory.to_owned(), source })?;
    let journal = Journal::start(opened.resume, pages);
    Ok(OpenDisk { journal, disk, storage, report: opened.report })
}

/// A new directory's own name must survive a power loss too.
pub(crate) fn make_directory(directory: &Path, create: bool) -> Result<(), OpenDiskError> {
    match fs::metadata(directory) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => {
            return Err(OpenDiskError::Directory { directory: directory.to_owned(), source });
        }
    }
    if !create {
        return Err(OpenDiskError::NoDirectory { directory: directory.to_owned() });
    }
    let missing: Vec<_> = directory
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
        .map(Path::to_owned)
        .collect();
    let make = || -> io::Result<()> {
        fs::create_dir_all(directory)?;
        for made in missing {
            let parent = made.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(())
    };
    make().map_err(|source| OpenDiskError::Directory { directory: directory.to_owned(), source })
}

/// Refuses a directory without a journal that holds anything but what a making of one leaves, and what is `expected` besides.
pub(crate) fn refuse_foreign_files(
    directory: &Path,
    expected: impl Fn(&str) -> bool,
) -> Result<(), OpenDiskError> {
    let directory_error = |source| OpenDiskError::Directory { directory: directory.to_owned(), source };
    let is_own = |name: &str| OWN_NAMES.iter().any(|own| name.starts_with(own)) || expected(name);
    let mut foreign = None;
    for entry in fs::read_dir(directory).map_err(directory_error)? {
        let name = entry.map_err(directory_error)?.file_name().to_string_lossy().into_owned();
        if name == SUPERBLOCK_FILE {
            return Ok(());
        }
        if name != TOLERATED_NAME && !is_own(&name) {
            foreign = Some(name);
        }
    }
    match foreign {
        Some(file) => Err(OpenDiskError::ForeignFiles { directory: directory.to_owned(), file }),
        None => Ok(()),
    }
}

/// The identity of a directory that is about to be made, drawn at random.
///
/// # Errors
/// The operating system gave no randomness.
pub fn draw_store_id() -> io::Result<StoreId> {
    let mut bytes = [0; 16];
    // SAFETY: the buffer is as long as said.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if usize::try_from(count) == Ok(bytes.len()) {
        Ok(StoreId(bytes))
    } else {
        Err(io::Error::last_os_error())
    }
}
