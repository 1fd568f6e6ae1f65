//! `SERVICE replay DIRECTORY`: executes again what a directory recorded, shows every delivery and its effects, and changes
//! nothing: neither the directory, nor anything outside.
//!
//! It is the replay that a recovery does, up to where it is asked to stop, in a program that a debugger can run:
//! `gdb --args ./counter replay counter.mainstay --step`.

pub(crate) mod follow;
pub mod line;
mod show;
mod words;

use crate::cluster::ClusterError;
use crate::command_line::whole;
use crate::exit;
use crate::replay::follow::Followed;
use crate::replay::show::{Show, Style};
use crate::server::Server;
use mainstay_disk::open::OpenDiskError;
use mainstay_runtime::replay::ReplayError;
use mainstay_types::id::Lsn;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Execute again what a directory recorded, and show every delivery with its effects. Nothing is changed, and nothing is sent
#[derive(Clone, Debug, clap::Parser)]
#[command(after_help = AFTER_HELP)]
pub struct Replay {
    /// The directory, or a copy of it; a running service may be writing it
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,
    /// Whose past: the name of the program, or TYPE/KEY of an instance, of which only what reaches it is shown, with its state behind it
    /// [default: the whole program]
    #[arg(long, value_name = "NAME")]
    pub process: Option<String>,
    /// Show deliveries from this LSN on; begins with the newest checkpoint at or below it [default: the newest checkpoint]
    #[arg(long, value_name = "LSN")]
    pub from: Option<u64>,
    /// Stop behind the delivery at this LSN
    #[arg(long, value_name = "LSN")]
    pub until: Option<u64>,
    /// Wait for the Enter key before each delivery (a number: before so many of them; q: no more)
    #[arg(long, conflicts_with_all = ["json", "quiet"])]
    pub step: bool,
    /// Go on where this program does something else than was recorded, or another version of it did the recording
    #[arg(long)]
    pub go_on: bool,
    /// Show only how it ended
    #[arg(long, conflicts_with = "json")]
    pub quiet: bool,
    /// Print a line of JSON for each delivery
    #[arg(long)]
    pub json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  What has order 7 gone through?
    ./shop replay shop.mainstay --process order/7
  Stop where something went wrong, in a debugger:
    gdb -ex 'rbreak Counter.*::handle' -ex run --args ./counter replay counter.mainstay --until 81920
  How long would a recovery take?
    time ./counter replay counter.mainstay --quiet

Exit codes: 0 everything did what it did at first, 1 something differs or cannot be replayed, 2 wrong flags, 3 the directory
cannot be read.";

/// A directory was not replayed to the end. It was not changed.
#[derive(Debug, thiserror::Error)]
pub enum NotReplayed {
    /// The replay ended early.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// What was to be followed is not there.
    #[error("`{process}` is not what this program can follow: {why}")]
    NoSuchProcess {
        /// As given.
        process: String,
        /// What could be.
        why: String,
    },
    /// The nodes that it ran among are given in a way that cannot be.
    #[error("the list of nodes cannot be used: {0}")]
    Cluster(#[from] ClusterError),
}

impl Replay {
    /// The same as arguments behind `replay`, for another binary.
    #[must_use]
    pub fn to_arguments(&self) -> Vec<OsString> {
        let Self { directory, process, from, until, step, go_on, quiet, json } = self;
        let mut arguments = vec![directory.clone().into_os_string()];
        if let Some(process) = process {
            arguments.extend(["--process".into(), process.into()]);
        }
        let numbers = [("--from", from), ("--until", until)];
        for (flag, number) in numbers.into_iter().filter_map(|(flag, number)| Some((flag, (*number)?))) {
            arguments.extend([flag.into(), number.to_string().into()]);
        }
        let flags = [("--step", step), ("--go-on", go_on), ("--quiet", quiet), ("--json", json)];
        arguments.extend(flags.into_iter().filter(|(_, given)| **given).map(|(flag, _)| flag.into()));
        arguments
    }

    /// Replays with the handler, the ports and the nodes of `server`.
    pub fn run<S>(self, mut server: Server<S>) -> ExitCode {
        server.settings_mut().directory.clone_from(&self.directory);
        let (name, version) = (server.settings().process.name.clone(), server.settings().process.version);
        let style = match (self.json, self.quiet) {
            (true, _) => Style::Json,
            (_, true) => Style::Quiet,
            _ => Style::Words { step: self.step },
        };
        let followed = match self.followed(&name, server.settings().ingress.addressed) {
            Ok(followed) => followed.map(Arc::new),
            Err(error) => {
                eprintln!("{name}: {error}");
                return ExitCode::from(exit::USAGE);
            }
        };
        let from = Lsn(self.from.unwrap_or(u64::MAX));
        let (shown_from, until) = (self.from.map(Lsn), self.until.map(Lsn));
        let mut show = Show::new(&name, version, style, shown_from, until, followed.clone());
        let replay = mainstay_runtime::replay::Replay { from, go_on: self.go_on };
        let replayed = server.replay_following(replay, followed, &mut show);
        match show.broken() {
            Some(error) if error.kind() == ErrorKind::BrokenPipe => return ExitCode::from(exit::OK),
            Some(error) => {
                eprintln!("{name}: standard output cannot be written: {error}");
                return ExitCode::from(exit::ENVIRONMENT);
            }
            None => {}
        }
        let error = match replayed {
            Ok(replayed) => {
                let differ = show.end(&replayed);
                return ExitCode::from(if differ { exit::FAILED } else { exit::OK });
            }
            Err(error) => error,
        };
        eprintln!("{name}: {}", whole(&error));
        ExitCode::from(match error {
            NotReplayed::Cluster(_) | NotReplayed::NoSuchProcess { .. } => exit::USAGE,
            NotReplayed::Replay(
                ReplayError::Open(OpenDiskError::Journal { .. }) | ReplayError::Recover(_),
            ) => exit::FAILED,
            NotReplayed::Replay(_) => exit::ENVIRONMENT,
        })
    }

    /// The instance to be followed, if it is one; `name` is the program's, which is followed as a whole.
    fn followed(&self, name: &str, has_instances: bool) -> Result<Option<Followed>, NotReplayed> {
        let Some(process) = self.process.as_deref().filter(|process| *process != name) else {
            return Ok(None);
        };
        let why = match Followed::named(process) {
            Some(followed) if has_instances => return Ok(Some(followed)),
            _ if has_instances => format!("it is `{name}`, or the TYPE/KEY of an instance"),
            _ => format!("it is `{name}`"),
        };
        Err(NotReplayed::NoSuchProcess { process: process.to_owned(), why })
    }
}
