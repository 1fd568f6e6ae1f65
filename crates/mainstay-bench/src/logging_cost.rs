//! `mainstay bench logging-cost`: what logging a message costs a server and its client, by size and by way of logging (the
//! study of Zhao 2014, figures 2.13 to 2.16).

mod execution;
mod latency;
mod server;
mod service;
mod stripes;

use crate::logging::LoggingError;
use crate::plot::{Panel, PlotError, svg};
use crate::report::{Arm, Report};
use crate::setting::{self, Part};
use mainstay_disk::log::{CommitError, NotTrimmed};
use mainstay_disk::open::OpenDiskError;
use mainstay_journal::journal::AppendError;
use std::io;
use std::path::Path;

pub(crate) use server::{Arguments, serve};

/// The benchmark could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum LoggingCostError {
    /// The scratch directory, a socket or a plain file.
    #[error("cannot use the scratch directory or a loopback socket: {0}")]
    Io(#[from] io::Error),
    /// The journal could not be opened.
    #[error(transparent)]
    Open(#[from] OpenDiskError),
    /// A record could not be appended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// A record could not be made durable.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The journal could not be trimmed, and so not be brought to its steady state.
    #[error(transparent)]
    Trim(#[from] NotTrimmed),
    /// The server did not come up, or died.
    #[error("the server that logs: {0}")]
    Server(#[from] LoggingError),
    /// The service did not come up, or did not answer.
    #[error("the service: {0}")]
    Service(#[from] crate::step::StepError),
    /// The server answered what was not asked.
    #[error("the server answered {found} bytes to {sent}")]
    Length {
        /// Bytes sent.
        sent: usize,
        /// Bytes that came back.
        found: usize,
    },
}

/// What is told to this benchmark alone: a program that is a node when it gets `bench-node ARGUMENTS`.
type Setting<'a> = setting::Setting<'a, Path>;

/// Bytes of the messages.
const SIZES: [u32; 5] = [10, 100, 1_000, 10_000, 100_000];

/// Measures everything; `progress` is told what comes next. `program` is a node ([`crate::logging::node::serve`]) when it gets
/// `bench-node ARGUMENTS`.
///
/// # Errors
/// See [`LoggingCostError`]; the server is ended and the scratch directory is removed all the same.
pub fn logging_cost(
    options: &setting::Options,
    program: &Path,
    progress: &dyn Fn(&str),
) -> Result<Report, LoggingCostError> {
    let parts = [
        Part { name: latency::NAME, measure: latency::measure },
        Part { name: service::NAME, measure: service::measure },
        Part { name: execution::CONCURRENT, measure: execution::measure_concurrent },
        Part { name: execution::BATCHED, measure: execution::measure_batched },
        Part { name: stripes::NAME, measure: stripes::measure },
    ];
    setting::run("logging-cost", options, program, &parts, progress)
}

/// The densities: for each way of logging a line, at the server on the left, at the client on the right.
///
/// # Errors
/// [`PlotError`].
pub fn plot(report: &Report) -> Result<String, PlotError> {
    let arms = |figure: &str| {
        let found = report.figures.iter().filter(move |found| found.name == figure);
        found.flat_map(|figure| &figure.arms).collect::<Vec<_>>()
    };
    let (at_server, at_client) = (arms(latency::AT_SERVER), arms(latency::AT_CLIENT));
    let mut names: Vec<&str> = Vec::new();
    for arm in &at_client {
        if !names.contains(&arm.name.as_str()) {
            names.push(&arm.name);
        }
    }
    let (mut panels, mut alone) = (Vec::new(), Vec::new());
    for name in names {
        let of_name = |arms: &[&Arm], place: &str| {
            let arms: Vec<&Arm> = arms.iter().copied().filter(|arm| arm.name == name).collect();
            Panel::of_densities(format!("{name}: {place}"), arms.into_iter())
        };
        let pair =
            [of_name(&at_server, "logging, at the server"), of_name(&at_client, "end to end, at the client")];
        // What does not log has no latency of logging: it must not move the others out of their column.
        if pair.iter().all(Panel::shows_something) { panels.extend(pair) } else { alone.extend(pair) }
    }
    panels.append(&mut alone);
    let service = arms(service::NAME);
    for level in ["memory", "process", "disk"] {
        let of_level =
            service.iter().copied().filter(|arm| arm.level.is_some_and(|is| is.to_string() == level));
        panels.push(Panel::of_densities(
            format!("the service over HTTP, level {level}: at the client"),
            of_level,
        ));
    }
    panels.retain(Panel::shows_something);
    svg(&panels, 2)
}
