//! Other groups beside ours, by turns: JGroups with and without a total order, Apache Geode's replicated region. Downloaded by
//! `peers/install.sh`, never a part of Mainstay.

use super::group::{Group, Made};
use super::load::{Load, slice};
use super::{DEFAULT, PatternsError, Setting};
use crate::machine::process_cpu_ns_of;
use crate::report::{Arm, Bound, Figure, Report, Samples, Target};
use mainstay_types::level::Level;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Size of a value, in bytes.
const BYTES: usize = 1000;

/// Threads of the client of Geode, and clients of ours beside it.
const THREADS: usize = 8;

/// Members of a group of JGroups: one sends, the others acknowledge.
const MEMBERS: usize = 4;

/// What Geode needs of a newer Java.
const OPENED: [&str; 14] = [
    "java.lang",
    "java.util",
    "java.nio",
    "java.lang.reflect",
    "java.net",
    "java.io",
    "sun.nio.ch",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "java.lang.invoke",
    "java.text",
    "jdk.internal.misc",
    "jdk.internal.ref",
    "jdk.internal.platform",
];

/// A Java process; killed when dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(folder: &Path, peer: &str, working: &Path, arguments: &[String]) -> io::Result<Self> {
        let installed = folder.join(peer);
        std::fs::create_dir_all(working)?;
        let mut command = Command::new("java");
        command.args(["-Xms256m", "-Xmx256m", "-Djava.net.preferIPv4Stack=true"]);
        command.args(OPENED.map(|package| format!("--add-opens=java.base/{package}=ALL-UNNAMED")));
        command.arg("--add-opens=java.management/com.sun.jmx.mbeanserver=ALL-UNNAMED");
        command.arg("-cp").arg(format!("{}:{}/jars/*", installed.display(), installed.display()));
        command.args(arguments).current_dir(working);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let input = child.stdin.take().expect("it is a pipe");
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        Ok(Self { child, input, output })
    }

    /// Until it says so; what else it prints is for people.
    fn wait_until_ready(&mut self) -> io::Result<()> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Err(io::Error::other("a peer's process ended at its start"));
            }
            if line.trim() == "ready" {
                return Ok(());
            }
        }
    }

    /// Operations and seconds.
    fn run(&mut self, outstanding: usize, time: Duration) -> io::Result<(f64, f64)> {
        writeln!(self.input, "{outstanding} {BYTES} {}", time.as_millis())?;
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Err(io::Error::other("a peer's process ended"));
            }
            let mut numbers = line.split_whitespace().map(str::parse::<f64>);
            if let (Some(Ok(operations)), Some(Ok(seconds)), None) =
                (numbers.next(), numbers.next(), numbers.next())
            {
                return Ok((operations, seconds));
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The first sends; all of them use processor time.
struct Peer(Vec<Process>);

impl Peer {
    fn jgroups(folder: &Path, working: &Path, name: &str, order: &str) -> io::Result<Self> {
        let stack = std::fs::read_to_string(folder.join("jgroups/stack.xml"))?;
        std::fs::create_dir_all(working)?;
        let file = working.join(format!("{name}.xml"));
        std::fs::write(&file, stack.replace("PORT", &free_port()?.to_string()).replace("ORDER", order))?;
        let arguments =
            ["Multicast".to_owned(), file.display().to_string(), name.to_owned(), MEMBERS.to_string()];
        let mut members = Vec::new();
        for _ in 0..MEMBERS {
            members.push(Process::start(folder, "jgroups", working, &arguments)?);
            // One after another, so that all find the first.
            std::thread::sleep(Duration::from_millis(500));
        }
        members.iter_mut().try_for_each(Process::wait_until_ready)?;
        // The first to come coordinates, and orders; another one sends.
        members.reverse();
        Ok(Self(members))
    }

    fn geode(folder: &Path, working: &Path) -> io::Result<Self> {
        let locator = free_port()?;
        let mut processes = Vec::new();
        let mut client = vec!["Member".to_owned(), "client".to_owned()];
        for (number, place) in ["first", "other", "other"].into_iter().enumerate() {
            let port = free_port()?;
            client.push(port.to_string());
            let name = format!("s{number}");
            let words = ["Member", "server", &name, &port.to_string(), &locator.to_string(), place];
            let arguments = words.map(str::to_owned);
            let mut server = Process::start(folder, "geode", &working.join(&name), &arguments)?;
            server.wait_until_ready()?;
            processes.push(server);
        }
        let mut client = Process::start(folder, "geode", &working.join("client"), &client)?;
        client.wait_until_ready()?;
        processes.insert(0, client);
        Ok(Self(processes))
    }

    /// Microseconds and nanoseconds of processor time, each for one operation; and how many there were.
    fn slice(&mut self, outstanding: usize, time: Duration) -> io::Result<(f64, f64, u64)> {
        let processes: Vec<u32> = self.0.iter().map(|process| process.child.id()).collect();
        let used = || processes.iter().filter_map(|process| process_cpu_ns_of(*process)).sum::<u64>();
        let before = used();
        let (operations, seconds) = self.0[0].run(outstanding, time)?;
        let cpu_ns = used().saturating_sub(before) as f64 / operations;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        Ok((seconds * 1e6 / operations, cpu_ns, operations as u64))
    }
}

/// One way of doing it, with what it took.
#[derive(Default)]
struct Cell {
    us: Samples,
    cpu_ns: Samples,
    operations: u64,
}

/// Measures them beside ours, if they are installed in the folder that was named.
pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), PatternsError> {
    let Some(folder) = &setting.given.peers else { return Ok(()) };
    // Each peer runs in a folder of its own.
    let (folder, working) =
        (&std::path::absolute(folder)?, std::path::absolute(setting.directory.join("peers"))?);
    let mut sequencer = Peer::jgroups(folder, &working, "sequencer", "<SEQUENCER/>")?;
    let mut unordered = Peer::jgroups(folder, &working, "unordered", "")?;
    let mut geode = Peer::geode(folder, &working)?;
    let region = format!("ack=all,pattern={}", DEFAULT.name());
    let made =
        Made { program: &setting.given.program, folder: working.join("ours"), region, link_delay_us: 0 };
    let group = Group::start(made)?;
    let load = |window| Load::start(&group, DEFAULT, BYTES, window, Duration::ZERO);
    let (mut alone, mut windowed) = ([load(1)?], [load(64)?]);
    let mut many = (0..THREADS).map(|_| load(1)).collect::<Result<Vec<_>, _>>()?;
    let names = [
        ("region", 1),
        ("JGroups, SEQUENCER", 1),
        ("JGroups, no total order", 1),
        ("Geode, 1 thread", 1),
        ("region", 64),
        ("JGroups, SEQUENCER", 64),
        ("JGroups, no total order", 64),
        ("region, 8 clients", THREADS),
        ("Geode, 8 threads", THREADS),
    ];
    let mut cells: Vec<Cell> = names.iter().map(|_| Cell::default()).collect();
    let time = Duration::from_millis(setting.choose(300, 1000));
    let warm_rounds = setting.choose(4, 10);
    for round in 0..warm_rounds + setting.choose(3, 9) {
        let ours = |loads: &mut [Load]| {
            let taken = slice(&group, loads, time)?;
            Ok::<_, PatternsError>((taken.us_per_operation(), taken.cpu_ns_per_operation(), taken.operations))
        };
        let taken = [
            ours(&mut alone)?,
            sequencer.slice(1, time)?,
            unordered.slice(1, time)?,
            geode.slice(1, time)?,
            ours(&mut windowed)?,
            sequencer.slice(64, time)?,
            unordered.slice(64, time)?,
            ours(&mut many)?,
            geode.slice(THREADS, time)?,
        ];
        // Java compiles as it runs.
        if round >= warm_rounds {
            for (cell, (us, cpu_ns, operations)) in cells.iter_mut().zip(taken) {
                cell.us.push(us);
                cell.cpu_ns.push(cpu_ns);
                cell.operations += operations;
            }
        }
    }
    let promises = [
        ("window 1: rate to that of JGroups with SEQUENCER", 0, 1, 2.0),
        ("window 1: rate to that of Geode", 0, 3, 1.5),
        ("window 64: rate to that of JGroups with SEQUENCER", 4, 5, 2.0),
        ("8 clients: rate to that of Geode with 8 threads", 7, 8, 3.0),
    ];
    // Java that has not run for long says nothing about itself.
    for (name, ours, peer, least) in promises.into_iter().filter(|_| !setting.quick) {
        let faster = cells[peer].us.ratios_to(&cells[ours].us).median();
        report.targets.push(Target::new(name, faster, Bound::AtLeast, least, "x", Some(Level::Process)));
    }
    let arm = |((name, window), cell): (&(&str, usize), Cell)| Arm {
        name: (*name).to_owned(),
        level: Some(if name.starts_with("region") { Level::Process } else { Level::Memory }),
        window: u32::try_from(*window).unwrap_or(u32::MAX),
        payload_bytes: BYTES as u64,
        unit: "us",
        operations: cell.operations,
        cpu_ns_per_operation: Some(cell.cpu_ns.median()),
        disk: None,
        samples: cell.us,
    };
    let mut notes = vec![
        "JGroups: one sender, three other members acknowledge delivery, tcp_nodelay; Geode: three servers, one client"
            .to_owned(),
    ];
    if setting.quick {
        notes.push(
            "the short form does not warm up Java for long enough to compare with it: nothing is promised"
                .to_owned(),
        );
    }
    report.figures.push(Figure {
        name: "peers",
        meaning: "microseconds for each put, acknowledged by three copies; processor time of all processes. A region at level process has its \
                  writes where kill -9 of every copy does not reach them; the peers keep them in memory"
            .to_owned(),
        arms: names.iter().zip(cells).map(arm).collect(),
        notes,
    });
    Ok(())
}
