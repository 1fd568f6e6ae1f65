//! Which copies must exist before a message may be delivered and before an effect may leave: one policy, one row.
//!
//! The rule behind every row (Alvisi and Marzullo 1998): while the determinant of an event is not stable, at most one
//! process may depend on it. [`policy`] is the table; a protocol that needs bookkeeping beyond marks of the journal keeps it
//! behind [`logging::Logging`], one file each, and publishes one mark: `Recoverable`. The gate does the waiting.
//!
//! What this crate does not do: it keeps no message, holds nothing and knows no disk and no connection.

#![forbid(unsafe_code)]

pub mod causal;
pub mod keeper;
pub mod local;
pub mod logging;
pub mod mixed;
pub mod optimistic;
mod order;
pub mod policy;
pub mod protocol;
pub mod sender_based;
