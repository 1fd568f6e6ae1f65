//! Blocking client of a Mainstay service: every request has an identity, and is repeated with that same identity until its
//! outcome is known or the deadline has passed.
//!
//! ```no_run
//! use mainstay_client::client::Client;
//! use mainstay_client::options::Options;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("http://127.0.0.1:7070", Options::default())?;
//! let mut thread = client.thread()?;
//! let total: i64 = thread.call(&serde_json::json!({ "amount": 5 }))?;
//! # drop(total);
//! # Ok(())
//! # }
//! ```
//!
//! What this crate does not do: it remembers nothing across its own restarts. A program that must repeat a request after
//! it was killed itself writes down [`thread::Identity`] and body before it calls, and goes on with
//! [`client::Client::resume`] and [`thread::Thread::repeat_bytes`]. The wire contract is `docs/http.md`.

#![forbid(unsafe_code)]

pub mod answer;
pub mod client;
pub mod error;
pub mod options;
pub mod thread;

mod attempt;

pub use crate::client::Client;
pub use crate::error::CallError;
pub use crate::options::Options;
pub use crate::thread::Thread;
