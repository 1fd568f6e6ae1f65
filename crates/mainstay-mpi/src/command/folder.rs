//! The folder of a run or a bundle: made anew, and never in the place of something else.

use super::bundle::{INPUTS, LIBRARIES, MANIFEST, PROGRAM};
use crate::format::{LOG_MAGIC, RING_MAGIC};
use crate::run::SHIM;
use std::fs::{DirEntry, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A folder cannot be used. What was there is there.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is a run or a bundle.
    #[error("{} is there already: name another folder, or say --overwrite to remove the run or bundle that is in it", folder.display())]
    Exists {
        /// The folder.
        folder: PathBuf,
    },
    /// It has something that is neither of a run nor of a bundle.
    #[error("{} has {}, which is no part of a run or a bundle: name another folder", folder.display(), name.display())]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// The first thing that is not ours.
        name: PathBuf,
    },
    /// The system refused.
    #[error("the folder {} cannot be made", folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A folder for a run or a bundle.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) path: PathBuf,
    /// It was not there before.
    pub(super) made: bool,
    /// The parts of a run or a bundle that were in it.
    old: Vec<DirEntry>,
}

/// Makes a folder, or takes one that is empty. With `overwrite` a run or a bundle that is there is removed.
///
/// # Errors
/// [`FolderError`]; of a folder that has other things nothing is removed.
pub(super) fn make(folder: &Path, overwrite: bool) -> Result<Room, FolderError> {
    let mut room = open(folder, overwrite)?;
    room.clear()?;
    Ok(room)
}

/// As [`make`], but what is there stays until [`Room::clear`].
///
/// # Errors
/// As [`make`]; nothing was removed.
pub(super) fn open(folder: &Path, overwrite: bool) -> Result<Room, FolderError> {
    let failed = |source| FolderError::Io { folder: folder.to_owned(), source };
    let made = !folder.exists();
    let old = parts(folder, overwrite)?;
    std::fs::create_dir_all(folder).map_err(failed)?;
    Ok(Room { path: folder.to_owned(), made, old })
}

impl Room {
    /// Removes the run or bundle that was there.
    ///
    /// # Errors
    /// [`FolderError::Io`]; some of it may be gone.
    pub(super) fn clear(&mut self) -> Result<(), FolderError> {
        for entry in self.old.drain(..) {
            let is_folder = entry.file_type().map(|kind| kind.is_dir());
            let removed = is_folder.and_then(|is_folder| match is_folder {
                true => std::fs::remove_dir_all(entry.path()),
                false => std::fs::remove_file(entry.path()),
            });
            removed.map_err(|source| FolderError::Io { folder: self.path.clone(), source })?;
        }
        Ok(())
    }
}

/// The parts of a run or a bundle that are in a folder, if it has nothing else and they may be removed.
fn parts(folder: &Path, overwrite: bool) -> Result<Vec<DirEntry>, FolderError> {
    let failed = |source| FolderError::Io { folder: folder.to_owned(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>().map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    for entry in &entries {
        if !is_ours(folder, entry).map_err(failed)? {
            return Err(FolderError::Foreign { folder: folder.to_owned(), name: entry.file_name().into() });
        }
    }
    match entries.is_empty() || overwrite {
        true => Ok(entries),
        false => Err(FolderError::Exists { folder: folder.to_owned() }),
    }
}

/// Whether a run or a bundle made this: by its name, and by what it is, since others use such names as well.
fn is_ours(folder: &Path, entry: &DirEntry) -> io::Result<bool> {
    let name = entry.file_name();
    let Some(name) = name.to_str() else { return Ok(false) };
    let kind = entry.file_type()?;
    let is_bundle = || folder.join(MANIFEST).symlink_metadata().is_ok_and(|manifest| manifest.is_file());
    Ok(match name {
        SHIM | MANIFEST => kind.is_file(),
        INPUTS => kind.is_file() && is_bundle(),
        PROGRAM | LIBRARIES => kind.is_dir() && is_bundle(),
        _ => match magic_of(name) {
            Some(magic) => kind.is_file() && begins_with(&entry.path(), magic)?,
            None => false,
        },
    })
}

/// How a file of a rank with this name begins; `None` if no rank's file has such a name.
fn magic_of(name: &str) -> Option<[u8; 8]> {
    let (name, end) = name.rsplit_once('.')?;
    let magic = match end {
        "log" => LOG_MAGIC,
        "ring" => RING_MAGIC,
        _ => return None,
    };
    let number = name.strip_prefix("rank-").or_else(|| name.strip_prefix("starting-"))?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(magic)
}

/// Whether a file has this beginning, or nothing yet.
fn begins_with(path: &Path, magic: [u8; 8]) -> io::Result<bool> {
    let mut begin = Vec::with_capacity(magic.len());
    File::open(path)?.take(magic.len() as u64).read_to_end(&mut begin)?;
    Ok(begin.is_empty() || begin == magic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_removed_when_asked_and_nothing_else_ever() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("of/a/run");
        make(&run, false).expect("a new one");
        make(&run, false).expect("an empty one");
        std::fs::write(run.join("rank-00000.log"), "").expect("a file");
        assert!(matches!(make(&run, false), Err(FolderError::Exists { .. })));
        std::fs::write(run.join("thesis.tex"), "").expect("a file");
        for overwrite in [false, true] {
            assert!(matches!(make(&run, overwrite), Err(FolderError::Foreign { .. })));
        }
        assert!(run.join("rank-00000.log").exists());
        std::fs::remove_file(run.join("thesis.tex")).expect("the file");
        make(&run, true).expect("a run goes");
        assert_eq!(std::fs::read_dir(&run).expect("the folder").count(), 0);
    }
    #[test]
    fn what_only_has_the_name_of_ours_is_not_removed() {
        let of_others: [(&str, Option<&str>); 6] = [
            ("inputs", None),
            ("program", None),
            ("rank-0.log", Some("step 1: energy")),
            ("rank-correlation.log", Some("")),
            ("starting-1.ring", Some("of a bell")),
            ("shim.so", None),
        ];
        for (name, content) in of_others {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join(name);
            match content {
                Some(content) => std::fs::write(&path, content).expect("a file"),
                None => std::fs::create_dir(&path).expect("a folder"),
            }
            let refused = make(folder.path(), true);
            assert!(matches!(refused, Err(FolderError::Foreign { .. })), "{name}: {refused:?}");
            assert!(path.exists(), "{name}");
        }
    }
}
