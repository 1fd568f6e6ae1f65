//! The folder of one demo: settings and what each process leaves there.

use super::plan::{Moment, Role};
use crate::ledger::View;
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
    /// Kills of all processes together.
    pub(crate) kills: u64,
    /// What the service's acknowledgements wait for.
    pub(crate) level: Level,
    /// Where the service listens, on the loopback address.
    pub(crate) service_port: u16,
    /// Where the receiver listens that drops a key it has seen.
    pub(crate) receiver_once_port: u16,
    /// Where the receiver listens that does not.
    pub(crate) receiver_again_port: u16,
    /// Where the service records what it does to its disk, for `mainstay sim cuts`.
    pub(crate) record: Option<PathBuf>,
    /// Syncs that are recorded as if they had been made, and are not: the check of power cuts must notice.
    pub(crate) skip_syncs: Option<Range<u64>>,
    /// Whether the ring goes with every killed service, as in a power cut: the audit must notice, but for level disk.
    pub(crate) lose_ring: bool,
}

/// The folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunFolder(PathBuf);

/// One kill that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KillRecord {
    /// Its place in the plan.
    pub(crate) index: u64,
    /// Who was killed.
    pub(crate) role: Role,
    /// When it was to be killed.
    pub(crate) moment: Moment,
    /// The process held the lock of its directory and died before it had said that it was ready.
    pub(crate) recovering: bool,
    /// A checkpoint was found half written after the death.
    pub(crate) checkpointing: bool,
    /// A client was waiting for an answer, before the kill and after the death.
    pub(crate) in_flight: bool,
}

/// One start of the service that came to be ready.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecoveryRecord {
    /// The process.
    pub(crate) pid: u32,
    /// Whether there was nothing to recover.
    pub(crate) created: bool,
    /// From opening the journal to the first request accepted, in milliseconds.
    pub(crate) recovery_ms: f64,
    /// Deliveries replayed.
    pub(crate) replayed: u64,
    /// Outputs released again.
    pub(crate) outputs_again: u64,
}

/// An output as the service lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListedOutput {
    /// Its number.
    pub(crate) id: u64,
    /// Its port.
    pub(crate) port: String,
    /// What the receiver would know it by.
    pub(crate) key: String,
    /// How far it is.
    pub(crate) state: String,
}

/// What the supervisor leaves when all is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// The service's last state.
    pub(crate) view: View,
    /// What the service does not know the fate of.
    pub(crate) in_doubt: Vec<ListedOutput>,
    /// Whether the service sealed its journal and ended with exit code 0 when asked to stop.
    pub(crate) stopped_cleanly: bool,
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

    /// Writes the settings and makes the folders.
    ///
    /// # Errors
    /// Those of the files.
    pub(crate) fn prepare(&self, settings: &Settings) -> anyhow::Result<()> {
        std::fs::create_dir_all(self.service())
            .with_context(|| format!("cannot make {}", self.service().display()))?;
        self.write("settings.json", settings)
    }

    /// Reads the settings.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        self.read("settings.json")
    }

    /// Leaves the ending: all of it or nothing.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn write_ending(&self, ending: &Ending) -> anyhow::Result<()> {
        self.write("ending.json", ending)
    }

    /// Reads the ending.
    ///
    /// # Errors
    /// Those of the file; that there is none yet.
    pub(crate) fn ending(&self) -> anyhow::Result<Ending> {
        self.read("ending.json")
    }

    /// The service's directory.
    #[must_use]
    pub(crate) fn service(&self) -> PathBuf {
        self.0.join("ledger.mainstay")
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

    /// When the service was ready.
    #[must_use]
    pub(crate) fn recoveries(&self) -> PathBuf {
        self.0.join("recoveries.jsonl")
    }

    /// What a client asked and was answered.
    #[must_use]
    pub(crate) fn client(&self, client: usize) -> PathBuf {
        self.0.join(format!("client-{client}.jsonl"))
    }

    /// What a receiver received.
    #[must_use]
    pub(crate) fn receiver(&self, role: Role) -> PathBuf {
        self.0.join(format!("{}.jsonl", role.name()))
    }

    /// What the processes of a role printed.
    #[must_use]
    pub(crate) fn log(&self, role: Role) -> PathBuf {
        self.0.join(format!("{}.log", role.name()))
    }

    fn write<T: Serialize>(&self, name: &str, value: &T) -> anyhow::Result<()> {
        let path = self.0.join(name);
        let partial = self.0.join(format!("{name}.partial"));
        std::fs::write(&partial, serde_json::to_vec(value)?)
            .and_then(|()| std::fs::rename(&partial, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> anyhow::Result<T> {
        let path = self.0.join(name);
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not what the demo wrote", path.display()))
    }
}

impl Role {
    /// Its name in files and tables.
    #[must_use]
    pub(crate) fn name(self) -> String {
        match self {
            Self::Service => "service".to_owned(),
            Self::ReceiverOnce => "receiver-once".to_owned(),
            Self::ReceiverAgain => "receiver-again".to_owned(),
            Self::Client(client) => format!("client-{client}"),
            Self::Supervisor => "supervisor".to_owned(),
        }
    }
}

impl Settings {
    /// Address of the service.
    #[must_use]
    pub(crate) fn service_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.service_port)
    }
}
