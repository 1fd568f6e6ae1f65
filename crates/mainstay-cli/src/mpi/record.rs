//! `mainstay mpi record`: an MPI program is run and every call of every rank logged.

use super::sizes;
use crate::verdict::{UsageError, Verdict};
use mainstay_mpi::command::record::{self, record};
use mainstay_mpi::command::replay::default_folder;
use mainstay_mpi::command::stat::{RankStat, rank_stat};
use mainstay_mpi::command::toolchain::cache_folder;
use mainstay_mpi::command::unfinished::{Fault, end_text, fault, replay_command, suspects};
use mainstay_mpi::format::{PAGE_BYTES_MAX, PAGE_BYTES_MIN, PAGES_MAX};
use mainstay_mpi::payload::Payload;
use mainstay_mpi::settings::{PAGE_BYTES_DEFAULT, PAGES_DEFAULT};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

/// `mainstay mpi record`.
#[derive(Debug, clap::Args)]
pub(crate) struct Record {
    /// Folder for the logs: not there yet, or empty.
    #[arg(long, value_name = "DIR", default_value = default_folder().as_os_str())]
    dir: PathBuf,
    /// Remove the run that is in that folder first.
    #[arg(long)]
    overwrite: bool,
    /// Compiler wrapper of the MPI, where it is not the one that belongs to the launcher.
    #[arg(long, value_name = "MPICC")]
    mpicc: Option<String>,
    /// Pages of each rank that may be filled or on their way to the disk; with one the program waits for each, with 0 nothing is
    /// ever written: the cost of buffering alone.
    #[arg(long, value_name = "N", default_value_t = PAGES_DEFAULT)]
    pages: u32,
    /// Length of a page in bytes, a power of two; K, M and G behind the number mean 1024, its square and its cube.
    #[arg(long, value_name = "BYTES", default_value_t = PAGE_BYTES_DEFAULT, value_parser = sizes::page_bytes)]
    page_bytes: u32,
    /// When no page is free because the disk does not keep up: let the program wait, or drop what comes. The log then ends
    /// there, is marked so, and can be replayed as far.
    #[arg(long, value_enum, default_value_t = WhenBehind::Wait)]
    when_behind: WhenBehind,
    /// Keep of each rank's log its first page and its end, so many bytes (or K, M, G) together on the disk, two pages at least: for a job
    /// that hangs or crashes after days. Where more was logged the log is good for `stat` and `timeline`, and cannot be replayed.
    #[arg(long, value_name = "BYTES", conflicts_with = "compress", value_parser = sizes::bytes)]
    keep_last: Option<u64>,
    /// Do not time calls: some 20 ns less for each, and no timeline.
    #[arg(long)]
    no_times: bool,
    /// Who logs the bytes of messages: the receiver, so that a rank's log is complete by itself; the sender, for `mpi extract`
    /// to bring together; or none, for the order alone, which cannot be replayed.
    #[arg(long, default_value_t)]
    payload: Payload,
    /// Fill memory that the program gets from glibc's allocator, so that what it sends without ever having written it is the same at
    /// replay. Costs the program time.
    #[arg(long)]
    fill_memory: bool,
    /// Compress pages before they are written.
    #[arg(long)]
    compress: bool,
    /// The launcher with its arguments and the program.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What is done when the disk does not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WhenBehind {
    Wait,
    Drop,
}

/// A page that surely holds the names of all calls, the arguments and the environment, in bytes.
const FIRST_PAGE_BYTES_MIN: u32 = 1 << 20;

/// Why so many bytes cannot be kept of a log, if they cannot.
fn too_small(kept: u64, page_bytes: u32) -> Option<String> {
    let (page, least) = (u64::from(page_bytes), 2 * u64::from(page_bytes));
    let first = u64::from(FIRST_PAGE_BYTES_MIN);
    if page < first {
        return Some(format!(
            "--keep-last needs --page-bytes {} or more, here it is {}: the first page is to hold how the program was started",
            sizes::text(first),
            sizes::text(page)
        ));
    }
    (kept < least).then(|| {
        let smaller = if page > first {
            format!("; with --page-bytes {} it is {}", sizes::text(first), sizes::text(2 * first))
        } else {
            String::new()
        };
        format!(
            "--keep-last {}: the smallest is {}, two pages of --page-bytes {}{smaller}",
            sizes::text(kept),
            sizes::text(least),
            sizes::text(page)
        )
    })
}

pub(super) fn run(options: Record) -> anyhow::Result<Verdict> {
    let fits = (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&(options.page_bytes as usize))
        && options.page_bytes.is_power_of_two()
        && (0..=PAGES_MAX).contains(&(options.pages as usize));
    if !fits {
        let explanation = format!(
            "a page has {PAGE_BYTES_MIN} to {PAGE_BYTES_MAX} bytes, a power of two, and there are 0 to {PAGES_MAX} of them"
        );
        return Err(UsageError { explanation }.into());
    }
    if let Some(explanation) = options.keep_last.and_then(|kept| too_small(kept, options.page_bytes)) {
        return Err(UsageError { explanation }.into());
    }
    let dir = options.dir.clone();
    let recorded = record(&record::Options {
        command: options.command,
        folder: options.dir,
        overwrite: options.overwrite,
        compiler: options.mpicc,
        cache: cache_folder(),
        pages: options.pages,
        page_bytes: options.page_bytes,
        payload: options.payload,
        compress: options.compress,
        timed: !options.no_times,
        drop_when_behind: options.when_behind == WhenBehind::Drop,
        keep_last_bytes: options.keep_last,
        fill_memory: options.fill_memory,
    })?;
    let ranks = &recorded.run.ranks;
    eprintln!("mainstay: {} ranks recorded in {}", ranks.len(), dir.display());
    if options.pages > 0 {
        let stats =
            ranks.iter().map(|rank| rank_stat(&recorded.run, *rank)).collect::<Result<Vec<_>, _>>()?;
        say_what_is_wrong(&dir, &stats);
    } else {
        eprintln!("mainstay: buffering only: the logs were not written and cannot be replayed");
    }
    // A process that a signal ended has the code that a shell gives it.
    let code = recorded.status.code().or(recorded.status.signal().map(|signal| 128 + signal));
    std::process::exit(code.unwrap_or(1));
}

/// So many ranks that did not end well are named; `stat` has all.
const RANKS_NAMED_MAX: usize = 16;
/// Of so many the command is printed that replays them.
const COMMANDS_MAX: usize = 3;

fn say_what_is_wrong(dir: &Path, stats: &[RankStat]) {
    let whole = |stat: &RankStat| stat.ended && stat.unhandled.is_empty() && stat.not_kept == 0;
    let wrong: Vec<_> = stats.iter().filter(|stat| !whole(stat) || fault(stat).is_some()).collect();
    for stat in wrong.iter().take(RANKS_NAMED_MAX) {
        eprintln!("mainstay: rank {}: {}", stat.rank, end_text(stat));
    }
    if wrong.len() > RANKS_NAMED_MAX {
        let others = wrong.len() - RANKS_NAMED_MAX;
        eprintln!("mainstay: and {others} more: mainstay mpi stat {}", dir.display());
    }
    let Some((fault, suspects)) = suspects(stats) else {
        return;
    };
    let which = suspects.iter().map(u32::to_string).take(RANKS_NAMED_MAX).collect::<Vec<_>>().join(", ");
    match fault {
        Fault::Itself => eprintln!("mainstay: ended by itself, and not as it should: rank {which}"),
        Fault::BetweenCalls => eprintln!("mainstay: crashed, or was killed between two calls: rank {which}"),
        Fault::ByMpi => eprintln!("mainstay: ended by MPI, by an error in a call: rank {which}"),
        Fault::InCall => {
            eprintln!(
                "mainstay: all that did not end were in a call; who waits for whom: mainstay mpi check {}",
                dir.display()
            );
        }
    }
    let suspects = stats.iter().filter(|stat| suspects.contains(&stat.rank));
    for command in suspects.filter_map(|stat| replay_command(dir, stat)).take(COMMANDS_MAX) {
        eprintln!("mainstay: look at it again: {command}");
    }
}
