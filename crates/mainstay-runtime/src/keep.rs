//! Level peers: a region keeps the log and the last checkpoint of a process, so that it comes back from there when its machine is lost for good.
//!
//! What is kept under which key, and who may change it: [`mainstay_process::kept`]. Here are the way to the region, the thread that goes it, and the
//! order of a start: find the region, fill an empty directory, open it, become the owner, give the region what it lacks, and only then recover and answer.

mod region;
mod start;
mod thread;

use mainstay_disk::open::OpenDiskError;
use mainstay_journal::storage::StorageError;
use mainstay_process::kept::note::Note;
use mainstay_process::kept::{KeptError, Trouble};
use mainstay_region_client::{ConnectError, TlsError, TlsFiles};
use mainstay_types::id::Lsn;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

pub(crate) use start::{Prepared, begin, prepare};
pub(crate) use thread::Keep;

/// Where a process keeps its log.
#[derive(Clone, Debug)]
pub struct KeepSettings {
    /// Nodes of the region's group, one at least that is there when this process starts.
    pub servers: Vec<SocketAddr>,
    /// The region's name.
    pub region: String,
    /// Whose log it is: a process that starts with an empty directory and this name comes back as the one that had it.
    pub name: String,
    /// What proves to the region's nodes who this is; `None`: plain text, on loopback.
    pub tls: Option<TlsFiles>,
    /// What this start is to do besides.
    pub way: KeepWay,
}

/// How a start takes what it finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepWay {
    /// The region knows the name.
    #[default]
    Known,
    /// Nobody has had the name: begin to keep it.
    New,
    /// This directory is the last one, though the region has lost what it kept of it: keep it anew.
    Anew,
    /// This directory is the last one; from now on the region does not keep it, and it serves at another level.
    Leave,
}

/// What a start at level peers found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptStart {
    /// The directory was empty, and has been filled up to here.
    pub filled_to: Option<Lsn>,
    /// Nodes of the region's group.
    pub nodes: usize,
}

/// The process did not start at level peers. It answered nothing in this life; what it acknowledged earlier is in the region, in the directory, or in
/// both, as it was.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The level without a region, or a region without the level.
    #[error(
        "level peers needs a region that keeps the log (--keep ADDRESS:PORT), and a region keeps the log at level peers only: give both, or neither. \
         To leave the region (--keep-leave), give the level that is to be from now on, another than peers"
    )]
    LevelAndRegion,
    /// A name that cannot be part of a key.
    #[error("`{name}` cannot name a log in a region: 1 to 200 bytes of one line, without braces")]
    Name {
        /// What was given.
        name: String,
    },
    /// A directory that is kept, at another level: it would go its own way, and what an empty one is filled from would be old.
    #[error(
        "{path} is kept as `{}` in region `{}`, and was started without it: another directory may have taken over since. Nothing was changed. Start it \
         with --keep ADDRESS:PORT --keep-region {} --keep-as {}; with --keep-leave besides to serve at another level from now on",
        note.name, note.region, note.region, note.name, path = path.display()
    )]
    Needed {
        /// The directory.
        path: PathBuf,
        /// What it says.
        note: Note,
    },
    /// Its certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The region is not there.
    #[error(
        "the region that keeps the log cannot be reached, and nothing was answered: {0}. Start its nodes, or correct --keep and --keep-region"
    )]
    Connect(#[from] ConnectError),
    /// What the region has and what the directory has do not go together, or cannot be had.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] OpenDiskError),
    /// A file of it cannot be read.
    #[error("the directory cannot be used, and nothing was answered: {0}")]
    Storage(#[from] StorageError),
    /// No thread.
    #[error("no thread to keep the log with: {0}")]
    Thread(#[source] io::Error),
}

/// Another process has this one's log now, or the region has lost it: this one ends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{name}` ends as if killed: {trouble}. What it acknowledged is safe where it was kept; what it had taken and not acknowledged is in its \
     directory alone"
)]
pub struct NotKept {
    /// Whose log.
    pub name: String,
    /// Why.
    pub trouble: Trouble,
}
