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
    let parts = [
        Part {
            name: rings::PING_PONG.name,
            measure: |setting, report| rings::measure(&rings::PING_PONG, setting, report),
        },
        Part {
            name: rings::PIPELINE_1.name,
            measure: |setting, report| rings::measure(&rings::PIPELINE_1, setting, report),
        },
        Part {
            name: rings::PIPELINE_16.name,
            measure: |setting, report| rings::measure(&rings::PIPELINE_16, setting, report),
        },
        Part { name: call::NAME, measure: call::measure },
    ];
    setting::run("logging", options, program, &parts, progress)
}
