//! Driving by delegation: whoever arrives drives, unless somebody does already; then that one takes the arrival along.
//!
//! A thread of its own for the process would cost two wake-ups per request, each about as long as a fifth of a sync. Here
//! a request that arrives alone is parsed, logged, synced, answered and written back on one thread.
//!
//! Invariants: the role is held by exactly one thread, or by one task on its way to a thread, whenever `driving` is set;
//! only the holder touches the core; the holder lays the role down under the inbox's lock and only when that is empty.

use crate::clock::Clock;
use crate::core::{Core, Round, Wake};
use crate::inbox::{Inbox, Item, Phase};
use crate::port::{Carry, Sent};
use crate::watch::Watch;
use mainstay_process::effect::{Abandoned, Output};
use mainstay_process::event::Event;
use mainstay_process::handler::Handler;
use mainstay_types::id::OutputId;
use mainstay_types::level::Level;
use mainstay_types::time::Time;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Handle;

/// Rounds that one holder of the role makes without having waited for the disk, before it hands the role on. After a wait
/// it hands it on at once: its own request's answer, and tasks that it woke, stand behind it on this thread.
const ROUNDS_MAX: u32 = 8;

/// A round that takes longer than this must not keep the service from listening.
const LONG_ROUND: Duration = Duration::from_millis(50);

/// What every thread of the service shares.
pub(crate) struct Shared<H> {
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
    pub(crate) runtime: Handle,
    inbox: Mutex<Inbox<H>>,
    core: Mutex<Option<Core<H>>>,
    /// Whether a clean stop was asked for: a life that begins after a panic stops as well.
    stop_asked: AtomicBool,
    /// Told when the process ends: with what it was abandoned for, or `None` after a clean stop.
    on_end: OnEnd<H>,
    this: Weak<Self>,
}

type OnEnd<H> = Box<dyn Fn(&Arc<Shared<H>>, Option<Abandoned>) + Send + Sync>;

/// What a driver is made from.
pub(crate) struct Parts {
    pub(crate) requests_in_flight_max: usize,
    pub(crate) checkpoint_timeout: Duration,
    pub(crate) stop_timeout: Duration,
    pub(crate) level: Level,
    pub(crate) runtime: Handle,
}

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

impl<H: Handler + Send + 'static> Shared<H> {
    /// A service whose process is being recovered by the caller.
    pub(crate) fn recovering(
        parts: Parts,
        on_end: impl Fn(&Arc<Self>, Option<Abandoned>) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            clock: Clock::anchored_to_wall(),
            watch: Watch::default(),
            wake: Wake::default(),
            in_flight: AtomicUsize::new(0),
            requests_in_flight_max: parts.requests_in_flight_max,
            checkpoint_timeout: parts.checkpoint_timeout,
            stop_timeout: parts.stop_timeout,
            level: parts.level,
            ports: OnceLock::new(),
            runtime: parts.runtime,
            inbox: Mutex::new(Inbox::recovering()),
            stop_asked: AtomicBool::new(false),
            core: Mutex::new(None),
            on_end: Box::new(on_end),
            this: this.clone(),
        })
    }

    /// Puts in a recovered process; the caller held the role and lays it down.
    pub(crate) fn install(&self, core: Core<H>) {
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
    pub(crate) fn take_out(&self) -> Option<Core<H>> {
        self.lock_inbox().phase = Phase::Recovering;
        for port in self.ports.get().into_iter().flatten() {
            port.forget_waiting();
        }
        let mut core = self.lock_core().take();
        if let Some(core) = &mut core {
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
    pub(crate) fn push(&self, item: Item<H>) -> Result<(), NotTaken> {
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
        if drives {
            self.drive();
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
            matches!(event, Event::Checkpoint(_)) && inbox.phase == Phase::Recovering;
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

    /// Hands the role to a task. That goes to the front of the queue of the thread it is spawned on.
    fn drive_elsewhere(&self) {
        let shared = self.this.upgrade().expect("somebody calls this");
        self.runtime.spawn(async move { shared.drive() });
    }

    /// The caller holds the role.
    fn drive(&self) {
        let _end = EndProcessOnPanic;
        let mut core = self.lock_core();
        let mut rounds = 0;
        let mut blocked = false;
        loop {
            let Some(core_in_hand) = core.as_mut() else { return };
            match self.next(core_in_hand, blocked || rounds >= ROUNDS_MAX, rounds > 0) {
                Next::Round => {}
                Next::LaidDown => return,
                Next::HandOver => {
                    drop(core);
                    self.watch.handovers.fetch_add(1, Ordering::Relaxed);
                    self.drive_elsewhere();
                    return;
                }
            }
            rounds += 1;
            self.watch.rounds.fetch_add(1, Ordering::Relaxed);
            let shared = self.this.upgrade().expect("somebody calls this");
            match core_in_hand.round(&shared) {
                Round::Done { blocked: waited } => blocked |= waited,
                Round::Abandoned(abandoned) => {
                    drop(core);
                    (self.on_end)(&shared, Some(abandoned));
                    return;
                }
                Round::Stopped => {
                    drop(core);
                    (self.on_end)(&shared, None);
                    return;
                }
            }
        }
    }

    fn next(&self, core: &mut Core<H>, hand_over: bool, at_least_one_round: bool) -> Next {
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

    /// Sees to it that somebody listens while a handler takes long: a thread of the runtime that runs a task without an end
    /// does not look at sockets, and the others sleep until there is a task for them. Ends with the service.
    pub(crate) fn watch_for_long_rounds(&self) -> std::io::Result<()> {
        let (this, runtime) = (self.this.clone(), self.runtime.clone());
        let watch = move || {
            let mut rounds_seen = 0;
            while let Some(shared) = this.upgrade() {
                let rounds = shared.watch.rounds.load(Ordering::Relaxed);
                let same_round = std::mem::replace(&mut rounds_seen, rounds) == rounds;
                if same_round && shared.lock_inbox().driving {
                    runtime.spawn(async {});
                }
                drop(shared);
                std::thread::sleep(LONG_ROUND);
            }
        };
        std::thread::Builder::new().name("watchdog".into()).spawn(watch).map(drop)
    }

    fn lock_inbox(&self) -> MutexGuard<'_, Inbox<H>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_core(&self) -> MutexGuard<'_, Option<Core<H>>> {
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
