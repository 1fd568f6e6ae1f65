//! Writes a checkpoint in a forked child: the process stands still for the fork only, and its memory as of that moment is
//! written out by the copy.
//!
//! The price: pages that the parent changes meanwhile are copied by the kernel, one fault each. The child has one thread,
//! hence may take no lock that another thread of the parent held; allocation is safe with glibc, which prepares its
//! allocator for a fork.

use mainstay_process::checkpoint::Saved;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes collected before a write, in the child.
const BUFFER_BYTES: usize = 1 << 20;

/// Bytes that the child has the disk write while it goes on: what the journal syncs meanwhile waits behind these, and not behind the whole state.
const WRITING_BYTES: u64 = 2 << 20;

/// What the child says when it is done: state hash and length.
const REPORT_BYTES: usize = 16;

/// How the child ends whose handler could not read what it wrote ([`io::ErrorKind::InvalidData`]).
const NOT_READ_BACK: i32 = 4;

/// How much less urgent than serving requests the child is (see nice(2)).
const NICENESS: i32 = 10;

/// A child that is writing. Dropping it kills and reaps it.
#[derive(Debug)]
pub struct CheckpointWriter {
    pid: libc::pid_t,
    report: File,
    reaped: bool,
}

/// A checkpoint was not written. The process it was to be taken of is unharmed.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The file or the pipe could not be made, or there was no memory for a child.
    #[error("no checkpoint writer could be started")]
    Start(#[source] io::Error),
    /// The child ended without a report: it was killed, ran out of memory, or the disk was full (it has said so on standard
    /// error).
    #[error("the checkpoint writer ended with status {status:#x} before it was done")]
    Ended {
        /// As waitpid gives it.
        status: i32,
    },
    /// What the handler wrote is not what it could read ([`io::ErrorKind::InvalidData`]).
    #[error(
        "the state cannot be written and read back; the usual culprits are serde's `skip_serializing_if`, `flatten`, `tag` and `untagged`, and \
         `serde_json::Value`. Nothing is lost: the log is kept, and the next start delivers it again"
    )]
    NotReadBack,
    /// The child took too long and was killed.
    #[error("the checkpoint writer was killed after {limit:?}")]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// Waiting for the child failed.
    #[error("the checkpoint writer cannot be waited for")]
    Wait(#[source] io::Error),
}

impl CheckpointWriter {
    /// Forks a child that makes the file at `path`, fills it by `save`, syncs it and ends. Returns at once in the parent.
    ///
    /// # Errors
    /// [`SaveError::Start`].
    pub fn fork(
        path: &Path,
        save: impl FnOnce(&mut dyn Write) -> io::Result<Saved>,
    ) -> Result<Self, SaveError> {
        let file = File::create(path).map_err(SaveError::Start)?;
        let (report, reporter) = pipe().map_err(SaveError::Start)?;
        // SAFETY: asks only.
        let parent = unsafe { libc::getpid() };
        // SAFETY: the child runs `write_and_exit` only, which never returns, unwinds nowhere and takes no lock.
        match unsafe { libc::fork() } {
            -1 => Err(SaveError::Start(io::Error::last_os_error())),
            0 => write_and_exit(parent, &file, &reporter, save),
            pid => Ok(Self { pid, report, reaped: false }),
        }
    }

    /// Waits until the child is done, at most `limit`.
    ///
    /// # Errors
    /// [`SaveError`]; the file is then worthless.
    pub fn wait(mut self, limit: Duration) -> Result<Saved, SaveError> {
        let deadline = Instant::now() + limit;
        let mut report = [0; REPORT_BYTES];
        let mut filled = 0;
        while filled < REPORT_BYTES {
            if !readable(self.report.as_raw_fd(), deadline).map_err(SaveError::Wait)? {
                return Err(SaveError::TimedOut { limit });
            }
            match self.report.read(&mut report[filled..]).map_err(SaveError::Wait)? {
                0 => break,
                bytes => filled += bytes,
            }
        }
        let status = self.reap().map_err(SaveError::Wait)?;
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == NOT_READ_BACK {
            return Err(SaveError::NotReadBack);
        }
        if filled < REPORT_BYTES || status != 0 {
            return Err(SaveError::Ended { status });
        }
        let (state_hash, bytes) = report.split_at(8);
        let word =
            |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("split in the middle of 16 bytes"));
        Ok(Saved { state_hash: word(state_hash), bytes: word(bytes) })
    }

    fn reap(&mut self) -> io::Result<i32> {
        let mut status = 0;
        loop {
            // SAFETY: `pid` is our child and has not been reaped, so that it names no other process.
            if unsafe { libc::waitpid(self.pid, &raw mut status, 0) } == self.pid {
                self.reaped = true;
                return Ok(status);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        if !self.reaped {
            // SAFETY: `pid` is our child and has not been reaped, so that it names no other process.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            let _ = self.reap();
        }
    }
}

/// A file whose writes reach the disk as they come, so that its sync finds little left to do (PostgreSQL's `checkpoint_flush_after`, RocksDB's
/// `bytes_per_sync`).
struct Paced<'a> {
    file: &'a File,
    written: u64,
}

impl Write for Paced<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        let (from, bytes) = (self.written, written as u64);
        self.written += bytes;
        self.ask(from, bytes, libc::SYNC_FILE_RANGE_WRITE)?;
        let before = self.written.saturating_sub(WRITING_BYTES);
        self.ask(0, before, libc::SYNC_FILE_RANGE_WAIT_BEFORE)?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Paced<'_> {
    /// Asks the disk for a range. A file system that cannot do that does it at the sync. A failed write is told once: here, or by the sync.
    fn ask(&self, from: u64, bytes: u64, flags: libc::c_uint) -> io::Result<()> {
        // None would be all that follows.
        if bytes == 0 {
            return Ok(());
        }
        let (from, bytes) = (from.cast_signed(), bytes.cast_signed());
        // SAFETY: asks for the writing of a range of an open file; no memory is touched.
        if unsafe { libc::sync_file_range(self.file.as_raw_fd(), from, bytes, flags) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOSYS | libc::ESPIPE | libc::EOPNOTSUPP) => Ok(()),
            _ => Err(error),
        }
    }
}

/// The child's whole life.
fn write_and_exit(
    parent: libc::pid_t,
    file: &File,
    reporter: &OwnedFd,
    save: impl FnOnce(&mut dyn Write) -> io::Result<Saved>,
) -> ! {
    detach(parent, [file.as_raw_fd(), reporter.as_raw_fd()]);
    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| -> io::Result<Saved> {
        let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, Paced { file, written: 0 });
        let saved = save(&mut buffered)?;
        buffered.flush()?;
        file.sync_all()?;
        Ok(saved)
    }));
    let status = match written {
        Ok(Ok(saved)) => {
            let mut report = [0; REPORT_BYTES];
            report[..8].copy_from_slice(&saved.state_hash.to_le_bytes());
            report[8..].copy_from_slice(&saved.bytes.to_le_bytes());
            // SAFETY: the buffer is as long as said. A pipe takes 16 bytes at once or not at all.
            let sent = unsafe { libc::write(reporter.as_raw_fd(), report.as_ptr().cast(), REPORT_BYTES) };
            i32::from(usize::try_from(sent) != Ok(REPORT_BYTES))
        }
        Ok(Err(error)) => {
            say(&error);
            if error.kind() == io::ErrorKind::InvalidData { NOT_READ_BACK } else { 2 }
        }
        Err(_) => 3,
    };
    // SAFETY: ends the child without running what the parent registered for its own end.
    unsafe { libc::_exit(status) }
}

/// Says on standard error what went wrong. By the system call: whoever held the lock of the standard library's writer at the
/// fork never gives it back in this child.
fn say(error: &io::Error) {
    let text = format!("the checkpoint is not written: {error}\n");
    // SAFETY: the text is as long as said.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// Makes sure that the child neither outlives its parent nor keeps the parent's lock and sockets when that is killed.
fn detach(parent: libc::pid_t, kept: [RawFd; 2]) {
    let (low, high) = (kept[0].min(kept[1]).cast_unsigned(), kept[0].max(kept[1]).cast_unsigned());
    let standard = 3;
    // SAFETY: plain system calls on this child's own attributes and descriptors; nothing here uses those that are closed.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        for (from, to) in
            [(standard, low.saturating_sub(1)), (low + 1, high.saturating_sub(1)), (high + 1, u32::MAX)]
        {
            if from <= to {
                libc::syscall(libc::SYS_close_range, from, to, 0);
            }
        }
        libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS);
    }
}

fn pipe() -> io::Result<(File, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors, and nobody else owns them.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Waits until `descriptor` can be read or has been closed at its other end; false when the deadline came first.
fn readable(descriptor: RawFd, deadline: Instant) -> io::Result<bool> {
    let mut polled = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one pollfd, as said.
        match unsafe { libc::poll(&raw mut polled, 1, timeout_ms) } {
            0 if left.is_zero() => return Ok(false),
            0 => {}
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => return Ok(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    const LIMIT: Duration = Duration::from_secs(60);

    /// Held by every test that forks: a child has copies of all descriptors of this process until it has detached, those of
    /// the test beside it too.
    static FORKING: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        FORKING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn the_child_writes_the_state_of_the_fork() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let mut state = b"as of the fork".to_vec();
        let writer = CheckpointWriter::fork(&path, |into| {
            into.write_all(&state)?;
            Ok(Saved { state_hash: 7, bytes: 14 })
        })
        .unwrap();
        state.fill(b'!');
        assert_eq!(writer.wait(LIMIT).unwrap(), Saved { state_hash: 7, bytes: 14 });
        assert_eq!(std::fs::read(&path).unwrap(), b"as of the fork");
        assert_ne!(state, b"as of the fork");
    }

    #[test]
    fn a_child_that_fails_or_hangs_is_reported_and_gone() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let failing = CheckpointWriter::fork(&path, |_| Err(io::Error::other("no"))).unwrap();
        assert!(matches!(failing.wait(LIMIT), Err(SaveError::Ended { status }) if status != 0));
        let lopsided = || io::Error::from(io::ErrorKind::InvalidData);
        let failing = CheckpointWriter::fork(&path, |_| Err(lopsided())).unwrap();
        assert!(matches!(failing.wait(LIMIT), Err(SaveError::NotReadBack)));
        let hanging = CheckpointWriter::fork(&path, |_| {
            loop {
                std::thread::park();
            }
        })
        .unwrap();
        let pid = hanging.pid;
        assert!(matches!(hanging.wait(Duration::from_millis(10)), Err(SaveError::TimedOut { .. })));
        // SAFETY: signal 0 only asks whether the process exists.
        assert_eq!(unsafe { libc::kill(pid, 0) }, -1, "the child was not reaped");
    }

    #[test]
    fn the_child_keeps_no_lock_of_its_parent() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("lock");
        let held = File::create(&lock).unwrap();
        held.try_lock().unwrap();
        let (mut started, says_started) = pipe().unwrap();
        let says_started = File::from(says_started);
        // The pipe to the test is closed in the child like everything else: end of file says that the child has detached.
        let writer = CheckpointWriter::fork(&folder.path().join("saved"), |_| {
            loop {
                std::thread::park();
            }
        })
        .unwrap();
        drop(says_started);
        assert_eq!(started.read(&mut [0]).unwrap(), 0);
        drop(held);
        File::open(&lock).unwrap().try_lock().unwrap();
        drop(writer);
    }
}
