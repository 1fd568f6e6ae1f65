//! The table at the end of a demo with several nodes, and the same as JSON.

use super::audit::Findings;
use super::policies::Policies;
use super::run::{KillRecord, Settings};
use super::{NODES, Topology};
use crate::demo::report::{add_row, level_note};
use crate::demo::requests::CLIENTS;
use crate::demo::run::RecoveryRecord;
use mainstay_types::level::Level;
use serde::Serialize;
use std::time::Duration;

/// All figures of a demo: the names of the demo with one service, and more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    /// How the nodes are connected.
    pub(crate) topology: Topology,
    /// How many nodes there are.
    pub(crate) nodes: usize,
    /// How they log.
    pub(crate) policy: Policies,
    /// What everything random was drawn from.
    pub(crate) seed: u64,
    /// Nodes killed with SIGKILL.
    pub(crate) kills: u64,
    /// Those of them that lost what was in memory, as with the power of their machine.
    pub(crate) kills_of_machines: u64,
    /// Those of them whose disk lost, by chance, what it had not synced.
    pub(crate) power_cuts: u64,
    /// Those that hit while another node was down or recovering, or at the same time.
    pub(crate) kills_with_others_down: u64,
    /// Those that hit a node between taking the lock of its directory and being ready.
    pub(crate) kills_in_recovery: u64,
    /// Those that hit a node while a checkpoint was half written.
    pub(crate) kills_in_checkpoint: u64,
    /// Those that hit while a client was waiting for an answer.
    pub(crate) kills_with_inflight: u64,
    /// Most nodes that were down at the same time.
    pub(crate) down_max: usize,
    /// Times a node came back.
    pub(crate) recoveries: u64,
    /// Median time from the start of a node's process until it was ready, in milliseconds.
    pub(crate) recovery_ms_p50: f64,
    /// Longest such time, in milliseconds.
    pub(crate) recovery_ms_max: f64,
    /// Deliveries replayed, all recoveries together.
    pub(crate) replayed: u64,
    /// Times a node took back what depended on a state that another one lost.
    pub(crate) orphans_rolled_back: u64,
    /// Requests answered again instead of executed again.
    pub(crate) duplicates_suppressed: u64,
    /// None: this service tells the outside nothing but answers.
    pub(crate) outputs_lost: u64,
    /// None.
    pub(crate) outputs_doubled: u64,
    /// None.
    pub(crate) outputs_in_doubt: u64,
    /// What the acknowledgements waited for.
    pub(crate) level: Level,
    /// Duration of the run, in seconds.
    pub(crate) seconds: f64,
    /// Whether all nodes ended with a seal and exit code 0.
    pub(crate) stopped_cleanly: bool,
    /// What the audit found.
    #[serde(flatten)]
    pub(crate) findings: Findings,
}

impl Report {
    /// Sums up.
    #[must_use]
    pub(crate) fn new(
        settings: &Settings,
        kills: &[KillRecord],
        recoveries: &[RecoveryRecord],
        rollbacks: u64,
        stopped_cleanly: bool,
        findings: Findings,
        took: Duration,
    ) -> Self {
        let count =
            |wanted: &dyn Fn(&KillRecord) -> bool| kills.iter().filter(|kill| wanted(kill)).count() as u64;
        let recoveries: Vec<&RecoveryRecord> = recoveries.iter().filter(|ready| !ready.created).collect();
        let mut times: Vec<f64> = recoveries.iter().map(|ready| ready.recovery_ms).collect();
        times.sort_by(f64::total_cmp);
        Self {
            topology: settings.topology,
            nodes: NODES,
            policy: settings.policy,
            seed: settings.seed,
            kills: kills.len() as u64,
            kills_of_machines: count(&|kill| kill.machine),
            power_cuts: count(&|kill| kill.power),
            kills_with_others_down: count(&|kill| kill.down > 1),
            kills_in_recovery: count(&|kill| kill.recovering),
            kills_in_checkpoint: count(&|kill| kill.checkpointing),
            kills_with_inflight: count(&|kill| kill.in_flight),
            down_max: kills.iter().map(|kill| kill.down).max().unwrap_or(0),
            recoveries: recoveries.len() as u64,
            recovery_ms_p50: times.get(times.len() / 2).copied().unwrap_or(0.0),
            recovery_ms_max: times.last().copied().unwrap_or(0.0),
            replayed: recoveries.iter().map(|ready| ready.replayed).sum(),
            orphans_rolled_back: rollbacks,
            duplicates_suppressed: findings.answers_replayed,
            outputs_lost: 0,
            outputs_doubled: 0,
            outputs_in_doubt: 0,
            level: settings.level,
            seconds: took.as_secs_f64(),
            stopped_cleanly,
            findings,
        }
    }

    /// Whether the promise was kept.
    #[must_use]
    pub(crate) fn kept(&self) -> bool {
        self.findings.kept() && self.stopped_cleanly
    }

    /// The table.
    #[must_use]
    pub(crate) fn table(&self) -> String {
        let found = &self.findings;
        let yes_no = |yes: bool| if yes { "yes" } else { "NO" };
        let each: Vec<String> = self.policy.each().iter().map(ToString::to_string).collect();
        let mut text = String::new();
        let mut row = |name: &str, value: &dyn ToString, note: &str| {
            add_row(&mut text, name, &value.to_string(), note);
        };
        row("nodes", &self.nodes, &format!("logging {}", each.join(", ")));
        let note = format!("by {CLIENTS} client processes in {:.1} s, each around all nodes", self.seconds);
        row("requests", &found.requests, &note);
        let note = format!("at most {} of {} nodes down at the same time", self.down_max, self.nodes);
        row("kills -9", &self.kills, &note);
        row("  of machines", &self.kills_of_machines, "what was in memory only is gone, as without power");
        if self.power_cuts > 0 {
            row("    with their power", &self.power_cuts, "and what the disk had not synced, by chance");
        }
        row("  with others down", &self.kills_with_others_down, "or recovering");
        row("  in recovery", &self.kills_in_recovery, "holding its directory, not ready yet");
        row("  in a checkpoint", &self.kills_in_checkpoint, "found half written afterwards");
        row("  with requests waiting", &self.kills_with_inflight, "sent and not answered");
        let note = format!("median {:.1} ms, longest {:.1} ms", self.recovery_ms_p50, self.recovery_ms_max);
        row("recoveries", &self.recoveries, &note);
        row("  deliveries replayed", &self.replayed, "");
        row("rollbacks", &self.orphans_rolled_back, "a node took back what depended on what another lost");
        row("duplicates suppressed", &self.duplicates_suppressed, "answers given again");
        text.push('\n');
        let mut row = |name: &str, value: &dyn ToString, note: &str| {
            add_row(&mut text, name, &value.to_string(), note);
        };
        row("lost", &found.lost, "requests without an answer that the histories hold");
        row("doubled", &found.doubled, "operations executed more often than asked for");
        let note = format!("not what nodes without failures answer; {} asked twice", found.answers_repeated);
        row("answers wrong", &found.answers_wrong, &note);
        row("last states as oracle's", &yes_no(found.state_equal), "");
        row("stopped cleanly", &yes_no(self.stopped_cleanly), "");
        row("level", &self.level, level_note(self.level));
        for finding in &found.described {
            text.push_str(&format!("  ! {finding}\n"));
        }
        text
    }
}
