//! The Redis protocol: redis-benchmark with a pipeline against three nodes, beside one redis-server that keeps no copies.

use super::{PatternsError, Setting};
use crate::group::{Group, Made};
use crate::machine::process_cpu_ns_of;
use crate::report::{Arm, Bound, Figure, Report, Samples, Target};
use mainstay_types::level::Level;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Most processor time of all nodes, in times of a single server's without copies.
const CPU_RATIO_MAX: f64 = 4.0;

/// Commands under way on a connection.
const PIPELINE: u32 = 16;

/// Connections.
const CONNECTIONS: u32 = 8;

/// How long a redis-server may take to listen.
const LISTEN_MAX: Duration = Duration::from_secs(20);

/// A redis-server that keeps nothing; killed when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> io::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let port = address.port().to_string();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let server = Self { child, address };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            if began.elapsed() > LISTEN_MAX {
                return Err(io::Error::other("redis-server does not listen"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures, where the programs of Redis are installed.
pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), PatternsError> {
    let mut figure = Figure {
        name: "redis",
        meaning: format!(
            "redis-benchmark, SET of 100 B, {CONNECTIONS} connections with {PIPELINE} commands under way each; us for each SET of all; cpu of the servers \
             alone; the region has three copies, acknowledged by a majority, at level process, the redis-server one that survives nothing"
        ),
        arms: Vec::new(),
        notes: Vec::new(),
    };
    let installed = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !installed("redis-server") || !installed("redis-benchmark") {
        figure.notes.push("skipped: redis-server and redis-benchmark are not installed".to_owned());
        report.figures.push(figure);
        return Ok(());
    }
    let folder = setting.directory.join("redis");
    let made =
        Made { program: &setting.given.program, folder, region: "ack=majority".to_owned(), link_delay_us: 0 };
    let (group, server) = (Group::start(made)?, Server::start()?);
    let requests = setting.choose(40_000, 200_000);
    let arms = [
        ("redis-server", server.address, vec![server.child.id()]),
        ("region", group.clients_at(), group.processes()),
    ];
    let (mut us, mut cpu) =
        ([Samples::default(), Samples::default()], [Samples::default(), Samples::default()]);
    for round in 0..=setting.choose(2, 7) {
        for (place, (_, address, processes)) in arms.iter().enumerate() {
            let used = || processes.iter().filter_map(|process| process_cpu_ns_of(*process)).sum::<u64>();
            let (before, began) = (used(), Instant::now());
            load(*address, requests)?;
            if round > 0 {
                us[place].push(began.elapsed().as_secs_f64() * 1e6 / f64::from(requests));
                cpu[place].push((used() - before) as f64 / f64::from(requests));
            }
        }
    }
    let ratio = cpu[1].ratios_to(&cpu[0]).median();
    for (place, (name, ..)) in arms.iter().enumerate() {
        figure.arms.push(Arm {
            name: (*name).to_owned(),
            level: Some(if place == 0 { Level::Memory } else { Level::Process }),
            window: CONNECTIONS * PIPELINE,
            payload_bytes: 100,
            unit: "us",
            operations: u64::from(requests) * us[place].values().len() as u64,
            cpu_ns_per_operation: Some(cpu[place].median()),
            disk: None,
            samples: us[place].clone(),
        });
    }
    report.targets.push(Target::new(
        "redis-benchmark -P 16, SET: cpu of all nodes to that of one redis-server without copies",
        ratio,
        Bound::AtMost,
        CPU_RATIO_MAX,
        "x",
        Some(Level::Process),
    ));
    report.figures.push(figure);
    Ok(())
}

fn load(address: SocketAddr, requests: u32) -> io::Result<()> {
    let mut command = Command::new("redis-benchmark");
    command.args([
        "-h",
        "127.0.0.1",
        "-p",
        &address.port().to_string(),
        "-t",
        "set",
        "-q",
        "-d",
        "100",
        "-r",
        "1000",
    ]);
    command.args(["-n", &requests.to_string(), "-c", &CONNECTIONS.to_string(), "-P", &PIPELINE.to_string()]);
    let ended = command.stdin(Stdio::null()).output()?;
    if ended.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("redis-benchmark: {}", String::from_utf8_lossy(&ended.stderr).trim())))
}
