//! A log that is written, cut off anywhere, damaged, or cannot be written on: what is read back is a prefix of what was appended, and
//! damage is told from what a kill leaves.

use mainstay_mpi::call::Call;
use mainstay_mpi::command::replay::{Options, ReplayError, replay};
use mainstay_mpi::command::stat::rank_stat;
use mainstay_mpi::compression::Compression;
use mainstay_mpi::ending::Ending;
use mainstay_mpi::field::{Field, Role};
use mainstay_mpi::format::{FILE_HEADER_BYTES, FileHeader, Kind, STOPPED_BEHIND, stop_reason};
use mainstay_mpi::pages::{Head, Pages, Writing};
use mainstay_mpi::payload::Payload;
use mainstay_mpi::reader::damage::{Damage, DamageCause};
use mainstay_mpi::reader::{ReadError, Reader, Record};
use mainstay_mpi::recording::Recording;
use mainstay_mpi::run::Run;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const HEADER: FileHeader = FileHeader {
    run: [3; 16],
    page_bytes: 4096,
    pages: 3,
    payload: Payload::Receiver,
    compression: Compression::None,
    kept_pages: 0,
};

fn names(folder: &Path) -> (PathBuf, PathBuf) {
    (folder.join("rank-0.log"), folder.join("rank-0.ring"))
}

fn head(call: u64) -> Head {
    Head { kind: Kind::Call, function: 5, thread: 0, call }
}

fn read(folder: &Path) -> Vec<Record> {
    let (log, ring) = names(folder);
    let mut reader = Reader::open(&log, &ring).expect("a log");
    std::iter::from_fn(|| reader.next_record()).collect()
}

fn bodies(seed: u64, count: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count)
        .map(|_| {
            let length = if random.u8(..) < 20 { random.usize(..20_000) } else { random.usize(..200) };
            (0..length).map(|_| random.u8(..)).collect()
        })
        .collect()
}

/// The first page behind those that a log with a bound gave back.
fn first_kept_page(log: &Path) -> u64 {
    let bytes = std::fs::read(log).expect("the log");
    let stands = |page: &u64| {
        let at = usize::try_from(HEADER.log_offset(*page)).expect("small");
        bytes[at..].starts_with(b"MSMP")
    };
    (1..).find(stands).expect("pages of the end")
}

/// As a killed process leaves a log that is not compressed, once what was on its way to the disk is there: nobody writes any more.
fn leave_as_killed(open: Pages, log: &Path) {
    let full = FILE_HEADER_BYTES as u64 + open.figures().pages_filled * 4096;
    let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while std::fs::metadata(log).expect("the log").len() < full {
        assert!(std::time::Instant::now() < until, "the writer is stuck");
        std::thread::yield_now();
    }
    std::mem::forget(open);
}

#[test]
fn who_does_not_wait_for_the_disk_has_a_log_that_ends_there_and_says_so() {
    const CALLS_MAX: u64 = 1 << 22;
    let folder = tempfile::tempdir().expect("a folder");
    let header = FileHeader { pages: 1, ..HEADER };
    let mut recording = Recording::create(folder.path(), "rank-00000", header, false).expect("a log");
    recording.set_writing(Writing::PageCache, false, true);
    let mut call = Call::default();
    let mut calls = 0;
    // With one page the disk is behind whenever it was not written between two records: soon.
    while !recording.stopped() && calls < CALLS_MAX {
        call.begin(3, 0);
        call.put(&Field::Input(Role::Number, 7));
        recording.enter(3);
        // SAFETY: the call has no memory of anybody else's.
        unsafe { recording.write(&mut call) };
        calls += 1;
    }
    let ended = recording.finish(Ending::default());
    assert_eq!((ended.stopped, ended.calls), (Some(STOPPED_BEHIND), calls - 1));
    assert!(stop_reason(STOPPED_BEHIND).contains("did not keep up"));
    let log = folder.path().join("rank-00000.log");
    let mut reader = Reader::open(&log, &log.with_extension("ring")).expect("a log");
    let found =
        std::iter::from_fn(|| reader.next_record()).filter(|record| record.kind == Kind::Call).count();
    assert_eq!(found as u64, ended.calls, "every call before is there");
    assert_eq!(reader.tail().stopped, Some((STOPPED_BEHIND, ended.calls)));
}

#[test]
fn what_is_appended_is_read_back_with_one_two_and_three_pages() {
    let compressions = [Compression::None, Compression::Zstandard];
    for (pages, compression) in (1..=3).flat_map(|pages| compressions.map(|compression| (pages, compression)))
    {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, ring) = names(folder.path());
        let mut open =
            Pages::create(&log, &ring, FileHeader { pages, compression, ..HEADER }).expect("a log");
        let written = bodies(u64::from(pages), 400);
        for (call, body) in written.iter().enumerate() {
            let (first, second) = body.split_at(body.len() / 3);
            open.append(head(call as u64 + 1), &[first, &[], second]).expect("room on the disk");
        }
        let figures = open.figures();
        assert!(figures.pages_filled > 20, "{figures:?}");
        open.finish().expect("room on the disk");
        assert!(!ring.exists(), "nothing is left in it");
        let found: Vec<Vec<u8>> = read(folder.path()).into_iter().map(|record| record.body).collect();
        assert_eq!(found, written, "{pages} pages, {compression:?}");
    }
}

#[test]
fn a_killed_process_leaves_every_call_that_returned() {
    for compression in [Compression::None, Compression::Zstandard] {
        leaves_every_call(FileHeader { compression, ..HEADER });
    }
}

/// What a kill at this moment leaves: the files as they are. While nobody appends, what is on its way to the log stays in the ring.
fn copied(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    let ((log, ring), (log_copy, ring_copy)) = (names(folder), names(copy.path()));
    std::fs::copy(log, log_copy).expect("a copy");
    std::fs::copy(ring, ring_copy).expect("a copy");
    copy
}

fn leaves_every_call(header: FileHeader) {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, ring) = names(folder.path());
    let mut open = Pages::create(&log, &ring, header).expect("a log");
    let written = bodies(9, 300);
    for (call, body) in written.iter().enumerate() {
        open.append(head(call as u64 + 1), &[body]).expect("room on the disk");
        open.enter(7, call as u64 + 2);
        if call % 29 == 0 {
            let copy = copied(folder.path());
            let (log_copy, ring_copy) = names(copy.path());
            let found = read(copy.path());
            assert_eq!(found.len(), call + 1);
            assert!(found.iter().zip(&written).all(|(record, body)| record.body == *body));
            let reader = Reader::open(&log_copy, &ring_copy).expect("a log");
            assert_eq!(reader.tail().entered, Some((7, call as u64 + 2)));
        }
    }
}

#[test]
fn a_flipped_or_cut_byte_leaves_a_prefix_and_never_a_wrong_record() {
    for compression in [Compression::None, Compression::Zstandard] {
        leaves_a_prefix(FileHeader { compression, ..HEADER });
    }
}

fn leaves_a_prefix(header: FileHeader) {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, ring) = names(folder.path());
    let mut open = Pages::create(&log, &ring, header).expect("a log");
    let written = bodies(4, 60);
    for (call, body) in written.iter().enumerate() {
        open.append(head(call as u64 + 1), &[body]).expect("room on the disk");
    }
    open.finish().expect("room on the disk");
    let whole = std::fs::read(&log).expect("the log");
    let prefix = |bytes: &[u8]| {
        std::fs::write(&log, bytes).expect("a file");
        let found = read(folder.path());
        assert!(found.len() <= written.len());
        assert!(found.iter().zip(&written).all(|(record, body)| record.body == *body));
        found.len()
    };
    for at in (FILE_HEADER_BYTES..whole.len()).step_by(151) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        prefix(&flipped);
        prefix(&whole[..at]);
    }
    assert_eq!(prefix(&whole), written.len());
}

/// A log as the recorder writes it: short and long calls, and polls in vain.
fn record(folder: &Path, header: FileHeader, calls: u64) -> Recording {
    let mut recording = Recording::create(folder, "rank-0", header, false).expect("a log");
    for number in 1..=calls {
        let mut call = Call::default();
        call.begin(3, 0);
        call.put(&Field::Input(Role::Number, i64::try_from(number).expect("small")));
        if number % 9 == 0 {
            call.put(&Field::Received(&[u8::try_from(number % 251).expect("a byte"); 3000]));
        }
        call.miss = number % 10 > 7;
        recording.enter(3);
        // SAFETY: the call has no memory of anybody else's.
        unsafe { recording.write(&mut call) };
    }
    recording
}

/// What a log tells: records, calls, whether it has its end; and what is wrong with it.
fn told(folder: &Path) -> ((Vec<Record>, u64, bool), Option<Damage>) {
    let (log, ring) = names(folder);
    let mut reader = Reader::open(&log, &ring).expect("a log");
    let records = std::iter::from_fn(|| reader.next_record()).collect();
    ((records, reader.calls(), reader.ended()), reader.damage().cloned())
}

/// Changes each byte of a file of a log, one at a time: the log tells the same, or it is called damaged with what is right before. How
/// often it was.
fn damaged_by_changes(folder: &Path, file: &Path) -> usize {
    let bytes = std::fs::read(file).expect("a file");
    let (whole, nothing) = told(folder);
    assert_eq!(nothing, None);
    let open = std::fs::File::options().write(true).open(file).expect("a file");
    let mut damaged = 0;
    for at in FILE_HEADER_BYTES..bytes.len() {
        open.write_all_at(&[bytes[at] ^ 1 << (at % 8)], at as u64).expect("a byte");
        let (found, damage) = told(folder);
        open.write_all_at(&bytes[at..=at], at as u64).expect("a byte");
        let Some(damage) = damage else {
            assert!(found == whole, "byte {at}: {} calls and no word of damage", found.1);
            continue;
        };
        damaged += 1;
        assert!(found.0.len() < whole.0.len() && whole.0.starts_with(&found.0), "byte {at}");
        assert_eq!(damage.calls, found.1, "byte {at}");
        assert!(damage.offset <= at as u64, "byte {at} is before what is called damaged: {damage}");
    }
    damaged
}

#[test]
fn any_changed_byte_of_a_finished_log_is_told_or_means_nothing() {
    for compression in [Compression::None, Compression::Zstandard] {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, _) = names(folder.path());
        record(folder.path(), FileHeader { compression, ..HEADER }, 20).finish(Ending::default());
        let whole = std::fs::read(&log).expect("the log");
        assert!(compression == Compression::Zstandard || whole.len() > 2 * 4096, "{} bytes", whole.len());
        let damaged = damaged_by_changes(folder.path(), &log);
        // What fills up to the next record, or the page, means nothing.
        assert!(damaged * 3 > whole.len() - FILE_HEADER_BYTES, "{damaged} of {}", whole.len());
        for at in (FILE_HEADER_BYTES..whole.len() - 8).step_by(23) {
            std::fs::write(&log, &whole[..at]).expect("a file");
            let (found, damage) = told(folder.path());
            let damage = damage.expect("cut after it had its end");
            assert_eq!((found.2, damage.calls), (false, found.1));
        }
    }
}

#[test]
fn any_changed_byte_of_a_killed_ranks_log_is_told_or_means_nothing() {
    let running = tempfile::tempdir().expect("a folder");
    let mut recording = record(running.path(), FileHeader { pages: 2, ..HEADER }, 31);
    recording.enter(4);
    let folder = copied(running.path());
    drop(recording);
    let (log, ring) = names(folder.path());
    let (whole, damage) = told(folder.path());
    assert_eq!((whole.1, whole.2, damage), (31, false, None));
    let bytes = std::fs::read(&ring).expect("the ring");
    let damaged = damaged_by_changes(folder.path(), &ring);
    assert!(damaged > 100, "{damaged}: records of the page that is not in the log");

    std::fs::remove_file(&ring).expect("the ring");
    let (found, damage) = told(folder.path());
    let damage = damage.expect("its end is gone");
    assert!(matches!(damage.cause, DamageCause::RingMissing { .. }), "{damage}");
    assert!(found.1 < 31 && damage.to_string().contains("rank-0.ring is missing"), "{damage}");
    let other = FileHeader { run: [4; 16], pages: 2, ..HEADER };
    let mut foreign = bytes;
    foreign[..FILE_HEADER_BYTES].copy_from_slice(&other.encode(mainstay_mpi::format::RING_MAGIC));
    std::fs::write(&ring, foreign).expect("a file");
    let damage = told(folder.path()).1.expect("its end is gone");
    assert!(matches!(damage.cause, DamageCause::RingForeign { .. }), "{damage}");
    assert_eq!(damage.path, log);
}

#[test]
fn a_kill_while_polls_are_counted_loses_none_that_returned() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, ring) = names(folder.path());
    let mut open = Pages::create(&log, &ring, HEADER).expect("a log");
    open.append(head(1), &[b"call"]).expect("room on the disk");
    let at = FILE_HEADER_BYTES + 64 + 24;
    open.append(Head { kind: Kind::Misses, ..head(2) }, &[&1_u64.to_le_bytes(), b"poll"]).expect("room");
    (0..299).for_each(|_| assert!(open.count_up()));
    open.enter(5, 302);
    std::mem::forget(open);
    let mut bytes = std::fs::read(&ring).expect("the ring");
    assert_eq!(bytes[at + 16..][..8], 300_u64.to_le_bytes(), "the number of polls");
    bytes[at + 16..][..8].copy_from_slice(&301_u64.to_le_bytes());
    std::fs::write(&ring, &bytes).expect("a file");
    let (found, damage) = told(folder.path());
    assert_eq!((found.1, damage), (301, None), "the call and the polls that returned");
    bytes[at + 16..][..8].copy_from_slice(&307_u64.to_le_bytes());
    std::fs::write(&ring, &bytes).expect("a file");
    let damage = told(folder.path()).1.expect("no kill leaves that");
    assert_eq!((damage.cause, damage.calls), (DamageCause::CallsMissing { call: 302 }, 1));
}

#[test]
fn zeroes_are_a_gap_only_where_a_bound_has_made_one() {
    let zero = |log: &Path, page: u64| {
        let mut bytes = std::fs::read(log).expect("the log");
        let at = usize::try_from(HEADER.log_offset(page)).expect("small");
        bytes[at..at + 4096].fill(0);
        std::fs::write(log, bytes).expect("a file");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (log, ring) = names(folder.path());
    record(folder.path(), HEADER, 300).finish(Ending::default());
    zero(&log, 1);
    let damage = told(folder.path()).1.expect("a page is gone");
    assert_eq!((damage.offset, Reader::open(&log, &ring).expect("a log").gap()), (8192, None));

    std::fs::remove_file(&log).expect("the log");
    record(folder.path(), FileHeader { kept_pages: 6, ..HEADER }, 300).finish(Ending::default());
    let ((_, calls, ended), damage) = told(folder.path());
    assert_eq!((calls, ended, damage), (300, true, None));
    let first_kept = first_kept_page(&log);
    // One more may be gone than is not kept: a kill comes between giving back and writing.
    zero(&log, first_kept);
    assert_eq!(told(folder.path()).1, None);
    zero(&log, first_kept + 1);
    assert!(told(folder.path()).1.is_some());
}

#[test]
fn a_page_given_back_while_its_rank_runs_is_no_damage() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, ring) = names(folder.path());
    let header = FileHeader { kept_pages: 6, ..HEADER };
    let mut open = Pages::create(&log, &ring, header).expect("a log");
    for call in 1..=300 {
        open.append(head(call), &[&[5; 400]]).expect("room on the disk");
    }
    leave_as_killed(open, &log);
    let first = first_kept_page(&log);
    for runs in [true, false] {
        // What a rank does whose last pages are on their way: its ring stays as it is.
        let mut reader = Reader::open(&log, &ring).expect("a log");
        assert!(!runs || reader.gap().is_some(), "most of it is gone");
        let file = std::fs::File::options().write(true).open(&log).expect("the log");
        file.set_len(file.metadata().expect("the log").len() + 4096).expect("room on the disk");
        file.write_all_at(&[0; 4 * 4096], HEADER.log_offset(first)).expect("room on the disk");
        if !runs {
            // Whoever reads it after that sees what stays so.
            reader = Reader::open(&log, &ring).expect("a log");
        }
        while reader.next_record().is_some() {}
        assert_eq!((reader.overtaken(), reader.damage().is_none()), (runs, runs));
    }
}

#[test]
fn a_rank_that_runs_and_keeps_only_its_end_is_read_up_to_where_it_was() {
    const READINGS: u64 = 300;
    // Four pages, with those on their way fewer than the readings that are tried.
    const CALLS_BESIDE_A_READING: u64 = 36;
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("rank-00000.log");
    let header = FileHeader { kept_pages: 4, ..HEADER };
    let mut open = Pages::create(&log, &log.with_extension("ring"), header).expect("a log");
    let run = Run::open(folder.path()).expect("a run");
    let (allowed, written) = (AtomicU64::new(300), AtomicU64::new(0));
    let last = 300 + READINGS * CALLS_BESIDE_A_READING;
    let stats: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            for call in 1..=last {
                while allowed.load(Relaxed) < call {
                    std::thread::yield_now();
                }
                open.append(head(call), &[&[5; 400]]).expect("room on the disk");
                written.store(call, Release);
            }
        });
        let read = |_| {
            let before = allowed.load(Relaxed);
            while written.load(Acquire) < before {
                std::thread::yield_now();
            }
            allowed.store(before + CALLS_BESIDE_A_READING, Relaxed);
            (before, rank_stat(&run, 0))
        };
        (0..READINGS).map(read).collect()
    });
    for (before, stat) in stats {
        let stat = stat.expect("a log");
        assert_eq!(stat.damage, None, "after call {before}");
        assert!(stat.calls >= before, "{} of {before}", stat.calls);
    }
}

#[test]
fn a_gap_with_nothing_whole_behind_it_counts_the_calls_that_are_not_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("rank-00000.log");
    let header = FileHeader { kept_pages: 2, ..HEADER };
    let mut open = Pages::create(&log, &log.with_extension("ring"), header).expect("a log");
    for call in 1..=300 {
        open.append(head(call), &[&[5; 400]]).expect("room on the disk");
    }
    // Longer than all that is kept, so that nothing else is.
    open.append(head(301), &[&[7; 100_000]]).expect("room on the disk");
    leave_as_killed(open, &log);
    let stat = rank_stat(&Run::open(folder.path()).expect("a run"), 0).expect("a log");
    assert_eq!((stat.calls, stat.damage), (301, None));
    assert!(stat.not_kept > 200, "{}", stat.not_kept);
}

#[test]
fn a_run_of_polls_counts_up_in_place_and_survives_a_page_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, ring) = names(folder.path());
    let mut open = Pages::create(&log, &ring, HEADER).expect("a log");
    assert!(!open.count_up(), "nothing to count yet");
    let misses = Head { kind: Kind::Misses, ..head(1) };
    open.append(misses, &[&1_u64.to_le_bytes(), b"poll"]).expect("room on the disk");
    for _ in 0..999 {
        assert!(open.count_up());
    }
    open.append(head(1001), &[&[0; 5000]]).expect("room on the disk");
    assert!(!open.count_up(), "the last record is a call");
    open.finish().expect("room on the disk");
    let found = read(folder.path());
    assert_eq!(found[0].body, [&1000_u64.to_le_bytes()[..], b"poll"].concat());
    assert_eq!(found[1].body.len(), 5000);
}

#[test]
fn a_log_without_its_beginning_is_refused_and_nothing_is_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("rank-00002.log");
    let open = Pages::create(&log, &log.with_extension("ring"), HEADER).expect("a log");
    open.finish().expect("room on the disk");
    let options = Options { folder: folder.path().to_owned(), rank: 2, ..Options::default() };
    assert!(matches!(replay(&options), Err(ReplayError::Cut { rank: 2 })));
    let other = Options { rank: 3, ..options };
    assert!(matches!(replay(&other), Err(ReplayError::NoRank { rank: 3, .. })));
}

#[test]
fn a_log_that_keeps_its_end_has_its_bound_and_says_which_calls_it_lacks() {
    use std::os::unix::fs::MetadataExt;
    const KEPT_BYTES: u64 = 16 * 4096;
    for killed in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, ring) = names(folder.path());
        let header = FileHeader { kept_pages: FileHeader::kept_pages(KEPT_BYTES, 4096), ..HEADER };
        let mut open =
            Pages::create(&log, &ring, header).expect("a file system that gives back a part of a file");
        let written = bodies(11, 3000);
        for (call, body) in written.iter().enumerate() {
            open.append(head(call as u64 + 1), &[body]).expect("room on the disk");
        }
        assert!(open.figures().pages_filled > 100, "{:?}", open.figures());
        if killed {
            leave_as_killed(open, &log);
        } else {
            open.finish().expect("room on the disk");
        }
        // The log's own header, and what a file system needs for a file with holes.
        let disk_bytes = std::fs::metadata(&log).expect("the log").blocks() * 512;
        assert!(disk_bytes <= KEPT_BYTES + 3 * 4096, "{disk_bytes}");

        let mut reader = Reader::open(&log, &ring).expect("a log");
        let gap = reader.gap().expect("most of it is gone");
        let (mut call, mut before, mut behind) = (0, 0, 0);
        while let Some(record) = reader.next_record() {
            if reader.passed_gap() {
                assert!(gap.next_call > call + 1);
                (before, call) = (call, gap.next_call - 1);
            }
            call += 1;
            behind += u64::from(before > 0);
            assert_eq!(record.body, written[usize::try_from(call).expect("small") - 1], "call {call}");
        }
        assert_eq!(call, 3000, "to the end");
        assert!(before > 0 && behind > 10, "{before} {behind}");
        std::fs::rename(&log, folder.path().join("rank-00002.log")).expect("another name");
        let options = Options { folder: folder.path().to_owned(), rank: 2, ..Options::default() };
        assert!(matches!(replay(&options), Err(ReplayError::Log(ReadError::Bounded { .. }))));
    }
}

#[test]
fn a_log_that_never_came_to_its_bound_lacks_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, ring) = names(folder.path());
    let header = FileHeader { kept_pages: FileHeader::kept_pages(1 << 30, 4096), ..HEADER };
    let mut open =
        Pages::create(&log, &ring, header).expect("a file system that gives back a part of a file");
    let written = bodies(12, 200);
    for (call, body) in written.iter().enumerate() {
        open.append(head(call as u64 + 1), &[body]).expect("room on the disk");
    }
    open.finish().expect("room on the disk");
    let found = read(folder.path());
    assert!(found.iter().map(|record| &record.body).eq(&written));
    assert_eq!(Reader::open(&log, &ring).expect("a log").gap(), None);
}
