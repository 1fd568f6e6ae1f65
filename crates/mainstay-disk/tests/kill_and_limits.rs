//! What takes a process of its own: kill -9, a lock held by another process, limits on files, a read-only directory.
//!
//! Each test starts this test binary again, to run [`child`] alone with a role in its environment.

use mainstay_disk::disk::Backend;
use mainstay_disk::lock::LockError;
use mainstay_disk::log::{CommitError, Log};
use mainstay_disk::open::{OpenDiskError, Options, open};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::journal::{AppendError, Health};
use mainstay_journal::open::OpenError;
use mainstay_journal::options::OpenOptions;
use mainstay_journal::reader::Reader;
use mainstay_journal::record::Kind;
use mainstay_journal::storage::Failure;
use mainstay_types::id::InstanceId;
use mainstay_types::level::Level;
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll, Waker};

const ROLE: &str = "MAINSTAY_TEST_ROLE";
const DIRECTORY: &str = "MAINSTAY_TEST_DIRECTORY";
const KIND: Kind = Kind::FIRST_USER;

/// Said by a child that cannot do its part on this machine.
const SKIPPED: &str = "skipped:";

fn options(backend: Backend) -> Options {
    let geometry = Geometry { page_bytes: 64 << 10, pages: 3, segment_pages: 4 };
    Options {
        journal: OpenOptions { geometry, ..OpenOptions::default() },
        backend,
        create_directory: true,
        hint: "the child".to_owned(),
        stripes: Vec::new(),
        kept: false,
        record: None,
    }
}

/// A child that is gone when the test is.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(role: &str, directory: &Path) -> Running {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(DIRECTORY, directory);
    Running(command.stdout(Stdio::piped()).spawn().expect("started"))
}

/// Runs a role to its end; says whether it was skipped.
fn run(role: &str, directory: &Path) -> bool {
    let mut child = start(role, directory);
    let lines = BufReader::new(child.0.stdout.take().expect("piped")).lines();
    let lines: Vec<_> = lines.map(|line| line.expect("text")).collect();
    let status = child.0.wait().expect("ended");
    assert!(status.success(), "{role}: {status}\n{}", lines.join("\n"));
    let skipped = lines.iter().find(|line| line.contains(SKIPPED));
    skipped.inspect(|line| eprintln!("{line}"));
    skipped.is_some()
}

/// No test of its own: what the other tests run in another process.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let directory = std::env::var_os(DIRECTORY).expect("given with the role");
    let directory = Path::new(&directory);
    match role.as_str() {
        "append-threads" => append_for_ever(directory, Backend::Threads),
        "append-uring" => append_for_ever(directory, Backend::Uring),
        "full" => fill_up(directory),
        "poison" => poison(directory),
        "mounts" => small_and_read_only(directory),
        other => panic!("no role {other}"),
    }
}

fn append_for_ever(directory: &Path, backend: Backend) {
    let log = Log::new(open(directory, &options(backend)).expect("opens"));
    let threads: Vec<_> = (0..4_u64)
        .map(|writer| {
            let log = log.clone();
            std::thread::spawn(move || {
                for turn in 0_u64.. {
                    let payload = [writer.to_le_bytes(), turn.to_le_bytes()].concat();
                    let appended =
                        log.append(KIND, InstanceId(writer), &[&payload, &[9; 700]]).expect("appended");
                    // Every third record is acknowledged at level Process only, which kill -9 must not lose either.
                    if turn % 3 != 0 {
                        log.commit(appended.end, Level::Disk).expect("durable");
                    }
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "done {writer} {turn}").and_then(|()| out.flush()).expect("said");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("never ends by itself"));
}

#[test]
fn kill_9_loses_nothing_acknowledged_and_frees_the_lock() {
    for (role, backend) in [("append-threads", Backend::Threads), ("append-uring", Backend::Uring)] {
        let directory = tempfile::tempdir().expect("temporary folder");
        let mut acknowledged = [None::<u64>; 4];
        for kill in 0..4 {
            let mut child = start(role, directory.path());
            let mut lines = BufReader::new(child.0.stdout.take().expect("piped")).lines();
            let mut since_kill = [None::<u64>; 4];
            let mut seen = 0;
            let mut note = |line: &str| {
                let Some(rest) = line.split("done ").nth(1) else { return false };
                let mut numbers = rest.split(' ').map(|number| number.parse::<u64>().expect("a number"));
                let (writer, turn) = (numbers.next().expect("writer"), numbers.next().expect("turn"));
                since_kill[usize::try_from(writer).expect("small")] = Some(turn);
                true
            };
            while seen < 120 + 57 * kill {
                seen += usize::from(note(&lines.next().expect("the child goes on").expect("text")));
            }
            let refused = open(directory.path(), &options(backend)).expect_err("in use");
            let OpenDiskError::Lock(LockError::Held { holder, .. }) = refused else { panic!("{refused}") };
            assert_eq!(holder.pid, Some(child.0.id()));
            assert_eq!(holder.hint, "the child");
            child.0.kill().expect("killed");
            assert_eq!(child.0.wait().expect("ended").signal(), Some(libc::SIGKILL));
            // What was said before the kill may still be in the pipe; a last line may be cut short.
            let rest: Vec<_> = lines.map_while(Result::ok).collect();
            let whole = rest.len().saturating_sub(1);
            for line in &rest[..whole] {
                note(line);
            }

            let opened = open(directory.path(), &options(backend)).expect("opens after the kill");
            assert!(!opened.report.sealed && !opened.report.ring_missing);
            let mut found = [None::<u64>; 4];
            let catalog = opened.disk.catalog();
            let mut storage = opened.storage.clone();
            let mut reader = Reader::new(&mut storage, &catalog, opened.report.first, opened.report.end);
            while let Some(record) = reader.next().expect("intact") {
                let number =
                    |at: usize| u64::from_le_bytes(record.payload[at..at + 8].try_into().expect("8"));
                let (writer, turn) = (usize::try_from(number(0)).expect("small"), number(8));
                let in_order = turn == 0 || found[writer] == Some(turn - 1);
                assert!(in_order, "writer {writer}: {turn} after {:?}", found[writer]);
                found[writer] = Some(turn);
            }
            for (writer, said) in since_kill.iter().enumerate() {
                assert!(
                    found[writer] >= *said,
                    "writer {writer}: {said:?} acknowledged, {:?} found",
                    found[writer]
                );
            }
            acknowledged = found;
        }
        assert!(acknowledged.iter().all(Option::is_some));
    }
}

fn limit_file_bytes(bytes: u64) {
    // SAFETY: plain calls with valid pointers; the signal that goes with the limit is ignored.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit), 0);
        limit.rlim_cur = bytes.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
}

fn fill_up(directory: &Path) {
    let log = Log::new(open(directory, &options(Backend::Auto)).expect("opens"));
    let first = log.append(KIND, InstanceId(0), &[&[1; 1000]]).expect("appended");
    // The flush asks for the second segment.
    log.commit(first.end, Level::Disk).expect("durable");
    while log.stats().journal.segments_prepared < 1 {
        std::thread::yield_now();
    }
    let files_before = std::fs::read_dir(directory).expect("listed").count();
    // No new segment fits under this limit. Writes to those that are there do: two of the records below leave the last
    // block of a page unused.
    limit_file_bytes(4 * (64 << 10));
    let mut last = first;
    let refused = loop {
        match log.append(KIND, InstanceId(0), &[&[2; 30_000]]) {
            Ok(appended) => last = appended,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, AppendError::Full { failure: Failure::NoSpace, .. }), "{refused}");
    assert!(matches!(log.health(), Health::Full { .. }));
    assert!(
        std::fs::read_dir(directory).expect("listed").count() <= files_before + 2,
        "nothing is left behind"
    );
    log.commit(last.end, Level::Disk).expect("what was appended has its place");
    limit_file_bytes(u64::MAX);
    log.retry();
    let after = loop {
        match log.append(KIND, InstanceId(0), &[b"space again"]) {
            Ok(appended) => break appended,
            Err(AppendError::Full { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    log.commit(after.end, Level::Disk).expect("durable");
}

#[test]
fn a_full_disk_stops_appends_and_lets_them_go_on_when_there_is_space() {
    let directory = tempfile::tempdir().expect("temporary folder");
    assert!(!run("full", directory.path()));
    let opened = open(directory.path(), &options(Backend::Auto)).expect("opens");
    assert!(opened.report.records > 5);
}

fn poison(directory: &Path) {
    let log = Log::new(open(directory, &options(Backend::Auto)).expect("opens"));
    let kept = log.append(KIND, InstanceId(0), &[b"kept"]).expect("appended");
    log.commit(kept.end, Level::Disk).expect("durable");
    let durable = log.durable();
    limit_file_bytes(4096);
    let lost = log.append(KIND, InstanceId(0), &[b"in doubt"]).expect("appended");
    let refused = log.commit(lost.end, Level::Disk).expect_err("the write fails");
    assert!(matches!(refused, CommitError::Poisoned { .. }));
    // The disk works again, and still nothing is taken as durable in this life.
    limit_file_bytes(u64::MAX);
    assert!(log.commit(lost.end, Level::Disk).is_err());
    assert!(matches!(log.append(KIND, InstanceId(0), &[b"more"]), Err(AppendError::Poisoned { .. })));
    assert_eq!(log.durable(), durable);
    assert!(matches!(wait(log.committed(lost.end, Level::Disk)), Err(CommitError::Poisoned { .. })));
}

/// Asks the future again and again.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_failed_write_poisons_for_good_and_the_next_life_goes_on() {
    let directory = tempfile::tempdir().expect("temporary folder");
    assert!(!run("poison", directory.path()));
    let opened = open(directory.path(), &options(Backend::Auto)).expect("opens");
    assert!(opened.report.records >= 1);
}

fn mount(directory: &Path, flags: libc::c_ulong, data: &str) -> bool {
    let path = CString::new(directory.as_os_str().as_bytes()).expect("no zero byte");
    let data = CString::new(data).expect("no zero byte");
    // SAFETY: all strings end with a zero byte.
    unsafe {
        libc::mount(c"tmpfs".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), flags, data.as_ptr().cast()) == 0
    }
}

fn small_and_read_only(directory: &Path) {
    // SAFETY: plain calls. The mounts below are seen by this process alone and vanish with it.
    let alone = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                std::ptr::null(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
    };
    if !alone || !mount(directory, 0, "size=400k") {
        println!("\n{SKIPPED} a small and a read-only file system: mounting needs root");
        return;
    }
    // Room for the superblock and the first segment, not for the ring.
    let refused = open(directory, &options(Backend::Auto)).expect_err("too small");
    let failure = match &refused {
        OpenDiskError::Ring { source, .. }
        | OpenDiskError::Journal { source: OpenError::Storage(source), .. } => source.failure,
        other => panic!("unexpected {other}"),
    };
    assert_eq!(failure, Failure::NoSpace, "{refused}");
    assert!(!directory.join("ring").exists(), "half a ring is removed");
    assert!(mount(directory, libc::MS_REMOUNT, "size=4m"));
    drop(open(directory, &options(Backend::Auto)).expect("there is space now"));
    assert!(mount(directory, libc::MS_REMOUNT | libc::MS_RDONLY, "size=4m"));
    let refused = open(directory, &options(Backend::Auto)).expect_err("read-only");
    assert!(matches!(refused, OpenDiskError::Lock(LockError::Io { .. })), "{refused}");
    assert!(refused.to_string().contains("Read-only file system"), "{refused}");
}

#[test]
fn a_small_and_a_read_only_file_system_are_refused_with_the_reason() {
    let directory = tempfile::tempdir().expect("temporary folder");
    run("mounts", directory.path());
}
