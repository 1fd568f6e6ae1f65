//! The folder of one demo with several nodes: settings and what each process leaves there.

use super::policies::Policies;
use super::{NODES, Role, Topology};
use anyhow::Context;
use mainstay_types::level::Level;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What all processes of a demo must agree on. Written once, before any of them starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// What everything random is drawn from.
    pub(crate) seed: u64,
    /// Requests of all clients together.
    pub(crate) requests: u64,
    /// Kills of all nodes together.
    pub(crate) kills: u64,
    /// What acknowledgements wait for.
    pub(crate) level: Level,
    /// How the nodes are connected.
    pub(crate) topology: Topology,
    /// How the nodes log.
    pub(crate) policy: Policies,
    /// Where the nodes listen for requests, on the loopback address.
    pub(crate) http_ports: [u16; NODES],
    /// Where the nodes listen for each other, on the loopback address.
    pub(crate) peer_ports: [u16; NODES],
    /// In the end more crash at once than the policy survives.
    #[serde(default)]
    pub(crate) beyond: bool,
    /// What nodes of this demo know each other by.
    pub(crate) cluster: [u8; 16],
    /// The folder where the nodes record what they do to their disks, for `mainstay sim cuts`; machines lose power then.
    pub(crate) record: Option<PathBuf>,
    /// Syncs that are recorded as if they had been made, and are not: audit and checker must notice.
    pub(crate) skip_syncs: Option<Range<u64>>,
    /// Nodes take a message for received when the transport does: only for the test that shows what that loses.
    #[serde(default)]
    pub(crate) trust_transport: bool,
}

/// The folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunFolder(PathBuf);

/// One kill that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KillRecord {
    /// The node, counted from 0.
    pub(crate) node: usize,
    /// Nodes that were down when it was dead, this one included.
    pub(crate) down: usize,
    /// What the node's memory held went with it, as if its machine had lost power.
    pub(crate) machine: bool,
    /// With the power of that machine went what its disk had not synced.
    pub(crate) power: bool,
    /// The process held the lock of its directory and died before it was ready.
    pub(crate) recovering: bool,
    /// A checkpoint was found half written after the death.
    pub(crate) checkpointing: bool,
    /// A client was waiting for an answer, before the kill and after the death.
    pub(crate) in_flight: bool,
}

/// A node took back what depended on a state that another node lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RollbackRecord {
    /// The process that did.
    pub(crate) pid: u32,
}

impl RunFolder {
    /// The demo in `folder`.
    #[must_use]
    pub(crate) fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// Where it is.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the settings.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn prepare(&self, settings: &Settings) -> anyhow::Result<()> {
        let path = self.0.join("settings.json");
        std::fs::write(&path, serde_json::to_vec(settings)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads the settings.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let path = self.0.join("settings.json");
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not what the demo wrote", path.display()))
    }

    /// A node's directory.
    #[must_use]
    pub(crate) fn node(&self, node: usize) -> PathBuf {
        self.0.join(format!("{}.mainstay", Role::Node(node)))
    }

    /// The numbers that the processes share.
    #[must_use]
    pub(crate) fn board(&self) -> PathBuf {
        self.0.join("board")
    }

    /// What was killed.
    #[must_use]
    pub(crate) fn kills(&self) -> PathBuf {
        self.0.join("kills.jsonl")
    }

    /// When a node was ready.
    #[must_use]
    pub(crate) fn recoveries(&self, node: usize) -> PathBuf {
        self.0.join(format!("{}-recoveries.jsonl", Role::Node(node)))
    }

    /// When a node rolled back.
    #[must_use]
    pub(crate) fn rollbacks(&self, node: usize) -> PathBuf {
        self.0.join(format!("{}-rollbacks.jsonl", Role::Node(node)))
    }

    /// What a client asked and was answered.
    #[must_use]
    pub(crate) fn client(&self, client: usize) -> PathBuf {
        self.0.join(format!("client-{client}.jsonl"))
    }

    /// What the processes of a role printed.
    #[must_use]
    pub(crate) fn log(&self, role: Role) -> PathBuf {
        self.0.join(format!("{role}.log"))
    }
}

impl Settings {
    /// Where a node takes requests.
    #[must_use]
    pub(crate) fn url(&self, node: usize) -> String {
        format!("http://127.0.0.1:{}", self.http_ports[node])
    }
}
