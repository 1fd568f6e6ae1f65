//! `mainstay outputs`: what waits for its receiver, what is in doubt, and resolving it.

use crate::harness::{Folder, PATIENCE, Service, run};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A receiver that takes a notice and, unless told to answer, leaves its sender waiting.
struct Receiver {
    url: String,
    taken: Arc<AtomicUsize>,
    answers: Arc<AtomicUsize>,
    /// Connections left waiting are kept open, or their senders would know that there is no answer.
    _waiting: Arc<Mutex<Vec<std::net::TcpStream>>>,
}

impl Receiver {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let url = format!("http://{}/", listener.local_addr().expect("it is bound"));
        let (taken, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let waiting = Arc::new(Mutex::new(Vec::new()));
        let (taken_by_thread, answers_of_thread, waiting_of_thread) =
            (Arc::clone(&taken), Arc::clone(&answers), Arc::clone(&waiting));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection comes in");
                let mut request = [0; 4096];
                if stream.read(&mut request).is_ok_and(|bytes| bytes > 0) {
                    taken_by_thread.fetch_add(1, Ordering::SeqCst);
                    if answers_of_thread.load(Ordering::SeqCst) > 0 {
                        let _ = stream
                            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                        continue;
                    }
                }
                waiting_of_thread.lock().expect("nobody panics with it").push(stream);
            }
        });
        Self { url, taken, answers, _waiting: waiting }
    }
}

/// Asks for the list until it is as wanted.
fn wait_for(folder: &Folder, service: &Service, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let listed = run(folder, &["outputs", &service.url, "--json"]).json();
        if wanted(&listed) {
            return listed;
        }
        assert!(began.elapsed() < PATIENCE, "{listed}");
    }
}

#[test]
fn an_output_without_an_answer_is_in_doubt_after_a_kill_is_not_sent_again_and_can_be_resolved() {
    let folder = Folder::new();
    let receiver = Receiver::new();
    let flags = ["--notify-again", receiver.url.as_str()];
    let service = Service::start(&folder, "ledger", &flags);
    service.call("1", r#"{"open":{"account":"ann"}}"#);
    service.call("2", r#"{"deposit":{"account":"ann","amount":5}}"#);
    let of_port = |listed: &Value, state: &str| {
        let outputs = listed["outputs"].as_array().expect("a list").clone();
        outputs.into_iter().find(|output| output["port"] == "notify-again" && output["state"] == state)
    };
    wait_for(&folder, &service, |listed| of_port(listed, "released").is_some());
    let began = Instant::now();
    while receiver.taken.load(Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < PATIENCE, "the notice does not arrive");
        std::thread::yield_now();
    }
    service.kill();

    receiver.answers.store(1, Ordering::SeqCst);
    let service = Service::start(&folder, "ledger", &flags);
    let listed = wait_for(&folder, &service, |listed| of_port(listed, "in-doubt").is_some());
    assert_eq!(receiver.taken.load(Ordering::SeqCst), 1, "an output in doubt was sent again");
    let id = of_port(&listed, "in-doubt").expect("just seen")["id"].to_string();
    let table = run(&folder, &["outputs", &service.url]);
    assert!(table.out.contains("1 in doubt"), "{}", table.out);

    let unknown = run(&folder, &["outputs", "resolve", &service.url, "999", "abandon"]);
    assert_eq!(unknown.code, 1, "{}", unknown.err);
    let resolved = run(&folder, &["outputs", "resolve", &service.url, &id, "send-again"]);
    assert_eq!(resolved.code, 0, "{}", resolved.err);
    wait_for(&folder, &service, |listed| listed["outputs"].as_array().is_some_and(Vec::is_empty));
    assert_eq!(receiver.taken.load(Ordering::SeqCst), 2);
}

#[test]
fn nobody_serving_and_no_such_place_are_told_apart() {
    let folder = Folder::new();
    Service::start(&folder, "ledger", &[]).kill();
    let stopped = run(&folder, &["outputs", "ledger"]);
    assert_eq!(stopped.code, 3);
    assert!(stopped.err.contains("no process serves ledger"), "{}", stopped.err);
    let nowhere = run(&folder, &["outputs", "nowhere"]);
    assert_eq!(nowhere.code, 2, "{}", nowhere.err);
    let silent = run(&folder, &["outputs", "http://127.0.0.1:1"]);
    assert_eq!(silent.code, 3, "{}", silent.err);
}

#[test]
fn a_service_is_found_by_its_directory() {
    let folder = Folder::new();
    // Below the ports for outgoing connections, and taken from the process number: another one may have it all the same.
    let port = 10_000 + std::process::id() % 20_000;
    let listen = format!("127.0.0.1:{port}");
    let service = Service::start_with(&folder, "ledger", &["--listen", &listen]);
    let listed = run(&folder, &["outputs", "ledger", "--json"]);
    assert_eq!(listed.code, 0, "{}", listed.err);
    assert_eq!(listed.json()["level"], "disk");
    drop(service);
}
