//! A call over three processes with a journal each, at level disk, beside the same call unlogged and three bare syncs at once.

use super::cluster::{Cluster, What, segment_pages};
use super::pattern::Pattern;
use super::sync_trio::SyncTrio;
use super::usage::Usage;
use super::{LoggingError, Setting};
use crate::floor::DurableWrite;
use crate::report::{Arm, Bound, Figure, PAIRS_MIN, Report, Samples, Target};
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;

/// The name of the figure.
pub(super) const NAME: &str = "three-step call";

/// Bytes of each message.
const MESSAGE_BYTES: u32 = 100;

/// Bytes of a floor's write: what the journal writes for such a request.
const FLOOR_WRITE_BYTES: usize = 256;

/// Processes, and journals.
const NODES: usize = 3;

/// Highest latency added to the unlogged call's, in floors.
const ADDED_FLOORS_MAX: f64 = 1.5;

const POLICIES: [Policy; 6] = [
    Policy::Unlogged,
    Policy::Causal { f: 1 },
    Policy::Hybrid,
    Policy::SenderBased,
    Policy::Optimistic,
    Policy::Deferred,
];

struct Measured {
    what: What,
    cluster: Cluster,
    usage: Usage,
    latency_us: Samples,
    /// The median of each round.
    round_us: Samples,
}

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), LoggingError> {
    let mut measured = Vec::new();
    for policy in POLICIES {
        let what = What::Recoverable { policy, level: Level::Disk };
        let cluster = Cluster::start(
            setting.given,
            setting.directory,
            &what,
            Pattern::Ring,
            NODES,
            segment_pages(setting),
        )?;
        let usage = Usage::new(cluster.processes(), setting.directory);
        let (latency_us, round_us) = (Samples::default(), Samples::default());
        measured.push(Measured { what, cluster, usage, latency_us, round_us });
    }
    let methods = [("fdatasync", DurableWrite::Fdatasync), ("direct", DurableWrite::DirectDsync)];
    let mut floors = Vec::new();
    for (name, method) in methods {
        let trio = SyncTrio::create(setting.directory, name, method, FLOOR_WRITE_BYTES)?;
        floors.push((trio, Samples::default(), Samples::default()));
    }
    let (rounds, calls) = setting.choose((PAIRS_MIN + 1, 25), (2 * PAIRS_MIN, 50));
    let mut key = 0;
    for round in 0..=rounds {
        let mut order: Vec<_> = measured.iter_mut().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for measured in order {
            if round == 0 {
                // Warms up.
                measured.cluster.calls(calls, &mut key)?;
                continue;
            }
            let Measured { cluster, usage, .. } = &mut *measured;
            let taken = usage.slice(|| cluster.calls(calls, &mut key))?;
            measured.round_us.push(taken.median());
            measured.latency_us.extend(taken.values().iter().copied());
        }
        for (trio, all_us, round_us) in &mut floors {
            let taken = trio.run(calls)?;
            round_us.push(taken.median());
            all_us.extend(taken.values().iter().copied());
        }
    }
    let better = usize::from(floors[1].1.median() < floors[0].1.median());
    let floor_us = Samples::clone(&floors[better].2);
    add_targets(&measured, floor_us.median(), report);
    add_figure(measured, floors.into_iter().map(|(_, all_us, _)| all_us), better, report);
    Ok(())
}

impl Cluster {
    /// How long the client waited for each call, in microseconds.
    fn calls(&mut self, calls: usize, key: &mut u64) -> Result<Samples, LoggingError> {
        let mut taken = Samples::default();
        for _ in 0..calls {
            *key += 1;
            taken.push(self.call(*key, MESSAGE_BYTES)?.as_secs_f64() * 1e6);
        }
        Ok(taken)
    }
}

fn add_targets(measured: &[Measured], floor_us: f64, report: &mut Report) {
    let unlogged = &measured[0].round_us;
    for measured in &measured[1..=2] {
        let mut added = Samples::default();
        let pairs = measured.round_us.values().iter().zip(unlogged.values());
        added.extend(pairs.map(|(ours, unlogged)| (ours - unlogged) / floor_us));
        let name = format!(
            "{NAME}: {}, latency added to none's, in three concurrent bare syncs",
            measured.what.name()
        );
        report.targets.push(Target::new(
            name,
            added.median(),
            Bound::AtMost,
            ADDED_FLOORS_MAX,
            "floors",
            Some(Level::Disk),
        ));
    }
}

fn add_figure(
    measured: Vec<Measured>,
    floors: impl Iterator<Item = Samples>,
    better: usize,
    report: &mut Report,
) {
    let mut arms: Vec<_> = measured
        .into_iter()
        .map(|measured| {
            // The warm-up was counted as well, in usage.
            let operations = measured.latency_us.values().len() as u64;
            Arm {
                name: measured.what.name(),
                level: measured.what.level(),
                window: 1,
                payload_bytes: u64::from(MESSAGE_BYTES),
                unit: "us",
                operations,
                cpu_ns_per_operation: Some(measured.usage.cpu_ns as f64 / operations.max(1) as f64),
                disk: Some(measured.usage.disk),
                samples: measured.latency_us,
            }
        })
        .collect();
    let methods = ["pwrite + fdatasync", "O_DIRECT | O_DSYNC"];
    arms.extend(floors.zip(methods).map(|(samples, method)| {
        let name = format!("three bare syncs at once, {method}");
        Arm::of_latencies(name, Some(Level::Disk), FLOOR_WRITE_BYTES as u64, samples)
    }));
    report.figures.push(Figure {
        name: NAME,
        meaning: "POST /call with a key of its own at the first of three processes, which tells the second, which tells \
                  the third, which tells the first, which answers; until the whole answer is there"
            .to_owned(),
        arms,
        notes: vec![
            format!("the floor is {}, the better of the two", methods[better]),
            "the writers of the floor are awake when it begins, as no process is that waits for a message".to_owned(),
        ],
    });
}
