//! Output ports: what carries released outputs to their receivers, and reports what became of them.
//!
//! What each port guarantees: `docs/ports.md`. A port lives as long as the service, longer than a process that gives
//! itself up after a panic: the recovered process releases again what was not acknowledged, and a port that still has
//! such an output at hand does not take it twice.

pub mod file;
pub mod http;
pub mod stdout;

mod queue;
mod sidecar;

use crate::port::file::{FilePort, OpenFileError};
use crate::port::http::{HttpPort, HttpSettings};
use crate::port::stdout::StdoutPort;
use mainstay_process::effect::Output;
use mainstay_process::handler::Outcome;
use mainstay_process::port::{Guarantee, Port};
use mainstay_types::id::{OutputId, StoreId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A port as the owner of a service declares it.
#[derive(Clone, Debug)]
pub struct OutputPort {
    name: String,
    guarantee: Guarantee,
    carrier: Carrier,
}

#[derive(Clone, Debug)]
enum Carrier {
    Http(HttpSettings),
    File(PathBuf),
    Stdout,
}

impl OutputPort {
    /// HTTP POST to `url` with the output's key as `Idempotency-Key`. Unless [`Self::guarantee`] says otherwise the
    /// receiver is taken to drop a key it has seen.
    #[must_use]
    pub fn http(name: impl Into<String>, url: impl Into<String>) -> Self {
        let carrier = Carrier::Http(HttpSettings::new(url));
        Self { name: name.into(), guarantee: Guarantee::Deduplicated, carrier }
    }

    /// One line per output, appended to the file at `path`; each exactly once. An output must not contain a line break.
    #[must_use]
    pub fn file(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), guarantee: Guarantee::Deduplicated, carrier: Carrier::File(path.into()) }
    }

    /// One line per output on standard output; at least once, since a pipe can neither drop a line nor be asked. An output
    /// must not contain a line break.
    #[must_use]
    pub fn stdout(name: impl Into<String>) -> Self {
        Self { name: name.into(), guarantee: Guarantee::AtLeastOnce, carrier: Carrier::Stdout }
    }

    /// What the receiver is able to do, hence what is guaranteed.
    #[must_use]
    pub fn guarantee(mut self, guarantee: Guarantee) -> Self {
        self.guarantee = guarantee;
        self
    }

    /// The receiver can be asked: `GET <url>?key=<output key>` answers 200 when it has the key, 404 when it has not.
    /// Implies [`Guarantee::Asked`]. HTTP ports only; others refuse to start with it.
    #[must_use]
    pub fn ask_at(mut self, url: impl Into<String>) -> Self {
        self.guarantee = Guarantee::Asked;
        if let Carrier::Http(settings) = &mut self.carrier {
            settings.ask_url = Some(url.into());
        }
        self
    }

    /// Settings of an HTTP port: concurrency, timeout, pauses, what refuses. No effect on others.
    #[must_use]
    pub fn http_settings(mut self, change: impl FnOnce(&mut HttpSettings)) -> Self {
        if let Carrier::Http(settings) = &mut self.carrier {
            change(settings);
        }
        self
    }

    /// The name that the handler sends to.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the process needs to know of it.
    #[must_use]
    pub fn declared(&self) -> Port {
        let lines = matches!(self.carrier, Carrier::File(_) | Carrier::Stdout);
        Port { name: self.name.clone(), guarantee: self.guarantee, lines }
    }

    /// Starts what carries the outputs.
    pub(crate) fn start(&self, store: StoreId, report: Report) -> Result<Box<dyn Carry>, StartPortError> {
        let unfit = |remedy| {
            Err(StartPortError::Unfit { port: self.name.clone(), guarantee: self.guarantee, remedy })
        };
        match &self.carrier {
            Carrier::Http(settings) => match (self.guarantee, &settings.ask_url) {
                (Guarantee::Asked, None) => unfit("say where the receiver can be asked (`ask_at`)"),
                _ => HttpPort::start(&self.name, settings.clone(), self.guarantee, report)
                    .map(|port| Box::new(port) as Box<dyn Carry>)
                    .map_err(|source| StartPortError::Http { port: self.name.clone(), source }),
            },
            Carrier::File(path) => match self.guarantee {
                Guarantee::Deduplicated => FilePort::start(&self.name, path, store, report)
                    .map(|port| Box::new(port) as Box<dyn Carry>)
                    .map_err(|source| StartPortError::File { port: self.name.clone(), source }),
                _ => unfit("a file is compared with what is pending, hence exact: leave `guarantee` out"),
            },
            Carrier::Stdout => match self.guarantee {
                Guarantee::AtLeastOnce | Guarantee::AtMostOnce => StdoutPort::start(&self.name, report)
                    .map(|port| Box::new(port) as Box<dyn Carry>)
                    .map_err(|source| StartPortError::Thread { port: self.name.clone(), source }),
                _ => {
                    unfit("a pipe can neither drop a key nor be asked: choose at-least-once or at-most-once")
                }
            },
        }
    }
}

/// A port could not be started. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum StartPortError {
    /// The port cannot guarantee what was declared.
    #[error("output port `{port}` cannot be {guarantee}: {remedy}")]
    Unfit {
        /// Which port.
        port: String,
        /// What was declared.
        guarantee: Guarantee,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The address cannot be used, or no thread could be started.
    #[error("output port `{port}` cannot start")]
    Http {
        /// Which port.
        port: String,
        /// Why.
        #[source]
        source: http::StartHttpError,
    },
    /// The file cannot be used.
    #[error("output port `{port}` cannot use its file")]
    File {
        /// Which port.
        port: String,
        /// Why.
        #[source]
        source: OpenFileError,
    },
    /// No thread could be started.
    #[error("output port `{port}` cannot start its thread")]
    Thread {
        /// Which port.
        port: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// How the sending of an output ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is known what became of it.
    Ended(Outcome),
    /// It may or may not have arrived, and this port must not send it again (at-most-once only).
    InDoubt,
}

/// Takes the end of each output; called on a thread of the port.
pub(crate) type Report = Arc<dyn Fn(OutputId, Sent) + Send + Sync>;

/// What carries the outputs of one port. Dropping it stops its threads after what they have in hand.
pub(crate) trait Carry: Send + Sync {
    /// Takes an output; of one that it has already and not reported yet, only that it is to go on.
    fn carry(&self, output: Output);
    /// Begins no other attempt to deliver this output, and forgets it: a person has decided.
    fn withdraw(&self, id: OutputId) {
        unreachable!("output {id}: lines are not withdrawn");
    }
    /// Begins nothing any more: the process that released it all is gone, and the one recovered in its place decides anew.
    fn forget_waiting(&self);
    /// What it is doing.
    fn status(&self) -> PortStatus;
    /// Why outputs that are tried again did not get through when they were last tried.
    fn troubles(&self) -> BTreeMap<OutputId, String> {
        BTreeMap::new()
    }
}

/// What a port is doing, for metrics and `GET /outputs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PortStatus {
    /// Outputs taken and not reported yet.
    pub waiting: u64,
    /// Outputs that were delivered.
    pub delivered: u64,
    /// Outputs that the receiver refused for good.
    pub refused: u64,
    /// Outputs whose arrival is unknown.
    pub in_doubt: u64,
    /// Attempts beyond the first.
    pub repeated: u64,
    /// Why an output did not get through when it was last tried; it is tried again. `None` when there is no such output.
    pub trouble: Option<String>,
    /// Why nothing is sent any more, and what to do; `None` while all is well.
    pub stopped: Option<String>,
}
