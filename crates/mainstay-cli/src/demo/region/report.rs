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
    /// Times all nodes were killed at the same time.
    pub(crate) power_offs: u64,
    /// Kills of a node that was not back yet after the one before.
    pub(crate) kills_joining: u64,
    /// Kills while another node was cut off.
    pub(crate) kills_in_cuts: u64,
    /// Times a node stood still, by SIGSTOP, until the others had gone on without it.
    pub(crate) stops: u64,
    /// Times a node was cut off from the others, with clients on both sides.
    pub(crate) cuts: u64,
    /// Cuts in which the node that was cut off refused a write and a read and gave the reason.
    pub(crate) cuts_refused: u64,
    /// Reads at one node, whatever was done to it, that were answered with a value and compared with what was acknowledged before.
    pub(crate) reads_checked: u64,
    /// Those that were refused.
    pub(crate) reads_refused: u64,
    /// Those that gave an old value, or one that nobody had asked for.
    pub(crate) reads_stale: u64,
    /// Client numbers, and memberships of nodes, that were given.
    pub(crate) ids_given: u64,
    /// Those that had been given before.
    pub(crate) ids_repeated: u64,
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
        self.findings.kept()
            && self.reads_stale + self.ids_repeated == 0
            && self.copies_equal
            && self.stopped_cleanly
            && self.cuts_refused == self.cuts
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
        row("  before it was back", &self.kills_joining, "killed again while it joined");
        row("all at once", &self.power_offs, "old clients ask again for what they were told before");
        row(
            "cuts",
            &self.cuts,
            &format!("one node against two, clients on both sides; {} with a kill", self.kills_in_cuts),
        );
        row("  refused with a reason", &self.cuts_refused, "a write and a read at the node that was cut off");
        row("stops", &self.stops, "SIGSTOP until the others go on without it, then SIGCONT");
        let note = format!(
            "each at one node, also while it was cut off or stood still; {} more refused",
            self.reads_refused
        );
        row("reads compared", &self.reads_checked, &note);
        let note = format!("median {:.0} ms, longest {:.0} ms", self.recovery_ms_p50, self.recovery_ms_max);
        row("recoveries", &self.recoveries, &note);
        row("longest pause", &format!("{:.0} ms", self.pause_ms_max), "between two answers to one client");
        let note = format!(
            "first answers given again; {} from before all were killed",
            found.asked_again_after_power_off
        );
        row("duplicates suppressed", &found.duplicates_suppressed, &note);
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
        row("reads stale", &self.reads_stale, "older than what was acknowledged before they were asked");
        row(
            "ids repeated",
            &self.ids_repeated,
            &format!("of {} client numbers and memberships", self.ids_given),
        );
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
