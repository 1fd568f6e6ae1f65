//! The commands: record a run, replay one of its ranks, say what is in it. They run outside of any MPI program.

pub mod bundle;
pub mod check;
pub mod diff;
pub mod extract;
pub mod folder;
pub mod record;
pub mod replay;
pub mod stat;
pub mod timeline;
pub mod toolchain;
pub mod unfinished;
