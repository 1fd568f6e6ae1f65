//! Message logging under unmodified MPI programs, and one rank replayed alone.
//!
//! ```text
//!   program ── MPI_Send ──> shim (C, generated from the installed mpi.h) ──> the real MPI
//!                             │  fields of the call, results
//!                             v
//!                           core (here) ── recording ──> pages in a shared mapping ──> rank-N.log
//!                                       └─ replaying <── rank-N.log: results served, sends compared
//! ```
//!
//! The core knows no MPI: handles are numbers, buffers are addresses with flattened types. What it does *not* do: bring a dead
//! rank back among running ones. It shows why it died.

pub mod assembly;
pub mod call;
pub mod clock;
pub mod command;
pub mod compression;
pub mod core;
pub mod definition;
pub mod ending;
pub mod envelopes;
pub mod field;
pub mod figures;
pub mod format;
pub mod history;
pub mod interface;
pub mod matching;
pub mod objects;
pub mod operation;
pub mod pages;
pub mod payload;
pub mod reader;
pub mod recording;
pub mod replaying;
pub mod requests;
pub mod run;
pub mod settings;
pub mod shim;
pub mod typemap;
pub mod varint;
pub mod verdict;
pub mod waiting;
pub mod walk;
