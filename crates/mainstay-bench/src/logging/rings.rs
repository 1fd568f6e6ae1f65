//! Messages going round two or three processes: latency, run time, and what each message costs, by policy.

use super::cluster::{Cluster, Counters, What};
use super::handler::{Lap, Load};
use super::usage::Usage;
use super::{LoggingError, Setting};
use crate::report::{Arm, Bound, Figure, PAIRS_MIN, Report, Samples, Table, Target, number};
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;
use std::time::Duration;

/// Messages of the first lap, from which the length of the others is found.
const FIRST_LAP_MESSAGES: u32 = 100;

/// Fewest messages in a lap.
const LAP_MESSAGES_MIN: u32 = 20;

/// Bytes that the nodes of a ring may keep for each other before they are told to take a checkpoint: far from the limit, at
/// which they would take no more.
const KEPT_BYTES_MAX: u64 = 16 << 20;

/// Highest latency of causal logging over that without logging.
const CAUSAL_LATENCY_MAX: f64 = 1.15;

/// Highest latency of sender-based logging over that without logging, in ping-pong.
const SENDER_BASED_LATENCY_MAX: f64 = 1.25;

/// Highest run time of sender-based logging over that without logging, in the pipeline at a window of 16: the worst
/// application figure of Johnson and Zwaenepoel 1987.
const SENDER_BASED_RUN_TIME_MAX: f64 = 1.16;

/// Highest latency, or run time, of hybrid over sender-based logging.
const HYBRID_MAX: f64 = 1.05;

/// Least rate without logging over that of bare sockets.
const BARE_SHARE_MIN: f64 = 0.6;

/// One way of sending messages round.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    meaning: &'static str,
    nodes: usize,
    window: u32,
}

/// The worst case: nothing to batch.
pub(super) const PING_PONG: Shape = Shape {
    name: "ping-pong",
    meaning: "a message to the other process and back; from the delivery that sends it to the one that gets it back",
    nodes: 2,
    window: 1,
};

/// Three processes, one message at a time.
pub(super) const PIPELINE_1: Shape = Shape {
    name: "pipeline, window 1",
    meaning: "a message through three processes, from the first to the second, the third and back to the first",
    nodes: 3,
    window: 1,
};

/// Three processes, always busy.
pub(super) const PIPELINE_16: Shape = Shape {
    name: "pipeline, window 16",
    meaning: "the same with 16 messages on their way at a time",
    nodes: 3,
    window: 16,
};

fn ours(policy: Policy, level: Level) -> What {
    What::Recoverable { policy, level }
}

/// What none is measured as: it waits for nothing at any level.
const UNLOGGED: What = What::Recoverable { policy: Policy::Unlogged, level: Level::Process };
const SENDER_BASED: What = What::Recoverable { policy: Policy::SenderBased, level: Level::Process };
const HYBRID: What = What::Recoverable { policy: Policy::Hybrid, level: Level::Process };
const CAUSAL: What = What::Recoverable { policy: Policy::Causal { f: 1 }, level: Level::Process };

/// All arms. Under none, sender-based and causal logging no message is in a journal, so that the level, which is the
/// journal's, changes nothing for messages among nodes.
fn whats() -> Vec<What> {
    vec![
        What::Bare,
        UNLOGGED,
        CAUSAL,
        SENDER_BASED,
        HYBRID,
        ours(Policy::Hybrid, Level::Disk),
        ours(Policy::Optimistic, Level::Process),
        ours(Policy::Optimistic, Level::Disk),
        ours(Policy::Deferred, Level::Process),
        ours(Policy::Deferred, Level::Disk),
    ]
}

struct Measured {
    what: What,
    cluster: Cluster,
    load: Load,
    usage: Usage,
    latency_us: Samples,
    /// By lap: the median latency, and the run time per message, in microseconds.
    lap_latency_us: Samples,
    lap_message_us: Samples,
    counters_before: Counters,
    /// Bytes sent since the last checkpoint.
    kept_bytes: u64,
}

pub(super) fn measure(shape: &Shape, setting: &Setting<'_>, report: &mut Report) -> Result<(), LoggingError> {
    let mut figure = Figure {
        name: shape.name,
        meaning: shape.meaning.to_owned(),
        arms: Vec::new(),
        notes: vec!["processor time is that of all its nodes".to_owned()],
    };
    let mut table = Table {
        name: shape.name,
        meaning: "per message that goes round; ratios are medians over rounds of paired laps".to_owned(),
        columns: [
            "arm",
            "level",
            "bytes",
            "messages/s",
            "latency / none",
            "run time / none",
            "cpu us",
            "TCP segments",
            "steps",
            "waits for the disk",
            "disk bytes",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: Vec::new(),
    };
    // All at once: a start mostly waits for the disk.
    let mut started = std::thread::scope(|scope| {
        let starting: Vec<_> = whats()
            .into_iter()
            .map(|what| {
                scope.spawn(move || {
                    let cluster = Cluster::start(setting.given, setting.directory, &what, shape.nodes)?;
                    Ok::<_, LoggingError>((what, cluster))
                })
            })
            .collect();
        starting
            .into_iter()
            .map(|started| started.join().expect("starting does not panic"))
            .collect::<Result<Vec<_>, _>>()
    })?;
    for bytes in setting.choose(vec![100], vec![10, 1024, 100_000]) {
        let mut measured = Vec::new();
        for (what, cluster) in started {
            measured.push(Measured::prepare(what, cluster, shape, bytes, setting)?);
        }
        for round in 0..setting.choose(PAIRS_MIN + 1, 2 * PAIRS_MIN) {
            // There and back again, so that nobody always comes behind the same.
            let mut order: Vec<_> = measured.iter_mut().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            order.into_iter().try_for_each(Measured::lap)?;
        }
        add_targets(shape, bytes, &measured, setting, report, &mut figure.notes);
        let reference = measured.iter().find(|measured| measured.what == UNLOGGED);
        let reference = reference.map(|none| (none.lap_latency_us.clone(), none.lap_message_us.clone()));
        let (latency, run_time) = reference.expect("it is among them");
        started = Vec::new();
        for mut measured in measured {
            table.rows.push(measured.row(&latency, &run_time)?);
            let (what, cluster, arm) = measured.into_arm();
            figure.arms.push(arm);
            started.push((what, cluster));
        }
    }
    report.figures.push(figure);
    report.tables.push(table);
    Ok(())
}

impl Measured {
    /// Finds how many messages make a lap, and warms up.
    fn prepare(
        what: What,
        mut cluster: Cluster,
        shape: &Shape,
        bytes: u32,
        setting: &Setting<'_>,
    ) -> Result<Self, LoggingError> {
        let lap = setting.choose(Duration::from_millis(12), Duration::from_millis(30));
        let mut load = Load { messages: FIRST_LAP_MESSAGES, window: shape.window, bytes };
        for _ in 0..2 {
            let Lap { elapsed_ns, .. } = cluster.run(&load)?;
            let in_time = lap.as_nanos() as f64 / elapsed_ns.max(1) as f64 * f64::from(load.messages);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "saturates within the bounds that follow"
            )]
            let messages = in_time as u32;
            load.messages = messages.clamp(LAP_MESSAGES_MIN, super::handler::MESSAGES_MAX);
        }
        Ok(Self {
            what,
            load,
            usage: Usage::new(cluster.processes(), setting.directory),
            latency_us: Samples::default(),
            lap_latency_us: Samples::default(),
            lap_message_us: Samples::default(),
            counters_before: cluster.counters()?,
            cluster,
            kept_bytes: 0,
        })
    }

    fn lap(&mut self) -> Result<(), LoggingError> {
        let bytes = u64::from(self.load.messages) * u64::from(self.load.bytes);
        if self.kept_bytes + bytes > KEPT_BYTES_MAX && self.what.keeps_until_checkpoints() {
            self.cluster.checkpoint()?;
            self.kept_bytes = 0;
        }
        self.kept_bytes += bytes;
        let Self { cluster, load, usage, .. } = self;
        let Lap { elapsed_ns, latency_ns } = usage.slice(|| cluster.run(load))?;
        let mut latency_us = Samples::default();
        latency_us.extend(latency_ns.iter().map(|&ns| ns as f64 / 1e3));
        self.lap_latency_us.push(latency_us.median());
        self.lap_message_us.push(elapsed_ns as f64 / 1e3 / f64::from(self.load.messages));
        self.latency_us.extend(latency_us.values().iter().copied());
        Ok(())
    }

    fn messages(&self) -> u64 {
        self.latency_us.values().len() as u64
    }

    fn row(&mut self, latency: &Samples, run_time: &Samples) -> Result<Vec<String>, LoggingError> {
        let messages = self.messages() as f64;
        let after = self.cluster.counters()?;
        let counted = |name: &str| {
            let value = |counters: &Counters| counters.get(name).copied();
            match (value(&self.counters_before), value(&after)) {
                (Some(before), Some(after)) => number((after - before) / messages),
                _ => "-".to_owned(),
            }
        };
        Ok(vec![
            self.what.name(),
            self.what.level().map_or_else(|| "-".to_owned(), |level| level.to_string()),
            self.load.bytes.to_string(),
            format!("{:.0}", 1e6 / self.lap_message_us.median()),
            number(paired(&self.lap_latency_us, latency).median()),
            number(paired(&self.lap_message_us, run_time).median()),
            number(self.usage.cpu_ns as f64 / 1e3 / messages),
            number(self.usage.segments as f64 / messages),
            counted("mainstay_rounds_total"),
            counted("mainstay_durable_writes_total"),
            number(self.usage.disk.write_bytes as f64 / messages),
        ])
    }

    fn into_arm(self) -> (What, Cluster, Arm) {
        let messages = self.messages();
        let arm = Arm {
            name: self.what.name(),
            level: self.what.level(),
            window: self.load.window,
            payload_bytes: u64::from(self.load.bytes),
            unit: "us",
            operations: messages,
            cpu_ns_per_operation: Some(self.usage.cpu_ns as f64 / messages.max(1) as f64),
            disk: Some(self.usage.disk),
            samples: self.latency_us,
        };
        (self.what, self.cluster, arm)
    }
}

/// The quotients of what was measured in the same round.
fn paired(ours: &Samples, reference: &Samples) -> Samples {
    let mut ratios = Samples::default();
    ratios.extend(ours.values().iter().zip(reference.values()).map(|(ours, reference)| ours / reference));
    ratios
}

fn add_targets(
    shape: &Shape,
    bytes: u32,
    measured: &[Measured],
    setting: &Setting<'_>,
    report: &mut Report,
    notes: &mut Vec<String>,
) {
    let of = |what: &What| {
        measured.iter().find(|measured| measured.what == *what).expect("every arm was measured")
    };
    let latency =
        |what: &What, reference: &What| paired(&of(what).lap_latency_us, &of(reference).lap_latency_us);
    let run_time =
        |what: &What, reference: &What| paired(&of(what).lap_message_us, &of(reference).lap_message_us);
    let at = |text: &str| {
        let size = setting.choose(String::new(), format!(", {bytes} B"));
        format!("{}{size}: {text}", shape.name)
    };
    let mut promise = |text: &str, value, bound, target, level| {
        report.targets.push(Target::new(at(text), value, bound, target, "x", level));
    };
    let process = Some(Level::Process);
    if shape.window == 1 {
        let value = latency(&CAUSAL, &UNLOGGED).median();
        promise("causal, latency over none's", value, Bound::AtMost, CAUSAL_LATENCY_MAX, process);
    }
    if shape.nodes == 2 {
        let value = latency(&SENDER_BASED, &UNLOGGED).median();
        let text = "sender-based, latency over none's";
        promise(text, value, Bound::AtMost, SENDER_BASED_LATENCY_MAX, process);
        let value = run_time(&What::Bare, &UNLOGGED).median();
        promise("none, rate over bare TCP's", value, Bound::AtLeast, BARE_SHARE_MIN, None);
    }
    if shape.window > 1 {
        let value = run_time(&SENDER_BASED, &UNLOGGED).median();
        let text = "sender-based, run time over none's";
        promise(text, value, Bound::AtMost, SENDER_BASED_RUN_TIME_MAX, process);
    }
    let ratios = run_time(&HYBRID, &SENDER_BASED);
    let (mean, bound) = ratios.mean_with_bound();
    let bound = bound.expect("there are as many rounds as it takes");
    // What is not resolved does not hold.
    let text = "hybrid, run time over sender-based's, upper end of the 95 % interval";
    promise(text, mean + bound, Bound::AtMost, HYBRID_MAX, process);
    let resolved =
        if mean - bound <= HYBRID_MAX && mean + bound > HYBRID_MAX { ": not resolved" } else { "" };
    notes.push(format!(
        "{bytes} B: hybrid's run time over sender-based's, {} pairs: mean {mean:.3} +- {bound:.3}{resolved}",
        ratios.values().len()
    ));
}
