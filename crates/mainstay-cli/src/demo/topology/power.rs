//! A power cut of one node's machine while the others run on: its directory becomes what the cut could have left.

use super::NODES;
use super::recordings::Recordings;
use super::ring::Ring;
use super::run::{RunFolder, Settings};
use crate::demo::draw::Draw;
use anyhow::Context;
use mainstay_sim::cuts::{CutsOptions, CutsReport, RecordedNode, Unsynced, cuts_of_nodes, image};
use std::fs;
use std::path::Path;

/// Replaces the directory of a dead node by one that a power cut at the moment of its death could have left. What was not synced is
/// all lost, all kept, or lost, kept and torn sector by sector, by chance.
///
/// # Errors
/// Those of the files.
pub(crate) fn cut(
    recordings: &Recordings,
    node: usize,
    directory: &Path,
    draw: &mut Draw,
) -> anyhow::Result<()> {
    let recording = recordings.latest(node);
    if !recordings.of(node).contains(&recording) {
        // It died before it opened what the cut before had left.
        return Ok(());
    }
    let unsynced = match draw.below(4) {
        0 => Unsynced::Lost,
        1 => Unsynced::Kept,
        _ => Unsynced::Mixed,
    };
    let files = image(&recording, unsynced, draw.word())?;
    let replace = || -> std::io::Result<()> {
        if directory.exists() {
            fs::remove_dir_all(directory)?;
        }
        fs::create_dir_all(directory)?;
        files.iter().try_for_each(|(name, bytes)| fs::write(directory.join(name), bytes))
    };
    replace().with_context(|| format!("cannot replace {}", directory.display()))?;
    recordings.begin_next(node)
}

/// Cuts the power of all nodes of a recorded demo at the same moments, and runs the real recovery on what is left.
///
/// # Errors
/// When the recordings cannot be read.
pub(crate) fn check(folder: &Path, options: &CutsOptions) -> anyhow::Result<CutsReport> {
    let settings: Settings = RunFolder::new(folder).settings()?;
    let recordings = Recordings::new(folder);
    let nodes: Vec<RecordedNode> = (0..NODES)
        .map(|node| RecordedNode {
            config: super::node::process_config(&settings, node),
            recordings: recordings.of(node),
        })
        .collect();
    Ok(cuts_of_nodes(&nodes, options, Ring::new)?)
}
