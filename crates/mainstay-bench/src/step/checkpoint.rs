//! How long a process stands still for a checkpoint (the fork), by the size of its state, and how long the child then writes.

use super::{Setting, StepError};
use crate::report::{Bound, Report, Samples, Table, Target, number};
use mainstay_process::checkpoint::Saved;
use mainstay_runtime::checkpoint_writer::CheckpointWriter;
use mainstay_types::level::Level;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Sizes of state, in megabytes.
const SIZES_MB: [u64; 4] = [1, 16, 64, 256];

/// The size that the target is for.
const TARGET_SIZE_MB: u64 = 64;

/// Longest pause at that size, in milliseconds.
const PAUSE_MS_MAX: f64 = 20.0;

/// Bytes of one entry of the state: small ones, as a map of accounts has.
const ENTRY_BYTES: u64 = 100;

/// How long a child may write.
const WRITE_MAX: Duration = Duration::from_secs(60);

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), StepError> {
    let rounds = setting.choose(7, 21);
    let path = setting.directory.join("checkpoint");
    let mut rows = Vec::new();
    for size_mb in SIZES_MB {
        let entries = size_mb * 1_000_000 / ENTRY_BYTES;
        let state: BTreeMap<u64, Vec<u8>> =
            (0..entries).map(|key| (key, vec![7; usize::try_from(ENTRY_BYTES).expect("small")])).collect();
        let (mut pause_ms, mut whole_ms) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            let since = Instant::now();
            let writer = CheckpointWriter::fork(&path, |into| {
                let mut bytes = 0;
                for entry in state.values() {
                    into.write_all(entry)?;
                    bytes += ENTRY_BYTES;
                }
                Ok(Saved { state_hash: 0, bytes })
            })?;
            pause_ms.push(since.elapsed().as_secs_f64() * 1e3);
            writer.wait(WRITE_MAX)?;
            whole_ms.push(since.elapsed().as_secs_f64() * 1e3);
            std::fs::remove_file(&path)?;
        }
        if size_mb == TARGET_SIZE_MB {
            let name = "checkpoint of 64 MB: longest pause";
            let longest = pause_ms.quantile(1.0);
            report.targets.push(Target::new(
                name,
                longest,
                Bound::AtMost,
                PAUSE_MS_MAX,
                "ms",
                Some(Level::Disk),
            ));
        }
        rows.push(vec![
            size_mb.to_string(),
            number(pause_ms.median()),
            number(pause_ms.quantile(1.0)),
            number(whole_ms.median()),
        ]);
    }
    report.tables.push(Table {
        name: "checkpoint",
        meaning: format!("a map of {ENTRY_BYTES} B entries, {rounds} checkpoints each, written and synced by a forked child"),
        columns: ["MB of state", "pause ms, median", "pause ms, longest", "until synced ms, median"]
            .map(str::to_owned)
            .to_vec(),
        rows,
    });
    Ok(())
}
