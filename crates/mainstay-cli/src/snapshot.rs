//! `mainstay snapshot`, `mainstay snapshot verify` and `mainstay restore`: a consistent copy of a whole cluster, and the way back to it.

mod block;
mod line;
pub(crate) mod restore;
mod take;

use crate::verdict::{UsageError, Verdict};
use line::Line;
use std::path::{Path, PathBuf};
use std::time::Duration;
use take::How;

/// `mainstay snapshot`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where it goes: a directory that does not exist yet.
    #[arg(value_name = "DIR", required = true)]
    directory: Option<PathBuf>,
    /// The URL of a node, for every node of the cluster.
    #[arg(long = "node", value_name = "URL", num_args = 1.., required = true)]
    nodes: Vec<String>,
    /// For how long it is tried, also again, in seconds: no snapshot comes about while a node is away.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    within: u64,
    /// Begin nothing new anywhere until no message is on its way: a line with empty channels. Requests wait meanwhile.
    #[arg(long)]
    blocking: bool,
    /// Then stop every node there, cleanly: to go on with another binary.
    #[arg(long, requires = "blocking")]
    stop: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What else can be done with one.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Check a snapshot: every byte of every part, and that the parts are one consistent line.
    Verify {
        /// The snapshot.
        directory: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Runs it.
///
/// # Errors
/// When a node does not answer in time, or files cannot be written or read.
pub(crate) fn run(options: &Snapshot) -> anyhow::Result<Verdict> {
    if let Some(Command::Verify { directory, json }) = &options.command {
        return verify(directory, *json);
    }
    let Some(directory) = &options.directory else {
        return Err(
            UsageError { explanation: "name the directory that the snapshot goes to".to_owned() }.into()
        );
    };
    let how = match (options.blocking, options.stop) {
        (false, _) => How::GoingOn,
        (true, false) => How::Blocking,
        (true, true) => How::Stopping,
    };
    let line = take::take(&options.nodes, directory, Duration::from_secs(options.within), how)?;
    show(&line, options.json)?;
    if how == How::Stopping {
        eprintln!(
            "every node has stopped in this state. Start the same binary again, or a new one, on all of them; {} is the way back",
            directory.display()
        );
    }
    Ok(Verdict::Clean)
}

fn verify(directory: &Path, json: bool) -> anyhow::Result<Verdict> {
    match Line::read(directory) {
        Ok(line) => {
            show(&line, json)?;
            Ok(Verdict::Clean)
        }
        // The files are not there, or may not be read.
        Err(error) if error.chain().any(|cause| cause.is::<std::io::Error>()) => Err(error),
        Err(error) => {
            eprintln!("mainstay: {error:#}. Nothing can be restored from it");
            Ok(Verdict::Wrong)
        }
    }
}

fn show(line: &Line, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(line.manifest())?);
    } else {
        println!("{line}");
    }
    Ok(())
}
