//! The power-loss recorder: every change of a directory in the order of submission, with completions and what was
//! acknowledged to the outside. Format: `docs/power-loss.md`; what reads it back: [`crate::recording`].

use crate::file_storage::FileStorage;
use crate::recording::{Entry, HEADER, Recording, RecordingError};
use mainstay_journal::format::RING_FILE;
use mainstay_journal::storage::{FileEntry, Storage, StorageError};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Entry kinds, as in `docs/power-loss.md`.
pub(crate) mod kind {
    pub(crate) const LIFE: u8 = 1;
    pub(crate) const WHOLE_FILE: u8 = 2;
    pub(crate) const FOUND: u8 = 3;
    pub(crate) const CREATE: u8 = 16;
    pub(crate) const WRITE: u8 = 17;
    pub(crate) const SYNC: u8 = 18;
    pub(crate) const RENAME: u8 = 19;
    pub(crate) const REMOVE: u8 = 20;
    pub(crate) const SYNC_DIRECTORY: u8 = 21;
    pub(crate) const DONE: u8 = 32;
    pub(crate) const ACKNOWLEDGED: u8 = 33;
}

/// How to record a directory.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// The recording; on another file system if its own writes must not disturb. An existing one is continued.
    pub path: PathBuf,
    /// Files that are not recorded: the ring is written through a mapping, unseen.
    pub unseen: Vec<String>,
    /// Which of the journal's syncs and durable writes, counted from the opening, are reported complete without being
    /// done. Only for the check that the checker of power cuts notices.
    #[doc(hidden)]
    pub skip_syncs: Range<u64>,
}

impl RecordOptions {
    /// Records into `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), unseen: vec![RING_FILE.to_owned()], skip_syncs: 0..0 }
    }
}

/// Recording could not begin. The directory was not changed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The recording could not be opened or written.
    #[error("cannot write the recording {path}: {source}", path = path.display())]
    Io {
        /// The recording.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What is there already is no recording that could be continued.
    #[error(transparent)]
    Existing(#[from] RecordingError),
    /// The directory to be recorded could not be read.
    #[error("cannot read the directory to be recorded: {0}")]
    Directory(#[from] StorageError),
}

/// A change about to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Recorded<'a> {
    Create { file: &'a str, bytes: u64 },
    Write { file: &'a str, offset: u64, bytes: &'a [u8], durable: bool },
    Sync { file: &'a str },
    Rename { from: &'a str, to: &'a str },
    Remove { file: &'a str },
    SyncDirectory,
}

/// Writes one recording; clones write the same one. Every entry is handed to the operating system before the call
/// returns, so that kill -9 loses none.
///
/// When the recording itself cannot be written any more, it ends there, which is logged: a prefix of a history is a
/// history.
#[derive(Clone, Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// `None` once writing failed.
    file: Mutex<Option<File>>,
    ticket_next: AtomicU64,
    syncs: AtomicU64,
    skip_syncs: Range<u64>,
}

impl Recorder {
    /// Begins a life: notes what `storage` holds. A new recording gets the content of every file, taken as durable; a
    /// continued one gets what has become of the changes that were under way when the last life ended.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn start(storage: &mut FileStorage, options: &RecordOptions) -> Result<Self, RecordError> {
        let io_error = |source| RecordError::Io { path: options.path.clone(), source };
        let in_doubt = match std::fs::metadata(&options.path) {
            Ok(metadata) if metadata.len() > 0 => Some(changes_in_doubt(&options.path)?),
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io_error(error)),
        };
        // Begun under another name: one whose beginning was cut short by kill -9 would tell of files without their content.
        let begun = match &in_doubt {
            Some(_) => options.path.clone(),
            None => options.path.with_extension("partial"),
        };
        let mut opening = OpenOptions::new();
        opening.append(in_doubt.is_some()).write(true).create(true).truncate(in_doubt.is_none());
        let mut file = opening.open(&begun).map_err(io_error)?;
        let ticket_next = match &in_doubt {
            Some(doubt) => {
                // A last entry cut short by kill -9 goes: what follows it would not parse.
                file.set_len(doubt.valid_bytes).map_err(io_error)?;
                doubt.ticket_next
            }
            None => {
                file.write_all(&HEADER).map_err(io_error)?;
                0
            }
        };
        let recorder = Self {
            shared: Arc::new(Shared {
                file: Mutex::new(Some(file)),
                ticket_next: AtomicU64::new(ticket_next),
                syncs: AtomicU64::new(0),
                skip_syncs: options.skip_syncs.clone(),
            }),
        };
        let files: Vec<_> =
            storage.list()?.into_iter().filter(|file| !options.unseen.contains(&file.name)).collect();
        recorder.append(&life(&files));
        match in_doubt {
            None => {
                for file in &files {
                    let mut bytes = vec![0; usize::try_from(file.bytes).expect("files fit in memory")];
                    storage.read(&file.name, 0, &mut bytes)?;
                    recorder.record_whole_file(&file.name, &bytes);
                }
                std::fs::rename(&begun, &options.path).map_err(io_error)?;
            }
            Some(doubt) => {
                for (file, offset, length) in doubt.writes {
                    let Some(present) = files.iter().find(|present| present.name == file) else {
                        continue;
                    };
                    let end = present.bytes.min(offset + length);
                    if end > offset {
                        let mut bytes =
                            vec![0; usize::try_from(end - offset).expect("a write fits in memory")];
                        storage.read(&file, offset, &mut bytes)?;
                        recorder.append(&found(&file, offset, &bytes));
                    }
                }
            }
        }
        Ok(recorder)
    }

    /// Notes that `tag` was acknowledged to the outside at level `Disk`. Call it before the acknowledgement leaves.
    pub fn acknowledged(&self, tag: &[u8]) {
        let mut body = vec![kind::ACKNOWLEDGED];
        put_bytes(&mut body, tag);
        self.append(&body);
    }

    /// Notes a change about to be made; [`Recorder::end`] says how it went.
    pub(crate) fn begin(&self, change: &Recorded<'_>) -> u64 {
        let ticket = self.shared.ticket_next.fetch_add(1, Ordering::Relaxed);
        self.append(&change_body(ticket, change));
        ticket
    }

    /// Notes that a change is complete, or has failed and may have happened in part.
    pub(crate) fn end(&self, ticket: u64, done: bool) {
        let mut body = vec![kind::DONE];
        body.extend_from_slice(&ticket.to_le_bytes());
        body.push(u8::from(done));
        self.append(&body);
    }

    /// Notes a file that another process wrote and synced.
    pub(crate) fn record_whole_file(&self, file: &str, bytes: &[u8]) {
        let mut body = vec![kind::WHOLE_FILE];
        put_name(&mut body, file);
        put_bytes(&mut body, bytes);
        self.append(&body);
    }

    /// Whether the sync or durable write now due is one to be left out; counts it.
    pub(crate) fn skips_sync(&self) -> bool {
        let number = self.shared.syncs.fetch_add(1, Ordering::Relaxed);
        self.shared.skip_syncs.contains(&number)
    }

    fn append(&self, body: &[u8]) {
        let mut file = self.shared.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that times never go back along a recording.
        let stamp = monotonic_ns().to_le_bytes();
        let mut frame = Vec::with_capacity(8 + stamp.len() + body.len());
        let length = u32::try_from(stamp.len() + body.len()).expect("an entry is below 4 GiB");
        let crc = crc32c::crc32c_append(crc32c::crc32c(&stamp), body);
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(&crc.to_le_bytes());
        frame.extend_from_slice(&stamp);
        frame.extend_from_slice(body);
        if let Some(open) = file.as_mut()
            && let Err(error) = open.write_all(&frame)
        {
            tracing::error!(%error, "the power-loss recording ends here: it cannot be written");
            *file = None;
        }
    }
}

/// Time since the machine was started, in nanoseconds: the same clock for all its processes.
fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written into a live struct of the right type.
    let outcome = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    assert_eq!(outcome, 0, "every Linux has this clock");
    let part = |part: i64| u64::try_from(part).expect("this clock begins at zero");
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// What a recording leaves open at its end.
struct InDoubt {
    valid_bytes: u64,
    ticket_next: u64,
    /// File, offset and length of the writes that were begun and not reported complete.
    writes: Vec<(String, u64, u64)>,
}

fn changes_in_doubt(path: &Path) -> Result<InDoubt, RecordingError> {
    let mut recording = Recording::open(path)?;
    let mut open = BTreeMap::new();
    let mut ticket_next = 0;
    while let Some(entry) = recording.next_entry()? {
        match entry {
            Entry::Life { .. } => open.clear(),
            Entry::Write { ticket, file, offset, bytes, .. } => {
                ticket_next = ticket_next.max(ticket + 1);
                open.insert(ticket, (file, offset, bytes.len() as u64));
            }
            Entry::Done { ticket, done: true } => {
                open.remove(&ticket);
            }
            other => {
                ticket_next = other.ticket().map_or(ticket_next, |ticket| ticket_next.max(ticket + 1));
            }
        }
    }
    Ok(InDoubt { valid_bytes: recording.position(), ticket_next, writes: open.into_values().collect() })
}

fn life(files: &[FileEntry]) -> Vec<u8> {
    let mut body = vec![kind::LIFE];
    let count = u32::try_from(files.len()).expect("a directory has fewer than 2^32 files");
    body.extend_from_slice(&count.to_le_bytes());
    for file in files {
        put_name(&mut body, &file.name);
        body.extend_from_slice(&file.bytes.to_le_bytes());
    }
    body
}

fn found(file: &str, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut body = vec![kind::FOUND];
    put_name(&mut body, file);
    body.extend_from_slice(&offset.to_le_bytes());
    put_bytes(&mut body, bytes);
    body
}

fn change_body(ticket: u64, change: &Recorded<'_>) -> Vec<u8> {
    let begin = |kind: u8| {
        let mut body = vec![kind];
        body.extend_from_slice(&ticket.to_le_bytes());
        body
    };
    match *change {
        Recorded::Create { file, bytes } => {
            let mut body = begin(kind::CREATE);
            put_name(&mut body, file);
            body.extend_from_slice(&bytes.to_le_bytes());
            body
        }
        Recorded::Write { file, offset, bytes, durable } => {
            let mut body = begin(kind::WRITE);
            put_name(&mut body, file);
            body.extend_from_slice(&offset.to_le_bytes());
            body.push(u8::from(durable));
            put_bytes(&mut body, bytes);
            body
        }
        Recorded::Sync { file } => {
            let mut body = begin(kind::SYNC);
            put_name(&mut body, file);
            body
        }
        Recorded::Rename { from, to } => {
            let mut body = begin(kind::RENAME);
            put_name(&mut body, from);
            put_name(&mut body, to);
            body
        }
        Recorded::Remove { file } => {
            let mut body = begin(kind::REMOVE);
            put_name(&mut body, file);
            body
        }
        Recorded::SyncDirectory => begin(kind::SYNC_DIRECTORY),
    }
}

fn put_name(body: &mut Vec<u8>, name: &str) {
    let length = u16::try_from(name.len()).expect("file names are below 64 KiB");
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(name.as_bytes());
}

fn put_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("recorded bytes are below 4 GiB");
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(bytes);
}
