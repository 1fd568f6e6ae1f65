//! Chores of the workspace that are not a cargo command: the structure check, the one test command, the full campaign.
//!
//! ```text
//!   cargo metadata ──> dependencies ─┐
//!   files of the tree ──> tree ──────┼──> findings: rule, place, what, remedy
//!   sources of silent crates ──> silence ─┘
//! ```
//!
//! What this crate does not do: it is no part of the product, and no other crate may depend on it.

pub mod campaign;
pub mod dependencies;
pub mod finding;
pub mod full_run;
pub mod layers;
pub mod progress;
pub mod silence;
pub mod simulate;
mod skips;
pub mod steps;
pub mod structure;
pub mod tree;
