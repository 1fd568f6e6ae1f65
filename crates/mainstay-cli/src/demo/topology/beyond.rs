//! `--beyond`: at the end more nodes crash at once than the policy survives, and the audit is of what the nodes then say.
//!
//! The nodes name what is lost, those that depend on it go back, and all requests are answered. Then every answer is asked for again: it must be
//! the same, but where the node that gave it says that it lost, or undid, what it had delivered behind some place, and the answer was made
//! behind it. Anything else that is lost was lost in silence. In the end every node must have folded every request once: who folded more
//! did something twice.

use super::crash::Processes;
use super::plan::Strike;
use super::policies::Policies;
use super::requests::{key, request};
use super::ring::Receipt;
use super::run::{RollbackRecord, RunFolder, Settings};
use super::top::{self, Ending};
use super::{NODES, Role};
use crate::asking::agent;
use crate::demo::board::Board;
use crate::demo::client::{CALL_DEADLINE, Entry, ask_within, plain_agent};
use crate::demo::draw::Draw;
use crate::demo::lines;
use crate::demo::plan::Moment;
use crate::demo::report::add_row;
use crate::demo::requests::{CLIENTS, share};
use anyhow::Context;
use mainstay_process::loss::{Loss, UNDONE_REQUESTS_NAMED_MAX};
use mainstay_types::level::Level;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The purpose of what is drawn here.
const PURPOSE: u64 = u64::MAX - 2;

/// Undone requests that the table names of each loss.
const UNDONE_SHOWN_MAX: usize = 3;

/// What was said, and what was lost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    /// How the nodes log.
    pub(crate) policy: Policies,
    /// What everything random was drawn from.
    pub(crate) seed: u64,
    /// What the acknowledgements waited for.
    pub(crate) level: Level,
    /// Nodes killed before, within what the policy survives.
    pub(crate) kills: u64,
    /// The nodes that crashed at once at the end.
    pub(crate) crashed: Vec<String>,
    /// What nodes say is lost.
    pub(crate) losses: Vec<Stated>,
    /// Nodes that took back what depended on what another one lost.
    pub(crate) rolled_back: Vec<String>,
    /// Nodes that are not ready: they wait for one that refuses them.
    pub(crate) not_ready: Vec<String>,
    /// Whether all requests were answered all the same.
    pub(crate) went_on: bool,
    /// Answers that were asked for again.
    pub(crate) answers_repeated: u64,
    /// Those that are lost, as the node that gave them says.
    pub(crate) lost_and_named: u64,
    /// Those that are lost and no node says so.
    pub(crate) lost_in_silence: u64,
    /// Folds that a node made beyond one for each request.
    pub(crate) doubled: u64,
    /// Folds that are not there, now that everything was asked for again.
    pub(crate) missing: u64,
    /// Some of them in words.
    pub(crate) described: Vec<String>,
    /// Duration of the run, in seconds.
    pub(crate) seconds: f64,
}

/// One loss, and the node that says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Stated {
    /// The node.
    pub(crate) by: String,
    /// What.
    pub(crate) loss: Loss,
}

/// What `GET /losses` says.
#[derive(Deserialize)]
struct Losses {
    losses: Vec<Loss>,
}

/// With fewer of the requests by name.
fn shortened(loss: &Loss) -> Loss {
    let mut loss = loss.clone();
    if let Loss::Undone { named, .. } = &mut loss {
        named.truncate(UNDONE_SHOWN_MAX);
    }
    loss
}

/// The last words of the demo: whether that was as promised, and where to look next.
#[must_use]
pub(crate) fn closing_words(report: &Report, folder: &RunFolder, keep: bool) -> String {
    let Report { lost_and_named, policy, .. } = report;
    let mut words = if report.kept() {
        format!(
            "As promised beyond what {policy} survives: {lost_and_named} answers were lost, all of them named by the nodes that gave them; nothing \
             else was lost, nothing was done twice, and all went on by themselves.\n"
        )
    } else if report.went_on {
        "THE PROMISE WAS BROKEN; the lines marked with ! and the figures above say where.\n".to_owned()
    } else {
        "THE PROMISE WAS BROKEN: the nodes did not go on by themselves.\n".to_owned()
    };
    words.push_str("\nWhere to look next:\n");
    if keep {
        words.push_str(&format!(
            "  mainstay journal dump {}    every record of a node, also what it states as lost\n  \
               {}    what clients and nodes wrote\n",
            folder.node(0).display(),
            folder.path().display()
        ));
    } else {
        words.push_str("  mainstay demo --topology pipeline --beyond --keep      keep the files\n");
    }
    words.push_str(&format!(
        "  curl URL/losses                                        what a running node states as lost\n  \
           mainstay demo --topology pipeline --beyond --json      the figures, and up to {UNDONE_REQUESTS_NAMED_MAX} undone requests of a loss by name\n  \
           docs/message-logging.md                                \"More failures than a policy survives\""
    ));
    words
}

/// As many machines at once as are too many.
#[must_use]
pub(crate) fn strike(settings: &Settings, nodes: usize) -> Strike {
    let mut draw = Draw::new(settings.seed, PURPOSE);
    let mut chosen: Vec<usize> = (0..NODES).collect();
    draw.shuffle(&mut chosen);
    chosen.truncate(nodes);
    Strike {
        nodes: chosen,
        moment: Moment::Working,
        machine: true,
        after_answered: 0,
        delay: draw.fraction(),
    }
}

/// Runs the demo up to the crash that is too much, and asks the nodes what is left.
///
/// # Errors
/// When it cannot be run to its end; what is lost is no error.
pub(crate) fn run(
    folder: &RunFolder,
    settings: &Settings,
    last: &Strike,
    interrupted: &AtomicBool,
) -> anyhow::Result<Report> {
    let began = Instant::now();
    let board = Board::open(&folder.board())?;
    let mut processes = Processes::start(folder, settings.seed)?;
    let (kills, ending) = top::watch(folder, settings, Some(last), &board, &mut processes, interrupted)?;
    let took = began.elapsed();
    let name = |node: usize| Role::Node(node).to_string();
    let agent = agent(CALL_DEADLINE);
    let (mut losses, mut rolled_back) = (Vec::new(), Vec::new());
    for node in 0..NODES {
        let said = agent.get(format!("{}/losses", settings.url(node))).call();
        let mut said = said.with_context(|| format!("{} does not say what is lost", name(node)))?;
        let Losses { losses: said } = serde_json::from_slice(&said.body_mut().read_to_vec()?)?;
        losses.extend(said.into_iter().map(|loss| Stated { by: name(node), loss }));
        if !lines::read::<RollbackRecord>(&folder.rollbacks(node))?.is_empty() {
            rolled_back.push(name(node));
        }
    }
    let not_ready: BTreeSet<usize> = processes.down()?.into_iter().collect();
    let mut report = Report {
        policy: settings.policy,
        seed: settings.seed,
        level: settings.level,
        kills: kills.len() as u64 - last.nodes.len() as u64,
        crashed: last.nodes.iter().map(|node| name(*node)).collect(),
        losses,
        rolled_back,
        not_ready: not_ready.iter().map(|node| name(*node)).collect(),
        went_on: ending == Ending::Complete,
        answers_repeated: 0,
        lost_and_named: 0,
        lost_in_silence: 0,
        doubled: 0,
        missing: 0,
        described: Vec::new(),
        seconds: took.as_secs_f64(),
    };
    ask_again(folder, settings, &not_ready, &mut report)?;
    if report.went_on {
        count_folds(settings, &mut report)?;
    }
    Ok(report)
}

/// Compares what every node folded with what was asked for: each request once at every node, and once more where it was asked.
fn count_folds(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let mut expected = [settings.requests; NODES];
    for client in 0..CLIENTS {
        for number in 0..share(settings.requests, client) {
            expected[request(settings.seed, client, number).0] += 1;
        }
    }
    for (node, expected) in expected.into_iter().enumerate() {
        let folds = top::view(settings, node)?.folds;
        report.doubled += folds.saturating_sub(expected);
        report.missing += expected.saturating_sub(folds);
    }
    Ok(())
}

/// Asks for answers given, the latest first: they have most to lose.
fn ask_again(
    folder: &RunFolder,
    settings: &Settings,
    not_ready: &BTreeSet<usize>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let agent = plain_agent();
    // Who has lost a request executes it again. Where nothing goes on it may have to wait for a node that never comes.
    let patience = if report.went_on { CALL_DEADLINE } else { Duration::ZERO };
    for client in 0..CLIENTS {
        let entries: Vec<Entry> = lines::read(&folder.client(client))?;
        let answers = entries.into_iter().rev().filter_map(|entry| match entry {
            Entry::Answered { number, status: 200, body, .. } => Some((number, body)),
            _ => None,
        });
        for (number, first) in answers {
            let (node, request) = request(settings.seed, client, number);
            if not_ready.contains(&node) {
                continue;
            }
            report.answers_repeated += 1;
            let (url, key) = (format!("{}/call", settings.url(node)), key(settings.seed, client, number));
            let again = ask_within(patience, &agent, &url, &key, &serde_json::to_vec(&request)?);
            if again.is_ok_and(|again| again.status == 200 && again.body == first.as_bytes()) {
                continue;
            }
            let receipt: Receipt = serde_json::from_str(&first).context("an answer is a receipt")?;
            if report.names(node, &receipt) {
                report.lost_and_named += 1;
            } else {
                report.lost_in_silence += 1;
                report.described.push(format!(
                    "{} lost its answer to request {number} of client {client} and does not say so: {first}",
                    Role::Node(node)
                ));
            }
        }
    }
    Ok(())
}

impl Report {
    /// Whether the node says that it lost what it answered so. Each of its deliveries is one fold, so that places are delivery indices.
    fn names(&self, node: usize, receipt: &Receipt) -> bool {
        let name = Role::Node(node).to_string();
        let last = receipt.folds.iter().filter(|fold| fold.node == node).map(|fold| fold.place).max();
        self.losses.iter().any(|Stated { by, loss }| match loss {
            Loss::Recovered { recovered: left, .. } | Loss::Undone { kept: left, .. } => {
                *by == name && last > Some(left.0)
            }
            Loss::Orphan { .. } | Loss::Ahead { .. } => false,
        })
    }

    /// Whether nothing was lost but what the nodes say, nothing was done twice, and all went on.
    #[must_use]
    pub(crate) fn kept(&self) -> bool {
        self.went_on && self.lost_in_silence == 0 && self.doubled == 0 && self.missing == 0
    }

    /// The table.
    #[must_use]
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, value: &dyn ToString, note: &str| {
            add_row(&mut text, name, &value.to_string(), note);
        };
        let crashed = format!("{} at once, policy {}", self.crashed.join(", "), self.policy);
        row("kills before", &self.kills, "within what the policy survives");
        row("machines crashed", &self.crashed.len(), &crashed);
        row("losses stated", &self.losses.len(), "by the nodes, at GET /losses");
        row("rolled back", &self.rolled_back.len(), &self.rolled_back.join(", "));
        row("not ready", &self.not_ready.len(), &self.not_ready.join(", "));
        row("answers asked again", &self.answers_repeated, "all of them");
        row("  lost and named", &self.lost_and_named, "by the node that gave them");
        row("  lost in silence", &self.lost_in_silence, "");
        row("doubled", &self.doubled, "folds beyond one for each request");
        row("missing", &self.missing, "folds, with everything asked for again");
        let went_on = if self.went_on { "yes" } else { "no" };
        row("went on by itself", &went_on, "all requests answered all the same");
        for Stated { by, loss } in &self.losses {
            text.push_str(&format!("  {by}: {}\n", shortened(loss)));
        }
        for described in &self.described {
            text.push_str(&format!("  ! {described}\n"));
        }
        text
    }
}
