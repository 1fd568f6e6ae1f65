//! `mainstay mpi`: message logging under unmodified MPI programs, and one rank replayed alone.

mod check;
mod diff;
mod extract;
mod timeline;

use self::extract::Extract;
use crate::verdict::{UsageError, Verdict};
use anyhow::Context;
use mainstay_mpi::command::bundle::Bundle;
use mainstay_mpi::command::record::{self, record};
use mainstay_mpi::command::replay::{self, default_folder, replay};
use mainstay_mpi::command::run::Run;
use mainstay_mpi::command::stat::{RankStat, rank_stat};
use mainstay_mpi::command::toolchain::cache_folder;
use mainstay_mpi::format::{PAGE_BYTES_MAX, PAGE_BYTES_MIN, PAGES_MAX, stop_reason};
use mainstay_mpi::payload::Payload;
use mainstay_mpi::settings::{PAGE_BYTES_DEFAULT, PAGES_DEFAULT};
use serde_json::json;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

/// `mainstay mpi`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Mpi {
    /// Run an MPI program and log every call of every rank.
    #[command(after_help = "The exit code is the launcher's, or 3 where nothing was recorded.

Examples:
  mainstay mpi record -- mpirun -np 4 ./app input.txt
  mainstay mpi record --dir run-7 -- mpirun.mpich -np 4 python3 script.py")]
    Record(Record),
    /// Run one rank of a recorded run again, alone: no launcher, no other rank, no MPI that is initialised.
    #[command(
        after_help = "Standard output is the rank's own. Exit codes: 0 it did what was recorded, as far as the log goes; \
1 it did not, or a call cannot be replayed; 3 nothing could be replayed.

Examples:
  mainstay mpi replay --rank 2
  mainstay mpi replay run-7 --rank 2 --gdb
  mainstay mpi replay run-7 --rank 2 --gdb --until 1204
  mainstay mpi replay run-7-rank-2"
    )]
    Replay(Replay),
    /// Make a bundle of one rank, which is replayed without the other logs and without an MPI: its log with the bytes from the
    /// senders' logs, the executable and its libraries.
    #[command(after_help = "Examples:
  mainstay mpi extract run-7 --rank 2
  mainstay mpi extract run-7 --rank 2 --output /media/stick/rank-2")]
    Extract(Extract),
    /// Say what a recorded run did: calls, messages, bytes, how each rank ended.
    Stat(Stat),
    /// Say whether the logs of a run are complete, what was sent and never received, and who waits for whom in a job that hangs.
    #[command(
        after_help = "Exit codes: 0 all complete and received; 1 something was found; 3 nothing could be read."
    )]
    Check(check::Check),
    /// Say where two runs of a program first went different ways, rank by rank: a race.
    #[command(after_help = "Exit codes: 0 the same order; 1 another one; 3 nothing could be read.")]
    Diff(diff::Diff),
    /// Write a page for a browser that shows a run: ranks as rows, calls as bars, messages as arrows. It needs no network.
    Timeline(timeline::Timeline),
}

/// `mainstay mpi record`.
#[derive(Debug, clap::Args)]
pub(crate) struct Record {
    /// Folder for the logs: must not be there yet.
    #[arg(long, value_name = "DIR", default_value = default_folder().as_os_str())]
    dir: PathBuf,
    /// Compiler wrapper of the MPI, where it is not the one that belongs to the launcher.
    #[arg(long, value_name = "MPICC")]
    mpicc: Option<String>,
    /// Pages of each rank that may be filled or on their way to the disk; with one the program waits for each, with 0 nothing is
    /// ever written: the cost of buffering alone.
    #[arg(long, value_name = "N", default_value_t = PAGES_DEFAULT)]
    pages: u32,
    /// Length of a page in bytes, a power of two.
    #[arg(long, value_name = "BYTES", default_value_t = PAGE_BYTES_DEFAULT)]
    page_bytes: u32,
    /// When no page is free because the disk does not keep up: let the program wait, or drop what comes. The log then ends
    /// there, is marked so, and can be replayed as far.
    #[arg(long, value_enum, default_value_t = WhenBehind::Wait)]
    when_behind: WhenBehind,
    /// Keep of each rank's log its first page and its end, so many bytes together on the disk, two pages at least: for a job
    /// that hangs or crashes after days. Where more was logged the log is good for `stat` and `timeline`, and cannot be replayed.
    #[arg(long, value_name = "BYTES", conflicts_with = "compress")]
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
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What is done when the disk does not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WhenBehind {
    Wait,
    Drop,
}

/// `mainstay mpi replay`.
#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
    /// Folder of the run.
    #[arg(value_name = "RUN", default_value = default_folder().as_os_str())]
    run: PathBuf,
    /// The rank to run again; need not be said of a bundle.
    #[arg(long)]
    rank: Option<u32>,
    /// In gdb, with the commands mpi-next and mpi-continue; `run` begins.
    #[arg(long)]
    gdb: bool,
    /// Run the program under this command, for instance "valgrind --track-origins=yes"; words are told apart by spaces.
    #[arg(long, value_name = "COMMAND", conflicts_with = "gdb")]
    under: Option<String>,
    /// With --gdb: carry out this command of gdb, and the next, and end. `--execute run --execute backtrace` prints a crash.
    #[arg(long, value_name = "COMMAND", requires = "gdb")]
    execute: Vec<String>,
    /// Stop at the call of this number, counted from 1.
    #[arg(long, value_name = "CALL")]
    until: Option<u64>,
    /// Let sends pass whose data is not what was recorded, and count them: for a program that was compiled in another way.
    #[arg(long)]
    tolerate_send_diff: bool,
    /// Run the program even if it is not the file that was recorded.
    #[arg(long)]
    changed_program: bool,
    /// Folder to run in, if not the one of the recording.
    #[arg(long, value_name = "DIR")]
    working_dir: Option<PathBuf>,
}

/// `mainstay mpi stat`.
#[derive(Debug, clap::Args)]
pub(crate) struct Stat {
    /// Folder of the run.
    #[arg(value_name = "RUN", default_value = default_folder().as_os_str())]
    run: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it. What a recorded program ends with, `record` ends with.
///
/// # Errors
/// When nothing could be recorded, replayed or read.
pub(crate) fn run(command: Mpi) -> anyhow::Result<Verdict> {
    match command {
        Mpi::Record(options) => run_record(options),
        Mpi::Replay(options) => run_replay(options),
        Mpi::Extract(options) => extract::run(options),
        Mpi::Stat(options) => run_stat(&options),
        Mpi::Check(options) => check::run(&options),
        Mpi::Diff(options) => diff::run(&options),
        Mpi::Timeline(options) => timeline::run(&options),
    }
}

/// A page that surely holds the names of all calls, the arguments and the environment, in bytes.
const FIRST_PAGE_BYTES_MIN: u32 = 1 << 20;

fn run_record(options: Record) -> anyhow::Result<Verdict> {
    let fits = (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&(options.page_bytes as usize))
        && options.page_bytes.is_power_of_two()
        && (0..=PAGES_MAX).contains(&(options.pages as usize));
    if !fits {
        let explanation = format!(
            "a page has {PAGE_BYTES_MIN} to {PAGE_BYTES_MAX} bytes, a power of two, and there are 0 to {PAGES_MAX} of them"
        );
        return Err(UsageError { explanation }.into());
    }
    let least = 2 * u64::from(options.page_bytes);
    if let Some(bytes) =
        options.keep_last.filter(|bytes| *bytes < least || options.page_bytes < FIRST_PAGE_BYTES_MIN)
    {
        let explanation = format!(
            "--keep-last {bytes}: two pages are the least, {least} bytes here, and a page has {FIRST_PAGE_BYTES_MIN} or more: the first one is to hold how the program was started"
        );
        return Err(UsageError { explanation }.into());
    }
    let dir = options.dir.clone();
    let recorded = record(&record::Options {
        command: options.command,
        folder: options.dir,
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
    let ranks = recorded.run.ranks.len();
    anyhow::ensure!(
        ranks > 0,
        "no rank made a call that was recorded: the program is linked statically, or with another MPI than {}, or uses none",
        recorded.family
    );
    eprintln!("mainstay: {ranks} ranks recorded in {}", dir.display());
    let written = options.pages > 0;
    if !written {
        eprintln!("mainstay: buffering only: the logs were not written and cannot be replayed");
    }
    for rank in recorded.run.ranks.iter().filter(|_| written) {
        let stat = rank_stat(&recorded.run, *rank)?;
        if !(stat.ended && stat.unhandled.is_empty() && stat.not_kept == 0) {
            eprintln!("mainstay: rank {rank}: {}", end_of(&stat));
        }
    }
    // A process that a signal ended has the code that a shell gives it.
    let code = recorded.status.code().or(recorded.status.signal().map(|signal| 128 + signal));
    std::process::exit(code.unwrap_or(1));
}

fn run_replay(options: Replay) -> anyhow::Result<Verdict> {
    let scratch = tempfile::tempdir().context("no folder for what the replay says")?;
    let rank = match (options.rank, &Run::open(&options.run).map(|run| run.ranks)) {
        (Some(rank), _) => rank,
        (None, Ok(ranks)) if ranks.len() == 1 => ranks[0],
        (None, _) => {
            let explanation = format!("{} is no bundle of one rank: say --rank", options.run.display());
            return Err(UsageError { explanation }.into());
        }
    };
    if let Ok(Some(bundle)) = Bundle::open(&options.run) {
        for input in bundle.changed_inputs() {
            eprintln!("mainstay: {input} is not the file that it was when the bundle was made");
        }
    }
    let replayed = replay(&replay::Options {
        folder: options.run,
        rank,
        debugger: options.gdb,
        under: options.under.iter().flat_map(|words| words.split_whitespace()).map(str::to_owned).collect(),
        debugger_commands: options.execute,
        until: options.until,
        tolerate_send_diff: options.tolerate_send_diff,
        changed_program: options.changed_program,
        working_folder: options.working_dir,
        output: None,
        scratch: scratch.path().to_owned(),
    })?;
    if options.gdb {
        return Ok(Verdict::Clean);
    }
    eprintln!("mainstay: rank {rank}: {}", replayed.line());
    Ok(if replayed.same() { Verdict::Clean } else { Verdict::Wrong })
}

fn run_stat(options: &Stat) -> anyhow::Result<Verdict> {
    let run = Run::open(&options.run).with_context(|| format!("{}", options.run.display()))?;
    anyhow::ensure!(!run.ranks.is_empty(), "{} has no log of any rank", options.run.display());
    let stats = run.ranks.iter().map(|rank| rank_stat(&run, *rank)).collect::<Result<Vec<_>, _>>()?;
    let start = run.start(run.ranks[0])?;
    if options.json {
        let ranks: Vec<_> = stats.iter().map(as_json).collect();
        println!(
            "{}",
            json!({ "program": start.program, "arguments": start.arguments, "library": start.library,
                    "size": start.size, "ranks": ranks })
        );
        return Ok(Verdict::Clean);
    }
    println!("{}", start.arguments.join(" "));
    println!("{}", start.library.lines().next().unwrap_or_default());
    println!("bytes of messages: {}\n", stats[0].payload);
    println!(
        "  rank       calls  missed polls    messages sent      bytes sent  bytes received   log bytes  stall ms  end"
    );
    for stat in &stats {
        println!(
            "{:6} {:11} {:13} {:16} {:15} {:15} {:11} {:9.1}  {}",
            stat.rank,
            stat.calls,
            stat.misses,
            stat.sent.0,
            stat.sent.1,
            stat.received_bytes,
            stat.log_bytes,
            ns_to_ms(stat.stalls.1),
            end_of(stat)
        );
    }
    let mut by_call: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in stats.iter().flat_map(|stat| &stat.by_call) {
        *by_call.entry(name).or_default() += count;
    }
    let mut by_call: Vec<_> = by_call.into_iter().collect();
    by_call.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    println!("\n  calls of all ranks");
    for (name, count) in by_call {
        println!("{count:14}  {name}");
    }
    if start.size <= MATRIX_RANKS_MAX {
        print_matrix(&stats, start.size);
    }
    Ok(Verdict::Clean)
}

/// Most ranks whose pairs are printed; JSON has those of all.
const MATRIX_RANKS_MAX: u32 = 16;

fn print_matrix(stats: &[RankStat], size: u32) {
    println!("\n  bytes from (down) to (across); persistent sends are not in it");
    print!("      ");
    (0..size).for_each(|to| print!("{to:>12}"));
    println!();
    for stat in stats {
        print!("{:6}", stat.rank);
        for to in 0..size {
            print!("{:12}", stat.to.get(&i64::from(to)).map_or(0, |to| to.1));
        }
        println!();
    }
}

fn ns_to_ms(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64() * 1e3
}

/// How a rank's log ends, in words.
fn end_of(stat: &RankStat) -> String {
    let end = match (&stat.cut_in, stat.stopped) {
        (_, Some(errno)) => format!("recording stopped after call {}: {}", stat.calls, stop_reason(errno)),
        (Some((name, call)), None) => format!("cut off in {name}, call {call}"),
        (None, None) if stat.ended => "ended".to_owned(),
        (None, None) => format!("cut off after call {}", stat.calls),
    };
    let end = match stat.not_kept {
        0 => end,
        calls => format!("{end}; {calls} calls before its end are not kept: not replayable"),
    };
    if stat.unhandled.is_empty() {
        return end;
    }
    let names: Vec<String> = stat.unhandled.iter().map(|(name, count)| format!("{count} {name}")).collect();
    format!("{end}; not replayable: {}", names.join(", "))
}

fn as_json(stat: &RankStat) -> serde_json::Value {
    let to: Vec<_> = stat
        .to
        .iter()
        .map(|(rank, (messages, bytes))| json!({ "rank": rank, "messages": messages, "bytes": bytes }))
        .collect();
    json!({
        "rank": stat.rank, "payload": stat.payload.to_string(), "calls": stat.calls, "calls_not_kept": stat.not_kept, "missed_polls": stat.misses, "messages_sent": stat.sent.0,
        "bytes_sent": stat.sent.1, "bytes_received": stat.received_bytes, "log_bytes": stat.log_bytes,
        "pages_awaited": stat.stalls.0, "stall_ns": stat.stalls.1, "end": end_of(stat), "ended": stat.ended,
        "by_call": stat.by_call, "to": to, "not_replayable": stat.unhandled,
    })
}
