//! Application-level against transport-level reliability (Zhao 2014, figure 2.12): a node dies after its kernel has acknowledged a
//! message and before its process has read it.

use crate::harness::{Folder, PATIENCE, mainstay};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const REQUEST: &str = r#"{"client":0,"number":1,"account":"account-0","amount":7}"#;

/// Three nodes of the demo with several nodes, without the demo around them. Killed when dropped.
struct Nodes {
    folder: Folder,
    http: Vec<u16>,
    running: Vec<Child>,
}

impl Nodes {
    fn start(trust_transport: bool) -> Self {
        let folder = Folder::new();
        let ports = free_ports(6);
        let (http, peers) = ports.split_at(3);
        let settings = serde_json::json!({
            "seed": 1, "requests": 1, "kills": 0, "level": "process", "topology": "pipeline", "policy": "deferred",
            "http_ports": http, "peer_ports": peers, "cluster": vec![7; 16], "record": null, "skip_syncs": null,
            "trust_transport": trust_transport,
        });
        std::fs::write(folder.path("settings.json"), settings.to_string()).expect("a file can be written");
        let mut nodes = Self { http: http.to_vec(), folder, running: Vec::new() };
        for node in 0..3 {
            let child = nodes.spawn(node);
            nodes.running.push(child);
        }
        (0..3).for_each(|node| nodes.wait_until_ready(node));
        // Once around, so that every two nodes have greeted.
        let first = r#"{"client":0,"number":0,"account":"account-0","amount":1}"#;
        assert_eq!(ask(nodes.http[0], "POST", "/call", "first", first).map(|(status, _)| status), Some(200));
        nodes
    }

    fn spawn(&self, node: usize) -> Child {
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

    fn log(&self, node: usize) -> std::path::PathBuf {
        self.folder.path(&format!("n{}.log", node + 1))
    }

    fn wait_until_ready(&self, node: usize) {
        let port = self.http[node];
        wait(&format!("node {node} to be ready"), || {
            ask(port, "GET", "/health", "", "").is_some_and(|(status, _)| status == 200)
        });
    }

    /// The second node dies with the message in its kernel, and starts again.
    fn die_after_the_transport_acknowledged(&mut self, asked: impl FnOnce(u16)) {
        let stopped = rustix::process::Pid::from_child(&self.running[1]);
        rustix::process::kill_process(stopped, rustix::process::Signal::STOP).expect("it can be stopped");
        let (first, second) = (self.running[0].id(), self.running[1].id());
        let before = unread(second, first);
        asked(self.http[0]);
        wait("the kernel to acknowledge the message", || unread(second, first) >= before + REQUEST.len());
        self.running[1].kill().expect("it can be killed");
        self.running[1].wait().expect("it can be waited for");
        self.running[1] = self.spawn(1);
        self.wait_until_ready(1);
    }

    fn folds(&self, node: usize) -> u64 {
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

#[test]
fn a_message_that_only_the_transport_has_acknowledged_is_not_lost() {
    let mut nodes = Nodes::start(false);
    let mut client = None;
    nodes.die_after_the_transport_acknowledged(|port| {
        client = Some(std::thread::spawn(move || ask(port, "POST", "/call", "only", REQUEST)));
    });
    let (status, first) =
        client.and_then(|client| client.join().expect("it does not panic")).expect("an answer");
    assert_eq!(status, 200, "{first}");
    assert_eq!((0..3).map(|node| nodes.folds(node)).collect::<Vec<_>>(), [4, 2, 2]);
    assert_eq!(ask(nodes.http[0], "POST", "/call", "only", REQUEST), Some((200, first)));
    assert_eq!((0..3).map(|node| nodes.folds(node)).collect::<Vec<_>>(), [4, 2, 2]);
}

#[test]
fn a_sender_that_takes_the_word_of_the_transport_loses_it() {
    let mut nodes = Nodes::start(true);
    nodes.die_after_the_transport_acknowledged(|port| {
        std::thread::spawn(move || ask(port, "POST", "/call", "only", REQUEST));
    });
    // The first node sees what it has done when they greet, and cannot mend it.
    wait("the first node to say so", || {
        std::fs::read_to_string(nodes.log(0))
            .is_ok_and(|log| log.contains("the messages between are gone here"))
    });
    assert_eq!((0..3).map(|node| nodes.folds(node)).collect::<Vec<_>>(), [3, 1, 1]);
}

fn wait(what: &str, mut come: impl FnMut() -> bool) {
    let began = Instant::now();
    while !come() {
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<_> =
        (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("loopback has ports")).collect();
    held.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect()
}

/// Status and body; `None` if nobody answers to the end.
fn ask(port: u16, method: &str, path: &str, key: &str, body: &str) -> Option<(u16, String)> {
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

/// Bytes that the kernel has acknowledged to process `sender` and process `receiver` has not read.
fn unread(receiver: u32, sender: u32) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has this file");
    let (mine, theirs) = (sockets(receiver), sockets(sender));
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
    let queued = |row: &[&str], which: usize| {
        let queue = row[4].split(':').nth(which).expect("two queues");
        usize::from_str_radix(queue, 16).expect("a number")
    };
    let mut bytes = 0;
    for row in rows.iter().filter(|row| mine.contains(row[9])) {
        let peer =
            rows.iter().find(|peer| theirs.contains(peer[9]) && peer[1] == row[2] && peer[2] == row[1]);
        if peer.is_some_and(|peer| queued(peer, 0) == 0) {
            bytes += queued(row, 1);
        }
    }
    bytes
}

/// The inodes of a process's sockets.
fn sockets(process: u32) -> BTreeSet<String> {
    let entries = std::fs::read_dir(Path::new("/proc").join(process.to_string()).join("fd"));
    let links =
        entries.into_iter().flatten().flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let inode = |link: std::path::PathBuf| {
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    links.filter_map(inode).collect()
}
