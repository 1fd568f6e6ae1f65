//! The table: each pattern by each size, by turns, with what the model says of it beside.
//!
//! The model (docs/benchmarks/patterns.md): a hop takes half a bare ping-pong of its size, and an operation takes its hops one after another; where the
//! processors are the limit, it takes processor time as it has messages.

use super::load::{Load, Slice, slice};
use super::{DEFAULT, PatternsError, Setting};
use crate::group::{Group, Made};
use crate::report::{Arm, Bound, Figure, Report, Samples, Table, Target, number};
use crate::transport::{Bare, Order};
use mainstay_region::patterns::Pattern;
use mainstay_types::level::Level;
use std::time::Duration;

/// Copies of the region.
const COPIES: u64 = crate::group::NODES as u64;

/// The size that is promised about, in bytes.
const PROMISED_BYTES: usize = 1000;

/// Most that an operation may take, in times of what its hops take.
const HOPS_RATIO_MAX: f64 = 1.4;

/// Most processor time that an operation of the default pattern may take with a full window, in microseconds.
const CPU_US_MAX: f64 = 5.0;

/// Most processor time that a version may cost, in times of none.
const VERSION_RATIO_MAX: f64 = 1.35;

/// How a table is measured.
#[derive(Debug)]
pub(super) struct Shape {
    name: &'static str,
    window: usize,
}

/// One operation after the other.
pub(super) const WINDOW_1: Shape = Shape { name: "window 1", window: 1 };

/// As many as a region remembers of a client.
pub(super) const WINDOW_64: Shape = Shape { name: "window 64", window: 64 };

/// The two groups that a table needs: without versions, and with.
fn groups<'a>(
    setting: &Setting<'a>,
    name: &str,
    link_delay_us: u64,
) -> Result<[Group<'a>; 2], PatternsError> {
    let start = |pattern: Pattern| {
        let folder = setting.directory.join(format!("{name} {}", pattern.name()));
        let region = format!("ack=all,pattern={}", pattern.name());
        Group::start(Made { program: &setting.given.program, folder, region, link_delay_us })
    };
    Ok([start(Pattern::Unversioned)?, start(EVERY)?])
}

/// Of a region of this pattern clients may use every other one too: it takes payloads that they send beside the versions.
const EVERY: Pattern = Pattern::Tagged;

fn group_of<'g, 'a>(groups: &'g [Group<'a>; 2], pattern: Pattern) -> &'g Group<'a> {
    &groups[usize::from(pattern != Pattern::Unversioned)]
}

/// What was measured of a pattern at one size.
#[derive(Debug, Default)]
struct Cell {
    us: Samples,
    cpu_ns: Samples,
    operations: u64,
}

impl Cell {
    fn take(&mut self, slice: Slice) {
        self.us.push(slice.us_per_operation());
        self.cpu_ns.push(slice.cpu_ns_per_operation());
        self.operations += slice.operations;
    }

    fn arm(&self, name: &str, window: usize, payload_bytes: usize) -> Arm {
        Arm {
            name: name.to_owned(),
            level: Some(Level::Process),
            window: u32::try_from(window).unwrap_or(u32::MAX),
            payload_bytes: payload_bytes as u64,
            unit: "us",
            operations: self.operations,
            cpu_ns_per_operation: Some(self.cpu_ns.median()),
            disk: None,
            samples: self.us.clone(),
        }
    }
}

/// Measures a table.
pub(super) fn measure(
    shape: &Shape,
    setting: &Setting<'_>,
    report: &mut Report,
) -> Result<(), PatternsError> {
    let mut figure = Figure {
        name: shape.name,
        meaning: "one client, seconds for a million puts (microseconds each), acknowledged by all three copies; a sample is a slice; cpu of all \
                  nodes and the client"
            .to_owned(),
        arms: Vec::new(),
        notes: Vec::new(),
    };
    let mut bare = Bare::start(&setting.given.program)?;
    let slice_time = Duration::from_millis(setting.choose(40, 150));
    let sizes: &[usize] = setting.choose(&[10, 1000, 50_000], &[10, 100, 1000, 10_000, 50_000]);
    for &bytes in sizes {
        setting.say(&format!("{}, {bytes} B", shape.name));
        let groups = groups(setting, &format!("{} {bytes}", shape.name), 0)?;
        let mut loads = Vec::new();
        for pattern in Pattern::ALL {
            let load = Load::start(group_of(&groups, pattern), pattern, bytes, shape.window, Duration::ZERO)?;
            loads.push((pattern, [load], Cell::default()));
        }
        let mut floor = [Samples::default(), Samples::default()];
        for round in 0..=setting.choose(3, 9) {
            for (samples, bytes) in floor.iter_mut().zip([10, bytes]) {
                let count = setting.choose(300, 1000);
                let order = Order { stream: false, bytes: u32::try_from(bytes).unwrap_or(u32::MAX), count };
                samples.push(bare.run(order)? * 1e6 / f64::from(count));
            }
            for (pattern, load, cell) in &mut loads {
                let taken = slice(group_of(&groups, *pattern), load, slice_time)?;
                // The first round warms up.
                if round > 0 {
                    cell.take(taken);
                }
            }
        }
        let halves = floor.each_ref().map(|samples| samples.median() / 2.0);
        let counted = counted(&groups, &mut loads, setting)?;
        let cells: Vec<(Pattern, &Cell)> = loads.iter().map(|(pattern, _, cell)| (*pattern, cell)).collect();
        table(shape, bytes, halves, &cells, &counted, report);
        if bytes == PROMISED_BYTES {
            targets(shape, halves, &cells, report);
        }
        figure.arms.push(Arm {
            disk: None,
            ..Arm::of_latencies("bare TCP ping-pong".to_owned(), None, bytes as u64, floor[1].clone())
        });
        figure.arms.extend(cells.iter().map(|(pattern, cell)| cell.arm(pattern.name(), shape.window, bytes)));
    }
    report.figures.push(figure);
    Ok(())
}

/// Messages of an operation, as the nodes count them: what they send in a slice, less what they send without one, and what the client sends.
fn counted(
    groups: &[Group<'_>; 2],
    loads: &mut [(Pattern, [Load; 1], Cell)],
    setting: &Setting<'_>,
) -> Result<Vec<f64>, PatternsError> {
    let time = Duration::from_millis(setting.choose(60, 300));
    loads
        .iter_mut()
        .map(|(pattern, load, _)| {
            let group = group_of(groups, *pattern);
            let idle_from = group.messages_sent()?;
            let began = std::time::Instant::now();
            std::thread::sleep(time);
            let idle_to = group.messages_sent()?;
            let idle_rate = (idle_to - idle_from) as f64 / began.elapsed().as_secs_f64();
            let (from, of_client) = (group.messages_sent()?, load[0].client.messages_sent());
            let began = std::time::Instant::now();
            let taken = slice(group, load, time)?;
            let to = group.messages_sent()?;
            let beside = idle_rate * began.elapsed().as_secs_f64();
            let sent = (to - from) as f64 - beside + (load[0].client.messages_sent() - of_client) as f64;
            Ok(sent / taken.operations as f64)
        })
        .collect()
}

/// What the hops of an operation take, one after another, in microseconds.
fn hops_us(pattern: Pattern, [small, large]: [f64; 2]) -> f64 {
    let cost = pattern.cost(COPIES);
    cost.payload_hops as f64 * large + (cost.hops - cost.payload_hops) as f64 * small
}

fn table(
    shape: &Shape,
    bytes: usize,
    halves: [f64; 2],
    cells: &[(Pattern, &Cell)],
    counted: &[f64],
    report: &mut Report,
) {
    let unversioned = cells[0].1.cpu_ns.median();
    let rows = cells.iter().zip(counted).map(|((pattern, cell), counted)| {
        let cost = pattern.cost(COPIES);
        let (us, cpu, hops) = (cell.us.median(), cell.cpu_ns.median(), hops_us(*pattern, halves));
        vec![
            bytes.to_string(),
            pattern.name().to_owned(),
            number(us),
            number(1e6 / us),
            number(cpu / 1000.0),
            number(cpu / unversioned),
            format!("{:.2}", cost.messages as f64 / Pattern::Unversioned.cost(COPIES).messages as f64),
            cost.messages.to_string(),
            format!("{counted:.1}"),
            cost.hops.to_string(),
            number(hops),
            number(us / hops),
        ]
    });
    let name = shape.name;
    let place = report.tables.iter().position(|table| table.name == name).unwrap_or_else(|| {
        report.tables.push(Table {
            name,
            meaning: format!(
                "seconds for a million puts, level process, window {}; processor time of nodes and client; messages, hops and what they take by the \
                 model, beside what was measured",
                shape.window
            ),
            columns: [
                "bytes",
                "pattern",
                "s/million",
                "ops/s",
                "cpu us/op",
                "cpu to unversioned",
                "model",
                "messages",
                "counted",
                "hops",
                "hops take us",
                "time to hops",
            ]
            .map(str::to_owned)
            .to_vec(),
            rows: Vec::new(),
        });
        report.tables.len() - 1
    });
    report.tables[place].rows.extend(rows);
}

fn targets(shape: &Shape, halves: [f64; 2], cells: &[(Pattern, &Cell)], report: &mut Report) {
    let of = |pattern| cells.iter().find(|(of, _)| *of == pattern).expect("every pattern is measured").1;
    let (ours, floor) = (of(DEFAULT), of(Pattern::Unversioned));
    let level = Some(Level::Process);
    if shape.window == 1 {
        report.targets.push(Target::new(
            format!("{}, {PROMISED_BYTES} B, {}: time to that of its hops", shape.name, DEFAULT.name()),
            ours.us.median() / hops_us(DEFAULT, halves),
            Bound::AtMost,
            HOPS_RATIO_MAX,
            "x",
            level,
        ));
        return;
    }
    report.targets.push(Target::new(
        format!("{}, {PROMISED_BYTES} B, {}: cpu of all processes", shape.name, DEFAULT.name()),
        ours.cpu_ns.median() / 1000.0,
        Bound::AtMost,
        CPU_US_MAX,
        "us/op",
        level,
    ));
    report.targets.push(Target::new(
        format!("{}, {PROMISED_BYTES} B, {}: cpu to unversioned", shape.name, DEFAULT.name()),
        ours.cpu_ns.ratios_to(&floor.cpu_ns).median(),
        Bound::AtMost,
        VERSION_RATIO_MAX,
        "x",
        level,
    ));
}

/// Many clients, with the stampers of a region spread over its servers, and all on one.
pub(super) fn many_clients(setting: &Setting<'_>, report: &mut Report) -> Result<(), PatternsError> {
    let (clients, window) = (setting.given.clients.max(1), setting.given.window.clamp(1, 64));
    let mut figure = Figure {
        name: "many clients",
        meaning: format!(
            "{clients} clients, each on a thread with a window of {window}; microseconds for each put of all, 16 shards with their stampers spread over the \
             nodes and one shard with one; level process, acknowledged by all"
        ),
        arms: Vec::new(),
        notes: Vec::new(),
    };
    let patterns = [Pattern::OneHop, Pattern::OneHopClient, Pattern::Tagged, Pattern::Chain];
    for bytes in [PROMISED_BYTES, 10_000] {
        let mut arms = Vec::new();
        let mut groups = Vec::new();
        for (spread, shards) in [("spread", 16), ("one server", 1)] {
            let folder = setting.directory.join(format!("many {bytes} {shards}"));
            let region = format!("ack=all,shards={shards},pattern={}", EVERY.name());
            groups.push((
                spread,
                Group::start(Made { program: &setting.given.program, folder, region, link_delay_us: 0 })?,
            ));
        }
        for (spread, group) in &groups {
            for pattern in patterns {
                let loads: Result<Vec<_>, _> = (0..clients)
                    .map(|_| Load::start(group, pattern, bytes, window, Duration::ZERO))
                    .collect();
                arms.push((format!("{}, {spread}", pattern.name()), group, loads?, Cell::default()));
            }
        }
        for round in 0..=setting.choose(2, 7) {
            for (_, group, loads, cell) in &mut arms {
                let taken = slice(group, loads, Duration::from_millis(setting.choose(60, 200)))?;
                if round > 0 {
                    cell.take(taken);
                }
            }
        }
        figure.arms.extend(arms.iter().map(|(name, _, _, cell)| cell.arm(name, clients * window, bytes)));
    }
    report.figures.push(figure);
    Ok(())
}

/// Every message between two processes is held back: what an operation takes is its hops.
pub(super) fn link_delay(setting: &Setting<'_>, report: &mut Report) -> Result<(), PatternsError> {
    let delay_us = setting.given.link_delay_us;
    let delay = Duration::from_micros(delay_us);
    let groups = groups(setting, "delay", delay_us)?;
    let mut rows = Vec::new();
    let mut figure = Figure {
        name: "link delay",
        meaning: format!(
            "one client, window 1, {PROMISED_BYTES} B, each message held back for {delay_us} us by who sends it"
        ),
        arms: Vec::new(),
        notes: Vec::new(),
    };
    for pattern in Pattern::ALL {
        let group = group_of(&groups, pattern);
        let mut load = [Load::start(group, pattern, PROMISED_BYTES, 1, delay)?];
        let mut cell = Cell::default();
        for _ in 0..setting.choose(3, 9) {
            cell.take(slice(group, &mut load, Duration::from_millis(setting.choose(50, 200)))?);
        }
        let (hops, us) = (pattern.cost(COPIES).hops, cell.us.median());
        rows.push(vec![
            pattern.name().to_owned(),
            number(us),
            hops.to_string(),
            number(us / (hops * delay_us.max(1)) as f64),
        ]);
        figure.arms.push(cell.arm(pattern.name(), 1, PROMISED_BYTES));
    }
    report.figures.push(figure);
    report.tables.push(Table {
        name: "hops",
        meaning: format!("what a put takes where each hop takes {delay_us} us: the model is hops times that"),
        columns: ["pattern", "us", "hops", "to the model"].map(str::to_owned).to_vec(),
        rows,
    });
    Ok(())
}
