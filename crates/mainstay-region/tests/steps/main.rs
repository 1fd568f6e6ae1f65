//! Step by step: each pattern's messages, hops and payload transfers as the cost table says, and the failures that have a name.

mod as_one;
mod checkpoints;
mod costs;
mod early;
mod expiry;
mod failures;
mod filling;
mod net;
mod room;
mod together;
