//! Runs steps one after another, all of them whatever fails, and says at the end what ran, what failed and what was
//! skipped, by name.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// One step of a campaign.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    name: &'static str,
    program: Program,
    arguments: &'static [&'static str],
    /// The exit code that means success.
    expected: i32,
    environment: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy, Debug)]
enum Program {
    Cargo,
    /// This program itself.
    Xtask,
    /// The product, as the step `tests` built it.
    Mainstay,
}

const FORMAT: Step = cargo("format", &["fmt", "--all", "--check"]);
const STRUCTURE: Step = Step { program: Program::Xtask, ..cargo("structure", &["check-structure"]) };
// All steps share the release profile, so that nothing is compiled twice.
const LINTS: Step = cargo(
    "lints",
    &[
        "clippy",
        "--release",
        "--workspace",
        "--all-targets",
        "--locked",
        "--quiet",
        "--",
        "--deny",
        "warnings",
    ],
);
const TESTS: Step = cargo(
    "tests",
    &["test", "--release", "--workspace", "--locked", "--no-fail-fast", "--", "--show-output"],
);
const DOCUMENTATION: Step = Step {
    // The comments of flags are help texts as well, where `<name>` is a placeholder and needs no backticks. The pages are for
    // contributors, too, who may follow a link to a private item.
    environment: &[(
        "RUSTDOCFLAGS",
        "--deny warnings --allow rustdoc::invalid-html-tags --allow rustdoc::private-intra-doc-links",
    )],
    ..cargo("documentation", &["doc", "--release", "--workspace", "--no-deps", "--locked", "--quiet"])
};

/// Seeds in CI.
const SIMULATION: Step =
    Step { program: Program::Xtask, ..cargo("simulation, 10,000 seeds", &["simulate", "10000"]) };
/// Seeds in the long campaign.
const LONG_SIMULATION: Step =
    Step { program: Program::Xtask, ..cargo("simulation, 200,000 seeds", &["simulate", "200000"]) };

/// Without tests: a minute after the first time.
pub const CHECK: &[Step] = &[FORMAT, STRUCTURE, LINTS];

/// What CI runs.
pub const TEST: &[Step] = &[FORMAT, STRUCTURE, LINTS, TESTS, DOCUMENTATION, SIMULATION];

/// What CI runs, then the campaigns that take longer.
pub const FULL: &[Step] = &[
    FORMAT,
    STRUCTURE,
    LINTS,
    TESTS,
    DOCUMENTATION,
    LONG_SIMULATION,
    cargo(
        "every byte of a journal flipped, both backends",
        &[
            "test",
            "--release",
            "--locked",
            "--package",
            "mainstay-disk",
            "--test",
            "journal_on_files",
            "--",
            "--ignored",
        ],
    ),
    mainstay("demo, 200 kills", &["demo", "--kills", "200", "--seed", "7"]),
    mainstay("bench journal", &["bench", "journal"]),
    mainstay("bench step", &["bench", "step"]),
    cargo("advisories and licences (cargo-deny)", &["deny", "check"]),
];

const fn cargo(name: &'static str, arguments: &'static [&'static str]) -> Step {
    Step { name, program: Program::Cargo, arguments, expected: 0, environment: &[] }
}

const fn mainstay(name: &'static str, arguments: &'static [&'static str]) -> Step {
    Step { program: Program::Mainstay, ..cargo(name, arguments) }
}

/// How a step ended.
#[derive(Debug)]
struct Report {
    name: &'static str,
    verdict: Verdict,
    took: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed { code: Option<i32> },
    NotStarted { reason: String },
}

/// Runs `steps` in the checkout at `root`; succeeds only if all of them do.
#[must_use]
pub fn run(root: &Path, steps: &[Step]) -> ExitCode {
    // Asked before any step: the step `tests` may build this program anew, and then it has no path any more.
    let this = match std::env::current_exe() {
        Ok(this) => this,
        Err(error) => {
            eprintln!("this program does not find itself: {error}");
            return ExitCode::from(3);
        }
    };
    let mut skips = Skips::default();
    let mut reports = Vec::new();
    for step in steps {
        println!("\n=== {}", step.name);
        let start = Instant::now();
        let verdict = perform(root, &this, step, &mut skips);
        reports.push(Report { name: step.name, verdict, took: start.elapsed() });
    }

    println!("\n| step | result | seconds |\n|---|---|---|");
    for Report { name, verdict, took } in &reports {
        let result = match verdict {
            Verdict::Passed => "passed".to_owned(),
            Verdict::Failed { code: Some(code) } => format!("FAILED (exit {code})"),
            Verdict::Failed { code: None } => "FAILED (killed)".to_owned(),
            Verdict::NotStarted { reason } => format!("FAILED ({reason})"),
        };
        println!("| {name} | {result} | {:.0} |", took.as_secs_f64());
    }
    if skips.lines.is_empty() {
        println!("\nskipped: nothing");
    }
    for line in &skips.lines {
        println!("skipped: {line}");
    }
    if reports.iter().all(|report| report.verdict == Verdict::Passed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn perform(root: &Path, this: &Path, step: &Step, skips: &mut Skips) -> Verdict {
    let program = step.program.path(this);
    let child = Command::new(&program)
        .args(step.arguments)
        .envs(step.environment.iter().copied())
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            return Verdict::NotStarted { reason: format!("{}: {error}", program.display()) };
        }
    };
    let output = BufReader::new(child.stdout.take().expect("the output was asked for as a pipe"));
    for line in output.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if skips.take(&line) {
            println!("{line}");
        }
    }
    match child.wait() {
        Ok(status) if status.code() == Some(step.expected) => Verdict::Passed,
        Ok(status) => Verdict::Failed { code: status.code() },
        Err(error) => Verdict::NotStarted { reason: error.to_string() },
    }
}

impl Program {
    /// Where it is, given where this program is.
    fn path(self, this: &Path) -> PathBuf {
        match self {
            Self::Cargo => std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()).into(),
            Self::Xtask => this.to_owned(),
            Self::Mainstay => this.with_file_name("mainstay"),
        }
    }
}

/// Collects what tests skipped from their output.
///
/// A test that cannot run here prints a line `skipped: WHAT: WHY` and passes, or is ignored with a reason. The test
/// harness shows output of passed tests only in a section of its own, of which nothing else is let through. What is ignored
/// as `not a test: …` (a program that tests start) is no skip.
#[derive(Debug, Default)]
struct Skips {
    in_successes: bool,
    lines: Vec<String>,
}

impl Skips {
    /// Whether `line` is for the screen.
    fn take(&mut self, line: &str) -> bool {
        if let Some((_, what)) = line.split_once("skipped: ")
            && what != "nothing"
        {
            self.add(what.trim());
        } else if let Some(ignored) = line.strip_prefix("test ")
            && let Some((name, reason)) = ignored.split_once(" ... ignored")
            && !reason.contains("not a test: ")
        {
            self.add(&format!("{name}{}", reason.replacen(',', ":", 1)));
        }
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ if line.starts_with("test result: ") => self.in_successes = false,
            _ => {}
        }
        !self.in_successes
    }

    fn add(&mut self, what: &str) {
        if !self.lines.iter().any(|line| line == what) {
            self.lines.push(what.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_collected_and_only_results_shown() {
        let mut skips = Skips::default();
        let shown: Vec<&str> = "\
running 3 tests
test a ... ok
test b ... ignored, needs root
test c ... FAILED
test d ... ignored, not a test: started by b

successes:

---- a stdout ----
skipped: full disk: needs root to mount
chatter

successes:
    a

failures:

---- c stdout ----
it broke

test result: FAILED. 1 passed; 1 failed; 1 ignored
"
        .lines()
        .filter(|line| skips.take(line))
        .collect();
        assert_eq!(skips.lines, ["b: needs root", "full disk: needs root to mount"]);
        assert!(shown.contains(&"it broke") && shown.contains(&"test a ... ok"));
        assert!(!shown.contains(&"chatter"));
        assert!(shown.last().is_some_and(|line| line.starts_with("test result: ")));
    }

    #[test]
    fn a_failed_step_fails_the_campaign_and_the_steps_after_it_still_run() {
        let failing = Step { expected: 7, ..cargo("fails", &["--version"]) };
        let passing = cargo("passes", &["--version"]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(format!("{:?}", run(root, &[failing, passing])), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(format!("{:?}", run(root, &[passing])), format!("{:?}", ExitCode::SUCCESS));
        let missing = mainstay("missing", &[]);
        assert_eq!(format!("{:?}", run(root, &[missing])), format!("{:?}", ExitCode::FAILURE));
    }
}
