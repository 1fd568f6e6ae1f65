//! `mainstay sim`: the same machines under one made clock and one seed, with an oracle beside them.

use crate::demo::service::process_config;
use crate::demo::topology::power;
use crate::interval::Interval;
use crate::ledger::Ledger;
use crate::verdict::{UsageError, Verdict};
use anyhow::{Context, bail};
use indicatif::ProgressBar;
use mainstay_sim::cuts::{CutViolation, CutsOptions, cuts};
use mainstay_sim::run::{
    SimList, SimListed, SimMachine, SimOptions, SimReport, list, run as simulate, trace,
};
use mainstay_types::rules::Rule;
use std::io::IsTerminal;
use std::num::NonZeroU64;
use std::path::PathBuf;

/// `mainstay sim`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  mainstay sim                                       1000 histories of a whole service
  mainstay sim --seeds 0..10000 --twice              each one twice: the traces must be the same
  mainstay sim --machine cluster                     1000 histories of nodes that talk, under every policy
  mainstay sim --machine journal --seed 42 --trace   one history, step by step
  mainstay sim --break failed-sync-ignored           turn a safety rule off: the oracle must notice
  mainstay sim --list                                machines, rules and properties, each with its source

Exit code 1 on a violation and only then."
)]
pub(crate) struct Sim {
    #[command(subcommand)]
    command: Option<Command>,
    /// What is simulated: `process` if nothing is said, or the machine that shows the rule to be broken.
    #[arg(long, value_name = "NAME")]
    machine: Option<SimMachine>,
    /// Which seeds: A..B is from A up to, but not, B.
    #[arg(long, value_name = "A..B", default_value = "0..1000", conflicts_with = "seed")]
    seeds: Interval,
    /// One seed.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Run every seed twice and compare the traces; with EVERY, only seeds that are multiples of it.
    #[arg(long, value_name = "EVERY", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    twice: Option<NonZeroU64>,
    /// Turn a safety rule off inside the machine, and end with the first violation.
    #[arg(long = "break", value_name = "RULE", value_parser = rule)]
    broken: Option<Rule>,
    /// Print the trace of one seed.
    #[arg(long, requires = "seed", conflicts_with_all = ["twice", "json"])]
    trace: bool,
    /// Name the machines, the rules that can be broken, and the properties.
    #[arg(long)]
    list: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Cut the power of a recorded demo wherever that could lose something, and run the real recovery on what is left.
    #[command(after_help = "Examples:
  mainstay demo --record recording --requests 500 --kills 5 && mainstay sim cuts recording
  mainstay demo --topology pipeline --policy optimistic --record folder && mainstay sim cuts folder

Every answer given at level disk before a cut must be given again after it. Exit code 1 when one is not.
Several nodes lose their power at the same moment. Where their policy does not survive that (sender-based, hybrid, causal, mixed),
only journals and local replay are checked; cuts of one node at a time are made by the demo itself while it records.")]
    Cuts(Cuts),
}

/// `mainstay sim cuts`.
#[derive(Debug, clap::Args)]
struct Cuts {
    /// What `mainstay demo --record` has written, at level disk: a file, or with --topology a folder.
    recording: PathBuf,
    /// Points of the recording, at most.
    #[arg(long, value_name = "N", default_value_t = CutsOptions::default().points_max)]
    points: usize,
    /// For the writes that are lost, reordered and torn by chance.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn rule(given: &str) -> Result<Rule, UsageError> {
    Rule::ALL.into_iter().find(|rule| rule.broken_name() == given).ok_or_else(|| {
        let names = Rule::ALL.map(Rule::broken_name).join(", ");
        UsageError { explanation: format!("no rule is broken by `{given}`; there are: {names}") }
    })
}

/// The first machine that shows this rule broken.
fn machine_for(broken: Option<Rule>) -> SimMachine {
    let shows = |machine: &SimMachine| broken.is_none_or(|rule| machine.rules().contains(&rule));
    SimMachine::ALL.into_iter().find(shows).unwrap_or(SimMachine::Process)
}

/// Runs it.
///
/// # Errors
/// When the seeds cannot be.
pub(crate) fn run(sim: Sim) -> anyhow::Result<Verdict> {
    if let Some(Command::Cuts(options)) = &sim.command {
        return check_cuts(options);
    }
    if sim.list {
        print_list(&list(), sim.json)?;
        return Ok(Verdict::Clean);
    }
    let machine = sim.machine.unwrap_or_else(|| machine_for(sim.broken));
    if let (true, Some(seed)) = (sim.trace, sim.seed) {
        let (lines, violation) = trace(machine, seed, sim.broken);
        lines.iter().for_each(|line| println!("{line}"));
        return Ok(violation.map_or(Verdict::Clean, |violation| {
            println!("VIOLATION {violation}");
            Verdict::Wrong
        }));
    }
    let seeds = match sim.seed {
        Some(u64::MAX) => {
            return Err(UsageError { explanation: "a seed is below 2^64 - 1".to_owned() }.into());
        }
        Some(seed) => seed..seed + 1,
        None => sim.seeds.0,
    };
    let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(seeds.end - seeds.start));
    let options = SimOptions { machine, seeds, twice_every: sim.twice, broken: sim.broken };
    let report = simulate(&options, &mut |progress| {
        if let Some(bar) = &bar {
            bar.set_position(progress.seeds);
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if sim.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print_report(&report, machine, sim.broken);
    }
    Ok(if report.violations == 0 { Verdict::Clean } else { Verdict::Wrong })
}

fn check_cuts(options: &Cuts) -> anyhow::Result<Verdict> {
    let Cuts { recording, points, seed, json } = options;
    let thoroughness = CutsOptions { points_max: *points, seed: *seed, ..CutsOptions::default() };
    let fresh = || mainstay::server::handler(Ledger::default());
    let unreadable = || format!("cannot read the recording {}", recording.display());
    let report = match recording.is_dir() {
        true => power::check(recording, &thoroughness).with_context(unreadable)?,
        false => cuts(recording, &thoroughness, &process_config(), fresh).with_context(unreadable)?,
    };
    if *json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!(
            "{} entries, {} acknowledgements; power cut at {} points, {} images recovered, {} answers asked for again: \
             {} violations",
            report.entries,
            report.acknowledgements,
            report.points,
            report.images,
            report.asked,
            report.violations
        );
        if !report.answers_promised {
            println!(
                "The policy of these nodes does not survive the loss of all at once: no answer was asked for; every journal \
                 was opened and replayed."
            );
        }
        if let Some(CutViolation { entry, unsynced, what }) = &report.first_violation {
            println!("\nVIOLATION behind entry {entry}, unsynced writes {unsynced}: {what}");
        }
    }
    if report.acknowledgements == 0 {
        bail!("the recording holds no acknowledgement at level disk: there was nothing to check");
    }
    Ok(if report.violations == 0 { Verdict::Clean } else { Verdict::Wrong })
}

fn print_report(report: &SimReport, machine: SimMachine, broken: Option<Rule>) {
    let SimReport { seeds, steps, crashes, violations, first_violation, reached } = report;
    println!(
        "machine {}: {seeds} seeds, {steps} steps, {crashes} crashes, {violations} violations",
        machine.name()
    );
    println!("rare branches reached:");
    for (branch, times) in reached {
        println!("  {branch:<36} {times:>12}{}", if *times == 0 { "   NEVER" } else { "" });
    }
    if let Some(violation) = first_violation {
        println!("\nVIOLATION {violation}");
        let broken = broken.map_or_else(String::new, |rule| format!(" --break {}", rule.broken_name()));
        println!(
            "see it: mainstay sim --machine {} --seed {}{broken} --trace",
            machine.name(),
            violation.seed
        );
    }
}

fn print_list(list: &SimList, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(list)?);
        return Ok(());
    }
    for (title, listed) in
        [("machines", &list.machines), ("rules to break", &list.rules), ("properties", &list.properties)]
    {
        println!("{title}:");
        for SimListed { name, source } in listed {
            println!("  {name:<32} {source}");
        }
    }
    Ok(())
}
