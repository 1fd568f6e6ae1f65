//! The further directories of a striped journal: links to them in the first one, so that whoever names that names all.
//!
//! ```text
//!   ledger.mainstay/   superblock  ring  lock  checkpoints  segment-…0  segment-…2
//!     stripe-0001 ──> /mnt/second/ledger/    lock  stripe-0001.id  segment-…1  segment-…3
//! ```
//!
//! A directory that has moved is found again by changing its link.

use crate::lock::LOCK_FILE;
use crate::open::OpenDiskError;
use mainstay_journal::striping::{STRIPES_MAX, identity_file_stripe};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const LINK_PREFIX: &str = "stripe-";

/// The link to directory `stripe` of the journal in `directory`.
pub(crate) fn link(directory: &Path, stripe: usize) -> PathBuf {
    directory.join(format!("{LINK_PREFIX}{stripe:04}"))
}

/// The links that there are, in order; one that is missing between others is among them.
pub(crate) fn links(directory: &Path) -> Vec<PathBuf> {
    let there = |stripe: &usize| fs::symlink_metadata(link(directory, *stripe)).is_ok();
    let last = (1..usize::from(STRIPES_MAX)).rev().find(there).unwrap_or(0);
    (1..=last).map(|stripe| link(directory, stripe)).collect()
}

/// Makes the links of a journal that is made now, to directories that are made too if `create` says so; or compares those of one that
/// is there already with what was `given`, if anything was.
pub(crate) fn link_or_compare(
    directory: &Path,
    given: &[PathBuf],
    present: bool,
    create: bool,
) -> Result<(), OpenDiskError> {
    let links = links(directory);
    if given.is_empty() || present || !links.is_empty() {
        return compare(directory, &links, given);
    }
    let of = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenDiskError::Directory { directory: path, source }
    };
    let mut targets = vec![fs::canonicalize(directory).map_err(of(directory))?];
    for path in given {
        crate::open::make_directory(path, create)?;
        let target = fs::canonicalize(path).map_err(of(path))?;
        if targets.contains(&target) {
            return Err(OpenDiskError::StripeTwice { directory: path.clone() });
        }
        for entry in fs::read_dir(&target).map_err(of(path))? {
            let file = entry.map_err(of(path))?.file_name().to_string_lossy().into_owned();
            if file != LOCK_FILE && file != crate::open::TOLERATED_NAME {
                return Err(OpenDiskError::ForeignFiles { directory: path.clone(), file });
            }
        }
        targets.push(target);
    }
    for (stripe, target) in targets.iter().enumerate().skip(1) {
        symlink(target, link(directory, stripe)).map_err(of(directory))?;
    }
    File::open(directory).and_then(|opened| opened.sync_all()).map_err(of(directory))
}

fn compare(directory: &Path, links: &[PathBuf], given: &[PathBuf]) -> Result<(), OpenDiskError> {
    for (place, link) in links.iter().enumerate() {
        let missing = || OpenDiskError::StripeMissing { stripe: place + 1, directory: link_target(link) };
        let target = fs::canonicalize(link).map_err(|_| missing())?;
        let entries = fs::read_dir(&target).map_err(|_| missing())?;
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let found: Vec<usize> =
            names.filter_map(|name| identity_file_stripe(&name)).map(usize::from).collect();
        if !found.is_empty() && !found.contains(&(place + 1)) {
            let (expected, found) = (place + 1, found[0]);
            return Err(OpenDiskError::StripeExchanged { directory: target, expected, found });
        }
    }
    let same = |(link, given): (&PathBuf, &PathBuf)| match (fs::canonicalize(link), fs::canonicalize(given)) {
        (Ok(link), Ok(given)) => link == given,
        _ => false,
    };
    if given.is_empty() || given.len() == links.len() && links.iter().zip(given).all(same) {
        return Ok(());
    }
    let listed = links.iter().map(|link| link_target(link)).collect();
    Err(OpenDiskError::OtherStripes { directory: directory.to_owned(), listed, given: given.to_vec() })
}

/// Where a link leads, also if nothing is there.
fn link_target(link: &Path) -> PathBuf {
    fs::read_link(link).unwrap_or_else(|_| link.to_owned())
}

/// For people: paths, one after another.
pub(crate) fn in_words(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "none".to_owned();
    }
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A directory that cannot be looked into has no files: the journal says which one it misses.
pub(crate) fn read_dir_if_there(directory: &Path) -> io::Result<Option<fs::ReadDir>> {
    match fs::read_dir(directory) {
        Ok(entries) => Ok(Some(entries)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
