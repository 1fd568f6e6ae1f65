//! Power cuts of a real run: builds from recordings (`docs/power-loss.md`) what a cut could have left at each point, and runs the
//! real opening and recovery on it. Every answer given before the cut must be given again.
//!
//! Points are taken after every completed sync and every acknowledgement, evenly thinned out to a limit. At each, what
//! was not synced is all lost, all kept, and several times lost, kept, reordered and torn sector by sector. The rings are
//! left out: level `Disk` never depends on them.
//!
//! Several nodes are cut at one moment of the machine's clock. That is a consistent cut: what one node did because of another
//! stands behind it in time, as it does in the merged recordings.

mod past;
mod replayed;
mod standing;

pub use crate::disk::Unsynced;

use crate::disk::Disk;
use crate::random::Random;
use mainstay_disk::recording::{Recording, RecordingError};
use mainstay_journal::storage::Storage;
use mainstay_process::acknowledgement::Acknowledgement;
use mainstay_process::config::Config;
use mainstay_process::handler::Handler;
use mainstay_recovery::policy::Failures;
use past::{Merged, Past};
use replayed::Replayed;
use serde::Serialize;
use standing::{Standing, is_new};
use std::path::{Path, PathBuf};

/// How thoroughly to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutsOptions {
    /// Points of the recording, at most.
    pub points_max: usize,
    /// Images at each point whose unsynced writes are lost, kept, reordered and torn by chance.
    pub mixed_images: usize,
    /// Acknowledgements asked for again in each image, at most: the latest, and others by chance.
    pub asked_max: usize,
    /// For the chances.
    pub seed: u64,
}

impl Default for CutsOptions {
    fn default() -> Self {
        Self { points_max: 200, mixed_images: 3, asked_max: 64, seed: 0 }
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CutsReport {
    /// Entries of the recordings.
    pub entries: u64,
    /// Acknowledgements in it that can be asked for again.
    pub acknowledgements: u64,
    /// Whether they must be found after such cuts: with several nodes only where every node's policy survives any number of failures.
    pub answers_promised: bool,
    /// Points at which the power was cut.
    pub points: u64,
    /// Images that recovery was run on.
    pub images: u64,
    /// Answers that were asked for again.
    pub asked: u64,
    /// Images in which something acknowledged was missing, or that were refused.
    pub violations: u64,
    /// The first of them.
    pub first_violation: Option<CutViolation>,
}

/// An image that did not recover what was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CutViolation {
    /// The entry of the recordings, merged, behind which the power was cut; the first is 1.
    pub entry: u64,
    /// What became of unsynced writes: `lost`, `kept` or `mixed`.
    pub unsynced: &'static str,
    /// What was seen.
    pub what: String,
}

/// One node and what it recorded.
#[derive(Clone, Debug)]
pub struct RecordedNode {
    /// What its process was told.
    pub config: Config,
    /// Its recordings in the order of their making: each begins with the directory as it was found.
    pub recordings: Vec<PathBuf>,
}

/// Checks a recording of the service that `config` and `fresh`, a handler in its initial state, describe.
///
/// # Errors
/// [`RecordingError`] when the recording cannot be read; what a cut loses is in the report.
pub fn cuts<H: Handler>(
    recording: &Path,
    options: &CutsOptions,
    config: &Config,
    fresh: impl Fn() -> H,
) -> Result<CutsReport, RecordingError> {
    let alone = RecordedNode { config: config.clone(), recordings: vec![recording.to_owned()] };
    cuts_of_nodes(&[alone], options, |_| fresh())
}

/// Checks the recordings of nodes that talk: the power of all of them is cut at the same moment. `fresh` makes the handler of a node,
/// by its place in `nodes`.
///
/// Where a node's policy survives a limited number of failures, the loss of all is beyond it. What is left to check there: that every
/// journal opens and every node replays what its own directory holds.
///
/// # Errors
/// [`RecordingError`] when a recording cannot be read; what a cut loses is in the report.
pub fn cuts_of_nodes<H: Handler>(
    nodes: &[RecordedNode],
    options: &CutsOptions,
    fresh: impl Fn(usize) -> H,
) -> Result<CutsReport, RecordingError> {
    let points = count_points(nodes)?;
    let stride = points.div_ceil(options.points_max.max(1)).max(1);
    let survives_all =
        nodes.len() == 1 || nodes.iter().all(|node| node.config.policy.survives() == Failures::Any);
    let mut report = CutsReport { answers_promised: survives_all, ..CutsReport::default() };
    let mut random = Random::new(options.seed);
    let mut pasts: Vec<Past> = nodes.iter().map(|_| Past::new(options.seed)).collect();
    let mut merged = Merged::open(nodes)?;
    let mut seen = 0;
    while let Some((node, begins, entry)) = merged.next()? {
        report.entries += 1;
        if !pasts[node].take(begins, entry) {
            continue;
        }
        seen += 1;
        if seen % stride != 0 && seen != points {
            continue;
        }
        report.points += 1;
        let fates = [(Unsynced::Lost, "lost"), (Unsynced::Kept, "kept")];
        let mixed = std::iter::repeat_n((Unsynced::Mixed, "mixed"), options.mixed_images);
        for (unsynced, name) in fates.into_iter().chain(mixed) {
            let images: Vec<Disk> = pasts.iter().map(|past| past.disk.image(unsynced, &mut random)).collect();
            report.images += images.len() as u64;
            let asked = match survives_all {
                true => choose(&pasts, options.asked_max, &mut random),
                false => Vec::new(),
            };
            report.asked += asked.len() as u64;
            if let Err(what) = check(nodes, images, &fresh, &asked, survives_all) {
                report.violations += 1;
                let violation = CutViolation { entry: report.entries, unsynced: name, what };
                report.first_violation.get_or_insert(violation);
            }
        }
    }
    report.acknowledgements = pasts.iter().map(|past| past.acknowledged.len() as u64).sum();
    Ok(report)
}

/// What a power cut behind the last entry of a recording could have left: every file with its content, but for the ring.
///
/// # Errors
/// [`RecordingError`].
pub fn image(
    recording: &Path,
    unsynced: Unsynced,
    seed: u64,
) -> Result<Vec<(String, Vec<u8>)>, RecordingError> {
    let mut replayed = Replayed::new(seed);
    let mut entries = Recording::open(recording)?;
    while let Some(entry) = entries.next_entry()? {
        replayed.take(entry);
    }
    let mut image = replayed.image(unsynced, &mut Random::new(seed));
    let files = image.list().expect("no fuse is set");
    let content = |name: String| {
        let bytes = image.content(&name).expect("it was just listed").to_vec();
        (name, bytes)
    };
    Ok(files.into_iter().map(|file| content(file.name)).collect())
}

fn count_points(nodes: &[RecordedNode]) -> Result<usize, RecordingError> {
    let mut pasts: Vec<Past> = nodes.iter().map(|_| Past::new(0)).collect();
    let mut merged = Merged::open(nodes)?;
    let mut points = 0;
    while let Some((node, begins, entry)) = merged.next()? {
        points += usize::from(pasts[node].take(begins, entry));
    }
    Ok(points)
}

/// Of each node the latest half, and others by chance.
fn choose<'a>(pasts: &'a [Past], most: usize, random: &mut Random) -> Vec<(usize, &'a Acknowledgement)> {
    let most = most / pasts.len();
    let mut chosen = Vec::new();
    for (node, past) in pasts.iter().enumerate() {
        let acknowledged = &past.acknowledged;
        let latest = acknowledged.len().saturating_sub(most / 2);
        chosen.extend(acknowledged[latest..].iter().map(|latest| (node, latest)));
        if latest > 0 {
            chosen.extend((0..most - most / 2).map(|_| (node, &acknowledged[random.index(latest)])));
        }
    }
    chosen
}

/// Opens and recovers the images and asks for every answer again.
fn check<H: Handler>(
    nodes: &[RecordedNode],
    images: Vec<Disk>,
    fresh: &dyn Fn(usize) -> H,
    asked: &[(usize, &Acknowledgement)],
    survives_all: bool,
) -> Result<(), String> {
    if let Some((node, _)) = asked.iter().find(|(node, _)| is_new(&images[*node])) {
        return Err(format!("the journal of node {node} is gone, counted from 0"));
    }
    let mut standing = Standing::recover(nodes, images, fresh)?;
    if !survives_all {
        return Ok(());
    }
    standing.talk()?;
    asked.iter().try_for_each(|(node, acknowledged)| standing.ask_again(*node, acknowledged))
}
