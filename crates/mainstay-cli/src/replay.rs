//! `mainstay replay`: the past of the bundled ledger, or of any service whose binary is named.

use crate::serve::ledger;
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
  gdb --args mainstay replay ledger.mainstay --step
  mainstay upgrade --check ./old ./new DIRECTORY     compares the replays of two binaries")]
pub(crate) struct Replay {
    /// The binary of the service that wrote the directory [default: the bundled ledger]
    #[arg(long, value_name = "BINARY")]
    with: Option<PathBuf>,
    #[command(flatten)]
    replay: mainstay::replay::Replay,
}

/// Runs it.
pub(crate) fn run(options: Replay) -> ExitCode {
    let Some(binary) = options.with else {
        log_to_standard_error();
        let server = ledger(&options.replay.directory);
        return options.replay.run(server);
    };
    let error = Command::new(&binary).arg("replay").args(options.replay.to_arguments()).exec();
    eprintln!("mainstay: {} cannot be run: {error}", binary.display());
    ExitCode::from(3)
}
