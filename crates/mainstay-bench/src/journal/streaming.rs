//! 4 KiB records through three pages: bytes per second, beside plain large direct writes and beside copying and
//! checksumming on one core.

use super::{BenchError, INSTANCE, KIND, Setting, add_target, fill_and_recycle, recycle};
use crate::floor::{DirectStream, copy_and_checksum};
use crate::machine::Meter;
use crate::report::{Arm, Bound, Figure, Report, Samples, Target, number};
use crate::scratch::AlignedBytes;
use mainstay_journal::geometry::Geometry;
use mainstay_types::level::Level;
use std::time::Instant;

const PAYLOAD_BYTES: usize = 4096;

/// Least share of the lower of the two floors.
const SHARE_MIN: f64 = 0.9;

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), BenchError> {
    let (rounds, bytes) = setting.choose((9, 256 << 20), (25, 512 << 20));
    let geometry = Geometry::default();
    let segments = usize::try_from(bytes / geometry.segment_bytes()).expect("few segments") + 3;
    let log = setting.open_log("streaming", geometry, false, segments)?;
    let payload = [9; PAYLOAD_BYTES];
    fill_and_recycle(&log, &payload, bytes + 2 * geometry.segment_bytes())?;
    let direct = DirectStream::create(
        &setting.directory.join("streaming-direct"),
        bytes,
        geometry.page_bytes as usize,
        usize::from(geometry.pages),
    )?;
    // Both aligned: a source a few bytes behind its place modulo 4 KiB makes each load wait for a store it has nothing to do with.
    let source = AlignedBytes::filled(PAYLOAD_BYTES, 9);
    let mut ring = AlignedBytes::filled(geometry.page_bytes as usize * usize::from(geometry.pages), 1);
    let count = bytes / PAYLOAD_BYTES as u64;
    let mut samples = [Samples::default(), Samples::default(), Samples::default()];
    let mut meters = [(); 3].map(|()| Meter::new(setting.directory));
    let stats_before = log.stats();
    for round in 0..=rounds {
        let mut ours = || -> Result<(), BenchError> {
            let mut end = log.end();
            for _ in 0..count {
                end = log.append(KIND, INSTANCE, &[&payload])?.end;
            }
            Ok(log.commit(end, Level::Disk)?)
        };
        let mut plain = || Ok(direct.run(bytes)?);
        let mut memory = || {
            std::hint::black_box(copy_and_checksum(&source, &mut ring, count));
            Ok(())
        };
        let arms: [&mut dyn FnMut() -> Result<(), BenchError>; 3] = [&mut ours, &mut plain, &mut memory];
        for (index, arm) in arms.into_iter().enumerate() {
            let since = Instant::now();
            if round == 0 {
                arm()?;
                continue;
            }
            meters[index].slice(arm)?;
            samples[index].push((count * PAYLOAD_BYTES as u64) as f64 / since.elapsed().as_secs_f64() / 1e6);
        }
        recycle(&log)?;
    }
    let stats = log.stats();
    let [ours, plain, memory] = [0, 1, 2].map(|index: usize| samples[index].median());
    add_target(
        report,
        Target::new(
            "streaming 4 KiB through 3 pages: share of the lower floor",
            ours / plain.min(memory),
            Bound::AtLeast,
            SHARE_MIN,
            "x",
            Some(Level::Disk),
        ),
    );
    let operations = rounds * count;
    let mut arm = |index: usize, name: &str, level, window, payload_bytes: u64| Arm {
        name: name.to_owned(),
        level,
        window,
        payload_bytes,
        unit: "MB/s",
        operations: rounds * bytes / payload_bytes,
        cpu_ns_per_operation: Some(meters[index].cpu_ns_per_operation(rounds * bytes / payload_bytes)),
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
            arm(0, "ours: append, commit at the end", Some(Level::Disk), pages, PAYLOAD_BYTES as u64),
            arm(
                1,
                "floor: direct writes + fdatasync",
                Some(Level::Disk),
                pages,
                u64::from(geometry.page_bytes),
            ),
            arm(2, "floor: memcpy + CRC-32C, one core", None, 1, PAYLOAD_BYTES as u64),
        ],
        notes,
    });
    Ok(())
}
