//! 4 KiB records through three pages: bytes per second, beside plain large direct writes to the same pages of the same files and beside
//! copying and checksumming on one core.
//!
//! The same files, because how fast a disk takes a file depends on where it lies: here by up to a quarter (`docs/benchmarks/journal.md`, "Streaming"). The
//! plain writes come second, to blocks that were written a moment before.

use super::{BenchError, INSTANCE, KIND, Setting, add_target, fill_and_recycle, recycle};
use crate::floor::{DirectPlace, DirectStream, copy_and_checksum};
use crate::machine::Meter;
use crate::report::{Arm, Bound, Figure, Report, Samples, Target, number, resolution};
use crate::scratch::AlignedBytes;
use mainstay_disk::log::Log;
use mainstay_journal::geometry::Geometry;
use mainstay_types::id::Lsn;
use mainstay_types::level::Level;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const PAYLOAD_BYTES: usize = 4096;

/// Least share of the lower of the two floors.
const SHARE_MIN: f64 = 0.9;

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), BenchError> {
    let (rounds, bytes) = setting.choose((9, 256 << 20), (41, 512 << 20));
    let geometry = Geometry::default();
    let segments = usize::try_from(bytes / geometry.segment_bytes()).expect("few segments") + 3;
    let log = setting.open_log("streaming", geometry, false, segments)?;
    let payload = [9; PAYLOAD_BYTES];
    fill_and_recycle(&log, &payload, bytes + 2 * geometry.segment_bytes())?;
    let direct = DirectStream::new(geometry.page_bytes as usize, usize::from(geometry.pages));
    // Both aligned: a source a few bytes behind its place modulo 4 KiB makes each load wait for a store it has nothing to do with.
    let source = AlignedBytes::filled(PAYLOAD_BYTES, 9);
    let mut ring = AlignedBytes::filled(geometry.page_bytes as usize * usize::from(geometry.pages), 1);
    let count = bytes / PAYLOAD_BYTES as u64;
    let mut samples = [Samples::default(), Samples::default(), Samples::default()];
    let mut meters = [(); 3].map(|()| Meter::new(setting.directory));
    let mut plain_writes = 0;
    let stats_before = log.stats();
    for round in 0..=rounds {
        let begin = log.end();
        let since = Instant::now();
        let appended = meters[0].slice(|| -> Result<Lsn, BenchError> {
            let mut end = begin;
            for _ in 0..count {
                end = log.append(KIND, INSTANCE, &[&payload])?.end;
            }
            log.commit(end, Level::Disk)?;
            Ok(end)
        });
        let ours_seconds = since.elapsed().as_secs_f64();
        // What lies there is durable and not read any more: the journal is given up as far as this at the end of the round.
        let pages = whole_pages(&log, &setting.directory.join("streaming"), begin, appended?)?;
        let since = Instant::now();
        meters[1].slice(|| direct.run(&pages))?;
        let plain_seconds = since.elapsed().as_secs_f64();
        let since = Instant::now();
        meters[2].slice(|| std::hint::black_box(copy_and_checksum(&source, &mut ring, count)));
        let memory_seconds = since.elapsed().as_secs_f64();
        recycle(&log)?;
        if round == 0 {
            // The first round warms up.
            meters = [(); 3].map(|()| Meter::new(setting.directory));
            continue;
        }
        let plain_bytes = pages.len() as u64 * u64::from(geometry.page_bytes);
        plain_writes += pages.len() as u64;
        let rate = |bytes: u64, seconds: f64| bytes as f64 / seconds / 1e6;
        samples[0].push(rate(bytes, ours_seconds));
        samples[1].push(rate(plain_bytes, plain_seconds));
        samples[2].push(rate(bytes, memory_seconds));
    }
    let stats = log.stats();
    let [ours, plain, memory] = [0, 1, 2].map(|index: usize| samples[index].median());
    // By rounds, since the speed of a disk and of its host changes within one run by more than the share is about.
    let shares = samples[0].ratios_to(&samples[if plain < memory { 1 } else { 2 }]);
    add_target(
        report,
        Target::new(
            "streaming 4 KiB through 3 pages: share of the lower floor",
            shares.median(),
            Bound::AtLeast,
            SHARE_MIN,
            "x",
            Some(Level::Disk),
        ),
    );
    let operations = rounds * count;
    let mut arm = |index: usize, name: &str, level, window, payload_bytes, operations| Arm {
        name: name.to_owned(),
        level,
        window,
        payload_bytes,
        unit: "MB/s",
        operations,
        cpu_ns_per_operation: Some(meters[index].cpu_ns_per_operation(operations)),
        disk: meters[index].disk(),
        samples: std::mem::take(&mut samples[index]),
    };
    let pages = u32::from(geometry.pages);
    let mut notes = vec![format!(
        "stall time {:.1} % of ours, buffer full rate {:.1} % (warm-up and recycled slices included), {} appends",
        100.0 * (stats.stall_ns - stats_before.stall_ns) as f64
            / (operations as f64 * PAYLOAD_BYTES as f64 / (ours * 1e6) * 1e9),
        100.0 * stats.full_rate(),
        operations
    )];
    notes.extend(resolution("share of the lower floor", &shares, SHARE_MIN));
    if !direct.in_huge_pages() {
        notes.push(
            "the kernel does not say that the direct floor's buffers are in huge pages: it may be too low; then the share says nothing"
                .to_owned(),
        );
    }
    report.figures.push(Figure {
        name: "streaming",
        meaning: format!(
            "{} MB a slice, durable at its end; window counts pages",
            number(bytes as f64 / 1e6)
        ),
        arms: vec![
            arm(
                0,
                "ours: append, commit at the end",
                Some(Level::Disk),
                pages,
                PAYLOAD_BYTES as u64,
                operations,
            ),
            arm(
                1,
                "floor: direct writes to the same pages",
                Some(Level::Disk),
                pages,
                u64::from(geometry.page_bytes),
                plain_writes,
            ),
            arm(2, "floor: memcpy + CRC-32C, one core", None, 1, PAYLOAD_BYTES as u64, operations),
        ],
        notes,
    });
    Ok(())
}

/// The pages that lie wholly within `from..to`.
fn whole_pages(log: &Log, directory: &Path, from: Lsn, to: Lsn) -> io::Result<Vec<DirectPlace>> {
    let catalog = log.disk().catalog();
    let geometry = catalog.geometry();
    let first = geometry.page_of(from) + u64::from(geometry.offset_in_page(from) > 0);
    let mut files = BTreeMap::new();
    let mut places = Vec::new();
    for page in first..geometry.page_of(to) {
        let place = geometry.place_of(geometry.page_start(page));
        let file = match files.get(&place.segment) {
            Some(file) => Arc::clone(file),
            None => {
                let name = catalog.file_of(place.segment).expect("what was just written is there");
                let file = Arc::new(DirectStream::open(&directory.join(name))?);
                files.insert(place.segment, Arc::clone(&file));
                file
            }
        };
        places.push(DirectPlace { file, offset: place.offset });
    }
    Ok(places)
}
