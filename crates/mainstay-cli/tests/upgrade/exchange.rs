//! The exchange itself: the old version stops, the new one goes on, and nobody outside loses or sees anything twice.

use crate::saver::{Deposit, View};
use crate::served::{Served, Workplace, try_deposit, until};
use crate::trial;
use libtest_mimic::Trial;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_state_of_another_shape_is_taken_over", a_state_of_another_shape_is_taken_over),
        trial(
            "a_version_that_refuses_the_state_does_not_start",
            a_version_that_refuses_the_state_does_not_start,
        ),
        trial("a_killed_version_is_not_replaced", a_killed_version_is_not_replaced),
        trial(
            "a_held_output_keeps_the_bytes_of_the_old_version",
            a_held_output_keeps_the_bytes_of_the_old_version,
        ),
        trial(
            "upgrades_under_load_lose_nothing_and_double_nothing",
            upgrades_under_load_lose_nothing_and_double_nothing,
        ),
    ]
}

fn a_state_of_another_shape_is_taken_over() {
    let place = Workplace::new();
    let served = place.start("1", None);
    served.deposit("k1", 5);
    served.stop();
    let served = place.start("2", None);
    assert_eq!(served.view(), View { total: 5, deposits: Some(0) });
    assert_eq!(served.deposit("k1", 5), 5, "a repetition gets the answer that the old version gave");
    assert_eq!(served.deposit("k2", 6), 11);
    // Killed before or after the new version's first checkpoint: either way the same state comes back.
    served.kill();
    let served = place.start("2", None);
    assert_eq!(served.view(), View { total: 11, deposits: Some(1) });
    served.stop();
    let served = place.start("3", None);
    assert_eq!(served.view(), View { total: 11, deposits: Some(1) }, "by default the same type is read");
}

fn refused(place: &Workplace, version: &str) -> String {
    let directory = place.directory();
    let refused = place.run(version, &["--dir", crate::served::text(&directory), "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    String::from_utf8_lossy(&refused.stderr).into_owned()
}

fn a_version_that_refuses_the_state_does_not_start() {
    let place = Workplace::new();
    let served = place.start("1", None);
    served.deposit("k1", 5);
    served.stop();
    let complaint = refused(&place, "forgetful");
    assert!(complaint.contains("nothing is taken over from version 1"), "{complaint}");
    let served = place.start("1", None);
    assert_eq!(served.view().total, 5, "the refused start changed something");
}

fn a_killed_version_is_not_replaced() {
    let place = Workplace::new();
    let served = place.start("1", None);
    served.deposit("k1", 5);
    served.kill();
    let complaint = refused(&place, "2");
    assert!(complaint.contains("was made by version 1 of the handler"), "{complaint}");
    assert!(complaint.contains("stop it cleanly"), "{complaint}");
    place.start("1", None).stop();
    assert_eq!(place.start("2", None).view(), View { total: 5, deposits: Some(0) });
}

/// A receiver of notices: refuses all while it is closed, and remembers bodies by key.
struct Receiver {
    url: String,
    open: Arc<AtomicBool>,
    /// How often each notice was taken.
    taken: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
    tried: Arc<AtomicBool>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let url = format!("http://{}/notices", listener.local_addr().expect("it listens"));
        let receiver = Self { url, open: Arc::default(), taken: Arc::default(), tried: Arc::default() };
        let (open, taken, tried) =
            (Arc::clone(&receiver.open), Arc::clone(&receiver.taken), Arc::clone(&receiver.tried));
        // Ends with the tests.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (open, taken, tried) = (Arc::clone(&open), Arc::clone(&taken), Arc::clone(&tried));
                std::thread::spawn(move || serve_notices(&stream, &open, &taken, &tried));
            }
        });
        receiver
    }
}

fn serve_notices(
    stream: &TcpStream,
    open: &AtomicBool,
    taken: &Mutex<BTreeMap<String, Vec<String>>>,
    tried: &AtomicBool,
) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut key, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim().to_ascii_lowercase().split_once(": ") {
                Some(("idempotency-key", value)) => key = value.to_owned(),
                Some(("content-length", value)) => length = value.parse().ok()?,
                _ if line.trim().is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        tried.store(true, Ordering::Relaxed);
        let status = if open.load(Ordering::Relaxed) {
            let mut taken = taken.lock().ok()?;
            taken.entry(key).or_default().push(String::from_utf8(body).ok()?);
            "200 OK"
        } else {
            "503 Service Unavailable"
        };
        let mut answers = stream;
        write!(answers, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

fn a_held_output_keeps_the_bytes_of_the_old_version() {
    let place = Workplace::new();
    let receiver = Receiver::start();
    let served = place.start("1", Some(&receiver.url));
    served.send("k1", &Deposit { amount: 150, notice: true });
    until("the old version tries to send", || receiver.tried.load(Ordering::Relaxed));
    served.stop();
    // It would tell of 151.
    let served = place.start("generous", Some(&receiver.url));
    receiver.open.store(true, Ordering::Relaxed);
    until("the notice is taken", || !receiver.taken.lock().unwrap().is_empty());
    served.stop();
    let taken = receiver.taken.lock().unwrap().clone();
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert!(taken.values().flatten().all(|body| body == r#"{"amount":150,"by":1}"#), "{taken:?}");
}

/// Ends the clients however the test ends.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Clients go on with retries while four versions follow each other.
fn upgrades_under_load_lose_nothing_and_double_nothing() {
    const CLIENTS: u64 = 4;
    let place = Workplace::new();
    let receiver = Receiver::start();
    receiver.open.store(true, Ordering::Relaxed);
    let served = place.start("1", Some(&receiver.url));
    let url = Mutex::new(served.url.clone());
    let over = AtomicBool::new(false);
    let acknowledged = Mutex::new(BTreeMap::new());
    let last: Served = std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (url, over, acknowledged) = (&url, &over, &acknowledged);
            scope.spawn(move || {
                for turn in 1.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let amount = turn * CLIENTS + client;
                    let (key, deposit) = (format!("deposit-{amount}"), Deposit { amount, notice: true });
                    let total = loop {
                        let now = url.lock().unwrap().clone();
                        match try_deposit(&now, &key, &deposit) {
                            Some(total) => break total,
                            None => std::thread::sleep(Duration::from_millis(1)),
                        }
                    };
                    acknowledged.lock().unwrap().insert(total, amount);
                }
            });
        }
        let _ends_clients = SetOnDrop(&over);
        let mut served = served;
        for version in ["2", "3", "4"] {
            let so_far = acknowledged.lock().unwrap().len();
            until("some progress", || acknowledged.lock().unwrap().len() >= so_far + 50);
            served.stop();
            served = place.start(version, Some(&receiver.url));
            url.lock().unwrap().clone_from(&served.url);
        }
        let so_far = acknowledged.lock().unwrap().len();
        until("the last version makes progress", || acknowledged.lock().unwrap().len() >= so_far + 50);
        served
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    let mut before = 0;
    for (total, amount) in &acknowledged {
        assert_eq!(
            *total,
            before + amount,
            "between two answers something was lost, doubled, or told to nobody"
        );
        before = *total;
    }
    assert_eq!(last.view().total, before);
    until("all notices are taken", || receiver.taken.lock().unwrap().len() >= acknowledged.len());
    let taken = receiver.taken.lock().unwrap();
    let mut amounts: Vec<String> = taken.values().map(|bodies| bodies[0].clone()).collect();
    let mut expected: Vec<String> =
        acknowledged.values().map(|amount| format!(r#"{{"amount":{amount},"by":1}}"#)).collect();
    amounts.sort_unstable();
    expected.sort_unstable();
    assert_eq!(amounts, expected, "a deposit was told under no key, or under two");
}
