//! The audit: what the clients were answered, what the receivers received and what the service holds, against a ledger
//! that ran the same requests in the same order and never failed.
//!
//! The service says in each receipt which place it gave the operation; the oracle runs the requests, drawn again from
//! the seed, in that order. The chains in the receipts cover everything before, so that a place that was given twice,
//! left out, or reached by another way shows in all receipts after it.

use super::client::Entry;
use super::receiver::Received;
use super::requests::{request, share};
use super::run::{ListedOutput, Settings};
use crate::ledger::{Command, Ledger, NOTIFY_AGAIN, Notice, Receipt, View};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// How many of each kind of finding are described one by one.
const DESCRIBED_MAX: usize = 10;

/// What is audited.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    /// The demo's settings.
    pub(crate) settings: &'a Settings,
    /// The journals of the clients.
    pub(crate) clients: &'a [Vec<Entry>],
    /// What the receiver that drops repeated keys received.
    pub(crate) once: &'a [Received],
    /// What the other one received.
    pub(crate) again: &'a [Received],
    /// The service's last state.
    pub(crate) view: &'a View,
    /// The outputs whose fate the service does not know.
    pub(crate) in_doubt: &'a [ListedOutput],
}

/// What the audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Findings {
    /// Requests made.
    pub(crate) requests: u64,
    /// Requests without an answer, or whose answer is not part of the service's history.
    pub(crate) lost: u64,
    /// Operations that the service executed more often than they were asked for.
    pub(crate) doubled: u64,
    /// Answers that are not what the oracle answers at that place.
    pub(crate) answers_wrong: u64,
    /// Whether the service's last state is the oracle's.
    pub(crate) state_equal: bool,
    /// Outputs that the oracle emits.
    pub(crate) outputs: u64,
    /// Outputs that no receiver has, and that are not in doubt.
    pub(crate) outputs_lost: u64,
    /// Outputs that took effect at a receiver more than once.
    pub(crate) outputs_doubled: u64,
    /// Effects at a receiver that the oracle never emitted.
    pub(crate) outputs_unexplained: u64,
    /// Outputs that the service lists in doubt.
    pub(crate) outputs_in_doubt: u64,
    /// Those of them that had arrived.
    pub(crate) outputs_in_doubt_arrived: u64,
    /// Answers given again instead of executing again.
    pub(crate) answers_replayed: u64,
    /// Outputs dropped by the receiver that knew their keys.
    pub(crate) outputs_dropped: u64,
    /// Some findings in words.
    pub(crate) described: Vec<String>,
}

impl Findings {
    /// Whether the promise was kept.
    #[must_use]
    pub(crate) fn kept(&self) -> bool {
        let wrong = self.lost + self.doubled + self.answers_wrong;
        let outputs_wrong = self.outputs_lost + self.outputs_doubled + self.outputs_unexplained;
        wrong == 0 && outputs_wrong == 0 && self.state_equal
    }

    fn describe(&mut self, finding: String) {
        if self.described.len() < DESCRIBED_MAX {
            self.described.push(finding);
        }
    }
}

/// Audits.
#[must_use]
pub(crate) fn audit(evidence: &Evidence<'_>) -> Findings {
    let mut findings = Findings { requests: evidence.settings.requests, ..Findings::default() };
    let placed = place(evidence, &mut findings);
    let (oracle, notices) = compare_answers(&placed, &mut findings);
    let executed_unasked = evidence.view.operations.saturating_sub(evidence.settings.requests);
    if executed_unasked > 0 {
        findings.doubled = findings.doubled.max(executed_unasked);
        findings.describe(format!(
            "the service executed {} operations for {} requests",
            evidence.view.operations, evidence.settings.requests
        ));
    }
    findings.state_equal = *evidence.view == oracle.view(&crate::ledger::Query::default());
    if !findings.state_equal {
        findings.describe("the service's last state is not that of the oracle".to_owned());
    }
    audit_outputs(evidence, &notices, &mut findings);
    findings
}

/// One answered request.
struct Placed {
    name: String,
    command: Command,
    receipt: Receipt,
}

/// Puts all answered requests at the places that their receipts name.
fn place(evidence: &Evidence<'_>, findings: &mut Findings) -> BTreeMap<u64, Placed> {
    let mut placed: BTreeMap<u64, Placed> = BTreeMap::new();
    for (client, entries) in evidence.clients.iter().enumerate() {
        let mut answers = BTreeMap::new();
        for entry in entries {
            if let Entry::Answered { number, status, body, replayed } = entry {
                findings.answers_replayed += u64::from(*replayed);
                answers.insert(*number, (*status, body));
            }
        }
        for number in 0..share(evidence.settings.requests, client) {
            let name = format!("request {number} of client {client}");
            let Some((status, body)) = answers.get(&number) else {
                findings.lost += 1;
                findings.describe(format!("{name} has no answer"));
                continue;
            };
            if *status != 200 {
                findings.lost += 1;
                findings.describe(format!("{name} was refused with status {status}: {body}"));
                continue;
            }
            let receipt = match serde_json::from_str::<Receipt>(body) {
                Ok(receipt) => receipt,
                Err(_) => {
                    findings.answers_wrong += 1;
                    findings.describe(format!("{name} was answered with what is no receipt: {body}"));
                    continue;
                }
            };
            let place = receipt.operation;
            let command = request(evidence.settings.seed, client, number);
            if place > evidence.view.operations {
                findings.lost += 1;
                findings
                    .describe(format!("{name} was operation {place}, which the service no longer knows of"));
            } else if let Some(other) = placed.insert(place, Placed { name, command, receipt }) {
                findings.lost += 1;
                findings.describe(format!(
                    "{} and {} were both operation {place}",
                    other.name, placed[&place].name
                ));
            }
        }
    }
    placed
}

/// Runs the requests in the order of their places, without any failure, and compares every answer.
fn compare_answers(placed: &BTreeMap<u64, Placed>, findings: &mut Findings) -> (Ledger, Vec<Notice>) {
    let mut oracle = Ledger::default();
    let mut notices = Vec::new();
    for (place, Placed { name, command, receipt }) in placed {
        let unasked = place - oracle.operations - 1;
        if unasked > 0 {
            findings.doubled += unasked;
            findings.describe(format!("{unasked} operations before {place} answer no request"));
            oracle.operations += unasked;
        }
        let (expected, notice) = oracle.execute(command);
        notices.extend(notice);
        if expected != *receipt {
            findings.answers_wrong += 1;
            findings.describe(format!("{name}, operation {place}, was not answered as by the oracle"));
        }
    }
    (oracle, notices)
}

fn audit_outputs(evidence: &Evidence<'_>, notices: &[Notice], findings: &mut Findings) {
    let in_doubt: BTreeSet<&str> = evidence
        .in_doubt
        .iter()
        .filter(|output| output.port == NOTIFY_AGAIN)
        .map(|output| output.key.as_str())
        .collect();
    findings.outputs = 2 * notices.len() as u64;
    findings.outputs_in_doubt = evidence.in_doubt.len() as u64;
    findings.outputs_dropped = evidence.once.iter().filter(|received| received.dropped).count() as u64;
    let missing_once =
        compare_effects("the receiver that drops repeated keys", evidence.once, notices, findings);
    let missing_again =
        compare_effects("the receiver that takes everything", evidence.again, notices, findings);
    let arrived: BTreeSet<&str> = evidence.again.iter().map(|received| received.key.as_str()).collect();
    findings.outputs_in_doubt_arrived = in_doubt.iter().filter(|key| arrived.contains(*key)).count() as u64;
    // An output in doubt that did not arrive is listed by the service: a person decides. Any other one is lost.
    let excused = (in_doubt.len() as u64 - findings.outputs_in_doubt_arrived).min(missing_again);
    findings.outputs_lost = missing_once + missing_again - excused;
}

/// Counts what took effect too often or from nowhere; returns how many did not take effect.
fn compare_effects(
    receiver: &str,
    received: &[Received],
    notices: &[Notice],
    findings: &mut Findings,
) -> u64 {
    let mut effects: BTreeMap<Notice, u64> = BTreeMap::new();
    for received in received.iter().filter(|received| !received.dropped) {
        match serde_json::from_str(&received.body) {
            Ok(notice) => *effects.entry(notice).or_default() += 1,
            Err(_) => {
                findings.outputs_unexplained += 1;
                findings.describe(format!("{receiver} received what is no notice: {}", received.body));
            }
        }
    }
    let mut missing = 0;
    for notice in notices {
        let times = effects.remove(notice).unwrap_or(0);
        missing += u64::from(times == 0);
        if times > 1 {
            findings.outputs_doubled += times - 1;
            findings.describe(format!(
                "{receiver} received the notice of operation {} {times} times",
                notice.operation
            ));
        }
    }
    for (notice, times) in effects {
        findings.outputs_unexplained += times;
        findings.describe(format!(
            "{receiver} received a notice of operation {} that nobody emits",
            notice.operation
        ));
    }
    missing
}

#[cfg(test)]
#[path = "audit_test.rs"]
mod tests;
