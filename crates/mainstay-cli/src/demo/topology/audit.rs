//! The audit: the answers of all requests and the last states of all nodes, against nodes that never failed.
//!
//! Each answer says at which place of which node its request was folded. The oracle is a ring of the same handlers'
//! [`Chains`] that folds the requests, drawn again from the seed, in the order that the places say, and only what could have been
//! folded then: a request that was asked, or the oldest message on its way from the node before. A place that was given
//! twice, left out, or reached by another way shows in the chains of all answers after it; a node that depended on a
//! state that another one lost shows in an order that no run without failures has.

use super::NODES;
use super::requests::request;
use super::ring::{Chains, FOLDS, Fold, Receipt, Request};
use crate::demo::client::Entry;
use crate::demo::requests::{CLIENTS, share};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// How many findings are described one by one.
const DESCRIBED_MAX: usize = 10;

/// What is audited.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    /// What the requests were drawn from.
    pub(crate) seed: u64,
    /// Requests of all clients together.
    pub(crate) requests: u64,
    /// The journals of the clients.
    pub(crate) clients: &'a [Vec<Entry>],
    /// What the nodes answered to some requests when all was over.
    pub(crate) repeated: &'a [Repeated],
    /// The nodes' last states.
    pub(crate) views: &'a [Chains],
}

/// The answer to a request that had been answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repeated {
    /// Whose.
    pub(crate) client: usize,
    /// Which.
    pub(crate) number: u64,
    /// HTTP status.
    pub(crate) status: u16,
    /// The body as received.
    pub(crate) body: Vec<u8>,
}

/// What the audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Findings {
    /// Requests made.
    pub(crate) requests: u64,
    /// Requests without an answer, or whose answer is not part of the nodes' histories.
    pub(crate) lost: u64,
    /// Folds that answer no request.
    pub(crate) doubled: u64,
    /// Answers that nodes without failures would not have given, and answers that were another one the second time.
    pub(crate) answers_wrong: u64,
    /// Whether the nodes' last states are the oracle's.
    pub(crate) state_equal: bool,
    /// Requests that were repeated when all was over.
    pub(crate) answers_repeated: u64,
    /// Answers given again instead of folding again, while nodes were killed.
    pub(crate) answers_replayed: u64,
    /// Some findings in words.
    pub(crate) described: Vec<String>,
}

impl Findings {
    /// Whether the promise was kept.
    #[must_use]
    pub(crate) fn kept(&self) -> bool {
        self.lost + self.doubled + self.answers_wrong == 0 && self.state_equal
    }

    fn describe(&mut self, finding: String) {
        if self.described.len() < DESCRIBED_MAX {
            self.described.push(finding);
        }
    }
}

/// One answered request.
struct Answered {
    name: String,
    node: usize,
    request: Request,
    receipt: Receipt,
}

/// Which fold of which answered request.
type Step = (usize, usize);

/// Audits.
#[must_use]
pub(crate) fn audit(evidence: &Evidence<'_>) -> Findings {
    let mut findings = Findings { requests: evidence.requests, ..Findings::default() };
    let answered = answered(evidence, &mut findings);
    let places = place(evidence, &answered, &mut findings);
    let oracle = run(&answered, places, &mut findings);
    findings.state_equal = oracle == evidence.views;
    if !findings.state_equal {
        findings.describe("the nodes' last states are not those of the oracle".to_owned());
    }
    findings
}

/// Reads the answers, and compares those that were asked for twice.
fn answered(evidence: &Evidence<'_>, findings: &mut Findings) -> Vec<Answered> {
    let mut bodies = BTreeMap::new();
    for (client, entries) in evidence.clients.iter().enumerate() {
        for entry in entries {
            if let Entry::Answered { number, status, body, replayed } = entry {
                findings.answers_replayed += u64::from(*replayed);
                bodies.insert((client, *number), (*status, body));
            }
        }
    }
    for Repeated { client, number, status, body } in evidence.repeated {
        findings.answers_repeated += 1;
        let first = bodies.get(&(*client, *number));
        if first.is_none_or(|(first_status, first)| first_status != status || first.as_bytes() != body) {
            findings.answers_wrong += 1;
            findings.describe(format!(
                "request {number} of client {client} was answered otherwise the second time"
            ));
        }
    }
    let mut answered = Vec::new();
    for client in 0..CLIENTS {
        for number in 0..share(evidence.requests, client) {
            let name = format!("request {number} of client {client}");
            let Some((status, body)) = bodies.get(&(client, number)) else {
                findings.lost += 1;
                findings.describe(format!("{name} has no answer"));
                continue;
            };
            if *status != 200 {
                findings.lost += 1;
                findings.describe(format!("{name} was refused with status {status}: {body}"));
                continue;
            }
            let (node, request) = request(evidence.seed, client, number);
            let receipt = serde_json::from_str::<Receipt>(body).ok().filter(|receipt| {
                let around = (0..FOLDS).map(|step| (node + step) % NODES);
                receipt.folds.iter().map(|fold| fold.node).eq(around)
            });
            match receipt {
                Some(receipt) => answered.push(Answered { name, node, request, receipt }),
                None => {
                    findings.answers_wrong += 1;
                    findings.describe(format!("{name} was answered with what is no receipt for it: {body}"));
                }
            }
        }
    }
    answered
}

/// Puts all folds at the places that the answers name: for each node, by place.
fn place(
    evidence: &Evidence<'_>,
    answered: &[Answered],
    findings: &mut Findings,
) -> Vec<BTreeMap<u64, Step>> {
    let mut places = vec![BTreeMap::new(); NODES];
    for (index, answer) in answered.iter().enumerate() {
        let mut lost = None;
        for (step, fold) in answer.receipt.folds.iter().enumerate() {
            let Fold { node, place, .. } = *fold;
            if place > evidence.views[node].folds {
                lost = Some(format!("is fold {place} of node {node}, which the node no longer knows of"));
            } else if let Some((other, _)) = places[node].insert(place, (index, step)) {
                lost = Some(format!("and {} were both fold {place} of node {node}", answered[other].name));
            }
        }
        if let Some(how) = lost {
            findings.lost += 1;
            findings.describe(format!("{} {how}", answer.name));
        }
    }
    for (node, (places, view)) in places.iter().zip(evidence.views).enumerate() {
        let unasked = view.folds.saturating_sub(places.len() as u64);
        if unasked > 0 {
            findings.doubled += unasked;
            findings.describe(format!("{unasked} of {} folds of node {node} answer no request", view.folds));
        }
    }
    places
}

/// Folds the requests in the order of their places, without any failure, and compares every answer.
fn run(answered: &[Answered], places: Vec<BTreeMap<u64, Step>>, findings: &mut Findings) -> Vec<Chains> {
    let mut oracle = vec![Chains::default(); NODES];
    let mut coming: Vec<VecDeque<(Step, Vec<Fold>)>> = vec![VecDeque::new(); NODES];
    let mut left: Vec<VecDeque<(u64, Step)>> =
        places.into_iter().map(|places| places.into_iter().collect()).collect();
    let mut wrong = vec![false; answered.len()];
    loop {
        let mut moved = false;
        for node in 0..NODES {
            while let Some(&(place, (index, step))) = left[node].front() {
                let before = match step {
                    0 => Some(Vec::new()),
                    _ => coming[node]
                        .pop_front_if(|(oldest, _)| *oldest == (index, step))
                        .map(|(_, folds)| folds),
                };
                let Some(mut folds) = before else { break };
                left[node].pop_front();
                moved = true;
                oracle[node].folds = place - 1;
                folds.push(oracle[node].fold(node, &answered[index].request, &folds));
                wrong[index] |= folds[step] != answered[index].receipt.folds[step];
                if step + 1 < FOLDS {
                    coming[(node + 1) % NODES].push_back(((index, step + 1), folds));
                }
            }
        }
        if !moved {
            break;
        }
    }
    for (index, answer) in answered.iter().enumerate() {
        if wrong[index] {
            findings.answers_wrong += 1;
            let node = answer.node;
            findings.describe(format!(
                "{}, asked of node {node}, was not answered as by the oracle",
                answer.name
            ));
        }
    }
    let stuck: usize = left.iter().map(VecDeque::len).sum();
    if stuck > 0 {
        findings.answers_wrong += 1;
        findings.describe(format!(
            "{stuck} folds cannot have happened at their places: what they depend on comes later or never came, first {:?}",
            left.iter().enumerate().filter_map(|(node, left)| Some((node, left.front()?.0))).collect::<Vec<_>>()
        ));
    }
    oracle
}

#[cfg(test)]
#[path = "audit_test.rs"]
mod tests;
