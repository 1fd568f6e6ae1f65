//! A replay for people, of a directory that stays as it is.

use crate::settings::Settings;
use crate::threads::STACK_BYTES;
use mainstay_disk::open::OpenDiskError;
use mainstay_disk::read_only::open_read_only;
use mainstay_journal::open::OpenReport;
use mainstay_process::handler::AnyHandler;
use mainstay_process::recover::RecoverError;
use mainstay_process::retrace::{Retrace, Retraced, Watcher, retrace};
use mainstay_types::id::Lsn;
use std::io;

/// What is to be replayed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Begin with the newest checkpoint at or below this LSN.
    pub from: Lsn,
    /// See [`Retrace::go_on`].
    pub go_on: bool,
}

/// A replay came to its end.
#[derive(Debug)]
pub struct Replayed {
    /// What opening found.
    pub journal: OpenReport,
    /// The process that writes the directory just now: it is further than what was replayed.
    pub writer: Option<u32>,
    /// What was replayed.
    pub retraced: Retraced,
}

/// The replay ended early. The directory was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The directory cannot be read.
    #[error(transparent)]
    Open(#[from] OpenDiskError),
    /// What it holds cannot be replayed.
    #[error(transparent)]
    Recover(#[from] Box<RecoverError>),
    /// A directory that another process writes went on while it was read.
    #[error(
        "process {pid} writes the directory, and what was to be read is gone already ({source}): try again"
    )]
    Moved {
        /// That process.
        pid: u32,
        /// What was not there.
        source: Box<RecoverError>,
    },
    /// The operating system gave no thread.
    #[error("no thread to replay on: {0}")]
    Thread(#[source] io::Error),
}

/// Replays `settings.directory` with a handler that `make` gives, on a thread like those that handlers run on.
///
/// # Errors
/// [`ReplayError`]; the directory is never changed, and need not be at rest.
pub fn replay(
    settings: &Settings,
    make: &(dyn Fn() -> AnyHandler + Sync),
    replay: Replay,
    watcher: &mut (dyn Watcher + Send),
) -> Result<Replayed, ReplayError> {
    let Replay { from, go_on } = replay;
    let mut config = settings.process.clone();
    config.ports = settings.outputs.iter().map(crate::port::OutputPort::declared).collect();
    let work = move || -> Result<Replayed, ReplayError> {
        let mut opened = open_read_only(&settings.directory)?;
        let retraced = retrace(Retrace {
            config,
            handler: make(),
            journal: opened.journal,
            report: &opened.report,
            storage: &mut opened.storage,
            catalog: &opened.catalog,
            from,
            go_on,
            watcher,
        });
        let retraced = retraced.map_err(|error| match (error, opened.writer) {
            (source @ (RecoverError::Read(_) | RecoverError::Storage(_)), Some(pid)) => {
                ReplayError::Moved { pid, source: Box::new(source) }
            }
            (error, _) => Box::new(error).into(),
        })?;
        Ok(Replayed { journal: opened.report, writer: opened.writer, retraced })
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("replay".into()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, work).map_err(ReplayError::Thread)?.join() {
            Ok(replayed) => replayed,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
