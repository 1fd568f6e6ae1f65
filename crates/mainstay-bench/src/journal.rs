//! `mainstay bench journal`: the journal on a real disk beside the floors of that disk.

mod append;
mod commit_latency;
mod group_commit;
mod message_rates;
mod replay;
mod streaming;

use crate::report::{Report, Target};
use crate::setting::{self, Part};
use mainstay_disk::disk::Backend;
use mainstay_disk::log::{CommitError, Log, NotTrimmed, SealError};
use mainstay_disk::open::{OpenDiskError, Options, open};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::journal::AppendError;
use mainstay_journal::options::OpenOptions;
use mainstay_journal::reader::ReadError;
use mainstay_journal::record::Kind;
use mainstay_types::id::InstanceId;
use std::io;
use std::time::Duration;

/// The records of these benchmarks.
const KIND: Kind = Kind::FIRST_USER;

/// The only instance.
const INSTANCE: InstanceId = InstanceId(0);

/// The benchmark could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A plain file of a floor, or the scratch directory.
    #[error("cannot use the scratch directory: {0}")]
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
    /// The journal could not be sealed.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The journal could not be read back.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// What is told to this benchmark alone: what performs writes in the background.
type Setting<'a> = setting::Setting<'a, Backend>;

/// Measures everything, with `backend` to perform writes in the background; `progress` is told what comes next.
///
/// # Errors
/// See [`BenchError`]; the scratch directory is removed all the same.
pub fn journal(
    options: &setting::Options,
    backend: Backend,
    progress: &dyn Fn(&str),
) -> Result<Report, BenchError> {
    let parts = [
        Part { name: "commit latency", measure: commit_latency::measure },
        Part { name: "group commit", measure: group_commit::measure },
        Part { name: "streaming", measure: streaming::measure },
        Part { name: "append", measure: append::measure },
        Part { name: "replay", measure: replay::measure },
        Part { name: "message rates", measure: message_rates::measure },
    ];
    setting::run("journal", options, &backend, &parts, progress)
}

impl Setting<'_> {
    /// A new journal in a folder of its own, with room for `free_segments` to be recycled.
    fn open_log(
        &self,
        name: &str,
        geometry: Geometry,
        buffer_only: bool,
        free_segments: usize,
    ) -> Result<Log, BenchError> {
        Ok(Log::new(open(&self.directory.join(name), &self.options(geometry, buffer_only, free_segments))?))
    }

    fn options(&self, geometry: Geometry, buffer_only: bool, free_segments: usize) -> Options {
        Options {
            journal: OpenOptions {
                geometry,
                buffer_only,
                free_segments_max: free_segments,
                ..OpenOptions::default()
            },
            backend: *self.given,
            create_directory: true,
            hint: "mainstay bench journal".to_owned(),
            stripes: Vec::new(),
            kept: false,
            record: None,
        }
    }
}

/// Fills as many segments as `bytes` of records take, then recycles them: a journal in its steady state writes segments
/// that were written before.
fn fill_and_recycle(log: &Log, payload: &[u8], bytes: u64) -> Result<(), BenchError> {
    let target = log.end().plus(bytes);
    let mut end = log.end();
    while end < target {
        end = log.append(KIND, INSTANCE, &[payload])?.end;
    }
    recycle(log)
}

/// Makes everything durable and gives it up.
fn recycle(log: &Log) -> Result<(), BenchError> {
    let end = log.end();
    log.commit(end, mainstay_types::level::Level::Disk)?;
    log.trim(end);
    Ok(log.wait_trimmed(end)?)
}

fn nanoseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e9
}

fn add_target(report: &mut Report, target: Target) {
    report.targets.push(target);
}
