//! Groups step by step, without a network or a clock of their own.

mod bytes;
mod rig;
mod scenarios;
