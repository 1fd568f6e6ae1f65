//! Level peers: a region keeps the log and the last checkpoint of a process, so that it comes back from there when its machine is lost for good.
//!
//! ```text
//!   keys, all of one shard ({NAME} is their tag), each written only while the owner is the one that writes:
//!     keep/{NAME}/owner                    whose log it is: directory, life, start          compared and set
//!     keep/{NAME}/manifest                 sizes, where the log begins, which checkpoint
//!     keep/{NAME}/log/PIECE                64 KiB of the log; the last piece grows
//!     keep/{NAME}/checkpoint/LSN/NUMBER    256 KiB of the checkpoint's file
//!
//!   file DIRECTORY/keep                    the starts of this directory that may be the owner
//!
//!   at the start, before anything is answered:
//!     nobody's, a directory that was never kept ──> kept from now on
//!     nobody's, a directory that was ───────────> refused: the region has lost it, or is another one
//!     a start's of the file ────────────────────> the region is given what it lacks; refused if the directory lacks what the region has
//!     another's, an empty directory ────────────> the owner from now on; the directory is filled
//!     another's, a directory with a journal ────> refused: the process lives elsewhere
//! ```
//!
//! Every write names the version of the owner's entry that it relies on, and the region does it only if that is still there: a life that was cut off
//! gets nothing acknowledged behind its successor's start, however late its messages arrive. Each change of a piece or of the manifest also names
//! the version that it changes, so that asking again does nothing twice.

mod keeper;
mod shelf;
mod start;

use mainstay_disk::open::OpenDiskError;
use mainstay_journal::fill::FillError;
use mainstay_journal::reader::ReadError;
use mainstay_region_client::{ConnectError, TlsError, TlsFiles};
use mainstay_types::id::Lsn;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

pub(crate) use keeper::Keep;
pub(crate) use start::{Prepared, begin, prepare};

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
    /// This directory is the last one, though the region has lost what it kept of it: keep it anew.
    pub anew: bool,
}

/// Whose log a region keeps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// The identity of its directory.
    pub store: String,
    /// Its life. No other has this number, wherever the next one begins.
    pub life: u64,
    /// Drawn at its start.
    pub start: String,
    /// Bytes of a page of its journal.
    pub page_bytes: u32,
    /// Pages of its ring.
    pub pages: u16,
    /// Pages of a segment.
    pub segment_pages: u32,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, life, start, .. } = self;
        write!(f, "directory {store} in life {life} (start {start})")
    }
}

/// What a start at level peers found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptStart {
    /// The directory was empty, and has been filled up to here.
    pub filled_to: Option<Lsn>,
    /// Nodes of the region's group.
    pub nodes: usize,
}

/// The region cannot keep the log, now or at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// It does not answer, or not in time. What was asked for may have been done.
    #[error("the region does not answer: {0}")]
    Unreached(String),
    /// It keeps another process's.
    #[error("{0} has taken over")]
    Taken(Owner),
    /// It has lost what it kept, or somebody removed it.
    #[error("the region has lost what it kept")]
    Lost,
    /// What is under the key is nothing that was kept.
    #[error("`{key}` in the region holds something else: remove it if nothing else needs it")]
    Foreign {
        /// The key.
        key: String,
    },
    /// An entry is longer than the region takes.
    #[error("the region refuses for good: {0}")]
    Refused(String),
}

/// The process did not start at level peers. It answered nothing in this life; what it acknowledged earlier is in the region, in the directory, or in
/// both, as it was.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The level without a region, or a region without the level.
    #[error(
        "level peers needs a region that keeps the log (--keep HOST:PORT), and a region keeps the log at level peers only: give both, or neither"
    )]
    LevelAndRegion,
    /// A name that cannot be part of a key.
    #[error("`{name}` cannot name a log in a region: 1 to 200 bytes, without braces")]
    Name {
        /// What was given.
        name: String,
    },
    /// Its certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The region is not there.
    #[error(
        "the region that keeps the log cannot be reached, and nothing was answered: {0}. Start its nodes, or correct --keep and --keep-region"
    )]
    Connect(#[from] ConnectError),
    /// The region did not do what was asked.
    #[error(
        "the log of `{name}` cannot be kept, and nothing was answered: {trouble}. Start it again when the region serves"
    )]
    Trouble {
        /// Whose.
        name: String,
        /// Why.
        trouble: Trouble,
    },
    /// Another directory is that process.
    #[error(
        "`{name}` lives in {by}, which has taken over since this directory was used last; what it acknowledged is in the region and not here. \
         Nothing was changed. To bring it back here once that one is gone, start it with an empty directory: this one is not needed any more"
    )]
    Elsewhere {
        /// Whose log.
        name: String,
        /// Who has it.
        by: Owner,
    },
    /// It was being given to the region for the first time.
    #[error(
        "a directory began to be kept as `{name}` and never was in whole: the region has nothing to fill this one from. Nothing was answered. Start          that directory; or, if it is gone with all it had, begin with this one --keep-anew"
    )]
    Unbegun {
        /// Whose log.
        name: String,
    },
    /// The region does not know a directory that it had kept.
    #[error(
        "the region keeps nothing of `{name}`, and this directory was kept: the region has lost it, or is another one. Nothing was changed. \
         Correct --keep, --keep-region or --keep-as; or, if no other directory has been `{name}` since, keep this one --keep-anew"
    )]
    RegionLost {
        /// Whose log.
        name: String,
    },
    /// The directory has lost what the region has, as after a power loss.
    #[error(
        "this directory ends at LSN {here}, and the region has the log of `{name}` up to LSN {kept}: it lost power, or was repaired. Nothing \
         that was acknowledged is lost, and nothing was answered. Move this directory away and start again with an empty one: it is filled from the region"
    )]
    Behind {
        /// Whose log.
        name: String,
        /// The end here.
        here: Lsn,
        /// The end there.
        kept: Lsn,
    },
    /// What the region keeps makes no journal.
    #[error(
        "what the region keeps of `{name}` makes no journal: {source}. Nothing in the region was changed but its owner"
    )]
    Fill {
        /// Whose log.
        name: String,
        /// Why.
        source: FillError,
    },
    /// The region keeps less of a checkpoint than it says.
    #[error(
        "the checkpoint at LSN {lsn} that the region keeps of `{name}` is not whole: {bytes} bytes of {expected} are there"
    )]
    Checkpoint {
        /// Whose.
        name: String,
        /// Which.
        lsn: Lsn,
        /// How much is there.
        bytes: u64,
        /// How much should be.
        expected: u64,
    },
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] OpenDiskError),
    /// The journal cannot be read, to give the region what it lacks.
    #[error("the journal cannot be read to be kept: {0}")]
    Read(#[from] ReadError),
    /// A file of the directory cannot be read or written.
    #[error("{path} cannot be used, and nothing was answered: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
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
