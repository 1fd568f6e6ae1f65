//! `mainstay mpi extract`: a bundle of one rank, to be replayed anywhere.

use crate::verdict::Verdict;
use mainstay_mpi::command::extract::extract;
use mainstay_mpi::command::replay::default_folder;
use std::path::PathBuf;

/// `mainstay mpi extract`.
#[derive(Debug, clap::Args)]
pub(crate) struct Extract {
    /// Folder of the run.
    #[arg(value_name = "RUN", default_value = default_folder().as_os_str())]
    run: PathBuf,
    /// The rank.
    #[arg(long)]
    rank: u32,
    /// Folder for the bundle, not there yet or empty [default: RUN-rank-R].
    #[arg(long, value_name = "BUNDLE")]
    output: Option<PathBuf>,
    /// Remove a bundle that is in that folder first.
    #[arg(long)]
    overwrite: bool,
}

/// Makes the bundle and says what is in it.
///
/// # Errors
/// When none could be made; then its folder is not there.
pub(crate) fn run(options: Extract) -> anyhow::Result<Verdict> {
    let Extract { run, rank, output, overwrite } = options;
    let output = output.unwrap_or_else(|| {
        let mut name = run.file_name().unwrap_or(default_folder().as_os_str()).to_owned();
        name.push(format!("-rank-{rank}"));
        PathBuf::from(name)
    });
    let made = extract(&run, rank, &output, overwrite)?;
    let (log, contents) = (&made.assembled, &made.contents);
    println!("{}: rank {rank}, {} calls, {} libraries", output.display(), log.calls, contents.libraries);
    if log.messages > 0 {
        println!("  {} messages with {} bytes came from the senders' logs", log.messages, log.bytes);
    }
    for input in &contents.inputs {
        println!("  not in it, its hash only: {input}");
    }
    for library in &contents.missing {
        println!("  not in it, for it is gone: {}", library.display());
    }
    if let Some(cut) = &log.cut {
        println!("  the log ends early: {cut}");
    }
    println!("replay it with: mainstay mpi replay {}", output.display());
    Ok(Verdict::Clean)
}
