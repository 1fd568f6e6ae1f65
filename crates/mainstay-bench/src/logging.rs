//! `mainstay bench logging`: processes that tell each other messages, under every logging policy, beside the same processes
//! without logging and beside bare sockets; each node an operating-system process with a journal of its own.

mod bare;
mod call;
mod client;
mod cluster;
mod handler;
mod laps;
mod pattern;
mod recovery;
mod sync_trio;
mod usage;

pub mod node;

pub(crate) use client::Client;
pub(crate) use cluster::NodeProcess;
pub(crate) use node::Arguments;

use crate::plot::{Panel, PlotError, svg};
use crate::report::Report;
use crate::setting::{self, Part};
use std::io;
use std::path::Path;

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

/// What is told to this benchmark alone: a program that is a node ([`node::serve`]) when it gets `bench-node ARGUMENTS`.
type Setting<'a> = setting::Setting<'a, Path>;

/// Measures everything; `progress` is told what comes next. `program` is a node ([`node::serve`]) when it gets `bench-node
/// ARGUMENTS`.
///
/// # Errors
/// See [`LoggingError`]; the nodes are ended and the scratch directory is removed all the same.
pub fn logging(
    options: &setting::Options,
    program: &Path,
    progress: &dyn Fn(&str),
) -> Result<Report, LoggingError> {
    macro_rules! laps {
        ($shape:ident) => {
            Part {
                name: laps::$shape.name,
                measure: |setting, report| laps::measure(&laps::$shape, setting, report),
            }
        };
    }
    let parts = [
        laps!(PING_PONG),
        laps!(STREAM),
        laps!(PIPELINE_1),
        laps!(PIPELINE_16),
        laps!(FAN),
        laps!(EVERYBODY),
        Part { name: call::NAME, measure: call::measure },
        Part { name: recovery::NAME, measure: recovery::measure },
    ];
    setting::run("logging", options, program, &parts, progress)
}

/// All figures of a report: latencies, and recovery times, by arm and size.
///
/// # Errors
/// [`PlotError`].
pub fn plot(report: &Report) -> Result<String, PlotError> {
    let panels: Vec<_> = report.figures.iter().map(Panel::of_ranges).filter(Panel::shows_something).collect();
    svg(&panels, 2)
}
