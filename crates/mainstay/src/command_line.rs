//! The flags that every service has.

pub mod keep;
pub mod node;

use self::keep::KeepFlags;
use crate::exit;
use crate::replay::Replay;
use crate::server::Server;
use crate::service::Service;
use clap::builder::{RangedU64ValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use mainstay_disk::disk::Backend;
use mainstay_disk::record::RecordOptions;
use mainstay_journal::geometry::{BLOCK_BYTES, PAGE_BYTES_MAX, PAGES_MAX};
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// Flags of a service. Other programs can take them in with `#[command(flatten)]`, and [`show_defaults`]. What is not given
/// stays as the server has it.
#[derive(Clone, Debug, Parser)]
#[command(disable_help_subcommand = true)]
pub struct Flags {
    /// Directory of the journal, made if it does not exist
    #[arg(long, value_name = "DIRECTORY")]
    pub dir: Option<PathBuf>,
    /// Stripe the journal of a directory that is made now over this one too, on another disk; may be given several times. Later starts
    /// need not name them
    #[arg(long, value_name = "DIRECTORY")]
    pub stripe: Vec<PathBuf>,
    /// Where to listen; port 0 lets the operating system choose
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// What answers and outputs wait for: peers (survives the loss of this machine; with --keep), disk (survives power loss), process (survives
    /// kill -9), memory (survives nothing)
    #[arg(long)]
    pub level: Option<Level>,
    /// Handle a request at once and let its answer wait for the log (deferred), or wait before handling it (immediate)
    #[arg(long, value_name = "POLICY", env = "MAINSTAY_POLICY", value_parser = policy_of_one_process)]
    pub policy: Option<Policy>,
    /// Pages in the journal's ring, for a directory that is made now.
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(PAGES_MAX)),
        help = format!("Pages in the journal's ring, 1 to {PAGES_MAX}, for a directory that is made now")
    )]
    pub pages: Option<u16>,
    /// Bytes of one page, for a directory that is made now.
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = page_bytes,
        help = format!(
            "Bytes of one page, a power of two from {BLOCK_BYTES} to {PAGE_BYTES_MAX}, for a directory that is made now"
        )
    )]
    pub page_bytes: Option<u32>,
    /// What writes pages in the background: auto, threads, uring
    #[arg(long)]
    pub backend: Option<Backend>,
    /// Record every change of the directory into FILE, for `mainstay sim cuts`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Take a checkpoint after this many bytes of log
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_bytes: Option<u64>,
    /// Take a checkpoint after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_seconds: Option<u64>,
    /// Longest body of a request, in bytes
    #[arg(long, value_name = "BYTES", value_parser = at_least_one())]
    pub body_bytes_max: Option<usize>,
    /// Connections at the same time
    #[arg(long, value_name = "COUNT", value_parser = at_least_one())]
    pub connections_max: Option<usize>,
    /// Requests taken and not answered yet
    #[arg(long, value_name = "COUNT", value_parser = at_least_one())]
    pub requests_max: Option<usize>,
    /// Let cores halt while a quick client that is alone waits for the disk: saves power, costs it up to a third of its latency
    #[arg(long)]
    pub cores_may_halt: bool,
    /// Unexpired idempotency keys
    #[arg(long, value_name = "COUNT", value_parser = at_least_one())]
    pub keys_max: Option<usize>,
    /// How long a key is remembered, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub key_seconds: Option<u64>,
    /// Outputs not acknowledged yet
    #[arg(long, value_name = "COUNT", value_parser = at_least_one())]
    pub outputs_max: Option<usize>,
    /// How long a clean stop may take, in seconds
    #[arg(long, value_name = "SECONDS")]
    pub stop_seconds: Option<u64>,
    /// Write the port that is listened on into FILE, once requests are taken
    #[arg(long, value_name = "FILE")]
    pub port_file: Option<PathBuf>,
    /// Those of level peers.
    #[command(flatten)]
    pub keep: KeepFlags,
}

/// Adds to the help of [`Flags`] in `command` what `server` does without them.
#[must_use]
pub fn show_defaults<S>(command: clap::Command, server: &Server<S>) -> clap::Command {
    let settings = server.settings();
    let (limits, geometry) = (&settings.process.limits, &settings.disk.journal.geometry);
    let defaults: [(&str, &dyn Display); 17] = [
        ("dir", &settings.directory.display()),
        ("listen", &settings.ingress.listen),
        ("level", &settings.process.level),
        ("policy", &settings.process.policy),
        ("pages", &geometry.pages),
        ("page_bytes", &geometry.page_bytes),
        ("backend", &settings.disk.backend),
        ("checkpoint_bytes", &limits.checkpoint_log_bytes),
        ("checkpoint_seconds", &limits.checkpoint_interval.as_secs()),
        ("body_bytes_max", &limits.body_bytes_max),
        ("connections_max", &settings.ingress.connections_max),
        ("requests_max", &settings.ingress.requests_in_flight_max),
        ("keys_max", &limits.keys_max),
        ("key_seconds", &limits.key_retention.as_secs()),
        ("outputs_max", &limits.outputs_pending_max),
        ("stop_seconds", &settings.stop_timeout.as_secs()),
        ("unkept_bytes_max", &limits.unkept_bytes_max),
    ];
    defaults.into_iter().fold(command, |command, (flag, default)| {
        command.mut_arg(flag, |arg| {
            let help = format!("{} [default: {default}]", arg.get_help().cloned().unwrap_or_default());
            arg.help(help)
        })
    })
}

impl Flags {
    /// A server with these settings.
    #[must_use]
    pub fn apply<S>(self, mut server: Server<S>) -> Server<S> {
        let settings = server.settings_mut();
        if let Some(directory) = self.dir {
            settings.directory = directory;
        }
        settings.disk.stripes.extend(self.stripe);
        set(&mut settings.ingress.listen, self.listen);
        settings.disk.hint = format!("{} on {}", settings.process.name, settings.ingress.listen);
        set(&mut settings.process.level, self.level);
        self.keep.apply(settings, self.level);
        set(&mut settings.disk.backend, self.backend);
        if let Some(record) = &self.record {
            settings.disk.record = Some(RecordOptions::new(record));
        }
        set(&mut settings.stop_timeout, self.stop_seconds.map(Duration::from_secs));
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
        settings.ingress.cores_may_halt |= self.cores_may_halt;
        let server = match self.policy {
            Some(policy) => server.policy(policy),
            None => server,
        };
        match self.port_file {
            Some(path) => server.port_file(Some(path)),
            None => server,
        }
    }
}

/// Runs a service as a program: takes the flags from the command line, serves until SIGTERM or SIGINT. SIGUSR1 takes a
/// checkpoint. `make` gives the state of a service that has not handled anything yet.
pub fn serve<S: Service>(make: impl Fn() -> S + Send + Sync + 'static) -> ExitCode {
    serve_with(Server::new(make))
}

/// [`serve`] with output ports and other settings that flags do not give.
pub fn serve_with<S: Service>(server: Server<S>) -> ExitCode {
    let command = show_defaults(Flags::command(), &server).after_help(AFTER_HELP);
    match parse::<Flags, S>(command, &server, std::env::args_os()) {
        Ok((flags, replay)) => run_or_replay(flags.apply(server), replay),
        Err(code) => code,
    }
}

/// The flags given and the replay asked for, or the exit code after what was asked for, or what is wrong, was said.
fn parse<F: FromArgMatches, S>(
    command: clap::Command,
    server: &Server<S>,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<(F, Option<Replay>), ExitCode> {
    let process = &server.settings().process;
    let about =
        format!("Service {} version {}: survives kill -9 at any moment", process.name, process.version);
    let command = command.name(process.name.clone()).about(about);
    let command = command.subcommand(Replay::command().name("replay"));
    let parsed = command.try_get_matches_from(arguments).and_then(|matches| {
        let replay = matches.subcommand_matches("replay").map(Replay::from_arg_matches).transpose()?;
        Ok((F::from_arg_matches(&matches)?, replay))
    });
    parsed.map_err(|error| {
        // Nothing more can be said when standard error is closed.
        let _ = error.print();
        let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        ExitCode::from(if asked_for { exit::OK } else { exit::USAGE })
    })
}

/// Serves, or shows what its directory recorded.
fn run_or_replay<S>(server: Server<S>, replay: Option<Replay>) -> ExitCode {
    log_to_standard_error();
    match replay {
        Some(replay) => replay.run(server),
        None => run(server),
    }
}

/// Runs a server and says on standard error why it ended, if not by a clean stop.
pub fn run<S>(server: Server<S>) -> ExitCode {
    let name = server.settings().process.name.clone();
    match server.run() {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            eprintln!("{name}: {}", whole(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Logs warnings and errors to standard error, or what the variable `MAINSTAY_LOG` says (as in `RUST_LOG`). Does nothing
/// when the program has a subscriber of its own.
pub fn log_to_standard_error() {
    log_to_standard_error_unless_told("warn");
}

/// The same, where more or less than warnings is worth a line unless `MAINSTAY_LOG` says otherwise. Colours are for terminals.
pub fn log_to_standard_error_unless_told(filter: &str) {
    let filter = EnvFilter::try_from_env("MAINSTAY_LOG").unwrap_or_else(|_| EnvFilter::new(filter));
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours);
    let _ = log.with_writer(std::io::stderr).try_init();
}

/// Reads an address and a port; `localhost` is 127.0.0.1. Other names are not looked up: a group knows its nodes by their addresses.
///
/// # Errors
/// What is no address, in words.
pub fn address(given: &str) -> Result<SocketAddr, String> {
    let here = given.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    match here {
        Some(port) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        None => given
            .parse()
            .map_err(|_| "no IP address and port: 127.0.0.1:7171, [::1]:7171 or localhost:7171".to_owned()),
    }
}

const AFTER_HELP: &str = "\
Examples:
  Send a request that takes effect once, however often it is sent:
    curl -H 'Idempotency-Key: order-1' -d '{...}' http://127.0.0.1:7070/call
  Read:       curl -X POST http://127.0.0.1:7070/query
  Health:     curl http://127.0.0.1:7070/health

Exit codes: 0 stopped cleanly, 1 ended otherwise, 2 wrong flags, 3 directory, address or disk cannot be used.";

/// An error with its causes, each once.
pub(crate) fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
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
fn policy_of_one_process(given: &str) -> Result<Policy, String> {
    match given.parse() {
        Ok(policy @ (Policy::Immediate | Policy::Deferred)) => Ok(policy),
        Ok(policy) => Err(format!("`{policy}` is for nodes of a cluster; alone: immediate or deferred")),
        Err(error) => Err(error.to_string()),
    }
}

/// A limit of nothing would refuse everything, and tell clients to come again later.
fn at_least_one() -> impl TypedValueParser<Value = usize> {
    RangedU64ValueParser::<usize>::new().range(1..)
}

fn page_bytes(given: &str) -> Result<u32, String> {
    let bytes: u32 = given.parse().map_err(|error| format!("{error}"))?;
    if bytes.is_power_of_two() && (BLOCK_BYTES..=PAGE_BYTES_MAX).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("a page has a power of two of bytes, from {BLOCK_BYTES} to {PAGE_BYTES_MAX}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Refusal;
    use mainstay_process::handler::Context;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Idle;

    impl Service for Idle {
        const NAME: &'static str = "idle";
        type Command = ();
        type Answer = ();
        type Query = ();
        type View = ();

        fn handle(&mut self, (): (), _: &mut Context<'_>) -> Result<(), Refusal> {
            Ok(())
        }

        fn query(&self, (): ()) -> Result<(), Refusal> {
            Ok(())
        }
    }

    fn server() -> Server<Idle> {
        Server::new(|| Idle).level(Level::Process).limits(|limits| limits.keys_max = 77)
    }

    #[test]
    fn the_help_shows_what_the_server_does_without_flags() {
        let help = show_defaults(Flags::command(), &server()).render_long_help().to_string();
        for shown in
            ["Unexpired idempotency keys [default: 77]", "[default: process]", "1 to 64", "4096 to 67108864"]
        {
            assert!(help.contains(shown), "`{shown}` is missing in {help}");
        }
        let with_values =
            Flags::command().get_arguments().filter(|arg| arg.get_action().takes_values()).count();
        // What is done only if it is asked for has no default.
        let without = ["--record", "--port-file", "--stripe", "--keep", "--keep-tls-name"];
        assert_eq!(help.matches("[default: ").count(), with_values - without.len(), "{help}");
    }

    #[test]
    fn what_is_not_given_stays_as_the_server_has_it() {
        let given = |flags: &[&str]| {
            Flags::try_parse_from([&["idle"], flags].concat()).expect("these are flags").apply(server())
        };
        let (unchanged, mut changed) = (given(&[]), given(&["--level", "disk", "--keys-max", "5"]));
        let process =
            |server: &Server<Idle>| (server.settings().process.level, server.settings().process.limits);
        assert_eq!(process(&unchanged), process(&server()));
        assert_eq!(unchanged.settings().ingress, server().settings().ingress);
        let limits = changed.settings_mut().process.limits;
        assert_eq!((changed.settings().process.level, limits.keys_max), (Level::Disk, 5));
        assert!(Flags::try_parse_from(["idle", "--page-bytes", "5000"]).is_err());
    }
}
