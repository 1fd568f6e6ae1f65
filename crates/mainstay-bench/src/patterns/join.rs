//! How long writes wait at most while a node joins a region that holds much, and when one of its nodes is killed.

use super::{DEFAULT, PatternsError, Setting};
use crate::group::{Group, Made};
use crate::report::{Arm, Bound, Figure, Report, Samples, Table, Target};
use mainstay_region::blob::Blob;
use mainstay_region::operation::Operation;
use mainstay_region_client::{Client, Settings};
use mainstay_types::level::Level;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Clients that write meanwhile, one put after the other each.
const CLIENTS: usize = 4;

/// Clients that fill the region, each with a full window.
const FILLERS: u64 = 2;

/// Length of each value, in bytes.
const VALUE_BYTES: usize = 1000;

/// Longest pause of a write while a node joins, in seconds.
const JOIN_SECONDS_MAX: f64 = 0.1;

/// Longest pause when a node is killed, in seconds.
const KILLED_SECONDS_MAX: f64 = 1.0;

/// How long a node may take to come in.
const JOINED_MAX: Duration = Duration::from_secs(600);

/// How long it goes on before the first and behind each event.
const BESIDE: Duration = Duration::from_secs(3);

/// How long what is one sample of the figure lasts.
const SLOT: Duration = Duration::from_millis(100);

/// A put: when it ended, and how long it took, in seconds.
type Put = (Instant, f64);

/// What the puts of one span of time took.
#[derive(Clone, Debug)]
struct Span {
    name: &'static str,
    seconds: f64,
    took: Samples,
    /// The longest of each [`SLOT`].
    longest: Samples,
}

impl Span {
    fn of(name: &'static str, puts: &[Put], from: Instant, to: Instant) -> Self {
        let (mut took, mut longest) = (Samples::default(), Samples::default());
        let mut slots: BTreeMap<u128, f64> = BTreeMap::new();
        // One that went on over the end of a span belongs to the one in which it was answered.
        for (ended, seconds) in puts.iter().filter(|(ended, _)| (from..to).contains(ended)) {
            took.push(*seconds);
            let slot = slots.entry((*ended - from).as_nanos() / SLOT.as_nanos()).or_default();
            *slot = slot.max(*seconds);
        }
        longest.extend(slots.into_values());
        Self { name, seconds: (to - from).as_secs_f64(), took, longest }
    }

    fn per_second(&self) -> f64 {
        self.took.values().len() as f64 / self.seconds
    }

    fn longest(&self) -> f64 {
        self.took.quantile(1.0)
    }
}

/// Measures.
pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), PatternsError> {
    let megabytes: u64 = setting.choose(128, 1024);
    let keys = (megabytes << 20) / VALUE_BYTES as u64;
    let folder = setting.directory.join("join");
    let region = format!("ack=majority,pattern={}", DEFAULT.name());
    let mut group = Group::start(Made { program: &setting.given.program, folder, region, link_delay_us: 0 })?;
    setting.say(&format!("join: three nodes are filled with {megabytes} MB"));
    fill(&group.servers(), keys)?;

    let stop = AtomicBool::new(false);
    let servers = group.servers();
    let (puts, marks) = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (stop, servers) = (&stop, &servers);
                scope.spawn(move || write_until(servers, number, keys, stop))
            })
            .collect();
        let marks = go_through(setting, &mut group);
        stop.store(true, Ordering::Relaxed);
        let written = writers.into_iter().map(|writer| writer.join().expect("writers do not panic"));
        let puts: Result<Vec<Vec<Put>>, PatternsError> = written.collect();
        Ok::<_, PatternsError>((puts?.concat(), marks?))
    })?;
    let Marks { began, asked, joined, killed, ended } = marks;
    let before = Span::of("before", &puts, began, asked);
    let joining = Span::of("while it joins", &puts, asked, joined);
    let behind = Span::of("3 s behind", &puts, joined, killed);
    let without = Span::of("a node is killed", &puts, killed, ended);
    // What was asked for while it joined may end behind it: the change of the view is where it ends.
    let longest_of_join = joining.longest().max(behind.longest());
    say(report, megabytes, [before, joining, behind, without.clone()]);
    let level = Some(Level::Process);
    for (name, value, most) in [
        ("a node joins: longest pause of a write", longest_of_join, JOIN_SECONDS_MAX),
        ("SIGKILL of one of four nodes: longest pause of a write", without.longest(), KILLED_SECONDS_MAX),
    ] {
        let name = format!("{megabytes} MB, {name}");
        report.targets.push(Target::new(name, value, Bound::AtMost, most, "s", level));
    }
    Ok(())
}

/// When what happened.
struct Marks {
    began: Instant,
    asked: Instant,
    joined: Instant,
    killed: Instant,
    ended: Instant,
}

/// A node joins, and then the second one is killed: it stamps, and is not who filled the first.
fn go_through(setting: &Setting<'_>, group: &mut Group<'_>) -> Result<Marks, PatternsError> {
    // Clients connect, and every key's way is known.
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    std::thread::sleep(BESIDE);
    setting.say("join: a fourth node joins");
    let asked = Instant::now();
    group.add()?;
    group.wait_until_all_serve_for(JOINED_MAX)?;
    let joined = Instant::now();
    std::thread::sleep(BESIDE);
    setting.say("join: a node is killed");
    let killed = Instant::now();
    group.signal(1, libc::SIGKILL);
    std::thread::sleep(BESIDE);
    Ok(Marks { began, asked, joined, killed, ended: Instant::now() })
}

fn say(report: &mut Report, megabytes: u64, spans: [Span; 4]) {
    let number = |value: f64| format!("{value:.4}");
    let rows = spans.iter().map(|span| {
        let took = &span.took;
        let ms = [0.5, 0.99, 1.0].map(|share| number(took.quantile(share) * 1e3));
        [
            vec![span.name.to_owned(), format!("{:.2}", span.seconds), format!("{:.0}", span.per_second())],
            ms.to_vec(),
        ]
        .concat()
    });
    report.tables.push(Table {
        name: "join",
        meaning: format!(
            "{CLIENTS} clients, one put of {VALUE_BYTES} B after the other each, to {megabytes} MB of such values, acknowledged by a majority, level \
             process: how long each span lasted, puts in a second, and what a put took, in ms"
        ),
        columns: ["span", "s", "puts/s", "median", "99 %", "longest"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
    });
    let arm = |span: Span| Arm {
        name: span.name.to_owned(),
        level: Some(Level::Process),
        window: u32::try_from(CLIENTS).expect("they are few"),
        payload_bytes: VALUE_BYTES as u64,
        unit: "s",
        operations: span.took.values().len() as u64,
        cpu_ns_per_operation: None,
        disk: None,
        samples: span.longest,
    };
    report.figures.push(Figure {
        name: "join",
        meaning: format!(
            "a fourth node joins three with {megabytes} MB, and then one is killed; a sample is the longest put of all clients that ended in a tenth of a second"
        ),
        arms: spans.into_iter().map(arm).collect(),
        notes: Vec::new(),
    });
}

fn key(number: u64) -> Blob {
    format!("f{number:08}").as_str().into()
}

/// Sets every key.
fn fill(servers: &[SocketAddr], keys: u64) -> Result<(), PatternsError> {
    let value: Blob = vec![7; VALUE_BYTES].into();
    std::thread::scope(|scope| {
        let fillers: Vec<_> = (0..FILLERS)
            .map(|filler| {
                let value = value.clone();
                scope.spawn(move || {
                    let mut client = Client::connect(servers, "data", Settings::default())?;
                    for number in (filler..keys).step_by(FILLERS as usize) {
                        client.begin(Operation::Put { key: key(number), value: value.clone() })?;
                        while client.under_way() >= 48 {
                            client.next_ended().expect("some are under way").1?;
                        }
                    }
                    while let Some((_, written)) = client.next_ended() {
                        written?;
                    }
                    Ok::<_, PatternsError>(())
                })
            })
            .collect();
        fillers.into_iter().try_for_each(|filler| filler.join().expect("fillers do not panic"))
    })
}

/// Sets keys here and there, one after the other.
fn write_until(
    servers: &[SocketAddr],
    number: usize,
    keys: u64,
    stop: &AtomicBool,
) -> Result<Vec<Put>, PatternsError> {
    let mut client = Client::connect(servers, "data", Settings::default())?;
    let value: Blob = vec![8; VALUE_BYTES].into();
    let mut puts = Vec::new();
    // Primes far apart: all shards, and no key twice in a row.
    let mut next = number as u64 * 104_729;
    while !stop.load(Ordering::Relaxed) {
        next = (next + 7919) % keys;
        let began = Instant::now();
        client.call(Operation::Put { key: key(next), value: value.clone() })?;
        puts.push((Instant::now(), began.elapsed().as_secs_f64()));
    }
    Ok(puts)
}
