//! The benchmark bodies behind `mainstay bench`: each measures our arm beside its floor, interleaved in one run, and says
//! which of its targets hold.
//!
//! What this crate does not do: it is no test. Nothing fails here because a machine is slow.

mod arenas;
pub mod floor;
pub mod group;
pub mod journal;
pub mod logging;
pub mod logging_cost;
pub mod machine;
pub mod mpi;
pub mod patterns;
pub mod plot;
pub mod report;
pub mod scratch;
pub mod setting;
pub mod step;
pub mod system_calls;
pub mod transport;
