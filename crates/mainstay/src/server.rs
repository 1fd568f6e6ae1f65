//! A service with its settings, to be run by a program of one's own; [`crate::serve`] is the short way.

use crate::cluster::{Cluster, ClusterError};
use crate::exit;
use crate::replay::NotReplayed;
use crate::replay::follow::Followed;
use crate::service::Service;
use crate::typed::{Typed, check};
use mainstay_disk::disk::Backend;
use mainstay_disk::open::{OpenDiskError, Options};
use mainstay_disk::record::RecordOptions;
use mainstay_process::config::{Config, Limits};
use mainstay_process::handler::{AnyHandler, Handler};
use mainstay_process::recover::RecoverError;
use mainstay_process::retrace::Watcher;
use mainstay_recovery::policy::Policy;
use mainstay_runtime::keep::{KeepError, KeepSettings, KeepWay};
use mainstay_runtime::port::OutputPort;
use mainstay_runtime::replay::{self, Replay, Replayed};
use mainstay_runtime::service::{self, EndError, StartError, Started};
use mainstay_runtime::settings::{Ingress, Settings};
use mainstay_types::level::Level;
use mainstay_types::rules::Rules;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use mainstay_runtime::service::Running;

/// A service with its settings. Every setting has a default; see each method. `S` is what is served: a [`Service`], or the instances of a
/// [`crate::instance::Node`].
pub struct Server<S> {
    start: Box<Start>,
    replay: Box<StartReplay>,
    settings: Settings,
    cluster: Option<Cluster>,
    /// Whether somebody chose the policy.
    policy_given: bool,
    port_file: Option<PathBuf>,
    of: PhantomData<fn() -> S>,
}

/// Starts what is served.
type Start = dyn FnOnce(Settings) -> Result<Running, RunError> + Send + Sync;

/// Replays what was served.
type StartReplay = dyn Fn(&Settings, Replay, Option<Arc<Followed>>, &mut (dyn Watcher + Send)) -> Result<Replayed, NotReplayed>
    + Send
    + Sync;

/// A running service ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It did not start: its cluster cannot be.
    #[error("the list of nodes cannot be used: {0}")]
    Cluster(#[from] ClusterError),
    /// It started, and did not end by a clean stop.
    #[error(transparent)]
    End(#[from] EndError),
    /// The file that tells the port could not be written.
    #[error("the port cannot be told in {path}: {source}")]
    PortFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl RunError {
    /// The exit code for it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Start(StartError::Recover(why)) if matches!(**why, RecoverError::BodyLimit { .. }) => {
                exit::USAGE
            }
            Self::Cluster(
                ClusterError::Settings(_)
                | ClusterError::PlacedNowhere { .. }
                | ClusterError::Nowhere { .. }
                | ClusterError::Unspecified { .. },
            ) => exit::USAGE,
            Self::Start(StartError::Open(OpenDiskError::Journal { .. }) | StartError::Recover(_)) => {
                exit::FAILED
            }
            Self::Start(StartError::Keep(error))
                if matches!(**error, KeepError::LevelAndRegion | KeepError::Name { .. }) =>
            {
                exit::USAGE
            }
            Self::End(_) => exit::FAILED,
            Self::Start(_) | Self::Cluster(_) | Self::PortFile { .. } => exit::ENVIRONMENT,
        }
    }
}

impl<S: Service> Server<S> {
    /// A service with default settings: directory `./<name>.mainstay`, level disk, deferred logging, 127.0.0.1:7070.
    /// `make` gives the state of a service that has not handled anything yet.
    #[must_use]
    pub fn new(make: impl Fn() -> S + Send + Sync + 'static) -> Self {
        let make = Arc::new(make);
        let make_again = Arc::clone(&make);
        let start = move |settings| {
            let make = Box::new(move || Box::new(Typed(make())) as AnyHandler);
            let (check_command, check_query) = (check::<S::Command>(), check::<S::Query>());
            Ok(service::start(settings, service::Service { make, check_command, check_query })?)
        };
        Self::hosting(S::NAME.to_owned(), S::VERSION, start, move |settings, replay, _, watcher| {
            Ok(replay::replay(settings, &|| Box::new(Typed(make_again())), replay, watcher)?)
        })
    }
}

impl<S> Server<S> {
    /// Default settings for what `start` starts, and `replay` replays.
    pub(crate) fn hosting(
        name: String,
        version: u32,
        start: impl FnOnce(Settings) -> Result<Running, RunError> + Send + Sync + 'static,
        replay: impl Fn(
            &Settings,
            Replay,
            Option<Arc<Followed>>,
            &mut (dyn Watcher + Send),
        ) -> Result<Replayed, NotReplayed>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let disk = Options { create_directory: true, hint: name.clone(), ..Options::default() };
        let directory = PathBuf::from(format!("{name}.mainstay"));
        let process = Config {
            name,
            version,
            level: Level::default(),
            policy: Policy::default(),
            ports: Vec::new(),
            limits: Limits::default(),
            entropy: 0,
            cluster: None,
            rules: Rules::KEPT,
        };
        let settings = Settings {
            directory,
            disk,
            process,
            peers: None,
            places: None,
            keep: None,
            outputs: Vec::new(),
            ingress: Ingress::default(),
            checkpoint_timeout: Duration::from_secs(300),
            stop_timeout: Duration::from_secs(30),
            signals: false,
        };
        Self {
            start: Box::new(start),
            replay: Box::new(replay),
            settings,
            cluster: None,
            policy_given: false,
            port_file: None,
            of: PhantomData,
        }
    }

    /// The directory of the journal; made if it does not exist.
    #[must_use]
    pub fn dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.settings.directory = directory.as_ref().to_owned();
        self
    }

    /// Where it listens; port 0 lets the operating system choose.
    #[must_use]
    pub fn listen(mut self, address: impl Into<SocketAddr>) -> Self {
        self.settings.ingress.listen = address.into();
        self
    }

    /// What answers and outputs wait for.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.settings.process.level = level;
        self
    }

    /// Has a replicated region keep the log, and answers at level peers (unless it is to leave that). An empty `name` is the service's, or of a node its cluster's name and
    /// its number.
    #[must_use]
    pub fn keep(mut self, keep: KeepSettings) -> Self {
        if keep.way != KeepWay::Leave {
            self.settings.process.level = Level::Peers;
        }
        self.settings.keep = Some(keep);
        self
    }

    /// How crashes are survived. Without, a process that stands alone logs by [`Policy::Deferred`], a node of a cluster by
    /// [`Policy::FOR_CLUSTERS`].
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.settings.process.policy = policy;
        self.policy_given = true;
        self
    }

    /// Pages of the journal's ring and bytes of one, for a directory that is made now; an existing one keeps its own.
    #[must_use]
    pub fn pages(mut self, pages: u16, page_bytes: u32) -> Self {
        self.settings.disk.journal.geometry.pages = pages;
        self.settings.disk.journal.geometry.page_bytes = page_bytes;
        self
    }

    /// What writes pages in the background.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.settings.disk.backend = backend;
        self
    }

    /// Records every change of the directory into a file, for the check of power cuts.
    #[must_use]
    pub fn record(mut self, record: RecordOptions) -> Self {
        self.settings.disk.record = Some(record);
        self
    }

    /// Declares an output port.
    #[must_use]
    pub fn output(mut self, output: OutputPort) -> Self {
        self.settings.outputs.push(output);
        self
    }

    /// Changes limits of the process: bodies, keys, clients, backlog, outputs, checkpoints.
    #[must_use]
    pub fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.settings.process.limits);
        self
    }

    /// Changes limits of the ingress: connections, requests in flight, timeouts.
    #[must_use]
    pub fn ingress(mut self, change: impl FnOnce(&mut Ingress)) -> Self {
        change(&mut self.settings.ingress);
        self
    }

    /// How long a clean stop may take.
    #[must_use]
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.settings.stop_timeout = timeout;
        self
    }

    /// Writes the port that it listens on into a file, once it takes requests.
    #[must_use]
    pub fn port_file(mut self, path: Option<PathBuf>) -> Self {
        self.port_file = path;
        self
    }

    /// The directories of several nodes may lie side by side: the default one is this node's own.
    pub(crate) fn set_cluster(&mut self, cluster: Cluster) {
        let name = &self.settings.process.name;
        if self.settings.directory == Path::new(&format!("{name}.mainstay")) {
            self.settings.directory = PathBuf::from(format!("{name}-n{}.mainstay", cluster.me().0));
        }
        self.cluster = Some(cluster);
    }

    fn join_cluster(&mut self) -> Result<(), ClusterError> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        if !self.policy_given {
            self.settings.process.policy = Policy::FOR_CLUSTERS;
        }
        cluster.apply(&mut self.settings)
    }

    /// All settings as they are now; those of a cluster are made of them at the start.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All settings, for what has no method of its own.
    pub fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }

    /// Starts it, and returns when it has recovered and takes requests. Signals are left to the program.
    ///
    /// # Errors
    /// [`RunError`]; nothing acknowledged is lost.
    pub fn start(mut self) -> Result<Running, RunError> {
        self.join_cluster()?;
        if let Some(keep) = self.settings.keep.as_mut().filter(|keep| keep.name.is_empty()) {
            let node = self.cluster.as_ref().map(|cluster| (cluster.name(), cluster.me().0));
            let name = &self.settings.process.name;
            keep.name = node
                .map_or_else(|| name.clone(), |(cluster, me)| format!("{}/{me}", cluster.unwrap_or(name)));
        }
        let running = (self.start)(self.settings)?;
        if let Some(path) = self.port_file {
            let written = write_whole(&path, &format!("{}\n", running.address().port()));
            written.map_err(|source| RunError::PortFile { path, source })?;
        }
        Ok(running)
    }

    /// Runs it until SIGTERM or SIGINT has stopped it cleanly. Says on standard error where it listens and what recovery did.
    ///
    /// # Errors
    /// [`RunError`]; nothing acknowledged is lost.
    pub fn run(mut self) -> Result<(), RunError> {
        self.settings.signals = true;
        let of = (
            self.settings.process.name.clone(),
            self.settings.process.level,
            self.settings.directory.clone(),
        );
        let running = self.start()?;
        eprintln!("{}", welcome(running.started(), &of.0, of.1, &of.2));
        Ok(running.wait()?)
    }
}

impl<S> Server<S> {
    /// Replays its directory before the eyes of `watcher`, and changes nothing there; see [`crate::replay`].
    ///
    /// # Errors
    /// [`NotReplayed`].
    pub fn replay(self, replay: Replay, watcher: &mut (dyn Watcher + Send)) -> Result<Replayed, NotReplayed> {
        self.replay_following(replay, None, watcher)
    }

    /// The same; what reaches an instance is told to whoever follows it.
    pub(crate) fn replay_following(
        mut self,
        replay: Replay,
        followed: Option<Arc<Followed>>,
        watcher: &mut (dyn Watcher + Send),
    ) -> Result<Replayed, NotReplayed> {
        self.join_cluster()?;
        (self.replay)(&self.settings, replay, followed, watcher)
    }
}

/// A service as the process sees it, bytes in and bytes out: for those who drive a process themselves, such as the check of
/// power cuts.
pub fn handler<S: Service>(service: S) -> impl Handler + Send + 'static {
    Typed(service)
}

/// The line that a service says at its start.
fn welcome(started: &Started, name: &str, level: Level, directory: &Path) -> String {
    let Started { address, journal, recovery, duration, keep, .. } = started;
    let mut line =
        format!("{name} listens on http://{address}, directory {}, level {level}", directory.display());
    if let Some(keep) = keep {
        line += &format!(", kept by a region of {} nodes", keep.nodes);
        if let Some(lsn) = keep.filled_to {
            line += &format!("; this directory was filled from there up to LSN {lsn}");
        }
    }
    let ms = duration.as_secs_f64() * 1e3;
    if journal.created {
        line += &format!("; new directory, ready in {ms:.0} ms");
        return line;
    }
    let from =
        recovery.checkpoint.map_or_else(String::new, |lsn| format!(" behind the checkpoint at LSN {lsn}"));
    let deliveries = if recovery.replayed == 1 { "delivery" } else { "deliveries" };
    line += &format!("; recovered in {ms:.0} ms: {} {deliveries} replayed{from}", recovery.replayed);
    if let Some(cut) = &journal.cut {
        line += &format!(", unsynced tail {}..{} cut", cut.start, cut.end);
    }
    if journal.ring_missing && keep.is_none() {
        line += ", the ring was missing (acknowledgements at level process may be lost)";
    }
    if recovery.outputs_again > 0 {
        line += &format!(", {} outputs sent again", recovery.outputs_again);
    }
    if recovery.outputs_in_doubt > 0 {
        line += &format!(", {} outputs in doubt (GET /outputs)", recovery.outputs_in_doubt);
    }
    if let Some(lsn) = recovery.quarantined {
        line += &format!(", the delivery at LSN {lsn} was given up after it had failed too often");
    }
    for (lsn, why) in &recovery.passed_over {
        line += &format!(", checkpoint {lsn} passed over ({why})");
    }
    line
}

/// A reader sees the whole text or no file.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    std::fs::write(&partial, text)?;
    std::fs::rename(&partial, path)
}
