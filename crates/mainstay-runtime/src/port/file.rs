//! Outputs as lines of a file, each exactly once: the port is its own receiver, and the file can be asked.
//!
//! ```text
//!   file:     │ acknowledged: outputs up to n, synced │ tail: written by a life that was killed, or nothing │
//!             0                            acknowledged_bytes                                       length
//! ```
//!
//! A line is written and synced, then the position beside the file (see `sidecar.rs`) is written and synced, then
//! `Delivered` is reported. After a crash the process releases again what it has no acknowledgement of: outputs up to n are
//! answered at once; the bytes of later ones are compared with the tail and completed. Any other tail is refused.

use crate::port::sidecar::{Position, Sidecar, SidecarError, folder_of, sync_folder_of};
use crate::port::{Carry, PortStatus, Report, Sent};
use mainstay_process::effect::Output;
use mainstay_process::handler::Outcome;
use mainstay_types::id::{OutputId, StoreId};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a full disk is waited for before it is tried again.
const NO_SPACE_PAUSE: Duration = Duration::from_secs(1);

/// How long the lock of a writer that has just been killed may take to be released: a checkpoint's child holds a copy of it
/// for a moment.
const LOCK_RELEASE_MAX: Duration = Duration::from_millis(500);

/// The pause between two attempts at the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// The most lines that share one sync.
const BATCH_OUTPUTS_MAX: usize = 1024;

/// The file of a port cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenFileError {
    /// Opening, reading or locking it failed.
    #[error("`{path}` cannot be opened for appending")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another process writes it.
    #[error(
        "`{path}` is being written by another process: one file has one writer. Stop that one, or name another file"
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// It belongs to the service of another directory.
    #[error(
        "`{path}` is written by the service of store {owner}, this is store {own}: name another file, or, if that service is gone \
         for good, remove `{path}.mainstay`: this one then goes on at the end of the file"
    )]
    OtherStore {
        /// The file.
        path: PathBuf,
        /// The store that it is bound to.
        owner: String,
        /// This one.
        own: String,
    },
    /// The file that the port was bound to is gone.
    #[error(
        "`{path}` is another file than before (inode {found}, was {bound}) and the old one is not in the same folder, so that \
         its end cannot be compared. Put it back, or remove `{path}.mainstay` and accept that the last outputs may stand in both"
    )]
    Replaced {
        /// The file.
        path: PathBuf,
        /// The inode that the port is bound to.
        bound: u64,
        /// The inode found.
        found: u64,
    },
    /// It is shorter than what was acknowledged.
    #[error(
        "`{path}` has {found_bytes} bytes, but {acknowledged_bytes} were acknowledged: it was truncated. Restore it, or remove \
         `{path}.mainstay` to go on at its end"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length.
        found_bytes: u64,
        /// What it should have at least.
        acknowledged_bytes: u64,
    },
    /// Its position cannot be read.
    #[error(transparent)]
    Sidecar(#[from] SidecarError),
    /// The operating system gave no thread.
    #[error("no thread for it")]
    Thread(#[source] io::Error),
}

/// Why a file port stopped for good. What it had not acknowledged stays pending in the process.
#[derive(Debug, thiserror::Error)]
enum Stopped {
    #[error(
        "bytes from {at} of `{path}` are not those of the pending output {output}: somebody else wrote there. Restore the file \
         up to byte {at}, then restart"
    )]
    ForeignTail { path: PathBuf, at: u64, output: OutputId },
    #[error(
        "`{path}` has {found_bytes} bytes, but the last output ended at {at}: somebody else changed it. Restore it to {at} bytes, \
         then restart"
    )]
    Changed { path: PathBuf, at: u64, found_bytes: u64 },
    #[error(
        "`{path}` was rotated, but the new file has {bytes} bytes already: rotate to an empty one, then restart"
    )]
    RotatedToUsed { path: PathBuf, bytes: u64 },
    #[error(
        "`{path}` has no record of what was acknowledged, and output {output} may be in it already. Look for it at the end of the \
         file; then restart with an empty file, or resolve the output"
    )]
    UnknownPosition { path: PathBuf, output: OutputId },
    #[error(
        "`{path}` cannot be written ({source}); what the disk holds is unknown until the service is restarted"
    )]
    File { path: PathBuf, source: io::Error },
}

/// A running file port.
pub(crate) struct FilePort {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Its length is limited by the process: `outputs_pending_max`.
#[derive(Default)]
struct Queue {
    /// In the order of emission, which is that of their numbers.
    outputs: BTreeMap<OutputId, Output>,
    status: PortStatus,
    closing: bool,
}

impl FilePort {
    pub(crate) fn start(
        name: &str,
        path: &Path,
        store: StoreId,
        report: Report,
    ) -> Result<Self, OpenFileError> {
        let mut lines = Lines::open(path, store)?;
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("port-{name}"))
            .spawn(move || of_thread.run(&mut lines, &report))
            .map_err(OpenFileError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Carry for FilePort {
    fn carry(&self, output: Output) {
        let mut queue = self.shared.lock();
        queue.outputs.entry(output.id).or_insert(output);
        drop(queue);
        self.shared.changed.notify_one();
    }

    fn forget_waiting(&self) {
        // What waits here is compared with the file before it is written: taking it up again changes nothing.
    }

    fn status(&self) -> PortStatus {
        let queue = self.shared.lock();
        PortStatus { waiting: queue.outputs.len() as u64, ..queue.status.clone() }
    }
}

impl Drop for FilePort {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Had it panicked, it has said so on standard error; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, lines: &mut Lines, report: &Report) {
        while let Some(batch) = self.next_batch() {
            match lines.append(&batch) {
                Ok(()) => {
                    let mut queue = self.lock();
                    for output in &batch {
                        queue.outputs.remove(&output.id);
                    }
                    queue.status.delivered += batch.len() as u64;
                    queue.status.trouble = None;
                    drop(queue);
                    for output in batch {
                        report(output.id, Sent::Ended(Outcome::Delivered { status: 0 }));
                    }
                }
                Err(Stopped::File { source, .. }) if source.kind() == io::ErrorKind::StorageFull => {
                    let mut queue = self.lock();
                    queue.status.repeated += 1;
                    queue.status.trouble = Some("there is no space left for the file".to_owned());
                    if !queue.closing {
                        let waited = self.changed.wait_timeout(queue, NO_SPACE_PAUSE);
                        drop(waited.unwrap_or_else(PoisonError::into_inner));
                    }
                }
                Err(stopped) => {
                    tracing::error!(%stopped, "a file port stopped; its outputs stay pending");
                    self.lock().status.stopped = Some(stopped.to_string());
                    return;
                }
            }
        }
    }

    fn next_batch(&self) -> Option<Vec<Output>> {
        let mut queue = self.lock();
        while queue.outputs.is_empty() && !queue.closing {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if queue.closing {
            return None;
        }
        Some(queue.outputs.values().take(BATCH_OUTPUTS_MAX).cloned().collect())
    }
}

/// The bound file and its position.
struct Lines {
    path: PathBuf,
    file: File,
    sidecar: Sidecar,
    position: Position,
    /// Whether the position was made up at this start, for want of a sidecar beside a file with content.
    position_unknown: bool,
    /// What a life before left behind the acknowledged bytes.
    tail: VecDeque<u8>,
    /// Whether a full disk stopped our last write somewhere behind the acknowledged bytes.
    unfinished: bool,
}

impl Lines {
    fn open(path: &Path, store: StoreId) -> Result<Self, OpenFileError> {
        let failed = |source| OpenFileError::File { path: path.to_owned(), source };
        let mut file = open_locked(path)?;
        let found = file.metadata().map_err(failed)?;
        let (sidecar, position) = Sidecar::open(path)?;
        let own = store.to_string();
        let Some(position) = position else {
            sync_folder_of(path).map_err(failed)?;
            let mut position = Position::first(own, found.dev(), found.ino(), found.len());
            sidecar.store(&mut position).map_err(failed)?;
            let position_unknown = found.len() > 0;
            let tail = VecDeque::new();
            let path = path.to_owned();
            return Ok(Self { path, file, sidecar, position, position_unknown, tail, unfinished: false });
        };
        if position.store != own {
            return Err(OpenFileError::OtherStore { path: path.to_owned(), owner: position.store, own });
        }
        if (found.dev(), found.ino()) != (position.device, position.inode) {
            // Rotated while we were not looking: the old file is settled first, under whatever name it has now.
            let replaced =
                OpenFileError::Replaced { path: path.to_owned(), bound: position.inode, found: found.ino() };
            let old = neighbour(path, &position).map_err(failed)?.ok_or(replaced)?;
            file = open_locked(&old)?;
        }
        let found_bytes = file.metadata().map_err(failed)?.len();
        let acknowledged_bytes = position.acknowledged_bytes;
        let tail_bytes = found_bytes.checked_sub(acknowledged_bytes).ok_or_else(|| {
            OpenFileError::Truncated { path: path.to_owned(), found_bytes, acknowledged_bytes }
        })?;
        let mut tail =
            vec![0; usize::try_from(tail_bytes).expect("a tail is addressable on a 64-bit machine")];
        file.read_exact_at(&mut tail, acknowledged_bytes).map_err(failed)?;
        let tail = tail.into();
        let path = path.to_owned();
        Ok(Self { path, file, sidecar, position, position_unknown: false, tail, unfinished: false })
    }

    /// Makes all of `outputs` lines of the file, durably. After an error it can be called again with the same.
    fn append(&mut self, outputs: &[Output]) -> Result<(), Stopped> {
        if self.tail.is_empty() && !self.unfinished {
            self.follow_rotation()?;
        }
        let mut position = self.position.clone();
        let mut to_write = Vec::new();
        let mut tail_left = self.tail.len();
        for output in outputs.iter().filter(|output| output.id.0 > self.position.output) {
            if self.position_unknown && output.again {
                return Err(Stopped::UnknownPosition { path: self.path.clone(), output: output.id });
            }
            let line_start = position.acknowledged_bytes;
            let line = output.body.iter().chain(b"\n");
            let in_tail = self.tail.range(self.tail.len() - tail_left..);
            if line.clone().zip(in_tail).any(|(ours, found)| ours != found) {
                return Err(Stopped::ForeignTail {
                    path: self.path.clone(),
                    at: line_start,
                    output: output.id,
                });
            }
            let line_bytes = output.body.len() + 1;
            to_write.extend(line.skip(tail_left));
            tail_left = tail_left.saturating_sub(line_bytes);
            position.acknowledged_bytes += line_bytes as u64;
            position.output = output.id.0;
        }
        if position == self.position {
            return Ok(());
        }
        let tail_bytes = self.tail.len() as u64;
        let write_at = position.acknowledged_bytes.max(self.position.acknowledged_bytes + tail_bytes)
            - to_write.len() as u64;
        self.unfinished = true;
        let committed = self.commit(&to_write, write_at, &mut position);
        committed.map_err(|source| Stopped::File { path: self.path.clone(), source })?;
        self.unfinished = false;
        self.tail.drain(..self.tail.len() - tail_left);
        self.position = position;
        self.position_unknown = false;
        Ok(())
    }

    fn commit(&self, bytes: &[u8], at: u64, position: &mut Position) -> io::Result<()> {
        self.file.write_all_at(bytes, at)?;
        self.file.sync_data()?;
        self.sidecar.store(position)
    }

    /// Binds to the file that is at the path now, if that is another one; the old one is complete.
    fn follow_rotation(&mut self) -> Result<(), Stopped> {
        let found = match std::fs::metadata(&self.path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(Stopped::File { path: self.path.clone(), source }),
        };
        let bound = (self.position.device, self.position.inode);
        if let Some(found) = &found
            && (found.dev(), found.ino()) == bound
        {
            return if found.len() == self.position.acknowledged_bytes {
                Ok(())
            } else {
                let (at, found_bytes) = (self.position.acknowledged_bytes, found.len());
                Err(Stopped::Changed { path: self.path.clone(), at, found_bytes })
            };
        }
        let failed = |source| Stopped::File { path: self.path.clone(), source };
        let file = open_locked(&self.path).map_err(|error| failed(io::Error::other(error)))?;
        let new = file.metadata().map_err(failed)?;
        if new.len() > 0 {
            return Err(Stopped::RotatedToUsed { path: self.path.clone(), bytes: new.len() });
        }
        sync_folder_of(&self.path).map_err(failed)?;
        self.sidecar.record_rotation(&self.position, new.ino()).map_err(failed)?;
        tracing::info!(path = %self.path.display(), last_output = self.position.output, "an output file was rotated");
        let mut position =
            Position { device: new.dev(), inode: new.ino(), acknowledged_bytes: 0, ..self.position.clone() };
        self.sidecar.store(&mut position).map_err(failed)?;
        self.position = position;
        self.file = file;
        Ok(())
    }
}

/// Opens or makes the file, as its only writer.
fn open_locked(path: &Path) -> Result<File, OpenFileError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|source| OpenFileError::File { path: path.to_owned(), source })?;
    let deadline = Instant::now() + LOCK_RELEASE_MAX;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::WouldBlock) => return Err(OpenFileError::Locked { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => {
                return Err(OpenFileError::File { path: path.to_owned(), source });
            }
        }
    }
}

/// The bound file under another name in the same folder.
fn neighbour(path: &Path, position: &Position) -> io::Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(folder_of(path))? {
        let entry = entry?;
        let found = entry.metadata()?;
        if (found.dev(), found.ino()) == (position.device, position.inode) {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}
