//! `mainstay demo --topology pipeline`: three nodes that tell each other, all of them killed over and over, and an audit.
//!
//! ```text
//!   demo (top) ── starts, crashes, restarts ──> n1 ──> n2 ──> n3 ──> n1      messages, over TCP
//!       │                                        ^      ^      ^
//!       │ starts                                 └──────┼──────┘             requests, over HTTP
//!       └──> 4 clients, each with a request at a time to any of the nodes
//! ```
//! Each box is an operating-system process of its own, made from this same binary; a node has a directory of its own.

pub(crate) mod audit;
pub(crate) mod beyond;
pub(crate) mod caller;
pub(crate) mod crash;
pub(crate) mod node;
pub(crate) mod plan;
pub(crate) mod policies;
pub(crate) mod power;
pub(crate) mod recordings;
pub(crate) mod report;
pub(crate) mod requests;
pub(crate) mod ring;
pub(crate) mod run;
pub(crate) mod top;

use super::orphan;
use super::requests::CLIENTS;
use crate::verdict::Verdict;
use run::RunFolder;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// How many nodes there are.
pub(crate) const NODES: usize = 3;

/// How the nodes are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Topology {
    /// A request goes from node to node, once around, and is answered where it was asked.
    Pipeline,
    /// The nodes keep one replicated region, which clients of the Redis protocol use.
    Region,
}

/// One process of this demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// A node, counted from 0.
    Node(usize),
    /// A client, counted from 0.
    Client(usize),
}

/// Not the name of a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no part of the demo with several nodes")]
pub(crate) struct UnknownRole {
    /// What was given.
    pub(crate) given: String,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "n{}", node + 1),
            Self::Client(client) => write!(f, "client-{client}"),
        }
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(given: &str) -> Result<Self, UnknownRole> {
        let mut roles = (0..NODES).map(Self::Node).chain((0..CLIENTS).map(Self::Client));
        roles.find(|role| role.to_string() == given).ok_or_else(|| UnknownRole { given: given.to_owned() })
    }
}

/// One part of a running demo with several nodes; started by the demo itself.
#[derive(Debug, clap::Args)]
pub(crate) struct Part {
    /// Which.
    role: Role,
    /// The demo's folder.
    #[arg(long)]
    run: PathBuf,
    /// The process that started this one, and that it dies with.
    #[arg(long)]
    parent: u32,
}

/// Runs a part until it ends or is killed.
///
/// # Errors
/// Those of the part.
pub(crate) fn run_part(part: &Part) -> anyhow::Result<Verdict> {
    orphan::die_with(part.parent)?;
    let folder = RunFolder::new(&part.run);
    match part.role {
        Role::Node(node) => node::serve(&folder, node)?,
        Role::Client(client) => caller::ask_all(&folder, client)?,
    }
    Ok(Verdict::Clean)
}
