//! Several operations as one.

use crate::failures::done;
use crate::net::{CLIENT, Net, config};
use mainstay_region::batch::Batch;
use mainstay_region::client::Ended;
use mainstay_region::effect::Event;
use mainstay_region::limits::Config;
use mainstay_region::message::{Body, Message, Party, Refusal};
use mainstay_region::operation::{Operation, Outcome, shard_of};
use mainstay_region::patterns::Pattern;
use mainstay_types::id::{Sequence, ThreadId};
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::view::ViewId;

fn put(key: &str, value: &str) -> Operation {
    Operation::Put { key: key.into(), value: value.into() }
}

fn increment(key: &str) -> Operation {
    Operation::Increment { key: key.into(), by: 1 }
}

fn batch(watched: Vec<(Vec<u8>, Option<Version>)>, steps: Vec<Operation>) -> Operation {
    Operation::Batch(Batch { watched, steps })
}

fn value(net: &Net, place: usize, key: &str) -> Option<(Vec<u8>, Version)> {
    let stored = net.copies[&net.id(place)].state(0).value(key.as_bytes())?;
    Some((stored.value.to_vec(), stored.version))
}

#[test]
fn operations_done_as_one_have_one_version_and_a_repetition_gets_all_first_outcomes() {
    for pattern in Pattern::VERSIONED {
        let mut net = Net::new(3, config(), pattern);
        let as_one = batch(Vec::new(), vec![put("a", "1"), increment("a"), increment("n")]);
        let id = net.call(as_one.clone());
        net.run();
        net.pass(50);
        let outcomes = vec![Outcome::Written, Outcome::Counted(2), Outcome::Counted(1)];
        let (version, outcome, _) = done(&net, id);
        assert_eq!(outcome, Outcome::Batch(outcomes.clone()), "{pattern:?}");
        for place in 0..3 {
            assert_eq!(value(&net, place, "a"), Some((b"2".to_vec(), version)), "{pattern:?}");
            assert_eq!(value(&net, place, "n"), Some((b"1".to_vec(), version)), "{pattern:?}");
        }
        let mut out = Vec::new();
        net.ended.clear();
        net.client.call_again(net.now, id, as_one, &mut out);
        net.client_effects(out, 0, 0);
        net.run();
        assert_eq!(done(&net, id), (version, Outcome::Batch(outcomes), true));
    }
}

/// What is watched is compared where the version is given, behind what was stamped before and is not stable yet.
#[test]
fn a_watched_key_that_something_under_way_changes_stops_the_batch() {
    let mut net = Net::new(3, config(), Pattern::OneHop);
    let first = net.call(put("w", "1"));
    net.run();
    let (version, ..) = done(&net, first);
    let watched = || vec![(b"w".to_vec(), Some(version))];
    let good = net.call(batch(watched(), vec![put("a", "1")]));
    // All three are stamped before any of them is stable.
    net.call(put("w", "2"));
    let late = net.call(batch(watched(), vec![put("a", "2")]));
    net.run();
    net.pass(50);
    assert!(matches!(done(&net, good).1, Outcome::Batch(_)));
    assert_eq!(done(&net, late).1, Outcome::Differs);
    assert_eq!(value(&net, 2, "a").expect("it is there").0, b"1");
}

#[test]
fn keys_of_several_shards_are_refused_before_anything_is_done() {
    let mut net = Net::new(1, Config { shards: 7, ..config() }, Pattern::OneHop);
    let other = (0..).map(|number| format!("{number}"));
    let mut other = other.filter(|key| shard_of(key.as_bytes(), 7) != shard_of(b"a", 7));
    let other = other.next().expect("keys are spread");
    let id = net.call(batch(Vec::new(), vec![put("a", "1"), put(&other, "1")]));
    net.run();
    assert_eq!(net.how(id), [Ended::OtherShard]);
    // And one that says another shard than its key's.
    let id = OperationId { client: CLIENT, thread: ThreadId(9), sequence: Sequence(1) };
    let body = Body::Operate { id, retry: false, pattern: Pattern::OneHop, operation: put("a", "1") };
    let shard = (shard_of(b"a", 7) + 1) % 7;
    let message = Message { view: ViewId(1), shard, body };
    net.heard.clear();
    net.step(net.id(0), Event::Received { from: Party::Client(CLIENT), message });
    net.run();
    assert_eq!(net.heard, [Body::Refused { id, refusal: Refusal::OtherShard }]);
    for shard in 0..7 {
        assert!(net.copies[&net.id(0)].state(shard).map.is_empty());
    }
}
