//! What a running service is told, each limit with its unit.

use crate::keep::KeepSettings;
use crate::peers::settings::PeersSettings;
use crate::places::PlacesSettings;
use crate::port::OutputPort;
use mainstay_disk::open::Options;
use mainstay_process::config::Config;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a running service.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory of the journal; one per service.
    pub directory: PathBuf,
    /// How the journal is opened.
    pub disk: Options,
    /// The process. Its `ports` and `entropy` are filled in from `outputs` and from the operating system.
    pub process: Config,
    /// How the other nodes of its cluster are reached, if it is in one ([`Config::cluster`]).
    pub peers: Option<PeersSettings>,
    /// Where this node of a cluster takes its place, and finds those of the others; `None`: their addresses are those of `peers`.
    pub places: Option<PlacesSettings>,
    /// Which region keeps the log, at level peers.
    pub keep: Option<KeepSettings>,
    /// Where outputs go.
    pub outputs: Vec<OutputPort>,
    /// The HTTP ingress.
    pub ingress: Ingress,
    /// How long a forked checkpoint writer may take before it is killed and the checkpoint given up.
    pub checkpoint_timeout: Duration,
    /// How long a clean stop may take: receivers of at-most-once outputs may keep it waiting. After that the service ends
    /// as if it were killed, which loses nothing.
    pub stop_timeout: Duration,
    /// Whether SIGTERM and SIGINT stop this service and SIGUSR1 takes a checkpoint.
    pub signals: bool,
}

/// Settings of the HTTP ingress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ingress {
    /// Where it listens; port 0 lets the operating system choose.
    pub listen: SocketAddr,
    /// Connections at the same time; more are answered 503 and closed.
    pub connections_max: usize,
    /// Requests taken and not answered yet; more are answered 503.
    pub requests_in_flight_max: usize,
    /// How long a connection may take to send a request's head, the pause between two requests included.
    pub head_timeout: Duration,
    /// How long a connection may take to send a request's body.
    pub body_timeout: Duration,
    /// Whether calls and queries name an instance, `/call/TYPE/KEY`: then the handler, and the checks ahead of it, get `TYPE/KEY` and a line
    /// break ahead of the body.
    pub addressed: bool,
    /// Threads that serve connections; 0 is as many as there are cores, and two at least. While the handler runs on one of
    /// them, its other connections wait.
    pub threads: usize,
    /// Whether cores may halt while a quick client that is alone waits for the disk. If not, threads of idle priority keep up to 4 cores awake for
    /// it, at most 300 us after each of its requests and 150 us after each answer: its median latency falls by up to a third, and what the cores would have saved by halting is lost.
    pub cores_may_halt: bool,
}

/// The default port of the ingress.
pub const PORT_DEFAULT: u16 = 7070;

impl Default for Ingress {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT_DEFAULT)),
            connections_max: 1024,
            requests_in_flight_max: 4096,
            // As long as the body's: a body's timer that is due before all others would wake a thread for every request.
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            addressed: false,
            threads: 0,
            cores_may_halt: false,
        }
    }
}
