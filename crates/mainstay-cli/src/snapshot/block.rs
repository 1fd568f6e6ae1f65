//! Blocks the nodes of a cluster for a snapshot, lets them go on or stops them: performs what the coordinator decides.

use super::take::LOOK_EVERY;
use crate::asking::agent;
use anyhow::bail;
use mainstay_process::blocking::BlockReport;
use mainstay_process::coordinator::{Coordinator, Next, unfinished};
use mainstay_types::rules::Rules;
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Nodes that are kept blocked are told so this often: well below the limit of any node.
const RENEW_EVERY: Duration = Duration::from_millis(500);

/// How long nodes may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Named {
    snapshot: String,
}

/// Nodes that are blocked. They go on when it is dropped.
pub(super) struct Block {
    agent: ureq::Agent,
    nodes: Vec<String>,
    snapshot: String,
}

impl Block {
    /// Blocks all nodes, and has them cut once no message is on its way.
    ///
    /// # Errors
    /// Why not; then all have been let go on.
    pub(super) fn until_all_have_cut(
        agent: &ureq::Agent,
        nodes: &[String],
        first: usize,
        deadline: Instant,
    ) -> Result<Self, String> {
        let named = post(agent, &format!("{}/snapshots/block", nodes[first]))?;
        let Named { snapshot } = serde_json::from_str(&named)
            .map_err(|error| format!("{} answers something else: {error}", nodes[first]))?;
        let block = Self { agent: agent.clone(), nodes: nodes.to_vec(), snapshot };
        for (_, node) in nodes.iter().enumerate().filter(|(place, _)| *place != first) {
            block.ask(node, "block")?;
        }
        eprintln!("blocking snapshot {}: all nodes are blocked", block.snapshot);
        let mut coordinator = Coordinator::new(Rules::KEPT);
        loop {
            let reports = block.look()?;
            match coordinator.looked(&reports) {
                Next::Done => return Ok(block),
                Next::Cut => block.nodes.iter().try_for_each(|node| block.ask(node, "cut"))?,
                Next::LookAgain if Instant::now() >= deadline => {
                    let on = unfinished(&reports).unwrap_or_else(|| "not all have cut".to_owned());
                    return Err(format!("snapshot {} took too long: {on}", block.snapshot));
                }
                Next::LookAgain => std::thread::sleep(LOOK_EVERY),
                Next::Abort(why) => {
                    let on = unfinished(&reports).map(|on| format!("; {on}")).unwrap_or_default();
                    return Err(format!("snapshot {} failed: {why}{on}", block.snapshot));
                }
            }
        }
    }

    pub(super) fn snapshot(&self) -> &str {
        &self.snapshot
    }

    fn ask(&self, node: &str, what: &str) -> Result<(), String> {
        post(&self.agent, &format!("{node}/snapshots/{}/{what}", self.snapshot)).map(drop)
    }

    fn look(&self) -> Result<Vec<BlockReport>, String> {
        let one = |node: &String| {
            let url = format!("{node}/snapshots/{}/block", self.snapshot);
            let answered = self.agent.get(&url).call();
            let mut response = answered.map_err(|error| format!("{url} does not answer: {error}"))?;
            let text = response.body_mut().read_to_string().unwrap_or_default();
            serde_json::from_str(&text).map_err(|_| format!("{url} answers {}: {text}", response.status()))
        };
        self.nodes.iter().map(one).collect()
    }

    /// Whether the life of a node that was told to stop goes on. Its successor recovers, or is not blocked.
    fn still_runs(&self, node: &str) -> bool {
        let answered = self.agent.get(format!("{node}/snapshots/{}/block", self.snapshot)).call();
        let Ok(mut response) = answered else { return false };
        if response.headers().get("mainstay-error").is_some_and(|code| code == "unavailable-recovering") {
            return false;
        }
        let text = response.body_mut().read_to_string().unwrap_or_default();
        serde_json::from_str::<BlockReport>(&text).map_or(true, |report| report.blocked)
    }

    fn release(&self) {
        for node in &self.nodes {
            // Who does not hear it goes on when its limit in time is reached.
            let _ = self.ask(node, "release");
        }
    }

    /// Keeps the nodes blocked beyond their limit in time, for as long as this process lives.
    pub(super) fn keep(self) -> Kept {
        let over = Arc::new(AtomicBool::new(false));
        let (agent, snapshot, nodes) = (self.agent.clone(), self.snapshot.clone(), self.nodes.clone());
        let seen = Arc::clone(&over);
        let renewing = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                for node in &nodes {
                    // Who is not blocked any more is found out by the next look.
                    let _ = post(&agent, &format!("{node}/snapshots/{snapshot}/renew"));
                }
                std::thread::park_timeout(RENEW_EVERY);
            }
        });
        Kept { block: self, over, renewing: Some(renewing) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.release();
    }
}

/// Nodes that stay blocked. They go on when it is dropped.
pub(super) struct Kept {
    block: Block,
    over: Arc<AtomicBool>,
    renewing: Option<JoinHandle<()>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(renewing) = self.renewing.take() {
            renewing.thread().unpark();
            let _ = renewing.join();
        }
    }
}

/// Stops all nodes in the state of the cut, and waits until they have.
///
/// # Errors
/// When a node has not said that it stopped: it crashed, or went on, in that moment.
pub(super) fn stop(kept: Kept) -> anyhow::Result<()> {
    let block = &kept.block;
    let all_wait = block.look().is_ok_and(|reports| reports.iter().all(|report| report.blocked));
    if !all_wait {
        bail!(
            "no node was stopped: not all are blocked for snapshot {} any more. They go on; take another one",
            block.snapshot
        );
    }
    let patient = agent(STOP_WITHIN);
    let stopped: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let stop = |node| {
            let url = format!("{node}/snapshots/{}/stop", block.snapshot);
            let patient = &patient;
            scope.spawn(move || post(patient, &url).map(drop))
        };
        let told: Vec<_> = block.nodes.iter().map(stop).collect();
        told.into_iter().map(|told| told.join().unwrap_or_else(|_| Err("no thread".to_owned()))).collect()
    });
    let why: Vec<String> = stopped.into_iter().filter_map(Result::err).collect();
    if !why.is_empty() {
        // Who is blocked and does not stop goes on, while those that do are waited for.
        block.release();
    }
    // Their directories are free once they are gone, or somebody else serves them; and who looks which of them are down does not meet one that
    // is about to be.
    let began = Instant::now();
    while block.nodes.iter().any(|node| block.still_runs(node)) && began.elapsed() < STOP_WITHIN {
        std::thread::sleep(LOOK_EVERY);
    }
    if !why.is_empty() {
        bail!(
            "not every node has said that it stopped: {}. Nothing is lost. Start the OLD binary again on every node that is down, and repeat; \
             the new one would meet nodes that went on with the old one",
            why.join("; ")
        );
    }
    Ok(())
}

fn post(agent: &ureq::Agent, url: &str) -> Result<String, String> {
    let answered = agent.post(url).send_empty();
    let mut response = answered.map_err(|error| format!("{url} does not answer: {error}"))?;
    let text = response.body_mut().read_to_string().unwrap_or_default();
    match response.status().is_success() {
        true => Ok(text),
        false => Err(format!("{url} answers {}: {text}", response.status())),
    }
}
