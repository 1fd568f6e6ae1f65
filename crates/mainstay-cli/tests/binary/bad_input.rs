//! Whatever is wrong with the command line, the directory or a request: a clear error, and nothing lost.

use crate::harness::{Folder, Service, mainstay_heeding_permissions, refused, refused_as, run};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// One way of spoiling a directory.
type Spoil<'a> = &'a dyn Fn(&Path);

type Headers<'a> = &'a [(&'a str, &'a str)];

const OPEN: &str = r#"{"open":{"account":"ann"}}"#;

#[test]
fn wrong_command_lines_are_refused_with_exit_code_2_and_a_word_on_what_is_wrong() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("full")).expect("a folder can be made");
    std::fs::write(folder.path("full").join("file"), "x").expect("a file can be written");
    for (arguments, word) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["demo", "--requests", "0"], "--requests"),
        (&["demo", "--requests", "many"], "many"),
        (&["demo", "--kills", "-1"], "-1"),
        (&["demo", "--level", "paper"], "paper"),
        (&["demo", "--level", "memory"], "memory"),
        (&["demo", "--dir", "full"], "not empty"),
        (&["serve", "--listen", "nowhere"], "nowhere"),
        (&["serve", "--page-bytes", "1000"], "power of two"),
        (&["serve", "--pages", "0"], "--pages"),
        (&["serve", "--backend", "tape"], "tape"),
        (&["serve", "--keys-max", "0"], "--keys-max"),
        (&["journal"], "Usage"),
        (&["journal", "dump"], "<DIR>"),
        (&["journal", "dump", "x", "--from", "first"], "first"),
        (&["outputs"], "URL|DIR"),
        (&["bench", "journal", "--quick", "--only", "no-such-figure"], "no figure"),
        (&["outputs", "resolve", "http://127.0.0.1:1", "7", "perhaps"], "perhaps"),
    ] {
        let said = run(&folder, arguments);
        assert_eq!(said.code, 2, "{arguments:?}: {}{}", said.out, said.err);
        assert!(said.err.contains(word), "{arguments:?}: `{word}` is missing: {}", said.err);
    }
}

#[test]
fn every_help_page_has_an_example_or_is_a_list_of_commands() {
    let folder = Folder::new();
    for arguments in [
        &["demo", "--help"][..],
        &["serve", "--help"],
        &["journal", "ls", "--help"],
        &["journal", "dump", "--help"],
        &["journal", "verify", "--help"],
        &["journal", "stat", "--help"],
        &["journal", "repair", "--help"],
        &["outputs", "--help"],
        &["bench", "journal", "--help"],
        &["bench", "step", "--help"],
        &["bench", "logging", "--help"],
        &["bench", "logging-cost", "--help"],
        &["bench", "transport", "--help"],
        &["sim", "--help"],
    ] {
        let said = run(&folder, arguments);
        assert_eq!(said.code, 0);
        assert!(said.out.contains("Example"), "{arguments:?}: {}", said.out);
    }
    assert!(run(&folder, &["--help"]).out.contains("Exit codes"));
}

#[test]
fn directories_that_hold_no_journal_are_told_from_damaged_ones() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("empty")).expect("a folder can be made");
    std::fs::write(folder.path("file"), "x").expect("a file can be written");
    for command in ["ls", "dump", "verify", "stat", "repair"] {
        for (place, word) in [("empty", "holds no journal"), ("missing", "missing"), ("file", "file")] {
            let said = run(&folder, &["journal", command, place]);
            assert_eq!(said.code, 3, "{command} {place}: {}{}", said.out, said.err);
            assert!(said.err.contains(word), "{command} {place}: {}", said.err);
        }
    }
    assert!(
        std::fs::read_dir(folder.path("empty")).expect("it is there").next().is_none(),
        "a look left a file behind"
    );
}

#[test]
fn files_of_another_journal_of_a_newer_version_truncated_or_missing_are_refused_by_name() {
    let folder = Folder::new();
    for name in ["ledger", "other"] {
        let service = Service::start(&folder, name, &[]);
        assert_eq!(service.call("1", OPEN).status, 200);
        // More than the ring holds: what it does hold is mended from there, and no damage.
        let long = format!(r#"{{"open":{{"account":"{}"}}}}"#, "x".repeat(12_000));
        for number in 0..30 {
            assert_eq!(service.call(&format!("long-{number}"), &long).status, 200);
        }
        service.kill();
    }
    let segment = "segment-0000000000000000";
    let spoil: [(&str, Spoil<'_>, &str); 5] = [
        (
            "foreign",
            &|directory| {
                std::fs::copy(folder.path("other").join(segment), directory.join(segment))
                    .expect("it can be copied");
            },
            "belongs to",
        ),
        (
            "truncated",
            &|directory| {
                let file = std::fs::OpenOptions::new()
                    .write(true)
                    .open(directory.join(segment))
                    .expect("it is there");
                file.set_len(4096 + 64).expect("it can be cut");
            },
            segment,
        ),
        ("missing", &|directory| std::fs::remove_file(directory.join(segment)).expect("it is there"), ""),
        (
            "headless",
            &|directory| std::fs::remove_file(directory.join("superblock")).expect("it is there"),
            "superblock",
        ),
        (
            "garbage",
            &|directory| {
                std::fs::write(directory.join("superblock"), [0x5A; 8192]).expect("it can be written");
            },
            "superblock",
        ),
    ];
    for (name, spoil, word) in spoil {
        let directory = folder.path(name);
        std::fs::create_dir(&directory).expect("a folder can be made");
        for entry in std::fs::read_dir(folder.path("ledger")).expect("it is there").flatten() {
            std::fs::copy(entry.path(), directory.join(entry.file_name())).expect("it can be copied");
        }
        spoil(&directory);
        let serve = refused(&folder, name);
        assert!(serve.err.contains(word), "{name}: `{word}` is missing: {}", serve.err);
        let verify = run(&folder, &["journal", "verify", name]);
        assert_ne!(verify.code, 0, "{name}: {}{}", verify.out, verify.err);
    }
    // Nothing of this has harmed the original.
    let service = Service::start(&folder, "ledger", &[]);
    assert!(service.call("1", OPEN).replayed);
}

#[test]
fn a_second_process_on_one_directory_is_refused_and_the_first_goes_on() {
    let folder = Folder::new();
    let service = Service::start(&folder, "ledger", &[]);
    let second = refused(&folder, "ledger");
    assert_eq!(second.code, 3, "{}", second.err);
    assert!(second.err.contains(&format!("process {}", service.pid())), "{}", second.err);
    assert_eq!(service.call("1", OPEN).status, 200);
}

#[test]
fn an_address_in_use_is_named() {
    let folder = Folder::new();
    let service = Service::start(&folder, "ledger", &[]);
    let address = service.url.trim_start_matches("http://");
    let second = run(&folder, &["serve", "--dir", "other", "--listen", address]);
    assert_eq!(second.code, 3, "{}", second.err);
    assert!(second.err.contains(address), "{}", second.err);
    assert!(!folder.path("other").exists(), "a start that goes no further made its directory");
}

#[test]
fn a_read_only_directory_is_refused_with_its_name() {
    let folder = Folder::new();
    let directory = folder.path("read-only");
    std::fs::create_dir(&directory).expect("a folder can be made");
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o555)).expect("it is ours");
    let Some(mut command) = mainstay_heeding_permissions(&folder) else {
        println!("skipped: a read-only directory: root writes into it all the same, and setpriv is missing");
        return;
    };
    command.args(["serve", "--dir", "read-only", "--listen", "127.0.0.1:0"]);
    let refused = refused_as(&mut command, "read-only");
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("read-only") && refused.err.contains("ermission"), "{}", refused.err);
    assert_eq!(std::fs::read_dir(&directory).expect("it may be read").count(), 0);
}

#[test]
fn malformed_requests_are_refused_before_they_are_logged() {
    let folder = Folder::new();
    let service = Service::start(&folder, "ledger", &["--body-bytes-max", "1000"]);
    let long_key = "k".repeat(256);
    let long_body = format!(r#"{{"open":{{"account":"{}"}}}}"#, "a".repeat(2000));
    let key = ("Idempotency-Key", "1");
    let requests: [(Headers<'_>, &[u8], u16); 11] = [
        (&[key], b"{", 400),
        (&[key], b"", 400),
        (&[key], b"\xFF\xFE", 400),
        (&[key], br#"{"open":{}}"#, 400),
        (&[key], br#"{"deposit":{"account":"a","amount":-1}}"#, 400),
        (&[key], br#"{"close":{"account":"a"}}"#, 400),
        (&[key], long_body.as_bytes(), 413),
        (&[("Idempotency-Key", &long_key)], OPEN.as_bytes(), 400),
        (&[("Idempotency-Key", "")], OPEN.as_bytes(), 400),
        (&[("Mainstay-Client", "1")], OPEN.as_bytes(), 400),
        (
            &[key, ("Mainstay-Client", "1"), ("Mainstay-Thread", "1"), ("Mainstay-Sequence", "1")],
            OPEN.as_bytes(),
            400,
        ),
    ];
    for (headers, body, status) in requests {
        let answered = service.post("/call", headers, body);
        let shown = String::from_utf8_lossy(body);
        assert_eq!(answered.status, status, "{headers:?} {shown}: {}", answered.body);
        let said = answered.json();
        for field in ["error", "message"] {
            assert!(said[field].as_str().is_some_and(|text| !text.is_empty()), "{headers:?} {shown}: {said}");
        }
    }
    assert_eq!(service.view()["operations"], 0, "a refused request was executed");
    let unknown_client = [("Mainstay-Client", "99"), ("Mainstay-Thread", "1"), ("Mainstay-Sequence", "1")];
    assert_eq!(service.post("/call", &unknown_client, OPEN).status, 410);
    assert_eq!(service.call("1", OPEN).status, 200);
    assert_eq!(service.call("1", r#"{"open":{"account":"bob"}}"#).status, 422);
    assert_eq!(service.view()["operations"], 1);
    service.kill();
    let stat = run(&folder, &["journal", "stat", "ledger", "--json"]).json();
    assert_eq!(stat["records_by_kind"]["request"], 1, "a refused request was logged: {stat}");
}

/// Not even root may make a folder in /sys.
#[test]
fn a_place_where_nothing_can_be_written_is_refused_with_its_name() {
    let folder = Folder::new();
    let place = "/sys/kernel/mainstay-test-ledger";
    let serve = refused(&folder, place);
    assert_eq!(serve.code, 3, "{}", serve.err);
    assert!(serve.err.contains(place), "{}", serve.err);
    let demo = run(&folder, &["demo", "--requests", "8", "--kills", "0", "--dir", place]);
    assert_eq!(demo.code, 3, "{}", demo.err);
    assert!(demo.err.contains(place), "{}", demo.err);
}
