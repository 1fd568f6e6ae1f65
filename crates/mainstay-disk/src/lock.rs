//! One writer per directory: a lock that the kernel releases when its holder dies, however it dies.

use crate::failure::failure_of;
use mainstay_journal::storage::Failure;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Name of the lock file. It is never removed: removing it would let two processes lock two files of one name.
pub const LOCK_FILE: &str = "lock";

/// Longest hint read back from a lock file, in bytes.
const HINT_BYTES_MAX: u64 = 512;

/// Longest wait for the kernel to finish the last writes of a holder that is dead.
const DEAD_HOLDER_WAIT_MAX: Duration = Duration::from_secs(10);

/// How often a lock of a dead holder is tried.
const DEAD_HOLDER_POLL: Duration = Duration::from_millis(1);

/// How often in a row a holder is found alive before it is taken for that.
const ALIVE_LOOKS: u32 = 3;

/// The kernel's sign of a process that is on its way out (`PF_EXITING`), among the flags in `/proc/PID/stat`.
const EXITING: u64 = 0x4;

/// The right to write one directory, held until dropped or until this process dies.
#[derive(Debug)]
pub struct DirectoryLock {
    file: File,
    /// Of the other directories of the same journal; nobody gets to them without this one.
    others: Vec<Self>,
}

/// The directory could not be locked; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process writes this directory.
    #[error(
        "{directory} is in use by {holder}. Nothing was changed. Stop that process first, or use another directory",
        directory = directory.display()
    )]
    Held {
        /// The directory.
        directory: PathBuf,
        /// Who holds it, as far as its lock file tells.
        holder: Holder,
    },
    /// The lock file could not be opened, locked or written.
    #[error("cannot lock {directory}: {source}. Nothing was changed", directory = directory.display())]
    Io {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Who holds a lock, as written into the lock file by the holder itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process number; `None` while it has not written it yet.
    pub pid: Option<u32>,
    /// What it said about itself.
    pub hint: String,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.pid, self.hint.is_empty()) {
            (Some(pid), true) => write!(f, "process {pid}"),
            (Some(pid), false) => write!(f, "process {pid} ({})", self.hint),
            (None, _) => f.write_str("another process that has just started"),
        }
    }
}

impl DirectoryLock {
    /// Locks `directory`, leaving this process's number and `hint` (for people, one line) in the lock file.
    ///
    /// # Errors
    /// [`LockError::Held`] when another process has it: at once when that process lives. A killed one keeps the lock while the kernel
    /// gives its memory back and finishes its last writes, for half a second and more; that is waited for.
    pub fn acquire(directory: &Path, hint: &str) -> Result<Self, LockError> {
        let io_error = |source| LockError::Io { directory: directory.to_owned(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join(LOCK_FILE))
            .map_err(io_error)?;
        let deadline = Instant::now() + DEAD_HOLDER_WAIT_MAX;
        let mut alive = 0;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let holder = read_holder(&mut file).map_err(io_error)?;
                    // Looked at again: between two of the signs of its death a process shows none.
                    alive = if holder.is_dying() { 0 } else { alive + 1 };
                    if alive == ALIVE_LOOKS || Instant::now() > deadline {
                        return Err(LockError::Held { directory: directory.to_owned(), holder });
                    }
                    thread::sleep(DEAD_HOLDER_POLL);
                }
                Err(TryLockError::Error(source)) => return Err(io_error(source)),
            }
        }
        let line = hint.lines().next().unwrap_or_default();
        let text = format!("{}\n{line}\n", std::process::id());
        write_holder(&mut file, &text).map_err(io_error)?;
        Ok(Self { file, others: Vec::new() })
    }

    /// Holds `other` as long as this one.
    pub(crate) fn add(&mut self, other: Self) {
        self.others.push(other);
    }

    /// For a ring that must not outlive the lock.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// The process that holds the lock of `directory` just now, as the kernel knows it: what is in the directory moves while it
/// is read. Takes no lock.
#[must_use]
pub fn writer(directory: &Path) -> Option<u32> {
    let inode = fs::metadata(directory.join(LOCK_FILE)).ok()?.ino();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        // "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF"
        let mut fields = line.split_whitespace().skip(1);
        let kind = fields.next()?;
        let pid = fields.nth(2)?.parse().ok()?;
        let locked: u64 = fields.next()?.rsplit(':').next()?.parse().ok()?;
        // The kernel may hold the lock of a process for a moment after its death, while writes of it are under way.
        let alive = || Path::new("/proc").join(u32::to_string(&pid)).exists();
        (kind == "FLOCK" && locked == inode && alive()).then_some(pid)
    })
}

impl Holder {
    /// Whether no process has its number any more, or one that is killed and not yet gone: also one whose parent has not asked how it ended.
    fn is_dying(&self) -> bool {
        let Some(pid) = self.pid.and_then(|pid| libc::pid_t::try_from(pid).ok()) else {
            return false;
        };
        // SAFETY: signal 0 is no signal; it only asks whether the process is there.
        let asked = unsafe { libc::kill(pid, 0) };
        if asked != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
            return true;
        }
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        is_exiting(&read("stat")) || awaits_kill(&read("status"))
    }
}

/// Whether `/proc/PID/stat` is of a process that has ended or begun to.
fn is_exiting(stat: &str) -> bool {
    // "1234 (a name) S 1 1234 1234 0 -1 4194560 ...": the name may hold anything.
    let Some((_, behind_name)) = stat.rsplit_once(')') else { return false };
    let mut fields = behind_name.split_whitespace();
    let state = fields.next();
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    matches!(state, Some("Z" | "X")) || flags & EXITING != 0
}

/// Whether `/proc/PID/status` tells of a SIGKILL that has come and has not yet been acted upon.
fn awaits_kill(status: &str) -> bool {
    let pending =
        status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    pending
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & 1 << (libc::SIGKILL - 1) != 0)
}

/// Written over what an earlier holder said, and cut to length afterwards: a file that is emptied first gives its block away, and
/// on a full disk gets none back. Where there is no space all the same, the lock is held without a name.
fn write_holder(file: &mut File, text: &str) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    match file.write_all(text.as_bytes()) {
        Ok(()) => file.set_len(text.len() as u64),
        Err(error) if failure_of(&error) == Failure::NoSpace => file.set_len(0),
        Err(error) => Err(error),
    }
}

fn read_holder(file: &mut File) -> io::Result<Holder> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(HINT_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines();
    Ok(Holder {
        pid: lines.next().and_then(|line| line.trim().parse().ok()),
        hint: lines.next().unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_lock_names_the_holder_and_a_dropped_lock_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let first = DirectoryLock::acquire(directory.path(), "ledger on 127.0.0.1:8080").unwrap();
        let refused = DirectoryLock::acquire(directory.path(), "second").unwrap_err();
        let LockError::Held { holder, .. } = &refused else { panic!("unexpected {refused}") };
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.hint, "ledger on 127.0.0.1:8080");
        assert!(refused.to_string().contains(&format!("process {}", std::process::id())));
        drop(first);
        DirectoryLock::acquire(directory.path(), "third").unwrap();
    }

    #[test]
    fn a_killed_holder_is_waited_for_also_while_nobody_has_asked_how_it_ended() {
        let directory = tempfile::tempdir().unwrap();
        let script = "exec 9<>lock && flock 9 && echo $$ >&9 && echo held && exec sleep 1000";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .current_dir(directory.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        let refused = DirectoryLock::acquire(directory.path(), "second").map(drop);
        let holder = Holder { pid: Some(child.id()), hint: String::new() };
        let alive = !holder.is_dying();
        child.kill().unwrap();
        let acquired = DirectoryLock::acquire(directory.path(), "third").map(drop);
        let dying = holder.is_dying();
        child.wait().unwrap();
        assert!(alive && matches!(refused, Err(LockError::Held { .. })), "{refused:?}");
        assert!(acquired.is_ok() && dying, "{acquired:?}");
    }

    #[test]
    fn signs_of_death_are_read_as_the_kernel_writes_them() {
        let stat = |state: &str, flags: &str| format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 0 0\n");
        assert!(!is_exiting(&stat("S", "4194560")));
        assert!(is_exiting(&stat("Z", "4194560")));
        assert!(is_exiting(&stat("D", "4194564")));
        assert!(!is_exiting(""));
        let status =
            |mask: &str| format!("State:\tS (sleeping)\nSigPnd:\t{mask}\nShdPnd:\t0000000000000000\n");
        assert!(awaits_kill(&status("0000000000000100")));
        assert!(!awaits_kill(&status("0000000000004000")));
    }
}
