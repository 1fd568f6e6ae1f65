//! The words of Mainstay: what every other crate means by an id, a mark, a held effect or a level.
//!
//! This crate holds no logic that could differ between the simulator and the real world. It reads no clock, opens no
//! file, starts no thread and draws no randomness; neither does any *silent* crate built on it.
//!
//! | word | meaning |
//! |---|---|
//! | *journal* | the paged log on disk |
//! | *determinant* | the recorded place of one delivery |
//! | *durable* | on this disk, past a sync |
//! | *stable* | no failure we plan for can lose it |
//! | *hold* / *release* | keep an effect back / let it leave for good |
//! | *mark* | a monotone counter that some room publishes |
//! | *incarnation* | one life of a process, between two crashes |
//! | *view* | the members of a group at one moment |
//! | *version* | the place of a write: the view it was stamped in, then a counter |

#![forbid(unsafe_code)]

pub mod codec;
pub mod determinant;
pub mod held;
pub mod id;
pub mod level;
pub mod machine;
pub mod mark;
pub mod operation;
pub mod rules;
pub mod snapshot;
pub mod time;
pub mod view;
