//! `mainstay restore`: a node's directory from its part in a snapshot.

use super::line::Line;
use crate::verdict::{UsageError, Verdict};
use anyhow::Context;
use mainstay_disk::file_storage::FileStorage;
use mainstay_disk::open::draw_store_id;
use mainstay_journal::options::OpenOptions;
use mainstay_process::part;
use mainstay_types::id::NodeId;
use std::fs;
use std::path::PathBuf;

/// `mainstay restore`.
#[derive(Debug, clap::Args)]
pub(crate) struct Restore {
    /// The snapshot.
    directory: PathBuf,
    /// The node, by its number.
    #[arg(long)]
    node: u32,
    /// Its new directory: one that does not exist yet, or is empty.
    #[arg(long, value_name = "NODE_DIRECTORY")]
    to: PathBuf,
}

/// Runs it.
///
/// # Errors
/// When the snapshot cannot be used, or the directory not be written; then there is none.
pub(crate) fn run(options: &Restore) -> anyhow::Result<Verdict> {
    let Restore { directory, node, to } = options;
    let node = NodeId(*node);
    let line = Line::read(directory)?;
    let Some(bytes) = line.bytes(node)? else {
        let explanation =
            format!("{} has no part of {node}; it has nodes {}", directory.display(), line.nodes());
        return Err(UsageError { explanation }.into());
    };
    if fs::read_dir(to).is_ok_and(|mut files| files.next().is_some()) || to.is_file() {
        let explanation =
            format!("{} is not empty: a restored node goes on in a directory of its own", to.display());
        return Err(UsageError { explanation }.into());
    }
    let name = to.file_name().context("the new directory has no name")?.to_string_lossy().into_owned();
    let partial = to.with_file_name(format!("{name}.partial"));
    let writes = || format!("{} cannot be written", to.display());
    fs::create_dir_all(&partial).with_context(writes)?;
    let life = part::next_life(line.parts(), node);
    let restored = (|| {
        let options = OpenOptions { new_store: draw_store_id()?, ..OpenOptions::default() };
        part::restore(&bytes, &mut FileStorage::new(&partial), &options, life)?;
        // Over an empty directory, if there is one.
        fs::rename(&partial, to)?;
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        fs::File::open(parent.unwrap_or(std::path::Path::new(".")))?.sync_all()?;
        anyhow::Ok(())
    })();
    if restored.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    restored.with_context(writes)?;
    println!(
        "{}: {node} as in snapshot {}, to go on in life {}. Restore every node of the cluster before any is started; the directories they \
         ran in until now are refused by these",
        to.display(),
        line.manifest().snapshot,
        life.0
    );
    Ok(Verdict::Clean)
}
