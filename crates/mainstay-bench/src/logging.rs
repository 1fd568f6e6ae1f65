//! `mainstay bench logging`: processes that tell each other messages, under every logging policy, beside the same processes
//! without logging and beside bare sockets; each node an operating-system process with a journal of its own.

mod bare;
mod call;
mod client;
mod cluster;
mod handler;
mod rings;
mod sync_trio;
mod usage;

pub mod node;

use crate::machine;
use crate::report::Report;
use crate::scratch::Scratch;
use std::io;
use std::path::{Path, PathBuf};

/// How to run.
#[derive(Clone, Debug)]
pub struct LoggingOptions {
    /// Where the scratch directory is made: on the disk to be measured.
    pub directory: PathBuf,
    /// Answer within 40 seconds, with fewer samples and one size of messages.
    pub quick: bool,
    /// A program that is a node ([`node::serve`]) when it gets `bench-node ARGUMENTS`.
    pub program: PathBuf,
    /// Only the figures whose name contains this; all when empty.
    pub only: String,
}

/// The benchmark could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The scratch directory, a socket or a plain file of a floor.
    #[error("cannot use the scratch directory or a loopback socket: {0}")]
    Io(#[from] io::Error),
    /// A node died, or said nothing for too long.
    #[error("a node of `{arm}` {what}")]
    Node {
        /// Which arm's.
        arm: String,
        /// What it did.
        what: &'static str,
    },
    /// A node said something that is no answer to what it was asked.
    #[error("a node of `{arm}` answered what cannot be read: {source}")]
    Answer {
        /// Which arm's.
        arm: String,
        /// Why.
        source: serde_json::Error,
    },
    /// A node answered something else than 200.
    #[error("a node of `{arm}` answered {status}: {body}")]
    Status {
        /// Which arm's.
        arm: String,
        /// The HTTP status.
        status: u16,
        /// What it said.
        body: String,
    },
}

/// What every figure is measured in.
#[derive(Clone, Copy, Debug)]
struct Setting<'a> {
    directory: &'a Path,
    quick: bool,
    program: &'a Path,
}

impl Setting<'_> {
    /// One of two values: for the short form, for the long one.
    fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

type Measure = fn(&Setting<'_>, &mut Report) -> Result<(), LoggingError>;

/// Measures everything; `progress` is told what comes next.
///
/// # Errors
/// See [`LoggingError`]; the nodes are ended and the scratch directory is removed all the same.
pub fn logging(options: &LoggingOptions, progress: &mut dyn FnMut(&str)) -> Result<Report, LoggingError> {
    let scratch = Scratch::create(&options.directory)?;
    let mut report = Report {
        bench: "logging",
        machine: machine::describe(scratch.path()),
        quick: options.quick,
        modelled: "nothing",
        figures: Vec::new(),
        tables: Vec::new(),
        targets: Vec::new(),
    };
    let setting = Setting { directory: scratch.path(), quick: options.quick, program: &options.program };
    let figures: [(&str, Measure); 4] = [
        (rings::PING_PONG.name, |setting, report| rings::measure(&rings::PING_PONG, setting, report)),
        (rings::PIPELINE_1.name, |setting, report| rings::measure(&rings::PIPELINE_1, setting, report)),
        (rings::PIPELINE_16.name, |setting, report| rings::measure(&rings::PIPELINE_16, setting, report)),
        (call::NAME, call::measure),
    ];
    for (name, measure) in figures {
        if name.contains(&options.only) {
            progress(name);
            measure(&setting, &mut report)?;
        }
    }
    Ok(report)
}
