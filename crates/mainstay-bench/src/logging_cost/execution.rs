//! The two optimisations of pessimistic logging (Zhao 2014, figure 2.13): logging while the message is executed, and one write for
//! several messages.

use super::server::{append, open_journal, recycle};
use super::{LoggingCostError, Setting};
use crate::machine::Meter;
use crate::report::{Arm, Figure, Report, Samples};
use mainstay_types::id::Lsn;
use mainstay_types::level::Level;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// The name of the figure of logging while executing.
pub(super) const CONCURRENT: &str = "concurrent";

/// The name of the figure of one write for several messages.
pub(super) const BATCHED: &str = "batched";

/// Bytes of each message.
const MESSAGE_BYTES: usize = 100;

/// How long the handler computes, in microseconds.
const WORK_US: [u64; 3] = [0, 100, 500];

/// Messages in one write.
const BATCHES: [u32; 4] = [1, 4, 16, 64];

/// When a message is executed.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Logged, then executed.
    LogFirst,
    /// Executed, then logged before anything leaves, by one thread.
    ExecuteFirst,
    /// Executed while another thread makes the log durable.
    AtOnce,
}

const ORDERS: [(Order, &str); 3] = [
    (Order::LogFirst, "log, then execute (immediate)"),
    (Order::ExecuteFirst, "execute, then log (deferred, as the service does it)"),
    (Order::AtOnce, "log and execute at once, on two threads"),
];

pub(super) fn measure_concurrent(setting: &Setting<'_>, report: &mut Report) -> Result<(), LoggingCostError> {
    let log = open_journal(&setting.directory.join(CONCURRENT))?;
    let (rounds, operations) = setting.choose((10, 30), (40, 50));
    let (asks, asked) = sync_channel::<Lsn>(1);
    let (tells, told) = sync_channel(1);
    let mut arms = Vec::new();
    std::thread::scope(|scope| {
        let log = &log;
        scope.spawn(move || {
            for end in asked {
                if tells.send(log.commit(end, Level::Disk)).is_err() {
                    return;
                }
            }
        });
        // Dropped at the end of this closure, which ends the thread.
        let asks = asks;
        for work_us in WORK_US {
            let work = Duration::from_micros(work_us);
            let mut samples = [Samples::default(), Samples::default(), Samples::default()];
            for round in 0..=rounds {
                for ((order, _), samples) in ORDERS.iter().zip(&mut samples) {
                    for _ in 0..operations {
                        let since = Instant::now();
                        let end = append(log, &[7; MESSAGE_BYTES])?;
                        match order {
                            Order::LogFirst => {
                                log.commit(end, Level::Disk)?;
                                compute(work);
                            }
                            Order::ExecuteFirst => {
                                compute(work);
                                log.commit(end, Level::Disk)?;
                            }
                            Order::AtOnce => {
                                asks.send(end).expect("it lives as long as this");
                                compute(work);
                                told.recv().expect("it answers every time")?;
                            }
                        }
                        if round > 0 {
                            samples.push(since.elapsed().as_secs_f64() * 1e6);
                        }
                    }
                }
            }
            arms.extend(
                ORDERS.iter().zip(samples).map(|((_, name), samples)| {
                    arm(format!("{name}; {work_us} us of work"), 1, samples, None)
                }),
            );
        }
        recycle(log)
    })?;
    report.figures.push(Figure {
        name: CONCURRENT,
        meaning: "from a message's arrival until it is executed and durable, one message at a time".to_owned(),
        arms,
        notes: vec![
            "the service executes and writes on one thread: what deferred logging gains it is that several deliveries share a write, not \
             that one overlaps with its own"
                .to_owned(),
        ],
    });
    Ok(())
}

pub(super) fn measure_batched(setting: &Setting<'_>, report: &mut Report) -> Result<(), LoggingCostError> {
    let log = open_journal(&setting.directory.join(BATCHED))?;
    let (rounds, operations) = setting.choose((10, 40), (40, 60));
    let mut samples: [Samples; BATCHES.len()] = Default::default();
    let mut meters = BATCHES.map(|_| Meter::new(setting.directory));
    for round in 0..=rounds {
        for (place, batch) in BATCHES.into_iter().enumerate() {
            let mut taken = Samples::default();
            let mut slice = || -> Result<(), LoggingCostError> {
                for _ in 0..operations {
                    let since = Instant::now();
                    let mut end = log.end();
                    for _ in 0..batch {
                        end = append(&log, &[7; MESSAGE_BYTES])?;
                    }
                    log.commit(end, Level::Disk)?;
                    taken.push(since.elapsed().as_secs_f64() * 1e6 / f64::from(batch));
                }
                Ok(())
            };
            if round == 0 {
                slice()?;
                continue;
            }
            meters[place].slice(slice)?;
            samples[place].extend(taken.values().iter().copied());
        }
    }
    let arms =
        BATCHES.into_iter().zip(samples).zip(meters).map(|((batch, samples), meter)| {
            arm(format!("{batch} in one write"), batch, samples, Some(meter))
        });
    report.figures.push(Figure {
        name: BATCHED,
        meaning: "logging latency per message when so many arrive together and share one durable write"
            .to_owned(),
        arms: arms.collect(),
        notes: Vec::new(),
    });
    recycle(&log)
}

/// Keeps the processor busy for so long.
fn compute(work: Duration) {
    let since = Instant::now();
    while since.elapsed() < work {
        std::hint::spin_loop();
    }
}

fn arm(name: String, window: u32, samples: Samples, meter: Option<Meter>) -> Arm {
    let operations = samples.values().len() as u64 * u64::from(window);
    Arm {
        name,
        level: Some(Level::Disk),
        window,
        payload_bytes: MESSAGE_BYTES as u64,
        unit: "us",
        operations,
        cpu_ns_per_operation: meter.as_ref().map(|meter| meter.cpu_ns_per_operation(operations)),
        disk: meter.and_then(|meter| meter.disk()),
        samples,
    }
}
