//! A log that is written, cut off anywhere, or cannot be written on: what is read back is a prefix of what was appended.

use mainstay_mpi::call::Call;
use mainstay_mpi::command::replay::{Options, ReplayError, replay};
use mainstay_mpi::compression::Compression;
use mainstay_mpi::ending::Ending;
use mainstay_mpi::field::{Field, Role};
use mainstay_mpi::format::{FILE_HEADER_BYTES, FileHeader, Kind, STOPPED_BEHIND, stop_reason};
use mainstay_mpi::pages::{Head, Pages, Writing};
use mainstay_mpi::payload::Payload;
use mainstay_mpi::reader::{ReadError, Reader, Record};
use mainstay_mpi::recording::Recording;
use std::path::{Path, PathBuf};

const HEADER: FileHeader = FileHeader {
    run: [3; 16],
    page_bytes: 4096,
    pages: 3,
    payload: Payload::Receiver,
    compression: Compression::None,
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

fn leaves_every_call(header: FileHeader) {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, ring) = names(folder.path());
    let mut open = Pages::create(&log, &ring, header).expect("a log");
    let written = bodies(9, 300);
    for (call, body) in written.iter().enumerate() {
        open.append(head(call as u64 + 1), &[body]).expect("room on the disk");
        open.enter(7, call as u64 + 2);
        if call % 29 == 0 {
            // What a kill at this moment leaves: the files as they are.
            let copy = tempfile::tempdir().expect("a folder");
            let (log_copy, ring_copy) = names(copy.path());
            std::fs::copy(&log, &log_copy).expect("a copy");
            std::fs::copy(&ring, &ring_copy).expect("a copy");
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
        let mut open = Pages::create(&log, &ring, HEADER).expect("a log");
        open.keep_last(KEPT_BYTES).expect("a file system that gives back a part of a file");
        let written = bodies(11, 3000);
        for (call, body) in written.iter().enumerate() {
            open.append(head(call as u64 + 1), &[body]).expect("room on the disk");
        }
        assert!(open.figures().pages_filled > 100, "{:?}", open.figures());
        if killed {
            // As a killed process leaves it, once what was on its way to the disk is there.
            let full = FILE_HEADER_BYTES as u64 + open.figures().pages_filled * 4096;
            let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
            while std::fs::metadata(&log).expect("the log").len() < full {
                assert!(std::time::Instant::now() < until, "the writer is stuck");
                std::thread::yield_now();
            }
            std::mem::forget(open);
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
    let mut open = Pages::create(&log, &ring, HEADER).expect("a log");
    open.keep_last(1 << 30).expect("a file system that gives back a part of a file");
    let written = bodies(12, 200);
    for (call, body) in written.iter().enumerate() {
        open.append(head(call as u64 + 1), &[body]).expect("room on the disk");
    }
    open.finish().expect("room on the disk");
    let found = read(folder.path());
    assert!(found.iter().map(|record| &record.body).eq(&written));
    assert_eq!(Reader::open(&log, &ring).expect("a log").gap(), None);
}
