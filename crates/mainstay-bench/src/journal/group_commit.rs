//! 64 writers, one outstanding record each: durable appends per second, beside the syncs per second of the same bytes.

use super::{BenchError, INSTANCE, KIND, Setting, add_target, nanoseconds};
use crate::floor::{BLOCK_BYTES, DurableWrite, FloorFile};
use crate::machine::Meter;
use crate::report::{Arm, Bound, Figure, Report, Samples, Target};
use mainstay_disk::log::Log;
use mainstay_journal::geometry::Geometry;
use mainstay_types::level::Level;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WRITERS: usize = 64;

const PAYLOAD_BYTES: usize = 128;

/// Durable appends per second that are enough whatever the disk.
const RATE_ENOUGH: f64 = 200_000.0;

/// Share of what the floor's syncs could carry with every writer in each.
const SHARE_MIN: f64 = 0.7;

/// Largest write of the floor: a batch is 64 records, so far less.
const FLOOR_WRITE_BYTES_MAX: usize = 1 << 20;

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), BenchError> {
    let (rounds, slice, floor_writes) =
        setting.choose((6, Duration::from_millis(400), 600), (15, Duration::from_secs(1), 2000));
    let log = setting.open_log("group", Geometry::default(), false, 16)?;
    let floor = |name: &str, method| {
        FloorFile::create(&setting.directory.join(name), method, 64 << 20, FLOOR_WRITE_BYTES_MAX)
    };
    let mut floors = [
        floor("group-fdatasync", DurableWrite::Fdatasync)?,
        floor("group-direct", DurableWrite::DirectDsync)?,
    ];
    run_writers(&log, slice / 2)?;
    let mut rates = Samples::default();
    let mut floor_rates = [Samples::default(), Samples::default()];
    let mut latencies = Samples::default();
    let mut meters = [(); 3].map(|()| Meter::new(setting.directory));
    let (mut appends, mut syncs, mut bytes_per_sync) = (0, 0, 0);
    for _ in 0..rounds {
        let before = log.stats();
        let since = Instant::now();
        let taken_us = meters[0].slice(|| run_writers(&log, slice))?;
        rates.push(taken_us.len() as f64 / since.elapsed().as_secs_f64());
        appends += taken_us.len() as u64;
        latencies.extend(taken_us);
        let after = log.stats();
        let flushes = (after.journal.flushes - before.journal.flushes).max(1);
        syncs += flushes;
        let bytes = (after.journal.write_bytes - before.journal.write_bytes) / flushes;
        bytes_per_sync = usize::try_from(bytes)
            .map_or(FLOOR_WRITE_BYTES_MAX, |bytes| bytes.clamp(BLOCK_BYTES, FLOOR_WRITE_BYTES_MAX))
            .next_multiple_of(BLOCK_BYTES);
        for (index, floor) in floors.iter_mut().enumerate() {
            let since = Instant::now();
            meters[index + 1].slice(|| (0..floor_writes).try_for_each(|_| floor.write(bytes_per_sync)))?;
            floor_rates[index].push(f64::from(floor_writes) / since.elapsed().as_secs_f64());
        }
    }
    let rate = rates.median();
    let better = if floor_rates[0].median() > floor_rates[1].median() { 0 } else { 1 };
    let floor_rate = floor_rates[better].median();
    add_target(
        report,
        Target::new(
            "64 writers at window 1, 128 B: durable appends per second",
            rate,
            Bound::AtLeast,
            RATE_ENOUGH.min(SHARE_MIN * WRITERS as f64 * floor_rate),
            "1/s",
            Some(Level::Disk),
        ),
    );
    let floor_writes_done = (rounds * floor_writes) as u64;
    let notes = vec![
        format!(
            "{:.1} appends and {bytes_per_sync} bytes per sync, {syncs} syncs",
            appends as f64 / syncs as f64
        ),
        format!(
            "latency of one append + commit: p50 {:.0} us, p99 {:.0} us",
            latencies.median(),
            latencies.quantile(0.99)
        ),
        format!("better floor: {floor_rate:.0} syncs/s of as many bytes, one after the other"),
    ];
    let arm = |name: &str, window, operations, meter: &Meter, samples| Arm {
        name: name.to_owned(),
        level: Some(Level::Disk),
        window,
        payload_bytes: if window == 1 { bytes_per_sync as u64 } else { PAYLOAD_BYTES as u64 },
        unit: "1/s",
        operations,
        cpu_ns_per_operation: Some(meter.cpu_ns_per_operation(operations)),
        disk: meter.disk(),
        samples,
    };
    let [fdatasync_rates, direct_rates] = floor_rates;
    let window = u32::try_from(WRITERS).expect("64 writers");
    report.figures.push(Figure {
        name: "group commit",
        meaning: "64 threads, each appends one record, waits until it is durable, goes on".to_owned(),
        arms: vec![
            arm("ours: 64 writers", window, appends, &meters[0], rates),
            arm("floor: pwrite + fdatasync", 1, floor_writes_done, &meters[1], fdatasync_rates),
            arm("floor: O_DIRECT | O_DSYNC", 1, floor_writes_done, &meters[2], direct_rates),
        ],
        notes,
    });
    Ok(())
}

/// All writers at once for `slice`; how long each append took to be durable, in microseconds.
fn run_writers(log: &Log, slice: Duration) -> Result<Vec<f64>, BenchError> {
    let stop = AtomicBool::new(false);
    let start = Barrier::new(WRITERS + 1);
    let write = || -> Result<Vec<f64>, BenchError> {
        let payload = [3; PAYLOAD_BYTES];
        let mut taken = Vec::with_capacity(1 << 14);
        start.wait();
        while !stop.load(Ordering::Relaxed) {
            let since = Instant::now();
            let appended = log.append(KIND, INSTANCE, &[&payload])?;
            log.commit(appended.end, Level::Disk)?;
            taken.push(nanoseconds(since.elapsed()) / 1000.0);
        }
        Ok(taken)
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(write)).collect();
        start.wait();
        std::thread::sleep(slice);
        stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for writer in writers {
            all.append(&mut writer.join().expect("writers do not panic")?);
        }
        // What the next slice needs is recycled between slices, as a checkpoint would.
        log.trim(log.durable());
        Ok(all)
    })
}
