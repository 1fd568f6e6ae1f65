//! A node's directory: the group's record, a small file that is replaced as a whole, and the regions' records, in one journal.
//!
//! ```text
//!   DIRECTORY/journal/   the journal, its lock, its ring        one instance for each region
//!   DIRECTORY/group      the last record of the group
//!   DIRECTORY/boot       in which run of the machine it was used last
//!   DIRECTORY/left       it is used no more (retired.rs)
//! ```
//!
//! A thread waits for the disk: the node itself never does. At level process a region's record is safe as soon as it is in the ring. While no page
//! of the ring is free, records go to that thread, which waits in the node's stead. A record that is longer than a page is kept in parts.

use crate::input::{DiskDone, Input};
use mainstay_disk::log::{Log, SealError};
use mainstay_disk::open::{OpenDisk, OpenDiskError, Options};
use mainstay_disk::replace::replace;
use mainstay_journal::format::SUPERBLOCK_FILE;
use mainstay_journal::journal::{AppendError, Appended};
use mainstay_journal::reader::{ReadError, Reader};
use mainstay_journal::record::Kind;
use mainstay_region::effect::RecordNumber;
use mainstay_replica::config::Stored;
use mainstay_replica::definition::RegionId;
use mainstay_types::id::{Incarnation, InstanceId, Lsn, StoreId};
use mainstay_types::level::Level;
use mainstay_types::time::Time;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// The journal's folder in a node's directory.
const JOURNAL: &str = "journal";

/// The file of the group's record.
const RECORD: &str = "group";

/// The file that names the run of the machine.
const BOOT: &str = "boot";

/// A region's record in the journal.
const WHOLE: Kind = Kind::FIRST_USER;

/// The beginning of one that is too long for a page,
const FIRST_PART: Kind = Kind(Kind::FIRST_USER.0 + 1);

/// what follows it,
const NEXT_PART: Kind = Kind(Kind::FIRST_USER.0 + 2);

/// and its end. A record that a crash cut off has none, and nobody was told that it is safe.
const LAST_PART: Kind = Kind(Kind::FIRST_USER.0 + 3);

/// Records that wait for a page of the ring, in bytes. Beyond, the node takes in nothing that leads to more.
const BEHIND_BYTES_MAX: usize = 64 << 20;

/// A disk whose write or sync takes so long: its node keeps to itself, so that the others go on without it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The directory cannot be used. Nothing that was durable is lost.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The journal.
    #[error(transparent)]
    Open(#[from] OpenDiskError),
    /// The journal cannot be read.
    #[error("the journal cannot be read: {0}")]
    Read(#[from] ReadError),
    /// The directory is a service's, whose files would be among the node's.
    #[error(
        "{directory} is the directory of a service, and not of a node. Nothing was changed. Name another one, which may be new",
        directory = directory.display()
    )]
    OfService {
        /// The directory.
        directory: PathBuf,
    },
    /// A file beside the journal.
    #[error("cannot use {path}: {source}", path = path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What the thread is asked to do.
#[derive(Debug)]
enum Job {
    Persist {
        ticket: u64,
        bytes: Vec<u8>,
    },
    Append {
        parts: Parts,
        level: Level,
        region: RegionId,
        record: RecordNumber,
    },
    Commit {
        end: Lsn,
        region: RegionId,
        record: RecordNumber,
    },
    /// When all up to `end` is durable, nothing before `first` is needed.
    Trim {
        end: Lsn,
        first: Lsn,
    },
}

/// What is left of a record to be appended.
#[derive(Debug)]
struct Parts {
    bytes: Vec<u8>,
    at: usize,
    part_bytes_max: usize,
}

impl Parts {
    /// Appends part by part, until all is appended or one cannot be; gives back the end of the last.
    fn append(
        &mut self,
        region: RegionId,
        append: impl Fn(Kind, InstanceId, &[&[u8]]) -> Result<Appended, AppendError>,
    ) -> Result<Lsn, AppendError> {
        loop {
            let end = self.bytes.len().min(self.at + self.part_bytes_max);
            let kind = match (self.at == 0, end == self.bytes.len()) {
                (true, true) => WHOLE,
                (true, false) => FIRST_PART,
                (false, false) => NEXT_PART,
                (false, true) => LAST_PART,
            };
            let appended = append(kind, InstanceId(u64::from(region.0)), &[&self.bytes[self.at..end]])?;
            self.at = end;
            if end == self.bytes.len() {
                return Ok(appended.end);
            }
        }
    }
}

/// How far the thread is.
#[derive(Debug, Default)]
struct Progress {
    jobs_done: AtomicU64,
    /// Writes that ended, of whichever job: with each the disk has got on, however much is still to be done.
    steps: AtomicU64,
    /// Bytes of records that wait for a page.
    behind_bytes: AtomicUsize,
}

/// The directory, locked as long as this exists.
#[derive(Debug)]
pub(crate) struct Store {
    directory: PathBuf,
    log: Log,
    part_bytes_max: usize,
    progress: Arc<Progress>,
    jobs_asked: u64,
    /// How many steps and jobs were done when that was looked at last, and since when it was so many.
    seen: ((u64, u64), Time),
    jobs: Option<mpsc::Sender<Job>>,
    /// The group's last record of this step, with its ticket.
    persisting: Option<(u64, Vec<u8>)>,
    /// Where the journal ended when the last checkpoints began.
    checkpoints_at: Option<Lsn>,
    thread: Option<JoinHandle<()>>,
    /// The store's identity.
    pub(crate) id: StoreId,
    /// The life that has begun now, above all earlier ones.
    pub(crate) life: Incarnation,
    /// The machine was restarted since the store's last life, which did not end cleanly: of what was safe at level process, some may be lost.
    pub(crate) power_lost: bool,
}

impl Store {
    /// Opens the directory, or makes it, and reads what earlier lives kept. What the disk has done comes to `done`.
    pub(crate) fn open(
        directory: &Path,
        hint: &str,
        done: tokio::sync::mpsc::UnboundedSender<Input>,
    ) -> Result<(Self, Stored), StoreError> {
        if directory.join(SUPERBLOCK_FILE).exists() && !directory.join(JOURNAL).exists() {
            return Err(StoreError::OfService { directory: directory.to_owned() });
        }
        let options = Options { create_directory: true, hint: hint.to_owned(), ..Options::default() };
        Self::open_with(directory, &options, done)
    }

    fn open_with(
        directory: &Path,
        options: &Options,
        done: tokio::sync::mpsc::UnboundedSender<Input>,
    ) -> Result<(Self, Stored), StoreError> {
        let mut opened: OpenDisk = mainstay_disk::open::open(&directory.join(JOURNAL), options)?;
        let report = &opened.report;
        let (id, life) = (report.store, Incarnation(report.generation.0));
        let (first, end) = (report.first, report.end);
        // Small enough for a page whatever its header takes, and large enough that parts are rare.
        let part_bytes_max = report.geometry.page_bytes as usize / 2;
        let power_lost = !report.created && !report.sealed && (report.ring_missing || restarted(directory)?);
        let catalog = opened.disk.catalog();
        let mut reader = Reader::new(&mut opened.storage, &catalog, first, end);
        let mut records = Vec::new();
        let mut parts: HashMap<InstanceId, Vec<u8>> = HashMap::new();
        while let Some(record) = reader.next()? {
            let region = || u16::try_from(record.instance.0).expect("regions have numbers of 16 bits");
            if record.kind == WHOLE {
                records.push((RegionId(region()), record.payload.to_vec()));
            } else if record.kind == FIRST_PART {
                parts.insert(record.instance, record.payload.to_vec());
            } else if let Some(begun) = parts.get_mut(&record.instance) {
                begun.extend_from_slice(record.payload);
                if record.kind == LAST_PART {
                    records.push((RegionId(region()), std::mem::take(begun)));
                }
            }
        }
        let path = directory.join(RECORD);
        let record = match std::fs::read(&path) {
            Ok(record) => Some(record),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(StoreError::Record { path, source }),
        };
        let log = Log::new(opened);
        let (jobs, queue) = mpsc::channel();
        let progress = Arc::new(Progress::default());
        let thread = std::thread::Builder::new()
            .name("node-disk".to_owned())
            .spawn({
                let (log, progress) = (log.clone(), Arc::clone(&progress));
                let directory = directory.to_owned();
                move || perform(&log, &directory, &progress, &queue, &done)
            })
            .map_err(|source| StoreError::Record { path, source })?;
        let store = Self {
            directory: directory.to_owned(),
            log,
            part_bytes_max,
            progress,
            jobs_asked: 0,
            seen: ((0, 0), Time::EPOCH),
            jobs: Some(jobs),
            persisting: None,
            checkpoints_at: None,
            thread: Some(thread),
            id,
            life,
            power_lost,
        };
        Ok((store, Stored { record, records }))
    }

    /// Writes down in which run of the machine the directory is used: before anything is appended that may be lost with it.
    pub(crate) fn begin(&self) -> Result<(), StoreError> {
        let Some(boot) = boot() else { return Ok(()) };
        replace(&self.directory, BOOT, boot.as_bytes())
            .map_err(|source| StoreError::Record { path: self.directory.join(BOOT), source })
    }

    /// Appends a region's record; `true` if it is safe at that level already, else [`DiskDone::Appended`] comes.
    pub(crate) fn append(
        &mut self,
        level: Level,
        region: RegionId,
        record: RecordNumber,
        bytes: Vec<u8>,
    ) -> Result<bool, AppendError> {
        let mut parts = Parts { bytes, at: 0, part_bytes_max: self.part_bytes_max };
        // Behind those that wait, if any do.
        let appended = match self.progress.behind_bytes.load(Ordering::Acquire) {
            0 => parts.append(region, |kind, instance, part| self.log.try_append(kind, instance, part)),
            _ => Err(AppendError::Stalled),
        };
        match appended {
            Ok(end) if level == Level::Disk => self.ask(Job::Commit { end, region, record }),
            Ok(_) => return Ok(true),
            Err(AppendError::Stalled) => {
                self.progress.behind_bytes.fetch_add(parts.bytes.len().max(1), Ordering::AcqRel);
                self.ask(Job::Append { parts, level, region, record });
            }
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    /// Whether nothing may be taken in that leads to more records.
    pub(crate) fn is_behind(&self) -> bool {
        self.progress.behind_bytes.load(Ordering::Relaxed) > BEHIND_BYTES_MAX
    }

    /// Whether the disk does not get on with what it was asked for; to be asked once in a while.
    pub(crate) fn is_stuck(&mut self, now: Time) -> bool {
        let jobs_done = self.progress.jobs_done.load(Ordering::Acquire);
        let done = (self.progress.steps.load(Ordering::Acquire), jobs_done);
        if jobs_done == self.jobs_asked || done != self.seen.0 {
            self.seen = (done, now);
        }
        now.since(self.seen.1) > PATIENCE
    }

    /// Replaces the group's record, past a sync, behind the step; [`DiskDone::Persisted`] comes. The last of a step holds all of those before, and is written
    /// alone: a view begins behind one write, and not behind one that names it and another that says that the regions have what it begins with.
    pub(crate) fn persist(&mut self, ticket: u64, bytes: Vec<u8>) {
        self.persisting = Some((ticket, bytes));
    }

    /// A step is over.
    pub(crate) fn flush(&mut self) {
        if let Some((ticket, bytes)) = self.persisting.take() {
            self.ask(Job::Persist { ticket, bytes });
        }
    }

    /// Checkpoints of all regions follow: what is before them may go when they are whole.
    pub(crate) fn checkpoint_begins(&mut self) {
        self.checkpoints_at = Some(self.log.end());
    }

    /// Drops what is before the last checkpoints, behind a sync of them: at level process too, since power may go while they are in the ring alone.
    pub(crate) fn trim(&mut self) {
        if let Some(first) = self.checkpoints_at.take() {
            self.ask(Job::Trim { end: self.log.end(), first });
        }
    }

    fn ask(&mut self, job: Job) {
        self.jobs_asked += 1;
        if let Some(jobs) = &self.jobs {
            // The thread ends only when asked to, or after it has said that the disk failed.
            let _ = jobs.send(job);
        }
    }

    /// Bytes of journal that the next start reads.
    pub(crate) fn journal_bytes(&self) -> u64 {
        self.log.end().0 - self.log.first().0
    }

    /// The clean stop.
    pub(crate) fn seal(mut self) -> Result<(), SealError> {
        self.end_thread();
        self.log.seal()
    }

    fn end_thread(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.end_thread();
    }
}

fn perform(
    log: &Log,
    directory: &Path,
    progress: &Progress,
    queue: &mpsc::Receiver<Job>,
    done: &tokio::sync::mpsc::UnboundedSender<Input>,
) {
    let tell = |told| done.send(Input::Disk(told)).is_ok();
    while let Ok(first) = queue.recv() {
        let mut last_of_region: BTreeMap<RegionId, RecordNumber> = BTreeMap::new();
        let (mut commit_to, mut trim_to) = (None, None);
        let mut jobs: u64 = 0;
        // Whatever waits is made durable by one sync, and of the group's records the last: it holds all of those before.
        let jobs_waiting: Vec<Job> = std::iter::once(first).chain(queue.try_iter()).collect();
        let last_ticket = jobs_waiting.iter().rev().find_map(|job| match job {
            Job::Persist { ticket, .. } => Some(*ticket),
            _ => None,
        });
        for job in jobs_waiting {
            jobs += 1;
            match job {
                Job::Persist { ticket, .. } if Some(ticket) != last_ticket => {}
                Job::Persist { ticket, bytes } => {
                    let told = match replace(directory, RECORD, &bytes) {
                        Ok(()) => DiskDone::Persisted { ticket },
                        Err(error) => DiskDone::Failed { what: format!("the group's record: {error}") },
                    };
                    if !tell(told) {
                        return;
                    }
                    progress.steps.fetch_add(1, Ordering::Release);
                }
                Job::Append { mut parts, level, region, record } => {
                    let appended =
                        parts.append(region, |kind, instance, part| log.append(kind, instance, part));
                    let end = match appended {
                        Ok(end) => end,
                        Err(error) => {
                            tell(DiskDone::Failed { what: format!("the regions' journal: {error}") });
                            return;
                        }
                    };
                    progress.behind_bytes.fetch_sub(parts.bytes.len().max(1), Ordering::AcqRel);
                    progress.steps.fetch_add(1, Ordering::Release);
                    if level == Level::Disk {
                        commit_to = commit_to.max(Some(end));
                        last_of_region.insert(region, record);
                    } else if !tell(DiskDone::Appended { region, record }) {
                        return;
                    }
                }
                Job::Commit { end, region, record } => {
                    commit_to = commit_to.max(Some(end));
                    last_of_region.insert(region, record);
                }
                // Its end may be before that of an append which had to wait.
                Job::Trim { end, first } => (commit_to, trim_to) = (commit_to.max(Some(end)), Some(first)),
            }
        }
        let Some(end) = commit_to else {
            progress.jobs_done.fetch_add(jobs, Ordering::Release);
            continue;
        };
        if let Err(error) = log.commit(end, Level::Disk) {
            tell(DiskDone::Failed { what: format!("the regions' journal: {error}") });
            return;
        }
        progress.jobs_done.fetch_add(jobs, Ordering::Release);
        if let Some(first) = trim_to {
            log.trim(first);
        }
        for (region, record) in last_of_region {
            if !tell(DiskDone::Appended { region, record }) {
                return;
            }
        }
    }
}

/// The present run of the machine, where the kernel tells.
fn boot() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

/// Whether the directory was last used in another run of the machine.
fn restarted(directory: &Path) -> Result<bool, StoreError> {
    let path = directory.join(BOOT);
    match std::fs::read_to_string(&path) {
        Ok(last) => Ok(boot().is_some_and(|boot| boot != last)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(StoreError::Record { path, source }),
    }
}

#[cfg(test)]
mod tests;
