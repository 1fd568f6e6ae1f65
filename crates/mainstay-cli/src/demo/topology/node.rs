//! One node: the ring's handler, its journal, its peers; with small pages and frequent checkpoints, so that segments,
//! checkpoints and trimming come to happen within seconds.

use super::recordings::Recordings;
use super::ring::{Ring, node_id};
use super::run::{RollbackRecord, RunFolder, Settings};
use super::{NODES, Role};
use crate::demo::lines::Lines;
use crate::demo::run::RecoveryRecord;
use anyhow::Context;
use mainstay_disk::open::Options;
use mainstay_process::config::{Cluster, Config, Limits};
use mainstay_process::handler::AnyHandler;
use mainstay_runtime::peers::settings::{PeerAddress, PeersSettings, Security};
use mainstay_runtime::service::{Service, Unfit, start};
use mainstay_types::id::ClusterId;
use mainstay_types::rules::{Rule, Rules};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pages of the ring, and bytes of one.
const PAGES: (u16, u32) = (3, 256 << 10);

/// Longest request, in bytes: it must fit a page.
const BODY_BYTES_MAX: usize = 4 << 10;

/// Longest message between nodes, in bytes.
const MESSAGE_BYTES_MAX: u32 = 8 << 10;

/// Log after which a checkpoint is taken, in bytes.
const CHECKPOINT_LOG_BYTES: u64 = 1 << 20;

/// Time after which a checkpoint is taken.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(2);

/// The same where more is to be lost than the policy survives: a checkpoint that depends on it leaves no way back, and how much is in
/// one would be a matter of how fast the machine is.
const NO_CHECKPOINT: Duration = Duration::from_secs(3600);

/// Longest pause between two attempts to reach a peer: one that was killed is soon back.
const RECONNECT_MAX: Duration = Duration::from_millis(50);

/// How often a node that recovers is asked whether it is ready.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Threads that serve a node's few connections.
const INGRESS_THREADS: usize = 2;

/// Serves until stopped or killed.
///
/// # Errors
/// When it cannot start or go on.
pub(crate) fn serve(folder: &RunFolder, node: usize) -> anyhow::Result<()> {
    mainstay::command_line::log_to_standard_error();
    let began = Instant::now();
    let settings = folder.settings()?;
    let service = Service {
        make: make(folder, node),
        check_command: Box::new(check_request),
        check_query: Box::new(|_| Ok(())),
    };
    let running = start(runtime_settings(folder, &settings, node), service)
        .with_context(|| format!("{} does not start", Role::Node(node)))?;
    wait_until_ready(&settings, node);
    let started = running.started();
    Lines::open(&folder.recoveries(node))?.append(&RecoveryRecord {
        pid: std::process::id(),
        created: started.journal.created,
        recovery_ms: began.elapsed().as_secs_f64() * 1e3,
        replayed: replayed(&settings, node)?,
        outputs_again: started.recovery.outputs_again,
    })?;
    running.wait().with_context(|| format!("{} ended", Role::Node(node)))
}

/// Makes handlers, and writes down every one after the first: the process began anew within its life, because what it had
/// done depended on a state that another node lost.
fn make(folder: &RunFolder, node: usize) -> Box<dyn Fn() -> AnyHandler + Send + Sync> {
    let path = folder.rollbacks(node);
    let first = AtomicBool::new(true);
    Box::new(move || {
        if !first.swap(false, Ordering::Relaxed) {
            let written = Lines::open(&path)
                .and_then(|mut lines| lines.append(&RollbackRecord { pid: std::process::id() }));
            written.expect("the demo's folder can be written to");
        }
        Box::new(Ring::new(node))
    })
}

fn check_request(body: &[u8]) -> Result<(), Unfit> {
    serde_json::from_slice::<super::ring::Request>(body)
        .map(drop)
        .map_err(|error| Unfit::Content { message: error.to_string() })
}

/// What the process of a node is told, also when it is run on what a power cut has left.
#[must_use]
pub(crate) fn process_config(settings: &Settings, node: usize) -> Config {
    let policies = settings.policy.each();
    let links = mainstay_channel::limits::Limits {
        message_bytes_max: MESSAGE_BYTES_MAX,
        ..mainstay_channel::limits::Limits::default()
    };
    Config {
        name: "ring".to_owned(),
        version: 1,
        level: settings.level,
        policy: policies[node],
        ports: Vec::new(),
        cluster: Some(Cluster {
            id: ClusterId(settings.cluster),
            me: node_id(node),
            others: (0..NODES)
                .filter(|other| *other != node)
                .map(|other| (node_id(other), policies[other]))
                .collect(),
            links,
        }),
        limits: Limits {
            body_bytes_max: BODY_BYTES_MAX,
            checkpoint_log_bytes: CHECKPOINT_LOG_BYTES,
            checkpoint_interval: if settings.beyond { NO_CHECKPOINT } else { CHECKPOINT_INTERVAL },
            ..Limits::default()
        },
        entropy: 0,
        rules: match settings.trust_transport {
            true => Rules::without(Rule::KeepUntilCovered),
            false => Rules::KEPT,
        },
    }
}

fn runtime_settings(
    folder: &RunFolder,
    settings: &Settings,
    node: usize,
) -> mainstay_runtime::settings::Settings {
    let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let addresses = (0..NODES).map(|node| PeerAddress {
        node: node_id(node),
        name: Role::Node(node).to_string(),
        address: loopback(settings.peer_ports[node]).to_string(),
    });
    let peers = PeersSettings {
        reconnect_max: RECONNECT_MAX,
        ..PeersSettings::new(
            ClusterId(settings.cluster),
            node_id(node),
            loopback(settings.peer_ports[node]),
            addresses.collect(),
            Security::Plain,
        )
    };
    let mut disk = Options { create_directory: true, hint: "mainstay demo".to_owned(), ..Options::default() };
    disk.journal.geometry.pages = PAGES.0;
    disk.journal.geometry.page_bytes = PAGES.1;
    let skip_syncs = settings.skip_syncs.clone().unwrap_or(0..0);
    disk.record = settings.record.as_ref().map(|record| Recordings::new(record).options(node, skip_syncs));
    mainstay_runtime::settings::Settings {
        directory: folder.node(node),
        disk,
        process: process_config(settings, node),
        outputs: Vec::new(),
        ingress: mainstay_runtime::settings::Ingress {
            listen: loopback(settings.http_ports[node]),
            threads: INGRESS_THREADS,
            ..mainstay_runtime::settings::Ingress::default()
        },
        peers: Some(peers),
        places: None,
        keep: None,
        checkpoint_timeout: Duration::from_secs(60),
        stop_timeout: Duration::from_secs(20),
        signals: true,
    }
}

/// A node that collects what others remember of it has started, and is not ready.
fn wait_until_ready(settings: &Settings, node: usize) {
    let url = format!("{}/health", settings.url(node));
    while !ureq::get(&url).call().is_ok_and(|response| response.status() == 200) {
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Deliveries replayed by this life, those that others remembered included.
fn replayed(settings: &Settings, node: usize) -> anyhow::Result<u64> {
    let text = ureq::get(format!("{}/metrics", settings.url(node))).call()?.body_mut().read_to_string()?;
    let value = text.lines().find_map(|line| line.strip_prefix("mainstay_replayed_total "));
    value.and_then(|value| value.parse().ok()).context("the metrics have no number of deliveries replayed")
}
