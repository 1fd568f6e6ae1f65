//! Drives a recoverable process for real: clock, disk, HTTP ingress, output ports.
//!
//! ```text
//!   connection task ──┐                                ┌── reply ──> connection task
//!   port thread ──────┤                                │
//!   disk thread ──────┼─> inbox ──> whoever arrives ───┼── output ──> port
//!   timer ────────────┘            drives the process  ├── durable write, on the spot
//!   (who finds a driver at work leaves it to that one) └── other writes, checkpoints: in the background
//! ```
//!
//! What this crate does not do: it decides nothing that a replay would have to know; that is `mainstay-process`. It speaks
//! bytes; types are put around it by the facade `mainstay`.

pub mod checkpoint_writer;
pub mod keep;
pub mod peers;
pub mod places;
pub mod port;
pub mod replay;
pub mod service;
pub mod settings;

mod acknowledgement;
mod clock;
mod core;
mod driver;
mod inbox;
mod ingress;
mod lookout;
mod mailbox;
mod parts;
mod peering;
mod prediction;
mod promptness;
mod replies;
mod threads;
mod wakeful;
mod watch;
