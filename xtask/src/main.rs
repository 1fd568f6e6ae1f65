//! `cargo xtask`: a table of chores.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xtask::campaign;
use xtask::simulate;
use xtask::structure;

const USAGE: &str = "\
usage: cargo xtask CHORE

  check-structure   dependency direction, bans in silent crates, first lines, lengths, links; prints rule, place and remedy
  check             format, lints and structure, without tests
  test              everything CI runs: format, lints, structure, tests, documentation, 10,000 simulated seeds
  simulate SEEDS    that many seeds of each machine, each twice, and every rule broken and caught, with the binary built before
  full              all of `test`, then the long campaigns and benchmarks; prints a table for docs/full-run.md

exit codes: 0 all well, 1 something failed, 2 usage, 3 the checkout cannot be read";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = checkout();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["check-structure"] => check_structure(&root),
        ["check"] => campaign::run(&root, campaign::CHECK),
        ["test"] => campaign::run(&root, campaign::TEST),
        ["full"] => campaign::run(&root, campaign::FULL),
        ["simulate", seeds] => match seeds.parse() {
            Ok(seeds) => run_simulation(seeds),
            Err(_) => usage(),
        },
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

fn run_simulation(seeds: u64) -> ExitCode {
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
