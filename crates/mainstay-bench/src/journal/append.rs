//! An append at level `Process`: processor time beside a bare copy and checksum of the same bytes, and the proof that it
//! makes no system call.

use super::{BenchError, INSTANCE, KIND, Setting, add_target, fill_and_recycle, recycle};
use crate::floor::copy_and_checksum;
use crate::machine::{Meter, thread_cpu_ns};
use crate::report::{Arm, Bound, Figure, Report, Samples, Target};
use crate::system_calls::makes_a_system_call;
use mainstay_journal::geometry::Geometry;
use mainstay_types::level::Level;

const PAYLOAD_BYTES: usize = 128;

/// Highest processor time of ours over that of the floor.
const RATIO_MAX: f64 = 4.0;

/// Appends watched for system calls: less than half a page holds, for handing a half to the disk takes one.
const WATCHED: usize = 10_000;

/// Bytes of log that one append takes.
const RECORD_BYTES: u64 = 160;

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), BenchError> {
    let (rounds, count) = setting.choose((15, 400_000_u64), (40, 1_000_000));
    let geometry = Geometry::default();
    let segments =
        usize::try_from(count * RECORD_BYTES / geometry.segment_bytes()).expect("few segments") + 3;
    let log = setting.open_log("append", geometry, false, segments)?;
    let payload = [5; PAYLOAD_BYTES];
    fill_and_recycle(&log, &[5; 4096], count * RECORD_BYTES + 2 * geometry.segment_bytes())?;
    let mut ring = vec![1; geometry.page_bytes as usize * usize::from(geometry.pages)];
    let (mut ours, mut floor) = (Samples::default(), Samples::default());
    let mut meters = [(); 2].map(|()| Meter::new(setting.directory));
    for round in 0..=rounds {
        let before = thread_cpu_ns();
        meters[0].slice(|| -> Result<(), BenchError> {
            for _ in 0..count {
                log.append(KIND, INSTANCE, &[std::hint::black_box(&payload)])?;
            }
            Ok(())
        })?;
        let ours_ns = (thread_cpu_ns() - before) as f64 / count as f64;
        recycle(&log)?;
        let before = thread_cpu_ns();
        meters[1].slice(|| std::hint::black_box(copy_and_checksum(&payload, &mut ring, count)));
        let floor_ns = (thread_cpu_ns() - before) as f64 / count as f64;
        if round > 0 {
            ours.push(ours_ns);
            floor.push(floor_ns);
        }
    }
    let watched = watch(setting, &payload)?;
    add_target(
        report,
        Target::new(
            "append of 128 B: processor time over memcpy + CRC-32C",
            ours.median() / floor.median(),
            Bound::AtMost,
            RATIO_MAX,
            "x",
            Some(Level::Process),
        ),
    );
    if let Some(made) = watched {
        add_target(
            report,
            Target::new(
                "append of 128 B: system calls within half a page",
                f64::from(u8::from(made)),
                Bound::AtMost,
                0.0,
                "calls",
                Some(Level::Process),
            ),
        );
    }
    let operations = (rounds + 1) * count;
    let note = match watched {
        Some(false) => format!("{WATCHED} appends within half a page, watched by the kernel: no system call"),
        Some(true) => format!("{WATCHED} appends within half a page made a system call"),
        None => "not watched for system calls: this kernel has no syscall user dispatch".to_owned(),
    };
    let arm = |name: &str, level, meter: &Meter, samples| Arm {
        name: name.to_owned(),
        level,
        window: 1,
        payload_bytes: PAYLOAD_BYTES as u64,
        unit: "ns",
        operations,
        cpu_ns_per_operation: Some(meter.cpu_ns_per_operation(operations)),
        disk: meter.disk(),
        samples,
    };
    report.figures.push(Figure {
        name: "append",
        meaning: "processor time of the appending thread per append, through the shared log; cpu ns/op is the whole process"
            .to_owned(),
        arms: vec![
            arm("ours: append", Some(Level::Process), &meters[0], ours),
            arm("floor: memcpy + CRC-32C", None, &meters[1], floor),
        ],
        notes: vec![note],
    });
    Ok(())
}

/// Whether appends that stay within half a page make a system call.
fn watch(setting: &Setting<'_>, payload: &[u8]) -> Result<Option<bool>, BenchError> {
    let log = setting.open_log("append-watched", Geometry::default(), false, 2)?;
    log.append(KIND, INSTANCE, &[payload])?;
    let mut result = Ok(());
    let made = makes_a_system_call(|| {
        result = (0..WATCHED).try_for_each(|_| log.append(KIND, INSTANCE, &[payload]).map(drop));
    });
    result?;
    Ok(made)
}
