//! The transport between nodes over real sockets on loopback.

mod flow;
mod greeting;
mod harness;
mod secure;
