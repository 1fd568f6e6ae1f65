//! A snapshot of nodes that are loaded and killed, restored into new directories: what the line holds is there once.

use crate::harness::{Folder, PATIENCE, run};
use crate::nodes::{Nodes, Running, ask};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Kills while snapshots are tried.
const KILLS: usize = 4;

/// Requests that are answered before a snapshot is asked for.
const BEFORE: u64 = 40;

fn body(number: u64) -> String {
    format!(r#"{{"client":0,"number":{number},"account":"account-0","amount":1}}"#)
}

/// Asks until there is an answer.
fn answer(port: u16, number: u64) -> String {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "request {number} is not answered");
        if let Some((200, said)) = ask(port, "POST", "/call", &format!("call-{number}"), &body(number)) {
            return said;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn snapshot_during_kills_and_go_back(policy: &str, how_taken: &[&str]) {
    let how = Running { policy, trust_transport: false };
    let mut nodes = Nodes::start(&how);
    let port = nodes.http[0];
    let before: Vec<String> = (0..BEFORE).map(|number| answer(port, number)).collect();
    let (asked, over) = (AtomicU64::new(BEFORE), AtomicBool::new(false));
    let urls: Vec<String> = nodes.http.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
    let taken_into = Folder::new();
    let too_few = run(&taken_into, &["snapshot", "line", "--node", &urls[0], &urls[2]]);
    assert_eq!(too_few.code, 2, "{}", too_few.err);
    assert!(
        too_few.err.contains("3 nodes, and --node names 2: give the URL of every node, also of 2."),
        "{}",
        too_few.err
    );
    let taken = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                answer(port, asked.fetch_add(1, Ordering::Relaxed));
            }
        });
        let snapshot = scope.spawn(|| {
            let mut arguments = vec!["snapshot", "line", "--json"];
            arguments.extend(how_taken);
            arguments.push("--node");
            arguments.extend(urls.iter().map(String::as_str));
            run(&taken_into, &arguments)
        });
        for kill in 0..KILLS {
            nodes.kill_and_start(1 + kill % 2);
            nodes.wait_until_ready(1 + kill % 2);
        }
        let taken = snapshot.join().expect("it does not panic");
        over.store(true, Ordering::Relaxed);
        taken
    });
    assert_eq!(taken.code, 0, "{}", taken.err);
    let manifest = taken.json();
    if how_taken.contains(&"--blocking") {
        assert_eq!(manifest["messages_on_the_way"], 0, "{manifest}");
    }
    let asked = asked.load(Ordering::Relaxed);
    drop(nodes);

    let verified = run(&taken_into, &["snapshot", "verify", "line"]);
    assert_eq!(verified.code, 0, "{}", verified.err);
    assert!(verified.out.contains("3 nodes, one consistent line"), "{}", verified.out);

    let folder = Folder::new();
    let line = taken_into.path("line");
    let line = line.to_str().expect("a path of this test is text");
    for node in ["1", "2", "3"] {
        let to = format!("n{node}.mainstay");
        let restored = run(&folder, &["restore", line, "--node", node, "--to", &to]);
        assert_eq!(restored.code, 0, "{}", restored.err);
        let again = run(&folder, &["restore", line, "--node", node, "--to", &to]);
        assert_eq!(again.code, 2, "a directory that is not empty is refused: {}", again.err);
    }
    let nobody = run(&folder, &["restore", line, "--node", "4", "--to", "n4.mainstay"]);
    assert_eq!(nobody.code, 2);
    assert!(nobody.err.contains("no part of node 4; it has nodes 1, 2, 3"), "{}", nobody.err);
    let nodes = Nodes::start_in(folder, &how);
    let deliveries = |node: usize| manifest["nodes"][node]["deliveries"].as_u64().expect("a number");
    for node in 0..3 {
        let (_, status) = ask(nodes.http[node], "GET", "/health", "", "").expect("it is ready");
        let now = serde_json::from_str::<serde_json::Value>(&status).expect("JSON");
        assert!(now["deliveries"].as_u64() >= Some(deliveries(node)), "{status}");
    }
    // Everybody asks again: what the line holds is answered as before, and everything is there once.
    let again: Vec<String> = (0..asked).map(|number| answer(nodes.http[0], number)).collect();
    assert_eq!(again[..before.len()], before);
    assert_eq!((0..3).map(|node| nodes.folds(node)).collect::<Vec<_>>(), [2 * asked, asked, asked]);

    let part = taken_into.path("line").join("node-2");
    let mut bytes = std::fs::read(&part).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x20;
    std::fs::write(&part, bytes).expect("it can be written");
    let damaged = run(&taken_into, &["snapshot", "verify", "line"]);
    assert_eq!(damaged.code, 1, "{} {}", damaged.out, damaged.err);
    assert!(damaged.err.contains("line/node-2 cannot be used"), "the file is named: {}", damaged.err);
}

#[test]
fn a_directory_that_is_no_snapshot_is_met_with_the_next_step() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("empty")).expect("a folder");
    std::fs::write(folder.path("file"), "").expect("a file");
    for (name, what) in
        [("absent", "absent is not there"), ("empty", "empty is no snapshot"), ("file", "file is a file")]
    {
        for arguments in
            [&["snapshot", "verify", name][..], &["restore", name, "--node", "1", "--to", "n1.mainstay"]]
        {
            let said = run(&folder, arguments);
            assert_eq!(said.code, 3, "{}", said.err);
            let next = "name the directory that `mainstay snapshot` made";
            assert!(said.err.contains(what) && said.err.contains(next), "{}", said.err);
        }
    }
}

#[test]
fn a_line_taken_during_kills_is_restored_under_hybrid() {
    snapshot_during_kills_and_go_back("hybrid", &[]);
}

#[test]
fn a_line_taken_during_kills_is_restored_under_optimistic() {
    snapshot_during_kills_and_go_back("optimistic", &[]);
}

#[test]
fn a_line_with_empty_channels_taken_during_kills_is_restored_under_sender_based() {
    snapshot_during_kills_and_go_back("sender-based", &["--blocking"]);
}

#[test]
fn nodes_whose_coordinator_was_killed_go_on_by_themselves() {
    let nodes = Nodes::start(&Running { policy: "hybrid", trust_transport: false });
    answer(nodes.http[0], 0);
    let (status, named) = ask(nodes.http[0], "POST", "/snapshots/block", "", "").expect("it answers");
    assert_eq!(status, 202, "{named}");
    let named: serde_json::Value = serde_json::from_str(&named).expect("JSON");
    let snapshot = named["snapshot"].as_str().expect("a name");
    for &port in &nodes.http[1..] {
        let blocked = ask(port, "POST", &format!("/snapshots/{snapshot}/block"), "", "");
        assert_eq!(blocked.map(|(status, _)| status), Some(202));
    }
    let report = |port: u16| {
        let (_, said) =
            ask(port, "GET", &format!("/snapshots/{snapshot}/block"), "", "").expect("it answers");
        serde_json::from_str::<serde_json::Value>(&said).expect("JSON")
    };
    assert!(nodes.http.iter().all(|&port| report(port)["blocked"] == true));
    let other = ask(nodes.http[0], "POST", "/snapshots/99-1-1/block", "", "");
    assert_eq!(other.map(|(status, _)| status), Some(409), "it is blocked for another one");
    let unfinished = ask(nodes.http[0], "POST", &format!("/snapshots/{snapshot}/stop"), "", "");
    assert_eq!(unfinished.map(|(status, _)| status), Some(409), "its part is not final");
    // Nobody releases them: this one waits until its node's limit is reached, and is answered then.
    answer(nodes.http[0], 1);
    assert_eq!(report(nodes.http[0])["blocked"], false);
}
