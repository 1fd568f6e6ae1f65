//! Programs that know nothing of Mainstay, against a region of three nodes while each of them is killed: redis-benchmark, and redis-py.

use crate::harness::{Folder, PATIENCE, run};
use crate::nodes::free_ports;
use crate::region::{Node, wait_for_members};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NODES: usize = 3;

/// Three nodes that come back where they were.
struct Region {
    folder: Folder,
    ports: Vec<u16>,
    nodes: Vec<Option<Node>>,
}

impl Region {
    fn start() -> Self {
        let mut region = Self { folder: Folder::new(), ports: free_ports(2 * NODES), nodes: Vec::new() };
        let join = format!("127.0.0.1:{}", region.ports[0]);
        let join = ["--join", &join];
        for node in 0..NODES {
            let more = if node == 0 { &["--init", "--region", "data:level=process"][..] } else { &join };
            let started = region.start_node(node, more);
            region.nodes.push(Some(started));
        }
        region.wait_until_whole();
        region
    }

    fn start_node(&self, node: usize, more: &[&str]) -> Node {
        let at = |port: u16| format!("127.0.0.1:{port}");
        let (listen, resp) = (at(self.ports[node]), at(self.ports[NODES + node]));
        Node::start_on(&self.folder, &format!("n{node}"), [&listen, &resp], more)
    }

    fn wait_until_whole(&self) {
        self.nodes.iter().flatten().for_each(|node| wait_for_members(&self.folder, node, NODES));
    }

    /// Kills a node, lets the others go on without it, and waits until it has come back.
    fn kill_and_start(&mut self, node: usize) {
        self.nodes[node].take().expect("it runs").kill();
        let other = self.nodes.iter().flatten().next().expect("two are left");
        wait_for_members(&self.folder, other, NODES - 1);
        self.nodes[node] = Some(self.start_node(node, &[]));
        self.wait_until_whole();
    }

    fn clients_ports(&self) -> &[u16] {
        &self.ports[NODES..]
    }

    /// Whether all copies are the same, version by version.
    fn verify(&self) {
        let at: Vec<String> = self.clients_ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let at: Vec<&str> = at.iter().map(String::as_str).collect();
        let said = run(&self.folder, &[&["region", "verify", "--json"][..], &at].concat());
        assert_eq!((said.code, &said.json()["same"]), (0, &true.into()), "{}{}", said.out, said.err);
    }
}

fn is_missing(program: &str, what: &str) -> bool {
    let missing = Command::new(program).arg("--version").output().is_err();
    if missing {
        println!("skipped: {what} against a region: {program} is not installed (setup.sh installs it)");
    }
    missing
}

/// redis-benchmark at one node, again and again: it ends at the first error.
struct Load {
    runs_whole: Arc<AtomicU64>,
    /// The node is dead.
    down: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<String>>,
}

impl Load {
    fn start(port: u16) -> Self {
        let runs_whole = Arc::new(AtomicU64::new(0));
        let (down, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (runs_whole, down, stop) = (Arc::clone(&runs_whole), Arc::clone(&down), Arc::clone(&stop));
            move || {
                let mut errors = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match benchmark(port, &down) {
                        Ok(()) => {
                            runs_whole.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            errors.push(error);
                            std::thread::sleep(Duration::from_millis(100));
                        }
                    }
                }
                errors
            }
        });
        Self { runs_whole, down, stop, thread }
    }
}

/// How long redis-benchmark may stay when its node has come back: it does not notice that a connection is gone by which it was writing, and waits for ever.
const NOTICES_MAX: Duration = Duration::from_secs(1);

/// One run; what it ended with, if that was an error.
fn benchmark(port: u16, down: &AtomicBool) -> Result<(), String> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-t", "set,get,incr", "-q"]);
    command.args(["-n", "800", "-c", "4", "--threads", "2", "-P", "4", "-r", "100", "-d", "100"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let (began, mut was_down) = (Instant::now(), None);
    while child.try_wait().expect("a child can be waited for").is_none() {
        if down.load(Ordering::Relaxed) {
            was_down = Some(Instant::now());
        }
        let unnoticed = was_down.is_some_and(|at| at.elapsed() > NOTICES_MAX);
        if unnoticed || began.elapsed() > PATIENCE {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
            return Err(if unnoticed { UNNOTICED } else { "redis-benchmark does not end" }.to_owned());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = child.wait_with_output().expect("a child can be waited for");
    if said.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    let mut lines = text.split(['\r', '\n']).map(str::trim).filter(|line| !line.is_empty());
    Err(lines.rfind(|line| line.contains("rror") || line.contains("connect")).unwrap_or(&text).to_owned())
}

const UNNOTICED: &str = "its node died, and redis-benchmark did not notice";

/// What a client of a node that dies, or loses its majority, may be told: that the connection ended, or a reply that docs/node.md states.
fn is_stated(error: &str) -> bool {
    const REPLIES: [&str; 3] = ["CLUSTERDOWN ", "TRYAGAIN ", "UNKNOWN "];
    const CONNECTION: [&str; 6] = [
        UNNOTICED,
        "Server closed the connection",
        "Connection reset by peer",
        "Connection refused",
        "Broken pipe",
        "Could not connect to Redis",
    ];
    match error.split_once("Error from server: ") {
        Some((_, reply)) => REPLIES.iter().any(|word| reply.starts_with(word)),
        None => CONNECTION.iter().any(|text| error.contains(text)),
    }
}

#[test]
fn redis_benchmark_meets_stated_errors_alone_while_every_node_dies_in_turn() {
    if is_missing("redis-benchmark", "redis-benchmark") {
        return;
    }
    let mut region = Region::start();
    let loads: Vec<Load> = region.clients_ports().iter().map(|&port| Load::start(port)).collect();
    let whole = |load: &Load| load.runs_whole.load(Ordering::Relaxed);
    for node in 0..NODES {
        loads[node].down.store(true, Ordering::Relaxed);
        region.kill_and_start(node);
        loads[node].down.store(false, Ordering::Relaxed);
        let before: Vec<u64> = loads.iter().map(whole).collect();
        // The load comes through again at every node.
        for (load, before) in loads.iter().zip(before) {
            let began = Instant::now();
            while whole(load) < before + 2 {
                assert!(began.elapsed() < PATIENCE, "no run comes to its end");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    loads.iter().for_each(|load| load.stop.store(true, Ordering::Relaxed));
    for (node, load) in loads.into_iter().enumerate() {
        let errors = load.thread.join().expect("it does not panic");
        assert!(!errors.is_empty(), "node {node} was killed under load and nobody noticed");
        for error in &errors {
            assert!(is_stated(error), "node {node}: `{error}`");
        }
    }
    region.verify();
}

/// The program; killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn redis_py_is_told_what_was_done_and_once_while_its_node_dies_under_it() {
    const PYTHON: &str = "/usr/bin/python3";
    let has_client = Command::new(PYTHON).args(["-c", "import redis"]).output();
    if !has_client.is_ok_and(|ran| ran.status.success()) {
        println!("skipped: redis-py against a region: {PYTHON} has no module redis (setup.sh installs it)");
        return;
    }
    let mut region = Region::start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/binary/redis_client.py");
    let mut command = Command::new(PYTHON);
    command.arg(script).args(region.clients_ports().iter().map(u16::to_string));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = Program(command.spawn().expect("Python runs"));
    let stdin = program.0.stdin.take();
    let (says, lines) = std::sync::mpsc::channel();
    let out = BufReader::new(program.0.stdout.take().expect("it is a pipe"));
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| says.send(line).ok()));
    let mut err = program.0.stderr.take().expect("it is a pipe");
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = err.read_to_string(&mut text);
        text
    });
    for _ in 0..2 {
        // Where it is now: every kill sends it elsewhere.
        let mut at = lines.recv_timeout(PATIENCE).expect("it goes to a node");
        at = lines.try_iter().last().unwrap_or(at);
        let port: u16 = at.trim_start_matches("at ").parse().expect("it says the port");
        let node = region.clients_ports().iter().position(|other| *other == port).expect("it is a node's");
        region.kill_and_start(node);
    }
    drop(stdin);
    let done = loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) if line.starts_with("done ") => break line,
            Ok(_) => {}
            Err(_) => panic!("{}", errors.join().unwrap_or_default()),
        }
    };
    assert!(program.0.wait().expect("a child can be waited for").success(), "{done}");
    region.verify();
}
