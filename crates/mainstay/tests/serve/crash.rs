//! kill -9 of a real process, clean stops, panics and aborts of the handler.

use crate::support::{
    Bank, Command, Receipt, Served, Surroundings, call, deposit, get, metric, next_in_chain, server,
    try_post, until, view,
};
use mainstay_client::{Client, Options};
use mainstay_disk::record::RecordOptions;
use mainstay_disk::recording::{Entry, Recording};
use mainstay_process::acknowledgement::Acknowledgement;
use mainstay_process::event::Identity;
use mainstay_process::recover::RecoverError;
use mainstay_runtime::service::StartError;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn the_same_request_after_kill_9_gets_the_same_answer() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let mut served = Served::start(&directory, &Surroundings::default());
    let first = call(served.address(), "k1", &deposit("a", 5));
    served.kill();
    let mut served = Served::start(&directory, &Surroundings::default());
    let again = call(served.address(), "k1", &deposit("a", 5));
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(again.header("mainstay-replayed"), Some("true"));
    assert_eq!(view(served.address()).accounts["a"], 5);
    assert_eq!(served.terminate(), Some(0), "a clean stop");
    let mut served = Served::start(&directory, &Surroundings::default());
    let after_stop = call(served.address(), "k1", &deposit("a", 5));
    assert_eq!((&after_stop.body, after_stop.header("mainstay-replayed")), (&first.body, Some("true")));
    assert_eq!(
        metric(served.address(), "mainstay_replayed_total"),
        0.0,
        "a clean stop leaves nothing to replay"
    );
}

/// Four clients deposit without a pause while the service is killed eight times, checkpoints included. The chain tells the
/// order in which deposits took effect, and that every one did exactly once.
#[test]
fn kills_under_load_lose_nothing_and_double_nothing() {
    const KILLS: usize = 8;
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let surroundings = Surroundings { checkpoint_bytes: Some(20_000), ..Surroundings::default() };
    let mut served = Served::start(&directory, &surroundings);
    let address = std::sync::Mutex::new(served.address());
    let over = AtomicBool::new(false);
    let acknowledged = std::sync::Mutex::new(Vec::new());
    let mut served = std::thread::scope(|scope| {
        for number in 0..4_i64 {
            let (address, over, acknowledged) = (&address, &over, &acknowledged);
            scope.spawn(move || {
                // From 1: a deposit of 0 at the empty chain leaves it empty, and would not tell its place.
                for turn in 1.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let amount = number * 1_000_000 + turn;
                    let key = format!("key-{amount}");
                    let body = serde_json::to_vec(&deposit("shared", amount)).unwrap();
                    let receipt: Receipt = loop {
                        let now = *address.lock().unwrap();
                        match try_post(now, "/call", &[("Idempotency-Key", &key)], &body) {
                            Ok(response) if response.status == 200 => break response.json(),
                            Ok(response) => assert!(matches!(response.status, 409 | 503), "{response:?}"),
                            Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
                        }
                    };
                    acknowledged.lock().unwrap().push((amount, receipt));
                }
            });
        }
        for _ in 0..KILLS {
            let so_far = acknowledged.lock().unwrap().len();
            until("some progress", || acknowledged.lock().unwrap().len() > so_far + 40);
            served.kill();
            served = Served::start(&directory, &surroundings);
            *address.lock().unwrap() = served.address();
        }
        over.store(true, Ordering::Relaxed);
        served
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    let state = view(served.address());
    let sum: i64 = acknowledged.iter().map(|(amount, _)| amount).sum();
    assert_eq!(state.accounts["shared"], sum, "a deposit was lost or doubled");
    // Every deposit has its place behind exactly one other: from the empty chain to the state that is read.
    let mut rest: Vec<_> = acknowledged.iter().collect();
    let (mut chain, mut balance) = (0, 0);
    while !rest.is_empty() {
        let next = rest.iter().position(|(amount, receipt)| receipt.chain == next_in_chain(chain, *amount));
        let (amount, receipt) = rest.swap_remove(next.expect("some deposit follows: the order has no hole"));
        balance += amount;
        assert_eq!(receipt.balance, balance, "an answer told another history");
        chain = receipt.chain;
    }
    assert_eq!(state.chain, chain, "something took effect that nobody was told of");
}

#[test]
fn a_client_survives_a_kill_and_its_own_restart() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let mut served = Served::start(&directory, &Surroundings::default());
    let client = Client::connect(&format!("http://{}", served.address()), Options::default()).unwrap();
    let mut thread = client.thread().unwrap();
    let identity = thread.next_identity();
    let body = serde_json::to_vec(&deposit("a", 5)).unwrap();
    let first = thread.call_bytes(&body).unwrap();
    served.kill();
    let mut served = Served::start(&directory, &Surroundings::default());
    let address = format!("http://{}", served.address());
    let resumed = Client::resume(&address, Options::default(), identity.client).unwrap();
    let mut thread = resumed.thread_at(identity.thread, identity.sequence).unwrap();
    let again = thread.repeat_bytes(&body).unwrap();
    assert_eq!((again.replayed, &again.body), (true, &first.body));
    let next: Receipt = thread.call(&deposit("a", 5)).unwrap();
    assert_eq!(next.balance, 10);
    let bank: Bank = resumed.query(&()).unwrap();
    assert_eq!(bank.accounts["a"], 10);
}

#[test]
fn a_panic_is_tried_again_then_given_up_and_the_service_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let running = server(&folder.path().join("d")).start().unwrap();
    let address = running.address();
    let before = call(address, "k1", &deposit("a", 5)).json::<Receipt>();
    let first = call(address, "bad", &Command::Panic);
    assert_eq!((first.status, first.header("mainstay-error")), (503, Some("outcome-unknown")));
    let mut verdict = None;
    until("a verdict", || {
        let response = call(address, "bad", &Command::Panic);
        let decided = response.status == 500;
        verdict = Some(response);
        decided
    });
    let verdict = verdict.unwrap();
    assert_eq!(verdict.header("mainstay-error"), None, "the verdict is the recorded answer: {verdict:?}");
    assert_eq!(call(address, "bad", &Command::Panic).body, verdict.body);
    assert_eq!(view(address).chain, before.chain, "a part of what the panic had done was kept");
    assert_eq!(call(address, "k2", &deposit("a", 5)).json::<Receipt>().balance, 10);
    assert_eq!(metric(address, "mainstay_quarantined_total"), 1.0);
    assert!(metric(address, "mainstay_recoveries_in_place_total") >= 1.0);
    running.stop().unwrap();
}

#[test]
fn a_delivery_that_kills_the_process_is_given_up_after_its_attempts() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let mut served = Served::start(&directory, &Surroundings::default());
    call(served.address(), "k1", &deposit("a", 5));
    let body = serde_json::to_vec(&Command::Abort).unwrap();
    assert!(try_post(served.address(), "/call", &[("Idempotency-Key", "bad")], &body).is_err());
    assert!(served.ended());
    let mut deaths = 1;
    let mut served = loop {
        // Each start replays the delivery, which kills it again, until it is given up.
        let mut next = Served::start(&directory, &Surroundings::default());
        let up = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| next.address())).is_ok();
        if up {
            break next;
        }
        deaths += 1;
        assert!(deaths <= 3, "it goes on for ever");
    };
    assert_eq!(deaths, 3, "three attempts by default");
    assert_eq!(call(served.address(), "bad", &Command::Abort).status, 500);
    assert_eq!(call(served.address(), "k1", &deposit("a", 5)).json::<Receipt>().balance, 5);
}

#[test]
fn a_large_state_is_checkpointed_by_a_fork_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let running = server(&directory).start().unwrap();
    call(running.address(), "k1", &Command::Grow { bytes: 16 << 20 });
    call(running.address(), "k2", &deposit("a", 5));
    running.checkpoint();
    until("a checkpoint", || metric(running.address(), "mainstay_checkpoints_total") == 1.0);
    assert!(metric(running.address(), "mainstay_checkpoint_bytes") > f64::from(16 << 20));
    assert_eq!(metric(running.address(), "mainstay_checkpoint_pause_seconds_count"), 1.0);
    assert_eq!(metric(running.address(), "mainstay_checkpoints_failed_total"), 0.0);
    call(running.address(), "k3", &deposit("a", 5));
    drop(running);
    let running = server(&directory).start().unwrap();
    assert!(running.started().recovery.checkpoint.is_some());
    assert_eq!(running.started().recovery.replayed, 1, "only what came after the checkpoint");
    assert_eq!(view(running.address()).accounts["a"], 10);
}

/// The first timer fires in the life that set it, the second in the next one: once each.
#[test]
fn timers_outlive_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let running = server(&directory).start().unwrap();
    call(running.address(), "k1", &Command::Remind { token: 1, delay_ms: 1 });
    until("the first timer", || view(running.address()).settled.len() == 1);
    call(running.address(), "k2", &Command::Remind { token: 2, delay_ms: 200 });
    drop(running);
    let running = server(&directory).start().unwrap();
    until("the second timer", || view(running.address()).settled.len() == 2);
    let fired: Vec<u64> = view(running.address()).settled.into_iter().map(|(token, _)| token).collect();
    assert_eq!(fired, [1, 2]);
}

#[test]
fn a_limit_that_does_not_fit_the_pages_is_refused_as_usage() {
    let folder = tempfile::tempdir().unwrap();
    let too_much = server(&folder.path().join("d")).limits(|limits| limits.body_bytes_max = 1 << 20);
    let refused = too_much.start().map(drop).unwrap_err();
    assert_eq!(refused.exit_code(), mainstay::exit::USAGE, "{refused}");
}

/// A recording says of every answer what must be found again, in the order in which answers left.
#[test]
fn a_recording_names_every_acknowledgement() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    let running = server(&folder.path().join("d")).record(RecordOptions::new(&recording)).start().unwrap();
    let first = call(running.address(), "k1", &deposit("a", 5));
    let second = call(running.address(), "k2", &deposit("a", 6));
    running.checkpoint();
    until("a checkpoint", || metric(running.address(), "mainstay_checkpoints_total") == 1.0);
    running.stop().unwrap();
    let mut recording = Recording::open(&recording).unwrap();
    let mut acknowledged = Vec::new();
    let mut renamed = 0;
    while let Some(entry) = recording.next_entry().unwrap() {
        match entry {
            Entry::Acknowledged { tag } => {
                acknowledged.push(serde_json::from_slice::<Acknowledgement>(&tag).unwrap());
            }
            Entry::Rename { .. } => renamed += 1,
            _ => {}
        }
    }
    let expected = [("k1", deposit("a", 5), first), ("k2", deposit("a", 6), second)];
    assert_eq!(acknowledged.len(), expected.len());
    for (found, (key, command, response)) in acknowledged.iter().zip(expected) {
        assert_eq!(found.identity(), Identity::Key(key.into()));
        assert_eq!((found.status, &found.answer), (200, &response.body));
        assert_eq!(found.request, serde_json::to_string(&command).unwrap());
    }
    assert!(renamed >= 1, "the checkpoint's publication is not recorded");
}

#[test]
fn a_second_process_on_the_directory_is_told_who_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let running = server(&directory).start().unwrap();
    let refused = server(&directory).start().map(drop).unwrap_err();
    assert_eq!(refused.exit_code(), mainstay::exit::ENVIRONMENT);
    assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
    assert_eq!(get(running.address(), "/health").status, 200);
}

#[test]
fn another_version_is_refused_until_the_old_one_has_stopped_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let version = |version| {
        let mut server = server(&directory);
        server.settings_mut().process.version = version;
        server
    };
    let old = version(1).start().unwrap();
    call(old.address(), "k1", &deposit("a", 5));
    drop(old);
    let refused = version(2).start().map(drop).unwrap_err();
    let mainstay::server::RunError::Start(StartError::Recover(why)) = &refused else { panic!("{refused}") };
    assert!(matches!(**why, RecoverError::VersionChanged { recorded: 1, now: 2, .. }), "{why}");
    let old = version(1).start().unwrap();
    assert_eq!(view(old.address()).accounts["a"], 5, "the refused start changed something");
    old.stop().unwrap();
    let new = version(2).start().unwrap();
    assert_eq!(call(new.address(), "k1", &deposit("a", 5)).json::<Receipt>().balance, 5);
}
