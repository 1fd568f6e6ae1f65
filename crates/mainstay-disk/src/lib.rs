//! The journal on real files: everything of it that touches the operating system; of decisions only who of many threads commits for all.
//!
//! ```text
//!   Log ── many threads ──┐
//!                         ├─> Journal (silent) ── DiskEffect ──> Disk ──┬─ inline: pwritev2 on the calling thread
//!   a driver of its own ──┘        ^                                    ├─ background: threads or io_uring
//!                                  └────────── DiskEvent ───────────────┴─ segments: one thread with the catalog
//! ```
//!
//! [`open::open`] locks a directory, repairs the journal in it and starts its disk; [`log::Log`] shares it between threads
//! with group commit. No async runtime: a driver that has one is told of completions by [`disk::Disk::set_notify`].
//!
//! What this crate does not do: it knows no record but as bytes, and never decides when something is durable.

mod awake;
mod catalog_thread;
mod completions;
mod copy_way;
mod failure;
mod futex;
mod gathering;
mod past_caches;
mod performer;
mod precedence;
mod rounds;
mod stripes;
mod uring;
mod worker_threads;

pub mod committed;
pub mod disk;
pub mod file_storage;
pub mod fill;
pub mod lock;
pub mod log;
pub mod mapped_pages;
pub mod open;
pub mod read_only;
pub mod record;
pub mod recording;
pub mod replace;
pub mod spill;
mod write_method;
