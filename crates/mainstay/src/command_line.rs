//! The flags that every service has.

use crate::exit;
use crate::server::{RunError, Server};
use crate::service::Service;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use mainstay_disk::disk::Backend;
use mainstay_disk::record::RecordOptions;
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// Flags of a service. Other programs can take them in with `#[command(flatten)]`.
#[derive(Clone, Debug, Parser)]
#[command(disable_help_subcommand = true)]
pub struct Flags {
    /// Directory of the journal, made if it does not exist [default: ./<name>.mainstay]
    #[arg(long, value_name = "DIRECTORY")]
    pub dir: Option<PathBuf>,
    /// Where to listen; port 0 lets the operating system choose
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070")]
    pub listen: SocketAddr,
    /// What answers and outputs wait for: disk (survives power loss), process (survives kill -9), memory (survives nothing)
    #[arg(long, default_value_t = Level::Disk)]
    pub level: Level,
    /// Handle a request at once and let its answer wait for the log (deferred), or wait before handling it (immediate)
    #[arg(long, default_value_t = Policy::Deferred, value_parser = logging_of_one_node)]
    pub logging: Policy,
    /// Pages in the journal's ring, 1 to 64, for a directory that is made now [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub pages: Option<u16>,
    /// Bytes of one page, a power of two from 4096 to 67108864, for a directory that is made now [default: 4194304]
    #[arg(long, value_name = "BYTES", value_parser = page_bytes)]
    pub page_bytes: Option<u32>,
    /// What writes pages in the background: auto, threads, uring
    #[arg(long, default_value = "auto")]
    pub backend: Backend,
    /// Record every change of the directory into FILE, for `mainstay sim cuts`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Take a checkpoint after this many bytes of log [default: 67108864]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_bytes: Option<u64>,
    /// Take a checkpoint after this many seconds [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_seconds: Option<u64>,
    /// Longest body of a request, in bytes [default: 1048576]
    #[arg(long, value_name = "BYTES")]
    pub body_bytes_max: Option<usize>,
    /// Connections at the same time [default: 1024]
    #[arg(long, value_name = "COUNT")]
    pub connections_max: Option<usize>,
    /// Requests taken and not answered yet [default: 4096]
    #[arg(long, value_name = "COUNT")]
    pub requests_max: Option<usize>,
    /// Unexpired idempotency keys [default: 1000000]
    #[arg(long, value_name = "COUNT")]
    pub keys_max: Option<usize>,
    /// How long a key is remembered, in seconds [default: 86400]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub key_seconds: Option<u64>,
    /// Outputs not acknowledged yet [default: 100000]
    #[arg(long, value_name = "COUNT")]
    pub outputs_max: Option<usize>,
    /// How long a clean stop may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub stop_seconds: u64,
    /// Write the port that is listened on into FILE, once requests are taken
    #[arg(long, value_name = "FILE")]
    pub port_file: Option<PathBuf>,
}

impl Flags {
    /// A server with these settings.
    #[must_use]
    pub fn apply<S: Service>(self, mut server: Server<S>) -> Server<S> {
        let settings = server.settings_mut();
        if let Some(directory) = self.dir {
            settings.directory = directory;
        }
        settings.ingress.listen = self.listen;
        settings.disk.hint = format!("{} on {}", S::NAME, self.listen);
        settings.process.level = self.level;
        settings.process.policy = self.logging;
        settings.disk.backend = self.backend;
        settings.disk.record = self.record.as_deref().map(RecordOptions::new);
        settings.stop_timeout = Duration::from_secs(self.stop_seconds);
        let geometry = &mut settings.disk.journal.geometry;
        set(&mut geometry.pages, self.pages);
        set(&mut geometry.page_bytes, self.page_bytes);
        let limits = &mut settings.process.limits;
        set(&mut limits.checkpoint_log_bytes, self.checkpoint_bytes);
        set(&mut limits.checkpoint_interval, self.checkpoint_seconds.map(Duration::from_secs));
        set(&mut limits.body_bytes_max, self.body_bytes_max);
        set(&mut limits.keys_max, self.keys_max);
        set(&mut limits.key_retention, self.key_seconds.map(Duration::from_secs));
        set(&mut limits.outputs_pending_max, self.outputs_max);
        set(&mut settings.ingress.connections_max, self.connections_max);
        set(&mut settings.ingress.requests_in_flight_max, self.requests_max);
        server.port_file(self.port_file)
    }
}

/// Runs a service as a program: takes the flags from the command line, serves until SIGTERM or SIGINT. SIGUSR1 takes a
/// checkpoint. `make` gives the state of a service that has not handled anything yet.
pub fn serve<S: Service>(make: impl Fn() -> S + Send + Sync + 'static) -> ExitCode {
    serve_with(Server::new(make))
}

/// [`serve`] with output ports and other settings that flags do not give.
pub fn serve_with<S: Service>(server: Server<S>) -> ExitCode {
    let command = Flags::command().name(S::NAME).about(about::<S>()).after_help(AFTER_HELP);
    let flags = match command.try_get_matches().and_then(|matches| Flags::from_arg_matches(&matches)) {
        Ok(flags) => flags,
        Err(error) => {
            // Nothing more can be said when standard error is closed.
            let _ = error.print();
            let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return ExitCode::from(if asked_for { exit::OK } else { exit::USAGE });
        }
    };
    log_to_standard_error();
    run(flags.apply(server))
}

/// Runs a server and says on standard error why it ended, if not by a clean stop.
pub fn run<S: Service>(server: Server<S>) -> ExitCode {
    match server.run() {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            eprintln!("{}: {}", S::NAME, whole(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Logs warnings and errors to standard error, or what the variable `MAINSTAY_LOG` says (as in `RUST_LOG`). Does nothing
/// when the program has a subscriber of its own.
pub fn log_to_standard_error() {
    let filter = EnvFilter::try_from_env("MAINSTAY_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

const AFTER_HELP: &str = "\
Examples:
  Send a request that takes effect once, however often it is sent:
    curl -H 'Idempotency-Key: order-1' -d '{...}' http://127.0.0.1:7070/call
  Read:       curl -X POST http://127.0.0.1:7070/query
  Health:     curl http://127.0.0.1:7070/health

Exit codes: 0 stopped cleanly, 1 ended otherwise, 2 wrong flags, 3 directory, address or disk cannot be used.";

fn about<S: Service>() -> String {
    format!("Service {} version {}: survives kill -9 at any moment", S::NAME, S::VERSION)
}

/// An error with its causes, each once.
fn whole(error: &RunError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        let said = source.to_string();
        if !text.contains(&said) {
            text += &format!(": {said}");
        }
        cause = source.source();
    }
    text
}

fn set<T>(setting: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *setting = given;
    }
}

/// The policies that differ in what they do about messages of other nodes say nothing about a service that has none.
fn logging_of_one_node(given: &str) -> Result<Policy, String> {
    match given.parse() {
        Ok(policy @ (Policy::Immediate | Policy::Deferred)) => Ok(policy),
        Ok(policy) => Err(format!("`{policy}` is for nodes of a cluster; alone: immediate or deferred")),
        Err(error) => Err(error.to_string()),
    }
}

fn page_bytes(given: &str) -> Result<u32, String> {
    let bytes: u32 = given.parse().map_err(|error| format!("{error}"))?;
    if bytes.is_power_of_two() && (4096..=64 << 20).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("a page has a power of two of bytes, from 4096 to 67108864".to_owned())
    }
}
