//! The process that the user starts: keeps nodes and clients running, kills nodes when the plan says so, audits at the end.

use super::audit::{Evidence, Repeated, audit};
use super::beyond;
use super::crash::Processes;
use super::plan::{Strike, plan};
use super::policies::Policies;
use super::report::Report;
use super::requests::{key, request};
use super::ring::Chains;
use super::run::{KillRecord, RollbackRecord, RunFolder, Settings};
use super::{NODES, Topology};
use crate::demo::Demo;
use crate::demo::board::{Board, Slot};
use crate::demo::client::{CALL_DEADLINE, ask_plainly, plain_agent};
use crate::demo::lines::{self, Lines};
use crate::demo::progress::Progress;
use crate::demo::requests::{CLIENTS, share};
use crate::demo::run::RecoveryRecord;
use crate::demo::top::{LOOK_EVERY, Place, STANDSTILL_MAX, empty_folder, free_ports};
use crate::interval::Interval;
use crate::verdict::{UsageError, Verdict};
use anyhow::{Context, bail};
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_128;

/// Requests unless the user says otherwise.
const REQUESTS_DEFAULT: u64 = 8_000;

/// Kills unless the user says otherwise.
const KILLS_DEFAULT: u64 = 40;

/// Nodes that refuse each other are told from slow ones, on a machine that has other work, by this time without an answer.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// Requests that are repeated when all is over, at most.
const REPEATED_MAX: u64 = 200;

/// Runs the demo.
///
/// # Errors
/// When it cannot be run to its end; what the audit finds is no error.
pub(crate) fn demo(options: &Demo, topology: Topology, interrupted: &AtomicBool) -> anyhow::Result<Verdict> {
    if options.record.is_some() && options.level != Level::Disk {
        let explanation = format!("--record shows what level disk survives, not level {}", options.level);
        return Err(UsageError { explanation }.into());
    }
    let record = options.record.as_deref().map(|record| empty_folder(record, "--record")).transpose()?;
    let policy = options.policy.unwrap_or(Policies::All(Policy::FOR_CLUSTERS));
    let too_many = options.beyond.then(|| too_many(policy)).transpose()?;
    let place = Place::new(options)?;
    let ports: [u16; 2 * NODES] = free_ports()?;
    let settings = Settings {
        seed: options.seed,
        requests: options.requests.unwrap_or(REQUESTS_DEFAULT),
        kills: options.kills.unwrap_or(KILLS_DEFAULT) + too_many.unwrap_or(0) as u64,
        level: options.level,
        topology,
        policy,
        http_ports: std::array::from_fn(|node| ports[node]),
        peer_ports: std::array::from_fn(|node| ports[NODES + node]),
        beyond: too_many.is_some(),
        // Folders are unique on this machine; only nodes of the same one belong together.
        cluster: xxh3_128(place.path().as_os_str().as_encoded_bytes()).to_le_bytes(),
        record,
        skip_syncs: options.skip_syncs.clone().map(|Interval(range)| range),
        trust_transport: false,
    };
    let last = too_many.map(|nodes| beyond::strike(&settings, nodes));
    let folder = RunFolder::new(place.path());
    folder.prepare(&settings)?;
    if let Some(record) = &settings.record {
        RunFolder::new(record).prepare(&settings)?;
    }
    if !options.json {
        println!(
            "{} requests by {CLIENTS} clients around {NODES} nodes, policy {}, {} kills -9, seed {}, level {}; folder {}",
            settings.requests,
            settings.policy,
            settings.kills,
            settings.seed,
            settings.level,
            place.path().display()
        );
    }
    let ran = match &last {
        None => run(&folder, &settings, interrupted).and_then(|report| {
            let keep = options.keep || options.dir.is_some() || !report.kept();
            let words = closing_words(&report, &folder, keep);
            Ok(Shown {
                json: serde_json::to_string_pretty(&report)?,
                text: format!("{}\n{words}", report.table()),
                kept: report.kept(),
            })
        }),
        Some(last) => beyond::run(&folder, &settings, last, interrupted).and_then(|report| {
            let keep = options.keep || options.dir.is_some() || !report.kept();
            let words = beyond::closing_words(&report, &folder, keep);
            Ok(Shown {
                json: serde_json::to_string_pretty(&report)?,
                text: format!("{}\n{words}", report.table()),
                kept: report.kept(),
            })
        }),
    };
    let Shown { json, text, kept: promise_kept } = match ran {
        Ok(shown) => shown,
        Err(error) => {
            let kept = place.keep();
            return Err(
                error.context(format!("the demo did not come to its end; its files are kept in {kept}"))
            );
        }
    };
    match options.json {
        true => println!("{json}"),
        false => println!("\n{text}"),
    }
    if options.keep || options.dir.is_some() || !promise_kept {
        let kept = place.keep();
        if options.json && !promise_kept {
            eprintln!("mainstay: the files of this run are kept in {kept}");
        }
    }
    Ok(if promise_kept { Verdict::Clean } else { Verdict::Wrong })
}

/// What a demo came to.
struct Shown {
    json: String,
    text: String,
    kept: bool,
}

fn run(folder: &RunFolder, settings: &Settings, interrupted: &AtomicBool) -> anyhow::Result<Report> {
    let began = Instant::now();
    let board = Board::open(&folder.board())?;
    let mut processes = Processes::start(folder, settings.seed)?;
    let (kills, _) = watch(folder, settings, None, &board, &mut processes, interrupted)?;
    let took = began.elapsed();
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        clients.push(lines::read(&folder.client(client))?);
    }
    let repeated = repeat(settings)?;
    let views = (0..NODES).map(|node| view(settings, node)).collect::<anyhow::Result<Vec<_>>>()?;
    let stopped_cleanly = processes.stop()?;
    let findings = audit(&Evidence {
        seed: settings.seed,
        requests: settings.requests,
        clients: &clients,
        repeated: &repeated,
        views: &views,
    });
    let (mut recoveries, mut rollbacks) = (Vec::new(), 0);
    for node in 0..NODES {
        recoveries.extend(lines::read::<RecoveryRecord>(&folder.recoveries(node))?);
        rollbacks += lines::read::<RollbackRecord>(&folder.rollbacks(node))?.len() as u64;
    }
    Ok(Report::new(settings, &kills, &recoveries, rollbacks, stopped_cleanly, findings, took))
}

fn too_many(policy: Policies) -> Result<usize, UsageError> {
    policy.beyond().ok_or_else(|| UsageError {
        explanation: format!("--beyond: {policy} survives any number of crashes, none is too many"),
    })
}

/// Leaves out the last kills of a plan.
fn leave_out(plan: &mut Vec<Strike>, kills: u64) {
    for _ in 0..kills {
        let last = plan.last_mut().expect("as many kills are planned");
        last.nodes.pop();
        if last.nodes.is_empty() {
            plan.pop();
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All requests are answered, and all nodes are ready.
    Complete,
    /// After the last strike, which was too much, nothing goes on.
    Stalled,
}

/// Waits for the end, striking meanwhile: until all requests are answered, all kills are made and all nodes are ready; after a `last`
/// strike that the policy does not survive also until nothing goes on.
pub(crate) fn watch(
    folder: &RunFolder,
    settings: &Settings,
    mut last: Option<&Strike>,
    board: &Board,
    processes: &mut Processes,
    interrupted: &AtomicBool,
) -> anyhow::Result<(Vec<KillRecord>, Ending)> {
    let down_max = settings.policy.down_max();
    let too_many = last.map_or(0, |last| last.nodes.len() as u64);
    let mut plan = plan(settings.seed, settings.kills, settings.requests, down_max);
    leave_out(&mut plan, too_many);
    let mut strikes = plan.iter().peekable();
    let mut journal = Lines::open(&folder.kills())?;
    let mut kills = Vec::new();
    let mut progress = Progress::new(settings.requests, settings.kills);
    let mut moved = (Instant::now(), (0, 0));
    let ending = loop {
        // First: what interrupts this process may have ended the others as well.
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        processes.tend()?;
        let now = (board.answered()?, kills.len() as u64);
        progress.show(now.0, now.1);
        if now != moved.1 {
            moved = (Instant::now(), now);
        }
        if moved.0.elapsed() > STANDSTILL_MAX {
            let (answered, killed) = now;
            bail!(
                "nothing has happened for {STANDSTILL_MAX:?}: {answered} requests answered, {killed} kills made, not ready are nodes \
                 {:?}",
                processes.down()?
            );
        }
        let due = match strikes.peek() {
            Some(due) => (now.0 >= due.after_answered && processes.bears(due, down_max)?).then_some(*due),
            None => last.filter(|_| processes.down().is_ok_and(|down| down.is_empty())),
        };
        if let Some(due) = due {
            for record in processes.strike(settings, board, due)? {
                journal.append(&record)?;
                kills.push(record);
            }
            board.write(Slot::Kills, kills.len() as u64)?;
            if strikes.next().is_none() {
                last = None;
            }
        } else if strikes.peek().is_none() && processes.clients_finished() && processes.down()?.is_empty() {
            break Ending::Complete;
        } else if kills.len() as u64 == settings.kills && too_many > 0 && moved.0.elapsed() > STALLED_AFTER {
            break Ending::Stalled;
        } else {
            std::thread::sleep(LOOK_EVERY);
        }
    };
    progress.finish();
    Ok((kills, ending))
}

/// Asks some of the requests once more, spread over all of them.
fn repeat(settings: &Settings) -> anyhow::Result<Vec<Repeated>> {
    let agent = plain_agent();
    let mut repeated = Vec::new();
    for client in 0..CLIENTS {
        let share = share(settings.requests, client);
        let every = (share * CLIENTS as u64).div_ceil(REPEATED_MAX).max(1);
        for number in (0..share).rev().step_by(usize::try_from(every)?) {
            let (node, request) = request(settings.seed, client, number);
            let key = key(settings.seed, client, number);
            let url = format!("{}/call", settings.url(node));
            let said = ask_plainly(&agent, &url, &key, &serde_json::to_vec(&request)?)
                .with_context(|| format!("request {number} of client {client} is not answered again"))?;
            repeated.push(Repeated { client, number, status: said.status, body: said.body });
        }
    }
    Ok(repeated)
}

/// The last state of a node.
pub(super) fn view(settings: &Settings, node: usize) -> anyhow::Result<Chains> {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().timeout_global(Some(CALL_DEADLINE)).build().new_agent();
    let mut response = agent
        .post(format!("{}/query", settings.url(node)))
        .send("null")
        .with_context(|| format!("node {} does not say its last state", node + 1))?;
    Ok(serde_json::from_slice(&response.body_mut().read_to_vec()?)?)
}

fn closing_words(report: &Report, folder: &RunFolder, keep: bool) -> String {
    let mut words = if report.kept() {
        "Nothing lost, nothing doubled: every request was answered as by nodes that never failed.\n"
            .to_owned()
    } else {
        "THE PROMISE WAS BROKEN; the lines marked with ! say where.\n".to_owned()
    };
    words.push_str("\nWhere to look next:\n");
    if keep {
        words.push_str(&format!(
            "  mainstay journal stat {}    what the journal of a node holds\n  \
               {}    what clients and nodes wrote\n",
            folder.node(0).display(),
            folder.path().display()
        ));
    } else {
        words.push_str("  mainstay demo --topology pipeline --keep    keep the files\n");
    }
    words.push_str(
        "  mainstay demo --topology pipeline --policy mixed            three policies in one run\n  \
           crates/mainstay-cli/src/demo/topology/ring.rs               the service, which knows nothing of crashes",
    );
    words
}
