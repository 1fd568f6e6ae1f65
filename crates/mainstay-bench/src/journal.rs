//! `mainstay bench journal`: the journal on a real disk beside the floors of that disk.

mod append;
mod commit_latency;
mod group_commit;
mod message_rates;
mod replay;
mod streaming;

use crate::machine;
use crate::report::{Report, Target};
use crate::scratch::Scratch;
use mainstay_disk::disk::Backend;
use mainstay_disk::log::{CommitError, Log, SealError};
use mainstay_disk::open::{OpenDiskError, Options, open};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::journal::AppendError;
use mainstay_journal::options::OpenOptions;
use mainstay_journal::reader::ReadError;
use mainstay_journal::record::Kind;
use mainstay_types::id::InstanceId;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The records of these benchmarks.
const KIND: Kind = Kind::FIRST_USER;

/// The only instance.
const INSTANCE: InstanceId = InstanceId(0);

/// How to run.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Where the scratch directory is made: on the disk to be measured.
    pub directory: PathBuf,
    /// Answer within 40 seconds, with fewer samples.
    pub quick: bool,
    /// What performs writes in the background.
    pub backend: Backend,
    /// Only the figures whose name contains this; all when empty.
    pub only: String,
}

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
    /// The journal could not be sealed.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The journal could not be read back.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Measures everything; `progress` is told what comes next.
///
/// # Errors
/// See [`BenchError`]; the scratch directory is removed all the same.
pub fn journal(options: &JournalOptions, progress: &mut dyn FnMut(&str)) -> Result<Report, BenchError> {
    let scratch = Scratch::create(&options.directory)?;
    let mut report = Report {
        bench: "journal",
        machine: machine::describe(scratch.path()),
        quick: options.quick,
        modelled: "nothing",
        figures: Vec::new(),
        tables: Vec::new(),
        targets: Vec::new(),
    };
    let setting = Setting { directory: scratch.path(), quick: options.quick, backend: options.backend };
    let figures: [(&str, Measure); 6] = [
        ("commit latency", commit_latency::measure),
        ("group commit", group_commit::measure),
        ("streaming", streaming::measure),
        ("append", append::measure),
        ("replay", replay::measure),
        ("message rates", message_rates::measure),
    ];
    for (name, measure) in figures {
        if name.contains(&options.only) {
            progress(name);
            measure(&setting, &mut report)?;
        }
    }
    Ok(report)
}

type Measure = fn(&Setting<'_>, &mut Report) -> Result<(), BenchError>;

/// What every figure is measured in.
#[derive(Clone, Copy, Debug)]
struct Setting<'a> {
    directory: &'a Path,
    quick: bool,
    backend: Backend,
}

impl Setting<'_> {
    /// One of two values: for the short form, for the long one.
    fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

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
            backend: self.backend,
            create_directory: true,
            hint: "mainstay bench journal".to_owned(),
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
    log.wait_trimmed(end);
    Ok(())
}

fn nanoseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e9
}

fn add_target(report: &mut Report, target: Target) {
    report.targets.push(target);
}
