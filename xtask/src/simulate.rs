//! The simulator's campaign: seeds without violation, seeds twice for the same trace, and every rule broken and caught.

use serde_json::Value;
use std::io;
use std::process::Command;

/// Seeds within which a broken rule must be caught.
const SEEDS_TO_CATCH: u64 = 1000;

/// Steps and crashes that a seed must have on average, else it shows little.
const STEPS_PER_SEED_MIN: u64 = 500;
const CRASHES_PER_SEED_MIN: u64 = 3;

/// The campaign did not show what it should.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The binary could not be started.
    #[error("`mainstay` could not be started; `cargo build --release` makes it")]
    Start(#[from] io::Error),
    /// It ended otherwise than expected.
    #[error("`mainstay {arguments}` ended with {code:?} instead of {expected}: {output}")]
    Exit {
        /// The command line.
        arguments: String,
        /// Its exit code.
        code: Option<i32>,
        /// What it should have been.
        expected: i32,
        /// The first violation, or what it said on standard error.
        output: String,
    },
    /// It printed something else than the JSON it documents.
    #[error("`mainstay {arguments}` printed no JSON")]
    Json {
        /// The command line.
        arguments: String,
    },
    /// The run was clean and shows too little.
    #[error("{shortcoming}")]
    Weak {
        /// What is missing.
        shortcoming: String,
    },
}

/// How many seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// Of each machine, every tenth of them twice.
    Each(u64),
    /// Of all machines together, each of them twice.
    Split(u64),
}

/// Runs the campaign.
///
/// # Errors
/// [`SimulateError`] at the first thing that is not as it should be.
pub fn simulate(seeds: Seeds) -> Result<(), SimulateError> {
    let list = mainstay(&["sim", "--list", "--json"], 0)?;
    let machines = names(&list, "machines")?;
    let (seeds, twice, which_twice) = match seeds {
        Seeds::Each(seeds) => (seeds, "--twice=10", "every tenth twice"),
        Seeds::Split(seeds) => (seeds.div_ceil(machines.len() as u64), "--twice", "each twice"),
    };
    for machine in machines {
        // A history of a group or of whole nodes is long, and its rare branches are near: a tenth shows them all.
        let seeds = if matches!(machine, "group" | "replica") { seeds.div_ceil(10) } else { seeds };
        let range = format!("0..{seeds}");
        let arguments = ["sim", "--machine", machine, "--seeds", &range, twice, "--json"];
        let report = mainstay(&arguments, 0)?;
        if let Some(shortcoming) = shortcoming(&report, seeds) {
            return Err(SimulateError::Weak { shortcoming: format!("{machine}: {shortcoming}") });
        }
        let (steps, crashes) = (&report["steps"], &report["crashes"]);
        println!(
            "{machine}: {seeds} seeds, {which_twice}, {steps} steps, {crashes} crashes: no violation, the same traces"
        );
    }
    let range = format!("0..{SEEDS_TO_CATCH}");
    for rule in names(&list, "rules")? {
        let report = mainstay(&["sim", "--break", rule, "--seeds", &range, "--json"], 1)?;
        println!("{rule}: caught, {}", report["first_violation"]);
    }
    Ok(())
}

/// The names in one of the lists of `sim --list --json`.
fn names<'a>(list: &'a Value, which: &str) -> Result<Vec<&'a str>, SimulateError> {
    let names: Vec<&str> =
        list[which].as_array().into_iter().flatten().filter_map(|entry| entry["name"].as_str()).collect();
    if names.is_empty() {
        return Err(SimulateError::Weak { shortcoming: format!("`sim --list --json` names no {which}") });
    }
    Ok(names)
}

/// What a clean report lacks, if anything.
fn shortcoming(report: &Value, seeds: u64) -> Option<String> {
    let figure = |name: &str| report[name].as_u64();
    if figure("violations") != Some(0) {
        return Some(format!("violations: {}", report["violations"]));
    }
    for (name, least) in [("seeds", 1), ("steps", STEPS_PER_SEED_MIN), ("crashes", CRASHES_PER_SEED_MIN)] {
        if figure(name).is_none_or(|value| value < least * seeds) {
            return Some(format!(
                "{name}: {} in {seeds} seeds; at least {least} for each are wanted",
                report[name]
            ));
        }
    }
    let Some(reached) = report["reached"].as_object() else {
        return Some("there are no reach counters".to_owned());
    };
    let never: Vec<&str> = reached
        .iter()
        .filter(|(_, count)| count.as_u64() == Some(0))
        .map(|(name, _)| name.as_str())
        .collect();
    (!never.is_empty()).then(|| format!("never reached: {}", never.join(", ")))
}

fn mainstay(arguments: &[&str], expected: i32) -> Result<Value, SimulateError> {
    let program = std::env::current_exe()?.with_file_name("mainstay");
    let output = Command::new(program).args(arguments).output()?;
    let line = arguments.join(" ");
    if output.status.code() != Some(expected) {
        let report: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        let printed = match report.as_ref().and_then(|report| report.get("first_violation")) {
            Some(violation) => violation.to_string(),
            None => String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        return Err(SimulateError::Exit {
            arguments: line,
            code: output.status.code(),
            expected,
            output: printed,
        });
    }
    serde_json::from_slice(&output.stdout).map_err(|_| SimulateError::Json { arguments: line })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report_must_be_clean_long_and_reach_every_branch() {
        let good =
            json!({"seeds": 2, "steps": 1200, "crashes": 7, "violations": 0, "reached": {"torn write": 3}});
        assert_eq!(shortcoming(&good, 2), None);
        for (name, value) in [
            ("violations", json!(1)),
            ("steps", json!(900)),
            ("crashes", json!(5)),
            ("seeds", json!(1)),
            ("reached", json!({"torn write": 0})),
            ("reached", json!(null)),
        ] {
            let mut weak = good.clone();
            weak[name] = value;
            assert!(shortcoming(&weak, 2).is_some(), "{name}");
        }
    }
}
