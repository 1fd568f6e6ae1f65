//! `mainstay journal`: looking into a journal directory, and mending it. Only `repair` changes anything.

pub(crate) mod directory;
mod dump;
mod entry;
mod ls;
mod repair;
mod stat;
mod verify;

use crate::verdict::Verdict;
use std::path::PathBuf;

/// `mainstay journal`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Journal {
    /// List the segment files and checkpoints.
    #[command(after_help = "Example:\n  mainstay journal ls ledger.mainstay")]
    Ls(Common),
    /// Print every record, one line each.
    #[command(after_help = "Examples:
  mainstay journal dump ledger.mainstay | less
  mainstay journal dump ledger.mainstay --from 65536 --limit 20
  mainstay journal dump ledger.mainstay --json | jq 'select(.kind == \"request\")'")]
    Dump(dump::Dump),
    /// Check every record and say whether the directory would open.
    #[command(after_help = "Example:
  mainstay journal verify ledger.mainstay && echo sound

Exit code 1 when opening would refuse; the output says where the damage is and what is safe.")]
    Verify(Common),
    /// Sum up: sizes, extent, durable watermark, records by kind.
    #[command(after_help = "Example:\n  mainstay journal stat ledger.mainstay --json | jq .watermark")]
    Stat(Common),
    /// Show what could mend a journal that does not open, and do what you agree to.
    #[command(after_help = "Examples:
  mainstay journal repair ledger.mainstay           shows the plan and asks
  mainstay journal repair ledger.mainstay --yes     agrees beforehand

A copy of the directory made before costs nothing compared with what a repair may give up.")]
    Repair(repair::Repair),
}

/// What all of these take.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// The directory of the service.
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Journal {
    pub(crate) fn only_prints(&self) -> bool {
        !matches!(self, Self::Repair(_))
    }
}

/// Runs one of them.
///
/// # Errors
/// When the directory cannot be read; damage is no error but a verdict.
pub(crate) fn run(command: &Journal) -> anyhow::Result<Verdict> {
    match command {
        Journal::Ls(common) => ls::ls(common),
        Journal::Dump(dump) => dump::dump(dump),
        Journal::Verify(common) => verify::verify(common),
        Journal::Stat(common) => stat::stat(common),
        Journal::Repair(repair) => repair::repair(repair),
    }
}
