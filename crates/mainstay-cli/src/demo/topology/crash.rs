//! The processes of the demo: started, taken down as the plan says, started again, stopped.

use super::plan::Strike;
use super::power;
use super::recordings::Recordings;
use super::run::{KillRecord, RunFolder, Settings};
use super::{NODES, Role};
use crate::demo::board::Board;
use crate::demo::draw::Draw;
use crate::demo::killer::{
    CHECKPOINT_TYPICAL, WORKING_DELAY_MAX, aim_in_recovery, lose_ring, still_in_flight, wait_for_checkpoint,
    wait_for_recovery, wait_for_request,
};
use crate::demo::lines;
use crate::demo::plan::{Moment, Role as SingleRole};
use crate::demo::requests::CLIENTS;
use crate::demo::run::RecoveryRecord;
use anyhow::{Context, bail};
use mainstay_types::level::Level;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The purpose of what is drawn for power cuts; those of the requests are small.
const FATES: u64 = u64::MAX - 1;

/// How often nodes may die without having been killed before the demo gives up.
const UNEXPLAINED_DEATHS_MAX: u32 = 3;

/// How long all nodes together may take to stop cleanly.
const STOP_WAIT_MAX: Duration = Duration::from_secs(30);

/// All processes. Killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Processes {
    folder: RunFolder,
    running: BTreeMap<Role, Child>,
    clients_finished: usize,
    unexplained_deaths: u32,
    /// What becomes of what a disk has not synced.
    fates: Draw,
}

impl Processes {
    /// Starts nodes and clients.
    ///
    /// # Errors
    /// When one cannot be started.
    pub(crate) fn start(folder: &RunFolder, seed: u64) -> anyhow::Result<Self> {
        let mut processes = Self {
            folder: folder.clone(),
            running: BTreeMap::new(),
            clients_finished: 0,
            unexplained_deaths: 0,
            fates: Draw::new(seed, FATES),
        };
        for role in (0..NODES).map(Role::Node).chain((0..CLIENTS).map(Role::Client)) {
            processes.spawn(role)?;
        }
        Ok(processes)
    }

    /// Whether every client has an answer to every request.
    #[must_use]
    pub(crate) fn clients_finished(&self) -> bool {
        self.clients_finished == CLIENTS
    }

    /// Starts again what has died.
    ///
    /// # Errors
    /// When a node cannot be started or too many die without having been killed; when a client gives up.
    pub(crate) fn tend(&mut self) -> anyhow::Result<()> {
        let mut dead = Vec::new();
        for (&role, child) in &mut self.running {
            if let Some(status) = child.try_wait()? {
                dead.push((role, status));
            }
        }
        for (role, status) in dead {
            self.running.remove(&role);
            let log = self.folder.log(role);
            match role {
                Role::Client(_) if status.success() => self.clients_finished += 1,
                Role::Client(_) => bail!("{role} ended with {status}; see {}", log.display()),
                Role::Node(_) => {
                    self.unexplained_deaths += 1;
                    if self.unexplained_deaths > UNEXPLAINED_DEATHS_MAX {
                        bail!(
                            "{role} ended with {status}, and {UNEXPLAINED_DEATHS_MAX} nodes before it without having been killed; see {}",
                            log.display()
                        );
                    }
                    self.spawn(role)?;
                }
            }
        }
        Ok(())
    }

    /// The nodes that are not ready, in ascending order.
    ///
    /// # Errors
    /// Those of the files.
    pub(crate) fn down(&self) -> anyhow::Result<Vec<usize>> {
        let mut down = Vec::new();
        for node in 0..NODES {
            if !self.is_ready(node)? {
                down.push(node);
            }
        }
        Ok(down)
    }

    /// Whether a strike may be made now, so that no more than `down_max` nodes are down at the same time; but for kills within
    /// a recovery they are all to be ready.
    ///
    /// # Errors
    /// Those of the files.
    pub(crate) fn bears(&self, strike: &Strike, down_max: usize) -> anyhow::Result<bool> {
        let mut down = self.down()?;
        if strike.moment != Moment::Recovering {
            return Ok(down.is_empty());
        }
        down.extend(&strike.nodes);
        down.sort_unstable();
        down.dedup();
        Ok(down.len() <= down_max)
    }

    /// Makes a strike and starts its nodes again.
    ///
    /// # Errors
    /// Those of files and processes.
    pub(crate) fn strike(
        &mut self,
        settings: &Settings,
        board: &Board,
        strike: &Strike,
    ) -> anyhow::Result<Vec<KillRecord>> {
        let first = strike.nodes[0];
        let directory = self.folder.node(first);
        let mut began = false;
        let mut partial = None;
        match strike.moment {
            Moment::Recovering if !self.is_ready(first)? => {
                began = wait_for_recovery(&directory, self.pid(first));
                std::thread::sleep(aim_in_recovery(&self.folder.recoveries(first), strike.delay)?);
            }
            Moment::Checkpointing => {
                partial = wait_for_checkpoint(&directory, settings.http_ports[first])?;
                if partial.is_some() {
                    std::thread::sleep(CHECKPOINT_TYPICAL.mul_f64(strike.delay));
                }
            }
            Moment::Working | Moment::Recovering => {
                std::thread::sleep(WORKING_DELAY_MAX.mul_f64(strike.delay));
                wait_for_request(board, SingleRole::Service)?;
            }
        }
        let before = board.in_flight()?;
        let pids: Vec<Option<u32>> = strike.nodes.iter().map(|node| self.pid(*node)).collect();
        for node in &strike.nodes {
            self.kill(Role::Node(*node))?;
        }
        let in_flight = still_in_flight(before, board)?;
        let down = self.down()?.len();
        // Level process promises nothing for when a machine loses power.
        let machine = strike.machine && settings.level == Level::Disk;
        let recordings = settings.record.as_deref().map(Recordings::new);
        let mut records = Vec::new();
        for (&node, pid) in strike.nodes.iter().zip(pids) {
            let directory = self.folder.node(node);
            let recovering = began && node == first && !self.was_ready(node, pid)?;
            let half_written = partial.as_ref().filter(|_| node == first);
            let checkpointing = half_written.is_some_and(|name| directory.join(name).exists());
            match &recordings {
                Some(recordings) if machine => power::cut(recordings, node, &directory, &mut self.fates)?,
                None if machine => lose_ring(&directory)?,
                _ => {}
            }
            records.push(KillRecord {
                node,
                down,
                machine,
                power: machine && recordings.is_some(),
                recovering,
                checkpointing,
                in_flight,
            });
        }
        for node in &strike.nodes {
            self.spawn(Role::Node(*node))?;
        }
        Ok(records)
    }

    /// Asks all nodes to stop and waits for their end; whether all of them stopped cleanly.
    ///
    /// # Errors
    /// Those of the signals.
    pub(crate) fn stop(&mut self) -> anyhow::Result<bool> {
        let mut nodes = std::mem::take(&mut self.running);
        for child in nodes.values() {
            let pid = rustix::process::Pid::from_child(child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        let began = Instant::now();
        let mut clean = true;
        for child in nodes.values_mut() {
            clean &= loop {
                if let Some(status) = child.try_wait()? {
                    break status.success();
                }
                if began.elapsed() > STOP_WAIT_MAX {
                    child.kill()?;
                    child.wait()?;
                    break false;
                }
                std::thread::sleep(Duration::from_millis(2));
            };
        }
        Ok(clean)
    }

    fn pid(&self, node: usize) -> Option<u32> {
        self.running.get(&Role::Node(node)).map(Child::id)
    }

    fn is_ready(&self, node: usize) -> anyhow::Result<bool> {
        self.was_ready(node, self.pid(node))
    }

    fn was_ready(&self, node: usize, pid: Option<u32>) -> anyhow::Result<bool> {
        let ready = lines::read::<RecoveryRecord>(&self.folder.recoveries(node))?;
        Ok(pid.is_some() && ready.last().map(|ready| ready.pid) == pid)
    }

    fn kill(&mut self, role: Role) -> anyhow::Result<()> {
        if let Some(mut child) = self.running.remove(&role) {
            child.kill().with_context(|| format!("cannot kill {role}"))?;
            child.wait()?;
        }
        Ok(())
    }

    /// Starts this same binary as another part of the demo. What it prints goes into its log; it dies with this process.
    fn spawn(&mut self, role: Role) -> anyhow::Result<()> {
        let path = self.folder.log(role);
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let binary = std::env::current_exe().context("cannot find this program's own file")?;
        let child = Command::new(binary)
            .arg("demo-node")
            .arg(role.to_string())
            .arg("--run")
            .arg(self.folder.path())
            .arg("--parent")
            .arg(std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {role}"))?;
        self.running.insert(role, child);
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in self.running.values_mut() {
            // Nothing can be done about a failure here, and a child that is gone is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
