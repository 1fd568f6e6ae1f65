//! The journal alone against the disk: appends, flushes, trims and seals of random records, crashes everywhere.
//!
//! What must hold: after every opening the records are a prefix of what was appended, at least as long as the durable mark
//! said; after a kill alone it is all of it. Source: docs/journal-format.md and the properties of a write-ahead log (Mohan
//! et al. 1992).

use crate::disk::{Disk, SyncBegun};
use crate::properties::{Property, Violation};
use crate::random::Random;
use crate::reach::{Reach, Reached};
use crate::ring::{Left, Ring};
use crate::trace::Trace;
use crate::world::Ended;
use mainstay_journal::catalog::Catalog;
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::format::RING_FILE;
use mainstay_journal::geometry::{BLOCK_BYTES, Geometry};
use mainstay_journal::journal::{AppendError, Health, Journal};
use mainstay_journal::memory::{PageMemory, ring_bytes};
use mainstay_journal::open::{OpenError, Opened, open};
use mainstay_journal::options::OpenOptions;
use mainstay_journal::reader::{ReadError, Reader};
use mainstay_journal::record::Kind;
use mainstay_journal::storage::{Failure, Storage};
use mainstay_types::id::{InstanceId, Lsn, StoreId};
use mainstay_types::rules::Rules;

/// The rare branches that this machine can reach.
pub(crate) const BRANCHES: &[Reach] = &[
    Reach::Kill,
    Reach::PowerCut,
    Reach::CrashInOpen,
    Reach::TornWrite,
    Reach::SectorLost,
    Reach::NameLost,
    Reach::Stall,
    Reach::GroupCommitJoin,
    Reach::FlushInOneWrite,
    Reach::FlushBySync,
    Reach::HalfHandedOver,
    Reach::SegmentRecycled,
    Reach::TailCut,
    Reach::Trim,
    Reach::Seal,
    Reach::OpenedSealed,
    Reach::DiskFull,
    Reach::FailedSync,
    Reach::Poisoned,
    Reach::OpenFailed,
];

const STEPS_MIN: u64 = 500;
const CRASHES_MIN: u64 = 3;

/// One run.
pub(crate) struct JournalWorld {
    random: Random,
    trace: Trace,
    reached: Reached,
    disk: Disk,
    options: OpenOptions,
    left: Left,
    ring_images: Vec<Vec<u8>>,
    /// What was appended: address, end, payload.
    records: Vec<(Lsn, Lsn, Vec<u8>)>,
    /// The highest durable mark that was published.
    promised: Lsn,
    killed_only: bool,
    steps: u64,
    crashes: u64,
    failed_syncs: u64,
    cuts: u64,
}

struct Running {
    journal: Journal<Ring>,
    catalog: Catalog,
    under_way: Vec<UnderWay>,
}

enum UnderWay {
    Write { effect: DiskEffect, bytes: Vec<u8>, file: String },
    Sync { effect: DiskEffect, files: Vec<SyncBegun> },
    Duty(DiskEffect),
}

impl JournalWorld {
    pub(crate) fn new(seed: u64, rules: Rules, trace: Trace) -> Self {
        let mut random = Random::new(seed ^ 0x6A6F_7572_6E61_6C00);
        let options = OpenOptions {
            geometry: Geometry {
                page_bytes: drawn_page_bytes(seed),
                pages: random.between(1, 4) as u16,
                segment_pages: random.between(1, 4) as u32,
            },
            new_store: StoreId(random.draw().to_le_bytes().repeat(2).try_into().expect("16 bytes")),
            stripes: crate::world::drawn_stripes(seed),
            create: true,
            rules,
            buffer_only: false,
            half_bytes_min: BLOCK_BYTES,
            free_segments_max: random.index(4),
        };
        let disk = Disk::new(Random::new(random.draw()));
        let failed_syncs = if random.chance(300) { random.between(1, 30) } else { 0 };
        let cuts = random.between(100, 900);
        Self {
            random,
            trace,
            reached: Reached::default(),
            disk,
            options,
            left: Left::default(),
            ring_images: Vec::new(),
            records: Vec::new(),
            promised: Lsn::ZERO,
            killed_only: true,
            steps: 0,
            crashes: 0,
            failed_syncs,
            cuts,
        }
    }

    pub(crate) fn run(mut self) -> Ended {
        let violation = self.lives().err().map(|violation| (self.steps, violation));
        self.reached.add_disk(self.disk.counts);
        let Self { steps, crashes, reached, trace, .. } = self;
        Ended { steps, crashes, reached, violation, trace }
    }

    fn lives(&mut self) -> Result<(), Violation> {
        while self.steps < STEPS_MIN || self.crashes < CRASHES_MIN {
            self.disk.sync_failures_per_mille = self.failed_syncs;
            let points =
                1 + if self.random.chance(200) { self.random.below(40) } else { self.random.below(500) };
            self.disk.set_fuse(Some(points));
            match self.open()? {
                Some(running) => self.live(running)?,
                None => self.steps += 1,
            }
            self.crash();
        }
        self.disk.set_fuse(None);
        self.disk.full = false;
        self.disk.sync_failures_per_mille = 0;
        self.open()?.map(|_| ()).ok_or_else(|| refused("the last opening fails without a fault".to_owned()))
    }

    /// `None` if the disk failed meanwhile.
    fn open(&mut self) -> Result<Option<Running>, Violation> {
        let opened = match open(&mut self.disk, &self.options) {
            Ok(opened) => opened,
            Err(OpenError::Storage(error)) => {
                let crashed = error.failure == Failure::Crashed;
                self.reached.hit(if crashed { Reach::CrashInOpen } else { Reach::OpenFailed });
                return Ok(None);
            }
            Err(error) => return Err(refused(format!("the journal is refused: {error}"))),
        };
        let Opened { catalog, resume, report } = opened;
        self.trace.line(self.steps, format_args!("opened {report:?}"));
        self.reached.add(Reach::TailCut, u64::from(report.cut.is_some()));
        self.reached.add(Reach::OpenedSealed, u64::from(report.sealed));
        if report.end < self.promised {
            let what = format!("durable up to {} once, found up to {}", self.promised, report.end);
            return Err(Violation::new(Property::AcknowledgedSurvives, what));
        }
        if !self.read_back(&catalog, report.first, report.end)? {
            return Ok(None);
        }
        self.killed_only = true;
        self.promised = report.end;
        let geometry = report.geometry;
        let bytes = ring_bytes(geometry.page_bytes, geometry.pages);
        if self.disk.content(RING_FILE).is_some_and(|ring| ring.len() != bytes)
            && self.disk.remove(RING_FILE).is_err()
        {
            return Ok(None);
        }
        if self.disk.content(RING_FILE).is_none() && self.disk.create(RING_FILE, bytes as u64).is_err() {
            return Ok(None);
        }
        let ring = self.disk.content(RING_FILE).expect("it is there").to_vec();
        self.ring_images = vec![ring.clone()];
        let ring = Ring::new(&ring, geometry.page_bytes, geometry.pages, &self.left);
        let journal = Journal::start(resume, ring);
        Ok(Some(Running { journal, catalog, under_way: Vec::new() }))
    }

    /// What a reader finds is what was appended and not trimmed: all that was promised, then some of the rest. Returns
    /// whether the disk let it read to the end.
    fn read_back(&mut self, catalog: &Catalog, first: Lsn, end: Lsn) -> Result<bool, Violation> {
        let mut found_to = self.records.partition_point(|record| record.0 < first);
        let mut reader = Reader::new(&mut self.disk, catalog, first, end);
        loop {
            let found = match reader.next() {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(ReadError::Storage(_)) => return Ok(false),
                Err(error) => return Err(refused(format!("what was opened cannot be read: {error}"))),
            };
            let expected = self.records.get(found_to);
            if expected.is_none_or(|(lsn, _, payload)| *lsn != found.lsn || payload != found.payload) {
                let what = format!(
                    "the reader finds {} bytes at {}, appended were {:?}",
                    found.payload.len(),
                    found.lsn,
                    expected.map(|record| (record.0, record.2.len()))
                );
                return Err(Violation::new(Property::FailureFree, what));
            }
            found_to += 1;
        }
        if let Some((lsn, record_end, _)) = self.records.get(found_to)
            && (self.killed_only || *record_end <= self.promised)
        {
            let what = format!(
                "the record at {lsn} is gone; it was durable up to {}, and the power has {}",
                self.promised,
                if self.killed_only { "stayed" } else { "gone" }
            );
            return Err(Violation::new(Property::AcknowledgedSurvives, what));
        }
        self.records.truncate(found_to);
        Ok(true)
    }

    fn live(&mut self, mut running: Running) -> Result<(), Violation> {
        let mut effects = Vec::new();
        loop {
            if self.disk.passes_point() {
                break;
            }
            self.steps += 1;
            self.disk.full = if self.disk.full { self.random.chance(900) } else { self.random.chance(3) };
            let Running { journal, .. } = &mut running;
            match self.random.below(100) {
                0..35 => self.append(journal, &mut effects),
                35..55 => {
                    journal.flush(&mut effects);
                }
                55..57 => {
                    // Any record's start, or the end of the last, below the durable mark.
                    let below = self.records.iter().filter(|record| record.0 <= journal.durable()).count();
                    if below > 0 {
                        let first = self.records[self.random.index(below)].0;
                        journal.trim(first, &mut effects);
                    }
                }
                57 if self.random.chance(100)
                    && journal.durable() == journal.end()
                    && !journal.flushing()
                    && journal.seal(&mut effects).is_ok() =>
                {
                    self.reached.hit(Reach::Seal);
                }
                58 => journal.retry(&mut effects),
                59 if self.random.chance(300) => self.ring_images.push(journal.memory().image()),
                _ => self.complete_one(&mut running, &mut effects),
            }
            for effect in effects.drain(..) {
                self.trace.line(self.steps, format_args!("{effect:?}"));
                running.begin(effect, &self.disk);
            }
            self.promise(&running)?;
            let stop = match running.journal.health() {
                Health::Poisoned { .. } => self.random.chance(100),
                Health::Sealed => {
                    running.journal.durable() == running.journal.end() && self.random.chance(300)
                }
                _ => false,
            };
            if stop {
                self.reached.add(
                    Reach::Poisoned,
                    u64::from(matches!(running.journal.health(), Health::Poisoned { .. })),
                );
                break;
            }
        }
        let stats = running.journal.stats();
        self.reached.add(Reach::Stall, stats.stalls);
        self.reached.add(Reach::GroupCommitJoin, stats.flushes_joined);
        self.reached.add(Reach::FlushInOneWrite, stats.flushes_in_one_write);
        self.reached.add(Reach::FlushBySync, stats.syncs);
        self.reached.add(Reach::HalfHandedOver, stats.halves);
        for under_way in std::mem::take(&mut running.under_way) {
            self.leave_undone(under_way);
        }
        Ok(())
    }

    fn append(&mut self, journal: &mut Journal<Ring>, effects: &mut Vec<DiskEffect>) {
        let bytes = match self.random.below(20) {
            0 => self.random.index(journal.record_bytes_max() + 1),
            1..5 => self.random.index(900),
            _ => self.random.index(120),
        };
        let payload: Vec<u8> = (0..bytes).map(|_| self.random.draw() as u8).collect();
        let split = self.random.index(bytes + 1);
        let parts = [&payload[..split], &payload[split..]];
        match journal.append(Kind::FIRST_USER, InstanceId(0), &parts, effects) {
            Ok(appended) => self.records.push((appended.lsn, appended.end, payload)),
            Err(AppendError::TooLarge { .. }) => unreachable!("the payload was drawn to fit"),
            Err(
                AppendError::Stalled
                | AppendError::Full { .. }
                | AppendError::Poisoned { .. }
                | AppendError::Sealed,
            ) => {}
        }
    }

    /// The durable mark is a promise; the bytes behind it must be there now.
    fn promise(&mut self, running: &Running) -> Result<(), Violation> {
        let durable = running.journal.durable();
        let geometry = self.options.geometry;
        let from = self.records.partition_point(|record| record.1 <= self.promised);
        for (lsn, end, payload) in &self.records[from..] {
            if *end > durable {
                break;
            }
            let place = geometry.place_of(lsn.plus(32));
            let held = running
                .catalog
                .file_of(place.segment)
                .is_some_and(|file| self.disk.holds_durably(&file, place.offset, payload));
            if !held {
                let what = format!(
                    "the durable mark is {durable}, but the record at {lsn} would not survive a power cut"
                );
                return Err(Violation::new(Property::StableBeforeRelease, what));
            }
        }
        self.promised = self.promised.max(durable);
        Ok(())
    }

    fn complete_one(&mut self, running: &mut Running, effects: &mut Vec<DiskEffect>) {
        if running.under_way.is_empty() {
            return;
        }
        // Duties are done in order, by one thread; the rest completes in any order.
        let mut place = self.random.index(running.under_way.len());
        if matches!(running.under_way[place], UnderWay::Duty(_)) {
            let first = running.under_way.iter().position(|one| matches!(one, UnderWay::Duty(_)));
            place = first.expect("one was just seen");
        }
        let fails = self.random.chance(self.failed_syncs);
        let failure = Failure::Os(crate::disk::EIO);
        let event = match running.under_way.remove(place) {
            UnderWay::Write { effect: DiskEffect::Write { ticket, place, durable, .. }, bytes, file } => {
                match durable {
                    true if fails => {
                        self.disk.write_and_fail(&file, place.offset, &bytes);
                        DiskEvent::Failed { ticket, failure }
                    }
                    true => {
                        self.disk.write_durable(&file, place.offset, &bytes);
                        DiskEvent::Done { ticket }
                    }
                    false => {
                        self.disk.write_live(&file, place.offset, &bytes);
                        DiskEvent::Done { ticket }
                    }
                }
            }
            UnderWay::Sync { effect: DiskEffect::Sync { ticket, .. }, files } => {
                for sync in &files {
                    if fails {
                        self.disk.fail_sync(sync);
                    } else {
                        self.disk.end_sync(sync);
                    }
                }
                if fails { DiskEvent::Failed { ticket, failure } } else { DiskEvent::Done { ticket } }
            }
            UnderWay::Duty(DiskEffect::Prepare { segment }) => {
                let recycled = running.catalog.free_segments() > 0;
                match running.catalog.prepare(&mut self.disk, segment) {
                    Ok(()) => {
                        self.reached.add(Reach::SegmentRecycled, u64::from(recycled));
                        DiskEvent::Prepared { segment }
                    }
                    Err(error) => DiskEvent::PrepareFailed { segment, failure: error.failure },
                }
            }
            UnderWay::Duty(DiskEffect::Trim { first }) => match running.catalog.trim(&mut self.disk, first) {
                Ok(()) => {
                    self.reached.hit(Reach::Trim);
                    DiskEvent::Trimmed { first }
                }
                Err(error) => DiskEvent::TrimFailed { failure: error.failure },
            },
            _ => unreachable!("each effect is kept as what it is"),
        };
        if !self.disk.crashed() {
            running.journal.step(event, effects);
        }
    }

    fn leave_undone(&mut self, under_way: UnderWay) {
        match under_way {
            UnderWay::Write { effect: DiskEffect::Write { place, .. }, bytes, file } => {
                match self.random.below(3) {
                    0 => {}
                    1 => self.disk.write_torn(&file, place.offset, &bytes),
                    _ => self.disk.write_live(&file, place.offset, &bytes),
                }
            }
            UnderWay::Sync { files, .. } if self.random.coin() => {
                files.iter().for_each(|sync| self.disk.end_sync(sync));
            }
            _ => {}
        }
    }

    fn crash(&mut self) {
        self.disk.set_fuse(None);
        self.crashes += 1;
        if let Some(image) = self.left.borrow_mut().take() {
            self.ring_images.push(image.clone());
            self.disk.replace(RING_FILE, image);
        }
        if !self.random.chance(self.cuts) {
            self.reached.hit(Reach::Kill);
            return;
        }
        self.reached.hit(Reach::PowerCut);
        self.killed_only = false;
        if std::mem::take(&mut self.disk.syncs_of_ring) > 0 {
            self.ring_images = self.disk.content(RING_FILE).map(<[u8]>::to_vec).into_iter().collect();
        }
        self.disk.cut_power();
        if self.disk.content(RING_FILE).is_some() && !self.ring_images.is_empty() {
            let image = self.ring_images.swap_remove(self.random.index(self.ring_images.len()));
            self.ring_images = vec![image.clone()];
            self.disk.replace(RING_FILE, image);
        }
    }
}

impl Running {
    fn begin(&mut self, effect: DiskEffect, disk: &Disk) {
        self.under_way.push(match effect {
            DiskEffect::Write { slot, from, to, place, .. } => {
                let bytes = self.journal.memory().page(slot)[from as usize..to as usize].to_vec();
                let file = self.catalog.file_of(place.segment).expect("only prepared segments are written");
                UnderWay::Write { effect, bytes, file }
            }
            DiskEffect::Sync { first_segment, last_segment, .. } => {
                let files = (first_segment..=last_segment)
                    .filter_map(|segment| disk.begin_sync(&self.catalog.file_of(segment)?))
                    .collect();
                UnderWay::Sync { effect, files }
            }
            DiskEffect::Prepare { .. } | DiskEffect::Trim { .. } => UnderWay::Duty(effect),
        });
    }
}

fn refused(what: String) -> Violation {
    Violation::new(Property::Recovers, what)
}

/// Mostly the smallest pages, of which much happens in few steps; the others are large enough for their halves to go to the disk on their own. Beside the
/// other draws, as [`crate::world::drawn_stripes`].
fn drawn_page_bytes(seed: u64) -> u32 {
    if Random::new(seed ^ 0x9A6E_5123).chance(250) { 4 * BLOCK_BYTES } else { BLOCK_BYTES }
}
