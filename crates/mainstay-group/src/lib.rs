//! Membership as views: who is in, who leads, who may serve, agreed by a strict majority of the view before.
//!
//! A view is followed by exactly one other, whatever crashes, is cut off or stops for a while: that is one round of Paxos (Lamport 1998)
//! among the *stores* of the view, by weight. Before a store promises anything its member *wedges*, so that what all of them report is
//! everything that the old view did (virtual synchrony: Birman and Joseph 1987). What is reported and settled is bytes to this crate: a
//! region's business.
//!
//! | file | duty |
//! |---|---|
//! | `group.rs` | the machine: routes events; what it is at a moment |
//! | `door.rs` | what comes in: the fence of the view, and those outside it |
//! | `joining.rs` | who waits to be let in; how a process outside asks |
//! | `suspicion.rs` | who was heard when; suspicion, and of oneself |
//! | `verdict.rs` | the others are asked before a member counts as dead |
//! | `ballot.rs` | ballots, proposals, which promises are enough |
//! | `promise.rs` | the acceptor: promises, wedging, accepting |
//! | `change.rs` | the proposer: from prepare to install |
//! | `install.rs` | a view that was decided; being out of it |
//! | `lease.rs` | until when a member may serve, and what others owe it |
//! | `record.rs` | what must be durable before anything leaves |
//! | `outbox.rs` | what waits for that |
//! | `message.rs` | the messages, byte for byte |
//! | `roles.rs` | what a view may do, by the roles that are present: only less than its majority allows |
//! | `explain.rs` | which side goes on, and why |
//!
//! Formats and states: docs/group.md.

#![forbid(unsafe_code)]

pub mod ballot;
mod change;
mod door;
pub mod effect;
pub mod event;
pub mod explain;
pub mod group;
mod install;
mod joining;
mod lease;
pub mod limits;
pub mod message;
mod outbox;
mod promise;
pub mod record;
pub mod roles;
mod suspicion;
mod verdict;
