//! 64 writers, one outstanding record each, as threads and as tasks of one thread: durable appends per second, beside the
//! syncs per second of the same bytes.

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

/// All writers at once for a time; how long each append took to be durable, in microseconds.
type Run = fn(&Log, Duration) -> Result<Vec<f64>, BenchError>;

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
    let writers: [Run; 2] = [run_threads, run_tasks];
    let mut ours = [Writers::new(setting), Writers::new(setting)];
    let mut floor_rates = [Samples::default(), Samples::default()];
    let mut meters = [(); 2].map(|()| Meter::new(setting.directory));
    let mut bytes_per_sync = BLOCK_BYTES;
    writers.iter().try_for_each(|run| run(&log, slice / 2).map(drop))?;
    for _ in 0..rounds {
        // The last of them says how much a write of the floors has.
        for (ours, run) in ours.iter_mut().zip(writers) {
            bytes_per_sync = ours.slice(&log, slice, run)?;
        }
        for (index, floor) in floors.iter_mut().enumerate() {
            let since = Instant::now();
            meters[index].slice(|| (0..floor_writes).try_for_each(|_| floor.write(bytes_per_sync)))?;
            floor_rates[index].push(f64::from(floor_writes) / since.elapsed().as_secs_f64());
        }
    }
    let better = if floor_rates[0].median() > floor_rates[1].median() { 0 } else { 1 };
    let floor_rate = floor_rates[better].median();
    let names = ["64 writers, threads", "64 writers, tasks of one thread"];
    for (ours, name) in ours.iter().zip(names) {
        add_target(
            report,
            Target::new(
                format!("{name}, window 1, 128 B: durable appends per second"),
                ours.rates.median(),
                Bound::AtLeast,
                RATE_ENOUGH.min(SHARE_MIN * WRITERS as f64 * floor_rate),
                "1/s",
                Some(Level::Disk),
            ),
        );
    }
    let floor_writes_done = (rounds * floor_writes) as u64;
    let mut notes: Vec<String> =
        ours.iter().zip(names).map(|(ours, name)| format!("{name}: {}", ours.in_short())).collect();
    notes.push(format!(
        "better floor: {floor_rate:.0} syncs/s of {bytes_per_sync} bytes, as a sync of the tasks, one after the other"
    ));
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
    let mut arms: Vec<Arm> = ours
        .into_iter()
        .zip(names)
        .map(|(ours, name)| arm(&format!("ours: {name}"), window, ours.appends, &ours.meter, ours.rates))
        .collect();
    arms.push(arm("floor: pwrite + fdatasync", 1, floor_writes_done, &meters[0], fdatasync_rates));
    arms.push(arm("floor: O_DIRECT | O_DSYNC", 1, floor_writes_done, &meters[1], direct_rates));
    report.figures.push(Figure {
        name: "group commit",
        meaning: "64 writers, each appends one record, waits until it is durable, goes on".to_owned(),
        arms,
        notes,
    });
    Ok(())
}

/// What one kind of writers has done so far.
struct Writers {
    rates: Samples,
    latencies_us: Samples,
    meter: Meter,
    appends: u64,
    syncs: u64,
    handed_on_awake: u64,
    gathered: u64,
    missed: u64,
    bytes_per_sync: usize,
}

impl Writers {
    fn new(setting: &Setting<'_>) -> Self {
        Self {
            rates: Samples::default(),
            latencies_us: Samples::default(),
            meter: Meter::new(setting.directory),
            appends: 0,
            syncs: 0,
            handed_on_awake: 0,
            gathered: 0,
            missed: 0,
            bytes_per_sync: BLOCK_BYTES,
        }
    }

    /// One slice of them; the bytes of a sync in it.
    fn slice(&mut self, log: &Log, slice: Duration, run: Run) -> Result<usize, BenchError> {
        let before = log.stats();
        let since = Instant::now();
        let taken_us = self.meter.slice(|| run(log, slice))?;
        self.rates.push(taken_us.len() as f64 / since.elapsed().as_secs_f64());
        self.appends += taken_us.len() as u64;
        self.latencies_us.extend(taken_us);
        let after = log.stats();
        let flushes = (after.journal.flushes - before.journal.flushes).max(1);
        self.syncs += flushes;
        self.handed_on_awake += after.rounds_handed_on_awake - before.rounds_handed_on_awake;
        self.gathered += after.rounds_gathered - before.rounds_gathered;
        self.missed += after.rounds_missed - before.rounds_missed;
        let bytes = (after.journal.write_bytes - before.journal.write_bytes) / flushes;
        self.bytes_per_sync = usize::try_from(bytes)
            .map_or(FLOOR_WRITE_BYTES_MAX, |bytes| bytes.clamp(BLOCK_BYTES, FLOOR_WRITE_BYTES_MAX))
            .next_multiple_of(BLOCK_BYTES);
        // What the next slice needs is recycled between slices, as a checkpoint would.
        log.trim(log.durable());
        Ok(self.bytes_per_sync)
    }

    fn in_short(&self) -> String {
        format!(
            "{:.1} appends and {} bytes per sync, {} syncs, {} rounds handed on to one awake, {} gathered, {} missed; append to durable p50 {:.0} us, p99 {:.0} us",
            self.appends as f64 / self.syncs as f64,
            self.bytes_per_sync,
            self.syncs,
            self.handed_on_awake,
            self.gathered,
            self.missed,
            self.latencies_us.median(),
            self.latencies_us.quantile(0.99)
        )
    }
}

/// A thread for each writer.
fn run_threads(log: &Log, slice: Duration) -> Result<Vec<f64>, BenchError> {
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
        Ok(all)
    })
}

/// All writers on this thread, a task each.
fn run_tasks(log: &Log, slice: Duration) -> Result<Vec<f64>, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let end = Instant::now() + slice;
    let write = |log: Log| async move {
        let payload = [3; PAYLOAD_BYTES];
        let mut taken = Vec::with_capacity(1 << 14);
        let mut since = Instant::now();
        while since < end {
            let appended = log.append(KIND, INSTANCE, &[&payload])?;
            log.committed(appended.end, Level::Disk).await?;
            taken.push(nanoseconds(since.elapsed()) / 1000.0);
            since = Instant::now();
        }
        Ok::<_, BenchError>(taken)
    };
    runtime.block_on(async {
        let writers: Vec<_> = (0..WRITERS).map(|_| tokio::spawn(write(log.clone()))).collect();
        let mut all = Vec::new();
        for writer in writers {
            all.append(&mut writer.await.expect("writers do not panic")?);
        }
        Ok(all)
    })
}
