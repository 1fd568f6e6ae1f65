//! Settings and limits of a process, each with its unit and reason.

use crate::port::Port;
use mainstay_recovery::policy::Policy;
use mainstay_types::id::{ClusterId, NodeId};
use mainstay_types::level::Level;
use mainstay_types::rules::Rules;
use std::collections::BTreeMap;
use std::time::Duration;

pub use mainstay_channel::limits::Limits as LinkLimits;

/// What a process is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The handler's name: a directory belongs to one.
    pub name: String,
    /// The handler's version: raised whenever it would answer, or emit, anything else for the same history.
    pub version: u32,
    /// What acknowledgements and outputs wait for.
    pub level: Level,
    /// When deliveries wait.
    pub policy: Policy,
    /// Where outputs go.
    pub ports: Vec<Port>,
    /// The cluster that it is a node of; `None` for a process that stands alone.
    pub cluster: Option<Cluster>,
    /// Limits.
    pub limits: Limits,
    /// A fresh random number, from which the recorded seeds of this life are derived.
    pub entropy: u64,
    /// All kept, except in the simulator.
    pub rules: Rules,
}

/// A static list of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Which cluster: nodes of different clusters refuse each other.
    pub id: ClusterId,
    /// This node.
    pub me: NodeId,
    /// Every other node, with the policy that it logs by.
    pub others: BTreeMap<NodeId, Policy>,
    /// Limits of the links between them.
    pub links: LinkLimits,
}

/// The limits of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Requests that wait to be logged (no free page) or delivered (immediate logging).
    pub backlog_requests_max: usize,
    /// Requests that wait until a blocking snapshot is taken.
    pub blocked_requests_max: usize,
    /// How long a node begins nothing new for a blocking snapshot, at most.
    pub block_max: Duration,
    /// Unexpired idempotency keys.
    pub keys_max: usize,
    /// How long a key is remembered after its first use.
    pub key_retention: Duration,
    /// Registered clients. A new one beyond that replaces the longest idle one, if that has been idle for `client_idle_min`.
    pub clients_max: usize,
    /// Threads of one client.
    pub client_threads_max: usize,
    /// How long a client must have been idle before its place may be given away.
    pub client_idle_min: Duration,
    /// Outputs not acknowledged yet.
    pub outputs_pending_max: usize,
    /// Requests taken that a later delivery is to answer.
    pub open_requests_max: usize,
    /// Bytes of the log that may wait for the region that keeps it, at level peers.
    pub unkept_bytes_max: u64,
    /// How often a delivery that ends in a panic, an abort or an unexplained death is tried before it is quarantined.
    pub handler_attempts_max: u32,
    /// Bytes of log after which a checkpoint is taken.
    pub checkpoint_log_bytes: u64,
    /// Time after which a checkpoint is taken if anything was delivered since the last.
    pub checkpoint_interval: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 1 << 20,
            backlog_requests_max: 4096,
            blocked_requests_max: 1024,
            block_max: Duration::from_secs(10),
            keys_max: 1_000_000,
            key_retention: Duration::from_secs(24 * 3600),
            clients_max: 100_000,
            client_threads_max: 1024,
            client_idle_min: Duration::from_secs(3600),
            outputs_pending_max: 100_000,
            open_requests_max: 100_000,
            unkept_bytes_max: 64 << 20,
            handler_attempts_max: 3,
            checkpoint_log_bytes: 64 << 20,
            checkpoint_interval: Duration::from_secs(60),
        }
    }
}
