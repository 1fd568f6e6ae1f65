//! `mainstay journal`: looking changes nothing, damage is named, repair does what was agreed to.

use crate::harness::{Folder, Service, mainstay, refused, run, said};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

/// A ledger that was killed after `requests` requests.
fn killed_ledger(folder: &Folder, requests: usize) {
    let service = Service::start(folder, "ledger", &[]);
    for number in 0..requests {
        assert_eq!(service.call(&format!("key-{number}"), r#"{"open":{"account":"ann"}}"#).status, 200);
    }
    service.kill();
}

/// All files of a directory.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    std::fs::read_dir(directory)
        .expect("the directory is there")
        .map(|entry| {
            let path = entry.expect("it can be listed").path();
            let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
            (name, std::fs::read(path).expect("it can be read"))
        })
        .collect()
}

/// Flips a bit of the record of request `number`, which lies below the watermark; returns its LSN.
fn damage(folder: &Folder, number: usize) -> u64 {
    let dump = run(folder, &["journal", "dump", "ledger", "--json"]).out;
    let entries: Vec<serde_json::Value> =
        dump.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let entry = entries
        .iter()
        .find(|entry| entry["says"].as_str().is_some_and(|says| says.contains(&format!("key key-{number} "))))
        .expect("the request is recorded");
    let lsn = entry["lsn"].as_u64().expect("a record has an LSN");
    let header_bytes = 4096;
    let segment = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(folder.path("ledger").join("segment-0000000000000000"))
        .expect("the first segment is there");
    let mut byte = [0];
    let offset = header_bytes + lsn + 40;
    segment.read_exact_at(&mut byte, offset).expect("the record is in the file");
    segment.write_all_at(&[byte[0] ^ 0x10], offset).expect("the file can be written");
    lsn
}

#[test]
fn looking_shows_every_request_and_changes_nothing() {
    let folder = Folder::new();
    killed_ledger(&folder, 12);
    let before = contents(&folder.path("ledger"));
    let dump = run(&folder, &["journal", "dump", "ledger"]);
    assert_eq!(dump.code, 0, "{}", dump.err);
    for number in 0..12 {
        assert!(dump.out.contains(&format!("key key-{number} {{\"open\"")), "{}", dump.out);
    }
    assert!(dump.out.contains("handler `ledger` version 1"), "{}", dump.out);
    let some = run(&folder, &["journal", "dump", "ledger", "--limit", "3", "--json"]);
    assert_eq!(some.out.lines().count(), 3);

    let ls = run(&folder, &["journal", "ls", "ledger", "--json"]).json();
    assert_eq!(ls["segments"][0]["in_use"], true, "{ls}");
    let stat = run(&folder, &["journal", "stat", "ledger", "--json"]).json();
    assert_eq!(stat["records_by_kind"]["request"], 12, "{stat}");
    assert_eq!((&stat["sealed"], &stat["damaged_lsn"]), (&false.into(), &serde_json::Value::Null), "{stat}");
    let verify = run(&folder, &["journal", "verify", "ledger"]);
    assert_eq!(verify.code, 0, "{}", verify.out);
    assert!(verify.out.starts_with("sound: "), "{}", verify.out);
    let repair = run(&folder, &["journal", "repair", "ledger", "--yes"]);
    assert_eq!((repair.code, repair.out.trim()), (0, "nothing to repair: the journal opens"));
    let mut after = contents(&folder.path("ledger"));
    after.insert("lock".to_owned(), before["lock"].clone());
    assert!(before == after, "looking changed a file");
}

#[test]
fn damage_below_the_watermark_is_named_and_refused_and_repair_gives_up_only_what_was_agreed_to() {
    let folder = Folder::new();
    killed_ledger(&folder, 20);
    // Starting and stopping makes everything durable, in the segments, past the ring.
    Service::start(&folder, "ledger", &[]).kill();
    let lsn = damage(&folder, 12);
    let mended = run(&folder, &["journal", "verify", "ledger"]);
    assert_eq!(mended.code, 0, "the ring has the record too: {}", mended.out);
    std::fs::remove_file(folder.path("ledger").join("ring")).expect("it is there");
    let before = contents(&folder.path("ledger"));

    let verify = run(&folder, &["journal", "verify", "ledger", "--json"]);
    assert_eq!(verify.code, 1, "{}", verify.out);
    assert_eq!(verify.json()["damaged_lsn"], lsn, "{}", verify.out);
    assert_eq!(verify.json()["damaged_file"], "segment-0000000000000000");

    let serve = refused(&folder, "ledger");
    for word in ["segment-0000000000000000", &lsn.to_string(), "mainstay journal repair"] {
        assert!(serve.err.contains(word), "`{word}` is missing: {}", serve.err);
    }

    let mut asked = mainstay(&folder)
        .args(["journal", "repair", "ledger"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    asked.stdin.take().expect("it is piped").write_all(b"no\n").expect("it reads the answer");
    let asked = said(asked.wait_with_output().expect("a child can be waited for"));
    assert_eq!(asked.code, 1, "{}", asked.out);
    assert!(asked.out.contains("GIVEN UP"), "{}", asked.out);
    let mut after = contents(&folder.path("ledger"));
    after.insert("lock".to_owned(), before["lock"].clone());
    assert!(before == after, "a repair that was not agreed to changed a file");

    let repaired = run(&folder, &["journal", "repair", "ledger", "--yes"]);
    assert_eq!(repaired.code, 0, "{}\n{}", repaired.out, repaired.err);
    let service = Service::start(&folder, "ledger", &[]);
    assert_eq!(service.view()["operations"], 12);
    assert!(service.call("key-11", r#"{"open":{"account":"ann"}}"#).replayed);
    assert!(!service.call("key-12", r#"{"open":{"account":"ann"}}"#).replayed);
}

#[test]
fn a_running_service_is_named_by_those_who_look() {
    let folder = Folder::new();
    let service = Service::start(&folder, "ledger", &[]);
    service.call("1", r#"{"open":{"account":"ann"}}"#);
    let stat = run(&folder, &["journal", "stat", "ledger", "--json"]).json();
    assert_eq!(stat["written_by_process"], service.pid(), "{stat}");
    let repair = run(&folder, &["journal", "repair", "ledger", "--yes"]);
    assert_eq!(repair.code, 3, "{}", repair.out);
    assert!(repair.err.contains(&format!("process {}", service.pid())), "{}", repair.err);
    assert_eq!(service.call("2", r#"{"open":{"account":"bob"}}"#).status, 200);
}
