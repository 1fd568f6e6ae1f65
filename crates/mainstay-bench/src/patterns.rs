//! `mainstay bench patterns`: what a version costs. Three nodes and their clients as operating-system processes, the seven message patterns by
//! turns, beside bare TCP and beside what the model says; and how long a write waits when a node dies or stands still.

mod join;
mod load;
mod pause;
mod peers;
mod redis;
mod table;

use crate::group::GroupError;
use crate::plot::{Panel, PlotError, svg};
use crate::report::Report;
use crate::setting::{self, Part};
use crate::transport::TransportError;
use mainstay_region::patterns::Pattern;
use mainstay_region_client::{ConnectError, WriteError};
use std::io;
use std::path::PathBuf;

/// The benchmark could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum PatternsError {
    /// A socket, a process or the scratch directory.
    #[error("cannot use the scratch directory, a process or a loopback socket: {0}")]
    Io(#[from] io::Error),
    /// The other end of the bare ping-pong.
    #[error("the other end of the ping-pong: {0}")]
    Floor(#[from] TransportError),
    /// The nodes.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A client found no region.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A write failed where nothing was killed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// What is told to this benchmark alone.
#[derive(Clone, Debug)]
pub struct Given {
    /// The program that is a node when it gets `node ARGUMENTS`.
    pub program: PathBuf,
    /// How long a message between two processes is held back in the part with links, in microseconds.
    pub link_delay_us: u64,
    /// Clients in the part with many, each with one thread.
    pub clients: usize,
    /// Operations that each of them has under way.
    pub window: usize,
    /// Where `peers/install.sh` has put other groups to be measured beside ours; `None`: they are not.
    pub peers: Option<PathBuf>,
}

type Setting<'a> = setting::Setting<'a, Given>;

/// The pattern that a region has unless told otherwise: what is promised is promised of it.
const DEFAULT: Pattern = Pattern::OneHop;

/// Measures everything; `progress` is told what comes next.
///
/// # Errors
/// See [`PatternsError`]; the nodes are ended and the scratch directory is removed all the same.
pub fn patterns(
    options: &setting::Options,
    given: &Given,
    progress: &dyn Fn(&str),
) -> Result<Report, PatternsError> {
    let parts = [
        Part {
            name: "window 1",
            measure: |setting, report| table::measure(&table::WINDOW_1, setting, report),
        },
        Part {
            name: "window 64",
            measure: |setting, report| table::measure(&table::WINDOW_64, setting, report),
        },
        Part { name: "many clients", measure: table::many_clients },
        Part { name: "link delay", measure: table::link_delay },
        Part { name: "redis", measure: redis::measure },
        Part { name: "pause", measure: pause::measure },
        Part { name: "join", measure: join::measure },
        Part { name: "peers", measure: peers::measure },
    ];
    setting::run("patterns", options, given, &parts, progress)
}

/// The times of an operation, by pattern and size.
///
/// # Errors
/// [`PlotError`].
pub fn plot(report: &Report) -> Result<String, PlotError> {
    let panels: Vec<_> = report.figures.iter().map(Panel::of_ranges).filter(Panel::shows_something).collect();
    svg(&panels, 2)
}
