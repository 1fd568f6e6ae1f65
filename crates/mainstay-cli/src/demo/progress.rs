//! How far a demo is: a bar on a terminal, a plain line now and then elsewhere. On standard error; the table alone goes
//! to standard output.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows progress.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    said: Instant,
    requests: u64,
    kills: u64,
}

impl Progress {
    /// Of a demo with so many requests and kills to come.
    #[must_use]
    pub(crate) fn new(requests: u64, kills: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("  {bar:40} {pos}/{len} requests answered, {msg}  {elapsed}")
                    .expect("the template is well-formed");
            ProgressBar::new(requests).with_style(style)
        });
        Self { bar, said: Instant::now(), requests, kills }
    }

    /// So much is done.
    pub(crate) fn show(&mut self, answered: u64, killed: u64) {
        let kills = format!("{killed}/{} kills", self.kills);
        match &self.bar {
            Some(bar) => {
                bar.set_message(kills);
                bar.set_position(answered);
            }
            None if self.said.elapsed() >= LINE_EVERY => {
                self.said = Instant::now();
                eprintln!("  {answered}/{} requests answered, {kills}", self.requests);
            }
            None => {}
        }
    }

    /// No more.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
