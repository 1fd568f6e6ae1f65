//! Drives the real binary, as a user does: one program of tests, one file per command.

mod demo;
mod harness;
