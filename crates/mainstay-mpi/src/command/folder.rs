//! The folder of a run or a bundle: made anew, and never in the place of something else.

use super::bundle::{INPUTS, LIBRARIES, MANIFEST, PROGRAM};
use crate::run::SHIM;
use std::io;
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

/// Makes a folder, or takes one that is empty. With `overwrite` a run or a bundle that is there is removed.
///
/// # Errors
/// [`FolderError`]; of a folder that has other things nothing is removed.
pub fn make(folder: &Path, overwrite: bool) -> Result<PathBuf, FolderError> {
    let failed = |source| FolderError::Io { folder: folder.to_owned(), source };
    let names = match std::fs::read_dir(folder) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>().map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    if let Some(other) = names.iter().find(|entry| !is_ours(&entry.file_name().to_string_lossy())) {
        return Err(FolderError::Foreign { folder: folder.to_owned(), name: other.file_name().into() });
    }
    if !names.is_empty() && !overwrite {
        return Err(FolderError::Exists { folder: folder.to_owned() });
    }
    for entry in names {
        let removed = match entry.file_type().map_err(failed)?.is_dir() {
            true => std::fs::remove_dir_all(entry.path()),
            false => std::fs::remove_file(entry.path()),
        };
        removed.map_err(failed)?;
    }
    std::fs::create_dir_all(folder).map_err(failed)?;
    Ok(folder.to_owned())
}

/// Whether a run or a bundle has a file of this name.
fn is_ours(name: &str) -> bool {
    let of_rank = ["rank-", "starting-"].iter().any(|begin| name.starts_with(begin))
        && [".log", ".ring"].iter().any(|end| name.ends_with(end));
    of_rank || [SHIM, MANIFEST, INPUTS, PROGRAM, LIBRARIES].contains(&name)
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
}
