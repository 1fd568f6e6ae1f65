//! The HTTP contract: what is answered, and that nothing malformed is ever logged.

use crate::support::{
    Bank, Command, PATIENCE, Receipt, call, deposit, get, metric, open_the_door, post, raw, read_response,
    server, try_post, until, until_somebody_waits, view,
};
use std::io::Write;
use std::net::TcpStream;

#[test]
fn a_key_gives_the_first_answer_again_and_no_other_body() {
    let folder = tempfile::tempdir().unwrap();
    let running = server(&folder.path().join("d")).start().unwrap();
    let address = running.address();
    let first = call(address, "k1", &deposit("a", 5));
    assert_eq!((first.status, first.json::<Receipt>().balance), (200, 5));
    assert_eq!(first.header("mainstay-level"), Some("disk"));
    assert_eq!(first.header("mainstay-replayed"), None);
    let expires: u64 = first.header("mainstay-key-expires").unwrap().parse().unwrap();
    let again = call(address, "\"k1\"", &deposit("a", 5));
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(again.header("mainstay-replayed"), Some("true"));
    assert_eq!(again.header("mainstay-key-expires").unwrap().parse::<u64>().unwrap(), expires);
    let other = call(address, "k1", &deposit("a", 6));
    assert_eq!((other.status, other.header("mainstay-error")), (422, Some("key-reused")));
    assert_eq!(view(address).accounts["a"], 5);
    // Without an identity there is no promise: sent twice, it takes effect twice.
    let body = serde_json::to_vec(&deposit("a", 1)).unwrap();
    post(address, "/call", &[], &body);
    assert_eq!(post(address, "/call", &[], &body).json::<Receipt>().balance, 7);
}

#[test]
fn a_refusal_of_the_handler_is_an_answer_not_a_conflict() {
    let folder = tempfile::tempdir().unwrap();
    let running = server(&folder.path().join("d")).start().unwrap();
    let refused = call(running.address(), "k1", &Command::Refuse);
    assert_eq!((refused.status, refused.header("mainstay-error")), (409, None));
    assert_eq!(refused.header("mainstay-level"), Some("disk"));
    assert_eq!(call(running.address(), "k1", &Command::Refuse).header("mainstay-replayed"), Some("true"));
}

#[test]
fn a_client_number_recognises_repetitions_until_the_next_request() {
    let folder = tempfile::tempdir().unwrap();
    let running = server(&folder.path().join("d")).start().unwrap();
    let address = running.address();
    let registered: serde_json::Value = post(address, "/clients", &[], b"").json();
    let client = registered["client"].as_u64().unwrap().to_string();
    let body = serde_json::to_vec(&deposit("a", 5)).unwrap();
    let send = |sequence: &str| {
        let headers =
            [("Mainstay-Client", client.as_str()), ("Mainstay-Thread", "1"), ("Mainstay-Sequence", sequence)];
        post(address, "/call", &headers, &body)
    };
    assert_eq!(send("1").json::<Receipt>().balance, 5);
    assert_eq!(send("1").header("mainstay-replayed"), Some("true"));
    assert_eq!(send("2").json::<Receipt>().balance, 10);
    let old = send("1");
    assert_eq!((old.status, old.header("mainstay-error")), (410, Some("evicted")));
    assert_eq!(view(address).accounts["a"], 10);
}

/// Name, headers, body, and the status and code expected.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [u8], u16, &'a str);

#[test]
fn what_is_malformed_is_refused_before_it_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let running = server(&folder.path().join("d")).start().unwrap();
    let address = running.address();
    let good: &[u8] = br#"{"do":"deposit","account":"a","amount":1}"#;
    let too_large = vec![b' '; (16 << 10) + 1];
    let far_too_large = vec![b' '; 1 << 20];
    let long_key = "k".repeat(256);
    let before = metric(address, "mainstay_journal_appends_total");
    let cases: &[Case<'_>] = &[
        ("no body", &[], b"", 400, "malformed-json"),
        ("half a body", &[], b"{\"do\":", 400, "malformed-json"),
        ("two bodies", &[], b"{} {}", 400, "malformed-json"),
        ("another shape", &[], b"{\"do\":\"deposit\"}", 400, "unfit-body"),
        ("an unknown command", &[], b"{\"do\":\"rob\"}", 400, "unfit-body"),
        ("no UTF-8", &[], b"\"\xff\"", 400, "malformed-utf8"),
        ("too long", &[], &too_large, 413, "body-too-large"),
        ("far too long", &[], &far_too_large, 413, "body-too-large"),
        ("an empty key", &[("Idempotency-Key", "\"\"")], good, 400, "malformed-headers"),
        ("a long key", &[("Idempotency-Key", &long_key)], good, 400, "malformed-headers"),
        ("a key in two words", &[("Idempotency-Key", "a b")], good, 400, "malformed-headers"),
        ("two keys", &[("Idempotency-Key", "a"), ("Idempotency-Key", "b")], good, 400, "malformed-headers"),
        ("half an identity", &[("Mainstay-Client", "1")], good, 400, "malformed-headers"),
        (
            "two identities",
            &[
                ("Idempotency-Key", "a"),
                ("Mainstay-Client", "1"),
                ("Mainstay-Thread", "1"),
                ("Mainstay-Sequence", "1"),
            ],
            good,
            400,
            "malformed-headers",
        ),
    ];
    for (name, headers, body, status, code) in cases {
        let response = post(address, "/call", headers, body);
        assert_eq!((response.status, response.header("mainstay-error")), (*status, Some(*code)), "{name}");
        let said: serde_json::Value = response.json();
        assert_eq!(said["error"], *code, "{name}");
        assert!(said["message"].as_str().unwrap().contains("Nothing was done"), "{name}: {said}");
    }
    for (method, path, status) in [
        ("GET", "/call", 405),
        ("POST", "/health", 405),
        ("POST", "/nowhere", 404),
        ("POST", "/outputs/x/resolve", 404),
    ] {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: t\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(raw(address, request.as_bytes()).unwrap().status, status, "{method} {path}");
    }
    assert_eq!(raw(address, b"NO HTTP AT ALL\r\n\r\n").unwrap().status, 400);
    let long_head = format!("POST /call HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(64 << 10));
    assert!(raw(address, long_head.as_bytes()).map_or(true, |response| response.status == 431));
    assert_eq!(metric(address, "mainstay_journal_appends_total"), before, "something malformed was logged");
    assert_eq!(view(address), Bank::default());
}

#[test]
fn a_body_that_never_comes_ends_without_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let running = server(&folder.path().join("d")).start().unwrap();
    let address = running.address();
    let before = metric(address, "mainstay_journal_appends_total");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"POST /call HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{\"do\"").unwrap();
    drop(stream);
    assert_eq!(call(address, "k1", &deposit("a", 1)).status, 200);
    assert_eq!(metric(address, "mainstay_journal_appends_total"), before + 1.0);
}

#[test]
fn over_each_limit_there_is_a_503_and_a_time_to_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let running = server(&folder.path().join("d"))
        .ingress(|ingress| {
            ingress.requests_in_flight_max = 1;
            ingress.connections_max = 3;
        })
        .limits(|limits| limits.keys_max = 2)
        .start()
        .unwrap();
    let address = running.address();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || call(address, "k1", &Command::Wait));
        until_somebody_waits();
        let busy = try_post(address, "/call", &[], br#"{"do":"refuse"}"#);
        open_the_door();
        let busy = busy.unwrap();
        assert_eq!((busy.status, busy.header("mainstay-error")), (503, Some("busy-requests")));
        assert!(busy.header("retry-after").is_some());
        assert_eq!(first.join().unwrap().status, 200);
    });
    assert_eq!(call(address, "k2", &deposit("a", 1)).status, 200);
    let full = call(address, "k3", &deposit("a", 1));
    assert_eq!((full.status, full.header("mainstay-error")), (503, Some("busy-keys")));
    assert!(full.header("retry-after").is_some());
    assert_eq!(
        call(address, "k2", &deposit("a", 1)).header("mainstay-replayed"),
        Some("true"),
        "a key was evicted"
    );

    let mut held: Vec<TcpStream> = Vec::new();
    let refused = loop {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n").unwrap();
        match read_response(&mut stream) {
            Ok(response) if response.status == 200 => held.push(stream),
            other => break other,
        }
        assert!(held.len() <= 3, "more connections than the limit");
    };
    if let Ok(refused) = refused {
        assert_eq!((refused.status, refused.header("mainstay-error")), (503, Some("busy-connections")));
    }
    drop(held);
    until("a free connection", || {
        try_post(address, "/query", &[], b"").is_ok_and(|response| response.status == 200)
    });
}

#[test]
fn health_and_outputs_say_the_level() {
    let folder = tempfile::tempdir().unwrap();
    let running = server(&folder.path().join("d")).level(mainstay::Level::Process).start().unwrap();
    let health: serde_json::Value = get(running.address(), "/health").json();
    assert_eq!((&health["status"], &health["level"]), (&"running".into(), &"process".into()));
    let outputs: serde_json::Value = get(running.address(), "/outputs").json();
    assert_eq!((&outputs["level"], outputs["outputs"].as_array().unwrap().len()), (&"process".into(), 0));
    assert!(get(running.address(), "/metrics").body.contains("mainstay_info{level=\"process\"} 1"));
}
