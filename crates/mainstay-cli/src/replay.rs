//! `mainstay replay`: the past of the bundled ledger, or of any service whose binary is named; or the first difference between two.

use crate::serve::ledger;
use crate::upgrade;
use crate::verdict;
use anyhow::Context;
use mainstay::command_line::log_to_standard_error;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// `mainstay replay`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(after_help = "Examples:
  mainstay replay ledger.mainstay                    the bundled ledger
  mainstay replay counter.mainstay --with ./counter  the same as: ./counter replay counter.mainstay
  mainstay replay shop.mainstay --with ./shop --process order/7
  mainstay replay counter.mainstay --with ./counter --diff ./counter-2
  gdb --args mainstay replay ledger.mainstay --step

Exit codes: 0 everything did what it did at first, 1 something differs or cannot be replayed, 2 wrong flags, 3 the directory
cannot be read.")]
pub(crate) struct Replay {
    /// The binary of the service that wrote the directory [default: the bundled ledger]
    #[arg(long, value_name = "BINARY")]
    with: Option<PathBuf>,
    /// Replay by this binary as well, and show only the first delivery that comes out otherwise
    #[arg(long, value_name = "BINARY", conflicts_with_all = ["step", "quiet"])]
    diff: Option<PathBuf>,
    #[command(flatten)]
    replay: mainstay::replay::Replay,
}

/// Runs it.
pub(crate) fn run(options: Replay) -> ExitCode {
    let Replay { with, diff, replay } = options;
    if let Some(new) = diff {
        let old = with.map_or_else(|| std::env::current_exe().context("this binary is not found"), Ok);
        return verdict::exit_code(old.and_then(|old| upgrade::first_difference(&old, &new, &replay)));
    }
    let Some(binary) = with else {
        log_to_standard_error();
        let server = ledger(&replay.directory);
        return replay.run(server);
    };
    let error = Command::new(&binary).arg("replay").args(replay.to_arguments()).exec();
    eprintln!("mainstay: {} cannot be run: {error}", binary.display());
    ExitCode::from(3)
}
