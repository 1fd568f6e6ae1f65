//! The process that the user starts: keeps nodes and clients running, deals the blows of the plan, audits at the end.

use super::audit::{Held, audit};
use super::client::{Account, Shared, ask_all, value_of, version_of};
use super::nodes::{Nodes, SERVE_MAX};
use super::plan::{Blow, Planned, plan};
use super::reader::{Which, counter, counters, read};
use super::report::Report;
use super::{CLIENTS, NODES};
use crate::demo::Demo;
use crate::demo::progress::Progress;
use crate::demo::requests::share;
use crate::demo::top::{LOOK_EVERY, Place, STANDSTILL_MAX, free_ports};
use crate::demo::topology::Topology;
use crate::redis::{Connection, Said};
use crate::verdict::{UsageError, Verdict};
use anyhow::{Context, bail};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Requests unless the user says otherwise.
const REQUESTS_DEFAULT: u64 = 8_000;

/// Kills unless the user says otherwise.
const KILLS_DEFAULT: u64 = 11;

/// A cut lasts at least so long: leases run out and the others go on meanwhile.
const CUT_MIN: Duration = Duration::from_millis(1500);

/// How long the node that is cut off is asked until it refuses.
const REFUSED_MAX: Duration = Duration::from_secs(60);

/// How long a single answer is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Runs the demo.
///
/// # Errors
/// When it cannot be run to its end; what the audit finds is no error.
pub(crate) fn demo(options: &Demo, interrupted: &AtomicBool) -> anyhow::Result<Verdict> {
    if options.policy.is_some() || options.beyond || options.record.is_some() {
        let explanation = "--policy, --beyond and --record are for --topology pipeline".to_owned();
        return Err(UsageError { explanation }.into());
    }
    let place = Place::new(options)?;
    if !options.json {
        println!(
            "{} requests by {CLIENTS} clients to {NODES} nodes, {} kills -9, seed {}, level {}; folder {}",
            options.requests.unwrap_or(REQUESTS_DEFAULT),
            options.kills.unwrap_or(KILLS_DEFAULT),
            options.seed,
            options.level,
            place.path().display()
        );
    }
    let report = match run(options, place.path(), interrupted) {
        Ok(report) => report,
        Err(error) => {
            let kept = place.keep();
            return Err(
                error.context(format!("the demo did not come to its end; its files are kept in {kept}"))
            );
        }
    };
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => println!("\n{}\n{}", report.table(), closing_words(&report)),
    }
    if options.keep || options.dir.is_some() || !report.kept() {
        let kept = place.keep();
        if !report.kept() {
            eprintln!("mainstay: the files of this run are kept in {kept}");
        }
    }
    Ok(if report.kept() { Verdict::Clean } else { Verdict::Wrong })
}

fn closing_words(report: &Report) -> &'static str {
    if report.kept() {
        "Nothing acknowledged is lost, nothing took effect twice, and who was cut off refused and said why.\n\n\
         Where to look next:\n  mainstay node --help                        the same by hand, with redis-cli\n  \
         mainstay demo --topology region --keep      keep the directories of the nodes"
    } else {
        "THE PROMISE WAS BROKEN; the lines marked with ! and NO say where."
    }
}

/// What the blows came to.
#[derive(Default)]
struct Dealt {
    kills: u64,
    kills_with_others_down: u64,
    kills_with_inflight: u64,
    kills_joining: u64,
    kills_in_cuts: u64,
    down_max: usize,
    power_offs: u64,
    stops: u64,
    cuts: u64,
    cuts_refused: u64,
    recoveries: Vec<f64>,
    /// Client numbers and memberships that were seen.
    ids: BTreeSet<String>,
    ids_repeated: u64,
}

fn run(options: &Demo, folder: &Path, interrupted: &AtomicBool) -> anyhow::Result<Report> {
    let requests = options.requests.unwrap_or(REQUESTS_DEFAULT);
    let kills = options.kills.unwrap_or(KILLS_DEFAULT);
    let mut nodes = Nodes::start(folder, options.level, free_ports()?)?;
    let addresses: [SocketAddr; NODES] = std::array::from_fn(|node| nodes.clients_at(node));
    let began = Instant::now();
    let shared = Shared::new();
    let (accounts, dealt) = std::thread::scope(|scope| {
        for node in addresses {
            let watched = &shared.watched;
            scope.spawn(move || read(node, options.seed, watched));
        }
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let drawn = (options.seed, share(requests, client));
                let shared = &shared;
                scope.spawn(move || {
                    let account = ask_all(addresses, client, client % 2 == 0, drawn, shared);
                    if account.is_err() {
                        shared.done.fetch_add(1, Ordering::Relaxed);
                    }
                    account
                })
            })
            .collect();
        let dealt = watch(&mut nodes, (options.seed, requests, kills), &shared, interrupted);
        shared.over.store(true, Ordering::Relaxed);
        shared.watched.end();
        if dealt.is_err() {
            shared.give_up.store(true, Ordering::Relaxed);
        }
        let accounts: Vec<anyhow::Result<Account>> =
            clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect();
        (accounts, dealt)
    });
    let mut dealt = dealt?;
    let seconds = began.elapsed().as_secs_f64();
    let accounts = accounts.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let held = read_all(&accounts, &addresses)?;
    let copies_equal = copies_equal(&nodes)?;
    let stopped_cleanly = nodes.stop()?;
    dealt.recoveries.sort_by(f64::total_cmp);
    let reads = shared.watched.reads();
    let pause = accounts.iter().map(|account| account.pause_max).max().unwrap_or_default();
    Ok(Report {
        topology: Topology::Region,
        nodes: NODES,
        seed: options.seed,
        kills: dealt.kills,
        kills_with_others_down: dealt.kills_with_others_down,
        kills_with_inflight: dealt.kills_with_inflight,
        down_max: dealt.down_max,
        power_offs: dealt.power_offs,
        kills_joining: dealt.kills_joining,
        kills_in_cuts: dealt.kills_in_cuts,
        stops: dealt.stops,
        reads_checked: reads.checked,
        reads_refused: reads.refused,
        reads_stale: reads.stale,
        ids_given: dealt.ids.len() as u64 + dealt.ids_repeated,
        ids_repeated: dealt.ids_repeated,
        cuts: dealt.cuts,
        cuts_refused: dealt.cuts_refused,
        recoveries: dealt.recoveries.len() as u64,
        recovery_ms_p50: dealt.recoveries.get(dealt.recoveries.len() / 2).copied().unwrap_or(0.0),
        recovery_ms_max: dealt.recoveries.last().copied().unwrap_or(0.0),
        pause_ms_max: pause.as_secs_f64() * 1000.0,
        outputs_lost: 0,
        outputs_doubled: 0,
        outputs_in_doubt: 0,
        level: options.level,
        seconds,
        copies_equal,
        stopped_cleanly,
        findings: audit(&accounts, &held),
    })
}

/// Deals the blows as they become due, and returns when all clients have made their requests and all nodes serve.
fn watch(
    nodes: &mut Nodes,
    (seed, requests, kills): (u64, u64, u64),
    shared: &Shared,
    interrupted: &AtomicBool,
) -> anyhow::Result<Dealt> {
    let mut dealt = Dealt::default();
    let mut progress = Progress::new(requests, kills);
    let mut moved = (Instant::now(), 0);
    let plan = plan(seed, kills, requests);
    let mut blows = plan.iter().peekable();
    let allow = |next: Option<&Planned>| {
        shared.allowed.store(next.map_or(u64::MAX, |next| next.after_answered.max(1)), Ordering::Relaxed);
    };
    allow(plan.first());
    loop {
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        nodes.check()?;
        let answered = shared.answered.load(Ordering::Relaxed);
        progress.show(answered, dealt.kills);
        if answered != moved.1 {
            moved = (Instant::now(), answered);
        }
        let done = shared.done.load(Ordering::Relaxed) >= CLIENTS as u64;
        match blows.next_if(|blow| done || answered >= blow.after_answered) {
            Some(planned) => {
                allow(blows.peek().copied());
                deal(nodes, &planned.blow, shared, &mut dealt)?;
                dealt.gather_ids(nodes)?;
                moved.0 = Instant::now();
            }
            None if done => break,
            None if moved.0.elapsed() > STANDSTILL_MAX => {
                bail!("nothing was answered for {STANDSTILL_MAX:?}: {:?}", nodes.statuses());
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
    progress.finish();
    Ok(dealt)
}

fn deal(nodes: &mut Nodes, blow: &Blow, shared: &Shared, dealt: &mut Dealt) -> anyhow::Result<()> {
    match blow {
        Blow::Kill(which) => {
            let waiting = wait_for_request(shared);
            nodes.kill(which)?;
            dealt.killed(which.len(), waiting);
            if which.len() == NODES {
                dealt.power_offs += 1;
                shared.power_offs.fetch_add(1, Ordering::SeqCst);
            }
            let took = nodes.wait_until_all_serve()?;
            dealt.recoveries.extend(which.iter().map(|&node| took[node].as_secs_f64() * 1000.0));
        }
        Blow::KillJoining(node) => {
            let waiting = wait_for_request(shared);
            dealt.kills_joining += u64::from(nodes.kill_joining(*node)?);
            dealt.killed(1, waiting);
            dealt.killed(1, false);
            let took = nodes.wait_until_all_serve()?;
            dealt.recoveries.push(took[*node].as_secs_f64() * 1000.0);
        }
        Blow::Cut(node, killed) => {
            nodes.cut(Some(*node))?;
            let began = Instant::now();
            dealt.cuts += 1;
            let refused = wait_until_refused(nodes.clients_at(*node));
            dealt.cuts_refused += u64::from(refused?);
            if let Some(killed) = killed {
                let waiting = wait_for_request(shared);
                nodes.kill(&[*killed])?;
                dealt.killed(1, waiting);
                dealt.kills_in_cuts += 1;
            }
            std::thread::sleep(CUT_MIN.saturating_sub(began.elapsed()));
            nodes.heal()?;
            let took = nodes.wait_until_all_serve()?;
            dealt.recoveries.extend(killed.iter().map(|&node| took[node].as_secs_f64() * 1000.0));
        }
        Blow::Stop(node) => {
            nodes.signal(*node, Signal::STOP)?;
            let without = nodes.wait_until_without(*node);
            // What it is asked while it stands still is the first that it hears when it goes on.
            let asked = without.and_then(|()| ask_all_counters(nodes.clients_at(*node), shared));
            nodes.signal(*node, Signal::CONT)?;
            let (mut connection, asked) = asked?;
            for (which, least) in asked {
                shared.watched.check(which, least, connection.read()?);
            }
            dealt.stops += 1;
            nodes.wait_until_all_serve()?;
        }
    }
    Ok(())
}

/// Asks a node for all counters, without waiting for answers; what each must not be below.
fn ask_all_counters(node: SocketAddr, shared: &Shared) -> anyhow::Result<(Connection, Vec<(Which, i64)>)> {
    let asked: Vec<_> = counters().map(|which| (which, shared.watched.least(which))).collect();
    let names: Vec<String> = asked.iter().map(|(which, _)| counter(*which)).collect();
    let commands: Vec<[&[u8]; 2]> = names.iter().map(|name| [&b"GET"[..], name.as_bytes()]).collect();
    let commands: Vec<&[&[u8]]> = commands.iter().map(|words| &words[..]).collect();
    let mut connection = Connection::open(node, ANSWER_MAX)?;
    connection.send(&commands)?;
    Ok((connection, asked))
}

impl Dealt {
    fn killed(&mut self, nodes: usize, waiting: bool) {
        let count = nodes as u64;
        self.kills += count;
        self.kills_with_inflight += if waiting { count } else { 0 };
        self.kills_with_others_down += if count > 1 { count } else { 0 };
        self.down_max = self.down_max.max(nodes);
    }

    /// Takes a client number from each node, and the names of all lives: none may come again.
    fn gather_ids(&mut self, nodes: &Nodes) -> anyhow::Result<()> {
        for node in 0..NODES {
            let mut connection = Connection::open(nodes.clients_at(node), ANSWER_MAX)?;
            if let Said::Integer(number) = connection.ask(&[b"MAINSTAY.ID", b"NEW"])? {
                self.ids_repeated += u64::from(!self.ids.insert(format!("client {number}")));
            }
        }
        for status in nodes.statuses().unwrap_or_default() {
            for member in
                status["members"].as_array().into_iter().flatten().filter(|member| member["me"] == true)
            {
                // The same life may be seen again, another one not under the same name.
                let name = format!("{} born {}", member["address"], member["born"]);
                let life = format!("{name} {} life {}", status["store"], status["life"]);
                if self.ids.insert(life) {
                    self.ids_repeated += u64::from(!self.ids.insert(name));
                }
            }
        }
        Ok(())
    }
}

/// Waits, not for long, until a client waits for an answer.
fn wait_for_request(shared: &Shared) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(200) {
        if shared.in_flight.load(Ordering::Relaxed) > 0 {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// Asks the node that is cut off for a write and a read, until it refuses both and says that it is the minority.
fn wait_until_refused(node: SocketAddr) -> anyhow::Result<bool> {
    let began = Instant::now();
    while began.elapsed() < REFUSED_MAX {
        let mut connection =
            Connection::open(node, ANSWER_MAX).context("the node that is cut off does not answer")?;
        connection.send(&[&[b"SET", b"cut-off", b"1"], &[b"GET", b"cut-off"]])?;
        let mut refused = || match connection.read() {
            Ok(Said::Error(error)) => error.starts_with("CLUSTERDOWN minority:"),
            _ => false,
        };
        if refused() & refused() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads every key that a client has written, with its version.
fn read_all(accounts: &[Account], nodes: &[SocketAddr; NODES]) -> anyhow::Result<Held> {
    let mut held = Held::new();
    let keys = || accounts.iter().flat_map(|account| account.counters.keys().chain(account.texts.keys()));
    for (place, key) in keys().enumerate() {
        let began = Instant::now();
        let said = loop {
            let node = nodes[place % NODES];
            let mut connection = Connection::open(node, ANSWER_MAX)?;
            connection.ask(&[b"MAINSTAY.VERSIONS", b"ON"])?;
            match connection.ask(&[b"GET", key])? {
                Said::Error(error) if began.elapsed() > SERVE_MAX => bail!("a key cannot be read: {error}"),
                Said::Error(_) => {}
                said => break said,
            }
        };
        let Some(version) = version_of(&said) else { bail!("a read is answered so: {said}") };
        held.insert(key.clone(), (value_of(said), version));
    }
    Ok(held)
}

/// Whether all copies stand at the same versions with the same hashes, once they had time to get there.
fn copies_equal(nodes: &Nodes) -> anyhow::Result<bool> {
    let began = Instant::now();
    loop {
        let statuses = nodes.statuses().context("a node does not answer")?;
        let stands: Vec<_> = statuses.iter().map(|status| &status["regions"][0]["stands"]).collect();
        if stands.iter().all(|one| one.is_array() && *one == stands[0]) {
            return Ok(true);
        }
        if began.elapsed() > SERVE_MAX {
            return Ok(false);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
