//! One journal directory and several (Zhao 2014, figures 2.14 to 2.16, with several disks).

use super::server::{append, open_striped, recycle};
use super::{LoggingCostError, Setting};
use crate::machine::Meter;
use crate::report::{Arm, Figure, Report, Samples};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::options::OpenOptions;
use mainstay_types::level::Level;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Instant;

/// The name of the figure.
pub(super) const NAME: &str = "stripes";

/// Directories of the journal.
const DIRECTORIES: [u16; 3] = [1, 2, 4];

/// Bytes of each message, and how many share one durable write: alone, and as many as fill several pages.
const STREAMS: [(usize, u32); 2] = [(100, 1), (100_000, 120)];

/// One page in a segment: the pages that are written at the same time go to different directories.
const GEOMETRY: Geometry = Geometry { page_bytes: 4 << 20, pages: 4, segment_pages: 1 };

/// Segments that each journal keeps for reuse, over all its directories: more than a round fills.
const FREE_SEGMENTS: usize = 64;

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), LoggingCostError> {
    let (rounds, commits) = setting.choose((4, 20), (4, 10));
    let mut devices = BTreeSet::new();
    let mut logs = Vec::new();
    for count in DIRECTORIES {
        let first = setting.directory.join(format!("{NAME}-{count}"));
        let stripes: Vec<PathBuf> =
            (1..count).map(|stripe| setting.directory.join(format!("{NAME}-{count}-{stripe}"))).collect();
        // As many in all for each: a journal that had to make segments anew would be slower for that alone.
        let free_segments_max = FREE_SEGMENTS / usize::from(count);
        let options = OpenOptions { geometry: GEOMETRY, free_segments_max, ..OpenOptions::default() };
        logs.push(open_striped(&first, options, stripes.clone())?);
        for directory in stripes.iter().chain([&first]) {
            devices.insert(std::fs::metadata(directory)?.dev());
        }
    }
    let mut arms = Vec::new();
    for (payload_bytes, batch) in STREAMS {
        let body = vec![7; payload_bytes];
        let mut samples = DIRECTORIES.map(|_| Samples::default());
        let mut meters = DIRECTORIES.map(|_| Meter::new(setting.directory));
        for round in 0..=rounds {
            for ((log, samples), meter) in logs.iter().zip(&mut samples).zip(&mut meters) {
                let mut taken = Samples::default();
                let mut slice = || -> Result<(), LoggingCostError> {
                    for _ in 0..commits {
                        let since = Instant::now();
                        let mut end = log.end();
                        for _ in 0..batch {
                            end = append(log, &body)?;
                        }
                        log.commit(end, Level::Disk)?;
                        taken.push(since.elapsed().as_secs_f64() * 1e6 / f64::from(batch));
                    }
                    Ok(())
                };
                // The first round makes the segments that later ones recycle.
                if round == 0 {
                    slice()?;
                } else {
                    meter.slice(slice)?;
                    samples.extend(taken.values().iter().copied());
                }
                recycle(log)?;
            }
        }
        for ((count, samples), meter) in DIRECTORIES.into_iter().zip(samples).zip(meters) {
            let operations = samples.values().len() as u64 * u64::from(batch);
            arms.push(Arm {
                name: format!("{payload_bytes} B, {batch} in one commit, directories: {count}"),
                level: Some(Level::Disk),
                window: batch,
                payload_bytes: payload_bytes as u64,
                unit: "us",
                operations,
                cpu_ns_per_operation: Some(meter.cpu_ns_per_operation(operations)),
                disk: meter.disk(),
                samples,
            });
        }
    }
    let on = match devices.len() {
        1 => "all directories lie on one file system of one device here: what stripes gain in bandwidth is not measured".to_owned(),
        count => format!("the directories lie on {count} devices"),
    };
    report.figures.push(Figure {
        name: NAME,
        meaning:
            "logging latency per message, the journal striped over so many directories, segments of one page"
                .to_owned(),
        arms,
        notes: vec![on],
    });
    Ok(())
}
