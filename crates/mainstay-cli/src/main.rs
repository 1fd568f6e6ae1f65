//! The command `mainstay`: a table of commands.

mod asking;
mod bench;
mod cert;
mod demo;
mod interval;
mod journal;
mod ledger;
mod mpi;
mod node;
mod outputs;
mod pipe;
mod redefine;
mod redis;
mod region;
mod replay;
mod serve;
mod sim;
mod snapshot;
mod status;
mod upgrade;
mod verdict;
mod watch;

use clap::{CommandFactory, FromArgMatches, Parser};
use std::process::ExitCode;

/// Processes that survive crashes: kill anything at any moment, nothing acknowledged is lost and nothing takes effect
/// twice.
#[derive(Debug, Parser)]
#[command(name = "mainstay", version, after_help = verdict::EXIT_CODES, arg_required_else_help = true)]
enum Command {
    /// Watch a service being killed over and over while its clients lose nothing and see nothing twice.
    Demo(demo::Demo),
    /// Serve the bundled ledger: accounts with a hash chain each, over HTTP.
    Serve(Box<serve::Serve>),
    /// Run a node of a replicated region, for clients of the Redis protocol.
    Node(node::Node),
    /// Ask a node where it and its group stand, or take it out.
    #[command(subcommand)]
    Group(node::Group),
    /// Compare the copies that nodes keep of a region.
    #[command(subcommand)]
    Region(region::Region),
    /// Look into a journal directory, or mend it.
    #[command(subcommand)]
    Journal(journal::Journal),
    /// List what a running service holds back, has on its way, or is in doubt about.
    #[command(after_help = "Examples:
  mainstay outputs http://127.0.0.1:7070
  mainstay outputs ledger.mainstay            the directory of a running service
  mainstay outputs ledger.mainstay --json | jq '.outputs[] | select(.state == \"in-doubt\")'")]
    Outputs(outputs::Outputs),
    /// Say what a service is and does, and how long its recovery would take.
    #[command(after_help = "Examples:
  mainstay status http://127.0.0.1:7070
  mainstay status ledger.mainstay             a directory, served just now or not
  mainstay status ledger.mainstay --json | jq .recovery")]
    Status(status::Status),
    /// Execute again what a directory recorded, and show every delivery with its effects. Nothing is changed, nothing is sent.
    Replay(replay::Replay),
    /// Compare two versions of a service over recent traffic.
    Upgrade(upgrade::Upgrade),
    /// Copy a running cluster, all nodes at one consistent line, without stopping it.
    #[command(after_help = "Examples:
  mainstay snapshot monday --node http://10.0.0.1:7070 http://10.0.0.2:7070 http://10.0.0.3:7070
  mainstay snapshot verify monday
  mainstay restore monday --node 1 --to shop-1.mainstay      and so on for every node")]
    Snapshot(snapshot::Snapshot),
    /// Make a node's directory from a snapshot: the whole cluster goes back to it, or nobody.
    Restore(snapshot::restore::Restore),
    /// Make the certificates by which the nodes of a cluster know each other.
    #[command(subcommand)]
    Cert(cert::Cert),
    /// Log the messages of an unmodified MPI program, and run one of its ranks again, alone.
    #[command(subcommand)]
    Mpi(mpi::Mpi),
    /// Measure, beside what the machine can do at best.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Simulate crashes, power cuts and broken networks, by seed, and check every promise.
    Sim(sim::Sim),
    /// A node of a running `bench logging`.
    #[command(hide = true)]
    BenchNode(bench::Node),
    /// A part of a running demo.
    #[command(hide = true)]
    DemoPart(demo::Part),
    /// A part of a running demo with several nodes.
    #[command(hide = true)]
    DemoNode(demo::topology::Part),
}

impl Command {
    /// Whether it starts nothing and changes nothing.
    fn only_prints(&self) -> bool {
        match self {
            Self::Journal(command) => command.only_prints(),
            Self::Mpi(command) => command.only_prints(),
            Self::Outputs(_) | Self::Status(_) | Self::Sim(_) => true,
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    let command = Command::command().mut_subcommand("serve", serve::show_defaults);
    let given = Command::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    if given.only_prints() {
        pipe::end_when_nobody_reads();
    }
    let ended = match given {
        Command::Demo(options) => demo::top::demo(&options),
        Command::Serve(options) => return serve::serve(*options),
        Command::Node(node) => node::run(&node),
        Command::Group(group) => node::ask(&group),
        Command::Region(command) => region::run(&command),
        Command::Journal(command) => journal::run(&command),
        Command::Outputs(options) => outputs::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Replay(options) => return replay::run(options),
        Command::Upgrade(options) => upgrade::run(&options),
        Command::Snapshot(options) => snapshot::run(&options),
        Command::Restore(options) => snapshot::restore::run(&options),
        Command::Cert(command) => cert::run(&command),
        Command::Mpi(command) => mpi::run(command),
        Command::Bench(bench) => bench::run(bench),
        Command::Sim(sim) => sim::run(sim),
        Command::BenchNode(node) => bench::run_node(&node),
        Command::DemoPart(part) => demo::run_part(&part),
        Command::DemoNode(part) => demo::topology::run_part(&part),
    };
    verdict::exit_code(ended)
}
