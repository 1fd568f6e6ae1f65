//! Values that end: at one version, whatever clocks say.

use crate::net::{CLIENT, Net, config, majority, member, view};
use mainstay_region::blob::Blob;
use mainstay_region::effect::Event;
use mainstay_region::limits::{Config, Limits};
use mainstay_region::message::{Body, Freshness, Message, Party, Query};
use mainstay_region::operation::{Condition, End, Operation};
use mainstay_region::patterns::Pattern;
use mainstay_region::region::Region;
use mainstay_types::view::MemberId;
use std::time::Duration;

/// By the stamper's clock when a test begins.
const BEGIN_MS: u64 = 1_000_000;

fn set(key: &str, ends_at_ms: u64) -> Operation {
    let (key, value) = (key.into(), b"v".into());
    Operation::Set {
        key,
        value,
        condition: Condition::Always,
        end: End::At(ends_at_ms),
        returns_before: false,
    }
}

fn tell_time(net: &mut Net, member: MemberId, unix_ms: u64) {
    net.step(member, Event::WallClock { unix_ms });
    let until = net.now.after(Duration::from_secs(60));
    net.step(member, Event::Lease { until });
}

fn read(net: &mut Net, stamper: MemberId, key: &str) -> bool {
    let query = Query::Get { key: key.into() };
    let body = Body::Read { request: 1, query, freshness: Freshness::Linearizable };
    let message = Message { view: net.view.id, shard: 0, body };
    net.heard.clear();
    net.step(stamper, Event::Received { from: Party::Client(CLIENT), message });
    net.run();
    let answered = net.heard.iter().find_map(|body| match body {
        Body::Answer { found: Ok(found), .. } => Some(!found.entries.is_empty()),
        _ => None,
    });
    answered.expect("it is answered")
}

fn has(net: &Net, place: usize, key: &str) -> bool {
    net.copies[&net.id(place)].state(0).value(key.as_bytes()).is_some()
}

#[test]
fn a_value_is_there_until_the_stamper_says_that_it_has_ended_whatever_others_think() {
    let mut net = Net::new(3, config(), Pattern::OneHop);
    let (stamper, second) = (net.id(0), net.id(1));
    tell_time(&mut net, stamper, BEGIN_MS);
    tell_time(&mut net, second, BEGIN_MS + 1_000_000);
    net.call(set("k", BEGIN_MS + 500));
    net.call(set("later", BEGIN_MS + 10_000));
    net.run();
    net.pass(490);
    assert!(has(&net, 1, "k") && read(&mut net, stamper, "k"));
    // No tick in between: the read itself finds that the time has come.
    net.now = net.now.after(Duration::from_millis(10));
    assert!(!read(&mut net, stamper, "k"));
    net.pass(20);
    assert!((0..3).all(|place| !has(&net, place, "k") && has(&net, place, "later")));
    // An operation finds a value that has ended gone, and not what it was.
    net.now = net.now.after(Duration::from_secs(10));
    net.call(Operation::Append { key: b"later".into(), value: b"w".into() });
    net.run();
    net.pass(20);
    for place in 0..3 {
        let stored = net.copies[&net.id(place)].state(0).value(b"later").expect("it is new").clone();
        assert_eq!((stored.value, stored.ends_at_ms), (Blob::from(b"w"), None));
    }
}

#[test]
fn many_values_that_end_together_go_in_turn_and_a_change_on_its_way_counts() {
    let limits = Limits { expire_keys_max: 2, ..Limits::default() };
    let mut net = Net::new(3, Config { limits, ..config() }, Pattern::OneHop);
    let stamper = net.id(0);
    tell_time(&mut net, stamper, BEGIN_MS);
    for key in ["a", "b", "c", "d", "e"] {
        net.call(set(key, BEGIN_MS + 100));
    }
    net.run();
    net.pass(80);
    // These are stamped and not stable when the time comes: one value goes on, one ends sooner.
    net.call(Operation::Expire { key: b"c".into(), ends_at_ms: None });
    net.call(set("e", BEGIN_MS + 90));
    net.run_only(|under| under.to == Party::Member(stamper));
    net.now = net.now.after(Duration::from_millis(30));
    net.step(stamper, Event::Tick);
    net.queue.clear();
    net.pass(500);
    for place in 0..3 {
        let left = net.copies[&net.id(place)].state(0).map.keys().cloned().collect::<Vec<_>>();
        assert_eq!(left, [Blob::from(b"c")]);
    }
    let digests: Vec<u64> = (0..3).map(|place| net.copies[&net.id(place)].state(0).digest).collect();
    assert!(digests.windows(2).all(|two| two[0] == two[1]));
}

/// What ends is in the journal, in the image, and goes on to end in the next view under another stamper.
#[test]
fn an_end_is_kept_over_restarts_and_views() {
    let mut net = Net::new(3, majority(), Pattern::OneHop);
    let (first, second, third) = (net.id(0), net.id(1), net.id(2));
    tell_time(&mut net, first, BEGIN_MS);
    net.call(set("gone", BEGIN_MS + 50));
    net.call(set("k", BEGIN_MS + 400));
    net.run();
    net.pass(100);
    let journal = net.journals[&second].clone();
    let again = Region::recover(net.config, journal.iter().map(Vec::as_slice)).expect("the journal is whole");
    assert_eq!(again.log(0).count(), 3, "the end of a value is an entry like any other");
    let reports = net.wedge(&[second, third]);
    net.copies.remove(&first);
    net.install(&view(2, vec![member(2, 1), member(3, 1)]), &reports, None);
    net.tell_view();
    assert!(!has(&net, 0, "gone") && has(&net, 0, "k"));
    tell_time(&mut net, second, BEGIN_MS + 399);
    assert!(read(&mut net, second, "k"));
    net.pass(10);
    assert!(!read(&mut net, second, "k"));
    net.pass(50);
    assert_eq!(net.copies[&second].state(0).digest, net.copies[&third].state(0).digest);
}
