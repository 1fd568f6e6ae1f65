//! `mainstay bench step`: a durable request through HTTP, handler and back, beside a bare echo and the bare sync.

mod checkpoint;
mod load;
mod memory;
mod peers;
mod requests;
mod restart;
mod services;

pub(crate) use services::serve as serve_echo;

use crate::group::GroupError;
use crate::report::Report;
use crate::setting::{self, Part};
use mainstay_disk::open::OpenDiskError;
use mainstay_process::recover::RecoverError;
use mainstay_runtime::checkpoint_writer::SaveError;
use mainstay_runtime::service::{EndError, StartError};
use std::io;
use std::path::{Path, PathBuf};

/// The benchmark could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The scratch directory, a socket or a plain file of a floor.
    #[error("cannot use the scratch directory or a loopback socket: {0}")]
    Io(#[from] io::Error),
    /// The nodes of the region that keeps a log.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A service could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A service did not stop.
    #[error(transparent)]
    End(#[from] EndError),
    /// A journal could not be opened.
    #[error(transparent)]
    Open(#[from] OpenDiskError),
    /// A checkpoint could not be written.
    #[error(transparent)]
    Checkpoint(#[from] SaveError),
    /// A process could not be recovered.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// A server answered something else than 200.
    #[error("`{server}` answered a request with `{status_line}`")]
    Status {
        /// Which server.
        server: String,
        /// The first line of its answer.
        status_line: String,
    },
    /// The child that was to be weighed did not come up.
    #[error("`{program} serve` did not begin to listen", program = program.display())]
    Serve {
        /// The program.
        program: PathBuf,
    },
}

/// What is told to this benchmark alone: the program that serves.
type Setting<'a> = setting::Setting<'a, Path>;

/// Measures everything; `progress` is told what comes next. `program` serves when it gets `serve --dir DIR --listen ADDRESS`, for
/// the memory of an idle service, and is a node of a region when it gets `node ARGUMENTS`.
///
/// # Errors
/// See [`StepError`]; the scratch directory is removed all the same.
pub fn step(
    options: &setting::Options,
    program: &Path,
    progress: &dyn Fn(&str),
) -> Result<Report, StepError> {
    let parts = [
        // First: a fork copies the page tables of whatever else the program has in memory.
        Part { name: "checkpoint", measure: checkpoint::measure },
        Part { name: "requests", measure: requests::measure },
        Part { name: "level peers", measure: peers::measure },
        Part { name: "restart", measure: restart::measure },
        Part { name: "memory", measure: memory::measure },
    ];
    setting::run("step", options, program, &parts, progress)
}
