//! A directory that is about to be filled with a journal from elsewhere.

use crate::file_storage::FileStorage;
use crate::lock::DirectoryLock;
use crate::open::{KEPT_NAMES, OpenDiskError, Options, make_directory, refuse_foreign_files};
use mainstay_journal::format::SUPERBLOCK_FILE;
use std::path::Path;

/// What a directory may hold besides when it says that a region keeps the journal: its making from there was cut short.
const FILLED_NAME: &str = "checkpoint-";

/// A directory without a journal, locked as long as this is there.
#[derive(Debug)]
pub struct Empty {
    /// Its files.
    pub storage: FileStorage,
    _lock: DirectoryLock,
}

/// Makes the directory if it does not exist and `options` say so, and locks it; nothing if it holds a journal.
///
/// # Errors
/// [`OpenDiskError`]: it cannot be used, or is in use for something else or by somebody else. Nothing in it was changed.
pub fn make_or_lock(directory: &Path, options: &Options) -> Result<Option<Empty>, OpenDiskError> {
    make_directory(directory, options.create_directory)?;
    let is_noted = directory.join(KEPT_NAMES[0]).exists();
    let is_filled = |name: &str| is_noted && name.starts_with(FILLED_NAME);
    refuse_foreign_files(directory, |name| KEPT_NAMES.contains(&name) || is_filled(name))?;
    let holds = || directory.join(SUPERBLOCK_FILE).exists();
    if holds() {
        return Ok(None);
    }
    let lock = DirectoryLock::acquire(directory, &options.hint)?;
    // Its maker may have been at it.
    Ok((!holds()).then(|| Empty { storage: FileStorage::new(directory), _lock: lock }))
}
