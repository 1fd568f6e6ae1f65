//! What a node's process does: `mainstay bench-node ARGUMENTS`. It ends with its parent: when nobody holds the other end of its
//! standard input any more.

use super::bare;
use super::handler::{Load, Measured, node_id};
use super::pattern::{Pattern, Place};
use mainstay_disk::disk::Backend;
use mainstay_disk::open::Options;
use mainstay_journal::geometry::Geometry;
use mainstay_journal::options::OpenOptions;
use mainstay_process::config::{Cluster, Config, Limits};
use mainstay_recovery::policy::Policy;
use mainstay_runtime::peers::settings::{ClusterId, PeerAddress, PeersSettings, Security};
use mainstay_runtime::service::{EndError, Service, StartError, Unfit, start};
use mainstay_runtime::settings::{Ingress, Settings};
use mainstay_types::level::Level;
use mainstay_types::rules::Rules;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The name of all clusters that are measured; different ones listen elsewhere.
const CLUSTER: &str = "mainstay bench logging";

/// Threads of the ingress: there is one connection.
const INGRESS_THREADS: usize = 1;

/// How long the benchmark may be busy elsewhere between two requests.
const IDLE_MAX: Duration = Duration::from_secs(3600);

/// No checkpoint is taken but the ones that are asked for between two measurements.
const CHECKPOINT_LOG_BYTES: u64 = u64::MAX;

/// The same, by time.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// How a node is set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Arguments {
    /// A bare node.
    Bare,
    /// A recoverable process.
    Recoverable(Recoverable),
    /// The server of `bench logging-cost`.
    Logging(crate::logging_cost::Arguments),
    /// The other end of `bench transport`.
    Transport(crate::transport::Arguments),
}

/// A recoverable process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Recoverable {
    /// Where its journal is.
    pub(super) directory: PathBuf,
    /// Its place among the nodes, and whom it tells.
    pub(super) place: Place,
    /// Where the nodes listen for each other, by place.
    pub(super) peers: Vec<SocketAddr>,
    /// The policy of all of them, by name.
    pub(super) policy: String,
    /// The level of all of them.
    pub(super) level: Level,
    /// Pages of 4 MiB in a segment of its journal.
    pub(super) segment_pages: u32,
}

/// Where it takes requests, said by a node on its first line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Listens {
    pub(super) address: SocketAddr,
}

/// A node could not begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The arguments are not those of a node: it is started by the benchmark only.
    #[error("not the arguments of a node, which only `mainstay bench logging` starts: {0}")]
    Arguments(#[from] serde_json::Error),
    /// The policy has no such name.
    #[error(transparent)]
    Policy(#[from] mainstay_recovery::policy::UnknownPolicy),
    /// It could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It ended by itself.
    #[error(transparent)]
    End(#[from] EndError),
    /// The server of `bench logging-cost` could not go on.
    #[error(transparent)]
    Logging(#[from] Box<crate::logging_cost::LoggingCostError>),
    /// The other end of `bench transport` could not go on.
    #[error(transparent)]
    Transport(#[from] Box<crate::transport::TransportError>),
    /// A socket, or what connects it with the benchmark.
    #[error("a socket or the pipe to the benchmark: {0}")]
    Io(#[from] io::Error),
}

/// Is a node until the benchmark ends.
///
/// # Errors
/// See [`NodeError`].
pub fn serve(arguments: &str) -> Result<(), NodeError> {
    match serde_json::from_str(arguments)? {
        Arguments::Bare => Ok(bare::serve(&mut io::stdin().lock(), &mut io::stdout().lock())?),
        Arguments::Recoverable(recoverable) => recoverable.serve(),
        Arguments::Logging(server) => {
            Ok(crate::logging_cost::serve(&server, &mut io::stdout().lock()).map_err(Box::new)?)
        }
        Arguments::Transport(end) => {
            Ok(crate::transport::serve(&end, &mut io::stdout().lock()).map_err(Box::new)?)
        }
    }
}

/// Says where a node takes requests.
pub(crate) fn say(answers: &mut dyn Write, address: SocketAddr) -> io::Result<()> {
    serde_json::to_writer(&mut *answers, &Listens { address })?;
    writeln!(answers)?;
    answers.flush()
}

impl Recoverable {
    fn serve(self) -> Result<(), NodeError> {
        let directory = self.directory.clone();
        std::thread::spawn(move || {
            // Nothing is ever written there but by a node that ends.
            let _ = io::stdin().lock().read_line(&mut String::new());
            // A benchmark that was killed cannot clean up.
            let _ = std::fs::remove_dir_all(directory);
            std::process::exit(0);
        });
        let place = self.place;
        let service = Service {
            make: Box::new(move || Box::new(Measured::new(place))),
            check_command: Box::new(move |body| check_load(place.pattern, body)),
            check_query: Box::new(|_| Ok(())),
        };
        let running = start(self.settings()?, service)?;
        say(&mut io::stdout().lock(), running.address())?;
        Ok(running.wait()?)
    }

    fn settings(&self) -> Result<Settings, NodeError> {
        let policy: Policy = self.policy.parse()?;
        let places = 0..self.peers.len();
        let others: BTreeMap<_, _> = places
            .clone()
            .filter(|place| *place != self.place.node)
            .map(|place| (node_id(place), policy))
            .collect();
        let addresses = places.map(|place| PeerAddress {
            node: node_id(place),
            name: format!("n{}", place + 1),
            address: self.peers[place].to_string(),
        });
        let cluster = ClusterId::named(CLUSTER);
        let peers = PeersSettings::new(
            cluster,
            node_id(self.place.node),
            self.peers[self.place.node],
            addresses.collect(),
            Security::Plain,
        );
        let process = Config {
            name: "measured".to_owned(),
            version: 1,
            level: self.level,
            policy,
            ports: Vec::new(),
            cluster: Some(Cluster {
                id: cluster,
                me: node_id(self.place.node),
                others,
                links: mainstay_channel::limits::Limits::default(),
            }),
            limits: Limits {
                checkpoint_log_bytes: CHECKPOINT_LOG_BYTES,
                checkpoint_interval: CHECKPOINT_INTERVAL,
                ..Limits::default()
            },
            entropy: 0,
            rules: Rules::KEPT,
        };
        Ok(Settings {
            directory: self.directory.clone(),
            disk: Options {
                journal: OpenOptions {
                    geometry: Geometry { segment_pages: self.segment_pages, ..Geometry::default() },
                    ..OpenOptions::default()
                },
                backend: Backend::Auto,
                create_directory: true,
                hint: "mainstay bench logging".to_owned(),
                stripes: Vec::new(),
                kept: false,
                record: None,
            },
            process,
            peers: Some(peers),
            places: None,
            keep: None,
            outputs: Vec::new(),
            ingress: Ingress {
                listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
                threads: INGRESS_THREADS,
                head_timeout: IDLE_MAX,
                ..Ingress::default()
            },
            checkpoint_timeout: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(10),
            signals: false,
        })
    }
}

fn check_load(pattern: Pattern, body: &[u8]) -> Result<(), Unfit> {
    let load: Load =
        serde_json::from_slice(body).map_err(|error| Unfit::Content { message: error.to_string() })?;
    if load.is_fit(pattern) {
        Ok(())
    } else {
        Err(Unfit::Content { message: format!("out of bounds: {load:?}") })
    }
}
