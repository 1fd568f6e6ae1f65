//! What a check reports: which rule is broken, where, and what to do about it.

use std::fmt;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Short name of the rule, as in the table of `CONTRIBUTING.md`.
    pub rule: &'static str,
    /// File and line, or a manifest.
    pub place: String,
    /// What was found there.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.rule, self.place)?;
        writeln!(f, "    found:  {}", self.what)?;
        write!(f, "    remedy: {}", self.remedy)
    }
}
