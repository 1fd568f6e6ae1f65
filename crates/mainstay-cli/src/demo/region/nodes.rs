//! The nodes of the demo: started, killed, cut off, started again, stopped.

use super::NODES;
use crate::node::status;
use crate::redis::{Connection, Said};
use anyhow::{Context, bail};
use mainstay_types::level::Level;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a node may take to answer what it is asked beside the clients.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How often a node is asked whether it serves.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Nodes that do not all serve after so long, with everything up, are given up.
pub(crate) const SERVE_MAX: Duration = Duration::from_secs(120);

/// All nodes together may take so long to stop.
const STOP_MAX: Duration = Duration::from_secs(60);

/// The nodes. Killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Nodes {
    folder: PathBuf,
    level: Level,
    ports: [u16; 2 * NODES],
    children: [Option<Child>; NODES],
    started: [Instant; NODES],
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

impl Nodes {
    /// Starts a group of all nodes, and returns when all serve it.
    ///
    /// # Errors
    /// When it does not come about.
    pub(crate) fn start(folder: &Path, level: Level, ports: [u16; 2 * NODES]) -> anyhow::Result<Self> {
        let mut nodes = Self {
            folder: folder.to_owned(),
            level,
            ports,
            children: std::array::from_fn(|_| None),
            started: [Instant::now(); NODES],
        };
        nodes.spawn(0, true)?;
        for node in 1..NODES {
            nodes.spawn(node, false)?;
        }
        nodes.wait_until_all_serve()?;
        Ok(nodes)
    }

    /// Where clients reach a node.
    #[must_use]
    pub(crate) fn clients_at(&self, node: usize) -> SocketAddr {
        local(self.ports[NODES + node])
    }

    /// Its directory.
    #[must_use]
    pub(crate) fn directory(&self, node: usize) -> PathBuf {
        self.folder.join(format!("n{}", node + 1))
    }

    fn spawn(&mut self, node: usize, init: bool) -> anyhow::Result<()> {
        let log = self.folder.join(format!("n{}.log", node + 1));
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("node").arg("--dir").arg(self.directory(node));
        match init {
            true => command.arg("--init").arg("--region").arg(format!("data:level={}", self.level)),
            false => {
                let others = (0..NODES).filter(|&other| other != node);
                let others: Vec<String> = others.map(|other| local(self.ports[other]).to_string()).collect();
                command.arg("--join").arg(others.join(","))
            }
        };
        command.arg("--listen").arg(local(self.ports[node]).to_string());
        command.arg("--resp").arg(self.clients_at(node).to_string());
        command.arg("--allow-cuts").arg("--parent").arg(std::process::id().to_string());
        command.env("MAINSTAY_LOG", "info").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.started[node] = Instant::now();
        self.children[node] = Some(command.spawn().context("cannot start a node")?);
        Ok(())
    }

    /// Kills nodes at the same time, and starts them again.
    ///
    /// # Errors
    /// Those of processes.
    pub(crate) fn kill(&mut self, nodes: &[usize]) -> anyhow::Result<()> {
        for &node in nodes {
            let child = self.children[node].as_mut().context("the node runs")?;
            child.kill()?;
        }
        for &node in nodes {
            self.children[node].take().context("the node was killed")?.wait()?;
        }
        nodes.iter().try_for_each(|&node| self.spawn(node, false))
    }

    /// Kills a node, and starts it; kills it again as soon as it answers and does not serve yet, and starts it for good. Whether it was hit then.
    ///
    /// # Errors
    /// Those of processes; when it does not answer at all.
    pub(crate) fn kill_joining(&mut self, node: usize) -> anyhow::Result<bool> {
        self.kill(&[node])?;
        let began = Instant::now();
        let joining = loop {
            if let Ok(status) = status(self.clients_at(node)) {
                break status["serves"] == false;
            }
            self.check()?;
            if began.elapsed() > SERVE_MAX {
                bail!("node {} does not answer after {SERVE_MAX:?}", node + 1);
            }
        };
        self.kill(&[node])?;
        Ok(joining)
    }

    /// Sends a signal to a node.
    ///
    /// # Errors
    /// Those of processes.
    pub(crate) fn signal(&self, node: usize, signal: Signal) -> anyhow::Result<()> {
        let child = self.children[node].as_ref().context("the node runs")?;
        let pid = Pid::from_raw(i32::try_from(child.id())?).context("a process has a number")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Returns when all but this node serve a view without it.
    ///
    /// # Errors
    /// When that does not come about, or a node ends.
    pub(crate) fn wait_until_without(&mut self, node: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        while began.elapsed() < SERVE_MAX {
            self.check()?;
            let without = |other: usize| {
                status(self.clients_at(other)).is_ok_and(|status| {
                    let few = status["members"].as_array().is_some_and(|members| members.len() < NODES);
                    status["serves"] == true && few
                })
            };
            if (0..NODES).filter(|&other| other != node).all(without) {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("the others do not go on without node {}", node + 1)
    }

    /// A node that has ended though nobody killed it.
    ///
    /// # Errors
    /// When there is one.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        for (node, child) in self.children.iter_mut().enumerate() {
            if let Some(child) = child
                && let Some(ended) = child.try_wait()?
            {
                bail!("node {} ended by itself with {ended}; see n{}.log", node + 1, node + 1);
            }
        }
        Ok(())
    }

    /// Lets all hear each other again, once all answer.
    ///
    /// # Errors
    /// When a node does not answer.
    pub(crate) fn heal(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while let Err(error) = self.cut(None) {
            self.check()?;
            if began.elapsed() > SERVE_MAX {
                return Err(error);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Cuts a node off from the others, or lets all hear each other again.
    ///
    /// # Errors
    /// When a node does not answer.
    pub(crate) fn cut(&self, cut_off: Option<usize>) -> anyhow::Result<()> {
        for node in 0..NODES {
            let apart = |other: &usize| *other != node && (cut_off == Some(node) || cut_off == Some(*other));
            let others: Vec<String> =
                (0..NODES).filter(apart).map(|other| local(self.ports[other]).to_string()).collect();
            let mut words: Vec<&[u8]> = vec![b"MAINSTAY.CUT"];
            words.extend(others.iter().map(String::as_bytes));
            let said = Connection::open(self.clients_at(node), ANSWER_MAX)?.ask(&words)?;
            if said != Said::Status("OK".to_owned()) {
                bail!("node {} cannot be cut off: {said}", node + 1);
            }
        }
        Ok(())
    }

    /// What the nodes say of themselves, if all do.
    #[must_use]
    pub(crate) fn statuses(&self) -> Option<Vec<serde_json::Value>> {
        (0..NODES).map(|node| status(self.clients_at(node)).ok()).collect()
    }

    /// Returns when all nodes serve one view of all; gives the time that the last one took since its start.
    ///
    /// # Errors
    /// When that does not come about, or a node ends.
    pub(crate) fn wait_until_all_serve(&mut self) -> anyhow::Result<[Duration; NODES]> {
        let began = Instant::now();
        let mut took = [None; NODES];
        while began.elapsed() < SERVE_MAX {
            self.check()?;
            let mut views = Vec::new();
            for (node, took) in took.iter_mut().enumerate() {
                let Ok(status) = status(self.clients_at(node)) else { continue };
                let whole = status["members"].as_array().is_some_and(|members| members.len() == NODES);
                if status["serves"] == true && whole {
                    took.get_or_insert_with(|| self.started[node].elapsed());
                    views.push(status["view"].clone());
                }
            }
            if views.len() == NODES && views.iter().all(|view| *view == views[0]) {
                return Ok(took.map(Option::unwrap_or_default));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("not all nodes serve after {SERVE_MAX:?}, with all of them up: {:?}", self.statuses())
    }

    /// The clean stop; whether every node ended with exit code 0.
    ///
    /// # Errors
    /// Those of processes.
    pub(crate) fn stop(mut self) -> anyhow::Result<bool> {
        for node in 0..NODES {
            self.signal(node, Signal::TERM)?;
        }
        let began = Instant::now();
        let mut clean = true;
        for child in &mut self.children {
            let Some(mut running) = child.take() else { continue };
            let ended = loop {
                match running.try_wait()? {
                    Some(ended) => break ended.success(),
                    None if began.elapsed() > STOP_MAX => {
                        running.kill()?;
                        running.wait()?;
                        break false;
                    }
                    None => std::thread::sleep(LOOK_EVERY),
                }
            };
            clean &= ended;
        }
        Ok(clean)
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // A child that is gone is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
