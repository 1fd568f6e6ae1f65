//! The table at the end of a demo of a region, and the same as JSON.

use super::audit::{Findings, OfKind};
use super::{CLIENTS, NODES};
use crate::demo::report::{add_row, level_note};
use crate::demo::topology::Topology;
use mainstay_types::level::Level;
use serde::Serialize;

/// All figures of a demo: the names of the other demos, and more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    /// How the nodes are connected.
    pub(crate) topology: Topology,
    /// How many nodes there are.
    pub(crate) nodes: usize,
    /// What everything random was drawn from.
    pub(crate) seed: u64,
    /// Nodes killed with SIGKILL.
    pub(crate) kills: u64,
    /// Those that were killed together with another one.
    pub(crate) kills_with_others_down: u64,
    /// Those that hit while a client was waiting for an answer.
    pub(crate) kills_with_inflight: u64,
    /// Most nodes that were killed at the same time.
    pub(crate) down_max: usize,
    /// Times a node was cut off from the others, with clients on both sides.
    pub(crate) cuts: u64,
    /// Cuts in which the node that was cut off refused a write and gave the reason.
    pub(crate) cuts_refused: u64,
    /// Times a node came back.
    pub(crate) recoveries: u64,
    /// Median time from the start of a node's process until it served, in milliseconds.
    pub(crate) recovery_ms_p50: f64,
    /// Longest such time, in milliseconds.
    pub(crate) recovery_ms_max: f64,
    /// Longest time between two answers to a client, in milliseconds.
    pub(crate) pause_ms_max: f64,
    /// None: a region tells the outside nothing but answers.
    pub(crate) outputs_lost: u64,
    /// None.
    pub(crate) outputs_doubled: u64,
    /// None.
    pub(crate) outputs_in_doubt: u64,
    /// What a copy had survived before it said that it has a write.
    pub(crate) level: Level,
    /// Duration of the run, in seconds.
    pub(crate) seconds: f64,
    /// Whether copies at the same version were the same.
    pub(crate) copies_equal: bool,
    /// Whether all nodes ended with a seal and exit code 0.
    pub(crate) stopped_cleanly: bool,
    /// What the audit found.
    #[serde(flatten)]
    pub(crate) findings: Findings,
}

impl Report {
    /// Whether the promise was kept.
    #[must_use]
    pub(crate) fn kept(&self) -> bool {
        self.findings.kept() && self.copies_equal && self.stopped_cleanly && self.cuts_refused == self.cuts
    }

    /// The table.
    #[must_use]
    pub(crate) fn table(&self) -> String {
        let found = &self.findings;
        let yes_no = |yes: bool| if yes { "yes" } else { "NO" };
        let mut text = String::new();
        let mut row = |name: &str, value: &dyn ToString, note: &str| {
            add_row(&mut text, name, &value.to_string(), note);
        };
        row("nodes", &self.nodes, "acknowledged by a majority");
        row("requests", &found.requests, &format!("by {CLIENTS} clients in {:.1} s", self.seconds));
        row("kills -9", &self.kills, &format!("at most {} of {NODES} nodes at the same time", self.down_max));
        row("  with requests waiting", &self.kills_with_inflight, "sent and not answered");
        row("cuts", &self.cuts, "one node against two, clients on both sides");
        row("  refused with a reason", &self.cuts_refused, "a write at the node that was cut off");
        let note = format!("median {:.0} ms, longest {:.0} ms", self.recovery_ms_p50, self.recovery_ms_max);
        row("recoveries", &self.recoveries, &note);
        row("longest pause", &format!("{:.0} ms", self.pause_ms_max), "between two answers to one client");
        row("duplicates suppressed", &found.duplicates_suppressed, "first answers given again");
        let kind = |of_kind: &OfKind| {
            format!("requests; {} writes acknowledged, {} unknown", of_kind.acknowledged, of_kind.unknown)
        };
        row("with identity", &found.with_identity.requests, &kind(&found.with_identity));
        row("without", &found.without_identity.requests, &kind(&found.without_identity));
        text.push('\n');
        let mut row = |name: &str, value: &dyn ToString, note: &str| {
            add_row(&mut text, name, &value.to_string(), note);
        };
        row("lost", &found.lost, "keys from which something acknowledged is missing");
        row("doubled", &found.doubled, "keys in which something took effect twice");
        row("answers wrong", &found.answers_wrong, "or another version than the acknowledged one");
        row("copies equal", &yes_no(self.copies_equal), "");
        row("stopped cleanly", &yes_no(self.stopped_cleanly), "");
        row("level", &self.level, level_note(self.level));
        for finding in &found.described {
            text.push_str(&format!("  ! {finding}\n"));
        }
        text
    }
}
