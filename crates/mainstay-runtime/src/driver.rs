//! Driving by delegation: whoever arrives drives, unless somebody does already; then that one takes the arrival along.
//!
//! A thread of its own for the process would cost two wake-ups per request, each about as long as a fifth of a sync. Here
//! a request that arrives alone is parsed, logged, synced, answered and written back on one thread.
//!
//! Where answers wait for the disk and a thread serves several connections, a thread without connections drives: who serves
//! connections reads the next requests and writes answers meanwhile.
//!
//! Invariants: the role is held by exactly one thread, or by one task on its way to a thread, whenever `driving` is set;
//! only the holder touches the core; the holder lays the role down under the inbox's lock and only when that is empty.

use crate::clock::Clock;
use crate::core::{Core, GaveUp, Round, Wake};
use crate::inbox::{Inbox, Item, Phase};
use crate::peers::event::PeerEvent;
use crate::port::{Carry, Sent};
use crate::promptness::ask_for_promptness;
use crate::threads::STACK_BYTES;
use crate::watch::Watch;
use mainstay_process::effect::Output;
use mainstay_process::event::Event;
use mainstay_process::port::PortIndex;
use mainstay_types::id::OutputId;
use mainstay_types::level::Level;
use mainstay_types::time::Time;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Rounds that a thread with connections makes without having waited for the disk, before it hands the role on. After a wait
/// it hands it on at once: its own request's answer, and tasks that it woke, stand behind it on this thread.
const ROUNDS_MAX: u32 = 8;

/// What every thread of the service shares.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) watch: Watch,
    pub(crate) wake: Wake,
    /// Requests taken and not answered.
    pub(crate) in_flight: AtomicUsize,
    pub(crate) requests_in_flight_max: usize,
    pub(crate) checkpoint_timeout: Duration,
    pub(crate) stop_timeout: Duration,
    pub(crate) level: Level,
    pub(crate) ports: OnceLock<Vec<Box<dyn Carry>>>,
    /// Brings the role to the thread that has nothing else to do.
    relief: Sender<Role>,
    inbox: Mutex<Inbox>,
    core: Mutex<Option<Core>>,
    /// Whether the last life ended with a seal.
    pub(crate) sealed: AtomicBool,
    /// Whether a clean stop was asked for: a life that begins after a panic stops as well.
    stop_asked: AtomicBool,
    /// Told when the process ends: with why it gave itself up, or `None` after a clean stop.
    on_end: OnEnd,
    this: Weak<Self>,
}

type OnEnd = Box<dyn Fn(&Arc<Shared>, Option<GaveUp>) + Send + Sync>;

/// The role of the driver, on its way to a thread.
struct Role;

/// When one who arrives and finds nobody driving drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Before anything else on this thread.
    AtOnce,
    /// After the tasks that are ready on this thread's runtime: what they have read is one batch.
    AfterReadyTasks,
    /// Then too, but on the thread without connections: this one has others to serve while that waits for the disk.
    Elsewhere,
}

/// What a driver is made from.
pub(crate) struct Parts {
    pub(crate) requests_in_flight_max: usize,
    pub(crate) checkpoint_timeout: Duration,
    pub(crate) stop_timeout: Duration,
    pub(crate) level: Level,
}

/// How often whoever drives for many connections lets them go first before a round.
const GATHER_TURNS_MAX: u32 = 4;

/// The share of all that may come that is enough for a write. The smaller it is, the more writes there are; with all of them the cores stand still
/// during each.
const GATHER_SHARE: (usize, usize) = (2, 3);

/// Arrivals that let more be expected.
const GATHER_ITEMS_MIN: usize = 2;

/// Why an arrival was not taken. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// The process is being recovered.
    Recovering,
    /// The service has ended.
    Ended,
    /// As many requests as the limit allows are in flight.
    InFlight,
}

impl Shared {
    /// A service whose process is being recovered by the caller.
    ///
    /// # Errors
    /// The operating system gave no thread.
    pub(crate) fn recovering(
        parts: Parts,
        on_end: impl Fn(&Arc<Self>, Option<GaveUp>) + Send + Sync + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let (relief, takes_role) = channel();
        let shared = Arc::new_cyclic(|this| Self {
            clock: Clock::anchored_to_wall(),
            watch: Watch::default(),
            wake: Wake::default(),
            in_flight: AtomicUsize::new(0),
            requests_in_flight_max: parts.requests_in_flight_max,
            checkpoint_timeout: parts.checkpoint_timeout,
            stop_timeout: parts.stop_timeout,
            level: parts.level,
            ports: OnceLock::new(),
            relief,
            inbox: Mutex::new(Inbox::recovering()),
            sealed: AtomicBool::new(false),
            stop_asked: AtomicBool::new(false),
            core: Mutex::new(None),
            on_end: Box::new(on_end),
            this: this.clone(),
        });
        shared.start_relief(takes_role)?;
        Ok(shared)
    }

    /// Puts in a recovered process; the caller held the role and lays it down.
    pub(crate) fn install(&self, core: Core) {
        let this = self.this.clone();
        core.disk().set_notify(Box::new(move || {
            if let Some(shared) = this.upgrade() {
                shared.disk_ready();
            }
        }));
        *self.lock_core() = Some(core);
        let mut inbox = self.lock_inbox();
        inbox.phase = Phase::Running;
        if self.stop_asked.load(Ordering::Acquire) {
            inbox.items.push(Item::Event(Event::Stop));
        }
        drop(inbox);
        self.drive_elsewhere();
    }

    /// Takes the process out after it gave itself up; the caller holds the role and keeps it until [`Self::install`] or
    /// [`Self::end`]. Everyone who waits is told that the outcome is unknown.
    pub(crate) fn take_out(&self) -> Option<Core> {
        self.lock_inbox().phase = Phase::Recovering;
        for port in self.ports.get().into_iter().flatten() {
            port.forget_waiting();
        }
        let mut core = self.lock_core().take();
        if let Some(core) = &mut core {
            core.peering.leave();
            let told = core.replies.give_up();
            self.in_flight.fetch_sub(told, Ordering::Relaxed);
        }
        core
    }

    /// Nothing is taken any more. The caller holds the role and keeps it for good.
    pub(crate) fn end(&self) {
        let mut inbox = self.lock_inbox();
        inbox.phase = Phase::Ended;
        // Dropping an item tells whoever waits for it that it was not taken.
        inbox.items.clear();
        drop(inbox);
        *self.lock_core() = None;
    }

    pub(crate) fn phase(&self) -> Phase {
        self.lock_inbox().phase.clone()
    }

    /// Takes an arrival, and drives if nobody else does. When this returns, the arrival may have been dealt with already.
    /// On a thread of the service's runtimes.
    pub(crate) fn push(&self, item: Item, turn: Turn) -> Result<(), NotTaken> {
        let request = item.is_request();
        let mut inbox = self.lock_inbox();
        match inbox.phase {
            Phase::Recovering => return Err(NotTaken::Recovering),
            Phase::Ended => return Err(NotTaken::Ended),
            Phase::Running => {}
        }
        if request && self.in_flight.fetch_add(1, Ordering::Relaxed) >= self.requests_in_flight_max {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            return Err(NotTaken::InFlight);
        }
        inbox.items.push(item);
        let drives = !std::mem::replace(&mut inbox.driving, true);
        drop(inbox);
        match turn {
            _ if !drives => {}
            Turn::AtOnce => self.drive(Some(ROUNDS_MAX)),
            Turn::AfterReadyTasks => {
                let shared = self.this();
                tokio::spawn(async move { shared.drive(Some(ROUNDS_MAX)) });
            }
            Turn::Elsewhere => {
                let shared = self.this();
                tokio::spawn(async move { shared.drive_elsewhere() });
            }
        }
        Ok(())
    }

    /// Takes what needs no reply, from any thread; kept during a recovery for the recovered process.
    pub(crate) fn push_event(&self, event: Event) {
        if matches!(event, Event::Stop) {
            self.stop_asked.store(true, Ordering::Release);
        }
        let mut inbox = self.lock_inbox();
        let checkpoint_of_another_life =
            matches!(event, Event::Checkpoint(_) | Event::Snapshot(_)) && inbox.phase == Phase::Recovering;
        if inbox.phase == Phase::Ended || checkpoint_of_another_life {
            return;
        }
        inbox.items.push(Item::Event(event));
        let drives = !std::mem::replace(&mut inbox.driving, true);
        drop(inbox);
        if drives {
            self.drive_elsewhere();
        }
    }

    /// Takes what happened on a connection to another node, on the thread that reads from it, which drives if nobody else does; kept during
    /// a recovery for the recovered process.
    pub(crate) fn push_peer(&self, happened: PeerEvent) {
        let mut inbox = self.lock_inbox();
        if inbox.phase == Phase::Ended {
            return;
        }
        inbox.items.push(Item::Peer(happened));
        let drives = !std::mem::replace(&mut inbox.driving, true);
        drop(inbox);
        if drives {
            self.drive(Some(ROUNDS_MAX));
        }
    }

    fn disk_ready(&self) {
        let mut inbox = self.lock_inbox();
        inbox.disk_ready = true;
        let drives = !std::mem::replace(&mut inbox.driving, true);
        drop(inbox);
        if drives {
            self.drive_elsewhere();
        }
    }

    /// What a port reports.
    pub(crate) fn output_sent(&self, output: OutputId, sent: Sent) {
        self.push_event(match sent {
            Sent::Ended(outcome) => Event::Output { output, outcome },
            Sent::InDoubt => Event::OutputInDoubt { output },
        });
    }

    pub(crate) fn carry(&self, output: Output) {
        let ports = self.ports.get().expect("ports are started before a process is installed");
        ports[output.port.0].carry(output);
    }

    pub(crate) fn withdraw(&self, port: PortIndex, output: OutputId) {
        self.ports.get().expect("ports are started before a process is installed")[port.0].withdraw(output);
    }

    pub(crate) fn wake_at(&self, at: Time) {
        self.wake.set(at);
    }

    /// Runs `work` on a thread of its own; if there is none to be had, `otherwise` is what happened.
    pub(crate) fn in_background(
        &self,
        name: &str,
        otherwise: Event,
        work: impl FnOnce() + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        if let Err(error) = &spawned {
            tracing::warn!(name, %error, "no thread");
            self.push_event(otherwise);
        }
        spawned.ok()
    }

    /// Hands the role to the thread that has nothing else to do.
    fn drive_elsewhere(&self) {
        self.relief.send(Role).expect("that thread lives as long as this");
    }

    /// Starts that thread. It ends with the service.
    fn start_relief(&self, takes_role: Receiver<Role>) -> std::io::Result<()> {
        let this = self.this.clone();
        let relieve = move || {
            ask_for_promptness();
            while let Ok(Role) = takes_role.recv() {
                let Some(shared) = this.upgrade() else { return };
                shared.drive(None);
            }
        };
        std::thread::Builder::new().name("drive".into()).stack_size(STACK_BYTES).spawn(relieve).map(drop)
    }

    /// The caller holds the role. It keeps it while there is something to do, without a limit or for `rounds_max` rounds and
    /// not after a wait for the disk.
    fn drive(&self, rounds_max: Option<u32>) {
        let _end = EndProcessOnPanic;
        let mut core = self.lock_core();
        let mut rounds = 0;
        let mut blocked = false;
        let mut last = 0;
        loop {
            if rounds_max.is_none() {
                self.gather(last);
            }
            let Some(core_in_hand) = core.as_mut() else { return };
            let hand_over = rounds_max.is_some_and(|rounds_max| blocked || rounds >= rounds_max);
            match self.next(core_in_hand, hand_over, rounds > 0) {
                Next::Round => {}
                Next::LaidDown => return,
                Next::HandOver => {
                    drop(core);
                    self.watch.handovers.fetch_add(1, Ordering::Relaxed);
                    self.drive_elsewhere();
                    return;
                }
            }
            rounds = rounds.saturating_add(1);
            self.watch.rounds.fetch_add(1, Ordering::Relaxed);
            let shared = self.this();
            last = core_in_hand.batch.len();
            match core_in_hand.round(&shared) {
                Round::Done { blocked: waited } => blocked |= waited,
                Round::GaveUp(gave_up) => {
                    drop(core);
                    (self.on_end)(&shared, Some(gave_up));
                    return;
                }
                Round::Stopped => {
                    self.sealed.store(core_in_hand.is_sealed(), Ordering::Release);
                    drop(core);
                    (self.on_end)(&shared, None);
                    return;
                }
            }
        }
    }

    /// Where many come, lets those that serve them go first for as long as they bring more: it shares a write, and no core idles meanwhile, as it
    /// would if a time were waited for. A lone client has nobody who could bring something, and threads that keep cores awake for it. Not all are
    /// waited for that may come, which are the `last` that were answered in the round before: while the disk writes, the cores need something to do.
    fn gather(&self, last: usize) {
        let mut gathered = self.lock_inbox().items.len();
        let (part, of) = GATHER_SHARE;
        // Nothing is known of who may come before anybody has.
        let enough = if last == 0 { usize::MAX } else { (last + gathered) * part / of };
        for _ in 0..GATHER_TURNS_MAX {
            if gathered < GATHER_ITEMS_MIN || gathered >= enough {
                return;
            }
            std::thread::yield_now();
            let now = self.lock_inbox().items.len();
            if now == gathered {
                return;
            }
            gathered = now;
        }
    }

    fn next(&self, core: &mut Core, hand_over: bool, at_least_one_round: bool) -> Next {
        let mut inbox = self.lock_inbox();
        // The first round performs what is left over from a recovery, even if nothing has arrived.
        if at_least_one_round && inbox.items.is_empty() && !inbox.disk_ready {
            inbox.driving = false;
            return Next::LaidDown;
        }
        if hand_over {
            return Next::HandOver;
        }
        inbox.disk_ready = false;
        std::mem::swap(&mut inbox.items, &mut core.batch);
        Next::Round
    }

    fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("somebody calls this")
    }

    fn lock_inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_core(&self) -> MutexGuard<'_, Option<Core>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A panic of our own code (the handler's are caught where it is called) would leave the role held for ever, and the service
/// deaf but alive. A crash is what it survives.
pub(crate) struct EndProcessOnPanic;

impl Drop for EndProcessOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a bug in Mainstay: the process ends as if killed, and the next start recovers");
            std::process::abort();
        }
    }
}

enum Next {
    Round,
    LaidDown,
    HandOver,
}
