//! A service from its start to its end: open, recover, serve, recover in place after a panic, stop.

mod keeping;
mod signals;

use crate::core::{Core, GaveUp};
use crate::driver::{EndProcessOnPanic, Parts, Shared};
use crate::ingress::{Ingress, accept};
use crate::keep::{Keep, KeepError, KeptStart, NotKept};
use crate::peering::{Peering, Transport};
use crate::peers::{Peers, PeersError};
use crate::places::{Kept, PlaceTaken, Places, PlacesError};
use crate::port::StartPortError;
use crate::settings::Settings;
use crate::threads::{RuntimeThread, STACK_BYTES, ServingThreads};
use crate::wakeful::Wakeful;
use mainstay_disk::lock::LockError;
use mainstay_disk::open::{OpenDisk, OpenDiskError};
use mainstay_journal::format::SUPERBLOCK_FILE;
use mainstay_journal::open::OpenReport;
use mainstay_process::effect::Abandoned;
use mainstay_process::event::Event;
use mainstay_process::handler::AnyHandler;
use mainstay_process::loss::RollBack;
use mainstay_process::process::Process;
use mainstay_process::recover::{Progress, RecoverError, Recovery, Start};
use mainstay_types::id::NodeId;
use mainstay_types::level::Level;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// How long answers that have been given may take to reach their sockets after a stop.
const LINGER: Duration = Duration::from_millis(100);

/// How long a lock whose holder is gone may take to be released.
const LOCK_RELEASE_MAX: Duration = Duration::from_millis(500);

/// The pause between two attempts at such a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Whether a body is what the handler takes: asked before anything is logged.
pub type Check = Box<dyn Fn(&[u8]) -> Result<(), Unfit> + Send + Sync>;

/// A body is not what the handler takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is no JSON.
    Syntax {
        /// What the parser said.
        message: String,
    },
    /// It is JSON of another shape.
    Content {
        /// What the parser said.
        message: String,
    },
    /// It is addressed to an instance of a type that is not there.
    NoSuchType {
        /// Types that are.
        hosted: Vec<&'static str>,
    },
    /// It is addressed to an instance of another node.
    Elsewhere {
        /// Which.
        node: NodeId,
    },
}

/// The handler's side of a service.
pub struct Service {
    /// Makes a handler in its initial state, for each recovery.
    pub make: Box<dyn Fn() -> AnyHandler + Send + Sync>,
    /// Checks the body of `POST /call`.
    pub check_command: Check,
    /// Checks the body of `POST /query`.
    pub check_query: Check,
}

/// What a start did.
#[derive(Clone, Debug)]
pub struct Started {
    /// Where the ingress listens.
    pub address: SocketAddr,
    /// What opening the journal found and did.
    pub journal: OpenReport,
    /// What recovery did.
    pub recovery: Recovery,
    /// How long opening and recovery took.
    pub duration: Duration,
    /// How many times the handler had panicked before the recovery came through.
    pub panics: u32,
    /// Of the region that keeps the log, at level peers.
    pub keep: Option<KeptStart>,
}

/// The service could not be started. Nothing acknowledged is lost.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The directory could not be opened.
    #[error(transparent)]
    Open(#[from] OpenDiskError),
    /// The process could not be recovered.
    #[error(transparent)]
    Recover(#[from] Box<RecoverError>),
    /// The address cannot be listened on.
    #[error("{address} cannot be listened on: {source}. Stop what listens there, or choose another address")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A port could not be started.
    #[error(transparent)]
    Port(#[from] StartPortError),
    /// The other nodes cannot be talked to.
    #[error(transparent)]
    Peers(#[from] PeersError),
    /// The place of this node is another's, or cannot be taken.
    #[error(transparent)]
    Places(#[from] PlacesError),
    /// The region does not keep its log, or ceased to while it recovered.
    #[error(transparent)]
    Keep(#[from] Box<KeepError>),
    /// As that.
    #[error(transparent)]
    NotKept(#[from] NotKept),
    /// The operating system gave no threads, or no signals.
    #[error("no threads or signals to serve with: {0}")]
    Runtime(#[source] io::Error),
}

/// The service ended otherwise than by a clean stop. Nothing acknowledged is lost.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// After a panic of the handler the process could not be recovered.
    #[error("the process could not be recovered after a panic of the handler: {0}")]
    Recover(#[source] StartError),
    /// Something kept the clean stop waiting.
    #[error(
        "the service did not stop cleanly within {limit:?} (an output may be waiting for its receiver). It ends as if killed: the \
         next start recovers"
    )]
    StopTimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The region did not take the rest of the log, or the last checkpoint.
    #[error(
        "the region that keeps the log did not take the rest of it, and the last checkpoint, within {limit:?}. It ends as if killed: what it \
         acknowledged is in the region and in this directory. Start it again in this directory when the region serves"
    )]
    StopUnkept {
        /// The limit.
        limit: Duration,
    },
    /// Another process is this node now.
    #[error(transparent)]
    PlaceTaken(PlaceTaken),
    /// Another process has its log now, or the region has lost it.
    #[error(transparent)]
    NotKept(NotKept),
    /// A second signal.
    #[error("the stop was interrupted. It ends as if killed: the next start recovers")]
    Interrupted,
}

/// A running service. Dropping it ends it as if it were killed, once the delivery under way is done.
pub struct Running {
    started: Started,
    ended: Receiver<Result<(), EndError>>,
    event: Box<dyn Fn(Event) + Send + Sync>,
    take_down: Box<dyn Fn() + Send + Sync>,
    stop_timeout: Duration,
    threads: Vec<RuntimeThread>,
    transport: Transport,
    keep: Option<Keep>,
    _places: Option<Kept>,
}

impl Running {
    /// What the start did.
    #[must_use]
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.started.address
    }

    /// Asks for a checkpoint now.
    pub fn checkpoint(&self) {
        (self.event)(Event::CheckpointNow);
    }

    /// Stops cleanly: lets out what is held, takes a checkpoint, seals the journal.
    ///
    /// # Errors
    /// [`EndError`]; nothing acknowledged is lost.
    pub fn stop(self) -> Result<(), EndError> {
        (self.event)(Event::Stop);
        match self.ended.recv_timeout(self.stop_timeout) {
            Ok(ended) => {
                std::thread::sleep(LINGER);
                ended
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(self.says_why(EndError::StopTimedOut { limit: self.stop_timeout }))
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the sender lives in what this holds"),
        }
    }

    /// Waits until it ends: by a signal if it was told to mind signals, or because it cannot go on.
    ///
    /// # Errors
    /// [`EndError`]; nothing acknowledged is lost.
    pub fn wait(self) -> Result<(), EndError> {
        let ended = self.ended.recv().expect("the sender lives in what this holds");
        std::thread::sleep(LINGER);
        ended.map_err(|error| self.says_why(error))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.transport.stop();
        self.keep.iter().for_each(Keep::stop);
        self.threads.iter_mut().for_each(RuntimeThread::stop);
        let deadline = Instant::now() + LINGER;
        self.threads.iter().for_each(|thread| thread.wait_until(deadline));
        // Releases the directory's lock, and ends the ports' threads.
        (self.take_down)();
    }
}

/// Starts a service: returns when it has recovered and takes requests.
///
/// # Errors
/// [`StartError`]; nothing acknowledged is lost.
pub fn start(mut settings: Settings, service: Service) -> Result<Running, StartError> {
    let begun = Instant::now();
    settings.process.ports = settings.outputs.iter().map(crate::port::OutputPort::declared).collect();
    settings.process.entropy = fastrand::u64(..);
    let accepts = RuntimeThread::start("accept").map_err(StartError::Runtime)?;
    let runtime = accepts.handle().clone();
    let listen_at = settings.ingress.listen;
    let listen_error = |source| StartError::Listen { address: listen_at, source };
    let listen = || runtime.block_on(TcpListener::bind(listen_at)).map_err(listen_error);
    // The process that has a journal listens here, too, and then the lock of its directory says more. Where there is none, nothing is
    // made, nor taken over in a region, for a service that cannot listen.
    let has_journal = settings.directory.join(SUPERBLOCK_FILE).exists();
    let listening = if has_journal { None } else { Some(listen()?) };
    let prepared = keeping::prepare(&mut settings)?;
    let mut opened = open(&settings)?;
    let threads = match settings.ingress.threads {
        0 => std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2)),
        threads => threads,
    };
    // At the other levels nobody waits for a disk.
    let wakeful = match settings.process.level {
        Level::Disk if !settings.ingress.cores_may_halt => Wakeful::start(),
        _ => Wakeful::default(),
    };
    let (serving, mut threads) =
        ServingThreads::start(threads, &Arc::new(wakeful)).map_err(StartError::Runtime)?;
    threads.push(accepts);
    let listener = listening.map_or_else(listen, Ok)?;
    let address = listener.local_addr().map_err(listen_error)?;
    if !address.ip().to_canonical().is_loopback() {
        tracing::warn!(%address, "whoever reaches this address may send requests: it has no TLS and no authentication");
    }

    let (says_ended, ended) = channel();
    let transport = Transport::default();
    let life = Arc::new(Life {
        settings,
        make: service.make,
        says_ended: Mutex::new(says_ended.clone()),
        transport: transport.clone(),
        keep: OnceLock::new(),
    });
    let parts = Parts {
        requests_in_flight_max: life.settings.ingress.requests_in_flight_max,
        checkpoint_timeout: life.settings.checkpoint_timeout,
        stop_timeout: life.settings.stop_timeout,
        level: life.settings.process.level,
    };
    let on_end = Arc::clone(&life);
    let shared = Shared::recovering(parts, move |shared, abandoned| on_end.process_ended(shared, abandoned))
        .map_err(StartError::Runtime)?;
    start_ports(&life.settings, &shared, opened.0.report.store)?;
    let ingress = Ingress {
        shared: Arc::clone(&shared),
        settings: life.settings.ingress,
        body_bytes_max: life.settings.process.limits.body_bytes_max,
        check_command: service.check_command,
        check_query: service.check_query,
        port_names: life.settings.outputs.iter().map(|output| output.name().to_owned()).collect(),
    };
    runtime.spawn(accept(listener, Arc::new(ingress), serving));
    runtime.spawn(wake(Arc::clone(&shared)));
    if life.settings.signals {
        runtime.block_on(async { signals::mind(&shared, says_ended) }).map_err(StartError::Runtime)?;
    }
    let beginning = keeping::Beginning::of(&life);
    let begin = |prepared| life.begin_keeping(&shared, prepared, &mut opened.0).map_err(Box::new);
    let keep = prepared.map(begin).transpose()?.flatten();
    let recovered = on_own_stack(|| life.recover(&shared, Some(opened), None))?;
    let started = Started {
        address,
        journal: recovered.journal,
        recovery: recovered.recovery,
        duration: begun.elapsed(),
        panics: recovered.panics,
        keep,
    };
    let place = take_place(&life.settings, &started.journal)?;
    shared.install(recovered.core);
    start_peers(&life.settings, &shared, &transport)?;
    let places = place.map(|place| keep_place(place, &life, &shared, &transport)).transpose()?;
    let stop_timeout = life.settings.stop_timeout;
    let of_events = Arc::clone(&shared);
    beginning.done();
    Ok(Running {
        started,
        ended,
        event: Box::new(move |event| of_events.push_event(event)),
        take_down: Box::new(move || shared.end()),
        stop_timeout,
        threads,
        transport,
        keep: life.keep.get().cloned(),
        _places: places,
    })
}

/// What recoveries are made with, over and over.
struct Life {
    settings: Settings,
    make: Box<dyn Fn() -> AnyHandler + Send + Sync>,
    says_ended: Mutex<Sender<Result<(), EndError>>>,
    transport: Transport,
    keep: OnceLock<Keep>,
}

/// A recovered process.
struct Recovered {
    core: Core,
    journal: OpenReport,
    recovery: Recovery,
    panics: u32,
}

impl Life {
    /// Recovers until no delivery makes the handler panic any more: each attempt is counted durably, and a delivery that
    /// was tried too often is given up by verdict, so that this ends.
    fn recover(
        &self,
        shared: &Arc<Shared>,
        mut opened: Option<(OpenDisk, Duration)>,
        mut roll_back: Option<RollBack>,
    ) -> Result<Recovered, StartError> {
        for panics in 0.. {
            let (OpenDisk { journal, disk, mut storage, report }, opening) = match opened.take() {
                Some(opened) => opened,
                None => self.open_again()?,
            };
            let begun = Instant::now();
            let mut replay_begun = begun;
            let mut progress = |progress: Progress| {
                if progress.deliveries == 0 {
                    replay_begun = Instant::now();
                }
                shared.watch.replaying.store(progress.deliveries, Ordering::Relaxed);
            };
            let mut effects = Vec::new();
            let start = Start {
                config: self.settings.process.clone(),
                handler: (self.make)(),
                journal,
                report: &report,
                storage: &mut storage,
                catalog: &disk.catalog(),
                now: shared.clock.now(),
                roll_back: roll_back.take(),
                progress: Some(&mut progress),
            };
            match Process::recover(start, &mut effects) {
                Ok((process, recovery)) => {
                    let (restoring, replaying) = (replay_begun - begun, replay_begun.elapsed());
                    if !report.created {
                        shared.watch.pace.opened(opening + restoring);
                    }
                    shared.watch.pace.replayed(recovery.replayed, replaying);
                    shared.clock.raise(recovery.time);
                    self.keep_beginning((&process, &recovery), &mut effects, (&mut storage, &disk))?;
                    let peering = Peering::new(self.transport.clone());
                    let keep = self.keep.get().cloned();
                    let core = Core::new(process, disk, storage, effects, shared.level, peering, keep);
                    return Ok(Recovered { core, journal: report, recovery, panics });
                }
                Err(RecoverError::HandlerPanicked(abandoned)) => say_panicked(&abandoned),
                Err(error) => return Err(Box::new(error).into()),
            }
        }
        unreachable!("a delivery that panics is given up long before 2^32 attempts")
    }

    /// The process has ended; this thread holds the role.
    fn process_ended(self: &Arc<Self>, shared: &Arc<Shared>, gave_up: Option<GaveUp>) {
        let Some(gave_up) = gave_up else {
            shared.end();
            return self.say_ended(Ok(()));
        };
        let roll_back = match gave_up {
            GaveUp::Panicked(abandoned) => {
                say_panicked(&abandoned);
                None
            }
            GaveUp::RolledBack(rolled_back) => {
                let lost = rolled_back.lost();
                tracing::warn!(%lost, "deliveries depend on a state that the other node lost: they are taken back");
                shared.watch.rollbacks.fetch_add(1, Ordering::Relaxed);
                Some(rolled_back)
            }
        };
        shared.watch.recoveries_in_place.fetch_add(1, Ordering::Relaxed);
        let (life, shared) = (Arc::clone(self), Arc::clone(shared));
        let recover = move || {
            let _end = EndProcessOnPanic;
            if let Some(mut core) = shared.take_out() {
                core.finish_background();
            }
            match life.recover(&shared, None, roll_back) {
                Ok(recovered) => {
                    tracing::info!(replayed = recovered.recovery.replayed, "recovered in place");
                    shared.install(recovered.core);
                }
                Err(error) => {
                    shared.end();
                    life.say_ended(Err(EndError::Recover(error)));
                }
            }
        };
        let spawned =
            std::thread::Builder::new().name("recover".into()).stack_size(STACK_BYTES).spawn(recover);
        if let Err(error) = spawned {
            self.say_ended(Err(EndError::Recover(StartError::Runtime(error))));
        }
    }

    fn say_ended(&self, ended: Result<(), EndError>) {
        // Nobody listens any more when the service is being dropped.
        let _ = self.says_ended.lock().unwrap_or_else(PoisonError::into_inner).send(ended);
    }
}

/// Opens the directory. A lock held in the name of this very process is about to be released: a checkpoint's child forked a
/// moment ago has not closed its copy yet. Says how long the opening itself took.
fn open(settings: &Settings) -> Result<(OpenDisk, Duration), OpenDiskError> {
    let deadline = Instant::now() + LOCK_RELEASE_MAX;
    loop {
        let begun = Instant::now();
        match mainstay_disk::open::open(&settings.directory, &settings.disk) {
            Err(OpenDiskError::Lock(LockError::Held { holder, .. }))
                if Instant::now() < deadline && holder.pid.is_none_or(|pid| pid == std::process::id()) =>
            {
                std::thread::sleep(LOCK_PAUSE);
            }
            opened => return opened.map(|opened| (opened, begun.elapsed())),
        }
    }
}

fn say_panicked(abandoned: &Abandoned) {
    let (lsn, attempt, message) = (abandoned.lsn, abandoned.attempts, &abandoned.message);
    tracing::error!(%lsn, attempt, message, "the handler panicked; its process is recovered from the journal");
}

/// A handler that overflows its stack in a replay does so as in the first run, whatever thread starts the service.
fn on_own_stack<T: Send>(work: impl FnOnce() -> Result<T, StartError> + Send) -> Result<T, StartError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("recover".into()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, work).map_err(StartError::Runtime)?.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn start_peers(settings: &Settings, shared: &Arc<Shared>, transport: &Transport) -> Result<(), PeersError> {
    let Some(peers) = &settings.peers else { return Ok(()) };
    let weak = Arc::downgrade(shared);
    let report = move |happened| {
        if let Some(shared) = weak.upgrade() {
            shared.push_peer(happened);
        }
    };
    transport.set(Peers::start(peers.clone(), report)?);
    Ok(())
}

/// Before anything is answered.
fn take_place(settings: &Settings, journal: &OpenReport) -> Result<Option<Places>, PlacesError> {
    let (Some(places), Some(cluster)) = (&settings.places, &settings.process.cluster) else {
        return Ok(None);
    };
    // Of two nodes the lower one dials.
    let dialled = cluster.others.keys().copied().filter(|node| *node > cluster.me).collect();
    let life = (journal.store, journal.generation.0);
    Places::take(places, cluster.me, dialled, &settings.directory, life).map(Some)
}

fn keep_place(
    mut place: Places,
    life: &Arc<Life>,
    shared: &Arc<Shared>,
    transport: &Transport,
) -> Result<Kept, StartError> {
    place.listens(transport.address().expect("it has just been started"));
    let (life, shared) = (Arc::clone(life), Arc::downgrade(shared));
    let taken = move |taken| {
        if let Some(shared) = shared.upgrade() {
            shared.end();
        }
        life.say_ended(Err(EndError::PlaceTaken(taken)));
    };
    place.keep(transport.clone(), taken).map_err(StartError::Runtime)
}

fn start_ports(
    settings: &Settings,
    shared: &Arc<Shared>,
    store: mainstay_types::id::StoreId,
) -> Result<(), StartPortError> {
    let mut ports = Vec::with_capacity(settings.outputs.len());
    for output in &settings.outputs {
        let weak = Arc::downgrade(shared);
        let report = Arc::new(move |id, sent| {
            if let Some(shared) = weak.upgrade() {
                shared.output_sent(id, sent);
            }
        });
        ports.push(output.start(store, report)?);
    }
    let fresh = shared.ports.set(ports).is_ok();
    assert!(fresh, "ports are started once");
    Ok(())
}

/// Sends a tick whenever the process wants one.
async fn wake(shared: Arc<Shared>) {
    loop {
        let sooner = shared.wake.sooner.notified();
        match shared.wake.at() {
            None => sooner.await,
            Some(at) => {
                // Either way the moment is looked at anew.
                let _ = tokio::time::timeout(shared.clock.until(at), sooner).await;
                if shared.wake.take_if_due(&shared.clock) {
                    shared.push_event(Event::Tick);
                }
            }
        }
    }
}
