//! The processes of one arm, started from this same program, and killed with whoever holds them.

use super::bare::Neighbours;
use super::client::{Answer, Client};
use super::handler::{Lap, Load};
use super::node::{Arguments, Listens, Recoverable};
use super::pattern::{Pattern, Place};
use super::{LoggingError, Setting};
use mainstay_journal::geometry::Geometry;
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long a node may say nothing when it is to say something.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How often a node that starts is asked whether it takes requests.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The same, of a node whose recovery is timed.
const LOOK_CLOSELY_EVERY: Duration = Duration::from_micros(200);

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Blocking sockets.
    Bare,
    /// Recoverable processes.
    Recoverable {
        /// How they log.
        policy: Policy,
        /// What they wait for.
        level: Level,
    },
}

impl What {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Bare => "bare TCP".to_owned(),
            Self::Recoverable { policy, .. } => policy.to_string(),
        }
    }

    /// Nothing where nothing waits for it.
    pub(super) fn level(&self) -> Option<Level> {
        match self {
            Self::Bare | Self::Recoverable { policy: Policy::Unlogged, .. } => None,
            Self::Recoverable { level, .. } => Some(*level),
        }
    }

    /// Whether senders keep messages until their receivers have taken a checkpoint: what is in no journal.
    pub(super) fn keeps_until_checkpoints(&self) -> bool {
        matches!(self, Self::Recoverable { policy, .. } if !policy.journals_messages())
    }

    fn arm(&self) -> String {
        self.level().map_or_else(|| self.name(), |level| format!("{}, {level}", self.name()))
    }
}

/// The processes of one arm.
#[derive(Debug)]
pub(super) struct Cluster {
    arm: String,
    nodes: Vec<NodeProcess>,
    /// To each node, of recoverable ones.
    clients: Vec<Client>,
}

/// A process of this same program, killed with whoever holds it.
#[derive(Debug)]
pub(crate) struct NodeProcess {
    program: PathBuf,
    arguments: Arguments,
    child: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The journals of all arms together are large.
        if let Arguments::Recoverable(recoverable) = &self.arguments {
            let _ = std::fs::remove_dir_all(&recoverable.directory);
        }
    }
}

impl Cluster {
    /// Starts `count` nodes below `directory`, and waits until all take requests; `segment_pages` as [`segment_pages`] says.
    pub(super) fn start(
        program: &Path,
        directory: &Path,
        what: &What,
        pattern: Pattern,
        count: usize,
        segment_pages: u32,
    ) -> Result<Self, LoggingError> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let peers = free_addresses(number, count)?;
        let arm = what.arm();
        let place = |node| Place { pattern, node, nodes: count };
        let nodes = (0..count).map(|node| {
            let arguments = match what {
                What::Bare => Arguments::Bare,
                What::Recoverable { policy, level } => Arguments::Recoverable(Recoverable {
                    directory: directory.join(format!("{number}-{policy}-{level}-{node}")),
                    place: place(node),
                    peers: peers.clone(),
                    policy: policy.to_string(),
                    level: *level,
                    segment_pages,
                }),
            };
            NodeProcess::spawn(program.to_owned(), arguments)
        });
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let mut cluster = Self { arm, nodes, clients: Vec::new() };
        let mut addresses = Vec::with_capacity(count);
        for node in 0..count {
            let listens: Listens = cluster.read(&cluster.line_of(node)?)?;
            addresses.push(listens.address);
        }
        if *what != What::Bare {
            for address in addresses {
                cluster.clients.push(Client::connect(address)?);
            }
            cluster.wait_until_ready()?;
            return Ok(cluster);
        }
        // Two share one connection, as two processes of ours do.
        let pair = count == 2;
        for node in 0..count {
            let neighbours = Neighbours {
                next: (node == 0 || !pair).then(|| addresses[(node + 1) % count]),
                previous_connects: node != 0 || !pair,
                place: place(node),
            };
            cluster.nodes[node].command(&neighbours)?;
        }
        Ok(cluster)
    }

    /// The process numbers.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.child.id()).collect()
    }

    /// Has the head run a load.
    pub(super) fn run(&mut self, load: &Load) -> Result<Lap, LoggingError> {
        if self.clients.is_empty() {
            self.nodes[0].command(load)?;
            return self.read(&self.line_of(0)?);
        }
        let body = serde_json::to_vec(load).expect("numbers are JSON");
        let answer = self.clients[0].post("/call", "", &body)?;
        self.read(&self.good(answer)?)
    }

    /// Has one message go round, for a request of its own with a key of its own: how long the client waited.
    pub(super) fn call(&mut self, key: u64, bytes: u32) -> Result<Duration, LoggingError> {
        let body = serde_json::to_vec(&Load { messages: 1, window: 1, bytes }).expect("numbers are JSON");
        let key = format!("Idempotency-Key: {key:016x}\r\n");
        let since = Instant::now();
        let answer = self.clients[0].post("/call", &key, &body)?;
        let took = since.elapsed();
        self.good(answer)?;
        Ok(took)
    }

    /// Takes a checkpoint of each node and waits until they are published: then nobody keeps what was sent before.
    pub(super) fn checkpoint(&mut self) -> Result<(), LoggingError> {
        let published = |counters: Counters| counters.get("mainstay_checkpoints_total").copied();
        let nodes = 0..self.clients.len();
        let mut before = Vec::new();
        for node in nodes.clone() {
            before.push(published(self.counters_of(node)?));
            self.clients[node].post("/checkpoint", "", &[])?;
        }
        let deadline = Instant::now() + SILENCE_MAX;
        for node in nodes {
            while published(self.counters_of(node)?) == before[node] {
                self.pause_until(deadline, "did not take a checkpoint")?;
            }
        }
        Ok(())
    }

    /// All counters of all nodes, summed up.
    pub(super) fn counters(&mut self) -> Result<Counters, LoggingError> {
        let mut sums = Counters::new();
        for node in 0..self.clients.len() {
            for (name, value) in self.counters_of(node)? {
                *sums.entry(name).or_default() += value;
            }
        }
        Ok(sums)
    }

    /// One counter of one node; zero if it has none of that name.
    pub(super) fn counter_of(&mut self, node: usize, name: &str) -> Result<f64, LoggingError> {
        Ok(self.counters_of(node)?.get(name).copied().unwrap_or(0.0))
    }

    /// Kills a node with `kill -9`, starts it anew, and waits until it takes requests: how long that took from the start of the
    /// new process.
    pub(super) fn kill_and_wait(&mut self, node: usize) -> Result<Duration, LoggingError> {
        let begun = self.nodes[node].begin_anew()?;
        let listens: Listens = self.read(&self.line_of(node)?)?;
        self.clients[node] = Client::connect(listens.address)?;
        let deadline = begun + SILENCE_MAX;
        while self.clients[node].get("/health")?.status != 200 {
            if Instant::now() > deadline {
                return Err(self.failed("did not recover"));
            }
            std::thread::sleep(LOOK_CLOSELY_EVERY);
        }
        Ok(begun.elapsed())
    }

    fn counters_of(&mut self, node: usize) -> Result<Counters, LoggingError> {
        let answer = self.clients[node].get("/metrics")?;
        let text = String::from_utf8_lossy(&self.good(answer)?).into_owned();
        let mut sums = Counters::new();
        for (name, value) in text.lines().filter_map(|line| line.rsplit_once(' ')) {
            let name = name.split('{').next().unwrap_or(name);
            if let Ok(value) = value.parse::<f64>() {
                *sums.entry(name.to_owned()).or_default() += value;
            }
        }
        Ok(sums)
    }

    fn wait_until_ready(&mut self) -> Result<(), LoggingError> {
        let deadline = Instant::now() + SILENCE_MAX;
        for node in 0..self.clients.len() {
            while self.clients[node].get("/health")?.status != 200 {
                self.pause_until(deadline, "did not take requests")?;
            }
        }
        Ok(())
    }

    fn pause_until(&self, deadline: Instant, what: &'static str) -> Result<(), LoggingError> {
        if Instant::now() > deadline {
            return Err(self.failed(what));
        }
        std::thread::sleep(LOOK_EVERY);
        Ok(())
    }

    fn good(&self, answer: Answer) -> Result<Vec<u8>, LoggingError> {
        let Answer { status, body } = answer;
        if status == 200 {
            return Ok(body);
        }
        let body = String::from_utf8_lossy(&body).into_owned();
        Err(LoggingError::Status { arm: self.arm.clone(), status, body })
    }

    fn line_of(&self, node: usize) -> Result<Vec<u8>, LoggingError> {
        let line = self.nodes[node].lines.recv_timeout(SILENCE_MAX);
        line.map(String::into_bytes).map_err(|_| self.failed("died, or said nothing for too long"))
    }

    fn read<T: serde::de::DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, LoggingError> {
        serde_json::from_slice(bytes).map_err(|source| LoggingError::Answer { arm: self.arm.clone(), source })
    }

    fn failed(&self, what: &'static str) -> LoggingError {
        LoggingError::Node { arm: self.arm.clone(), what }
    }
}

/// The metric of what a node keeps in memory for others, in bytes.
pub(super) const SENDER_LOG_BYTES: &str = "mainstay_sender_log_bytes";

/// Counters by their names in the metrics, summed up over their labels.
pub(super) type Counters = BTreeMap<String, f64>;

/// A process, the pipe to it, and the lines that come from it.
type Begun = (Child, ChildStdin, Receiver<String>);

impl NodeProcess {
    fn spawn(program: PathBuf, arguments: Arguments) -> std::io::Result<Self> {
        let (child, commands, lines) = Self::begin(&program, &arguments)?;
        Ok(Self { program, arguments, child, commands, lines })
    }

    /// Starts one that is no part of a cluster and waits until it listens: where.
    pub(crate) fn listening(
        program: &Path,
        arguments: Arguments,
    ) -> Result<(Self, SocketAddr), LoggingError> {
        let arm = "logging-cost";
        let node = Self::spawn(program.to_owned(), arguments)?;
        let Ok(line) = node.lines.recv_timeout(SILENCE_MAX) else {
            return Err(LoggingError::Node {
                arm: arm.to_owned(),
                what: "died, or said nothing for too long",
            });
        };
        let listens: Listens = serde_json::from_str(&line)
            .map_err(|source| LoggingError::Answer { arm: arm.to_owned(), source })?;
        Ok((node, listens.address))
    }

    /// Kills it with `kill -9` and starts it anew on what it has left: when.
    fn begin_anew(&mut self) -> std::io::Result<Instant> {
        self.child.kill()?;
        self.child.wait()?;
        let begun = Instant::now();
        (self.child, self.commands, self.lines) = Self::begin(&self.program, &self.arguments)?;
        Ok(begun)
    }

    fn begin(program: &Path, arguments: &Arguments) -> std::io::Result<Begun> {
        let mut child = Command::new(program)
            .arg("bench-node")
            .arg(serde_json::to_string(arguments).expect("text and numbers are JSON"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let commands = child.stdin.take().expect("it is a pipe");
        let said = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (says, lines) = channel();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                if says.send(line).is_err() {
                    return;
                }
            }
        });
        Ok((child, commands, lines))
    }

    fn command(&mut self, command: &impl serde::Serialize) -> std::io::Result<()> {
        let line = serde_json::to_string(command).expect("numbers and addresses are JSON");
        writeln!(self.commands, "{line}")
    }
}

/// Pages in a segment of each node's journal. A node that starts writes two segments in full, and the short form starts some 170 nodes, which
/// write little; in the long form larger ones keep the preparation of the next out of most laps.
pub(super) fn segment_pages(setting: &Setting<'_>) -> u32 {
    setting.choose(4, Geometry::default().segment_pages)
}

/// Addresses for the nodes of one cluster to listen on. Each cluster has a loopback address of its own, other than the one that
/// connections come from, so that nobody takes a port between its choice here and its use.
fn free_addresses(cluster: u32, count: usize) -> std::io::Result<Vec<SocketAddr>> {
    let [_, _, high, low] = cluster.to_be_bytes();
    let own = u8::try_from(std::process::id() % 250).expect("a remainder");
    let listeners = (0..count).map(|_| TcpListener::bind((Ipv4Addr::new(127, 2 + own, high, low.max(1)), 0)));
    let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
    listeners.iter().map(TcpListener::local_addr).collect()
}
