//! Durability levels: what an acknowledgement waited for, said wherever one is given.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What has to be lost before an acknowledged effect can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// In this process's heap: survives nothing by itself.
    Memory,
    /// In a shared mapping or the page cache: survives kill -9 of this process, not of the machine.
    Process,
    /// Past a sync of this machine's disk: survives power loss.
    Disk,
    /// Acknowledged by the region that keeps the log: survives the loss of this machine with its disk, and of as many of the region's nodes as
    /// that plans for. Nobody waits for a disk here.
    Peers,
}

impl Default for Level {
    /// A service is durable on disk unless its owner says otherwise.
    fn default() -> Self {
        Self::Disk
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::Process => "process",
            Self::Disk => "disk",
            Self::Peers => "peers",
        })
    }
}

/// Not the name of a level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no durability level; the levels are memory, process, disk and peers")]
pub struct UnknownLevel {
    /// What was given.
    pub given: String,
}

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(given: &str) -> Result<Self, UnknownLevel> {
        match given {
            "memory" => Ok(Self::Memory),
            "process" => Ok(Self::Process),
            "disk" => Ok(Self::Disk),
            "peers" => Ok(Self::Peers),
            _ => Err(UnknownLevel { given: given.to_owned() }),
        }
    }
}
