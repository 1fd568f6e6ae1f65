//! The files of one journal directory, as plain blocking calls: the seam for everything that is sequential by nature
//! (opening, repair, preparing a segment, trimming, storing a checkpoint).
//!
//! Implemented by real files (`mainstay-disk`), by the simulator's disk with its lost and torn writes, by the images
//! that a power cut could leave, and by a recorder around any of them.

use std::fmt;
use std::io;

/// One file of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Plain name, no path.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
}

/// A directory of files. Nothing written is safe from power loss before `sync` of the file, and no creation, rename or
/// removal before `sync_directory`.
pub trait Storage {
    /// All files, in no particular order.
    fn list(&mut self) -> Result<Vec<FileEntry>, StorageError>;
    /// Fills `into` from `offset`; [`Failure::Short`] if the file ends before.
    fn read(&mut self, file: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError>;
    /// Makes a file of `bytes` zeroes that does not exist yet, written in full (so that later writes in place pay for no
    /// file-system metadata) and synced. [`Failure::NoSpace`] leaves nothing behind.
    fn create(&mut self, file: &str, bytes: u64) -> Result<(), StorageError>;
    /// Overwrites `bytes` at `offset`, within the file's length or extending it at its end.
    fn write(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError>;
    /// Returns when everything written to the file before is past a sync.
    fn sync(&mut self, file: &str) -> Result<(), StorageError>;
    /// Renames, replacing `to` if it exists.
    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError>;
    /// Removes a file.
    fn remove(&mut self, file: &str) -> Result<(), StorageError>;
    /// Returns when all creations, renames and removals before are past a sync.
    fn sync_directory(&mut self) -> Result<(), StorageError>;
}

/// What was being done when a [`StorageError`] arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Listing the directory.
    List,
    /// Reading.
    Read,
    /// Creating and filling a file.
    Create,
    /// Writing.
    Write,
    /// Syncing a file: after this failed, what the disk holds is unknown.
    Sync,
    /// Renaming.
    Rename,
    /// Removing.
    Remove,
    /// Syncing the directory.
    SyncDirectory,
}

/// Why it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No such file.
    NotFound,
    /// The file exists already.
    Exists,
    /// The disk, or the quota, is full.
    NoSpace,
    /// The file system or the file is read-only, or permission is missing.
    ReadOnly,
    /// The file ends before the bytes asked for.
    Short,
    /// The machine has crashed (only made disks say so).
    Crashed,
    /// Another error of the operating system, by its number.
    Os(i32),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "listing",
            Self::Read => "reading",
            Self::Create => "creating",
            Self::Write => "writing",
            Self::Sync => "syncing",
            Self::Rename => "renaming",
            Self::Remove => "removing",
            Self::SyncDirectory => "syncing the names in",
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "there is no such file",
            Self::Exists => "the file exists already",
            Self::NoSpace => "the disk or the quota is full",
            Self::ReadOnly => "it is read-only, or permission is missing",
            Self::Short => "the file is shorter than it should be",
            Self::Crashed => "the machine has crashed",
            Self::Os(number) => return io::Error::from_raw_os_error(*number).fmt(f),
        })
    }
}

/// An operation on a file failed. For reads nothing changed; for the others the bytes concerned are in an unknown state
/// until read back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} {} failed: {failure}", named(.file))]
pub struct StorageError {
    /// What was being done.
    pub operation: Operation,
    /// The file, or an empty name for the directory itself.
    pub file: String,
    /// Why it failed.
    pub failure: Failure,
}

fn named(file: &str) -> String {
    if file.is_empty() { "the directory".to_owned() } else { format!("`{file}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_in_words() {
        let failed = |file: &str, failure| {
            StorageError { operation: Operation::Write, file: file.to_owned(), failure }.to_string()
        };
        assert_eq!(failed("ring", Failure::NoSpace), "writing `ring` failed: the disk or the quota is full");
        assert!(failed("", Failure::Os(5)).starts_with("writing the directory failed: Input/output error"));
    }
}
