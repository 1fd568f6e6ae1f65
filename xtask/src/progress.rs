//! What earlier sittings have finished on the same commit, so that a full run may be interrupted and gone on with.

use crate::campaign::{Report, Step, Verdict};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The finished steps of the commit that is checked out: a line of JSON each, in a file beside this program.
#[derive(Debug, Default)]
pub struct Progress {
    commit: String,
    /// `None` where nothing is to be remembered: the checkout has changes, or is none.
    file: Option<File>,
    done: Vec<Done>,
}

/// A finished step.
#[derive(Debug)]
struct Done {
    /// The program's arguments: a step of that name with other numbers is another step.
    arguments: Value,
    report: Report,
    skipped: Vec<String>,
}

impl Progress {
    /// Remembers from now on. With `resume`, also what is remembered of this commit; else that is forgotten.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(root: &Path, file: &Path, resume: bool) -> io::Result<Self> {
        let says = |arguments: &[&str]| {
            let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let (Some(commit), Some(changes)) = (says(&["rev-parse", "HEAD"]), says(&["status", "--porcelain"]))
        else {
            return Ok(Self::default());
        };
        // The page of a full run is written at its end and is no change of what ran.
        if changes.lines().any(|line| !line.ends_with(" docs/full-run.md")) {
            return Ok(Self::default());
        }
        Self::of_commit(commit, file, resume)
    }

    fn of_commit(commit: String, file: &Path, resume: bool) -> io::Result<Self> {
        let text = match fs::read_to_string(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        // A line cut short by a crash is no step.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let ours = lines.filter(|line| resume && line["commit"] == commit.as_str());
        let done: Vec<Done> = ours.filter_map(|line| Done::read(&line)).collect();
        let kept: String = done.iter().map(|done| done.line(&commit)).collect();
        fs::write(file, kept)?;
        let file = OpenOptions::new().append(true).open(file)?;
        Ok(Self { commit, file: Some(file), done })
    }

    /// How a step ended, and what it skipped, if it has run and what it made is still there.
    pub(crate) fn of(&self, step: &Step) -> Option<(&Report, &[String])> {
        let arguments = json!(step.arguments);
        let done =
            self.done.iter().find(|done| done.report.name == step.name && done.arguments == arguments)?;
        let is_there = step.makes.as_ref().is_none_or(|made| made.exists());
        is_there.then_some((&done.report, done.skipped.as_slice()))
    }

    /// A step has ended. What failed is not remembered: it is to run again.
    pub(crate) fn add(&mut self, step: &Step, report: &Report, skipped: &[String]) {
        let Some(file) = &mut self.file else { return };
        if report.verdict.failed() {
            return;
        }
        let done =
            Done { arguments: json!(step.arguments), report: report.clone(), skipped: skipped.to_vec() };
        if let Err(error) = file.write_all(done.line(&self.commit).as_bytes()) {
            eprintln!("the end of step {:?} is not remembered: {error}", step.name);
        }
    }
}

impl Done {
    fn line(&self, commit: &str) -> String {
        let Report { name, verdict, found, took } = &self.report;
        let verdict = verdict.to_string();
        let line = json!({
            "commit": commit, "step": name, "arguments": self.arguments, "verdict": verdict, "found": found,
            "seconds": took.as_secs_f64(), "skipped": self.skipped,
        });
        format!("{line}\n")
    }

    /// `None` of a line that this program does not write.
    fn read(line: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let verdict = text(&line["verdict"])?;
        let verdict = [Verdict::Passed, Verdict::TargetMissed, Verdict::Skipped]
            .into_iter()
            .find(|known| known.to_string() == verdict)?;
        let took = Duration::try_from_secs_f64(line["seconds"].as_f64()?).ok()?;
        let report = Report { name: text(&line["step"])?, verdict, found: text(&line["found"])?, took };
        let skipped = line["skipped"].as_array()?.iter().map(text).collect::<Option<_>>()?;
        Some(Self { arguments: line["arguments"].clone(), report, skipped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::Program;

    #[test]
    fn what_passed_on_this_commit_is_remembered_and_what_failed_is_not() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let file = folder.path().join("progress.jsonl");
        let made = folder.path().join("recording");
        let open = |commit: &str, resume| {
            Progress::of_commit(commit.to_owned(), &file, resume).expect("it is read and written")
        };
        let step = |name: &str, seeds: &str| Step::new(name, Program::Xtask, &["simulate", seeds]);
        let report = |name: &str, verdict| Report {
            name: name.to_owned(),
            verdict,
            found: "lost 0".to_owned(),
            took: Duration::from_millis(1500),
        };
        let recorded = step("recorded", "2").making(made.clone());
        let mut progress = open("a", true);
        progress.add(&step("sim", "10"), &report("sim", Verdict::Passed), &["peers: none".to_owned()]);
        progress.add(&step("demo", "1"), &report("demo", Verdict::Failed { code: Some(1) }), &[]);
        progress.add(&recorded, &report("recorded", Verdict::TargetMissed), &[]);

        let again = open("a", true);
        let (told, skipped) = again.of(&step("sim", "10")).expect("it passed");
        assert_eq!((told, skipped), (&report("sim", Verdict::Passed), &["peers: none".to_owned()][..]));
        assert!(again.of(&step("sim", "20")).is_none(), "of other numbers");
        assert!(again.of(&step("demo", "1")).is_none(), "failed");
        assert!(again.of(&recorded).is_none(), "what it made is gone");
        fs::write(&made, "").expect("it is written");
        assert!(again.of(&recorded).is_some());

        assert!(open("b", true).of(&step("sim", "10")).is_none(), "another commit");
        assert!(open("a", true).of(&step("sim", "10")).is_none(), "which took the place of the first");
    }
}
