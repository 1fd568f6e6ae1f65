//! How long a node is away after kill -9, by how many messages it has to make up for, and what is held in memory and on disk for
//! that meanwhile.

use super::cluster::{Cluster, SENDER_LOG_BYTES, What, segment_pages};
use super::handler::Load;
use super::pattern::Pattern;
use super::usage::anonymous_bytes;
use super::{LoggingError, Setting};
use crate::report::{Arm, Bound, Figure, PAIRS_MIN, Report, Samples, Table, Target, number};
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;

/// The name of the figure.
pub(super) const NAME: &str = "recovery";

/// Bytes of each message.
const MESSAGE_BYTES: u32 = 100;

/// Messages under way while the log grows.
const WINDOW: u32 = 64;

/// A start varies by a tenth; so many pairs resolve a mean of a few per cent.
const ROUNDS: usize = 2 * PAIRS_MIN;

/// Rounds of the short form where no ratio is promised.
const QUICK_ROUNDS: usize = 5;

/// Highest recovery time of hybrid logging over that of pessimistic logging.
const HYBRID_MAX: f64 = 1.10;

const HYBRID: Policy = Policy::Hybrid;
const PESSIMISTIC: Policy = Policy::Deferred;
const POLICIES: [Policy; 5] =
    [PESSIMISTIC, HYBRID, Policy::SenderBased, Policy::Causal { f: 1 }, Policy::Optimistic];

struct Measured {
    what: What,
    policy: Policy,
    cluster: Cluster,
    away_ms: Samples,
    /// What the node itself predicted before each kill.
    predicted_ms: Samples,
    /// Of both nodes, before the first kill.
    sender_log_bytes: f64,
    anonymous_bytes: u64,
    journal_bytes: f64,
    /// By the last recovery.
    replayed: f64,
}

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), LoggingError> {
    let mut figure = Figure {
        name: NAME,
        meaning: "the first of two nodes is killed with kill -9 and started anew: from the start of its process until it takes requests, \
                  having made up for every message since its beginning; no checkpoint was taken"
            .to_owned(),
        arms: Vec::new(),
        notes: vec!["payload: bytes of each message; window: messages to make up for".to_owned()],
    };
    let mut table = Table {
        name: "log",
        meaning: "the node's own prediction is the one before the first kill, made from how fast it ran, and the median of those from its last \
                  replay; per message to make up for; memory and journals are those of both nodes, just before the first kill; anonymous memory \
                  is in all, as the kernel counts it"
            .to_owned(),
        columns: [
            "arm",
            "level",
            "messages",
            "replayed",
            "recovery ms",
            "predicted ms, first",
            "predicted ms",
            "us per message",
            "sender log bytes",
            "anonymous MB in all",
            "journal bytes",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: Vec::new(),
    };
    for messages in setting.choose(vec![20_000], vec![1_000, 10_000, 100_000]) {
        setting.say(&format!("{NAME}, {messages} messages"));
        at(messages, setting, report, &mut figure, &mut table)?;
    }
    report.figures.push(figure);
    report.tables.push(table);
    Ok(())
}

fn at(
    messages: u32,
    setting: &Setting<'_>,
    report: &mut Report,
    figure: &mut Figure,
    table: &mut Table,
) -> Result<(), LoggingError> {
    let mut all = POLICIES
        .into_iter()
        .map(|policy| Measured::fill(policy, messages, setting))
        .collect::<Result<Vec<_>, _>>()?;
    for round in 0..ROUNDS {
        let mut order: Vec<_> = all.iter_mut().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let resolves = |policy| [PESSIMISTIC, HYBRID].contains(&policy);
        // The short form takes as many rounds as resolve a ratio only where one is promised.
        for measured in
            order.into_iter().filter(|of| !setting.quick || round < QUICK_ROUNDS || resolves(of.policy))
        {
            let predicted_seconds = measured.cluster.counter_of(0, "mainstay_recovery_seconds")?;
            measured.predicted_ms.push(predicted_seconds * 1e3);
            let away = measured.cluster.kill_and_wait(0)?;
            measured.away_ms.push(away.as_secs_f64() * 1e3);
        }
    }
    for measured in &mut all {
        measured.replayed = measured.cluster.counter_of(0, "mainstay_replayed_total")?;
    }
    let of = |policy| {
        let found = all.iter().find(|measured| measured.policy == policy);
        &found.expect("every arm was measured").away_ms
    };
    let ratios = of(HYBRID).ratios_to(of(PESSIMISTIC));
    let (mean, bound) = ratios.mean_with_bound();
    let bound = bound.expect("there are as many rounds as it takes");
    report.targets.push(Target::new(
        format!(
            "{NAME}, {messages} messages: hybrid, time over pessimistic's, upper end of the 95 % interval"
        ),
        mean + bound,
        Bound::AtMost,
        HYBRID_MAX,
        "x",
        Some(LEVEL),
    ));
    let resolved =
        if mean - bound <= HYBRID_MAX && mean + bound > HYBRID_MAX { ": not resolved" } else { "" };
    figure.notes.push(format!(
        "{messages} messages: hybrid's recovery over pessimistic's (deferred), {} pairs: mean {mean:.3} +- {bound:.3}{resolved}",
        ratios.values().len()
    ));
    for measured in all {
        table.rows.push(measured.row(messages));
        figure.arms.push(measured.into_arm(messages));
    }
    Ok(())
}

/// Of all arms: after kill -9, and that is what is measured, a journal at level disk holds no less and no more.
const LEVEL: Level = Level::Process;

impl Measured {
    fn fill(policy: Policy, messages: u32, setting: &Setting<'_>) -> Result<Self, LoggingError> {
        let what = What::Recoverable { policy, level: LEVEL };
        let mut cluster = Cluster::start(
            setting.given,
            setting.directory,
            &what,
            Pattern::Ring,
            2,
            segment_pages(setting),
        )?;
        cluster.run(&Load { messages, window: WINDOW.min(messages), bytes: MESSAGE_BYTES })?;
        let counters = cluster.counters()?;
        let counted = |name: &str| counters.get(name).copied().unwrap_or(0.0);
        Ok(Self {
            what,
            policy,
            away_ms: Samples::default(),
            predicted_ms: Samples::default(),
            sender_log_bytes: counted(SENDER_LOG_BYTES),
            anonymous_bytes: cluster.processes().into_iter().filter_map(anonymous_bytes).sum(),
            journal_bytes: counted("mainstay_journal_append_bytes_total"),
            replayed: 0.0,
            cluster,
        })
    }

    fn row(&self, messages: u32) -> Vec<String> {
        let per_message = |value: f64| number(value / f64::from(messages));
        vec![
            self.what.name(),
            LEVEL.to_string(),
            messages.to_string(),
            format!("{:.0}", self.replayed),
            number(self.away_ms.median()),
            number(self.predicted_ms.values()[0]),
            number(self.predicted_ms.median()),
            per_message(self.away_ms.median() * 1e3),
            per_message(self.sender_log_bytes),
            number(self.anonymous_bytes as f64 / 1e6),
            per_message(self.journal_bytes),
        ]
    }

    fn into_arm(self, messages: u32) -> Arm {
        Arm {
            name: self.what.name(),
            level: Some(LEVEL),
            window: messages,
            payload_bytes: u64::from(MESSAGE_BYTES),
            unit: "ms",
            operations: self.away_ms.values().len() as u64,
            cpu_ns_per_operation: None,
            disk: None,
            samples: self.away_ms,
        }
    }
}
