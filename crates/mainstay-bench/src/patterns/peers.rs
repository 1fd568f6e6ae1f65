//! Other groups beside ours, by turns: JGroups with and without a total order, Apache Geode's replicated region, etcd. Downloaded by
//! `peers/install.sh`, never a part of Mainstay.

use super::load::{Load, slice};
use super::{DEFAULT, PatternsError, Setting};
use crate::group::{Group, Made};
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

/// The client of etcd, in the folder of peers.
const ETCD_CLIENT: &str = "etcd/client";

/// What etcd may keep, in bytes: it does not forget what was written over.
const ETCD_BYTES_MAX: &str = "8589934592";

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

/// A process that is told what to do; killed when dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let input = child.stdin.take().expect("it is a pipe");
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        Ok(Self { child, input, output })
    }

    fn java(folder: &Path, peer: &str, working: &Path, arguments: &[String]) -> io::Result<Self> {
        let installed = folder.join(peer);
        std::fs::create_dir_all(working)?;
        let mut command = Command::new("java");
        command.args(["-Xms256m", "-Xmx256m", "-Djava.net.preferIPv4Stack=true"]);
        command.args(OPENED.map(|package| format!("--add-opens=java.base/{package}=ALL-UNNAMED")));
        command.arg("--add-opens=java.management/com.sun.jmx.mbeanserver=ALL-UNNAMED");
        command.arg("-cp").arg(format!("{}:{}/jars/*", installed.display(), installed.display()));
        Self::spawn(command.args(arguments).current_dir(working))
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
            members.push(Process::java(folder, "jgroups", working, &arguments)?);
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
            let mut server = Process::java(folder, "geode", &working.join(&name), &arguments)?;
            server.wait_until_ready()?;
            processes.push(server);
        }
        let mut client = Process::java(folder, "geode", &working.join("client"), &client)?;
        client.wait_until_ready()?;
        processes.insert(0, client);
        Ok(Self(processes))
    }

    fn etcd(folder: &Path, working: &Path) -> io::Result<Self> {
        let at = || Ok::<_, io::Error>(format!("http://127.0.0.1:{}", free_port()?));
        let members = (0..3).map(|_| Ok((at()?, at()?))).collect::<io::Result<Vec<_>>>()?;
        let cluster: Vec<String> =
            members.iter().enumerate().map(|(number, (_, peers))| format!("e{number}={peers}")).collect();
        let mut servers = Vec::new();
        for (number, (clients, peers)) in members.iter().enumerate() {
            let name = format!("e{number}");
            let mut server = Command::new("etcd");
            server.args(["--name", &name, "--log-level", "error", "--data-dir"]).arg(working.join(&name));
            server.args(["--listen-client-urls", clients, "--advertise-client-urls", clients]);
            server.args(["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]);
            server.args(["--initial-cluster", &cluster.join(","), "--quota-backend-bytes", ETCD_BYTES_MAX]);
            servers.push(Process::spawn(&mut server)?);
        }
        let mut client = Command::new(folder.join(ETCD_CLIENT));
        let mut client = Process::spawn(client.args(members.iter().map(|(clients, _)| clients)))?;
        client.wait_until_ready()?;
        servers.insert(0, client);
        Ok(Self(servers))
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

/// Who takes a turn.
enum By {
    /// Clients of one of our groups.
    Ours {
        group: usize,
        loads: Vec<Load>,
    },
    Peer(usize),
}

/// One way of doing it, with what it took.
struct Way {
    name: &'static str,
    level: Level,
    window: usize,
    by: By,
    us: Samples,
    cpu_ns: Samples,
    operations: u64,
}

impl Way {
    fn new(name: &'static str, level: Level, window: usize, by: By) -> Self {
        Self { name, level, window, by, us: Samples::default(), cpu_ns: Samples::default(), operations: 0 }
    }

    /// Works for so long; counted or not.
    fn turn(
        &mut self,
        groups: &[Group<'_>],
        peers: &mut [Peer],
        time: Duration,
        counts: bool,
    ) -> Result<(), PatternsError> {
        let (us, cpu_ns, operations) = match &mut self.by {
            By::Ours { group, loads } => {
                let taken = slice(&groups[*group], loads, time)?;
                (taken.us_per_operation(), taken.cpu_ns_per_operation(), taken.operations)
            }
            By::Peer(place) => peers[*place].slice(self.window, time)?,
        };
        if counts {
            self.us.push(us);
            self.cpu_ns.push(cpu_ns);
            self.operations += operations;
        }
        Ok(())
    }
}

/// Measures them beside ours, if they are installed in the folder that was named.
pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), PatternsError> {
    let Some(folder) = &setting.given.peers else { return Ok(()) };
    // Each peer runs in a folder of its own.
    let (folder, working) =
        (&std::path::absolute(folder)?, std::path::absolute(setting.directory.join("peers"))?);
    let mut peers = vec![
        Peer::jgroups(folder, &working, "sequencer", "<SEQUENCER/>")?,
        Peer::jgroups(folder, &working, "unordered", "")?,
        Peer::geode(folder, &working)?,
    ];
    let with_etcd =
        folder.join(ETCD_CLIENT).exists() && Command::new("etcd").arg("--version").output().is_ok();
    let ours = |name: &str, region: &str| {
        let region = format!("{region},pattern={}", DEFAULT.name());
        let program = &setting.given.program;
        Group::start(Made { program, folder: working.join(name), region, link_delay_us: 0 })
    };
    let mut groups = vec![ours("ours", "ack=all")?];
    if with_etcd {
        peers.push(Peer::etcd(folder, &working)?);
        groups.push(ours("ours-synced", "ack=majority,level=disk")?);
    }
    let by_clients = |group: usize, clients: usize, window| {
        let load = || Load::start(&groups[group], DEFAULT, BYTES, window, Duration::ZERO);
        let loads = (0..clients).map(|_| load()).collect::<Result<_, PatternsError>>()?;
        Ok::<_, PatternsError>(By::Ours { group, loads })
    };
    let mut ways = vec![
        Way::new("region", Level::Process, 1, by_clients(0, 1, 1)?),
        Way::new("JGroups, SEQUENCER", Level::Memory, 1, By::Peer(0)),
        Way::new("JGroups, no total order", Level::Memory, 1, By::Peer(1)),
        Way::new("Geode, 1 thread", Level::Memory, 1, By::Peer(2)),
        Way::new("region", Level::Process, 64, by_clients(0, 1, 64)?),
        Way::new("JGroups, SEQUENCER", Level::Memory, 64, By::Peer(0)),
        Way::new("JGroups, no total order", Level::Memory, 64, By::Peer(1)),
        Way::new("region, 8 clients", Level::Process, THREADS, by_clients(0, THREADS, 1)?),
        Way::new("Geode, 8 threads", Level::Memory, THREADS, By::Peer(2)),
    ];
    if with_etcd {
        for window in [1, 64] {
            ways.push(Way::new("region, a majority", Level::Disk, window, by_clients(1, 1, window)?));
            ways.push(Way::new("etcd", Level::Disk, window, By::Peer(3)));
        }
    }
    let time = Duration::from_millis(setting.choose(300, 1000));
    let warm_rounds = setting.choose(4, 10);
    for round in 0..warm_rounds + setting.choose(3, 9) {
        for way in &mut ways {
            // Java compiles as it runs.
            way.turn(&groups, &mut peers, time, round >= warm_rounds)?;
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
        let faster = ways[peer].us.ratios_to(&ways[ours].us).median();
        report.targets.push(Target::new(name, faster, Bound::AtLeast, least, "x", Some(Level::Process)));
    }
    let mut notes = vec![
        "JGroups: one sender, three other members acknowledge delivery, tcp_nodelay; Geode: three servers, one client"
            .to_owned(),
    ];
    notes.push(match with_etcd {
        true => "etcd: three servers, which sync each write, one client with one connection".to_owned(),
        false => "without etcd: the program `etcd` is not installed, or its client was not built".to_owned(),
    });
    if setting.quick {
        notes.push(
            "the short form does not warm up Java for long enough to compare with it: nothing is promised"
                .to_owned(),
        );
    }
    let arm = |way: Way| Arm {
        name: way.name.to_owned(),
        level: Some(way.level),
        window: u32::try_from(way.window).unwrap_or(u32::MAX),
        payload_bytes: BYTES as u64,
        unit: "us",
        operations: way.operations,
        cpu_ns_per_operation: Some(way.cpu_ns.median()),
        disk: None,
        samples: way.us,
    };
    report.figures.push(Figure {
        name: "peers",
        meaning: "microseconds for each put, acknowledged by three copies, at level disk by a majority; processor time of all processes. A region at \
                  level process has its writes where kill -9 of every copy does not reach them; JGroups and Geode keep them in memory, etcd on disk"
            .to_owned(),
        arms: ways.into_iter().map(arm).collect(),
        notes,
    });
    Ok(())
}
