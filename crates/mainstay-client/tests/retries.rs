//! Which ends of an attempt are repeated, with the same identity, and what is said when the deadline comes first.

use mainstay_client::{CallError, Client, Options};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A service that answers as told, one connection at a time; the last answer stays. `None` hangs up without one.
struct Scripted {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

type Line = Option<(u16, &'static str, &'static str)>;

fn scripted(script: Vec<Line>) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&heads);
    std::thread::spawn(move || {
        for (turn, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut text = Vec::new();
            let mut chunk = [0; 4096];
            while !complete(&text) {
                match stream.read(&mut chunk) {
                    Ok(0) | Err(_) => break,
                    Ok(bytes) => text.extend_from_slice(&chunk[..bytes]),
                }
            }
            seen.lock().unwrap().push(String::from_utf8_lossy(&text).to_lowercase());
            let line = script[turn.min(script.len() - 1)];
            if let Some((status, headers, body)) = line {
                let length = body.len();
                let response = format!(
                    "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
                );
                let _ = stream.write_all(response.as_bytes());
            }
        }
    });
    Scripted { address, heads }
}

fn complete(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.trim().parse().unwrap())
}

fn client(scripted: &Scripted) -> Client {
    let options = Options {
        call_deadline: Duration::from_secs(30),
        pause_min: Duration::from_millis(1),
        pause_max: Duration::from_millis(2),
        ..Options::default()
    };
    Client::connect(&format!("http://{}", scripted.address), options).unwrap()
}

fn hasty(scripted: &Scripted) -> Client {
    let pause = Duration::from_millis(200);
    let options = Options {
        call_deadline: Duration::from_millis(100),
        pause_min: pause,
        pause_max: pause,
        ..Options::default()
    };
    Client::connect(&format!("http://{}", scripted.address), options).unwrap()
}

const LEVEL: &str = "mainstay-level: disk\r\n";
const GOOD: Line = Some((200, LEVEL, "7"));

#[test]
fn what_may_pass_is_repeated_with_the_same_identity() {
    let scripted = scripted(vec![
        Some((200, LEVEL, "{\"client\":3}")),
        None,
        Some((409, "mainstay-error: still-running\r\n", "")),
        Some((503, "mainstay-error: outcome-unknown\r\nretry-after: 1\r\n", "")),
        Some((502, "", "a proxy's page")),
        GOOD,
    ]);
    let mut thread = client(&scripted).thread().unwrap();
    assert_eq!(thread.call::<_, u32>(&1).unwrap(), 7);
    let heads = scripted.heads.lock().unwrap();
    assert_eq!(heads.len(), 6);
    for head in &heads[1..] {
        for line in ["mainstay-client: 3", "mainstay-thread: 1", "mainstay-sequence: 1"] {
            assert!(head.contains(line), "{line} is missing in {head}");
        }
    }
}

#[test]
fn a_handlers_own_409_is_its_answer() {
    let scripted = scripted(vec![Some((409, LEVEL, "\"closed\""))]);
    let refused = client(&scripted).call_with_key::<_, u32>("k", &1).unwrap_err();
    assert!(
        matches!(&refused, CallError::Refused { status: 409, body } if body == b"\"closed\""),
        "{refused}"
    );
    assert!(refused.outcome_known());
    assert_eq!(scripted.heads.lock().unwrap().len(), 1);
}

type Expected = fn(&CallError) -> bool;

#[test]
fn what_will_not_pass_is_not_repeated() {
    let cases: [(u16, &str, Expected); 4] = [
        (410, "evicted", |error| matches!(error, CallError::Evicted)),
        (422, "key-reused", |error| matches!(error, CallError::KeyReused)),
        (
            400,
            "malformed-json",
            |error| matches!(error, CallError::Rejected { status: 400, code, .. } if code == "malformed-json"),
        ),
        (413, "body-too-large", |error| matches!(error, CallError::Rejected { status: 413, .. })),
    ];
    for (status, code, expected) in cases {
        let header = format!("mainstay-error: {code}\r\n").leak();
        let scripted = scripted(vec![Some((status, header, "{\"message\":\"m\"}"))]);
        let error = client(&scripted).call_with_key::<_, u32>("k", &1).unwrap_err();
        assert!(expected(&error), "{status}: {error}");
        assert_eq!(scripted.heads.lock().unwrap().len(), 1, "{status} was repeated");
    }
}

#[test]
fn at_the_deadline_it_is_said_whether_the_request_can_have_taken_effect() {
    let busy = scripted(vec![Some((503, "mainstay-error: busy-keys\r\n", ""))]);
    let error = hasty(&busy).call_with_key::<_, u32>("k", &1).unwrap_err();
    assert!(matches!(error, CallError::Unavailable { .. }) && error.outcome_known(), "{error}");
    let broken = scripted(vec![None]);
    let error = hasty(&broken).call_with_key::<_, u32>("k", &1).unwrap_err();
    assert!(matches!(error, CallError::Unknown { .. }) && !error.outcome_known(), "{error}");
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = Scripted { address: nobody, heads: Arc::default() };
    let error = hasty(&nobody).call_with_key::<_, u32>("k", &1).unwrap_err();
    assert!(matches!(error, CallError::Unavailable { .. }), "{error}");
}

#[test]
fn bad_addresses_and_keys_are_refused_before_anything_is_sent() {
    for bad in ["", "127.0.0.1:7070", "ftp://host", "http://", "http://host/?q=1"] {
        assert!(Client::connect(bad, Options::default()).is_err(), "{bad} was taken");
    }
    let scripted = scripted(vec![GOOD]);
    for bad in ["", "two words", &"k".repeat(256), "ü"] {
        let error = client(&scripted).call_with_key::<_, u32>(bad, &1).unwrap_err();
        assert!(matches!(error, CallError::Request(_)), "{bad}: {error}");
    }
    assert!(scripted.heads.lock().unwrap().is_empty());
}
