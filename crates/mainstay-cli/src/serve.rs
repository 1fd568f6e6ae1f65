//! `mainstay serve`: the bundled ledger, for trying out what a service of one's own will do.

use crate::ledger::{Ledger, NOTIFY_AGAIN, NOTIFY_ONCE};
use mainstay::command_line::{self, Flags, log_to_standard_error, run};
use mainstay::{Guarantee, OutputPort, Server, Service};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// `mainstay serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mainstay serve
  curl -d '{\"open\":{\"account\":\"ann\"}}' -H 'Idempotency-Key: 1' http://127.0.0.1:7070/call
  curl -d '{\"deposit\":{\"account\":\"ann\",\"amount\":500}}' -H 'Idempotency-Key: 2' http://127.0.0.1:7070/call
  kill -9 $(head -1 ledger.mainstay/lock); mainstay serve     and send the last request again: same answer, once
  curl -X POST http://127.0.0.1:7070/query

Commands: open {account}, deposit {account, amount}, withdraw {account, amount}, transfer {from, to, amount}.
Exit codes: 0 stopped cleanly, 1 ended otherwise, 2 wrong flags, 3 directory, address or disk cannot be used.")]
pub(crate) struct Serve {
    #[command(flatten)]
    flags: Flags,
    /// Tell this URL of deposits and transfers by HTTP POST; it must drop a key it has seen
    /// [default: lines in DIRECTORY.notify-once.jsonl]
    #[arg(long, value_name = "URL")]
    notify_once: Option<String>,
    /// The same to a URL that drops nothing: each is sent at most once, and may end up in doubt
    /// [default: lines in DIRECTORY.notify-again.jsonl]
    #[arg(long, value_name = "URL")]
    notify_again: Option<String>,
}

/// Adds to the help what is done without the flags.
#[must_use]
pub(crate) fn show_defaults(command: clap::Command) -> clap::Command {
    command_line::show_defaults(command, &Server::new(Ledger::default))
}

/// Serves until stopped.
#[must_use]
pub(crate) fn serve(options: Serve) -> ExitCode {
    log_to_standard_error();
    let directory =
        options.flags.dir.clone().unwrap_or_else(|| PathBuf::from(format!("{}.mainstay", Ledger::NAME)));
    let file = |port: &str| file(&directory, port);
    let once = match options.notify_once {
        Some(url) => OutputPort::http(NOTIFY_ONCE, url),
        None => file(NOTIFY_ONCE),
    };
    let again = match options.notify_again {
        Some(url) => OutputPort::http(NOTIFY_AGAIN, url).guarantee(Guarantee::AtMostOnce),
        None => file(NOTIFY_AGAIN),
    };
    run(options.flags.apply(Server::new(Ledger::default).output(once).output(again)))
}

/// The ledger with the ports that it has without flags.
pub(crate) fn ledger(directory: &Path) -> Server<Ledger> {
    Server::new(Ledger::default).output(file(directory, NOTIFY_ONCE)).output(file(directory, NOTIFY_AGAIN))
}

fn file(directory: &Path, port: &str) -> OutputPort {
    let mut path = directory.as_os_str().to_owned();
    path.push(format!(".{port}.jsonl"));
    OutputPort::file(port, path)
}
