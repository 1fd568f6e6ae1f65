//! Output ports against real receivers, across crashes of the service and of the connection.

use crate::support::{Command, Served, Surroundings, call, get, post, server, until, view};
use mainstay::{Guarantee, OutputPort};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// What a receiver does with the next requests; the last one stays.
#[derive(Clone, Copy, Debug)]
enum Does {
    Answer(u16),
    /// Takes the request, then breaks the connection.
    TakeAndHangUp,
}

/// A receiver that counts how often it has seen each key.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    seen: Arc<Mutex<BTreeMap<String, u32>>>,
    asked: Arc<Mutex<u32>>,
    script: Arc<Mutex<Vec<Does>>>,
}

impl Receiver {
    fn start(script: &[Does]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
            asked: Arc::default(),
            script: Arc::new(Mutex::new(script.to_vec())),
        };
        let of_thread = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let receiver = of_thread.clone();
                std::thread::spawn(move || receiver.serve(stream.unwrap()));
            }
        });
        receiver
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut text = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            while let Some((head_end, length)) = whole(&text) {
                let head = String::from_utf8_lossy(&text[..head_end]).into_owned();
                text.drain(..head_end + 4 + length);
                let status = if head.starts_with("GET ") {
                    *self.asked.lock().unwrap() += 1;
                    let key =
                        head.split("key=").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
                    if self.seen.lock().unwrap().contains_key(&key) { 200 } else { 404 }
                } else {
                    let key = header(&head, "idempotency-key").expect("every output has a key").to_owned();
                    let mut script = self.script.lock().unwrap();
                    let does = if script.len() > 1 { script.remove(0) } else { script[0] };
                    let took = !matches!(does, Does::Answer(400..));
                    *self.seen.lock().unwrap().entry(key).or_default() += u32::from(took);
                    match does {
                        Does::Answer(status) => status,
                        Does::TakeAndHangUp => return,
                    }
                };
                let response = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n");
                if stream.write_all(response.as_bytes()).is_err() {
                    return;
                }
            }
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(bytes) => text.extend_from_slice(&chunk[..bytes]),
            }
        }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    fn sendings(&self) -> Vec<u32> {
        self.seen.lock().unwrap().values().copied().collect()
    }
}

fn whole(text: &[u8]) -> Option<(usize, usize)> {
    let head_end = text.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&text[..head_end]);
    let length = header(&head, "content-length").map_or(0, |length| length.parse().unwrap());
    (text.len() >= head_end + 4 + length).then_some((head_end, length))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(": "))
        .find(|(is, _)| is.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

fn notify(port: &str, text: &str) -> Command {
    Command::Notify { port: port.to_owned(), text: text.to_owned() }
}

fn impatient(port: OutputPort) -> OutputPort {
    port.http_settings(|settings| {
        settings.pause_min = std::time::Duration::from_millis(1);
        settings.pause_max = std::time::Duration::from_millis(5);
    })
}

fn settled(address: SocketAddr) -> Vec<String> {
    view(address).settled.into_iter().map(|(_, outcome)| outcome).collect()
}

#[test]
fn a_receiver_that_fails_now_gets_it_again_and_one_that_refuses_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&[
        Does::Answer(503),
        Does::Answer(429),
        Does::TakeAndHangUp,
        Does::Answer(200),
        Does::Answer(422),
    ]);
    let port = impatient(OutputPort::http("notify", receiver.url()));
    let running = server(&folder.path().join("d")).output(port).start().unwrap();
    call(running.address(), "k1", &notify("notify", "one"));
    until("an acknowledgement", || settled(running.address()).len() == 1);
    assert_eq!(
        receiver.sendings(),
        [2],
        "taken once before the connection broke, and once more with the same key"
    );
    call(running.address(), "k2", &notify("notify", "two"));
    until("a refusal", || settled(running.address()).len() == 2);
    assert_eq!(settled(running.address()), ["Delivered { status: 200 }", "Refused { status: 422 }"]);
    let outputs: serde_json::Value = get(running.address(), "/outputs").json();
    assert_eq!(outputs["outputs"].as_array().unwrap().len(), 0);
    assert_eq!(outputs["ports"][0]["delivered"], 1);
    running.stop().unwrap();
}

/// A wrong address or lost credentials: what does not speak of the output itself must not cost it.
#[test]
fn an_output_that_finds_no_receiver_is_kept_and_the_listing_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&[Does::Answer(404)]);
    let port = impatient(OutputPort::http("notify", receiver.url()));
    let running = server(&folder.path().join("d")).output(port).start().unwrap();
    call(running.address(), "k1", &notify("notify", "one"));
    let of_port = || get(running.address(), "/outputs").json::<serde_json::Value>()["ports"][0].clone();
    until("trouble", || of_port()["trouble"] == "the receiver answers 404");
    assert_eq!(settled(running.address()), [""; 0]);
    *receiver.script.lock().unwrap() = vec![Does::Answer(301), Does::Answer(401), Does::Answer(200)];
    until("an acknowledgement", || settled(running.address()) == ["Delivered { status: 200 }"]);
    until("no trouble", || of_port()["trouble"].is_null());
    assert_eq!((receiver.sendings(), of_port()["refused"].as_u64()), (vec![2], Some(0)), "301 is no refusal");
    running.stop().unwrap();
}

/// One that the receiver will never take would count against the limit of outputs for ever.
#[test]
fn an_output_that_does_not_get_through_is_given_up_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let receiver = Receiver::start(&[Does::Answer(301)]);
    let port = || impatient(OutputPort::http("notify", receiver.url()));
    let running = server(&directory).output(port()).start().unwrap();
    let address = running.address();
    call(address, "k1", &notify("notify", "one"));
    let pending = |address| get(address, "/outputs").json::<serde_json::Value>()["outputs"].clone();
    until("trouble", || pending(address)[0]["trouble"] == "the receiver answers 301");
    let path = format!("/outputs/{}/resolve", pending(address)[0]["id"]);
    let resolve = |resolution: &str| {
        post(address, &path, &[], format!("{{\"resolution\":\"{resolution}\"}}").as_bytes()).status
    };
    assert_eq!(resolve("send-again"), 404, "it is sent again anyhow");
    assert_eq!(resolve("abandon"), 200);
    assert_eq!(settled(address), ["Abandoned"]);
    assert_eq!(resolve("abandon"), 404);
    assert_eq!(pending(address).as_array().unwrap().len(), 0);
    // One attempt may be under way.
    let at_most = receiver.sendings()[0] + 1;
    call(address, "k2", &notify("notify", "two"));
    let attempts_at_the_other = || receiver.sendings().get(1).copied().unwrap_or_default();
    until("attempts at the other", || attempts_at_the_other() >= 5);
    assert!(receiver.sendings()[0] <= at_most, "its port sends it again");
    running.stop().unwrap();
    let running = server(&directory).output(port()).start().unwrap();
    let so_far = attempts_at_the_other();
    until("attempts at the other", || attempts_at_the_other() >= so_far + 5);
    assert!(receiver.sendings()[0] <= at_most, "the next life sends it again");
    running.stop().unwrap();
}

#[test]
fn a_receiver_that_can_be_asked_is_asked_before_it_gets_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&[Does::TakeAndHangUp, Does::Answer(200)]);
    let port = impatient(OutputPort::http("notify", receiver.url()).ask_at(receiver.url()));
    let running = server(&folder.path().join("d")).output(port).start().unwrap();
    call(running.address(), "k1", &notify("notify", "one"));
    until("an acknowledgement", || settled(running.address()).len() == 1);
    assert_eq!(receiver.sendings(), [1]);
    assert_eq!(*receiver.asked.lock().unwrap(), 1);
}

#[test]
fn at_most_once_is_in_doubt_until_a_person_decides() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let receiver = Receiver::start(&[Does::TakeAndHangUp, Does::TakeAndHangUp, Does::Answer(200)]);
    let port = || impatient(OutputPort::http("notify", receiver.url()).guarantee(Guarantee::AtMostOnce));
    let running = server(&directory).output(port()).start().unwrap();
    let address = running.address();
    let states = |address| -> Vec<String> {
        let outputs: serde_json::Value = get(address, "/outputs").json();
        let outputs = outputs["outputs"].as_array().unwrap();
        outputs.iter().map(|output| output["state"].as_str().unwrap().to_owned()).collect()
    };
    call(address, "k1", &notify("notify", "one"));
    call(address, "k2", &notify("notify", "two"));
    until("doubt", || states(address) == ["in-doubt", "in-doubt"]);
    assert_eq!(receiver.sendings(), [1, 1], "sent again although nobody knows");
    let resolve = |address, id: u64, resolution: &str| {
        let body = format!("{{\"resolution\":\"{resolution}\"}}");
        post(address, &format!("/outputs/{id}/resolve"), &[], body.as_bytes()).status
    };
    let outputs: serde_json::Value = get(address, "/outputs").json();
    let ids: Vec<u64> = (0..2).map(|place| outputs["outputs"][place]["id"].as_u64().unwrap()).collect();
    assert_eq!(resolve(address, ids[0], "nonsense"), 400);
    assert_eq!(resolve(address, 99, "delivered"), 404);
    assert_eq!(resolve(address, ids[0], "delivered"), 200);
    running.stop().unwrap();

    let running = server(&directory).output(port()).start().unwrap();
    let address = running.address();
    assert_eq!(running.started().recovery.outputs_in_doubt, 1);
    assert_eq!(states(address), ["in-doubt"], "the doubt outlives a restart");
    assert_eq!(resolve(address, ids[1], "send-again"), 200);
    until("an acknowledgement", || states(address).is_empty());
    assert_eq!(receiver.sendings(), [1, 2]);
    assert_eq!(resolve(address, ids[1], "delivered"), 404);
}

/// A receiver that is down while the service is killed: every output arrives after all, each under one key.
#[test]
fn outputs_outlive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let receiver = Receiver::start(&[Does::Answer(503)]);
    let surroundings = Surroundings { output_url: Some(receiver.url()), ..Surroundings::default() };
    let mut served = Served::start(&directory, &surroundings);
    for number in 0..5 {
        assert_eq!(call(served.address(), &format!("k{number}"), &notify("notify", "x")).status, 200);
    }
    served.kill();
    *receiver.script.lock().unwrap() = vec![Does::Answer(200)];
    let mut served = Served::start(&directory, &surroundings);
    let address = served.address();
    until("all acknowledgements", || settled(address).len() == 5);
    assert_eq!(receiver.seen.lock().unwrap().len(), 5);
}

/// Lines are emitted while the service is killed again and again: each stands in the file once, in order.
#[test]
fn a_file_has_each_line_once_across_kills() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let path = folder.path().join("lines");
    let surroundings = Surroundings { output_file: Some(path.clone()), ..Surroundings::default() };
    let mut expected = String::new();
    for life in 0..6 {
        let mut served = Served::start(&directory, &surroundings);
        for number in 0..10 {
            let text = format!("{life}-{number}");
            assert_eq!(call(served.address(), &text, &notify("lines", &text)).status, 200);
            expected += &format!("\"{text}\"\n");
        }
        served.kill();
    }
    let mut served = Served::start(&directory, &surroundings);
    let address = served.address();
    until("all lines", || settled(address).len() == 60);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
}

fn lines_port(path: &Path) -> OutputPort {
    OutputPort::file("lines", path)
}

#[test]
fn a_rotated_file_is_completed_and_the_new_one_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines");
    let running = server(&folder.path().join("d")).output(lines_port(&path)).start().unwrap();
    call(running.address(), "k1", &notify("lines", "one"));
    until("a line", || settled(running.address()).len() == 1);
    std::fs::rename(&path, folder.path().join("lines.1")).unwrap();
    call(running.address(), "k2", &notify("lines", "two"));
    until("a line", || settled(running.address()).len() == 2);
    assert_eq!(std::fs::read_to_string(folder.path().join("lines.1")).unwrap(), "\"one\"\n");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "\"two\"\n");
    let rotations = std::fs::read_to_string(folder.path().join("lines.mainstay-rotations")).unwrap();
    assert_eq!(rotations.lines().count(), 1);
}

#[test]
fn foreign_bytes_in_the_file_stop_the_port_and_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines");
    let running = server(&folder.path().join("d")).output(lines_port(&path)).start().unwrap();
    let address = running.address();
    call(address, "k1", &notify("lines", "one"));
    until("a line", || settled(address).len() == 1);
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"foreign\n").unwrap();
    call(address, "k2", &notify("lines", "two"));
    let stopped = || {
        let outputs: serde_json::Value = get(address, "/outputs").json();
        outputs["ports"][0]["stopped"].as_str().map(str::to_owned)
    };
    until("a stop", || stopped().is_some());
    assert!(stopped().unwrap().contains("somebody else changed it"), "{:?}", stopped());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "\"one\"\nforeign\n");
    let outputs: serde_json::Value = get(address, "/outputs").json();
    assert_eq!(outputs["outputs"][0]["state"], "released", "the output was given up");
}

#[test]
fn a_file_has_one_writer_and_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines");
    let first = server(&folder.path().join("d1")).output(lines_port(&path)).start().unwrap();
    let refused = server(&folder.path().join("d2")).output(lines_port(&path)).start().map(drop).unwrap_err();
    assert!(format!("{:?}", refused).contains("Locked"), "{refused:?}");
    first.stop().unwrap();
    let refused = server(&folder.path().join("d2")).output(lines_port(&path)).start().map(drop).unwrap_err();
    assert!(format!("{:?}", refused).contains("OtherStore"), "{refused:?}");
}

#[test]
fn a_port_that_cannot_guarantee_what_was_declared_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let unfit = [
        OutputPort::http("p", "http://127.0.0.1:1/").guarantee(Guarantee::Asked),
        OutputPort::http("p", "no address"),
        OutputPort::stdout("p").guarantee(Guarantee::Deduplicated),
        OutputPort::file("p", folder.path().join("f")).guarantee(Guarantee::AtMostOnce),
    ];
    for (number, port) in unfit.into_iter().enumerate() {
        let directory = folder.path().join(number.to_string());
        assert!(server(&directory).output(port).start().is_err(), "case {number}");
    }
}

#[test]
fn outputs_of_files_and_of_standard_output_are_lines() {
    let lines = |port: OutputPort| port.declared().lines;
    assert!(lines(OutputPort::file("p", "f")) && lines(OutputPort::stdout("p")));
    assert!(!lines(OutputPort::http("p", "http://127.0.0.1:1/")));
}
