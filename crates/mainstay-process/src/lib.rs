//! A recoverable process: the composer of handler, journal, gate and recovery policy.
//!
//! ```text
//! request ─> known? ─> log ─> deliver ─> hold ─────────────────────> reply, output
//!            tables    journal  history   gate
//!                        │                 ▲
//!                        └── durable up to ┘      which mark is waited for: one row of mainstay_recovery::policy
//! ```
//!
//! Everything that happens is an [`event::Event`] into [`process::Process::step`]; everything it wants is an
//! [`effect::Effect`]. The handler runs inside the step. After a crash [`process::Process::recover`] loads the newest good
//! checkpoint and delivers the journal behind it again, in the recorded order, with the recorded time and randomness.
//!
//! What this crate does not do: it performs nothing, reads no clock and knows no socket. The driver decides only how many
//! events it hands over before it says [`event::Event::Drained`], which is when the process asks for a sync, once for all
//! of them.

#![forbid(unsafe_code)]

pub mod acknowledgement;
mod answering;
mod attempts;
pub mod blocking;
pub mod checkpoint;
mod clients;
mod collecting;
pub mod config;
pub mod coordinator;
mod covering;
mod disk_at_once;
pub mod dry_run;
pub mod effect;
pub mod event;
pub mod handler;
mod history;
mod intake;
mod keeping;
pub mod kept;
mod keys;
mod life;
mod lifecycle;
mod line;
pub mod links;
pub mod loss;
mod newest;
mod open_requests;
mod outbox;
mod outlet;
pub mod part;
pub mod port;
pub mod process;
pub mod record;
pub mod recover;
mod replay;
mod restore;
pub mod retrace;
mod schedule;
mod sessions;
pub mod snapshot;
mod spilling;
pub mod stats;
pub mod summary;
mod tables;
mod timers;
pub mod waits;
mod wishes;
