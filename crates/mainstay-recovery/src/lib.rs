//! Which copies must exist before a message may be delivered and before an effect may leave: one policy, one row.
//!
//! The rule behind every row (Alvisi and Marzullo 1998): while the determinant of an event is not stable, at most one
//! process may depend on it. This crate keeps no state and computes nothing else; the gate does the waiting.
//!
//! What this crate does not do: it logs nothing, holds nothing and knows no disk.

#![forbid(unsafe_code)]

pub mod policy;
