//! The paged log on disk, without the disk.
//!
//! Records are appended to pages in a shared mapping (level `Process` at once, without a system call), short ones by way of a staging buffer in it; pages are
//! written by halves behind the caller's back; a flush makes everything appended so far durable with one write. Byte formats:
//! `docs/journal-format.md`.
//!
//! ```text
//!   append ──> page 0 │ page 1 │ page 2 │ staging      shared mapping (the ring), found again by repair after kill -9
//!                 │        │
//!                 └ Write ─┴─> segment 7 │ segment 8 │ …    files written once in full, recycled behind a checkpoint
//! ```
//!
//! What this crate does not do: it opens no file and starts no thread. [`journal::Journal`] asks for [`effect::DiskEffect`]s and learns of
//! their completion by [`effect::DiskEvent`]s; opening, repair, segment preparation and trimming are plain sequential code over
//! [`storage::Storage`].

#![forbid(unsafe_code)]

mod accept;
pub mod catalog;
pub mod effect;
mod evidence;
pub mod fill;
pub mod format;
pub mod geometry;
pub mod inspect;
pub mod journal;
pub mod memory;
pub mod memory_storage;
pub mod open;
pub mod options;
pub mod reader;
pub mod record;
pub mod repair;
mod ring;
mod ring_image;
mod slot;
pub mod stats;
pub mod storage;
pub mod striping;
mod survey;
mod walk;
