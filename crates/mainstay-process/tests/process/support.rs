//! A process on a disk in memory, stepped by hand: nothing happens that the test did not ask for.

pub(crate) mod net;

use mainstay_journal::catalog::Catalog;
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::journal::Journal;
use mainstay_journal::memory::{CONTROL_BYTES, HeapPages, PageMemory};
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::open::{self, OpenReport};
use mainstay_journal::options::OpenOptions;
use mainstay_journal::storage::{Failure, Storage};
use mainstay_process::checkpoint;
use mainstay_process::config::{Config, Limits};
use mainstay_process::effect::{Effect, Output, Reply};
use mainstay_process::event::{CheckpointEvent, Event, Identity, ReplyToken, Request};
use mainstay_process::handler::{Answer, Context, Handler, Outcome, RestoreError};
use mainstay_process::loss::RollBack;
use mainstay_process::port::{Guarantee, Port};
use mainstay_process::process::Process;
use mainstay_process::recover::{RecoverError, Recovery, Start};
use mainstay_recovery::policy::Policy;
use mainstay_types::id::{Lsn, OutputId, StoreId};
use mainstay_types::level::Level;
use mainstay_types::rules::Rules;
use mainstay_types::time::Time;
use std::io;
use std::time::Duration;

/// A handler that remembers every command: `say X`, `send PORT X`, `random`, `timer MS`, `panic`, `panic-elsewhere`, `diverge`.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    pub(crate) lines: Vec<String>,
    /// Not part of the state: a handler must not look at the likes of it.
    pub(crate) world: u64,
}

impl Handler for Memo {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        let text = String::from_utf8(body.to_vec()).expect("tests send text");
        let (word, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let line = match word {
            "send" => {
                let (port, payload) = rest.split_once(' ').expect("send PORT PAYLOAD");
                let id = context.send(port, payload);
                format!("sent {id}")
            }
            "random" => format!("random {}", context.random_u64()),
            "timer" => {
                context.set_timer(Duration::from_millis(rest.parse().expect("milliseconds")), 7);
                "timer set".to_owned()
            }
            "panic" => panic!("told to"),
            "panic-elsewhere" if self.world != 0 => panic!("it is another world"),
            "diverge" => format!("world {}", self.world),
            _ => text.clone(),
        };
        self.lines.push(line.clone());
        Some(Answer { status: 200, body: format!("{}:{line}", self.lines.len()).into_bytes() })
    }

    fn query(&self, _: &[u8]) -> Answer {
        Answer { status: 200, body: self.lines.len().to_string().into_bytes() }
    }

    fn timer(&mut self, token: u64, context: &mut Context<'_>) {
        self.lines.push(format!("timer {token} at {}", context.now().0));
    }

    fn output_settled(&mut self, output: OutputId, outcome: &Outcome, _: &mut Context<'_>) {
        self.lines.push(format!("{output} {outcome:?}"));
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        into.write_all(self.lines.join("\n").as_bytes())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let text =
            String::from_utf8(bytes.to_vec()).map_err(|error| RestoreError { reason: error.to_string() })?;
        self.lines = text.lines().map(str::to_owned).collect();
        Ok(())
    }
}

pub(crate) fn config() -> Config {
    let port = |name: &str, guarantee| Port { name: name.to_owned(), guarantee, lines: false };
    Config {
        name: "memo".to_owned(),
        version: 1,
        level: Level::Disk,
        policy: Policy::Deferred,
        ports: vec![port("once", Guarantee::Deduplicated), port("maybe", Guarantee::AtMostOnce)],
        limits: Limits { body_bytes_max: 1024, ..Limits::default() },
        entropy: 42,
        cluster: None,
        rules: Rules::KEPT,
    }
}

/// A process with the handler of most tests.
pub(crate) type World = Machine<Memo>;

/// Numbers from a seed (splitmix64).
#[derive(Clone)]
pub(crate) struct Drawn(pub(crate) u64);

impl Drawn {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

pub(crate) struct Machine<H> {
    pub(crate) storage: MemoryStorage,
    pub(crate) catalog: Catalog,
    pub(crate) report: OpenReport,
    pub(crate) process: Process<H, HeapPages>,
    pub(crate) recovery: Recovery,
    pub(crate) now: Time,
    /// Asked of the disk and not performed yet.
    pub(crate) disk: Vec<DiskEffect>,
    pub(crate) replies: Vec<(u64, Reply)>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) other: Vec<Effect>,
    /// The log that a region was asked to keep, from where this life was opened on.
    pub(crate) given: Vec<u8>,
    /// Where records end among that.
    pub(crate) given_ends: Vec<Lsn>,
    /// The last checkpoint that was published.
    pub(crate) published: Option<Lsn>,
}

impl Machine<Memo> {
    pub(crate) fn new(config: Config) -> Self {
        Self::open(MemoryStorage::default(), config, Memo::default()).expect("an empty directory opens")
    }

    pub(crate) fn open(storage: MemoryStorage, config: Config, handler: Memo) -> Result<Self, RecoverError> {
        Self::start(storage, config, handler, StoreId([9; 16]), None)
    }

    /// Power fails: only what is past a sync is left.
    pub(crate) fn crash(self, config: Config) -> Result<Self, RecoverError> {
        self.crash_with(config, Memo::default())
    }

    /// kill -9: the page cache is left, and with it the ring.
    pub(crate) fn kill(self, config: Config) -> Result<Self, RecoverError> {
        Self::open(self.killed(), config, Memo::default())
    }

    pub(crate) fn crash_with(self, config: Config, handler: Memo) -> Result<Self, RecoverError> {
        Self::open(self.storage.crash_image(&mut |_| 0), config, handler)
    }
}

impl<H: Handler> Machine<H> {
    /// Opens and recovers once. The ring is in the heap, so that a crash loses what is not past a sync.
    pub(crate) fn start(
        mut storage: MemoryStorage,
        config: Config,
        handler: H,
        new_store: StoreId,
        roll_back: Option<RollBack>,
    ) -> Result<Self, RecoverError> {
        let options = OpenOptions {
            geometry: Geometry { page_bytes: 4096, pages: 3, segment_pages: 4 },
            new_store,
            ..OpenOptions::default()
        };
        let opened = open::open(&mut storage, &options).expect("the journal opens");
        let geometry = opened.resume.geometry();
        let memory = HeapPages::new(geometry.page_bytes, geometry.pages);
        let now = Time(1_000_000_000);
        let start = Start {
            config,
            handler,
            journal: Journal::start(opened.resume, memory),
            report: &opened.report,
            storage: &mut storage,
            catalog: &opened.catalog,
            now,
            roll_back,
            progress: None,
        };
        let mut out = Vec::new();
        let (process, recovery) = Process::recover(start, &mut out)?;
        let mut world = Self {
            storage,
            catalog: opened.catalog,
            report: opened.report,
            process,
            recovery,
            now,
            disk: Vec::new(),
            replies: Vec::new(),
            outputs: Vec::new(),
            other: Vec::new(),
            given: Vec::new(),
            given_ends: Vec::new(),
            published: None,
        };
        world.perform(out);
        Ok(world)
    }

    /// The directory as a kill -9 leaves it.
    pub(crate) fn killed(self) -> MemoryStorage {
        self.copied()
    }

    /// What a copy of its directory holds, made at this moment.
    pub(crate) fn copied(&self) -> MemoryStorage {
        self.copied_with(|_| {})
    }

    /// The same, the control block of the ring as `change` leaves it.
    pub(crate) fn copied_with(&self, change: impl FnOnce(&mut [u8])) -> MemoryStorage {
        let (memory, mut storage) = (self.process.journal().memory(), self.storage.clone());
        let mut ring = memory.to_file();
        change(&mut ring[..CONTROL_BYTES]);
        storage.store_mapping("ring", &ring);
        storage
    }

    pub(crate) fn step(&mut self, event: Event) {
        let mut out = Vec::new();
        self.process.step(self.now, event, &mut out);
        self.perform(out);
    }

    pub(crate) fn request(&mut self, token: u64, identity: Identity, body: &str) {
        self.step(request(token, identity, body));
    }

    pub(crate) fn say(&mut self, token: u64, body: &str) {
        self.request(token, Identity::None, body);
    }

    /// Drains, and performs what the disk is asked for until it is asked for nothing more.
    pub(crate) fn settle(&mut self) {
        loop {
            self.step(Event::Drained);
            if self.disk.is_empty() {
                return;
            }
            self.complete_disk();
        }
    }

    /// Performs what the disk has been asked for so far.
    pub(crate) fn complete_disk(&mut self) {
        for effect in std::mem::take(&mut self.disk) {
            let event = self.perform_disk(effect);
            self.step(Event::Disk(event));
        }
    }

    /// How many writes the disk is asked for.
    pub(crate) fn writes_asked(&self) -> usize {
        self.disk.iter().filter(|effect| matches!(effect, DiskEffect::Write { .. })).count()
    }

    /// Fails the first write or sync that is asked for.
    pub(crate) fn fail_disk(&mut self) {
        self.step(Event::Drained);
        let asked = std::mem::take(&mut self.disk);
        let ticket = asked.iter().find_map(|effect| match effect {
            DiskEffect::Write { ticket, .. } | DiskEffect::Sync { ticket, .. } => Some(*ticket),
            _ => None,
        });
        let ticket = ticket.expect("a flush was asked for");
        self.step(Event::Disk(DiskEvent::Failed { ticket, failure: Failure::Os(5) }));
    }

    /// Takes the reply to `token`.
    pub(crate) fn reply(&mut self, token: u64) -> Option<Reply> {
        let place = self.replies.iter().position(|(to, _)| *to == token)?;
        Some(self.replies.remove(place).1)
    }

    /// Takes the reply to `token`, which must be the handler's answer, as text.
    pub(crate) fn answer(&mut self, token: u64) -> (String, bool) {
        match self.reply(token) {
            Some(Reply::Answer { answer, replayed, .. }) => {
                (String::from_utf8(answer.body.clone()).expect("answers are text"), replayed)
            }
            other => panic!("token {token} got {other:?}"),
        }
    }

    /// Performs one thing that the disk has been asked for.
    pub(crate) fn perform_one(&mut self) {
        let effect = self.disk.remove(0);
        let event = self.perform_disk(effect);
        self.step(Event::Disk(event));
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        // What completes is told behind everything asked for before it.
        let mut completed = Vec::new();
        for effect in effects {
            match effect {
                Effect::Disk(effect) => self.disk.push(effect),
                Effect::Reply { token, reply } => self.replies.push((token.0, reply)),
                Effect::Output(output) => self.outputs.push(output),
                Effect::SaveCheckpoint { lsn } => {
                    let mut bytes = Vec::new();
                    let saved = self.process.save(&mut bytes).expect("a vector takes all");
                    let name = checkpoint::temporary_name(lsn);
                    self.storage.create(&name, 0).expect("the name is new");
                    self.storage.write(&name, 0, &bytes).expect("memory is large");
                    let (state_hash, bytes) = (saved.state_hash, saved.bytes);
                    completed.push(CheckpointEvent::Saved { lsn, state_hash, bytes });
                }
                Effect::PublishCheckpoint { lsn } => {
                    let oldest = checkpoint::publish(&mut self.storage, lsn).expect("memory does not fail");
                    self.published = Some(lsn);
                    completed.push(CheckpointEvent::Published { lsn, oldest });
                }
                Effect::Keep { from, to } => {
                    assert_eq!(from.0, self.report.end.0 + self.given.len() as u64, "one behind the other");
                    let copied = self.process.journal().copy(from, to, &mut self.given);
                    copied.expect("what has just been appended is in the ring");
                    self.given_ends.push(to);
                }
                other => self.other.push(other),
            }
        }
        for event in completed {
            self.step(Event::Checkpoint(event));
        }
    }

    fn perform_disk(&mut self, effect: DiskEffect) -> DiskEvent {
        match effect {
            DiskEffect::Write { ticket, slot, from, to, place, durable } => {
                let file = self.catalog.file_of(place.segment).expect("writes go to prepared segments");
                let bytes = self.process.journal().memory().page(slot)[from as usize..to as usize].to_vec();
                self.storage.write(&file, place.offset, &bytes).expect("memory does not fail");
                if durable {
                    self.storage.sync(&file).expect("memory does not fail");
                }
                DiskEvent::Done { ticket }
            }
            DiskEffect::Sync { ticket, first_segment, last_segment } => {
                for segment in first_segment..=last_segment {
                    let file = self.catalog.file_of(segment).expect("synced segments are prepared");
                    self.storage.sync(&file).expect("memory does not fail");
                }
                DiskEvent::Done { ticket }
            }
            DiskEffect::Prepare { segment } => match self.catalog.prepare(&mut self.storage, segment) {
                Ok(()) => DiskEvent::Prepared { segment },
                Err(error) => DiskEvent::PrepareFailed { segment, failure: error.failure },
            },
            DiskEffect::Trim { first } => {
                self.catalog.trim(&mut self.storage, first).expect("memory does not fail");
                DiskEvent::Trimmed { first }
            }
        }
    }
}

pub(crate) fn request(token: u64, identity: Identity, body: &str) -> Event {
    Event::Request(Request { token: ReplyToken(token), identity, body: body.as_bytes().to_vec() })
}

pub(crate) fn key(text: &str) -> Identity {
    Identity::Key(text.as_bytes().to_vec())
}
