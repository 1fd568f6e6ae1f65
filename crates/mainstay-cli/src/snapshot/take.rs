//! Takes a snapshot of a running cluster: has every node cut, waits until every node's part is final, fetches the parts.

use super::block::{Block, stop};
use super::line::Line;
use crate::asking::{ANSWER_TIMEOUT, agent};
use crate::verdict::UsageError;
use anyhow::{Context, bail};
use mainstay_process::snapshot::PartState;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two looks at the nodes.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Between an attempt that failed and the next one: each has every node write its state.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Largest part that is fetched, in bytes.
const PART_BYTES_MAX: u64 = 64 << 30;

/// How long a part may take to be fetched.
const FETCH_TIMEOUT: Duration = Duration::from_secs(3600);

/// What is read of a node's status.
#[derive(Deserialize)]
struct Status {
    peers: Vec<Peer>,
}

/// Another node of its list.
#[derive(Deserialize)]
struct Peer {
    node: u32,
}

#[derive(Deserialize)]
struct Begun {
    snapshot: String,
}

#[derive(Deserialize)]
struct Said {
    node: u32,
    #[serde(flatten)]
    part: PartState,
}

/// What the nodes do meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// What they always do.
    GoingOn,
    /// They begin nothing new until all have cut.
    Blocking,
    /// Nor after that: they stop.
    Stopping,
}

/// How an attempt ended.
enum Attempt {
    Finished,
    /// Why another one is to be begun.
    Failed(String),
    OutOfTime(String),
}

pub(super) fn take(nodes: &[String], directory: &Path, within: Duration, how: How) -> anyhow::Result<Line> {
    if directory.exists() {
        let explanation =
            format!("{} exists: a snapshot goes to a directory of its own", directory.display());
        return Err(UsageError { explanation }.into());
    }
    let nodes: Vec<String> = nodes.iter().map(|url| url.trim_end_matches('/').to_owned()).collect();
    let agent = agent(ANSWER_TIMEOUT);
    check_all_are_named(&agent, &nodes)?;
    let deadline = Instant::now() + within;
    let mut last = "no node could begin one".to_owned();
    for first in (0..nodes.len()).cycle() {
        if Instant::now() >= deadline {
            bail!(
                "no snapshot came about within {} s: {last}. The cluster is unharmed; try again when all nodes are up",
                within.as_secs()
            );
        }
        let block = match how {
            How::GoingOn => None,
            How::Blocking | How::Stopping => match Block::until_all_have_cut(&agent, &nodes, first, deadline)
            {
                Ok(block) => Some(block),
                Err(why) => {
                    eprintln!("{why}");
                    last = why;
                    std::thread::sleep(AGAIN_AFTER);
                    continue;
                }
            },
        };
        let snapshot = match &block {
            Some(block) => block.snapshot().to_owned(),
            None => {
                let Some(snapshot) = begin(&agent, &nodes[first], &mut last) else {
                    std::thread::sleep(LOOK_EVERY);
                    continue;
                };
                eprintln!("snapshot {snapshot} begins at {}", nodes[first]);
                snapshot
            }
        };
        // Who is to stop stays blocked until then.
        let kept = block.filter(|_| how == How::Stopping).map(Block::keep);
        match wait(&agent, &nodes, &snapshot, deadline) {
            Attempt::Finished => {
                let fetched: anyhow::Result<Vec<_>> =
                    nodes.iter().map(|node| fetch(node, &snapshot, deadline)).collect();
                let line = Line::write(directory, &fetched?, how != How::GoingOn)?;
                return match kept {
                    None => Ok(line),
                    Some(kept) => stop(kept).map(|()| line),
                };
            }
            Attempt::Failed(why) => {
                eprintln!("snapshot {snapshot} failed: {why}");
                last = why;
            }
            Attempt::OutOfTime(why) => last = why,
        }
        std::thread::sleep(AGAIN_AFTER);
    }
    Err(UsageError { explanation: "name the nodes: --node URL".to_owned() }.into())
}

/// Refuses fewer URLs than the cluster has nodes, before any node writes its state. Who does not answer now is asked later.
fn check_all_are_named(agent: &ureq::Agent, urls: &[String]) -> Result<(), UsageError> {
    let peers_of = |url: &String| {
        let text = agent.get(format!("{url}/status")).call().ok()?.body_mut().read_to_string().ok()?;
        let Status { peers } = serde_json::from_str(&text).ok()?;
        Some(peers.into_iter().map(|peer| peer.node).collect::<BTreeSet<_>>())
    };
    let told: Vec<BTreeSet<u32>> = urls.iter().filter_map(peers_of).collect();
    let nodes = told.iter().map(BTreeSet::len).max().map_or(0, |peers| peers + 1);
    if nodes <= urls.len() {
        return Ok(());
    }
    // Nobody is a peer of itself: all of those that answer know who is not among them.
    let missing = told.iter().skip(1).fold(told[0].clone(), |missing, peers| &missing & peers);
    let missing: Vec<String> = missing.iter().map(u32::to_string).collect();
    Err(UsageError {
        explanation: format!(
            "the cluster has {nodes} nodes, and --node names {}: give the URL of every node, also of {}. Nothing was begun",
            urls.len(),
            missing.join(", ")
        ),
    })
}

fn begin(agent: &ureq::Agent, node: &str, last: &mut String) -> Option<String> {
    let answered = agent.post(format!("{node}/snapshots")).send_empty();
    let mut response = match answered {
        Ok(response) => response,
        Err(error) => {
            *last = format!("{node} does not answer: {error}");
            return None;
        }
    };
    let text = response.body_mut().read_to_string().unwrap_or_default();
    let begun = serde_json::from_str::<Begun>(&text).ok().filter(|_| response.status().is_success());
    if begun.is_none() {
        *last = format!("{node} answers {}: {text}", response.status());
    }
    begun.map(|begun| begun.snapshot)
}

fn wait(agent: &ureq::Agent, nodes: &[String], snapshot: &str, deadline: Instant) -> Attempt {
    loop {
        let (mut waiting, mut known) = (None, false);
        for url in nodes {
            match ask(agent, url, snapshot) {
                Ok(Said { part: PartState::Final, .. }) => known = true,
                Ok(Said { node, part: PartState::Missed { why } }) => {
                    return Attempt::Failed(format!("node {node} has no part: {why}"));
                }
                Ok(Said { node, part: PartState::Unknown }) => {
                    waiting = Some(format!("node {node} has not heard of snapshot {snapshot} yet"));
                }
                Ok(Said { node, part: PartState::Pending }) => {
                    known = true;
                    waiting = Some(format!("the part of node {node} can still be lost or taken back"));
                }
                // It may come back with a part that is final.
                Err(error) => {
                    known = true;
                    waiting = Some(format!("{url} does not answer: {error:#}"));
                }
            }
        }
        match waiting {
            None => return Attempt::Finished,
            // The node where it began crashed at once.
            Some(_) if !known => return Attempt::Failed("no node knows of it any more".to_owned()),
            Some(why) if Instant::now() >= deadline => return Attempt::OutOfTime(why),
            Some(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

fn ask(agent: &ureq::Agent, node: &str, snapshot: &str) -> anyhow::Result<Said> {
    let mut response = agent.get(format!("{node}/snapshots/{snapshot}")).call()?;
    let text = response.body_mut().read_to_string()?;
    if !response.status().is_success() {
        bail!("{}: {text}", response.status());
    }
    Ok(serde_json::from_str(&text)?)
}

/// A final part is a file: a node that crashes meanwhile gives it when it is back.
fn fetch(node: &str, snapshot: &str, deadline: Instant) -> anyhow::Result<Vec<u8>> {
    loop {
        match fetch_once(node, snapshot) {
            Err(error) if Instant::now() < deadline => {
                eprintln!("{error:#}; asked again");
                std::thread::sleep(AGAIN_AFTER);
            }
            fetched => return fetched,
        }
    }
}

fn fetch_once(node: &str, snapshot: &str) -> anyhow::Result<Vec<u8>> {
    let url = format!("{node}/snapshots/{snapshot}/data");
    let mut response =
        agent(FETCH_TIMEOUT).get(&url).call().with_context(|| format!("{url} does not answer"))?;
    if !response.status().is_success() {
        bail!("{url} answers {}", response.status());
    }
    let read = response.body_mut().with_config().limit(PART_BYTES_MAX).read_to_vec();
    read.with_context(|| format!("{url} broke off"))
}
