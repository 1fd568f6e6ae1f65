//! The child processes of the supervisor: started from this same binary, restarted when they die.

use super::board::{Board, Slot};
use super::plan::Role;
use super::requests::CLIENTS;
use super::run::RunFolder;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::process::{Child, Command, ExitStatus, Stdio};

/// How often a process may die without having been killed before the demo gives up.
const UNEXPLAINED_DEATHS_MAX: u32 = 20;

/// The children, by role.
#[derive(Debug)]
pub(crate) struct Children {
    folder: RunFolder,
    running: BTreeMap<Role, Child>,
    finished: [bool; CLIENTS],
    unexplained_deaths: u32,
}

impl Children {
    /// Starts receivers, service and clients.
    ///
    /// # Errors
    /// When one cannot be started.
    pub(crate) fn start(folder: &RunFolder, board: &Board) -> anyhow::Result<Self> {
        let mut children = Self {
            folder: folder.clone(),
            running: BTreeMap::new(),
            finished: [false; CLIENTS],
            unexplained_deaths: 0,
        };
        for role in [Role::ReceiverOnce, Role::ReceiverAgain, Role::Service] {
            children.spawn(role, board)?;
        }
        for client in 0..CLIENTS {
            children.spawn(Role::Client(client), board)?;
        }
        Ok(children)
    }

    /// Whether every client has an answer to every request.
    #[must_use]
    pub(crate) fn clients_finished(&self) -> bool {
        self.finished.iter().all(|&finished| finished)
    }

    /// The process number of a running child.
    #[must_use]
    pub(crate) fn pid(&self, role: Role) -> Option<u32> {
        self.running.get(&role).map(Child::id)
    }

    /// Starts again what has died.
    ///
    /// # Errors
    /// When a child cannot be started, or too many die without having been killed.
    pub(crate) fn tend(&mut self, board: &Board) -> anyhow::Result<()> {
        let mut dead = Vec::new();
        for (&role, child) in &mut self.running {
            if let Some(status) = child.try_wait()? {
                dead.push((role, status));
            }
        }
        for (role, status) in dead {
            self.running.remove(&role);
            match role {
                Role::Client(client) if status.success() => self.finished[client] = true,
                _ => self.unexplained(role, status, board)?,
            }
        }
        Ok(())
    }

    /// Kills a child with SIGKILL and waits until it is dead; nothing if it is not running. Does not start it again.
    ///
    /// # Errors
    /// Those of the kill.
    pub(crate) fn kill(&mut self, role: Role) -> anyhow::Result<()> {
        if let Some(mut child) = self.running.remove(&role) {
            child.kill().with_context(|| format!("cannot kill {}", role.name()))?;
            child.wait()?;
        }
        Ok(())
    }

    /// Asks a child to stop and waits for its end.
    ///
    /// # Errors
    /// Those of the signal.
    pub(crate) fn stop(&mut self, role: Role) -> anyhow::Result<Option<ExitStatus>> {
        let Some(mut child) = self.running.remove(&role) else { return Ok(None) };
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::TERM,
        )?;
        Ok(Some(child.wait()?))
    }

    /// Starts one child.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn spawn(&mut self, role: Role, board: &Board) -> anyhow::Result<()> {
        if let Role::Client(client) = role {
            // What the client before was waiting for is nobody's request until the new one repeats it.
            board.write(Slot::InFlight(client), 0)?;
        }
        let child = part(&self.folder, role)?;
        self.running.insert(role, child);
        Ok(())
    }

    fn unexplained(&mut self, role: Role, status: ExitStatus, board: &Board) -> anyhow::Result<()> {
        self.unexplained_deaths += 1;
        if self.unexplained_deaths > UNEXPLAINED_DEATHS_MAX {
            bail!(
                "{} ended with {status}, and {UNEXPLAINED_DEATHS_MAX} processes before it without having been killed; see {}",
                role.name(),
                self.folder.log(role).display()
            );
        }
        self.spawn(role, board)
    }
}

/// Starts this same binary as another part of the demo. What it prints goes into its log; it dies with this process.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn part(folder: &RunFolder, role: Role) -> anyhow::Result<Child> {
    let path = folder.log(role);
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    let binary = std::env::current_exe().context("cannot find this program's own file")?;
    Command::new(binary)
        .arg("demo-part")
        .arg(role.name())
        .arg("--run")
        .arg(folder.path())
        .arg("--parent")
        .arg(std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", role.name()))
}
