//! `mainstay upgrade --check`: what a new version of a service would have done with recent traffic, beside what the old one does.
//!
//! Each binary replays the directory by itself (`BINARY replay … --json --go-on`) from the same checkpoint to the same end, in
//! memory; the two lists are read side by side up to the first delivery that comes out otherwise.

mod compare;
mod replaying;

use crate::upgrade::compare::compare;
use crate::upgrade::replaying::{Range, Replaying};
use crate::verdict::Verdict;
use mainstay_disk::read_only::open_read_only;
use mainstay_journal::reader::Reader;
use mainstay_journal::storage::Storage;
use mainstay_process::checkpoint;
use mainstay_process::record::delivery::Delivery;
use mainstay_process::record::recalled;
use mainstay_types::id::Lsn;
use std::path::{Path, PathBuf};

/// `mainstay upgrade`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mainstay upgrade --check ./counter-1 ./counter-2 counter.mainstay
  mainstay upgrade --check ./counter-1 ./counter-2 counter.mainstay --last 1000 --json | jq .difference

The directory is only read, and may be in use. How to upgrade: docs/upgrade.md.
Exit codes: 0 no difference, 1 a difference, or a version that cannot replay the directory, 2 wrong flags, 3 a binary or the directory
cannot be used.")]
pub(crate) struct Upgrade {
    /// Replay recent traffic through both versions and show the first difference.
    #[arg(long, required = true)]
    check: bool,
    /// The binary that wrote the directory.
    #[arg(value_name = "OLD-BINARY")]
    old: PathBuf,
    /// The binary that is to go on.
    #[arg(value_name = "NEW-BINARY")]
    new: PathBuf,
    /// The directory of the service.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
    /// Begin at the newest checkpoint with so many deliveries behind it [default: the oldest that is kept]
    #[arg(long, value_name = "DELIVERIES")]
    last: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// When a binary or the directory cannot be used.
pub(crate) fn run(options: &Upgrade) -> anyhow::Result<Verdict> {
    let range = recent(&options.directory, options.last)?;
    both(&options.old, &options.new, &options.directory, &range, options.json)
}

/// `mainstay replay --diff`: the same over what `replay` says, and for one instance alone if it names one.
///
/// # Errors
/// When a binary or the directory cannot be used.
pub(crate) fn first_difference(
    old: &Path,
    new: &Path,
    replay: &mainstay::replay::Replay,
) -> anyhow::Result<Verdict> {
    let mut range = recent(&replay.directory, None)?;
    range.process.clone_from(&replay.process);
    range.from = replay.from.map_or(range.from, Lsn);
    range.until = replay.until.map_or(range.until, Lsn);
    both(old, new, &replay.directory, &range, replay.json)
}

fn both(old: &Path, new: &Path, directory: &Path, range: &Range, json: bool) -> anyhow::Result<Verdict> {
    let old = Replaying::start(old, directory, range)?;
    let new = Replaying::start(new, directory, range)?;
    let compared = compare(old, new)?;
    if json {
        println!("{}", serde_json::to_string(&compared)?);
    } else {
        println!("{compared}");
    }
    Ok(if compared.is_same() { Verdict::Clean } else { Verdict::Wrong })
}

/// From which checkpoint to which end both are to replay: fixed here, since the directory may be in use.
fn recent(directory: &Path, last: Option<u64>) -> anyhow::Result<Range> {
    let mut opened = open_read_only(directory)?;
    let (first, end) = (opened.report.first, opened.report.end);
    let files = opened.storage.list()?;
    let mut begins: Vec<Lsn> = files.iter().filter_map(|file| checkpoint::parse_name(&file.name)).collect();
    begins.retain(|lsn| (first..=end).contains(lsn));
    if first == Lsn::ZERO {
        // All of history is there.
        begins.push(first);
    }
    begins.sort_unstable();
    let mut deliveries = Vec::new();
    let mut reader = Reader::new(&mut opened.storage, &opened.catalog, first, end);
    while let Some(record) = reader.next()? {
        if Delivery::is_kind(record.kind) || record.kind == recalled::KIND {
            deliveries.push(record.lsn);
        }
    }
    let behind = |begin: Lsn| deliveries.len() - deliveries.partition_point(|&lsn| lsn < begin);
    let wanted = last.map_or(usize::MAX, |last| usize::try_from(last).unwrap_or(usize::MAX));
    let oldest = begins.first().copied().unwrap_or(first);
    let from = begins.into_iter().rev().find(|&begin| behind(begin) >= wanted).unwrap_or(oldest);
    Ok(Range { from, until: deliveries.last().copied().unwrap_or(end), process: None })
}
