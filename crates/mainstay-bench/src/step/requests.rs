//! Requests at 1 and at 64 clients: bare echo, each level, each policy; the bare sync in the same rounds.

use super::load::{self, BODY_BYTES};
use super::services::{bare_echo, serve, serve_halting, synced_echo};
use super::{Setting, StepError};
use crate::floor::{DurableWrite, FloorFile};
use crate::machine::Meter;
use crate::report::{Arm, Bound, Figure, Report, Samples, Target, resolution};
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Bytes that the journal writes for one such request: headers, determinant, key and body.
const FLOOR_WRITE_BYTES: usize = 256;

/// Floor writes in a round.
const FLOOR_WRITES: usize = 400;

/// Work between two syncs of the paced floor: about what a bare echo takes. Syncs that do not follow each other at once are
/// slower on a virtual disk. Shown only; the targets are in floors back to back.
const PACE: Duration = Duration::from_micros(40);

/// Highest median latency added to the bare echo's at 1 client, in floors.
const ADDED_FLOORS_MAX: f64 = 1.3;

/// Least rate at level `Process` over the bare echo's, at 64 clients.
const PROCESS_SHARE_MIN: f64 = 0.5;

/// Least rate at level `Disk` over that at level `Process`, at 64 clients.
const DISK_SHARE_MIN: f64 = 0.7;

pub(super) struct Server {
    pub(super) name: String,
    pub(super) level: Option<Level>,
    pub(super) address: SocketAddr,
}

/// What a server gave at one number of clients.
pub(super) struct Measured {
    latency_us: Samples,
    pub(super) rates: Samples,
    meter: Meter,
}

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), StepError> {
    let echo = bare_echo()?;
    let mut servers = vec![Server { name: "bare axum echo".to_owned(), level: None, address: echo.address }];
    let mut running = Vec::new();
    for (level, policy) in [
        (Level::Process, Policy::Deferred),
        (Level::Disk, Policy::Deferred),
        (Level::Process, Policy::Immediate),
        (Level::Disk, Policy::Immediate),
    ] {
        let service = serve(setting.directory, level, policy)?;
        let name = format!("ours: {policy}, {level}");
        servers.push(Server { name, level: Some(level), address: service.address() });
        running.push(service);
    }
    let halting = serve_halting(setting.directory, Policy::Deferred)?;
    servers.push(Server {
        name: "ours: deferred, disk, --cores-may-halt".to_owned(),
        level: Some(Level::Disk),
        address: halting.address(),
    });
    running.push(halting);
    let floor = |name: &str, method| {
        FloorFile::create(&setting.directory.join(name), method, 64 << 20, FLOOR_WRITE_BYTES)
    };
    let synced = synced_echo(floor("step-synced", DurableWrite::DirectDsync)?, FLOOR_WRITE_BYTES)?;
    servers.push(Server {
        name: "bare axum echo + one plain sync".to_owned(),
        level: Some(Level::Disk),
        address: synced.address,
    });
    let mut floors =
        [floor("step-fdatasync", DurableWrite::Fdatasync)?, floor("step-direct", DurableWrite::DirectDsync)?];
    for clients in [1, 64] {
        at(setting, clients, &servers, &mut floors, report)?;
    }
    for service in running {
        service.stop()?;
    }
    Ok(())
}

fn at(
    setting: &Setting<'_>,
    clients: usize,
    servers: &[Server],
    floors: &mut [FloorFile; 2],
    report: &mut Report,
) -> Result<(), StepError> {
    let mut floor_us = [Samples::default(), Samples::default()];
    let mut paced_us = [Samples::default(), Samples::default()];
    let measured = by_turns(setting, clients, servers, || {
        for (index, floor) in floors.iter_mut().enumerate() {
            sync_repeatedly(floor, Duration::ZERO, &mut floor_us[index])?;
            sync_repeatedly(floor, PACE, &mut paced_us[index])?;
        }
        Ok(())
    })?;
    let better = usize::from(floor_us[1].median() < floor_us[0].median());
    let floor = floor_us[better].median();
    let resolution = add_targets(clients, &measured, floor, report);
    let method = ["pwrite + fdatasync", "O_DIRECT | O_DSYNC"][better];
    let floors = format!(
        "floor: {FLOOR_WRITE_BYTES} B by {method}, p50 {floor:.1} us back to back, {:.1} us with {} us of work between two",
        paced_us[better].median(),
        PACE.as_micros()
    );
    add_figure(clients, servers, measured, resolution.into_iter().chain([floors]), report);
    Ok(())
}

/// Drives the servers by turns, `between` behind each round; the first round warms up.
pub(super) fn by_turns(
    setting: &Setting<'_>,
    clients: usize,
    servers: &[Server],
    mut between: impl FnMut() -> Result<(), StepError>,
) -> Result<Vec<Measured>, StepError> {
    // Short, since what is compared within a round should have met the machine at one speed.
    let slice = Duration::from_millis(250);
    let rounds = setting.choose(6, 40);
    let new = || Measured {
        latency_us: Samples::default(),
        rates: Samples::default(),
        meter: Meter::new(setting.directory),
    };
    let mut measured: Vec<_> = servers.iter().map(|_| new()).collect();
    for round in 0..=rounds {
        for (server, measured) in servers.iter().zip(&mut measured) {
            if round == 0 {
                load::run(&server.name, server.address, clients, slice)?;
                continue;
            }
            let taken = measured.meter.slice(|| load::run(&server.name, server.address, clients, slice))?;
            measured.rates.push(taken.rate);
            measured.latency_us.extend(taken.latency_us.values().iter().copied());
        }
        between()?;
    }
    Ok(measured)
}

/// Writes durably with `pace` of work before each write, which is not counted.
fn sync_repeatedly(floor: &mut FloorFile, pace: Duration, into_us: &mut Samples) -> Result<(), StepError> {
    for _ in 0..FLOOR_WRITES {
        let before = Instant::now();
        while before.elapsed() < pace {
            std::hint::spin_loop();
        }
        let since = Instant::now();
        floor.write(FLOOR_WRITE_BYTES)?;
        into_us.push(since.elapsed().as_secs_f64() * 1e6);
    }
    Ok(())
}

/// Adds the targets, and says how far the closest of them is resolved.
fn add_targets(clients: usize, measured: &[Measured], floor: f64, report: &mut Report) -> Option<String> {
    let [echo, process, disk] = [0, 1, 2].map(|index: usize| &measured[index]);
    if clients == 1 {
        let added = (disk.latency_us.median() - echo.latency_us.median()) / floor;
        let name = "1 client, deferred: median latency added to the bare echo's, in floors";
        report.targets.push(Target::new(
            name,
            added,
            Bound::AtMost,
            ADDED_FLOORS_MAX,
            "floors",
            Some(Level::Disk),
        ));
        return None;
    }
    let shares = |ours: &Measured, reference: &Measured| ours.rates.ratios_to(&reference.rates);
    let name = "64 clients, deferred: rate at level process over the bare echo's";
    let value = shares(process, echo).median();
    report.targets.push(Target::new(
        name,
        value,
        Bound::AtLeast,
        PROCESS_SHARE_MIN,
        "x",
        Some(Level::Process),
    ));
    let name = "64 clients, deferred: rate at level disk over that at level process";
    let of_process = shares(disk, process);
    let value = of_process.median();
    report.targets.push(Target::new(name, value, Bound::AtLeast, DISK_SHARE_MIN, "x", Some(Level::Disk)));
    resolution("deferred, disk over process", &of_process, DISK_SHARE_MIN)
}

fn add_figure(
    clients: usize,
    servers: &[Server],
    measured: Vec<Measured>,
    findings: impl Iterator<Item = String>,
    report: &mut Report,
) {
    let mut notes = rates(servers, &measured);
    notes.extend(findings);
    notes.push("processor time is that of servers and clients together".to_owned());
    report.figures.push(Figure {
        name: if clients == 1 { "requests, 1 client" } else { "requests, 64 clients" },
        meaning: "POST /call with a key of its own, until the whole answer is there".to_owned(),
        arms: arms(clients, servers, measured),
        notes,
    });
}

/// The rate of each, in words.
pub(super) fn rates(servers: &[Server], measured: &[Measured]) -> Vec<String> {
    let of_server = |(server, measured): (&Server, &Measured)| {
        let rates = &measured.rates;
        let (rate, low, high) = (rates.median(), rates.quantile(0.0), rates.quantile(1.0));
        format!("{}: {rate:.0} requests/s ({low:.0} to {high:.0} by round)", server.name)
    };
    servers.iter().zip(measured).map(of_server).collect()
}

/// Their latencies.
pub(super) fn arms(clients: usize, servers: &[Server], measured: Vec<Measured>) -> Vec<Arm> {
    let window = u32::try_from(clients).expect("few clients");
    let of_server = |(server, measured): (&Server, Measured)| {
        let operations = measured.latency_us.values().len() as u64;
        Arm {
            name: server.name.clone(),
            level: server.level,
            window,
            payload_bytes: BODY_BYTES as u64,
            unit: "us",
            operations,
            cpu_ns_per_operation: Some(measured.meter.cpu_ns_per_operation(operations)),
            disk: measured.meter.disk(),
            samples: measured.latency_us,
        }
    };
    servers.iter().zip(measured).map(of_server).collect()
}
