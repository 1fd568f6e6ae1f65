//! The simulated world of one process: one clock, one queue of happenings, one source of chance.
//!
//! ```text
//!   clients <── network ──> life (process + disk operations under way) ── storage ──> disk
//!                             │                                          crash points in every step, effect, operation
//!   receivers <── network ────┘
//! ```

use crate::clients::{Call, Client};
use crate::disk::Disk;
use crate::model::Terms;
use crate::oracle::{Oracle, Scene};
use crate::plan::{Plan, Trouble};
use crate::properties::{Property, Violation};
use crate::random::Random;
use crate::reach::{Reach, Reached};
use crate::receivers::OutputFlight;
use crate::ring::Left;
use crate::service::Life;
use crate::subject::Subject;
use crate::trace::Trace;
use mainstay_journal::geometry::{BLOCK_BYTES, Geometry};
use mainstay_journal::journal::Health;
use mainstay_journal::options::OpenOptions;
use mainstay_process::config::{Config, Limits};
use mainstay_process::effect::Reply;
use mainstay_process::event::ReplyToken;
use mainstay_recovery::policy::Policy;
use mainstay_types::id::{OutputId, StoreId};
use mainstay_types::level::Level;
use mainstay_types::rules::Rules;
use mainstay_types::time::Time;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

pub(crate) const MICROSECOND: u64 = 1_000;
pub(crate) const MILLISECOND: u64 = 1_000_000;

/// Steps of a run before faults end.
const STEPS_MIN: u64 = 500;
/// Crashes of a run before faults end.
const CRASHES_MIN: u64 = 3;
/// Happenings of a whole history, those that are no step of the process included; a healthy one has some ten thousand.
const HAPPENINGS_MAX: u64 = 500_000;

/// Steps within which everything must come to its end once faults have ended.
const ENDING_STEPS_MAX: u64 = 20_000;
/// Steps of a planned run before faults end, whatever was planned.
const PLANNED_STEPS_MAX: u64 = 10_000;
/// How long a planned run waits for a planned crash after the last answer.
const PLANNED_CRASH_WAIT_NS: u64 = 200 * MILLISECOND;
/// The wall clock at the beginning.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;

/// Something that happens at its time.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A client acts.
    Client { place: usize, era: u64 },
    /// A message reaches the service.
    Arrive { token: ReplyToken, era: u64 },
    /// A reply reaches a client.
    Replied { token: ReplyToken, reply: Reply, era: u64 },
    /// The process has everything that was at hand.
    Drained { life: u64 },
    /// The process wanted to be woken.
    Wake { life: u64 },
    /// A disk operation under way is complete.
    Disk { life: u64, operation: u64 },
    /// The background thread takes up its next duty.
    Background { life: u64 },
    /// A checkpoint is written, or published.
    Checkpoint { life: u64, publish: bool },
    /// A message reaches a receiver.
    ToReceiver { life: u64, flight: OutputFlight, ask: bool, era: u64 },
    /// A receiver's answer reaches the service.
    FromReceiver { life: u64, output: OutputId, attempt: u32, said: crate::receivers::Said },
    /// An output was not answered in time.
    OutputTimeout { life: u64, output: OutputId, attempt: u32 },
    /// A person looks after outputs in doubt.
    Operator,
    /// The weather changes: faults begin or end.
    Weather,
    /// The service is asked to stop, or to take a checkpoint.
    Ask { life: u64, stop: bool },
    /// The service starts.
    Start,
}

/// One run.
pub(crate) struct World<S: Subject> {
    pub(crate) subject: Rc<S>,
    pub(crate) plan: Plan,
    /// After how many points each start was to crash.
    pub(crate) fuses: Vec<u64>,
    pub(crate) random: Random,
    pub(crate) now_ns: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    queued: u64,
    pub(crate) trace: Trace,
    pub(crate) reached: Reached,
    pub(crate) oracle: Oracle<S>,
    pub(crate) disk: Disk,
    pub(crate) config: Config,
    pub(crate) options: OpenOptions,
    pub(crate) left: Left,
    pub(crate) life: Option<Life<S::Handler>>,
    pub(crate) lives: u64,
    /// Older contents of the ring that the page cache may have written back.
    pub(crate) ring_images: Vec<Vec<u8>>,
    /// Whether records may have gone since the journal was last open, beyond what a kill takes.
    pub(crate) kept_all: bool,
    pub(crate) wall_skew_ns: i64,
    pub(crate) clients: Vec<Client>,
    pub(crate) calls: Vec<Call>,
    /// The call of each message.
    pub(crate) messages: Vec<usize>,
    /// Counts failures beyond what the level promises: clients start anew.
    pub(crate) era: u64,
    /// Copies of at-most-once outputs under way, by key.
    pub(crate) under_way: BTreeMap<String, u32>,
    /// When the last message on the ordered channel to the asked receiver arrives.
    pub(crate) asked_last_ns: u64,
    pub(crate) steps: u64,
    pub(crate) crashes: u64,
    pub(crate) ending: bool,
    pub(crate) fault_rates: FaultRates,
    pub(crate) store: String,
    sealed_for_good: bool,
}

/// How often faults come, per thousand, and how quick the disk is in this run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultRates {
    pub(crate) message_lost: u64,
    pub(crate) message_doubled: u64,
    pub(crate) crash_points_mean: u64,
    pub(crate) power_cuts: u64,
    pub(crate) write_us: u64,
    pub(crate) failed_syncs: u64,
    pub(crate) inline_writes: bool,
}

/// How a run ended.
pub(crate) struct Ended {
    pub(crate) steps: u64,
    pub(crate) crashes: u64,
    pub(crate) reached: Reached,
    pub(crate) violation: Option<(u64, Violation)>,
    pub(crate) trace: Trace,
}

impl<S: Subject> World<S> {
    pub(crate) fn new(subject: Rc<S>, plan: Plan, seed: u64, rules: Rules, trace: Trace) -> Self {
        let mut random = Random::new(seed);
        let mut geometry = Geometry {
            page_bytes: 4096,
            pages: random.between(1, 3) as u16,
            segment_pages: random.between(2, 4) as u32,
        };
        let store = StoreId(random.draw().to_le_bytes().repeat(2).try_into().expect("16 bytes"));
        let level = if random.chance(250) { Level::Process } else { Level::Disk };
        let policy = if random.coin() { Policy::Immediate } else { Policy::Deferred };
        let ms = |random: &mut Random, from, to| Duration::from_millis(random.between(from, to));
        let limits = Limits {
            body_bytes_max: 2000,
            backlog_requests_max: random.between(3, 20) as usize,
            blocked_requests_max: 0,
            block_max: Duration::ZERO,
            keys_max: random.between(6, 60) as usize,
            key_retention: ms(&mut random, 20, 300),
            clients_max: random.between(2, 4) as usize,
            client_threads_max: 2,
            open_requests_max: 1,
            client_idle_min: ms(&mut random, 5, 50),
            outputs_pending_max: random.between(4, 60) as usize,
            unkept_bytes_max: u64::MAX,
            handler_attempts_max: random.between(2, 3) as u32,
            checkpoint_log_bytes: random.between(2, 24) << 10,
            checkpoint_interval: ms(&mut random, 5, 100),
        };
        let mut config = Config {
            name: String::new(),
            version: 1,
            level,
            policy,
            ports: Vec::new(),
            limits,
            entropy: 0,
            cluster: None,
            rules,
        };
        subject.settle(&mut config, &mut geometry);
        let options = OpenOptions {
            geometry,
            new_store: store,
            stripes: drawn_stripes(seed),
            create: true,
            rules,
            buffer_only: false,
            half_bytes_min: BLOCK_BYTES,
            free_segments_max: random.index(3),
        };
        let mut fault_rates = FaultRates {
            message_lost: random.below(100),
            message_doubled: random.below(100),
            crash_points_mean: random.between(150, 900),
            power_cuts: random.between(100, 800),
            write_us: random.between(20, 500),
            failed_syncs: if random.chance(300) { random.between(1, 30) } else { 0 },
            inline_writes: random.coin(),
        };
        if !plan.has(Trouble::Network) {
            (fault_rates.message_lost, fault_rates.message_doubled) = (0, 0);
        }
        if !plan.has(Trouble::Disk) {
            fault_rates.failed_syncs = 0;
        }
        if !plan.has(Trouble::Power) {
            fault_rates.power_cuts = 0;
        }
        let disk = Disk::new(Random::new(random.draw()));
        let limits = config.limits;
        let terms = Terms { store, ports: config.ports.clone(), key_retention: limits.key_retention };
        let oracle = Oracle::new(level, geometry, Rc::clone(&subject), terms);
        let clients = subject.clients().iter().enumerate();
        let clients = clients.map(|(place, &kind)| Client::new(place, kind, 0)).collect();
        let mut world = Self {
            subject,
            plan,
            fuses: Vec::new(),
            random,
            now_ns: 0,
            queue: BTreeMap::new(),
            queued: 0,
            trace,
            reached: Reached::default(),
            oracle,
            disk,
            config,
            options,
            left: Left::default(),
            life: None,
            lives: 0,
            ring_images: Vec::new(),
            kept_all: true,
            wall_skew_ns: 0,
            clients,
            calls: Vec::new(),
            messages: Vec::new(),
            era: 0,
            under_way: BTreeMap::new(),
            asked_last_ns: 0,
            steps: 0,
            crashes: 0,
            ending: false,
            fault_rates,
            store: store.to_string(),
            sealed_for_good: false,
        };
        world.trace.line(
            0,
            format_args!("seed {seed}: {level}, {policy}, {geometry:?}, {limits:?}, {fault_rates:?}"),
        );
        world
    }

    /// Runs to the end.
    pub(crate) fn run(mut self) -> Ended {
        let violation = self.go();
        let Self { steps, crashes, reached, trace, .. } = self;
        Ended { steps, crashes, reached, violation, trace }
    }

    /// Runs to the end, and leaves what it came to.
    pub(crate) fn go(&mut self) -> Option<(u64, Violation)> {
        self.after(0, Happening::Start);
        self.after(5 * MILLISECOND, Happening::Operator);
        self.after(3 * MILLISECOND, Happening::Weather);
        for place in 0..self.clients.len() {
            self.after_up_to(MILLISECOND, Happening::Client { place, era: 0 });
        }
        let violation = self.go_on().err().map(|violation| (self.steps, violation));
        self.reached.add_disk(self.disk.counts);
        violation
    }

    fn go_on(&mut self) -> Result<(), Violation> {
        let mut ending_since = 0;
        let mut happenings = 0_u64;
        let mut all_asked_since_ns = None;
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            self.now_ns = at;
            happenings += 1;
            if happenings > HAPPENINGS_MAX {
                return Err(self.no_progress());
            }
            self.happen(happening)?;
            if self.subject.all_asked() && !self.clients.iter().any(Client::waits) {
                all_asked_since_ns.get_or_insert(at);
            }
            if !self.ending && self.has_enough(all_asked_since_ns) {
                self.end_faults();
                ending_since = self.steps;
            }
            if self.ending && self.steps - ending_since > ENDING_STEPS_MAX {
                return Err(self.no_progress());
            }
            if self.ending && !self.sealed_for_good && self.all_done() {
                self.sealed_for_good = true;
                ending_since = self.steps;
                self.check_the_end()?;
                let life = self.lives;
                self.after(0, Happening::Ask { life, stop: true });
            }
            if self.sealed_for_good && self.life.is_none() {
                return self.check_the_seal();
            }
        }
        Err(Violation::new(Property::Progress, "nothing is left to happen and not all is done".to_owned()))
    }

    /// Whether faults may end: after enough steps and crashes, or when all that was planned has happened.
    fn has_enough(&self, all_asked_since_ns: Option<u64>) -> bool {
        let Some(planned) = &self.plan.crashes else {
            return self.steps >= STEPS_MIN && self.crashes >= CRASHES_MIN;
        };
        let waited = all_asked_since_ns.is_some_and(|since| self.now_ns > since + PLANNED_CRASH_WAIT_NS);
        let crashed = self.fuses.len() > planned.len();
        waited || crashed && all_asked_since_ns.is_some() || self.steps >= PLANNED_STEPS_MAX
    }

    fn end_faults(&mut self) {
        self.trace.line(
            self.now_ns,
            format_args!("faults end after {} steps, {} crashes", self.steps, self.crashes),
        );
        self.ending = true;
        self.disk.full = false;
        self.disk.sync_failures_per_mille = 0;
        self.fault_rates.failed_syncs = 0;
        self.fault_rates.message_lost = 0;
        self.subject.bad_weather(0);
        self.disk.set_fuse(None);
    }

    /// Whether every client has its answer, and every output its fate or a person's attention.
    fn all_done(&self) -> bool {
        let Some(life) = &self.life else { return false };
        let model = &self.oracle.order.model;
        let good = life.process.journal().health() == Health::Good;
        let idle = good && life.is_idle() && !self.clients.iter().any(Client::waits);
        let no_timers = model.timers.is_empty() || !self.subject.waits_for_timers();
        idle && model.pending().next().is_none() && no_timers
    }

    fn no_progress(&self) -> Violation {
        let waiting = self.clients.iter().filter(|client| client.waits()).count();
        let pending: Vec<_> = self.oracle.order.model.pending().collect();
        let stats = self.life.as_ref().map(|life| (life.process.stats(), life.process.journal().health()));
        let what = format!(
            "{ENDING_STEPS_MAX} steps after the last fault, {waiting} clients wait, outputs {pending:?} are open, process: {stats:?}"
        );
        Violation::new(Property::Progress, what)
    }

    fn check_the_end(&self) -> Result<(), Violation> {
        let life = self.life.as_ref().expect("all is done only while the service runs");
        self.oracle.compare(&life.process)
    }

    /// The journal was sealed: what a stranger finds is exactly what was there.
    fn check_the_seal(&mut self) -> Result<(), Violation> {
        self.disk.cut_power();
        let end = self.oracle.order.end();
        let opened = mainstay_journal::open::open(&mut self.disk, &self.options).map_err(|error| {
            Violation::new(Property::Recovers, format!("a sealed journal is refused: {error}"))
        })?;
        if !opened.report.sealed {
            let what = format!("a clean stop left no seal: {:?}", opened.report);
            return Err(Violation::new(Property::Recovers, what));
        }
        self.reached.hit(Reach::OpenedSealed);
        let scene = Scene { disk: &self.disk, catalog: &opened.catalog };
        self.oracle.opened(scene, opened.report.end, true)?;
        if self.oracle.order.end() < end {
            let what = format!("the sealed journal ended at {end}, it is opened up to {}", opened.report.end);
            return Err(Violation::new(Property::AcknowledgedSurvives, what));
        }
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Client { place, era } if era == self.era => self.client_turn(place),
            Happening::Arrive { token, era } if era == self.era => self.arrive(token)?,
            Happening::Replied { token, reply, era } if era == self.era => self.client_replied(token, &reply),
            Happening::Drained { life } if self.lives(life) => self.drained()?,
            Happening::Wake { life } if self.lives(life) => self.wake()?,
            Happening::Disk { life, operation } if self.lives(life) => self.disk_done(operation)?,
            Happening::Background { life } if self.lives(life) => self.background()?,
            Happening::Checkpoint { life, publish } if self.lives(life) => self.checkpoint_done(publish)?,
            Happening::ToReceiver { life, flight, ask, era } if era == self.era => {
                self.reach_receiver(life, flight, ask)?;
            }
            Happening::FromReceiver { life, output, attempt, said } if self.lives(life) => {
                self.receiver_said(output, attempt, said)?;
            }
            Happening::OutputTimeout { life, output, attempt } if self.lives(life) => {
                self.output_timeout(output, attempt)?;
            }
            Happening::Operator => {
                self.operator();
                let pause = if self.ending { 2 } else { 10 };
                self.after_up_to(pause * MILLISECOND, Happening::Operator);
            }
            Happening::Weather if !self.ending => self.change_weather(),
            Happening::Ask { life, stop } if self.lives(life) => self.ask(stop)?,
            Happening::Start => self.start()?,
            _ => {}
        }
        Ok(())
    }

    /// Faults come in spells, so that the time between them is undisturbed.
    fn change_weather(&mut self) {
        let per_mille = if self.disk.full { 300 } else { 60 };
        self.disk.full = self.random.chance(per_mille) && self.plan.has(Trouble::Disk);
        self.disk.sync_failures_per_mille = self.fault_rates.failed_syncs;
        if self.random.chance(150) {
            let deliveries = self.random.between(1, 5) as u32;
            self.subject.bad_weather(deliveries);
        }
        self.after_up_to(20 * MILLISECOND, Happening::Weather);
        let life = self.lives;
        if !self.plan.has(Trouble::Orders) {
            return;
        }
        if self.random.chance(40) {
            self.after(0, Happening::Ask { life, stop: true });
        } else if self.random.chance(60) {
            self.after(0, Happening::Ask { life, stop: false });
        }
    }

    pub(crate) fn lives(&self, life: u64) -> bool {
        self.life.is_some() && self.lives == life
    }

    pub(crate) fn after(&mut self, delay_ns: u64, happening: Happening) {
        self.queued += 1;
        self.queue.insert((self.now_ns + delay_ns, self.queued), happening);
    }

    /// At a time drawn between now and `delay_ns_max` from now.
    pub(crate) fn after_up_to(&mut self, delay_ns_max: u64, happening: Happening) {
        let delay_ns = self.random.between(1, delay_ns_max);
        self.after(delay_ns, happening);
    }

    pub(crate) fn wall(&self) -> Time {
        Time((EPOCH_NS + self.now_ns).saturating_add_signed(self.wall_skew_ns))
    }
}

/// Over how many directories the journal goes. Beside the other draws: seeds that show something of one directory go on showing it.
pub(crate) fn drawn_stripes(seed: u64) -> u16 {
    let mut aside = Random::new(seed ^ 0x5712_1BED);
    if aside.coin() { 1 } else { aside.between(2, 3) as u16 }
}
