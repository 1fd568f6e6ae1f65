//! `mainstay bench step`: a durable request through HTTP, handler and back, beside a bare echo and the bare sync.

mod checkpoint;
mod load;
mod memory;
mod requests;
mod restart;
mod services;

use crate::machine;
use crate::report::Report;
use crate::scratch::Scratch;
use mainstay_disk::open::OpenDiskError;
use mainstay_process::recover::RecoverError;
use mainstay_runtime::checkpoint_writer::SaveError;
use mainstay_runtime::service::{EndError, StartError};
use std::io;
use std::path::{Path, PathBuf};

/// How to run.
#[derive(Clone, Debug)]
pub struct StepOptions {
    /// Where the scratch directory is made: on the disk to be measured.
    pub directory: PathBuf,
    /// Answer within 40 seconds, with fewer samples.
    pub quick: bool,
    /// A program that serves when it gets `serve --dir DIR --listen ADDRESS`, for the memory of an idle service; without it
    /// that figure is left out.
    pub serve: Option<PathBuf>,
    /// Only the figures whose name contains this; all when empty.
    pub only: String,
}

/// The benchmark could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The scratch directory, a socket or a plain file of a floor.
    #[error("cannot use the scratch directory or a loopback socket: {0}")]
    Io(#[from] io::Error),
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

/// What every figure is measured in.
#[derive(Clone, Copy, Debug)]
struct Setting<'a> {
    directory: &'a Path,
    quick: bool,
    serve: Option<&'a Path>,
}

impl Setting<'_> {
    /// One of two values: for the short form, for the long one.
    fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

type Measure = fn(&Setting<'_>, &mut Report) -> Result<(), StepError>;

/// Measures everything; `progress` is told what comes next.
///
/// # Errors
/// See [`StepError`]; the scratch directory is removed all the same.
pub fn step(options: &StepOptions, progress: &mut dyn FnMut(&str)) -> Result<Report, StepError> {
    let scratch = Scratch::create(&options.directory)?;
    let mut report = Report {
        bench: "step",
        machine: machine::describe(scratch.path()),
        quick: options.quick,
        modelled: "nothing",
        figures: Vec::new(),
        tables: Vec::new(),
        targets: Vec::new(),
    };
    let setting =
        Setting { directory: scratch.path(), quick: options.quick, serve: options.serve.as_deref() };
    let figures: [(&str, Measure); 4] = [
        ("requests", requests::measure),
        ("checkpoint", checkpoint::measure),
        ("restart", restart::measure),
        ("memory", memory::measure),
    ];
    for (name, measure) in figures {
        if name.contains(&options.only) {
            progress(name);
            measure(&setting, &mut report)?;
        }
    }
    Ok(report)
}
