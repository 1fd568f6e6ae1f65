//! `mainstay mpi` on runs that are damaged, not whole, or no runs at all. The logs are written by the recorder's own code; no MPI is
//! needed. Real programs are in the tests of `mainstay-mpi`.

use crate::harness::{Folder, Said, run};
use mainstay_mpi::call::Call;
use mainstay_mpi::compression::Compression;
use mainstay_mpi::ending::{Cause, Ending};
use mainstay_mpi::field::{Field, Role};
use mainstay_mpi::format::{FileHeader, Kind};
use mainstay_mpi::payload::Payload;
use mainstay_mpi::recording::Recording;
use std::fs;
use std::path::Path;

const RANKS: usize = 2;
const CALLS: u64 = 12;
/// Exit code for a file of a recording that is damaged or missing.
const DAMAGED: i32 = 5;

/// Writes a run whose ranks call the same; `killed` ones end without an end.
fn record(folder: &Path, library: &str, killed: bool) {
    fs::create_dir(folder).expect("a folder");
    fs::write(folder.join("shim.so"), "").expect("a file");
    let header = FileHeader {
        run: [6; 16],
        page_bytes: 4096,
        pages: 2,
        payload: Payload::Receiver,
        compression: Compression::None,
        kept_pages: 0,
    };
    for rank in 0..RANKS {
        let name = format!("rank-{rank:05}");
        let mut recording = Recording::create(folder, &name, header, true).expect("a log");
        recording.write_texts(Kind::Names, ["MPI_Init", "MPI_Comm_rank"].into_iter());
        let start = ["size", "2", "library", library, "program", "/bin/true", "argument", "app"];
        recording.write_texts(Kind::Start, start.into_iter());
        for number in 0..CALLS {
            let mut call = Call::default();
            let function = u16::from(number > 0);
            recording.enter(function);
            call.begin(function, 0);
            call.put(&Field::Input(Role::Number, 1));
            call.put(&Field::Result(0));
            // SAFETY: the call has no memory of anybody else's.
            unsafe { recording.write(&mut call) };
        }
        recording.enter(1);
        if killed {
            std::mem::forget(recording);
        } else {
            recording.finish(Ending { cause: Cause::Finalized, ..Ending::default() });
        }
    }
}

fn said_with(said: &Said, code: i32, parts: &[&str]) {
    assert_eq!(said.code, code, "{}{}", said.out, said.err);
    for part in parts {
        assert!(said.out.contains(part) || said.err.contains(part), "{part}: {}{}", said.out, said.err);
    }
}

/// Every command that reads runs.
fn readers(folder: &str) -> [Vec<&str>; 6] {
    [
        vec!["mpi", "stat", folder],
        vec!["mpi", "check", folder],
        vec!["mpi", "timeline", folder, "--output", "page.html"],
        vec!["mpi", "diff", folder, folder],
        vec!["mpi", "extract", folder, "--rank", "0", "--output", "bundle"],
        vec!["mpi", "replay", folder, "--rank", "0"],
    ]
}

#[test]
fn a_folder_that_is_no_recording_is_met_with_the_next_step() {
    let folder = Folder::new();
    fs::create_dir(folder.path("empty")).expect("a folder");
    fs::create_dir(folder.path("other")).expect("a folder");
    fs::write(folder.path("other/thesis.tex"), "").expect("a file");
    for (name, what) in [
        ("absent", "absent is not there"),
        ("empty", "empty is empty"),
        ("other", "other is no recording"),
        ("other/thesis.tex", "thesis.tex is a file"),
    ] {
        for arguments in readers(name) {
            said_with(&run(&folder, &arguments), 3, &[what, "name the folder"]);
        }
    }
}

#[test]
fn a_damaged_log_is_named_with_its_place_and_its_last_good_call_by_every_command() {
    let folder = Folder::new();
    record(&folder.path("run"), "Open MPI v4.1.4", false);
    record(&folder.path("cut"), "Open MPI v4.1.4", true);
    assert_eq!(run(&folder, &["mpi", "stat", "run"]).code, 0);
    said_with(&run(&folder, &["mpi", "stat", "cut"]), 0, &["rank 0: cut off in MPI_Comm_rank, call 13"]);
    let log = folder.path("run/rank-00000.log");
    let mut bytes = fs::read(&log).expect("the log");
    // One of the calls; each is some 30 bytes long.
    let at = bytes.len() - 200;
    bytes[at] ^= 4;
    fs::write(&log, bytes).expect("a file");
    for arguments in readers("run").into_iter().filter(|arguments| arguments[1] != "replay") {
        let said = run(&folder, &arguments);
        said_with(&said, DAMAGED, &["rank-00000.log is damaged at byte", "It is good up to call"]);
    }
    assert!(!folder.path("bundle").exists());
    let stat = run(&folder, &["mpi", "stat", "run", "--json"]).json();
    let calls = stat["ranks"][0]["calls"].as_u64().expect("a number");
    assert!((1..CALLS).contains(&calls), "{calls}");
    said_with(&run(&folder, &["mpi", "stat", "run"]), DAMAGED, &[&format!("good up to call {calls}")]);
    let mut header = fs::read(&log).expect("the log");
    header[20] ^= 1;
    fs::write(&log, header).expect("a file");
    for arguments in readers("run") {
        said_with(&run(&folder, &arguments), DAMAGED, &["rank-00000.log", "the checksum of its header"]);
    }
}

#[test]
fn a_file_of_a_run_that_is_missing_is_named() {
    let folder = Folder::new();
    record(&folder.path("cut"), "Open MPI v4.1.4", true);
    fs::remove_file(folder.path("cut/rank-00001.ring")).expect("the ring");
    said_with(&run(&folder, &["mpi", "stat", "cut"]), DAMAGED, &["rank-00001.ring", "is missing"]);
    said_with(&run(&folder, &["mpi", "check", "cut"]), DAMAGED, &["rank-00001.ring", "is missing"]);
    record(&folder.path("run"), "Open MPI v4.1.4", false);
    fs::remove_file(folder.path("run/rank-00001.log")).expect("the log");
    fs::remove_file(folder.path("run/shim.so")).expect("the shim");
    let said = run(&folder, &["mpi", "stat", "run"]);
    said_with(
        &said,
        DAMAGED,
        &["rank-00001.log is missing", "shim.so is missing", "rank 1 cannot be replayed"],
    );
}

#[test]
fn runs_of_two_mpis_are_not_compared() {
    let folder = Folder::new();
    record(&folder.path("one"), "Open MPI v4.1.4", false);
    record(&folder.path("other"), "MPICH Version: 4.0.2", false);
    record(&folder.path("newer"), "Open MPI v5.0.11", false);
    let said = run(&folder, &["mpi", "diff", "one", "other"]);
    said_with(
        &said,
        2,
        &["Open MPI v4.1.4", "MPICH Version: 4.0.2", "only runs of MPIs with the same binary interface"],
    );
    said_with(&run(&folder, &["mpi", "diff", "one", "newer"]), 0, &["the runs have different MPI libraries"]);
}

#[test]
fn a_bound_that_is_too_small_is_refused_with_the_smallest() {
    let folder = Folder::new();
    let record =
        |options: &[&str]| run(&folder, &[&["mpi", "record"][..], options, &["--", "true"]].concat());
    said_with(
        &record(&["--keep-last", "2M"]),
        2,
        &["the smallest is 8M", "--page-bytes 4M", "--page-bytes 1M it is 2M"],
    );
    said_with(&record(&["--keep-last", "1G", "--page-bytes", "64K"]), 2, &["--page-bytes 1M or more", "64K"]);
    said_with(&record(&["--keep-last", "a lot"]), 2, &["K, M, G"]);
}
