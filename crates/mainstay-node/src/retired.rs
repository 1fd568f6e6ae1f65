//! A directory whose node has left its group: a file says so, and no node starts on it again.

use mainstay_disk::replace::replace;
use std::io;
use std::path::{Path, PathBuf};

/// The file.
const LEFT: &str = "left";

/// A directory that is not used any more, or could not be marked as such.
#[derive(Debug, thiserror::Error)]
pub enum RetiredError {
    /// What it holds is older than what the group has.
    #[error(
        "the node of {directory} has left its group for good, and what the directory holds is old; nothing was changed. To come in again, start \
         with a new directory and --join: the others fill it. The old directory can be removed",
        directory = directory.display()
    )]
    Left {
        /// The directory.
        directory: PathBuf,
    },
    /// The group goes on without the node, and its directory does not say so.
    #[error("the node has left its group, and {path} cannot be written: remove its directory, which is of no use any more: {source}", path = path.display())]
    Mark {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Refuses a directory whose node has left its group.
pub(crate) fn check(directory: &Path) -> Result<(), RetiredError> {
    match directory.join(LEFT).exists() {
        true => Err(RetiredError::Left { directory: directory.to_owned() }),
        false => Ok(()),
    }
}

/// Writes down that the node has left. A crash before that leaves it one that asks to be let in again.
pub(crate) fn retire(directory: &Path) -> Result<(), RetiredError> {
    replace(directory, LEFT, b"").map_err(|source| RetiredError::Mark { path: directory.join(LEFT), source })
}
