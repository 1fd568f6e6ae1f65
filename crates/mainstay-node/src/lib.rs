//! A node of a replicated region: sockets, disk and clock around the composer of `mainstay-replica`, and the Redis protocol for its clients.
//!
//! ```text
//!   clients ── RESP ── clients.rs ─> gateway.rs ─┐                      ┌─ peers.rs ── links.rs, hearing.rs ── other nodes
//!             secure.rs, resp.rs      session.rs │   node.rs (the loop) │   secure.rs
//!                      command/       numbers.rs ├─> replica ───────────┴─ store.rs ── directory
//!   clients ── their own messages ─── native.rs ─┘
//! ```
//!
//! Any node takes any command: what another member has to do is brought there and its answer back. A client that is cut off from one node
//! goes to another.

pub mod address;
pub mod clock;
pub mod command;
pub mod error;
pub mod gateway;
pub mod node;
pub mod resp;
pub mod settings;
pub mod status;

mod accepting;
mod arbiter;
mod budget;
mod clients;
mod delay;
mod glob;
mod head;
mod hearing;
mod input;
mod links;
mod native;
mod numbers;
mod peers;
mod replies;
mod retired;
mod secure;
mod session;
mod store;
mod transitions;
