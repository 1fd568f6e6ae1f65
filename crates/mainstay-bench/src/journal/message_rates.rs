//! Lee's table (Cornell CS717, 2001): a process that computes and logs what it sends, with buffering only and with 1, 2 and 3
//! pages: overhead over not logging, stall time, and how often the writer found every page full.

use super::{BenchError, INSTANCE, KIND, Setting, fill_and_recycle, recycle};
use crate::report::{PAIRS_MIN, Report, Samples, Table};
use mainstay_disk::log::Log;
use mainstay_journal::geometry::Geometry;
use mainstay_types::level::Level;
use std::time::{Duration, Instant};

const PAYLOAD_BYTES: usize = 4096;

/// Messages per second of a process that does not log: 0.4, 82, 410 and 1,640 MB/s. Lee's applications sent 0.3 to
/// 1.5 MB/s to disks of 8 to 50 MB/s.
const RATES: [u64; 4] = [100, 20_000, 100_000, 400_000];

/// Messages between two looks at the clock.
const CHUNK: u64 = 16;

struct Arm {
    name: &'static str,
    log: Option<Log>,
}

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), BenchError> {
    let (rounds, slice) = setting.choose((8, Duration::from_millis(60)), (24, Duration::from_millis(250)));
    let payload = [13; PAYLOAD_BYTES];
    let arms = arms(setting, &payload, slice)?;
    let mut rows = Vec::new();
    for rate in RATES {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive count")]
        let messages = ((rate as f64 * slice.as_secs_f64()) as u64).next_multiple_of(CHUNK).max(CHUNK);
        let work = calibrate(rate);
        let mut seconds = [(); 5].map(|()| Samples::default());
        let before = arms.each_ref().map(|arm| arm.log.as_ref().map(Log::stats));
        for _ in 0..rounds {
            for (arm, seconds) in arms.iter().zip(&mut seconds) {
                seconds.push(run(arm, messages, work, &payload)?);
                if let Some(log) = arm.log.as_ref().filter(|_| arm.name != BUFFER_ONLY) {
                    recycle(log)?;
                }
            }
        }
        for ((arm, taken), before) in arms.iter().zip(&seconds).zip(before) {
            let mut overheads = Samples::default();
            overheads.extend(
                taken
                    .values()
                    .iter()
                    .zip(seconds[0].values())
                    .map(|(ours, base)| 100.0 * (ours / base - 1.0)),
            );
            let (mean, bound) = overheads.mean_with_bound();
            let overhead = match (arm.name == BASE, bound) {
                (true, _) => "-".to_owned(),
                (_, None) => format!("{mean:+.1} (not resolved: below {PAIRS_MIN} pairs)"),
                (_, Some(bound)) if mean.abs() < bound => format!("{mean:+.1} ± {bound:.1} (not resolved)"),
                (_, Some(bound)) => format!("{mean:+.1} ± {bound:.1}"),
            };
            let (stall, full) = match (&arm.log, before) {
                (Some(log), Some(before)) => {
                    let after = log.stats();
                    let total_ns = taken.values().iter().sum::<f64>() * 1e9;
                    let pages = after.journal.pages_closed - before.journal.pages_closed;
                    let stalled = after.stalled_appends - before.stalled_appends;
                    let full = if pages == 0 {
                        "N/A".to_owned()
                    } else {
                        format!("{:.1}", 100.0 * stalled as f64 / pages as f64)
                    };
                    (format!("{:.2}", 100.0 * (after.stall_ns - before.stall_ns) as f64 / total_ns), full)
                }
                _ => ("-".to_owned(), "-".to_owned()),
            };
            rows.push(vec![
                rate.to_string(),
                format!("{:.1}", (rate * PAYLOAD_BYTES as u64) as f64 / 1e6),
                arm.name.to_owned(),
                format!("{:.2}", taken.median() * 1e3),
                overhead,
                stall,
                full,
            ]);
        }
    }
    let columns =
        ["messages/s", "MB/s", "arm", "median ms", "overhead %", "stall time %", "buffer full rate %"];
    report.tables.push(Table {
        name: "message rates",
        meaning: format!(
            "a process that computes and logs messages of 4 KiB, level process, pages of 4 MiB; {rounds} paired \
             slices, overhead over not logging as mean ± 95 % bound"
        ),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    });
    Ok(())
}

const BASE: &str = "base: not logging";
const BUFFER_ONLY: &str = "buffering only";

fn arms(setting: &Setting<'_>, payload: &[u8], slice: Duration) -> Result<[Arm; 5], BenchError> {
    let highest = RATES.iter().max().expect("some rate");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive count")]
    let bytes = (*highest as f64 * slice.as_secs_f64()) as u64 * (PAYLOAD_BYTES as u64 + 64);
    let open = |name: &'static str, pages: u16, buffer_only: bool| -> Result<Arm, BenchError> {
        let geometry = Geometry { pages, ..Geometry::default() };
        let segments = usize::try_from(bytes / geometry.segment_bytes()).expect("few segments") + 3;
        let folder = format!("rates-{pages}{}", if buffer_only { "-buffer-only" } else { "" });
        let log = setting.open_log(&folder, geometry, buffer_only, segments)?;
        if !buffer_only {
            fill_and_recycle(&log, payload, bytes + 2 * geometry.segment_bytes())?;
        }
        Ok(Arm { name, log: Some(log) })
    };
    Ok([
        Arm { name: BASE, log: None },
        open(BUFFER_ONLY, 3, true)?,
        open("4 MiB x 1", 1, false)?,
        open("4 MiB x 2", 2, false)?,
        open("4 MiB x 3", 3, false)?,
    ])
}

/// Computes and sends `messages`; seconds from the first to the last. The log is at level `Process`: whatever is
/// still being written at the end is not waited for, as with Lee.
fn run(arm: &Arm, messages: u64, work: u64, payload: &[u8]) -> Result<f64, BenchError> {
    let since = Instant::now();
    for _ in 0..messages {
        std::hint::black_box(compute(work));
        if let Some(log) = &arm.log {
            let appended = log.append(KIND, INSTANCE, &[payload])?;
            log.commit(appended.end, Level::Process)?;
        }
    }
    Ok(since.elapsed().as_secs_f64())
}

/// Steps of computation that take as long as one message at `rate` allows.
fn calibrate(rate: u64) -> u64 {
    let steps = 2_000_000;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let since = Instant::now();
        std::hint::black_box(compute(steps));
        best = best.min(since.elapsed().as_secs_f64());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive count of steps")]
    let work = (steps as f64 / best / rate as f64) as u64;
    work
}

/// A chain of multiplications that no compiler shortens and no memory slows down.
fn compute(steps: u64) -> u64 {
    (0..steps).fold(1, |state: u64, _| {
        std::hint::black_box(
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407),
        )
    })
}
