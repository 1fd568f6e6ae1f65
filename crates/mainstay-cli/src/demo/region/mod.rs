//! `mainstay demo --topology region`: three nodes that keep one region, killed one by one, two at once and all together, cut off, stood still, and
//! an audit.
//!
//! ```text
//!   demo (top) ── starts, kills, cuts, stops, restarts ──> n1, n2, n3      a process and a directory each; messages over TCP
//!       │                                                   ^   ^   ^
//!       ├── 4 clients, a thread each ───────────────────────┴───┴───┤      the Redis protocol; two name their operations, two do not
//!       └── 3 readers, a thread each, one at each node ─────────────┘      what a node answers must not be old
//! ```

pub(crate) mod audit;
pub(crate) mod client;
pub(crate) mod nodes;
pub(crate) mod plan;
pub(crate) mod possible;
pub(crate) mod reader;
pub(crate) mod report;
pub(crate) mod top;

/// How many nodes there are.
pub(crate) const NODES: usize = 3;

/// How many clients there are: those with an even number name their operations.
pub(crate) const CLIENTS: usize = 4;
