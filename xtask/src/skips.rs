//! What did not run here, by name, gathered from the output of tests and from steps that lack what they need.

/// Collects what tests skipped from their output.
///
/// A test that cannot run here prints a line `skipped: WHAT: WHY` and passes, or is ignored with a reason. The test
/// harness shows output of passed tests only in a section of its own, of which nothing else is let through. What is ignored
/// as `not a test: …` (a program that tests start) is no skip.
#[derive(Debug, Default)]
pub(crate) struct Skips {
    in_successes: bool,
    /// `WHAT: WHY`, each once.
    pub(crate) lines: Vec<String>,
}

impl Skips {
    /// Takes note of a line of output; whether it is for the screen.
    pub(crate) fn take(&mut self, line: &str) -> bool {
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

    /// Takes note of what was skipped and why.
    pub(crate) fn add(&mut self, what: &str) {
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
}
