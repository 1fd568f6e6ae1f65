//! Level peers with real processes: machines that are lost with their directories, nodes of the region that die, lives that come back too late.

use crate::harness::{Folder, Service, mainstay, refused_as};
use crate::nodes::{ask, wait};
use crate::region::{Node, wait_for_members};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const CLIENTS: usize = 4;

/// Deposits of each client.
const DEPOSITS: usize = 150;

/// Three nodes that keep a region.
fn region(folder: &Folder) -> [Node; 3] {
    let first = Node::start(folder, "g1", &["--init", "--region", "data:level=process"]);
    let join = first.nodes_at.to_string();
    let nodes =
        [first, Node::start(folder, "g2", &["--join", &join]), Node::start(folder, "g3", &["--join", &join])];
    nodes.iter().for_each(|node| wait_for_members(folder, node, 3));
    nodes
}

fn addresses(nodes: &[Node]) -> String {
    nodes.iter().map(|node| node.nodes_at.to_string()).collect::<Vec<_>>().join(",")
}

fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn port_of(service: &Service) -> u16 {
    service.url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

fn signal(service: &Service, signal: rustix::process::Signal) {
    let pid =
        rustix::process::Pid::from_raw(i32::try_from(service.pid()).expect("a number")).expect("a process");
    rustix::process::kill_process(pid, signal).expect("a child can be signalled");
}

/// Whether all threads of a process are stopped: a signal takes its time.
fn stands_still(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it is there");
    let state = |stat: String| stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    threads
        .flatten()
        .all(|thread| std::fs::read_to_string(thread.path().join("stat")).ok().and_then(state) == Some('T'))
}

fn deposit(account: &str) -> String {
    format!(r#"{{"deposit":{{"account":"{account}","amount":1}}}}"#)
}

fn open(account: &str) -> String {
    format!(r#"{{"open":{{"account":"{account}"}}}}"#)
}

/// Asks until it is answered 200, wherever the service is.
fn insist(port: &Mutex<u16>, key: &str, body: &str) -> String {
    let mut answer = None;
    wait("an answer", || {
        let at = *port.lock().expect("nobody panics with it");
        answer = ask(at, "POST", "/call", key, body).filter(|(status, _)| *status == 200);
        answer.is_some()
    });
    answer.expect("it was waited for").1
}

#[test]
fn nothing_is_lost_and_nothing_doubled_when_machines_go_for_good_and_nodes_of_the_region_die() {
    let folder = Folder::new();
    let mut nodes = region(&folder);
    let keep = addresses(&nodes);
    let flags = ["--level", "peers", "--keep", &keep, "--checkpoint-bytes", "30000"];
    let service = Service::start(&folder, "home0", &[&flags[..], &["--keep-new"]].concat());
    let port = Mutex::new(port_of(&service));
    let done = AtomicUsize::new(0);
    let answers: Mutex<Vec<(String, String, String)>> = Mutex::default();
    let service = thread::scope(|scope| {
        let mut service = service;
        for client in 0..CLIENTS {
            let (port, done, answers) = (&port, &done, &answers);
            scope.spawn(move || {
                let account = format!("account-{client}");
                for number in 0..=DEPOSITS {
                    let body = if number == 0 { open(&account) } else { deposit(&account) };
                    let key = format!("{client}-{number}");
                    let answer = insist(port, &key, &body);
                    answers.lock().expect("nobody panics with it").push((key, body, answer));
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let all = CLIENTS * (DEPOSITS + 1);
        for round in 1..=4 {
            wait("requests", || done.load(Ordering::Relaxed) > all * round / 6);
            // The machine goes with its disk; in between a node of the region dies, and comes back afterwards.
            let node = round % 3;
            let (address, name) = (nodes[node].nodes_at.to_string(), format!("g{}", node + 1));
            let before = service;
            if round % 2 == 0 {
                nodes[node].end();
            }
            before.kill();
            std::fs::remove_dir_all(folder.path(&format!("home{}", round - 1))).expect("it is there");
            if round % 2 == 1 {
                nodes[node].end();
            }
            service = Service::start(&folder, &format!("home{round}"), &flags);
            *port.lock().expect("nobody panics with it") = port_of(&service);
            nodes[node] = Node::start_on(&folder, &name, [&address, "127.0.0.1:0"], &[]);
            nodes.iter().for_each(|node| wait_for_members(&folder, node, 3));
        }
        service
    });
    let answers = answers.into_inner().expect("nobody panicked with it");
    let receipt = |answer: &str| -> serde_json::Value { serde_json::from_str(answer).expect("a receipt") };
    let places: BTreeSet<u64> =
        answers.iter().map(|(.., answer)| receipt(answer)["operation"].as_u64().expect("a place")).collect();
    assert_eq!(places.len(), CLIENTS * (DEPOSITS + 1), "each operation has a place of its own");
    assert_eq!(places.last(), Some(&(places.len() as u64)), "and there are no others");
    let view = service.view();
    for client in 0..CLIENTS {
        let entry = view["accounts"]
            .as_array()
            .and_then(|all| all.iter().find(|entry| entry["account"] == format!("account-{client}")));
        assert_eq!(entry.map(|entry| &entry["balance"]), Some(&DEPOSITS.into()), "{view}");
    }
    for (key, body, answer) in &answers {
        let again = service.call(key, body);
        assert_eq!((again.status, again.replayed, &again.body), (200, true, answer), "{key}");
    }
    assert!(has_metric(&service, "mainstay_kept_lsn"));
    assert_eq!(service.stop(), 0);
    // A clean stop elsewhere is one here: nothing is replayed.
    std::fs::remove_dir_all(folder.path("home4")).expect("it is there");
    let after = Service::start(&folder, "home5", &flags);
    assert_eq!(after.view(), view);
}

fn has_metric(service: &Service, name: &str) -> bool {
    let (_, text) = ask(port_of(service), "GET", "/metrics", "", "").expect("it answers");
    text.lines().any(|line| line.starts_with(name))
}

#[test]
fn a_life_that_was_stopped_and_replaced_gets_nothing_out() {
    let folder = Folder::new();
    let nodes = region(&folder);
    let keep = addresses(&nodes);
    let flags = ["--keep", &keep];
    let mut old = Service::start(&folder, "old", &["--keep", &keep, "--keep-new"]);
    assert_eq!(old.call("open", &open("ann")).status, 200);
    assert_eq!(old.call("one", &deposit("ann")).status, 200);
    let at = port_of(&old);
    signal(&old, rustix::process::Signal::STOP);
    wait("the stop", || stands_still(old.pid()));
    // What stands before its door when it wakes up: a read, a repetition, a new request. Nothing of that may be answered any more.
    let (answered, sent) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for asked in 0..12 {
            let (answered, sent) = (&answered, &sent);
            scope.spawn(move || {
                sent.fetch_add(1, Ordering::Relaxed);
                let said = match asked % 3 {
                    0 => ask(at, "POST", "/query", "", "{}"),
                    1 => ask(at, "POST", "/call", "one", &deposit("ann")),
                    _ => ask(at, "POST", "/call", &format!("late-{asked}"), &deposit("ann")),
                };
                answered
                    .fetch_add(usize::from(said.is_some_and(|(status, _)| status == 200)), Ordering::Relaxed);
            });
        }
        wait("the requests", || sent.load(Ordering::Relaxed) == 12);
        let new = Service::start(&folder, "new", &flags);
        assert_eq!(new.call("two", &deposit("ann")).status, 200);
        signal(&old, rustix::process::Signal::CONT);
        let (code, said) = old.ends();
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("has taken over"), "{said}");
        assert_eq!(new.view()["accounts"][0]["balance"], 2, "nothing of the old one's came in");
        assert_eq!(new.call("three", &deposit("ann")).status, 200);
        // Its directory is of no use any more, and says so; it does not take the place of the new one.
        let said = refused(&folder, "old", &flags);
        assert!(said.contains("which has taken over since this directory was used last"), "{said}");
        assert_eq!(new.call("four", &deposit("ann")).status, 200);
        // Killed, the new one comes back in its own directory.
        new.kill();
        let new = Service::start(&folder, "new", &flags);
        assert_eq!(new.view()["accounts"][0]["balance"], 4);
    });
    assert_eq!(answered.load(Ordering::Relaxed), 0, "answers of a life that was replaced");
}

/// What a service said that did not start.
fn refused(folder: &Folder, directory: &str, flags: &[&str]) -> String {
    let mut command = mainstay(folder);
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--body-bytes-max", "16384", "--dir", directory])
        .args(flags);
    refused_as(&mut command, directory).err
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a folder can be made");
    for entry in std::fs::read_dir(from).expect("it is a folder") {
        let entry = entry.expect("it can be read");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("there is room");
    }
}

#[test]
fn a_directory_is_kept_from_any_level_on_and_not_used_when_it_is_behind() {
    let folder = Folder::new();
    let first = Node::start(&folder, "g1", &["--init", "--region", "data:level=process"]);
    let keep = first.nodes_at.to_string();
    let flags = ["--keep", &keep, "--checkpoint-bytes", "8000"];
    // It has a past, and has been trimmed.
    let service = Service::start(&folder, "home", &["--level", "process", "--checkpoint-bytes", "8000"]);
    assert_eq!(service.call("open", &open("ann")).status, 200);
    for number in 0..200 {
        assert_eq!(service.call(&format!("past-{number}"), &deposit("ann")).status, 200);
    }
    service.kill();
    let said = refused(&folder, "home", &flags);
    assert!(said.contains("does not know `ledger`") && said.contains("--keep-new"), "{said}");
    let service = Service::start(&folder, "home", &[&flags[..], &["--keep-new"]].concat());
    assert_eq!(service.call("one", &deposit("ann")).status, 200);
    service.kill();
    copy(&folder.path("home"), &folder.path("behind"));
    let service = Service::start(&folder, "home", &flags);
    assert_eq!(service.call("two", &deposit("ann")).status, 200);
    service.kill();
    // A copy from before: another start has been made since.
    let said = refused(&folder, "behind", &flags);
    assert!(said.contains("has taken over since this directory was used last"), "{said}");
    // The same start, and less of the log, as after a power loss.
    std::fs::copy(folder.path("home").join("keep"), folder.path("behind").join("keep")).expect("it is there");
    for told in [&flags[..], &[&flags[..], &["--keep-anew"]].concat()] {
        let said = refused(&folder, "behind", told);
        assert!(said.contains("it lost power, or was repaired"), "{said}");
    }
    std::fs::remove_dir_all(folder.path("home")).expect("it is there");
    let service = Service::start(&folder, "elsewhere", &flags);
    assert_eq!(service.view()["accounts"][0]["balance"], 202);
    assert!(service.call("past-7", &deposit("ann")).replayed);
    service.kill();
    // A region that has lost everything does not make a directory the last one in silence.
    first.kill();
    std::fs::remove_dir_all(folder.path("g1")).expect("it is there");
    let again = Node::start(&folder, "g1", &["--init", "--region", "data:level=process"]);
    let keep = again.nodes_at.to_string();
    let said = refused(&folder, "elsewhere", &["--keep", &keep]);
    assert!(said.contains("it has lost that, or is another one"), "{said}");
    let service = Service::start(&folder, "elsewhere", &["--keep", &keep, "--keep-anew"]);
    assert_eq!(service.view()["accounts"][0]["balance"], 202);
    service.kill();
    std::fs::remove_dir_all(folder.path("elsewhere")).expect("it is there");
    let service = Service::start(&folder, "third", &["--keep", &keep]);
    assert_eq!(service.view()["accounts"][0]["balance"], 202);
}

#[test]
fn requests_wait_for_a_region_that_is_away_and_too_many_are_refused() {
    let folder = Folder::new();
    let node = Node::start(&folder, "g1", &["--init", "--region", "data:level=process"]);
    let keep = node.nodes_at.to_string();
    let service =
        Service::start(&folder, "home", &["--keep", &keep, "--keep-new", "--unkept-bytes-max", "2000"]);
    assert_eq!(service.call("open", &open("ann")).status, 200);
    node.kill();
    let at = port_of(&service);
    let (answered, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..40 {
            let (answered, refused) = (&answered, &refused);
            scope.spawn(move || match ask(at, "POST", "/call", &number.to_string(), &deposit("ann")) {
                Some((200, _)) => count(answered),
                Some((503, body)) if body.contains("busy-unkept") => count(refused),
                other => panic!("{other:?}"),
            });
        }
        wait("a refusal", || refused.load(Ordering::Relaxed) > 0);
        assert_eq!(answered.load(Ordering::Relaxed), 0, "nobody keeps anything");
        let _node = Node::start_on(&folder, "g1", [&keep, "127.0.0.1:0"], &[]);
        wait("the answers", || answered.load(Ordering::Relaxed) + refused.load(Ordering::Relaxed) == 40);
        assert!(answered.load(Ordering::Relaxed) > 0);
        assert_eq!(service.view()["accounts"][0]["balance"], answered.load(Ordering::Relaxed));
    });
}

#[test]
fn a_directory_that_is_kept_serves_without_its_region_only_when_it_has_left_it() {
    let folder = Folder::new();
    let node = Node::start(&folder, "g1", &["--init", "--region", "data:level=process"]);
    let keep = node.nodes_at.to_string();
    let flags = ["--keep", &keep];
    let service = Service::start(&folder, "home", &["--keep", &keep, "--keep-new"]);
    assert_eq!(service.call("open", &open("ann")).status, 200);
    assert_eq!(service.call("one", &deposit("ann")).status, 200);
    service.kill();
    for level in ["process", "disk"] {
        let said = refused(&folder, "home", &["--level", level]);
        assert!(said.contains("was started without it") && said.contains("--keep-leave"), "{said}");
    }
    let said = refused(&folder, "home", &["--keep", &keep, "--keep-as", "another"]);
    assert!(said.contains("is kept as `") && said.contains("--keep-as"), "{said}");
    let said = refused(&folder, "new", &["--keep", &keep, "--keep-as", "mistyped"]);
    assert!(said.contains("does not know `mistyped`"), "{said}");
    let said = refused(&folder, "new", &["--keep", &keep, "--keep-new"]);
    assert!(said.contains("was to be new, and is known"), "{said}");
    // It has been replaced: it may not leave, and is not given back.
    copy(&folder.path("home"), &folder.path("copy"));
    let service = Service::start(&folder, "home", &flags);
    assert_eq!(service.call("two", &deposit("ann")).status, 200);
    service.kill();
    let leave = ["--level", "process", "--keep", &keep, "--keep-leave"];
    let said = refused(&folder, "copy", &leave);
    assert!(said.contains("has taken over since this directory was used last"), "{said}");
    let said = refused(&folder, "nothing", &leave);
    assert!(said.contains("has no journal of `ledger`"), "{said}");
    assert!(!folder.path("nothing").join("superblock").exists());
    let service = Service::start(&folder, "home", &leave);
    assert_eq!(service.call("three", &deposit("ann")).status, 200);
    service.kill();
    let service = Service::start(&folder, "home", &["--level", "process"]);
    assert_eq!(service.view()["accounts"][0]["balance"], 3);
    // Nobody is filled from what the region had of it.
    let said = refused(&folder, "elsewhere", &flags);
    assert!(said.contains("does not know"), "{said}");
    assert_eq!(service.stop(), 0);
    // And back.
    let service = Service::start(&folder, "home", &["--keep", &keep, "--keep-new"]);
    assert_eq!(service.call("four", &deposit("ann")).status, 200);
    service.kill();
    std::fs::remove_dir_all(folder.path("home")).expect("it is there");
    let service = Service::start(&folder, "elsewhere", &flags);
    assert_eq!(service.view()["accounts"][0]["balance"], 4);
}

#[test]
fn a_clean_stop_waits_until_the_region_has_all_and_says_so_if_it_is_in_vain() {
    let folder = Folder::new();
    let node = Node::start(&folder, "g1", &["--init", "--region", "data:level=process"]);
    let keep = node.nodes_at.to_string();
    let service = Service::start(&folder, "home", &["--keep", &keep, "--keep-new"]);
    assert_eq!(service.call("open", &open("ann")).status, 200);
    assert_eq!(service.stop(), 0);
    std::fs::remove_dir_all(folder.path("home")).expect("it is there");
    let mut service = Service::start(&folder, "second", &["--keep", &keep, "--stop-seconds", "2"]);
    assert!(has_metric(&service, "mainstay_kept_lsn"));
    assert_eq!(service.call("one", &deposit("ann")).status, 200);
    node.kill();
    signal(&service, rustix::process::Signal::TERM);
    let (code, said) = service.ends();
    assert_ne!(code, 0, "{said}");
    assert!(said.contains("did not take the rest of it"), "{said}");
    let _node = Node::start_on(&folder, "g1", [&keep, "127.0.0.1:0"], &[]);
    let service = Service::start(&folder, "second", &["--keep", &keep]);
    assert_eq!(service.view()["accounts"][0]["balance"], 1);
}

#[test]
fn a_level_without_a_region_and_a_region_that_is_not_there_are_refused() {
    let folder = Folder::new();
    let said = refused(&folder, "home", &["--level", "peers"]);
    assert!(said.contains("--keep ADDRESS:PORT"), "{said}");
    let said = refused(&folder, "home", &["--level", "peers", "--keep", "127.0.0.1:1", "--keep-leave"]);
    assert!(said.contains("another than peers"), "{said}");
    let said = refused(&folder, "home", &["--level", "disk", "--keep", "127.0.0.1:1"]);
    assert!(said.contains("give both, or neither"), "{said}");
    let said = refused(&folder, "home", &["--keep", "127.0.0.1:1", "--keep-as", "a{b"]);
    assert!(said.contains("without braces"), "{said}");
    let said = refused(&folder, "home", &["--keep", "127.0.0.1:1"]);
    assert!(said.contains("the region that keeps the log cannot be reached"), "{said}");
    assert!(!folder.path("home").join("superblock").exists());
}
