//! Three nodes of the demo with several nodes, without the demo around them.

use crate::harness::{Folder, PATIENCE, mainstay};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How the nodes run.
pub(crate) struct Running<'a> {
    /// By what they log.
    pub(crate) policy: &'a str,
    /// Whether they take the transport's word for their receivers'.
    pub(crate) trust_transport: bool,
}

/// Killed when dropped.
pub(crate) struct Nodes {
    pub(crate) folder: Folder,
    pub(crate) http: Vec<u16>,
    pub(crate) running: Vec<Child>,
}

impl Nodes {
    /// Starts them in a new folder.
    pub(crate) fn start(how: &Running<'_>) -> Self {
        Self::start_in(Folder::new(), how)
    }

    /// Starts them in a folder that may hold their directories: `n1.mainstay` and so on.
    pub(crate) fn start_in(folder: Folder, how: &Running<'_>) -> Self {
        let ports = free_ports(6);
        let (http, peers) = ports.split_at(3);
        let settings = serde_json::json!({
            "seed": 1, "requests": 1, "kills": 0, "level": "process", "topology": "pipeline", "policy": how.policy,
            "http_ports": http, "peer_ports": peers, "cluster": vec![7; 16], "record": null, "skip_syncs": null,
            "trust_transport": how.trust_transport,
        });
        std::fs::write(folder.path("settings.json"), settings.to_string()).expect("a file can be written");
        let mut nodes = Self { http: http.to_vec(), folder, running: Vec::new() };
        for node in 0..3 {
            let child = nodes.spawn(node);
            nodes.running.push(child);
        }
        (0..3).for_each(|node| nodes.wait_until_ready(node));
        nodes
    }

    /// Kills a node with kill -9 and starts it again.
    pub(crate) fn kill_and_start(&mut self, node: usize) {
        self.running[node].kill().expect("it can be killed");
        self.running[node].wait().expect("it can be waited for");
        self.running[node] = self.spawn(node);
    }

    pub(crate) fn spawn(&self, node: usize) -> Child {
        let log = std::fs::File::options().append(true).create(true).open(self.log(node)).expect("a log");
        mainstay(&self.folder)
            .args(["demo-node", &format!("n{}", node + 1), "--run"])
            .arg(self.folder.path(""))
            .args(["--parent", &std::process::id().to_string()])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the binary runs")
    }

    pub(crate) fn log(&self, node: usize) -> PathBuf {
        self.folder.path(&format!("n{}.log", node + 1))
    }

    pub(crate) fn wait_until_ready(&self, node: usize) {
        let port = self.http[node];
        wait(&format!("node {node} to be ready"), || {
            ask(port, "GET", "/health", "", "").is_some_and(|(status, _)| status == 200)
        });
    }

    /// How much a node folded.
    pub(crate) fn folds(&self, node: usize) -> u64 {
        let (_, body) = ask(self.http[node], "POST", "/query", "", "null").expect("it is ready");
        serde_json::from_str::<serde_json::Value>(&body).expect("JSON")["folds"].as_u64().expect("a number")
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.running {
            // Nothing can be done about a failure here.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until it has come.
pub(crate) fn wait(what: &str, mut come: impl FnMut() -> bool) {
    let began = Instant::now();
    while !come() {
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<_> =
        (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("loopback has ports")).collect();
    held.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect()
}

/// Status and body; `None` if nobody answers to the end.
pub(crate) fn ask(port: u16, method: &str, path: &str, key: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let key = if key.is_empty() { String::new() } else { format!("Idempotency-Key: {key}\r\n") };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n{key}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    let status = said.split(' ').nth(1)?.parse().ok()?;
    let (_, body) = said.split_once("\r\n\r\n")?;
    Some((status, body.to_owned()))
}
