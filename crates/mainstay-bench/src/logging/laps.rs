//! Operations of one pattern of messages, lap by lap, all arms in turn: latency, run time, and what each operation costs, by
//! policy.

use super::cluster::{Cluster, Counters, SENDER_LOG_BYTES, What, segment_pages};
use super::handler::{Lap, Load};
use super::pattern::{CONFIRMED_TOGETHER, Pattern};
use super::usage::Usage;
use super::{LoggingError, Setting};
use crate::report::{Arm, Bound, Figure, PAIRS_MIN, Report, Samples, Table, Target, number};
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;
use std::time::Duration;

/// Operations of the first lap, from which the length of the others is found.
const FIRST_LAP_OPERATIONS: u32 = 128;

/// Fewest operations in a lap; no fewer than any window.
const LAP_OPERATIONS_MIN: u32 = 64;

/// Bytes that the nodes may keep for each other before they are told to take a checkpoint: far from the limit, at
/// which they would take no more.
const KEPT_BYTES_MAX: u64 = 16 << 20;

/// What each message kept takes beside its body, about, in bytes.
const KEPT_BESIDE_BYTES: u64 = 256;

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

/// Rounds of the short form where no ratio of a few per cent is promised.
const QUICK_ROUNDS: usize = 5;

/// One pattern of messages, at one window.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    meaning: &'static str,
    pattern: Pattern,
    nodes: usize,
    /// Operations under way at the same time.
    window: u32,
    /// Whether the short form takes as many rounds as it takes to resolve a few per cent.
    resolves: bool,
}

/// The worst case: nothing to batch.
pub(super) const PING_PONG: Shape = Shape {
    name: "ping-pong",
    meaning: "a message to the other process and back; from the delivery that sends it to the one that gets it back",
    pattern: Pattern::Ring,
    nodes: 2,
    window: 1,
    resolves: true,
};

/// One way only.
pub(super) const STREAM: Shape = Shape {
    name: "stream",
    meaning: "messages to the other process, which confirms every 16th with a message; 64 are under way",
    pattern: Pattern::Stream,
    nodes: 2,
    window: 4 * CONFIRMED_TOGETHER,
    resolves: false,
};

/// Three processes, one message at a time.
pub(super) const PIPELINE_1: Shape = Shape {
    name: "pipeline, window 1",
    meaning: "a message through three processes, from the first to the second, the third and back to the first",
    pattern: Pattern::Ring,
    nodes: 3,
    window: 1,
    resolves: true,
};

/// Three processes, always busy.
pub(super) const PIPELINE_16: Shape = Shape {
    name: "pipeline, window 16",
    meaning: "the same with 16 messages on their way at a time",
    pattern: Pattern::Ring,
    nodes: 3,
    window: 16,
    resolves: true,
};

/// One process that asks three.
pub(super) const FAN: Shape = Shape {
    name: "fan-out and fan-in",
    meaning: "a process tells three others, each of which answers, until it has all three answers; 6 messages",
    pattern: Pattern::Fan,
    nodes: 4,
    window: 1,
    resolves: false,
};

/// Four processes, each telling all.
pub(super) const EVERYBODY: Shape = Shape {
    name: "all-to-all",
    meaning: "each of four processes tells each other one once: the first all others, these each other and, once told by all, \
              the first; 12 messages, 4 operations under way",
    pattern: Pattern::Everybody,
    nodes: 4,
    window: 4,
    resolves: false,
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
fn whats(shape: &Shape) -> Vec<What> {
    let bare = matches!(shape.pattern, Pattern::Ring | Pattern::Stream).then_some(What::Bare);
    let ours = [
        UNLOGGED,
        CAUSAL,
        SENDER_BASED,
        HYBRID,
        ours(Policy::Hybrid, Level::Disk),
        ours(Policy::Optimistic, Level::Process),
        ours(Policy::Optimistic, Level::Disk),
        ours(Policy::Deferred, Level::Process),
        ours(Policy::Deferred, Level::Disk),
    ];
    bare.into_iter().chain(ours).collect()
}

struct Measured {
    what: What,
    cluster: Cluster,
    load: Load,
    /// Messages that an operation takes.
    messages_each: u64,
    usage: Usage,
    latency_us: Samples,
    /// By lap: the median latency, and the run time per message, in microseconds.
    lap_latency_us: Samples,
    lap_operation_us: Samples,
    counters_before: Counters,
    /// Since the last checkpoint: bytes sent, and operations.
    sent_bytes: u64,
    sent_operations: u64,
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
        meaning: "per operation; ratios are medians over rounds of paired laps; `sender log` is what all its nodes together keep \
                  in memory for each other until the next checkpoint"
            .to_owned(),
        columns: [
            "arm",
            "level",
            "bytes",
            "operations/s",
            "p50 us",
            "p99 us",
            "latency / none",
            "run time / none",
            "cpu us",
            "TCP segments",
            "steps",
            "waits for the disk",
            "device bytes",
            "journal bytes",
            "sender log bytes",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: Vec::new(),
    };
    // All at once: a start mostly waits for the disk.
    let (program, directory, pages) = (setting.given, setting.directory, segment_pages(setting));
    let mut started = std::thread::scope(|scope| {
        let starting: Vec<_> = whats(shape)
            .into_iter()
            .map(|what| {
                scope.spawn(move || {
                    let cluster =
                        Cluster::start(program, directory, &what, shape.pattern, shape.nodes, pages)?;
                    Ok::<_, LoggingError>((what, cluster))
                })
            })
            .collect();
        starting
            .into_iter()
            .map(|started| started.join().expect("starting does not panic"))
            .collect::<Result<Vec<_>, _>>()
    })?;
    for bytes in setting.choose(vec![100], vec![10, 1000, 10_000, 100_000]) {
        if !setting.quick {
            setting.say(&format!("{}, {bytes} B", shape.name));
        }
        let mut measured = Vec::new();
        for (what, cluster) in started {
            measured.push(Measured::prepare(what, cluster, shape, bytes, setting)?);
        }
        let quick_rounds = if shape.resolves { PAIRS_MIN + 1 } else { QUICK_ROUNDS };
        for round in 0..setting.choose(quick_rounds, 2 * PAIRS_MIN) {
            // There and back again, so that nobody always comes behind the same.
            let mut order: Vec<_> = measured.iter_mut().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            order.into_iter().try_for_each(Measured::lap)?;
        }
        add_targets(shape, bytes, &measured, setting, report, &mut figure.notes);
        let reference = measured.iter().find(|measured| measured.what == UNLOGGED);
        let reference = reference.map(|none| (none.lap_latency_us.clone(), none.lap_operation_us.clone()));
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
    /// Finds how many operations make a lap, and warms up.
    fn prepare(
        what: What,
        mut cluster: Cluster,
        shape: &Shape,
        bytes: u32,
        setting: &Setting<'_>,
    ) -> Result<Self, LoggingError> {
        let lap = setting.choose(Duration::from_millis(8), Duration::from_millis(30));
        let step = shape.pattern.step();
        let mut load = Load { messages: FIRST_LAP_OPERATIONS, window: shape.window, bytes };
        for _ in 0..2 {
            let Lap { elapsed_ns, .. } = cluster.run(&load)?;
            let in_time = lap.as_nanos() as f64 / elapsed_ns.max(1) as f64 * f64::from(load.messages);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "saturates within the bounds that follow"
            )]
            let messages = in_time as u32;
            let messages = messages.clamp(LAP_OPERATIONS_MIN, super::handler::MESSAGES_MAX - step);
            load.messages = messages.next_multiple_of(step);
        }
        Ok(Self {
            what,
            load,
            usage: Usage::new(cluster.processes(), setting.directory),
            latency_us: Samples::default(),
            lap_latency_us: Samples::default(),
            lap_operation_us: Samples::default(),
            counters_before: cluster.counters()?,
            cluster,
            messages_each: shape.pattern.messages(shape.nodes) as u64,
            sent_bytes: 0,
            sent_operations: 0,
        })
    }

    fn lap(&mut self) -> Result<(), LoggingError> {
        let operations = u64::from(self.load.messages);
        let bytes = operations * self.messages_each * (u64::from(self.load.bytes) + KEPT_BESIDE_BYTES);
        if self.sent_bytes + bytes > KEPT_BYTES_MAX && self.what.keeps_until_checkpoints() {
            self.cluster.checkpoint()?;
            (self.sent_bytes, self.sent_operations) = (0, 0);
        }
        self.sent_bytes += bytes;
        self.sent_operations += operations;
        let Self { cluster, load, usage, .. } = self;
        let Lap { elapsed_ns, latency_ns } = usage.slice(|| cluster.run(load))?;
        let mut latency_us = Samples::default();
        latency_us.extend(latency_ns.iter().map(|&ns| ns as f64 / 1e3));
        self.lap_latency_us.push(latency_us.median());
        self.lap_operation_us.push(elapsed_ns as f64 / 1e3 / f64::from(self.load.messages));
        self.latency_us.extend(latency_us.values().iter().copied());
        Ok(())
    }

    fn operations(&self) -> u64 {
        self.latency_us.values().len() as u64
    }

    fn row(&mut self, latency: &Samples, run_time: &Samples) -> Result<Vec<String>, LoggingError> {
        let operations = self.operations() as f64;
        let after = self.cluster.counters()?;
        let counted = |name: &str| {
            let value = |counters: &Counters| counters.get(name).copied();
            match (value(&self.counters_before), value(&after)) {
                (Some(before), Some(after)) => number((after - before) / operations),
                _ => "-".to_owned(),
            }
        };
        let kept = after
            .get(SENDER_LOG_BYTES)
            .map_or_else(|| "-".to_owned(), |kept| number(kept / self.sent_operations.max(1) as f64));
        Ok(vec![
            self.what.name(),
            self.what.level().map_or_else(|| "-".to_owned(), |level| level.to_string()),
            self.load.bytes.to_string(),
            format!("{:.0}", 1e6 / self.lap_operation_us.median()),
            number(self.latency_us.median()),
            number(self.latency_us.quantile(0.99)),
            number(self.lap_latency_us.ratios_to(latency).median()),
            number(self.lap_operation_us.ratios_to(run_time).median()),
            number(self.usage.cpu_ns as f64 / 1e3 / operations),
            number(self.usage.segments as f64 / operations),
            counted("mainstay_rounds_total"),
            counted("mainstay_durable_writes_total"),
            number(self.usage.disk.write_bytes as f64 / operations),
            counted("mainstay_journal_append_bytes_total"),
            kept,
        ])
    }

    fn into_arm(self) -> (What, Cluster, Arm) {
        let operations = self.operations();
        let arm = Arm {
            name: self.what.name(),
            level: self.what.level(),
            window: self.load.window,
            payload_bytes: u64::from(self.load.bytes),
            unit: "us",
            operations,
            cpu_ns_per_operation: Some(self.usage.cpu_ns as f64 / operations.max(1) as f64),
            disk: Some(self.usage.disk),
            samples: self.latency_us,
        };
        (self.what, self.cluster, arm)
    }
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
        |what: &What, reference: &What| of(what).lap_latency_us.ratios_to(&of(reference).lap_latency_us);
    let run_time =
        |what: &What, reference: &What| of(what).lap_operation_us.ratios_to(&of(reference).lap_operation_us);
    let at = |text: &str| {
        let size = setting.choose(String::new(), format!(", {bytes} B"));
        format!("{}{size}: {text}", shape.name)
    };
    let mut promise = |text: &str, value, bound, target, level| {
        report.targets.push(Target::new(at(text), value, bound, target, "x", level));
    };
    let process = Some(Level::Process);
    let ring = shape.pattern == Pattern::Ring;
    if ring && shape.window == 1 {
        let value = latency(&CAUSAL, &UNLOGGED).median();
        promise("causal, latency over none's", value, Bound::AtMost, CAUSAL_LATENCY_MAX, process);
    }
    if ring && shape.nodes == 2 {
        let value = latency(&SENDER_BASED, &UNLOGGED).median();
        let text = "sender-based, latency over none's";
        promise(text, value, Bound::AtMost, SENDER_BASED_LATENCY_MAX, process);
    }
    if shape.nodes == 2 {
        let value = run_time(&What::Bare, &UNLOGGED).median();
        promise("none, rate over bare TCP's", value, Bound::AtLeast, BARE_SHARE_MIN, None);
    }
    if ring && shape.window > 1 {
        let value = run_time(&SENDER_BASED, &UNLOGGED).median();
        let text = "sender-based, run time over none's";
        promise(text, value, Bound::AtMost, SENDER_BASED_RUN_TIME_MAX, process);
    }
    let ratios = run_time(&HYBRID, &SENDER_BASED);
    let (mean, Some(bound)) = ratios.mean_with_bound() else { return };
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
