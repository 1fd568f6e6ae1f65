//! Holds what may leave until what it depends on is safe: output commit (Strom and Yemini 1985) as a queue.
//!
//! The gate knows three things only: a mark advanced, a mark can never advance, an origin was rolled back. It never
//! decides what something waits for; that is written on it ([`mainstay_types::held::Held`]).
//!
//! ```text
//!             hold                   a mark advanced to its value
//!   effect ─────────> held ────────────────────────────────────────> released, once, for good
//!                      │
//!                      └── its origin was rolled back, or its mark can never advance ──> discarded
//! ```
//!
//! What this crate does not do: it performs nothing and remembers nothing that has left.

#![forbid(unsafe_code)]

pub mod gate;
