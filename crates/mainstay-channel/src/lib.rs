//! Reliable messages between nodes: application-level, because what TCP acknowledged can still die with its node.
//!
//! The sender keeps every message until the receiving *process* says that its durable history covers it (Zhao 2014, figure
//! 2.12b; the message log of sender-based logging, Johnson and Zwaenepoel 1987). A broken connection is a non-event:
//! both sides greet each other again and what is missing is sent again; what came twice is told apart by its number.
//!
//! ```text
//!  sender                                                     receiver
//!  append ─> kept ── release ─> may leave ── Message ───────> arrived: Next / Duplicate
//!                                                             delivered
//!            window credit <───────────────── Received ──────
//!            dropped from the log <────────── Covered ─────── cover
//! ```
//!
//! What this crate does not do: it opens no connection, and it does not decide when a message may leave (the gate), in
//! which order messages of several peers are delivered (the composer), or what rides along with them (the logging protocol).

#![forbid(unsafe_code)]

mod agreement;
pub mod channel;
pub mod frame;
pub mod hello;
pub mod limits;
mod link;
mod memory;
pub mod refusal;
mod save;
mod sender_log;
mod session;
pub mod spill;

pub use save::{RestoreError, SavedChannel, SavedLink};
