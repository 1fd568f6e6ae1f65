//! 4 KiB records through three pages: bytes per second, beside plain large direct writes to the same pages of the same files and beside
//! copying and checksumming on one core.
//!
//! The same files, because how fast a disk takes a file depends on where it lies: here by up to a quarter (`docs/benchmarks/journal.md`, "Streaming"). The
//! plain writes come second, to blocks that were written a moment before. The floor writes the same three buffers over and over, which a cache holds, and a
//! log's bytes are new each time. So beside it, without a target, stand the same writes of bytes from memory, and a program that also fills its buffers.

use super::{BenchError, INSTANCE, KIND, Setting, add_target, fill_and_recycle, recycle};
use crate::floor::{DirectPlace, DirectStream, copy_and_checksum, fill_and_write};
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

/// What is measured in each round, in this order.
const ARMS: usize = 5;
const OURS: usize = 0;
const FLOOR: usize = 1;
const FROM_MEMORY: usize = 2;
const FILLING: usize = 3;
const COPY: usize = 4;

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), BenchError> {
    let (rounds, bytes) = setting.choose((9, 256 << 20), (41, 512 << 20));
    let geometry = Geometry::default();
    let segments = usize::try_from(bytes / geometry.segment_bytes()).expect("few segments") + 3;
    let log = setting.open_log("streaming", geometry, false, segments)?;
    let payload = [9; PAYLOAD_BYTES];
    fill_and_recycle(&log, &payload, bytes + 2 * geometry.segment_bytes())?;
    let (page_bytes, window) = (geometry.page_bytes as usize, usize::from(geometry.pages));
    let from_caches = DirectStream::from_caches(page_bytes, window);
    let from_memory =
        DirectStream::from_memory(page_bytes, window, usize::try_from(bytes).expect("it fits") / page_bytes);
    // Both aligned: a source a few bytes behind its place modulo 4 KiB makes each load wait for a store it has nothing to do with.
    let source = AlignedBytes::filled(PAYLOAD_BYTES, 9);
    let mut ring = AlignedBytes::filled(page_bytes * window, 1);
    let count = bytes / PAYLOAD_BYTES as u64;
    let mut samples = [(); ARMS].map(|()| Samples::default());
    let mut meters = [(); ARMS].map(|()| Meter::new(setting.directory));
    let mut writes = 0;
    let stats_before = log.stats();
    for round in 0..=rounds {
        let begin = log.end();
        let mut seconds = [0.0; ARMS];
        let appended = timed(&mut meters[OURS], &mut seconds[OURS], || -> Result<Lsn, BenchError> {
            let mut end = begin;
            for _ in 0..count {
                end = log.append(KIND, INSTANCE, &[&payload])?.end;
            }
            log.commit(end, Level::Disk)?;
            Ok(end)
        });
        // What lies there is durable and not read any more: the journal is given up as far as this at the end of the round.
        let pages = whole_pages(&log, &setting.directory.join("streaming"), begin, appended?)?;
        timed(&mut meters[FLOOR], &mut seconds[FLOOR], || from_caches.run(&pages))?;
        timed(&mut meters[FROM_MEMORY], &mut seconds[FROM_MEMORY], || from_memory.run(&pages))?;
        timed(&mut meters[FILLING], &mut seconds[FILLING], || {
            fill_and_write(ring.chunks_exact_mut(page_bytes), &pages, &source)
        })?;
        timed(&mut meters[COPY], &mut seconds[COPY], || {
            std::hint::black_box(copy_and_checksum(&source, &mut ring, count));
        });
        recycle(&log)?;
        if round == 0 {
            // The first round warms up.
            meters = [(); ARMS].map(|()| Meter::new(setting.directory));
            continue;
        }
        let written = pages.len() as u64 * u64::from(geometry.page_bytes);
        writes += pages.len() as u64;
        for (arm, bytes) in [bytes, written, written, written, bytes].into_iter().enumerate() {
            samples[arm].push(bytes as f64 / seconds[arm] / 1e6);
        }
    }
    let stats = log.stats();
    let [ours, floor, copy] = [OURS, FLOOR, COPY].map(|arm| samples[arm].median());
    // By rounds, since the speed of a disk and of its host changes within one run by more than the share is about.
    let shares = samples[OURS].ratios_to(&samples[if floor < copy { FLOOR } else { COPY }]);
    let beside = [FROM_MEMORY, FILLING].map(|arm| samples[OURS].ratios_to(&samples[arm]));
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
    let (pages, page_bytes) = (u32::from(geometry.pages), u64::from(geometry.page_bytes));
    let disk = Some(Level::Disk);
    let mut notes = vec![format!(
        "stall time {:.1} % of ours, buffer full rate {:.1} % (warm-up and recycled slices included), {} appends",
        100.0 * (stats.stall_ns - stats_before.stall_ns) as f64
            / (operations as f64 * PAYLOAD_BYTES as f64 / (ours * 1e6) * 1e9),
        100.0 * stats.full_rate(),
        operations
    )];
    notes.extend(resolution("share of the lower floor", &shares, SHARE_MIN));
    for (name, ratios) in ["direct writes from memory", "the program without a log"].into_iter().zip(&beside)
    {
        notes.extend(resolution(&format!("ours over {name}"), ratios, 1.0));
    }
    for (name, stream) in
        [("floor: direct writes", &from_caches), ("direct writes, bytes from memory", &from_memory)]
    {
        if !stream.in_huge_pages() {
            notes.push(format!("the kernel does not say that the buffers of *{name}* are in huge pages: that arm may be too low"));
        }
    }
    report.figures.push(Figure {
        name: "streaming",
        meaning: format!(
            "{} MB a slice, durable at its end; window counts pages",
            number(bytes as f64 / 1e6)
        ),
        arms: vec![
            arm(OURS, "ours: append, commit at the end", disk, pages, PAYLOAD_BYTES as u64, operations),
            arm(FLOOR, "floor: direct writes to the same pages", disk, pages, page_bytes, writes),
            arm(FROM_MEMORY, "direct writes, bytes from memory", disk, pages, page_bytes, writes),
            arm(FILLING, "without a log: fill, CRC-32C, write", disk, pages, page_bytes, writes),
            arm(COPY, "floor: memcpy + CRC-32C, one core", None, 1, PAYLOAD_BYTES as u64, operations),
        ],
        notes,
    });
    Ok(())
}

fn timed<T>(meter: &mut Meter, seconds: &mut f64, run: impl FnOnce() -> T) -> T {
    let since = Instant::now();
    let outcome = meter.slice(run);
    *seconds = since.elapsed().as_secs_f64();
    outcome
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
