//! A journal directory as a reader finds it: its files, and who is writing it just now.

use anyhow::{Context, bail};
use mainstay_disk::file_storage::FileStorage;
use mainstay_disk::lock::writer;
use mainstay_journal::inspect::{Inspection, inspect};
use mainstay_journal::open::OpenError;
use mainstay_journal::record::Record;
use std::path::Path;

/// The files of `path`, for reading.
///
/// # Errors
/// When it is no directory, or may not be read.
pub(crate) fn open(path: &Path) -> anyhow::Result<FileStorage> {
    let entries =
        std::fs::read_dir(path).with_context(|| format!("cannot read the directory {}", path.display()))?;
    drop(entries);
    Ok(FileStorage::new(path))
}

/// Walks over every record. The outer error is the environment's, the inner one is what opening would refuse with.
///
/// # Errors
/// When the directory cannot be read.
pub(crate) fn walk(
    path: &Path,
    each: &mut dyn FnMut(&Record<'_>),
) -> anyhow::Result<Result<Inspection, OpenError>> {
    let mut storage = open(path)?;
    match inspect(&mut storage, each) {
        Ok(inspection) => Ok(Ok(inspection)),
        Err(OpenError::NoJournal) => {
            bail!("{} holds no journal (there is no file `superblock`)", path.display())
        }
        Err(OpenError::Storage(error)) => {
            Err(error).with_context(|| format!("cannot read {}", path.display()))
        }
        Err(refused) => Ok(Err(refused)),
    }
}

/// Says on standard error that figures may move.
pub(crate) fn warn_of_writer(path: &Path) {
    if let Some(pid) = writer(path) {
        eprintln!(
            "mainstay: process {pid} is writing {} just now: what follows moves while it is read",
            path.display()
        );
    }
}
