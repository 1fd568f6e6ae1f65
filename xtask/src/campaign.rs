//! Runs steps one after another, all of them whatever fails, and says at the end what ran, what it found, what failed and
//! what was skipped, by name.

use crate::progress::Progress;
use crate::skips::Skips;
use serde_json::Value;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// One step of a campaign.
#[derive(Clone, Debug)]
pub struct Step {
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) arguments: Vec<String>,
    /// Below the checkout.
    folder: &'static str,
    environment: Vec<(&'static str, &'static str)>,
    need: Option<Need>,
    found: Found,
    /// A file that later steps need.
    pub(crate) makes: Option<PathBuf>,
}

/// What a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Cargo,
    Rustup,
    /// This program itself.
    Xtask,
    /// The product, as the step `tests` built it.
    Mainstay,
    /// For scripts of this repository.
    Bash,
}

/// A tool that not every machine has: without it the step is skipped, by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// With these the step's program succeeds if the tool is there.
    pub(crate) arguments: &'static [&'static str],
    pub(crate) remedy: &'static str,
}

/// What a step's output says in short.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// Nothing; all of it goes to the screen.
    Nothing,
    /// It is JSON, of which these figures count.
    Figures(&'static [&'static str]),
    /// It is the JSON of a benchmark, of which the targets count.
    Targets,
}

impl Step {
    pub(crate) fn new(name: impl Into<String>, program: Program, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self {
            name: name.into(),
            program,
            arguments,
            folder: ".",
            environment: Vec::new(),
            need: None,
            found: Found::Nothing,
            makes: None,
        }
    }

    pub(crate) fn needing(self, need: Need) -> Self {
        Self { need: Some(need), ..self }
    }

    pub(crate) fn found(self, found: Found) -> Self {
        Self { found, ..self }
    }

    pub(crate) fn making(self, file: PathBuf) -> Self {
        Self { makes: Some(file), ..self }
    }

    pub(crate) fn in_folder(self, folder: &'static str) -> Self {
        Self { folder, ..self }
    }

    pub(crate) fn with(mut self, variable: &'static str, value: &'static str) -> Self {
        self.environment.push((variable, value));
        self
    }

    /// What it is called in tables.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// How all steps ended.
#[derive(Debug, Default)]
pub struct Outcome {
    pub(crate) reports: Vec<Report>,
    pub(crate) skipped: Vec<String>,
}

/// How one step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    pub(crate) took: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// A benchmark came to its end and missed a target, which is to be written down and is no failure.
    TargetMissed,
    Skipped,
    Failed {
        code: Option<i32>,
    },
    NotStarted {
        reason: String,
    },
}

impl Outcome {
    /// Whether no step failed.
    #[must_use]
    pub fn all_well(&self) -> bool {
        !self.reports.iter().any(|report| report.verdict.failed())
    }

    /// Success if no step failed.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        if self.all_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Verdict {
    pub(crate) fn failed(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::NotStarted { .. })
    }
}

/// The table, in Markdown.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| step | result | seconds | found |\n|---|---|---|---|")?;
        for Report { name, verdict, found, took } in &self.reports {
            writeln!(f, "| {name} | {verdict} | {:.0} | {found} |", took.as_secs_f64())?;
        }
        writeln!(f)?;
        if self.skipped.is_empty() {
            writeln!(f, "skipped: nothing")?;
        }
        // Two spaces end a line in Markdown.
        self.skipped.iter().try_for_each(|line| writeln!(f, "skipped: {line}  "))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::TargetMissed => f.write_str("a target missed"),
            Self::Skipped => f.write_str("skipped"),
            Self::Failed { code: Some(code) } => write!(f, "FAILED (exit {code})"),
            Self::Failed { code: None } => f.write_str("FAILED (killed)"),
            Self::NotStarted { reason } => write!(f, "FAILED ({reason})"),
        }
    }
}

/// Runs `steps` in the checkout at `root`, but for those that have run according to `progress`. `this` is the file of this
/// program, asked for before any step: the step `tests` may build it anew, and then it has no path any more.
#[must_use]
pub fn run(root: &Path, this: &Path, steps: &[Step], progress: &mut Progress) -> Outcome {
    let mut skips = Skips::default();
    let mut outcome = Outcome::default();
    for step in steps {
        println!("\n=== {}", step.name);
        let (report, skipped) = if let Some((report, skipped)) = progress.of(step) {
            println!("has run on this commit: {}", report.verdict);
            (report.clone(), skipped.to_vec())
        } else {
            let start = Instant::now();
            let mut skips = Skips::default();
            let (verdict, found) = perform(root, this, step, &mut skips);
            let report = Report { name: step.name.clone(), verdict, found, took: start.elapsed() };
            progress.add(step, &report, &skips.lines);
            (report, skips.lines)
        };
        if !report.found.is_empty() {
            println!("{}", report.found);
        }
        outcome.reports.push(report);
        skipped.iter().for_each(|line| skips.add(line));
    }
    outcome.skipped = skips.lines;
    println!("\n{outcome}");
    outcome
}

fn perform(root: &Path, this: &Path, step: &Step, skips: &mut Skips) -> (Verdict, String) {
    let lacking = step.need.filter(|need| !is_there(step.program.path(this), need));
    if let Some(Need { remedy: why, .. }) = lacking {
        skips.add(&format!("{}: {why}", step.name));
        return (Verdict::Skipped, why.to_owned());
    }
    let program = step.program.path(this);
    let child = Command::new(&program)
        .args(&step.arguments)
        .envs(step.environment.iter().copied())
        .current_dir(root.join(step.folder))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            return (
                Verdict::NotStarted { reason: format!("{}: {error}", program.display()) },
                String::new(),
            );
        }
    };
    let found = match step.found {
        Found::Nothing => {
            show(&mut child, skips);
            String::new()
        }
        found => found.in_short(&all_output(&mut child)),
    };
    let verdict = match child.wait().map(|status| status.code()) {
        Ok(Some(0)) => Verdict::Passed,
        Ok(Some(1)) if matches!(step.found, Found::Targets) => Verdict::TargetMissed,
        Ok(code) => Verdict::Failed { code },
        Err(error) => Verdict::NotStarted { reason: error.to_string() },
    };
    (verdict, found)
}

fn is_there(program: PathBuf, need: &Need) -> bool {
    let probe = Command::new(program)
        .args(need.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    probe.is_ok_and(|status| status.success())
}

fn show(child: &mut Child, skips: &mut Skips) {
    let output = BufReader::new(child.stdout.take().expect("the output was asked for as a pipe"));
    for line in output.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if skips.take(&line) {
            println!("{line}");
        }
    }
}

fn all_output(child: &mut Child) -> Vec<u8> {
    let mut output = Vec::new();
    // What was read before an error is shown; the exit code tells whether the step did what it should.
    let _ = child.stdout.take().expect("the output was asked for as a pipe").read_to_end(&mut output);
    output
}

impl Program {
    /// Where it is, given where this program is.
    fn path(self, this: &Path) -> PathBuf {
        match self {
            Self::Cargo => std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()).into(),
            Self::Rustup => "rustup".into(),
            Self::Xtask => this.to_owned(),
            Self::Mainstay => this.with_file_name("mainstay"),
            Self::Bash => "bash".into(),
        }
    }
}

impl Found {
    fn in_short(self, output: &[u8]) -> String {
        let Ok(json) = serde_json::from_slice::<Value>(output) else {
            return "no JSON".to_owned();
        };
        match self {
            Self::Nothing => String::new(),
            Self::Figures(names) => {
                let figures: Vec<_> = names.iter().map(|&name| format!("{name} {}", json[name])).collect();
                figures.join(", ")
            }
            Self::Targets => {
                let targets: Vec<&Value> = json["targets"].as_array().into_iter().flatten().collect();
                let missed: Vec<String> = targets
                    .iter()
                    .filter(|target| target["holds"] != true)
                    .map(|target| {
                        let text = |name: &str| target[name].as_str().unwrap_or("?").to_owned();
                        let value = target["value"].as_f64().unwrap_or(f64::NAN);
                        format!("{}: {value:.3} against {} {}", text("name"), target["target"], text("unit"))
                    })
                    .collect();
                let hold = format!("{} of {} targets hold", targets.len() - missed.len(), targets.len());
                if missed.is_empty() { hold } else { format!("{hold}; missed: {}", missed.join("; ")) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_here(steps: &[Step]) -> Outcome {
        let this = std::env::current_exe().expect("a test has a path");
        run(Path::new(env!("CARGO_MANIFEST_DIR")), &this, steps, &mut Progress::default())
    }

    #[test]
    fn a_failed_step_fails_the_campaign_and_the_steps_after_it_still_run() {
        let failing = Step::new("fails", Program::Cargo, &["no-such-command"]);
        let passing = Step::new("passes", Program::Cargo, &["--version"]);
        let outcome = run_here(&[failing, passing.clone()]);
        assert!(!outcome.all_well());
        assert_eq!(outcome.reports[1].verdict, Verdict::Passed);
        assert!(run_here(&[passing]).all_well());
        assert!(!run_here(&[Step::new("missing", Program::Mainstay, &[])]).all_well());
    }

    #[test]
    fn what_needs_a_tool_that_is_not_there_is_skipped_by_name() {
        let need = Need { arguments: &["no-such-command"], remedy: "install it" };
        let steps = [Step::new("with a tool", Program::Cargo, &["--version"]).needing(need)];
        let mut skips = Skips::default();
        // Not by `run`, whose words the campaign that runs this test would take for its own.
        for step in &steps {
            assert_eq!(perform(Path::new("."), Path::new("xtask"), step, &mut skips).0, Verdict::Skipped);
        }
        assert_eq!(skips.lines, ["with a tool: install it"]);
    }

    #[test]
    fn output_is_summed_up() {
        let report = br#"{"lost": 0, "doubled": 1, "targets": [
            {"name": "p50", "value": 1.1, "target": 1.2, "unit": "x", "holds": true},
            {"name": "replay", "value": 0.4, "target": 0.5, "unit": "x", "holds": false}]}"#;
        assert_eq!(Found::Figures(&["lost", "doubled"]).in_short(report), "lost 0, doubled 1");
        assert_eq!(
            Found::Targets.in_short(report),
            "1 of 2 targets hold; missed: replay: 0.400 against 0.5 x"
        );
        assert_eq!(Found::Targets.in_short(b"panicked"), "no JSON");
    }
}
