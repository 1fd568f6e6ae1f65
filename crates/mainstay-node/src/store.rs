//! A node's directory: the group's record, a small file that is replaced as a whole, and the regions' records, in one journal.
//!
//! ```text
//!   DIRECTORY/journal/   the journal, its lock, its ring        one instance for each region
//!   DIRECTORY/group      the last record of the group
//! ```
//!
//! A thread waits for the disk: the node itself never does. At level process a region's record is safe as soon as it is in the ring.

use crate::input::{DiskDone, Input};
use mainstay_disk::log::{Log, SealError};
use mainstay_disk::open::{OpenDisk, OpenDiskError, Options};
use mainstay_journal::journal::AppendError;
use mainstay_journal::reader::{ReadError, Reader};
use mainstay_journal::record::Kind;
use mainstay_region::effect::RecordNumber;
use mainstay_replica::config::Stored;
use mainstay_replica::definition::RegionId;
use mainstay_types::id::{Incarnation, InstanceId, Lsn, StoreId};
use mainstay_types::level::Level;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// The journal's folder in a node's directory.
const JOURNAL: &str = "journal";

/// The file of the group's record.
const RECORD: &str = "group";

/// A region's record in the journal.
const REGION_RECORD: Kind = Kind::FIRST_USER;

/// The directory cannot be used. Nothing that was durable is lost.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The journal.
    #[error(transparent)]
    Open(#[from] OpenDiskError),
    /// The journal cannot be read.
    #[error("the journal cannot be read: {0}")]
    Read(#[from] ReadError),
    /// The group's record.
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
    Persist { ticket: u64, bytes: Vec<u8> },
    Commit { end: Lsn, region: RegionId, record: RecordNumber },
}

/// The directory, locked as long as this exists.
#[derive(Debug)]
pub(crate) struct Store {
    log: Log,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The store's identity.
    pub(crate) id: StoreId,
    /// The life that has begun now, above all earlier ones.
    pub(crate) life: Incarnation,
}

impl Store {
    /// Opens the directory, or makes it, and reads what earlier lives kept. What the disk has done comes to `done`.
    pub(crate) fn open(
        directory: &Path,
        hint: &str,
        done: tokio::sync::mpsc::UnboundedSender<Input>,
    ) -> Result<(Self, Stored), StoreError> {
        let options = Options { create_directory: true, hint: hint.to_owned(), ..Options::default() };
        let mut opened: OpenDisk = mainstay_disk::open::open(&directory.join(JOURNAL), &options)?;
        let report = &opened.report;
        let (id, life) = (report.store, Incarnation(report.generation.0));
        let (first, end) = (report.first, report.end);
        let catalog = opened.disk.catalog();
        let mut reader = Reader::new(&mut opened.storage, &catalog, first, end);
        let mut records = Vec::new();
        while let Some(record) = reader.next()? {
            if record.kind == REGION_RECORD {
                let region = u16::try_from(record.instance.0).expect("regions have numbers of 16 bits");
                records.push((RegionId(region), record.payload.to_vec()));
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
        let thread = std::thread::Builder::new()
            .name("node-disk".to_owned())
            .spawn({
                let (log, directory) = (log.clone(), directory.to_owned());
                move || perform(&log, &directory, &queue, &done)
            })
            .map_err(|source| StoreError::Record { path, source })?;
        let store = Self { log, jobs: Some(jobs), thread: Some(thread), id, life };
        Ok((store, Stored { record, records }))
    }

    /// Appends a region's record; `true` if it is safe at that level already, else [`DiskDone::Appended`] comes.
    pub(crate) fn append(
        &self,
        level: Level,
        region: RegionId,
        record: RecordNumber,
        bytes: &[u8],
    ) -> Result<bool, AppendError> {
        let appended = self.log.append(REGION_RECORD, InstanceId(u64::from(region.0)), &[bytes])?;
        if level == Level::Disk {
            self.ask(Job::Commit { end: appended.end, region, record });
        }
        Ok(level != Level::Disk)
    }

    /// Replaces the group's record, past a sync; [`DiskDone::Persisted`] comes.
    pub(crate) fn persist(&self, ticket: u64, bytes: Vec<u8>) {
        self.ask(Job::Persist { ticket, bytes });
    }

    fn ask(&self, job: Job) {
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
    queue: &mpsc::Receiver<Job>,
    done: &tokio::sync::mpsc::UnboundedSender<Input>,
) {
    let tell = |told| done.send(Input::Disk(told)).is_ok();
    while let Ok(first) = queue.recv() {
        let mut last_of_region: std::collections::BTreeMap<RegionId, RecordNumber> =
            std::collections::BTreeMap::new();
        let mut commit_to = None;
        // Whatever waits is made durable by one sync.
        for job in std::iter::once(first).chain(queue.try_iter()) {
            match job {
                Job::Persist { ticket, bytes } => {
                    let told = match replace(directory, &bytes) {
                        Ok(()) => DiskDone::Persisted { ticket },
                        Err(error) => DiskDone::Failed { what: format!("the group's record: {error}") },
                    };
                    if !tell(told) {
                        return;
                    }
                }
                Job::Commit { end, region, record } => {
                    commit_to = Some(end);
                    last_of_region.insert(region, record);
                }
            }
        }
        let Some(end) = commit_to else { continue };
        if let Err(error) = log.commit(end, Level::Disk) {
            tell(DiskDone::Failed { what: format!("the regions' journal: {error}") });
            return;
        }
        for (region, record) in last_of_region {
            if !tell(DiskDone::Appended { region, record }) {
                return;
            }
        }
    }
}

/// Puts the record in the place of the one before: after a crash at any moment, one of the two is there, whole.
fn replace(directory: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = directory.join(format!("{RECORD}.partial"));
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&partial, directory.join(RECORD))?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_gives_back_what_was_kept_in_it() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let (done, mut told) = tokio::sync::mpsc::unbounded_channel();
        let (store, stored) = Store::open(folder.path(), "", done.clone()).expect("it is made");
        assert!(stored.record.is_none() && stored.records.is_empty());
        let (first_life, id) = (store.life, store.id);
        let region = RegionId(1);
        assert_eq!(store.append(Level::Process, region, RecordNumber(1), b"one"), Ok(true));
        assert_eq!(store.append(Level::Disk, region, RecordNumber(2), b"two"), Ok(false));
        store.persist(7, b"record".to_vec());
        let mut seen = Vec::new();
        while seen.len() < 2 {
            match told.blocking_recv() {
                Some(Input::Disk(done)) => seen.push(done),
                other => panic!("unexpected {other:?}"),
            }
        }
        assert!(seen.contains(&DiskDone::Persisted { ticket: 7 }));
        assert!(seen.contains(&DiskDone::Appended { region, record: RecordNumber(2) }));
        // As after a crash: no seal.
        drop(store);
        let (store, stored) = Store::open(folder.path(), "", done).expect("it is there");
        assert_eq!(stored.record.as_deref(), Some(&b"record"[..]));
        assert_eq!(stored.records, [(region, b"one".to_vec()), (region, b"two".to_vec())]);
        assert!(store.life > first_life && store.id == id);
    }
}
