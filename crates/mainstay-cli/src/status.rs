//! `mainstay status`: what a service is and does, and how long its recovery would take.

use crate::asking::{get, url_of};
use crate::verdict::Verdict;
use anyhow::Context;
use mainstay_disk::read_only::open_read_only;
use mainstay_journal::reader::Reader;
use mainstay_journal::storage::Storage;
use mainstay_process::checkpoint;
use mainstay_process::record::delivery::Delivery;
use mainstay_process::record::recalled;
use mainstay_process::record::started::{self, Started};
use mainstay_process::waits::Wait;
use mainstay_types::id::Lsn;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Largest status that is read, in bytes.
const STATUS_BYTES_MAX: u64 = 64 << 20;

/// `mainstay status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    /// The service: its URL, or its directory.
    #[arg(value_name = "URL|DIR")]
    service: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// When no service answers, or the directory cannot be read.
pub(crate) fn run(options: &Status) -> anyhow::Result<Verdict> {
    let directory = Path::new(&options.service);
    match url_of(&options.service) {
        Ok(url) => running(&url, options.json),
        // Nobody serves it, or who does has not written down where.
        Err(_) if directory.is_dir() => at_rest(directory, options.json),
        Err(error) => Err(error),
    }
}

/// What a running service tells; what the words leave out is for `--json`.
#[derive(Deserialize)]
struct Running {
    status: String,
    service: String,
    version: u32,
    level: String,
    policy: String,
    store: String,
    life: u64,
    deliveries: u64,
    lsn: u64,
    durable_lsn: u64,
    checkpoint: Option<Checkpoint>,
    held: u64,
    backlog: u64,
    outputs_pending: u64,
    outputs_in_doubt: u64,
    peers: Vec<Peer>,
    waits_for: Vec<Wait>,
    kept_waiting: Vec<u32>,
    recovery: Prediction,
}

#[derive(Deserialize)]
struct Checkpoint {
    lsn: u64,
    bytes: u64,
    age_seconds: f64,
}

#[derive(Deserialize)]
struct Peer {
    node: u32,
    messages: u64,
    bytes: u64,
    spilled_bytes: u64,
}

#[derive(Deserialize)]
struct Prediction {
    deliveries: u64,
    bytes: u64,
    seconds: Option<f64>,
    opening_seconds: f64,
    delivery_us: f64,
    basis: String,
}

fn running(service: &str, json: bool) -> anyhow::Result<Verdict> {
    let url = format!("{service}/status");
    let text = get(&url, STATUS_BYTES_MAX)?;
    if json {
        println!("{text}");
        return Ok(Verdict::Clean);
    }
    let status: Running = serde_json::from_str(&text)
        .with_context(|| format!("{url} tells its status in a way unknown to this version"))?;
    print(&status);
    Ok(Verdict::Clean)
}

fn print(status: &Running) {
    let Running { service, version, level, policy, store, life, .. } = status;
    println!("service      {service} version {version}, {}", status.status);
    println!("directory    {store}, life {life}");
    println!("promises     level {level}, policy {policy}");
    println!("deliveries   {}", status.deliveries);
    println!("log          to LSN {}, durable to {}", status.lsn, status.durable_lsn);
    match &status.checkpoint {
        Some(Checkpoint { lsn, bytes, age_seconds }) => {
            println!("checkpoint   at LSN {lsn}, {bytes} bytes, {age_seconds:.0} s old");
        }
        None => println!("checkpoint   none yet"),
    }
    println!("held         {} effects, {} requests wait", status.held, status.backlog);
    println!(
        "outputs      {} not acknowledged, {} of them in doubt",
        status.outputs_pending, status.outputs_in_doubt
    );
    for Peer { node, messages, bytes, spilled_bytes } in &status.peers {
        println!(
            "node {node:<7} {messages} messages are kept for it, {bytes} bytes in memory and {spilled_bytes} outside"
        );
    }
    for node in &status.kept_waiting {
        println!(
            "asked by     node {node}, which recovers: answered when what this one recovered can no longer be lost"
        );
    }
    for wait in &status.waits_for {
        println!("waits for    {wait}");
    }
    let Prediction { deliveries, bytes, seconds, opening_seconds, delivery_us, basis } = &status.recovery;
    let about = match seconds {
        Some(seconds) => format!("about {:.0} ms", seconds * 1e3),
        None => "in a time not known yet".to_owned(),
    };
    println!("recovery     if it died now: {deliveries} deliveries, {bytes} bytes of log, {about}");
    let basis = match basis.as_str() {
        "last-replay" => format!("{delivery_us:.1} us a delivery, as in the last replay"),
        "this-life" => format!("{delivery_us:.1} us a delivery, as they take in this life"),
        _ => "no delivery was measured yet".to_owned(),
    };
    let opening = if *opening_seconds > 0.0 {
        format!("{:.0} ms for opening and restoring, as at the last start", opening_seconds * 1e3)
    } else {
        "without opening, which was not measured yet".to_owned()
    };
    println!("             ({basis}; {opening})");
}

/// A directory, as far as it tells by itself.
#[derive(Serialize)]
struct AtRest {
    status: &'static str,
    service: Option<String>,
    version: Option<u32>,
    store: String,
    life: u64,
    deliveries: Option<u64>,
    lsn: u64,
    checkpoint_lsn: Option<u64>,
    recovery: ToReplay,
}

#[derive(Serialize)]
struct ToReplay {
    deliveries: u64,
    bytes: u64,
}

fn at_rest(directory: &Path, json: bool) -> anyhow::Result<Verdict> {
    let mut opened = open_read_only(directory)?;
    let report = &opened.report;
    let checkpoints =
        opened.storage.list()?.into_iter().filter_map(|file| checkpoint::parse_name(&file.name));
    let checkpoint = checkpoints.filter(|lsn| (report.first..=report.end).contains(lsn)).max();
    let behind = checkpoint.unwrap_or(report.first);
    let (mut started, mut last, mut deliveries) = (None, None, 0);
    let mut reader = Reader::new(&mut opened.storage, &opened.catalog, report.first, report.end);
    while let Some(record) = reader.next()? {
        if record.kind == started::KIND {
            started = Started::decode(record.payload).ok().or(started);
        }
        let (kind, payload) = match record.kind {
            recalled::KIND => recalled::decode(record.payload).map(|(_, kind, payload)| (kind, payload))?,
            kind => (kind, record.payload),
        };
        if let Some((prefix, _)) = Delivery::decode(kind, payload)? {
            last = Some(prefix.delivery.0);
            deliveries += u64::from(record.lsn >= behind);
        }
    }
    let status = AtRest {
        status: match (opened.writer, report.sealed) {
            (Some(_), _) => "running",
            (None, true) => "stopped",
            (None, false) => "killed",
        },
        service: started.as_ref().map(|started| started.name.clone()),
        version: started.as_ref().map(|started| started.version),
        store: report.store.to_string(),
        // Opening it, in memory, has begun another one.
        life: report.generation.0.saturating_sub(1),
        deliveries: last,
        lsn: report.end.0,
        checkpoint_lsn: checkpoint.map(|lsn| lsn.0),
        recovery: ToReplay { deliveries, bytes: report.end.0 - behind.0 },
    };
    if json {
        println!("{}", serde_json::to_string(&status)?);
    } else {
        print_at_rest(&status, behind);
    }
    Ok(Verdict::Clean)
}

fn print_at_rest(status: &AtRest, behind: Lsn) {
    let AtRest { service, version, store, life, deliveries, lsn, checkpoint_lsn, .. } = status;
    let ending = match status.status {
        "running" => "running; ask it by its URL for more",
        "stopped" => "stopped cleanly",
        _ => "not running, and not stopped cleanly",
    };
    match (service, version) {
        (Some(service), Some(version)) => println!("service      {service} version {version}, {ending}"),
        _ => println!("service      {ending}"),
    }
    println!("directory    {store}, life {life}");
    if let Some(deliveries) = deliveries {
        println!("deliveries   {deliveries}");
    }
    println!("log          to LSN {lsn}");
    match checkpoint_lsn {
        Some(lsn) => println!("checkpoint   at LSN {lsn}"),
        None => println!("checkpoint   none"),
    }
    let ToReplay { deliveries, bytes } = status.recovery;
    println!(
        "recovery     a start replays {deliveries} deliveries, {bytes} bytes of log from LSN {behind} on"
    );
    println!("             (how long that takes: `SERVICE replay DIRECTORY --quiet`, under `time`)");
}
