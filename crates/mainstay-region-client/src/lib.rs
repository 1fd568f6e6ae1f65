//! Blocking client of a replicated region: speaks the region's own messages to all its servers, and asks again, with the same identity, until the
//! outcome is known or the deadline has passed.
//!
//! ```no_run
//! use mainstay_region_client::{Client, Settings};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let servers = ["127.0.0.1:7171".parse()?, "127.0.0.1:7172".parse()?];
//! let mut client = Client::connect(&servers, "data", Settings::default())?;
//! let written = client.put(b"greeting", b"hello")?;
//! println!("version {}", written.version);
//! assert!(client.get(b"greeting")?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! A client belongs to one thread, which does all its work while it waits; there is none behind it. One address of a server is enough: it
//! learns the others, and their successors, from the view. What it does not do: it remembers nothing across its own restarts. A program that must
//! repeat an operation after it was killed itself writes down identity and operation before it begins, and goes on with [`Client::resume`] and
//! [`Client::repeat`]. The bytes on the wire: `docs/node.md`.

#![forbid(unsafe_code)]

pub mod changes;
pub mod client;
pub mod error;
pub mod settings;

mod links;
mod reads;
mod wire;

pub use crate::changes::{Change, Positions};
pub use crate::client::{Client, Written};
pub use crate::error::{ConnectError, ReadError, SubscribeError, WriteError};
pub use crate::reads::{Inspected, Near, Value};
pub use crate::settings::Settings;
pub use mainstay_region::batch::Batch;
pub use mainstay_region::operation::{Measured, Operation, Outcome, TooLong};
pub use mainstay_tls::{TlsClient, TlsError, TlsFiles};
pub use mainstay_types::operation::Version;
