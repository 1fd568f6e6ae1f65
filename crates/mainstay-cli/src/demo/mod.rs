//! `mainstay demo`: a service, its receivers and its clients, all of them killed over and over, and an audit.
//!
//! ```text
//!   demo (top) ── starts, restarts, kills ──> supervisor ── starts, restarts, kills ──> service, 2 receivers, 4 clients
//!       │                                         │
//!       └── audits the folder at the end <── board, kills, recoveries, journals of clients and receivers (files)
//! ```
//! Each box is an operating-system process of its own, made from this same binary.

pub(crate) mod audit;
pub(crate) mod board;
pub(crate) mod children;
pub(crate) mod client;
pub(crate) mod draw;
pub(crate) mod killer;
pub(crate) mod lines;
pub(crate) mod orphan;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod receiver;
pub(crate) mod region;
pub(crate) mod report;
pub(crate) mod requests;
pub(crate) mod run;
pub(crate) mod service;
pub(crate) mod supervisor;
pub(crate) mod top;
pub(crate) mod topology;

use crate::interval::Interval;
use crate::verdict::Verdict;
use plan::Role;
use std::path::PathBuf;

/// `mainstay demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mainstay demo                              about 30 seconds, then a table
  mainstay demo --kills 200 --seed 7         more kills, another order
  mainstay demo --level process              acknowledgements that survive kill -9 but not power loss
  mainstay demo --json | jq .lost            the figures for a program
  mainstay demo --dir look                   keep everything; then: mainstay journal stat look/ledger.mainstay
  mainstay demo --topology pipeline          three nodes that tell each other; whole machines crash
  mainstay demo --topology pipeline --policy causal:2
                                             two nodes at once, and no message waits for a disk
  mainstay demo --topology pipeline --policy hybrid --beyond --kills 5
                                             more crashes than it survives: what is lost, in the nodes' words
  mainstay demo --topology pipeline --policy optimistic --record cuts && mainstay sim cuts cuts
                                             power cuts: of nodes now and then, then of all at once, anywhere
  mainstay demo --topology region            a replicated region: nodes killed, two and all at once, cut off, stopped
  mainstay demo --topology pipeline --policy mixed --requests 20000 --kills 100 --seed 7 --json

Exit code 0 only when nothing is lost and nothing doubled; with --beyond, when nothing is lost but what the nodes name, nothing is doubled,
and all go on.")]
pub(crate) struct Demo {
    /// Requests, all clients together: 40000, or with --topology 8000, unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) requests: Option<u64>,
    /// Kills with SIGKILL, all processes together: 120, or with --topology 40 (region: 11), unless given.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub(crate) kills: Option<u64>,
    /// What requests and kills are drawn from.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// What acknowledgements wait for: `disk` or `process`.
    #[arg(long, value_name = "LEVEL", default_value = "disk")]
    pub(crate) level: mainstay_types::level::Level,
    /// Several nodes that send each other messages, each a process with a directory of its own. Most kills take what was in
    /// the node's memory with them, as if its machine had lost power; never more are down at once than the policy survives.
    #[arg(long, conflicts_with = "lose_ring")]
    pub(crate) topology: Option<topology::Topology>,
    /// How the nodes log: immediate (or pessimistic), deferred, sender-based, hybrid (unless given), causal or causal:2, optimistic; or mixed:
    /// deferred, sender-based and hybrid, one node each.
    #[arg(long, value_name = "POLICY", requires = "topology")]
    pub(crate) policy: Option<topology::policies::Policies>,
    /// At the end, crash more machines at once than the policy survives: the nodes must say what is lost, and nothing else may be.
    #[arg(long, requires = "topology", conflicts_with = "record")]
    pub(crate) beyond: bool,
    /// Work in this folder, which must be empty or new, and keep it.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Keep the temporary folder, and say where it is.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Record what the service does to its disk, for `mainstay sim cuts FILE`. With --topology it is a folder, and the machines that
    /// crash lose their power: what a disk has not synced is lost, kept or torn, by chance.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Pretend to have made these syncs of each life, counted from its start: the check of power cuts must notice.
    #[arg(long, value_name = "A..B", requires = "record", hide = true)]
    pub(crate) skip_syncs: Option<Interval>,
    /// Throw the ring away with every killed service, as a power cut would: at level process the audit must find what is
    /// lost, at level disk there is nothing to find.
    #[arg(long, hide = true)]
    pub(crate) lose_ring: bool,
    /// Print the figures as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// One part of a running demo; started by the demo itself.
#[derive(Debug, clap::Args)]
pub(crate) struct Part {
    /// Which.
    role: Role,
    /// The demo's folder.
    #[arg(long)]
    run: PathBuf,
    /// The process that started this one, and that it dies with.
    #[arg(long)]
    parent: u32,
}

/// Runs a part until it ends or is killed.
///
/// # Errors
/// Those of the part.
pub(crate) fn run_part(part: &Part) -> anyhow::Result<Verdict> {
    orphan::die_with(part.parent)?;
    let folder = run::RunFolder::new(&part.run);
    match part.role {
        Role::Service => service::serve(&folder)?,
        Role::ReceiverOnce | Role::ReceiverAgain => receiver::receive(&folder, part.role)?,
        Role::Client(client) => client::ask_all(&folder, client)?,
        Role::Supervisor => supervisor::supervise(&folder)?,
    }
    Ok(Verdict::Clean)
}
