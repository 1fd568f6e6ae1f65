//! The folder that `--record` names: what every node did to its disk, for `mainstay sim cuts`.
//!
//! A node continues its latest recording over its lives. After a power cut its directory is another one, which begins the next.

use super::Role;
use anyhow::Context;
use mainstay_disk::record::RecordOptions;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recordings(PathBuf);

impl Recordings {
    /// Those in `folder`.
    #[must_use]
    pub(crate) fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// All recordings of a node that something was written into, in their order.
    #[must_use]
    pub(crate) fn of(&self, node: usize) -> Vec<PathBuf> {
        let written = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|file| file.len() > 0);
        self.begun(node).filter(written).collect()
    }

    /// The recording that a node goes on with.
    #[must_use]
    pub(crate) fn latest(&self, node: usize) -> PathBuf {
        self.begun(node).last().unwrap_or_else(|| self.path(node, 1))
    }

    /// Begins the node's next recording, without anything in it.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn begin_next(&self, node: usize) -> anyhow::Result<()> {
        let path = self.path(node, self.begun(node).count() + 1);
        std::fs::write(&path, []).with_context(|| format!("cannot write {}", path.display()))
    }

    /// How a node records. `skip_syncs` are said to have been made and are not, in each of its lives.
    #[must_use]
    pub(crate) fn options(&self, node: usize, skip_syncs: Range<u64>) -> RecordOptions {
        RecordOptions { skip_syncs, ..RecordOptions::new(&self.latest(node)) }
    }

    fn begun(&self, node: usize) -> impl Iterator<Item = PathBuf> + '_ {
        (1..).map(move |number| self.path(node, number)).take_while(|path| path.exists())
    }

    fn path(&self, node: usize, number: usize) -> PathBuf {
        self.0.join(format!("{}-{number}.recording", Role::Node(node)))
    }
}
