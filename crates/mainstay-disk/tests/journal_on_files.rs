//! The journal on real files, in one process: every test runs on both backends.

use mainstay_disk::disk::Backend;
use mainstay_disk::fill;
use mainstay_disk::log::{Log, NotTrimmed};
use mainstay_disk::open::{OpenDisk, OpenDiskError, Options, open};
use mainstay_disk::record::RecordOptions;
use mainstay_disk::recording::{Entry, Recording};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::journal::Health;
use mainstay_journal::open::OpenReport;
use mainstay_journal::options::OpenOptions;
use mainstay_journal::reader::Reader;
use mainstay_journal::record::Kind;
use mainstay_types::id::{InstanceId, Lsn};
use mainstay_types::level::Level;
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

const KIND: Kind = Kind::FIRST_USER;
const BACKENDS: [Backend; 2] = [Backend::Threads, Backend::Uring];

/// Small pages and segments, so that few records cross many of them.
const SMALL: Geometry = Geometry { page_bytes: 8192, pages: 3, segment_pages: 2 };

fn options(backend: Backend, geometry: Geometry) -> Options {
    Options {
        journal: OpenOptions { geometry, ..OpenOptions::default() },
        backend,
        create_directory: true,
        hint: "test".to_owned(),
        stripes: Vec::new(),
        kept: false,
        record: None,
    }
}

fn open_small(directory: &Path, backend: Backend) -> OpenDisk {
    open(directory, &options(backend, SMALL)).expect("opens")
}

fn read_all(opened: &OpenDisk) -> Vec<Vec<u8>> {
    let catalog = opened.disk.catalog();
    let mut storage = opened.storage.clone();
    let mut reader = Reader::new(&mut storage, &catalog, opened.report.first, opened.report.end);
    let mut payloads = Vec::new();
    while let Some(record) = reader.next().expect("intact") {
        payloads.push(record.payload.to_vec());
    }
    payloads
}

fn payload(number: u64) -> Vec<u8> {
    let length = 8 + usize::try_from(number * 37 % 500).expect("small");
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(length, number.to_le_bytes()[0]);
    bytes
}

fn append(log: &Log, number: u64) -> Lsn {
    let bytes = payload(number);
    log.append(KIND, InstanceId(number % 3), &[&bytes[..3], &bytes[3..]]).expect("appended").end
}

/// A folder whose syncs cost nothing, where the machine has one: for tests that open thousands of journals.
fn scratch_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("temporary folder")
}

#[test]
fn the_backend_asked_for_is_used_or_the_reason_is_told() {
    for backend in [Backend::Auto, Backend::Threads, Backend::Uring] {
        let directory = tempfile::tempdir().expect("temporary folder");
        let opened = open_small(directory.path(), backend);
        let chosen = opened.disk.chosen();
        assert_ne!(chosen.backend, Backend::Auto);
        assert!(!chosen.backend_reason.is_empty() && !chosen.method_reason.is_empty());
        if chosen.backend != backend && backend == Backend::Uring {
            eprintln!("skipped: io_uring, {}", chosen.backend_reason);
        }
    }
}

#[test]
fn everything_appended_is_found_after_a_stop_without_a_seal_and_after_a_clean_one() {
    for backend in BACKENDS {
        let directory = tempfile::tempdir().expect("temporary folder");
        let mut number = 0;
        let mut was_sealed = false;
        for life in 0..4 {
            let opened = open_small(directory.path(), backend);
            assert_eq!(opened.report.created, life == 0);
            assert_eq!(opened.report.sealed, was_sealed && life > 0, "{:?}", opened.report);
            let expected: Vec<_> = (0..number).map(payload).collect();
            assert_eq!(read_all(&opened), expected, "life {life} on {backend:?}");
            let log = Log::new(opened);
            for _ in 0..300 {
                let end = append(&log, number);
                number += 1;
                if number % 7 == 0 {
                    log.commit(end, Level::Disk).expect("durable");
                    assert!(log.durable() >= end);
                }
            }
            was_sealed = life % 2 == 0;
            if was_sealed {
                log.seal().expect("sealed");
                assert!(log.append(KIND, InstanceId(0), &[b"late"]).is_err());
            }
        }
    }
}

#[test]
fn a_stream_of_records_goes_to_the_disk_by_halves_of_pages_and_comes_back() {
    let sizes = [3, 4095, 4096, 4097, 70, 9000, 12_345, 1];
    for backend in BACKENDS {
        let directory = tempfile::tempdir().expect("temporary folder");
        let mut options = options(backend, Geometry { page_bytes: 64 << 10, pages: 3, segment_pages: 4 });
        options.journal.half_bytes_min = 4096;
        let mut expected: Vec<Vec<u8>> = Vec::new();
        for life in 0..4_usize {
            let opened = open(directory.path(), &options).expect("opens");
            assert!(read_all(&opened) == expected, "life {life} on {backend:?}");
            let log = Log::new(opened);
            for number in 0..400 {
                let bytes: Vec<u8> =
                    (0..sizes[number % sizes.len()]).map(|at| (at * 7 + number) as u8).collect();
                let (begin, end) = bytes.split_at(bytes.len() * life / 4);
                let end = log.append(KIND, InstanceId(0), &[begin, end]).expect("appended").end;
                expected.push(bytes);
                if number % 90 == 0 {
                    log.commit(end, Level::Disk).expect("durable");
                }
            }
            let stats = log.stats().journal;
            assert!(stats.halves * 2 > stats.pages_closed, "{stats:?}");
        }
    }
}

/// Waits for a future on this thread, which is all that an executor has to do.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn commits_that_wait_as_futures_share_syncs_with_threads() {
    const EACH: u64 = 100;
    for backend in BACKENDS {
        let directory = tempfile::tempdir().expect("temporary folder");
        let log = Log::new(open_small(directory.path(), backend));
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let log = &log;
                scope.spawn(move || {
                    for turn in 0..EACH {
                        let end = append(log, writer * EACH + turn);
                        match writer {
                            0 => log.commit(end, Level::Disk),
                            // Polled once, for a task that looks at something else meanwhile, and dropped.
                            1 => {
                                let committed = std::pin::pin!(log.committed(end, Level::Disk));
                                let _ = committed.poll(&mut Context::from_waker(Waker::noop()));
                                block_on(log.committed(end, Level::Disk))
                            }
                            _ => block_on(log.committed(end, Level::Disk)),
                        }
                        .expect("durable");
                        assert!(log.durable() >= end, "a commit is ready when its record is durable");
                    }
                });
            }
        });
        let end = append(&log, 4 * EACH);
        block_on(log.committed(end, Level::Process)).expect("the append did it");
        drop(log);
        // The thread that commits for futures is gone with the log, or the directory would not be free.
        assert_eq!(open_small(directory.path(), backend).report.records, 4 * EACH + 1);
    }
}

#[test]
fn a_round_waits_for_tasks_that_come_again() {
    let directory = tempfile::tempdir().expect("temporary folder");
    let log = Log::new(open_small(directory.path(), BACKENDS[0]));
    for turn in 0..200 {
        let mut commits = [0, 1].map(|which| {
            let end = append(&log, 2 * turn + which);
            Box::pin(log.committed(end, Level::Disk))
        });
        // Both wait before one is awaited.
        for commit in &mut commits {
            let _ = commit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        commits.into_iter().for_each(|commit| block_on(commit).expect("durable"));
    }
    let stats = log.stats();
    assert!(stats.rounds_gathered + stats.rounds_missed > 0, "{stats:?}");
    assert!(stats.rounds_missed < stats.rounds, "{stats:?}");
}

#[test]
fn many_writers_share_syncs_and_lose_nothing() {
    const WRITERS: u64 = 32;
    const EACH: u64 = 200;
    for backend in BACKENDS {
        let directory = tempfile::tempdir().expect("temporary folder");
        let log = Log::new(open_small(directory.path(), backend));
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let log = &log;
                scope.spawn(move || {
                    for turn in 0..EACH {
                        let end = append(log, writer * EACH + turn);
                        log.commit(end, Level::Disk).expect("durable");
                        assert!(log.durable() >= end, "a commit returns when its record is durable");
                    }
                });
            }
        });
        let stats = log.stats();
        assert_eq!(stats.journal.appends, WRITERS * EACH);
        assert!(stats.rounds < WRITERS * EACH, "no two shared a sync");
        drop(log);
        let mut found = read_all(&open_small(directory.path(), backend));
        found.sort();
        let mut expected: Vec<_> = (0..WRITERS * EACH).map(payload).collect();
        expected.sort();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_seal_beside_commits_leaves_nobody_waiting() {
    for backend in BACKENDS {
        for _ in 0..25 {
            let directory = tempfile::tempdir().expect("temporary folder");
            let log = Log::new(open_small(directory.path(), backend));
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        while let Ok(appended) = log.append(KIND, InstanceId(0), &[b"until the seal"]) {
                            log.commit(appended.end, Level::Disk).expect("durable");
                        }
                    });
                }
                log.commit(append(&log, 0), Level::Disk).expect("durable");
                log.seal().expect("sealed");
            });
            assert_eq!(log.health(), Health::Sealed);
        }
    }
}

#[test]
fn one_page_is_the_synchronous_baseline_and_stalls_are_measured() {
    for backend in BACKENDS {
        let directory = tempfile::tempdir().expect("temporary folder");
        let geometry = Geometry { pages: 1, ..SMALL };
        let log = Log::new(open(directory.path(), &options(backend, geometry)).expect("opens"));
        let count = 400;
        for number in 0..count {
            append(&log, number);
        }
        log.commit(log.end(), Level::Disk).expect("durable");
        let stats = log.stats();
        assert!(stats.journal.pages_closed > 5);
        assert!(stats.stalled_appends > 0 && stats.stall_ns > 0);
        assert!(stats.full_rate() > 0.0);
        drop(log);
        let opened = open(directory.path(), &options(backend, geometry)).expect("opens");
        assert_eq!(read_all(&opened), (0..count).map(payload).collect::<Vec<_>>());
    }
}

#[test]
fn trimming_recycles_files_and_keeps_what_is_needed() {
    for backend in BACKENDS {
        let directory = tempfile::tempdir().expect("temporary folder");
        let log = Log::new(open_small(directory.path(), backend));
        let mut kept_from = Lsn::ZERO;
        let mut most_files = 0;
        for number in 0..1200 {
            let end = append(&log, number);
            if number % 100 == 99 {
                kept_from = end;
                log.commit(end, Level::Disk).expect("durable");
                log.trim(end);
                log.wait_trimmed(end).expect("trimmed");
                most_files = most_files.max(fs::read_dir(directory.path()).expect("listed").count());
            }
        }
        append(&log, 1200);
        assert_eq!(log.first(), kept_from);
        assert!(most_files < 16, "{most_files} files: segments are not recycled");
        drop(log);
        let opened = open_small(directory.path(), backend);
        assert_eq!(opened.report.first, kept_from);
        assert_eq!(read_all(&opened), [payload(1200)]);
    }
}

#[test]
fn a_trim_that_failed_is_not_waited_for_and_can_be_asked_for_again() {
    for backend in BACKENDS {
        let around = tempfile::tempdir().expect("temporary folder");
        let (here, elsewhere) = (around.path().join("here"), around.path().join("elsewhere"));
        let log = Log::new(open_small(&here, backend));
        let end = append(&log, 0);
        log.commit(end, Level::Disk).expect("durable");
        let before = log.first();
        fs::rename(&here, &elsewhere).expect("moved");
        log.trim(end);
        assert_eq!(log.wait_trimmed(end), Err(NotTrimmed { kept_from: before, first: end }));
        fs::rename(&elsewhere, &here).expect("moved back");
        log.trim(end);
        assert_eq!(log.wait_trimmed(end), Ok(()));
    }
}

#[test]
fn level_process_is_at_once_and_a_buffering_journal_never_writes() {
    let directory = tempfile::tempdir().expect("temporary folder");
    let mut buffering = options(Backend::Auto, SMALL);
    buffering.journal.buffer_only = true;
    let log = Log::new(open(directory.path(), &buffering).expect("opens"));
    for number in 0..500 {
        let end = append(&log, number);
        log.commit(end, Level::Process).expect("at once");
    }
    let stats = log.stats();
    assert_eq!((stats.journal.writes, stats.stalled_appends), (0, 0));
    let commits: [fn(&Log) -> bool; 2] =
        [|log| log.commit(log.end(), Level::Disk).is_ok(), |log| log.seal().is_ok()];
    for commit in commits {
        assert!(catch_unwind(AssertUnwindSafe(|| commit(&log))).is_err(), "it would wait for ever");
    }
    assert_eq!(log.durable(), Lsn::ZERO);
}

#[test]
fn a_directory_in_use_or_of_something_else_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().expect("temporary folder");
    let inside = directory.path().join("journal");
    let first = open_small(&inside, Backend::Auto);
    let refused = open(&inside, &options(Backend::Auto, SMALL)).expect_err("in use");
    assert!(matches!(refused, OpenDiskError::Lock(_)));
    assert!(refused.to_string().contains(&format!("process {} (test)", std::process::id())), "{refused}");
    drop(first);
    drop(open_small(&inside, Backend::Auto));

    let foreign = directory.path().join("photos");
    fs::create_dir(&foreign).expect("made");
    fs::write(foreign.join("cat.jpg"), b"cat").expect("written");
    let refused = open(&foreign, &options(Backend::Auto, SMALL)).expect_err("foreign");
    assert!(refused.to_string().contains("`cat.jpg`"), "{refused}");
    assert_eq!(fs::read_dir(&foreign).expect("listed").count(), 1, "nothing was changed");

    // What a service has that lost its superblock is not begun from nothing; nor what a region keeps, by who was not told.
    let lost = directory.path().join("lost");
    fs::create_dir(&lost).expect("made");
    let refuse = |file: &str, kept: bool| {
        let refused = open(&lost, &Options { kept, ..options(Backend::Auto, SMALL) }).expect_err("foreign");
        assert!(refused.to_string().contains(&format!("`{file}`")), "{refused}");
    };
    for file in ["checkpoint-0000000000001000", "keep.old"] {
        fs::write(lost.join(file), b"whatever").expect("written");
        refuse(file, false);
        refuse(file, true);
        let refused = fill::make_or_lock(&lost, &options(Backend::Auto, SMALL)).expect_err("foreign");
        assert!(matches!(refused, OpenDiskError::ForeignFiles { .. }), "{refused}");
        fs::remove_file(lost.join(file)).expect("removed");
    }
    fs::write(lost.join("keep"), b"whatever").expect("written");
    refuse("keep", false);
    fs::write(lost.join("checkpoint-0000000000001000"), b"whatever").expect("written");
    refuse("checkpoint-0000000000001000", true);
    let empty = fill::make_or_lock(&lost, &options(Backend::Auto, SMALL)).expect("its making was cut short");
    assert!(empty.is_some(), "it holds no journal");
    drop(empty);
    fs::remove_file(lost.join("checkpoint-0000000000001000")).expect("removed");
    let kept = Options { kept: true, ..options(Backend::Auto, SMALL) };
    drop(open(&lost, &kept).expect("what says that it is kept is there before the journal"));

    let mut absent = options(Backend::Auto, SMALL);
    absent.create_directory = false;
    let refused = open(&directory.path().join("absent"), &absent).expect_err("absent");
    assert!(matches!(refused, OpenDiskError::NoDirectory { .. }));
}

/// The journal's own tests flip every byte on a disk of memory; this shows on a sample that real files and the
/// backends change nothing about it.
#[test]
fn a_flipped_byte_never_gives_a_wrong_record_and_never_hides_a_durable_one() {
    // A prime distance, so that all offsets within records are met.
    flip_every(97);
}

#[test]
#[ignore = "campaign: every byte, on both backends; `cargo xtask full` runs it"]
fn no_flipped_byte_gives_a_wrong_record_or_hides_a_durable_one() {
    flip_every(1);
}

fn flip_every(stride: usize) {
    for backend in BACKENDS {
        let made = tempfile::tempdir().expect("temporary folder");
        let geometry = Geometry { page_bytes: 4096, pages: 2, segment_pages: 2 };
        let log = Log::new(open(made.path(), &options(backend, geometry)).expect("opens"));
        let (durable, all) = (30, 36);
        for number in 0..all {
            let end = append(&log, number);
            if number < durable {
                log.commit(end, Level::Disk).expect("durable");
            }
        }
        drop(log);
        let files: Vec<_> = fs::read_dir(made.path())
            .expect("listed")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("plain names"))
            .map(|name| (fs::read(made.path().join(&name)).expect("read"), name))
            .filter(|(_, name)| name != "lock")
            .collect();
        let expected: Vec<_> = (0..all).map(payload).collect();
        let (mut refused, mut accepted) = (0, 0);
        for (bytes, name) in &files {
            for at in (0..bytes.len()).step_by(stride) {
                let image = scratch_in_memory();
                for (bytes, name) in &files {
                    fs::write(image.path().join(name), bytes).expect("written");
                }
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                fs::write(image.path().join(name), &flipped).expect("written");
                match open(image.path(), &options(backend, geometry)) {
                    Err(OpenDiskError::Journal { .. }) => refused += 1,
                    Err(other) => panic!("{name} at {at}: unexpected {other}"),
                    Ok(opened) => {
                        let found = read_all(&opened);
                        assert!(expected.starts_with(&found), "{name} at {at}: a wrong record");
                        assert!(found.len() as u64 >= durable, "{name} at {at}: a durable record is gone");
                        accepted += 1;
                    }
                }
            }
        }
        assert!(refused > 0 && accepted > 0, "{refused} refused, {accepted} accepted");
    }
}

/// What is synced of a file, and the writes that are not.
type Content = (Vec<u8>, Vec<(u64, Vec<u8>)>);

/// What of a recorded directory a power cut leaves at worst: nothing but what was synced, all of it at its end.
fn image_of_what_was_synced(recording: &Path, into: &Path) -> Vec<Vec<u8>> {
    let mut recording = Recording::open(recording).expect("a recording");
    let mut acknowledged = Vec::new();
    let mut begun: BTreeMap<u64, Entry> = BTreeMap::new();
    let mut files: BTreeMap<String, Content> = BTreeMap::new();
    while let Some(entry) = recording.next_entry().expect("readable") {
        let Entry::Done { ticket, done: true } = entry else {
            match entry {
                Entry::Acknowledged { tag } => acknowledged.push(tag),
                entry => drop(entry.ticket().map(|ticket| begun.insert(ticket, entry))),
            }
            continue;
        };
        match begun.remove(&ticket).expect("begun before it is done") {
            Entry::Create { file, bytes, .. } => {
                files.insert(file, (vec![0; usize::try_from(bytes).expect("small")], Vec::new()));
            }
            Entry::Write { file, offset, durable, bytes, .. } => {
                let content = files.get_mut(&file).expect("created");
                let at = usize::try_from(offset).expect("small");
                if durable {
                    content.0[at..at + bytes.len()].copy_from_slice(&bytes);
                } else {
                    content.1.push((offset, bytes));
                }
            }
            Entry::Sync { file, .. } => {
                let content = files.get_mut(&file).expect("created");
                for (offset, bytes) in std::mem::take(&mut content.1) {
                    let at = usize::try_from(offset).expect("small");
                    content.0[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            Entry::Rename { from, to, .. } => {
                let content = files.remove(&from).expect("created");
                files.insert(to, content);
            }
            Entry::Remove { file, .. } => drop(files.remove(&file)),
            _ => {}
        }
    }
    for (name, (bytes, _)) in files.iter().filter(|(name, _)| *name != "ring") {
        fs::write(into.join(name), bytes).expect("written");
    }
    acknowledged
}

#[test]
fn a_recording_has_everything_acknowledged_and_a_skipped_sync_is_missed() {
    for (backend, skips) in BACKENDS.into_iter().flat_map(|backend| [(backend, false), (backend, true)]) {
        let directory = tempfile::tempdir().expect("temporary folder");
        let aside = tempfile::tempdir().expect("temporary folder");
        let mut recorded = options(backend, SMALL);
        let mut record = RecordOptions::new(&aside.path().join("recording"));
        if skips {
            record.skip_syncs = 0..u64::MAX;
        }
        recorded.record = Some(record);
        let opened = open(directory.path(), &recorded).expect("opens");
        let recorder = opened.storage.recorder().expect("recorded").clone();
        let log = Log::new(opened);
        for number in 0..200 {
            let end = append(&log, number);
            if number % 3 == 0 {
                log.commit(end, Level::Disk).expect("durable");
                recorder.acknowledged(&payload(number));
            }
        }
        drop(log);
        let image = tempfile::tempdir().expect("temporary folder");
        let acknowledged = image_of_what_was_synced(&aside.path().join("recording"), image.path());
        assert_eq!(acknowledged.len(), 67);
        let opened = open_small(image.path(), backend);
        let OpenReport { created, .. } = opened.report;
        assert!(!created, "the image holds the journal");
        let found = read_all(&opened);
        let lost = acknowledged.iter().filter(|tag| !found.contains(tag)).count();
        assert_eq!(lost > 0, skips, "{lost} of {} lost on {backend:?}", acknowledged.len());
    }
}
