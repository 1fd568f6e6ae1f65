//! `cargo xtask full`: everything of `test`, the long campaigns, the benchmarks, and the page that says how it ended.

use crate::campaign;
use crate::progress::Progress;
use crate::steps::{self, Scale};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What of it is to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Small numbers.
    pub small: bool,
    /// Only the steps whose name contains this.
    pub only: String,
    /// Without the steps that have run on this commit.
    pub resume: bool,
}

/// The full run could not be prepared, or its page not be written.
#[derive(Debug, thiserror::Error)]
pub enum FullRunError {
    /// A folder or file of the checkout or of the target folder.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No step has such a name; these there are.
    #[error("`--only` names no step; there are:\n  {}", .names.join("\n  "))]
    NoStep {
        /// The names of all steps.
        names: Vec<String>,
    },
}

/// Runs it. All of it at full scale goes into `docs/full-run.md`, anything less into `full-run.md` beside this program.
///
/// # Errors
/// [`FullRunError`]; that a step failed is no error but in the outcome.
pub fn full(root: &Path, this: &Path, choice: &Choice) -> Result<campaign::Outcome, FullRunError> {
    let scratch = this.with_file_name("full-run");
    let targets = fuzz_targets(root)?;
    let scale = if choice.small { Scale::SMALL } else { Scale::WHOLE };
    let mut chosen = steps::full(&scale, &scratch, &targets);
    let names = chosen.iter().map(|step| step.name().to_owned()).collect();
    chosen.retain(|step| step.name().contains(&choice.only));
    if chosen.is_empty() {
        return Err(FullRunError::NoStep { names });
    }
    let remembered = progress_file(this);
    let mut progress = Progress::open(root, &remembered, choice.resume)
        .map_err(|source| FullRunError::File { path: remembered, source })?;
    if !(choice.resume && scratch.is_dir()) {
        renew(&scratch)?;
    }
    // Before the steps: what is committed meanwhile is not what runs.
    let heading = heading(root, choice);
    let outcome = campaign::run(root, this, &chosen, &mut progress);
    let page = if !choice.small && choice.only.is_empty() {
        root.join("docs/full-run.md")
    } else {
        this.with_file_name("full-run.md")
    };
    let text = format!("{heading}\n{outcome}");
    fs::write(&page, text).map_err(|source| FullRunError::File { path: page.clone(), source })?;
    println!("written: {}", page.display());
    fs::remove_dir_all(&scratch).map_err(|source| FullRunError::File { path: scratch, source })?;
    Ok(outcome)
}

/// Where the program beside it remembers what has run.
#[must_use]
pub fn progress_file(this: &Path) -> PathBuf {
    this.with_file_name("progress.jsonl")
}

/// The names of all fuzz targets, in order.
fn fuzz_targets(root: &Path) -> Result<Vec<String>, FullRunError> {
    let folder = root.join("fuzz/fuzz_targets");
    let wrong = |source| FullRunError::File { path: folder.clone(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// An empty folder, whatever an interrupted run left there.
fn renew(folder: &Path) -> Result<(), FullRunError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir(folder),
    }
    .map_err(|source| FullRunError::File { path: folder.to_owned(), source })
}

fn heading(root: &Path, choice: &Choice) -> String {
    let mut command = "cargo xtask full".to_owned();
    for (chosen, option) in [(choice.small, " --small"), (choice.resume, " --resume")] {
        command.push_str(if chosen { option } else { "" });
    }
    if !choice.only.is_empty() {
        command.push_str(&format!(" --only {:?}", choice.only));
    }
    let says = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(root).output();
        let said = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        said.ok().filter(|said| !said.is_empty())
    };
    let unknown = || "unknown".to_owned();
    let commit = says("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(unknown);
    let changed =
        if says("git", &["status", "--porcelain"]).is_some() { ", with changes not committed" } else { "" };
    let date = says("date", &["-u", "+%Y-%m-%d"]).unwrap_or_else(unknown);
    let compiler = says("rustc", &["--version"]).unwrap_or_else(unknown);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| unknown());
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(unknown);
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let memory_kib =
        field("/proc/meminfo", "MemTotal").and_then(|size| size.trim_end_matches(" kB").parse().ok());
    let memory_gib = memory_kib.map_or(0.0, |kib: f64| kib / 1_048_576.0);
    format!(
        "# The full run

`cargo xtask full` runs what CI runs, a longer simulation, the long campaigns, the benchmarks, and what needs tools that not
every machine has; it writes this page.

- command: `{command}`, begun on {date} at commit {commit}{changed}
- machine: {processors} x {processor}, {memory_gib:.0} GiB, Linux {}; {compiler}
",
        kernel.split('-').next().unwrap_or_default().trim()
    )
}

/// The value of `name` in a file of lines `name : value`.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let (_, value) = text.lines().find(|line| line.starts_with(name))?.split_once(':')?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_step_has_is_refused_and_the_names_are_told() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let choice = Choice { small: true, only: "no such step".to_owned(), resume: false };
        let error = full(&root, Path::new("/nowhere/xtask"), &choice).expect_err("there is none");
        assert!(error.to_string().contains("\n  tests\n"), "{error}");
    }

    #[test]
    fn the_heading_says_what_ran_where() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = heading(&root, &Choice { small: true, only: "demo".to_owned(), resume: false });
        assert!(text.contains("`cargo xtask full --small --only \"demo\"`"), "{text}");
        assert!(text.contains("GiB, Linux "), "{text}");
    }
}
