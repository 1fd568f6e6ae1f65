//! One writer, 128 B, level `Disk`: how long until a record is durable, beside the floor.

use super::{BenchError, INSTANCE, KIND, Setting, add_target, nanoseconds};
use crate::floor::{DurableWrite, FloorFile};
use crate::machine::Meter;
use crate::report::{Arm, Bound, Figure, Report, Samples, Target};
use mainstay_journal::geometry::Geometry;
use mainstay_types::level::Level;
use std::time::Instant;

const PAYLOAD_BYTES: usize = 128;

/// What the journal writes for a record of this payload: the same number of bytes go to the floor's log.
const RECORD_BYTES: usize = PAYLOAD_BYTES + 32;

/// Highest p50 of ours over that of the floor.
const RATIO_MAX: f64 = 1.2;

type Operation<'a> = &'a mut dyn FnMut() -> Result<(), BenchError>;

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), BenchError> {
    let (rounds, operations) = setting.choose((12, 300), (30, 1000));
    let log = setting.open_log("latency", Geometry::default(), false, 2)?;
    let floor =
        |name: &str, method| FloorFile::create(&setting.directory.join(name), method, 64 << 20, RECORD_BYTES);
    let mut fdatasync = floor("latency-fdatasync", DurableWrite::Fdatasync)?;
    let mut direct = floor("latency-direct", DurableWrite::DirectDsync)?;
    let payload = [7; PAYLOAD_BYTES];
    let mut ours = || -> Result<(), BenchError> {
        let appended = log.append(KIND, INSTANCE, &[&payload])?;
        Ok(log.commit(appended.end, Level::Disk)?)
    };
    let mut buffered = || Ok(fdatasync.write(RECORD_BYTES)?);
    let mut straight = || Ok(direct.write(RECORD_BYTES)?);
    let mut arms: [(&str, Operation<'_>); 3] = [
        ("ours: append + commit", &mut ours),
        ("floor: pwrite + fdatasync", &mut buffered),
        ("floor: O_DIRECT | O_DSYNC", &mut straight),
    ];
    let mut samples = [Samples::default(), Samples::default(), Samples::default()];
    let mut meters = [(); 3].map(|()| Meter::new(setting.directory));
    for round in 0..=rounds {
        for (index, (_, operation)) in arms.iter_mut().enumerate() {
            let mut taken = Vec::with_capacity(operations);
            let mut slice = || -> Result<(), BenchError> {
                for _ in 0..operations {
                    let since = Instant::now();
                    operation()?;
                    taken.push(nanoseconds(since.elapsed()) / 1000.0);
                }
                Ok(())
            };
            // The first round warms up.
            if round == 0 {
                slice()?;
            } else {
                meters[index].slice(slice)?;
                samples[index].extend(taken);
            }
        }
    }
    let done = (rounds * operations) as u64;
    let names = arms.map(|(name, _)| name);
    let p50 = [0, 1, 2].map(|index: usize| samples[index].median());
    let better = if p50[1] < p50[2] { 1 } else { 2 };
    let p99_ratio = samples[0].quantile(0.99) / samples[better].quantile(0.99);
    add_target(
        report,
        Target::new(
            "one writer, 128 B: p50 over the better floor's",
            p50[0] / p50[better],
            Bound::AtMost,
            RATIO_MAX,
            "x",
            Some(Level::Disk),
        ),
    );
    let mut arm = |index: usize| Arm {
        name: names[index].to_owned(),
        level: Some(Level::Disk),
        window: 1,
        payload_bytes: PAYLOAD_BYTES as u64,
        unit: "us",
        operations: done,
        cpu_ns_per_operation: Some(meters[index].cpu_ns_per_operation(done)),
        disk: meters[index].disk(),
        samples: std::mem::take(&mut samples[index]),
    };
    report.figures.push(Figure {
        name: "commit latency",
        meaning: "time from append to durable, one writer".to_owned(),
        arms: vec![arm(0), arm(1), arm(2)],
        notes: vec![
            format!("the better floor is `{}`; p99 over its p99: {p99_ratio:.2}", names[better]),
            format!(
                "written by {}, {:?} in the background",
                log.disk().chosen().method,
                log.disk().chosen().backend
            ),
        ],
    });
    Ok(())
}
