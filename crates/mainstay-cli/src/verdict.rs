//! How a command ends, and the exit code that says so.

use std::process::ExitCode;

/// Text for the end of every help page.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 all is well; 1 something is wrong with what was looked at (damage, a loss, \
                              a target missed); 2 the command line is wrong; 3 the environment failed (files, network, \
                              permissions)";

/// A command came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is wrong.
    Clean,
    /// What was looked at is not as it should be; the command has said what.
    Wrong,
    /// Something that the help of the command names, with an exit code of its own.
    Named(u8),
}

/// The values given on the command line cannot be used together, or not at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{explanation}")]
pub(crate) struct UsageError {
    /// What is wrong and what would be right.
    pub(crate) explanation: String,
}

/// An error with its causes, each once: some name theirs themselves.
fn whole(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(&format!(": {cause}"));
        }
    }
    text
}

/// The exit code of a command, after its error, if any, has been printed.
#[must_use]
pub(crate) fn exit_code(ended: anyhow::Result<Verdict>) -> ExitCode {
    match ended {
        Ok(Verdict::Clean) => ExitCode::SUCCESS,
        Ok(Verdict::Wrong) => ExitCode::from(1),
        Ok(Verdict::Named(code)) => ExitCode::from(code),
        Err(error) => {
            eprintln!("mainstay: {}", whole(&error));
            ExitCode::from(if error.is::<UsageError>() { 2 } else { 3 })
        }
    }
}
