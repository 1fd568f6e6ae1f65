//! Services that survive crashes: kill the process at any moment; nothing that was acknowledged is lost, and nothing takes
//! effect twice.
//!
//! A service is its state, a handler, and [`serve`]:
//!
//! ```no_run
//! use mainstay::{Context, Refusal, Service};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! struct Counter {
//!     total: i64,
//! }
//!
//! #[derive(Deserialize)]
//! struct Add {
//!     amount: i64,
//! }
//!
//! impl Service for Counter {
//!     const NAME: &'static str = "counter";
//!     type Command = Add;
//!     type Answer = i64;
//!     type Query = ();
//!     type View = i64;
//!
//!     fn handle(&mut self, add: Add, _: &mut Context<'_>) -> Result<i64, Refusal> {
//!         self.total += add.amount;
//!         Ok(self.total)
//!     }
//!
//!     fn query(&self, (): ()) -> Result<i64, Refusal> {
//!         Ok(self.total)
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     mainstay::serve(Counter::default)
//! }
//! ```
//!
//! Services that talk to each other, over several nodes, are [`instance`]s.
//!
//! The handler must be deterministic: after a crash it is run again over what was recorded, and must do the same again. Time
//! and randomness come from [`Context`]; maps that are walked must be ordered (`BTreeMap`).

#![forbid(unsafe_code)]

pub mod cluster;
pub mod command_line;
pub mod exit;
pub mod instance;
pub mod migration;
pub mod refusal;
pub mod replay;
pub mod server;
pub mod service;
#[cfg(feature = "testing")]
pub mod testing;

mod save;
mod typed;

pub use crate::command_line::serve;
pub use crate::migration::SavedState;
pub use crate::refusal::Refusal;
pub use crate::server::{Running, Server};
pub use crate::service::Service;
pub use mainstay_process::handler::{Context, Outcome, RestoreError, SendError};
pub use mainstay_process::port::Guarantee;
pub use mainstay_recovery::policy::Policy;
pub use mainstay_runtime::keep::{KeepSettings, KeepWay};
pub use mainstay_runtime::port::OutputPort;
pub use mainstay_types::id::OutputId;
pub use mainstay_types::level::Level;
pub use mainstay_types::time::Time;
