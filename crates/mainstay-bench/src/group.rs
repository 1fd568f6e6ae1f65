//! Three nodes as processes of their own, started from this same program and killed with whoever holds them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Nodes of a group.
pub(crate) const NODES: usize = 3;

/// How long a group may take until all nodes serve.
const SERVE_MAX: Duration = Duration::from_secs(60);

/// How often a node that starts is asked how it stands.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long a node may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The nodes could not be started, or asked.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A socket, a process or a folder.
    #[error("cannot use a folder, a process or a loopback socket: {0}")]
    Io(#[from] io::Error),
    /// A node did not come up, or said something else than it should.
    #[error("a node {what}")]
    Node {
        /// What it did.
        what: String,
    },
}

/// A node that runs.
#[derive(Debug)]
struct Running {
    child: Child,
    /// Where nodes and native clients reach it.
    nodes_at: SocketAddr,
    /// Where clients of the Redis protocol reach it.
    clients_at: SocketAddr,
}

/// How the region is made.
#[derive(Clone, Debug)]
pub(crate) struct Made<'a> {
    /// The program.
    pub(crate) program: &'a Path,
    /// Where the nodes' directories are made.
    pub(crate) folder: PathBuf,
    /// `pattern=…,ack=…`; at level process if it names none.
    pub(crate) region: String,
    /// See `mainstay node --link-delay-us`.
    pub(crate) link_delay_us: u64,
}

/// The group.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    made: Made<'a>,
    nodes: Vec<Running>,
}

impl<'a> Group<'a> {
    /// Starts a group; all its nodes serve.
    pub(crate) fn start(made: Made<'a>) -> Result<Self, GroupError> {
        std::fs::create_dir_all(&made.folder)?;
        let mut group = Self { made, nodes: Vec::new() };
        for place in 0..NODES {
            let node = group.spawn(place)?;
            group.nodes.push(node);
        }
        group.wait_until_all_serve()?;
        Ok(group)
    }

    fn spawn(&self, place: usize) -> Result<Running, GroupError> {
        let mut command = Command::new(self.made.program);
        command.args(["node", "--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--dir"]);
        command.arg(self.made.folder.join(format!("n{place}")));
        command.args(["--parent", &std::process::id().to_string()]);
        command.args(["--link-delay-us", &self.made.link_delay_us.to_string()]);
        match self.nodes.first() {
            Some(first) => command.args(["--join", &first.nodes_at.to_string()]),
            None => command.args(["--init", "--region", &format!("data:level=process,{}", self.made.region)]),
        };
        // What it says besides is for people.
        command.env("RUST_LOG", "off").stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is a pipe")).read_line(&mut line)?;
        let mut addresses = line.split([' ', ',']).filter_map(|word| word.parse().ok());
        let (Some(nodes_at), Some(clients_at)) = (addresses.next(), addresses.next()) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(GroupError::Node { what: format!("said `{}` at its start", line.trim()) });
        };
        Ok(Running { child, nodes_at, clients_at })
    }

    /// Starts one node more, which joins.
    pub(crate) fn add(&mut self) -> Result<(), GroupError> {
        let node = self.spawn(self.nodes.len())?;
        self.nodes.push(node);
        Ok(())
    }

    pub(crate) fn wait_until_all_serve(&self) -> Result<(), GroupError> {
        self.wait_until_all_serve_for(SERVE_MAX)
    }

    /// Waits until they do, and not longer.
    pub(crate) fn wait_until_all_serve_for(&self, time_max: Duration) -> Result<(), GroupError> {
        let began = Instant::now();
        for node in &self.nodes {
            loop {
                let status = status(node.clients_at)?;
                let members = status["members"].as_array().map_or(0, Vec::len);
                if status["serves"] == true && members == self.nodes.len() {
                    break;
                }
                if began.elapsed() > time_max {
                    return Err(GroupError::Node { what: format!("does not serve: {status}") });
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }

    /// Where native clients reach the nodes.
    pub(crate) fn servers(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.nodes_at).collect()
    }

    /// Where clients of the Redis protocol reach the first node.
    pub(crate) fn clients_at(&self) -> SocketAddr {
        self.nodes[0].clients_at
    }

    /// The nodes' process numbers.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.child.id()).collect()
    }

    /// Messages that all nodes have sent since their start.
    pub(crate) fn messages_sent(&self) -> Result<u64, GroupError> {
        let of_node = |node: &Running| Ok(status(node.clients_at)?["messages_sent"].as_u64().unwrap_or(0));
        self.nodes.iter().map(of_node).sum()
    }

    /// Sends a signal to a node.
    pub(crate) fn signal(&self, place: usize, signal: libc::c_int) {
        let process = libc::pid_t::try_from(self.nodes[place].child.id()).expect("process numbers are small");
        // SAFETY: a signal to a child that was not waited for.
        unsafe { libc::kill(process, signal) };
    }

    /// Starts a node again that was killed; returns when all serve.
    pub(crate) fn restart(&mut self, place: usize) -> Result<(), GroupError> {
        let killed = &mut self.nodes[place].child;
        killed.kill()?;
        killed.wait()?;
        let other = self.nodes[(place + 1) % NODES].nodes_at;
        let (nodes_at, clients_at) = (self.nodes[place].nodes_at, self.nodes[place].clients_at);
        let mut command = Command::new(self.made.program);
        command.args(["node", "--dir"]).arg(self.made.folder.join(format!("n{place}")));
        command.args(["--listen", &nodes_at.to_string(), "--resp", &clients_at.to_string()]);
        command.args(["--join", &other.to_string(), "--parent", &std::process::id().to_string()]);
        command.env("RUST_LOG", "off").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.nodes[place].child = command.spawn()?;
        std::thread::sleep(Duration::from_millis(200));
        self.wait_until_all_serve()
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.made.folder);
    }
}

/// What a node says of itself; nothing while it cannot be reached.
fn status(node: SocketAddr) -> Result<serde_json::Value, GroupError> {
    let Ok(mut stream) = TcpStream::connect(node) else { return Ok(serde_json::Value::Null) };
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.write_all(b"MAINSTAY.STATUS\r\nQUIT\r\n")?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    // A bulk string: its length in a line, then itself.
    let said = String::from_utf8_lossy(&said);
    let text = said.split_once("\r\n").map_or("", |(_, rest)| rest.split("\r\n").next().unwrap_or(""));
    serde_json::from_str(text).map_err(|_| GroupError::Node { what: format!("said `{said}` of itself") })
}
