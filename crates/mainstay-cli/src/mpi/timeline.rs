//! `mainstay mpi timeline`: a run as a page for a browser.

use super::DAMAGED;
use crate::verdict::Verdict;
use anyhow::Context;
use mainstay_mpi::command::replay::default_folder;
use mainstay_mpi::command::timeline::{Limits, timeline};
use mainstay_mpi::run::Run;
use std::path::PathBuf;

/// `mainstay mpi timeline`.
#[derive(Debug, clap::Args)]
pub(crate) struct Timeline {
    /// Folder of the run.
    #[arg(value_name = "RUN", default_value = default_folder().as_os_str())]
    run: PathBuf,
    /// The page.
    #[arg(long, value_name = "FILE.html", default_value = "timeline.html")]
    output: PathBuf,
    /// Most bars: beyond it neighbouring calls of a rank are drawn as one.
    #[arg(long, value_name = "N", default_value_t = Limits::default().bars_max)]
    bars: usize,
    /// Most messages: beyond it every second, third, … is drawn.
    #[arg(long, value_name = "N", default_value_t = Limits::default().messages_max)]
    messages: usize,
}

pub(super) fn run(options: &Timeline) -> anyhow::Result<Verdict> {
    let run = Run::open(&options.run)?;
    let made = timeline(&run, Limits { bars_max: options.bars, messages_max: options.messages })?;
    std::fs::write(&options.output, made.page).with_context(|| format!("{}", options.output.display()))?;
    eprintln!("mainstay: {}: open it in a browser", options.output.display());
    for damage in &made.damage {
        eprintln!("mainstay: {damage}; it is drawn up to there");
    }
    Ok(if made.damage.is_empty() { Verdict::Clean } else { DAMAGED })
}
