//! Power cuts of a real run: builds from a recording (`docs/power-loss.md`) what a cut could have left at each point, and
//! runs the real opening and recovery on it. Every answer given before the cut must be given again.
//!
//! Points are taken after every completed sync and every acknowledgement, evenly thinned out to a limit. At each, what
//! was not synced is all lost, all kept, and several times lost, kept, reordered and torn sector by sector. The ring is
//! left out: level `Disk` never depends on it.

use crate::disk::{Disk, SyncBegun, Unsynced};
use crate::random::Random;
use mainstay_disk::recording::{Entry, Recording, RecordingError};
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::format::RING_FILE;
use mainstay_journal::journal::Journal;
use mainstay_journal::memory::{HeapPages, PageMemory};
use mainstay_journal::open::open;
use mainstay_journal::options::OpenOptions;
use mainstay_journal::storage::Storage;
use mainstay_process::acknowledgement::{Acknowledgement, Named};
use mainstay_process::config::Config;
use mainstay_process::effect::{Effect, Reply};
use mainstay_process::event::{Event, ReplyToken, Request};
use mainstay_process::handler::Handler;
use mainstay_process::process::Process;
use mainstay_process::recover::Start;
use mainstay_types::id::StoreId;
use mainstay_types::level::Level;
use mainstay_types::time::Time;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// How thoroughly to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutsOptions {
    /// Points of the recording, at most.
    pub points_max: usize,
    /// Images at each point whose unsynced writes are lost, kept, reordered and torn by chance.
    pub mixed_images: usize,
    /// Acknowledgements asked for again in each image, at most: the latest, and others by chance.
    pub asked_max: usize,
    /// For the chances.
    pub seed: u64,
}

impl Default for CutsOptions {
    fn default() -> Self {
        Self { points_max: 200, mixed_images: 3, asked_max: 64, seed: 0 }
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CutsReport {
    /// Entries of the recording.
    pub entries: u64,
    /// Acknowledgements in it that can be asked for again.
    pub acknowledgements: u64,
    /// Points at which the power was cut.
    pub points: u64,
    /// Images that recovery was run on.
    pub images: u64,
    /// Answers that were asked for again.
    pub asked: u64,
    /// Images in which something acknowledged was missing, or that were refused.
    pub violations: u64,
    /// The first of them.
    pub first_violation: Option<CutViolation>,
}

/// An image that did not recover what was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CutViolation {
    /// The entry of the recording behind which the power was cut; the first is 1.
    pub entry: u64,
    /// What became of unsynced writes: `lost`, `kept` or `mixed`.
    pub unsynced: &'static str,
    /// What was seen.
    pub what: String,
}

/// A change that was begun and is not complete.
enum UnderWay {
    Create { file: String, bytes: u64 },
    Write { file: String, offset: u64, durable: bool, bytes: Vec<u8> },
    Sync(Option<SyncBegun>),
    Rename { from: String, to: String },
    Remove { file: String },
    SyncDirectory(usize),
}

/// The disk as the recording tells of it.
struct Replayed {
    disk: Disk,
    under_way: BTreeMap<u64, UnderWay>,
    lives: u64,
}

impl Replayed {
    fn new(seed: u64) -> Self {
        Self { disk: Disk::new(Random::new(seed)), under_way: BTreeMap::new(), lives: 0 }
    }

    /// Takes the next entry; says whether it is a point to cut at.
    fn take(&mut self, entry: Entry) -> bool {
        match entry {
            Entry::Life { files } => {
                self.lives += 1;
                let listed = |name: &str| files.iter().any(|file| file.name == name);
                for change in std::mem::take(&mut self.under_way).into_values() {
                    let happened = match &change {
                        UnderWay::Create { file, .. } => listed(file),
                        UnderWay::Rename { from, to } => listed(to) && !listed(from),
                        UnderWay::Remove { file } => !listed(file),
                        _ => false,
                    };
                    if happened {
                        self.happen(change);
                    }
                }
                for file in files.iter().filter(|_| self.lives == 1) {
                    let _ = self.disk.create(&file.name, file.bytes);
                }
                if self.lives == 1 {
                    let names = self.disk.begin_sync_directory();
                    self.disk.end_sync_directory(names);
                }
                false
            }
            Entry::WholeFile { file, bytes } => {
                // A file of another process: its content is synced, its name is not.
                let _ = self.disk.create(&file, 0);
                self.disk.replace(&file, bytes);
                false
            }
            Entry::Found { file, offset, bytes } => {
                self.disk.write_live(&file, offset, &bytes);
                false
            }
            Entry::Create { ticket, file, bytes } => self.begin(ticket, UnderWay::Create { file, bytes }),
            Entry::Write { ticket, file, offset, durable, bytes } => {
                self.begin(ticket, UnderWay::Write { file, offset, durable, bytes })
            }
            Entry::Sync { ticket, file } => {
                let sync = self.disk.begin_sync(&file);
                self.begin(ticket, UnderWay::Sync(sync))
            }
            Entry::Rename { ticket, from, to } => self.begin(ticket, UnderWay::Rename { from, to }),
            Entry::Remove { ticket, file } => self.begin(ticket, UnderWay::Remove { file }),
            Entry::SyncDirectory { ticket } => {
                let changes = self.disk.begin_sync_directory();
                self.begin(ticket, UnderWay::SyncDirectory(changes))
            }
            Entry::Done { ticket, done } => {
                let Some(change) = self.under_way.remove(&ticket) else { return false };
                match change {
                    UnderWay::Write { file, offset, bytes, .. } if !done => {
                        self.disk.write_live(&file, offset, &bytes);
                        false
                    }
                    _ if !done => false,
                    change => {
                        let point = matches!(
                            change,
                            UnderWay::Sync(_)
                                | UnderWay::SyncDirectory(_)
                                | UnderWay::Write { durable: true, .. }
                        );
                        self.happen(change);
                        point
                    }
                }
            }
            Entry::Acknowledged { .. } => true,
        }
    }

    fn begin(&mut self, ticket: u64, change: UnderWay) -> bool {
        self.under_way.insert(ticket, change);
        false
    }

    fn happen(&mut self, change: UnderWay) {
        // What cannot be done now was undone by a later change that completed first.
        match change {
            UnderWay::Create { file, bytes } => drop(self.disk.create(&file, bytes)),
            UnderWay::Write { file, offset, durable: true, bytes } => {
                self.disk.write_durable(&file, offset, &bytes);
            }
            UnderWay::Write { file, offset, durable: false, bytes } => {
                self.disk.write_live(&file, offset, &bytes);
            }
            UnderWay::Sync(Some(sync)) => self.disk.end_sync(&sync),
            UnderWay::Sync(None) => {}
            UnderWay::Rename { from, to } => drop(self.disk.rename(&from, &to)),
            UnderWay::Remove { file } => drop(self.disk.remove(&file)),
            UnderWay::SyncDirectory(changes) => self.disk.end_sync_directory(changes),
        }
    }

    /// What a cut could leave now.
    fn image(&self, unsynced: Unsynced, random: &mut Random) -> Disk {
        let mut disk = self.disk.clone();
        disk.reseed(Random::new(random.draw()));
        let mut cut = Self { disk, under_way: BTreeMap::new(), lives: 0 };
        for change in self.under_way.values() {
            let happened = match unsynced {
                Unsynced::Lost => false,
                Unsynced::Kept => true,
                Unsynced::Mixed => random.coin(),
            };
            match change {
                _ if !happened => {}
                UnderWay::Create { file, bytes } => drop(cut.disk.create(file, *bytes)),
                UnderWay::Write { file, offset, bytes, .. } => cut.disk.write_live(file, *offset, bytes),
                UnderWay::Rename { from, to } => drop(cut.disk.rename(from, to)),
                UnderWay::Remove { file } => drop(cut.disk.remove(file)),
                UnderWay::Sync(_) | UnderWay::SyncDirectory(_) => {}
            }
        }
        cut.disk.cut_power_as(unsynced);
        let _ = cut.disk.remove(RING_FILE);
        cut.disk
    }
}

/// Checks a recording of the service that `config` and `fresh`, a handler in its initial state, describe.
///
/// # Errors
/// [`RecordingError`] when the recording cannot be read; what a cut loses is in the report.
pub fn cuts<H: Handler>(
    recording: &Path,
    options: &CutsOptions,
    config: &Config,
    fresh: impl Fn() -> H,
) -> Result<CutsReport, RecordingError> {
    let points = count_points(recording)?;
    let stride = points.div_ceil(options.points_max.max(1)).max(1);
    let mut report = CutsReport::default();
    let mut random = Random::new(options.seed);
    let mut replayed = Replayed::new(options.seed);
    let mut acknowledged: Vec<Acknowledgement> = Vec::new();
    let mut entries = Recording::open(recording)?;
    let mut seen = 0;
    while let Some(entry) = entries.next_entry()? {
        report.entries += 1;
        if let Entry::Acknowledged { tag } = &entry
            && let Ok(read) = serde_json::from_slice::<Acknowledgement>(tag)
            && read.identity.is_some()
        {
            report.acknowledgements += 1;
            acknowledged.push(read);
        }
        if !replayed.take(entry) {
            continue;
        }
        seen += 1;
        if seen % stride != 0 && seen != points {
            continue;
        }
        report.points += 1;
        let fates = [(Unsynced::Lost, "lost"), (Unsynced::Kept, "kept")];
        let mixed = std::iter::repeat_n((Unsynced::Mixed, "mixed"), options.mixed_images);
        for (unsynced, name) in fates.into_iter().chain(mixed) {
            let mut image = replayed.image(unsynced, &mut random);
            report.images += 1;
            let asked = choose(&acknowledged, options.asked_max, &mut random);
            report.asked += asked.len() as u64;
            if let Err(what) = check(&mut image, config, fresh(), &asked) {
                report.violations += 1;
                let violation = CutViolation { entry: report.entries, unsynced: name, what };
                report.first_violation.get_or_insert(violation);
            }
        }
    }
    Ok(report)
}

fn count_points(recording: &Path) -> Result<usize, RecordingError> {
    let mut replayed = Replayed::new(0);
    let mut entries = Recording::open(recording)?;
    let mut points = 0;
    while let Some(entry) = entries.next_entry()? {
        points += usize::from(replayed.take(entry));
    }
    Ok(points)
}

/// The latest half, and others by chance.
fn choose<'a>(
    acknowledged: &'a [Acknowledgement],
    most: usize,
    random: &mut Random,
) -> Vec<&'a Acknowledgement> {
    let latest = acknowledged.len().saturating_sub(most / 2);
    let mut chosen: Vec<_> = acknowledged[latest..].iter().collect();
    if latest > 0 {
        chosen.extend((0..most - most / 2).map(|_| &acknowledged[random.index(latest)]));
    }
    chosen
}

/// Opens and recovers the image and asks for every answer again.
fn check<H: Handler>(
    image: &mut Disk,
    config: &Config,
    handler: H,
    asked: &[&Acknowledgement],
) -> Result<(), String> {
    let existed = image.content(mainstay_journal::format::SUPERBLOCK_FILE).is_some();
    if !existed && asked.is_empty() {
        // The journal was not made yet.
        return Ok(());
    }
    let options = OpenOptions { create: false, new_store: StoreId([0; 16]), ..OpenOptions::default() };
    let opened = open(image, &options).map_err(|error| format!("the journal is refused: {error}"))?;
    let geometry = opened.report.geometry;
    let journal = Journal::start(opened.resume, HeapPages::new(geometry.page_bytes, geometry.pages));
    // A retry long after: keys that expired meanwhile are new, so the clock stands still.
    let start = Start {
        config: Config { level: Level::Memory, ..config.clone() },
        handler,
        journal,
        report: &opened.report,
        storage: image,
        catalog: &opened.catalog,
        now: Time::EPOCH,
        roll_back: None,
        progress: None,
    };
    let mut effects = Vec::new();
    let (mut process, recovery) = Process::recover(start, &mut effects)
        .map_err(|error| format!("recovery is refused: {error} ({error:?})"))?;
    let mut catalog = opened.catalog;
    for (number, acknowledged) in asked.iter().enumerate() {
        let token = ReplyToken(number as u64);
        let request = Request {
            token,
            identity: acknowledged.identity(),
            body: acknowledged.request.clone().into_bytes(),
        };
        process.step(recovery.time, Event::Request(request), &mut effects);
        let reply = settle(&mut process, &mut effects, &mut catalog, image, recovery.time, token)
            .ok_or_else(|| format!("there is no answer to {acknowledged:?}"))?;
        judge(acknowledged, &reply)?;
    }
    Ok(())
}

/// Performs what the process asks of its disk until it has replied.
fn settle<H: Handler>(
    process: &mut Process<H, HeapPages>,
    effects: &mut Vec<Effect>,
    catalog: &mut mainstay_journal::catalog::Catalog,
    image: &mut Disk,
    now: Time,
    token: ReplyToken,
) -> Option<Reply> {
    let mut said = None;
    while !effects.is_empty() {
        for effect in std::mem::take(effects) {
            let event = match effect {
                Effect::Reply { token: to, reply } => {
                    if to == token {
                        said = Some(reply);
                    }
                    continue;
                }
                Effect::Disk(DiskEffect::Write { ticket, slot, from, to, place, .. }) => {
                    let file = catalog.file_of(place.segment)?;
                    let bytes = &process.journal().memory().page(slot)[from as usize..to as usize];
                    image.write_durable(&file, place.offset, bytes);
                    DiskEvent::Done { ticket }
                }
                Effect::Disk(DiskEffect::Sync { ticket, .. }) => DiskEvent::Done { ticket },
                Effect::Disk(DiskEffect::Prepare { segment }) => {
                    catalog.prepare(image, segment).ok()?;
                    DiskEvent::Prepared { segment }
                }
                _ => continue,
            };
            process.step(now, Event::Disk(event), effects);
        }
    }
    said
}

/// A repetition gets the first answer; an older one of a numbering client may be told that its answer is gone, an expired key is new.
fn judge(acknowledged: &Acknowledgement, reply: &Reply) -> Result<(), String> {
    match reply {
        Reply::Answer { answer, replayed: true, .. }
            if answer.status == acknowledged.status
                && String::from_utf8_lossy(&answer.body) == acknowledged.answer =>
        {
            Ok(())
        }
        Reply::Evicted if matches!(acknowledged.identity, Some(Named::Client { .. })) => Ok(()),
        reply => Err(format!("{acknowledged:?} is answered {reply:?} after the cut")),
    }
}
