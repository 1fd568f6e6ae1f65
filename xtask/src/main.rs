//! `cargo xtask`: a table of chores.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xtask::campaign::{self, Step};
use xtask::full_run::{self, Choice};
use xtask::progress::Progress;
use xtask::simulate::{self, Seeds};
use xtask::steps;
use xtask::structure;

const USAGE: &str = "\
usage: cargo xtask CHORE

  check-structure   dependency direction, bans in silent crates, first lines, lengths, links; prints rule, place and remedy
  check             format, lints and structure, without tests
  test              everything CI runs: format, lints, structure, tests, documentation, 10,000 simulated seeds
  simulate SEEDS [--split]
                    that many seeds of each machine, every tenth twice (or of all together, each twice), and every rule
                    broken and caught, with the binary built before
  full [--small] [--only TEXT] [--resume]
                    all of `test`, then the long campaigns and the benchmarks; writes docs/full-run.md. With small
                    numbers, or only the steps whose name contains TEXT: writes full-run.md beside the binaries.
                    --resume leaves out what has run on this commit, also by `test`: an interrupted run goes on

exit codes: 0 all well, 1 something failed, 2 usage, 3 the checkout cannot be read";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = checkout();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["check-structure"] => check_structure(&root),
        ["check"] => run_campaign(&root, &steps::check()),
        ["test"] => run_campaign(&root, &steps::test()),
        ["full", options @ ..] => choice(options).map_or_else(usage, |choice| run_full(&root, &choice)),
        ["simulate", seeds] => {
            seeds.parse().map_or_else(|_| usage(), |seeds| run_simulation(Seeds::Each(seeds)))
        }
        ["simulate", seeds, "--split"] => {
            seeds.parse().map_or_else(|_| usage(), |seeds| run_simulation(Seeds::Split(seeds)))
        }
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// What the options of `full` ask for; `None` if there are no such options.
fn choice(options: &[&str]) -> Option<Choice> {
    match options {
        [] => Some(Choice::default()),
        ["--small", rest @ ..] => choice(rest).map(|choice| Choice { small: true, ..choice }),
        ["--only", only, rest @ ..] => {
            choice(rest).map(|choice| Choice { only: (*only).to_owned(), ..choice })
        }
        ["--resume", rest @ ..] => choice(rest).map(|choice| Choice { resume: true, ..choice }),
        _ => None,
    }
}

fn run_campaign(root: &Path, steps: &[Step]) -> ExitCode {
    let this = match this() {
        Ok(this) => this,
        Err(code) => return code,
    };
    match Progress::open(root, &full_run::progress_file(&this), false) {
        Ok(mut progress) => campaign::run(root, &this, steps, &mut progress).exit_code(),
        Err(error) => {
            eprintln!("what has run cannot be remembered: {error}");
            ExitCode::from(3)
        }
    }
}

fn run_full(root: &Path, choice: &Choice) -> ExitCode {
    let this = match this() {
        Ok(this) => this,
        Err(code) => return code,
    };
    match full_run::full(root, &this, choice) {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => {
            eprintln!("full: {error}");
            ExitCode::from(if matches!(error, full_run::FullRunError::NoStep { .. }) { 2 } else { 3 })
        }
    }
}

/// The file of this program.
fn this() -> Result<PathBuf, ExitCode> {
    std::env::current_exe().map_err(|error| {
        eprintln!("this program does not find itself: {error}");
        ExitCode::from(3)
    })
}

fn run_simulation(seeds: Seeds) -> ExitCode {
    match simulate::simulate(seeds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("simulate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The checkout that cargo was called in. Asked at run time: two checkouts may share a target folder.
fn checkout() -> PathBuf {
    match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(folder) => PathBuf::from(folder).join(".."),
        None => PathBuf::from("."),
    }
}

fn check_structure(root: &Path) -> ExitCode {
    match structure::check(root) {
        Ok(findings) if findings.is_empty() => {
            println!("structure: every rule is kept");
            ExitCode::SUCCESS
        }
        Ok(findings) => {
            for finding in &findings {
                println!("{finding}");
            }
            println!("structure: {} findings", findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("structure: {error}");
            ExitCode::from(3)
        }
    }
}
