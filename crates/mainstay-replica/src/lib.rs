//! One node of a replicated region: the composer of group, regions and gate.
//!
//! ```text
//!   other nodes ── Message ──> replica.rs ── group    who is in, what a view change needs, until when this node may serve
//!   clients     ── Event ───>     │    ╲
//!                                 │     ╲── regions   one copy of each; what they send waits in a gate for their records
//!                                 └──────── change.rs Wedge, Report, Settle, Cut, Fetch, Fetched, Installed: several regions as one
//! ```
//!
//! It routes and computes nothing: the group sees what regions bring to a view change as bytes (`packed.rs`), and the regions see views
//! and leases as events. It performs nothing, reads no clock and knows no socket.
//!
//! | file | duty |
//! |---|---|
//! | `replica.rs` | the machine: starting, routing, when it serves |
//! | `change.rs` | what the group asks of the regions when the view changes |
//! | `checkpointing.rs` | when the journal of the regions is made shorter |
//! | `hosted.rs` | one region beside its gate |
//! | `redefining.rs` | another pattern for a region that is in use |
//! | `restricting.rs` | what clients are refused while a role is missing |
//! | `config.rs` | what a node is told when it starts; why it cannot |
//! | `definition.rs` | what a region is: agreed once, carried in every cut |
//! | `packed.rs` | reports and cuts of several regions as one |
//! | `message.rs` | what goes over the wire, byte for byte as in docs/replica.md |
//! | `event.rs`, `effect.rs` | what can happen; what is asked for |

#![forbid(unsafe_code)]

mod change;
mod checkpointing;
pub mod config;
pub mod definition;
pub mod effect;
pub mod event;
mod hosted;
pub mod message;
pub mod packed;
pub mod redefining;
pub mod replica;
mod restricting;
