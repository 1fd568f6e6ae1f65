//! `mainstay bench`: measures beside floors, in one run.

use crate::verdict::{UsageError, Verdict};
use anyhow::Context;
use mainstay_bench::journal::journal;
use mainstay_bench::logging::{self, logging};
use mainstay_bench::logging_cost::{self, logging_cost};
use mainstay_bench::mpi::{self, mpi};
use mainstay_bench::patterns::{self, patterns};
use mainstay_bench::plot::PlotError;
use mainstay_bench::report::Report;
use mainstay_bench::setting::Options;
use mainstay_bench::step::step;
use mainstay_bench::transport::transport;
use mainstay_disk::disk::Backend;
use mainstay_mpi::command::toolchain::cache_folder;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

/// `mainstay bench`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Bench {
    /// The journal alone: appends and commits beside bare writes and syncs of the same bytes.
    #[command(after_help = "Examples:
  mainstay bench journal --quick              within 40 seconds
  mainstay bench journal --json > bench.json  with the raw samples of all arms

Exit code 1 when a target is missed.")]
    Journal(JournalBench),
    /// A durable request over HTTP and back, beside the bare sync and a bare HTTP echo.
    #[command(after_help = "Examples:
  mainstay bench step --quick
  mainstay bench step --dir /mnt/disk --json | jq .targets

Exit code 1 when a target is missed.")]
    Step(Common),
    /// Processes that tell each other messages, under every logging policy, beside no logging and bare sockets.
    #[command(after_help = "Examples:
  mainstay bench logging --quick
  mainstay bench logging --only ping-pong --json | jq .targets

Every node is a process of its own with a journal of its own, on loopback. Exit code 1 when a target is missed.")]
    Logging(Plotted),
    /// What logging a message costs a server and its client, by size, level and way of logging.
    #[command(after_help = "Examples:
  mainstay bench logging-cost --quick
  mainstay bench logging-cost --only latency --plot densities.svg

Exit code 0: nothing is promised of these figures.")]
    LoggingCost(Plotted),
    /// The transport between nodes alone, plain and with TLS, beside bare TCP.
    #[command(after_help = "Examples:
  mainstay bench transport --quick
  mainstay bench transport --only stream --json | jq .targets

Exit code 1 when a target is missed.")]
    Transport(Common),
    /// What a version costs: three nodes of a region, the seven message patterns, beside bare TCP and the model.
    #[command(after_help = "Examples:
  mainstay bench patterns --quick
  mainstay bench patterns --only 'window 64' --json | jq .tables
  mainstay bench patterns --only 'link delay' --link-delay-us 500
  mainstay bench patterns --only 'many clients' --clients 16 --window 4 --plot patterns.svg

Nodes and clients are processes and threads of this machine, on loopback. The part `redis` needs redis-server and redis-benchmark.
Exit code 1 when a target is missed.")]
    Patterns(PatternsBench),
    /// What recording costs an MPI program: run times and stalls with buffering alone and 1 to 3 pages, beside the bare program.
    #[command(after_help = "Examples:
  mainstay bench mpi --quick --only kernels
  mainstay bench mpi --only hpcc --json | jq .targets
  mainstay bench mpi --only npb --npb-bin NPB/bin --plot run-times.svg

HPCC and LAMMPS are measured where they are installed for the MPI. Without --quick 20 repeats of each arm: minutes for each
program. Exit code 1 when a target is missed.")]
    Mpi(MpiBench),
}

/// A node of `mainstay bench logging`.
#[derive(Debug, clap::Args)]
pub(crate) struct Node {
    /// How it is set up.
    arguments: String,
}

/// Is a node until the benchmark ends.
///
/// # Errors
/// When it cannot begin or go on.
pub(crate) fn run_node(node: &Node) -> anyhow::Result<Verdict> {
    logging::node::serve(&node.arguments)?;
    Ok(Verdict::Clean)
}

/// What all take.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// Fewer samples: within 40 seconds, `mpi` within some minutes.
    #[arg(long)]
    quick: bool,
    /// Print JSON, raw samples included.
    #[arg(long)]
    json: bool,
    /// Measure the disk that this folder is on.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Only the figures whose name contains this.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    only: String,
}

impl Common {
    fn options(self) -> Options {
        Options { directory: self.dir, quick: self.quick, only: self.only }
    }
}

/// What those take of which there are plots.
#[derive(Debug, clap::Args)]
pub(crate) struct Plotted {
    #[command(flatten)]
    common: Common,
    /// Also draw the figures into this file, as SVG.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// `mainstay bench patterns`.
#[derive(Debug, clap::Args)]
pub(crate) struct PatternsBench {
    #[command(flatten)]
    plotted: Plotted,
    /// In the part `link delay`: hold back each message for so long.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    link_delay_us: u64,
    /// In the part `many clients`: how many.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// In the part `many clients`: operations that each has under way.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    window: u16,
    /// Also measure JGroups and Geode by turns with ours, as peers/install.sh has put them into this folder.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
}

/// `mainstay bench mpi`.
#[derive(Debug, clap::Args)]
pub(crate) struct MpiBench {
    #[command(flatten)]
    plotted: Plotted,
    /// The launcher, if not the first of the usual ones that is found.
    #[arg(long, value_name = "MPIRUN")]
    launcher: Option<String>,
    /// Ranks of each program: as many as processors, at most 4, if nothing is said.
    #[arg(long, value_name = "N")]
    ranks: Option<u32>,
    /// Folder with binaries of the NAS benchmarks, named like cg.A.x.
    #[arg(long, value_name = "DIR")]
    npb_bin: Option<PathBuf>,
}

/// `mainstay bench journal`.
#[derive(Debug, clap::Args)]
pub(crate) struct JournalBench {
    #[command(flatten)]
    common: Common,
    /// What writes pages in the background: auto, threads, uring.
    #[arg(long, default_value = "auto")]
    backend: Backend,
}

/// Runs one of them.
///
/// # Errors
/// When it cannot be run to its end; a target that is missed is no error but a verdict.
pub(crate) fn run(bench: Bench) -> anyhow::Result<Verdict> {
    let say = |next: &str| eprintln!("  {next}");
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let broke_off = "the benchmark broke off";
    let (report, json) = match bench {
        Bench::Journal(JournalBench { common, backend }) => {
            let json = common.json;
            (journal(&common.options(), backend, &say).context(broke_off)?, json)
        }
        Bench::Step(common) => {
            let json = common.json;
            (step(&common.options(), &program, &say).context(broke_off)?, json)
        }
        Bench::Logging(Plotted { common, plot }) => {
            let (json, plot) = (common.json, Plot::begin(plot, logging::plot)?);
            let report = logging(&common.options(), &program, &say).context(broke_off)?;
            plot.draw(&report)?;
            (report, json)
        }
        Bench::LoggingCost(Plotted { common, plot }) => {
            let (json, plot) = (common.json, Plot::begin(plot, logging_cost::plot)?);
            let report = logging_cost(&common.options(), &program, &say).context(broke_off)?;
            plot.draw(&report)?;
            (report, json)
        }
        Bench::Patterns(PatternsBench { plotted, link_delay_us, clients, window, peers }) => {
            let Plotted { common, plot } = plotted;
            let (json, plot) = (common.json, Plot::begin(plot, patterns::plot)?);
            let peers =
                peers.map(std::path::absolute).transpose().context("cannot find the folder of the peers")?;
            let (clients, window) = (clients.into(), window.into());
            let given = patterns::Given { program, link_delay_us, clients, window, peers };
            let report = patterns(&common.options(), &given, &say).context(broke_off)?;
            plot.draw(&report)?;
            (report, json)
        }
        Bench::Mpi(MpiBench { plotted: Plotted { common, plot }, launcher, ranks, npb_bin }) => {
            let (json, plot) = (common.json, Plot::begin(plot, mpi::plot)?);
            let given = mpi::Given { launcher, ranks, npb: npb_bin, cache: cache_folder() };
            let report = mpi(&common.options(), &given, &say).context(broke_off)?;
            plot.draw(&report)?;
            (report, json)
        }
        Bench::Transport(common) => {
            let json = common.json;
            (transport(&common.options(), &program, &say).context(broke_off)?, json)
        }
    };
    if report.figures.is_empty() && report.tables.is_empty() {
        let explanation =
            "--only names no figure of this benchmark; run it without to see their names".to_owned();
        return Err(UsageError { explanation }.into());
    }
    print(&report, json);
    Ok(if report.holds() { Verdict::Clean } else { Verdict::Wrong })
}

/// A plot that is asked for, or not.
struct Plot {
    into: Option<(PathBuf, File)>,
    picture: fn(&Report) -> Result<String, PlotError>,
}

impl Plot {
    /// Makes the file, so that nobody learns only after minutes that it cannot be made.
    fn begin(
        path: Option<PathBuf>,
        picture: fn(&Report) -> Result<String, PlotError>,
    ) -> anyhow::Result<Self> {
        let make = |path: PathBuf| {
            let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
            anyhow::Ok((path, file))
        };
        Ok(Self { into: path.map(make).transpose()?, picture })
    }

    fn draw(self, report: &Report) -> anyhow::Result<()> {
        let Some((path, mut file)) = self.into else { return Ok(()) };
        let picture = (self.picture)(report)?;
        file.write_all(picture.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("  {} drawn", path.display());
        Ok(())
    }
}

fn print(report: &Report, json: bool) {
    if json {
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
}
