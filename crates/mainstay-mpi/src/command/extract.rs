//! `mainstay mpi extract`: makes a bundle of one rank, its log put together from the senders' logs where it has to be.

use super::bundle::MANIFEST;
use super::bundle::{self, BundleError, Contents};
use super::folder::{self, FolderError};
use crate::assembly::{Assembled, AssemblyError, assemble};
use crate::format::{FileHeader, Kind};
use crate::matching::Rule;
use crate::pages::{CreateError, Head, Pages};
use crate::payload::Payload;
use crate::reader::damage::Damage;
use crate::reader::{ReadError, Tail};
use crate::run::SHIM;
use crate::run::{Run, RunError};
use crate::settings::rank_name;
use std::io;
use std::path::{Path, PathBuf};

/// What was made.
#[derive(Clone, Debug)]
pub struct Extracted {
    /// The log.
    pub assembled: Assembled,
    /// What goes with it.
    pub contents: Contents,
}

/// No bundle was made; its folder is removed again.
#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    /// The run cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// It has no log of that rank.
    #[error("the run has no log of rank {rank}")]
    NoRank {
        /// The rank.
        rank: u32,
    },
    /// The run has no bytes of messages.
    #[error(
        "the run was recorded with --payload none: it has the order of messages and none of their bytes; record it again with --payload receiver or sender"
    )]
    OrderOnly,
    /// The folder of the bundle cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The folder for the bundle has a recorded run.
    #[error("{} is a recorded run, and no bundle is made in the place of one: name another folder", folder.display())]
    IsRun {
        /// The folder.
        folder: PathBuf,
    },
    /// The bundle would take the place of the run.
    #[error("{} is the run itself: name another folder for the bundle", folder.display())]
    Itself {
        /// The folder.
        folder: PathBuf,
    },
    /// A log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A log is damaged.
    #[error("{0}: no bundle was made, the run is as it was")]
    Damaged(Damage),
    /// The logs do not fit each other.
    #[error("the logs of the run do not fit together: no bundle was made, the run is as it was")]
    Assembly(#[source] AssemblyError<io::Error>),
    /// The new log cannot be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The rest of the bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The new log cannot be written.
    #[error("the log of the bundle cannot be written")]
    Write(#[source] io::Error),
}

impl From<AssemblyError<io::Error>> for ExtractError {
    fn from(error: AssemblyError<io::Error>) -> Self {
        match error {
            AssemblyError::Damaged(damage) => Self::Damaged(damage),
            AssemblyError::Read(error) => Self::Read(error),
            error => Self::Assembly(error),
        }
    }
}

/// Makes a bundle of a rank in `output`, a folder that is not there yet, or is empty; with `overwrite` a bundle that is there is removed.
///
/// # Errors
/// [`ExtractError`]; then what was in `output` is there as before.
pub fn extract(folder: &Path, rank: u32, output: &Path, overwrite: bool) -> Result<Extracted, ExtractError> {
    let run = Run::open(folder)?;
    if !run.ranks.contains(&rank) {
        return Err(ExtractError::NoRank { rank });
    }
    let header = run.whole_reader(rank)?.header();
    if header.payload == Payload::None {
        return Err(ExtractError::OrderOnly);
    }
    if let (Ok(run), Ok(output)) = (folder.canonicalize(), output.canonicalize())
        && run == output
    {
        return Err(ExtractError::Itself { folder: output });
    }
    if output.join(SHIM).is_file() && !output.join(MANIFEST).is_file() {
        return Err(ExtractError::IsRun { folder: output.to_owned() });
    }
    let mut room = folder::open(output, overwrite)?;
    let failed = |source| FolderError::Io { folder: output.to_owned(), source };
    // A bundle that is there stays until the new one is whole.
    let unfinished = tempfile::Builder::new().prefix(".unfinished-").tempdir_in(output).map_err(failed)?;
    let made = write_log(&run, rank, header, unfinished.path())
        .and_then(|assembled| {
            Ok(Extracted { assembled, contents: bundle::fill(unfinished.path(), &run, rank)? })
        })
        .and_then(|extracted| {
            room.clear()?;
            move_into(unfinished.path(), output).map_err(failed)?;
            Ok(extracted)
        });
    drop(unfinished);
    if made.is_err() && room.made {
        let _ = std::fs::remove_dir(output);
    }
    made
}

/// Moves what is in one folder into another one of the same file system.
fn move_into(from: &Path, to: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::rename(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

fn write_log(run: &Run, rank: u32, header: FileHeader, output: &Path) -> Result<Assembled, ExtractError> {
    let log = output.join(format!("{}.log", rank_name(i64::from(rank))));
    let header = FileHeader { payload: Payload::Receiver, kept_pages: 0, ..header };
    let mut pages = Pages::create(&log, &log.with_extension("ring"), header)?;
    let mut calls = 0;
    let mut ended = false;
    let assembled = assemble(run, i64::from(rank), Rule::WHOLE, &mut |record| {
        ended |= record.kind == Kind::End;
        let head =
            Head { kind: record.kind, function: record.function, thread: record.thread, call: calls + 1 };
        calls += record.calls();
        pages.append(head, &[&record.body]).map_err(io::Error::from_raw_os_error)
    })?;
    if let Some(damage) = assembled.cut_by {
        return Err(ExtractError::Damaged(damage));
    }
    let tail = tail(run, rank)?;
    match (&assembled.cut, tail.stopped, tail.entered) {
        (None, None, None) => {}
        _ if ended => {}
        // The ring stays, as after a kill: it says how the log ends.
        (Some(_), ..) => {
            pages.mark_stopped(libc::ENODATA, calls);
            return Ok(assembled);
        }
        (None, stopped, entered) => {
            if let Some((errno, calls)) = stopped {
                pages.mark_stopped(errno, calls);
            }
            if let Some((function, call)) = entered {
                pages.enter(function, call);
            }
            if let Some(status) = tail.left {
                pages.mark_left(status);
            }
            return Ok(assembled);
        }
    }
    pages.finish().map_err(|errno| ExtractError::Write(io::Error::from_raw_os_error(errno)))?;
    Ok(assembled)
}

fn tail(run: &Run, rank: u32) -> Result<Tail, ReadError> {
    Ok(run.reader(rank)?.tail())
}
