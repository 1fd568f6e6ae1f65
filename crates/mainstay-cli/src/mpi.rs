//! `mainstay mpi`: message logging under unmodified MPI programs, and one rank replayed alone.

mod check;
mod diff;
mod extract;
mod record;
mod sizes;
mod timeline;

use self::extract::Extract;
use self::record::Record;
use crate::verdict::{UsageError, Verdict};
use anyhow::Context;
use mainstay_mpi::command::bundle::Bundle;
use mainstay_mpi::command::extract::ExtractError;
use mainstay_mpi::command::replay::{self, Outcome, default_folder, replay};
use mainstay_mpi::command::stat::{RankStat, rank_stat};
use mainstay_mpi::command::unfinished::{Fault, end_text, replay_command, suspects};
use mainstay_mpi::ending::Cause;
use mainstay_mpi::format::HeaderError;
use mainstay_mpi::run::Run;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
        after_help = "Standard output is the rank's own. Exit codes: 0 it did what was recorded, as far as the log goes: \
to the same end, or crashed again; 1 it did not, or a call cannot be replayed; 3 nothing could be replayed; 4 the recorded rank was killed or \
crashed behind its last call, and this one went on; 5 the log is damaged, and was replayed as far as it is good.

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
    #[command(
        after_help = "Exit codes: 0 all could be read; 3 nothing could be; 5 a file of the run is damaged or missing."
    )]
    Stat(Stat),
    /// Say whether the logs of a run are complete, what was sent and never received, and who waits for whom in a job that hangs.
    #[command(
        after_help = "Exit codes: 0 all complete and received; 1 something was found; 3 nothing could be read; 5 a log is damaged."
    )]
    Check(check::Check),
    /// Say where two runs of a program first went different ways, rank by rank: a race.
    #[command(
        after_help = "Exit codes: 0 the same order; 1 another one; 2 the runs cannot be compared; 3 nothing could be read; \
5 a log is damaged."
    )]
    Diff(diff::Diff),
    /// Write a page for a browser that shows a run: ranks as rows, calls as bars, messages as arrows. It needs no network.
    Timeline(timeline::Timeline),
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

impl Mpi {
    pub(crate) fn only_prints(&self) -> bool {
        matches!(self, Self::Stat(_) | Self::Check(_) | Self::Diff(_))
    }
}

/// Runs it. What a recorded program ends with, `record` ends with.
///
/// # Errors
/// When nothing could be recorded, replayed or read.
pub(crate) fn run(command: Mpi) -> anyhow::Result<Verdict> {
    let ended = match command {
        Mpi::Record(options) => record::run(options),
        Mpi::Replay(options) => run_replay(options),
        Mpi::Extract(options) => extract::run(options),
        Mpi::Stat(options) => run_stat(&options),
        Mpi::Check(options) => check::run(&options),
        Mpi::Diff(options) => diff::run(&options),
        Mpi::Timeline(options) => timeline::run(&options),
    };
    match ended {
        Err(error) if is_damage(&error) => {
            eprintln!("mainstay: {error:#}");
            Ok(DAMAGED)
        }
        ended => ended,
    }
}

/// Whether a command could not be carried out because a log is damaged.
fn is_damage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let header = cause.downcast_ref::<HeaderError>().is_some_and(|error| error.is_damage());
        header || matches!(cause.downcast_ref(), Some(ExtractError::Damaged(_)))
    })
}

/// A file of the run is damaged or missing; the command has said which, and how far the rest is good.
const DAMAGED: Verdict = Verdict::Named(5);

fn run_replay(options: Replay) -> anyhow::Result<Verdict> {
    let scratch = tempfile::tempdir().context("no folder for what the replay says")?;
    let rank = match (options.rank, &Run::open(&options.run)?.ranks[..]) {
        (Some(rank), _) => rank,
        (None, [rank]) => *rank,
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
    if !options.gdb {
        eprintln!("mainstay: rank {rank}: {}", replayed.line());
    }
    if let Some(damage) = &replayed.damage {
        eprintln!("mainstay: {damage}; a replay knows nothing beyond it");
    }
    Ok(match replayed.outcome() {
        Outcome::Damaged => DAMAGED,
        _ if options.gdb => Verdict::Clean,
        Outcome::Complete | Outcome::CrashedAgain | Outcome::LogEnds | Outcome::Until => Verdict::Clean,
        Outcome::Diverged | Outcome::Unsupported => Verdict::Wrong,
        Outcome::WentOn => Verdict::Named(WENT_ON),
    })
}

/// Exit code of a replay that went on where the recorded rank was killed or crashed.
const WENT_ON: u8 = 4;

fn run_stat(options: &Stat) -> anyhow::Result<Verdict> {
    let run = Run::open(&options.run)?;
    let stats = run.ranks.iter().map(|rank| rank_stat(&run, *rank)).collect::<Result<Vec<_>, _>>()?;
    let start = run.start(run.ranks[0])?;
    let missing = run.missing(start.size);
    let damaged = stats.iter().any(|stat| stat.damage.is_some()) || !missing.is_empty();
    let verdict = if damaged { DAMAGED } else { Verdict::Clean };
    if options.json {
        let ranks: Vec<_> = stats.iter().map(as_json).collect();
        println!(
            "{}",
            json!({ "program": start.program, "arguments": start.arguments, "library": start.library,
                    "size": start.size, "ranks": ranks, "missing": missing,
                    "look_first_at": suspects(&stats).map(|(_, ranks)| ranks) })
        );
        return Ok(verdict);
    }
    println!("{}", start.arguments.join(" "));
    println!("{}", start.library.lines().next().unwrap_or_default());
    println!("bytes of messages: {}\n", stats[0].payload);
    print_suspects(&stats, &options.run);
    println!(
        "  rank       calls polls in vain    messages sent    sent (bytes) received (bytes) log (bytes) waited (ms)  end"
    );
    for stat in &stats {
        println!(
            "{:6} {:11} {:13} {:16} {:15} {:16} {:11} {:11.1}  {}",
            stat.rank,
            stat.calls,
            stat.misses,
            stat.sent.0,
            stat.sent.1,
            stat.received_bytes,
            stat.log_bytes,
            ns_to_ms(stat.stalls.1),
            end_text(stat)
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
    for one in missing {
        println!("{one}");
    }
    Ok(verdict)
}

/// The ranks that did not end as they should, those before the table that tell most about why.
fn print_suspects(stats: &[RankStat], folder: &Path) {
    let Some((fault, ranks)) = suspects(stats) else {
        return;
    };
    for stat in stats.iter().filter(|stat| ranks.contains(&stat.rank)).take(SUSPECTS_MAX) {
        println!("rank {}: {}", stat.rank, end_text(stat));
        let command = replay_command(folder, stat).filter(|_| fault != Fault::InCall);
        command.iter().for_each(|command| println!("  {command}"));
    }
    if ranks.len() > SUSPECTS_MAX {
        println!("and {} more ranks so", ranks.len() - SUSPECTS_MAX);
    }
    println!();
}

/// Most ranks that are named before the table; the table has all.
const SUSPECTS_MAX: usize = 4;

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

/// The status that the process ended with, where its log knows.
fn exit_status(stat: &RankStat) -> Option<u8> {
    let known = stat.ended && stat.ending.cause != Cause::Unknown;
    let left = stat.left.map(|status| status.to_le_bytes()[0]);
    if known { Some(stat.ending.code()) } else { left }
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
        "pages_awaited": stat.stalls.0, "stall_ns": stat.stalls.1, "end": end_text(stat), "ended": stat.ended, "exit_status": exit_status(stat),
        "damage": stat.damage.as_ref().map(ToString::to_string),
        "by_call": stat.by_call, "to": to, "not_replayable": stat.unhandled,
    })
}
