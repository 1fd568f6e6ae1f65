//! `GET /status`: what a process is, what it holds, and how long its recovery would take.

use super::report::{json, look, nobody_is};
use super::{Answered, Ingress};
use crate::prediction::Prediction;
use mainstay_journal::journal::Health;
use mainstay_process::waits::Wait;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

/// What is told.
#[derive(Serialize)]
struct Status {
    status: &'static str,
    service: String,
    version: u32,
    level: String,
    policy: String,
    store: String,
    /// The number of this life.
    life: u64,
    deliveries: u64,
    lsn: u64,
    durable_lsn: u64,
    /// Where a recovery would begin: the newest checkpoint, if there is one.
    checkpoint: Option<Checkpoint>,
    /// Effects that wait for a mark.
    held: usize,
    /// Requests waiting to be logged or delivered.
    backlog: usize,
    outputs_pending: usize,
    outputs_in_doubt: usize,
    /// Other nodes, with what is kept for each.
    peers: Vec<Peer>,
    /// Other nodes that it waits for, and why: to recover, or to answer those that it keeps waiting.
    waits_for: Vec<Wait>,
    /// Nodes that recover and wait for its answer.
    kept_waiting: Vec<u32>,
    recovery: Prediction,
    #[serde(skip)]
    checkpoint_file: PathBuf,
}

#[derive(Serialize)]
struct Checkpoint {
    lsn: u64,
    bytes: u64,
    age_seconds: f64,
}

#[derive(Serialize)]
struct Peer {
    node: u32,
    messages: u64,
    bytes: u64,
    spilled_bytes: u64,
}

/// 200 with the status, 503 while there is no process to look at.
pub(super) async fn status(ingress: &Ingress) -> Answered {
    let looked = look(&ingress.shared, |core| {
        let (process, journal) = (&core.process, core.process.journal());
        let (config, stats, to_replay) = (process.config(), process.stats(), process.to_replay());
        let status = match journal.health() {
            Health::Good if process.is_collecting() => "recovering",
            Health::Good => "running",
            Health::Full { .. } => "disk-full",
            Health::Poisoned { .. } => "poisoned",
            Health::Sealed => "stopping",
        };
        let peers = process.retained().map(|kept| Peer {
            node: kept.peer.0,
            messages: kept.messages,
            bytes: kept.bytes,
            spilled_bytes: kept.spilled_bytes,
        });
        (
            Status {
                status,
                service: config.name.clone(),
                version: config.version,
                level: config.level.to_string(),
                policy: config.policy.to_string(),
                store: process.store().to_string(),
                life: process.incarnation().0,
                deliveries: process.executed().0,
                lsn: journal.end().0,
                durable_lsn: journal.durable().0,
                checkpoint: None,
                held: stats.held,
                backlog: stats.backlog,
                outputs_pending: stats.outputs_pending,
                outputs_in_doubt: stats.outputs_in_doubt,
                peers: peers.collect(),
                waits_for: process.waits_for(),
                kept_waiting: process.kept_waiting().iter().map(|node| node.0).collect(),
                recovery: Prediction::default(),
                checkpoint_file: core.checkpoint_file(to_replay.from),
            },
            to_replay,
        )
    })
    .await;
    let (mut status, to_replay) = match looked {
        Ok(looked) => looked,
        Err(why) => {
            let replayed = ingress.shared.watch.replaying.load(Ordering::Relaxed);
            return Ok(json(503, &serde_json::json!({ "status": nobody_is(why), "replayed": replayed })));
        }
    };
    status.recovery = ingress.shared.watch.pace.predict(&to_replay);
    // Not there: the history begins with the first delivery, and no checkpoint was taken yet.
    status.checkpoint = std::fs::metadata(&status.checkpoint_file).ok().map(|file| Checkpoint {
        lsn: to_replay.from.0,
        bytes: file.len(),
        age_seconds: file
            .modified()
            .ok()
            .and_then(|taken| SystemTime::now().duration_since(taken).ok())
            .map_or(0.0, |age| age.as_secs_f64()),
    });
    let body = serde_json::to_value(&status).expect("numbers and text are JSON");
    Ok(json(200, &body))
}
