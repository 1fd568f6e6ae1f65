//! A sharded, version-stamped, replicated map as a silent machine.
//!
//! ```text
//!  client.rs ── Message ──> region.rs ── stamping.rs   one stamper for each shard and view gives (view, counter)
//!                               │         patterns/     how version, payload and acknowledgements travel
//!                               │         accepting.rs  entries into the log, and whom to tell
//!                               │         drain.rs      what is done once for all that came together
//!                               │         payloads.rs   payloads and versions that come apart
//!                               │         shard.rs      log of what was accepted, state of what is stable, duplicate table
//!                               │         room.rs       how many bytes may be under way
//!                               │         reads.rs      at the stamper under a lease, at any copy with its age
//!                               │         expiry.rs     values that end: the stamper says when, all copies remove them at the same version
//!                               │         early.rs      what comes of a view before this copy has begun it
//!                               └──────── change.rs     Wedge, Report, Settle, Cut, Fetch, Ready, Installed
//!                                         image.rs      how a copy that joins is filled while writes go on
//!                                         checkpoint.rs the same into the journal, so that it can be trimmed
//! ```
//!
//! It keeps no membership: views come in as events, and what a view change needs from a region goes out as opaque bytes. It opens
//! no connection and no file: a message and a record are effects, and an effect that must not leave before a record is safe names it.
//!
//! The safety of it all rests on four things: (1) one stamper for each shard and view, and only members of the same view listen to it; (2) a copy
//! accepts the versions of a view without gaps, so that the logs of a view are prefixes of one another; (3) whoever
//! acknowledges has it in its log, so that the longest log of any quorum holds all that was acknowledged; (4) only what is stable is in the
//! state, so that no read, and no later view, sees what could still be undone.

#![forbid(unsafe_code)]

mod accepting;
pub mod batch;
pub mod blob;
pub mod change;
pub mod checkpoint;
pub mod client;
pub mod conversation;
pub mod copies;
pub mod decimal;
mod drain;
pub mod duplicates;
mod early;
pub mod effect;
mod evaluate;
pub mod expiry;
mod flat;
pub mod image;
pub mod limits;
pub mod log;
pub mod message;
pub mod operation;
pub mod patterns;
pub mod payloads;
pub mod reads;
pub mod record;
pub mod region;
mod room;
pub mod shard;
pub mod stamping;
pub mod state;
