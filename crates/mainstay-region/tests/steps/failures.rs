//! Failures that have a name.

use crate::net::{CLIENT, Net, config, majority, member, one_entry, put, view};
use mainstay_region::client::Ended;
use mainstay_region::effect::{Effect, Event};
use mainstay_region::limits::Config;
use mainstay_region::log::Entry;
use mainstay_region::message::{Acknowledge, Body, Freshness, Message, Party, Query, Refusal};
use mainstay_region::operation::{Operation, Outcome};
use mainstay_region::patterns::Pattern;
use mainstay_region::region::{Phase, Region};
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::view::ViewId;
use std::time::Duration;

pub(crate) fn done(net: &Net, id: OperationId) -> (Version, Outcome, bool) {
    match &net.how(id)[..] {
        [Ended::Done { seen, duplicate }] => (seen.version, seen.outcome.clone(), *duplicate),
        ended => panic!("it ends once, and well: {ended:?}"),
    }
}

fn increment() -> Operation {
    Operation::Increment { key: b"n".into(), by: 1 }
}

/// GEODE-6108, 9913: a repetition gets the first version and the first outcome, in each pattern, whichever message was lost, and takes effect once.
#[test]
fn a_repetition_at_another_server_gets_the_first_version_and_outcome() {
    for pattern in Pattern::VERSIONED {
        for delivered in 0..8 {
            let mut net = Net::new(3, config(), pattern);
            let id = net.call(increment());
            let mut left = delivered;
            while left > 0 && !net.queue.is_empty() {
                let rest = net.queue.split_off(1);
                net.run_only(|_| true);
                let mut queued: std::collections::VecDeque<_> = rest;
                queued.append(&mut net.queue);
                net.queue = queued;
                left -= 1;
            }
            net.queue.clear();
            net.pass(1500);
            let (version, outcome, _) = done(&net, id);
            assert_eq!(outcome, Outcome::Counted(1), "{pattern:?}, {delivered} messages delivered");
            let mut out = Vec::new();
            net.client.call_again(net.now, id, increment(), &mut out);
            net.ended.clear();
            net.client_effects(out, 0, 0);
            net.run();
            assert_eq!(done(&net, id), (version, outcome.clone(), true));
            for place in 0..3 {
                let copy = &net.copies[&net.id(place)];
                let value = &copy.state(0).value(b"n").expect("every copy has it").value;
                assert_eq!(value.as_ref(), b"1", "{pattern:?}, {delivered} messages delivered");
            }
        }
    }
}

/// A version that was granted and never used blocks the shard only until nobody is found to have a payload for it; what comes later is refused.
#[test]
fn a_granted_version_that_nobody_uses_is_void_everywhere_and_stays_so() {
    let mut net = Net::new(3, config(), Pattern::VersionRequest);
    let lost = net.call(put(b"lost"));
    let stamper = net.id(0);
    net.run_only(|under_way| under_way.to == Party::Member(stamper));
    let counter = 1;
    net.client.use_pattern(Pattern::OneHop);
    // Not by this client's repetition: that would bring the payload.
    let other = OperationId { client: ClientId(2), thread: ThreadId(1), sequence: Sequence(1) };
    let body = Body::Operate { id: other, retry: false, pattern: Pattern::OneHop, operation: put(b"next") };
    let message = Message { view: ViewId(1), shard: 0, body };
    net.step(stamper, Event::Received { from: Party::Client(ClientId(2)), message });
    for _ in 0..60 {
        net.now = net.now.after(Duration::from_millis(10));
        for place in 0..3 {
            net.step(net.id(place), Event::Tick);
        }
        net.run_only(|under_way| {
            matches!((under_way.from, under_way.to), (Party::Member(_), Party::Member(_)))
        });
    }
    for place in 0..3 {
        assert_eq!(net.copies[&net.id(place)].state(0).value(b"k").expect("it is there").value, b"next");
    }
    let late = Body::Payload { id: lost, counter, operation: put(b"lost") };
    let message = Message { view: ViewId(1), shard: 0, body: late };
    for place in 0..3 {
        net.step(net.id(place), Event::Received { from: Party::Client(CLIENT), message: message.clone() });
        net.run_only(|_| false);
        assert_eq!(net.copies[&net.id(place)].state(0).value(b"k").expect("it is there").value, b"next");
    }
    net.client.tick(net.now, &mut Vec::new());
    net.pass(500);
    let (version, ..) = done(&net, lost);
    assert_eq!(version.counter, 3, "the repetition is a new write behind the void and the other");
}

/// If one member has the payload, the version is not void: everybody gets it.
#[test]
fn a_granted_version_that_one_member_has_reaches_all() {
    let mut net = Net::new(3, config(), Pattern::VersionRequest);
    net.call(put(b"one"));
    let (stamper, third) = (net.id(0), net.id(2));
    net.run_only(|under_way| {
        let payload = matches!(under_way.message.body, Body::Payload { .. });
        !payload || under_way.to == Party::Member(third)
    });
    for _ in 0..60 {
        net.now = net.now.after(Duration::from_millis(10));
        for place in 0..3 {
            net.step(net.id(place), Event::Tick);
        }
        net.run_only(|under_way| under_way.to != Party::Client(CLIENT));
    }
    assert_eq!(net.copies[&stamper].state(0).value(b"k").expect("it is there").value, b"one");
}

/// Aeron pull request 2147, and the fence of the seed: nothing of an earlier view counts.
#[test]
fn nothing_of_an_earlier_view_is_taken_or_counted() {
    let mut net = Net::new(3, config(), Pattern::OneHopClient);
    net.call(put(b"early"));
    let stamper = net.id(0);
    net.run_only(|under_way| under_way.to == Party::Member(stamper));
    let late =
        Message { view: ViewId(1), shard: 0, body: one_entry(1, Entry::Void, Acknowledge::Client(CLIENT)) };
    let (second, third) = (net.id(1), net.id(2));
    let reports = net.wedge(&[second, third]);
    let survivors = view(2, vec![member(2, 1), member(3, 1)]);
    net.install(&survivors, &reports, None);
    net.step(second, Event::Received { from: Party::Member(stamper), message: late });
    assert_eq!(net.copies[&second].log(0).count(), 0);
    assert!(net.queue.is_empty(), "and no acknowledgement leaves");
    assert!(net.copies[&second].state(0).map.is_empty(), "what only the dead stamper had is void");
}

/// What one reporter has of an operation that was not acknowledged is in the cut, and the repetition is answered with that version.
#[test]
fn what_one_survivor_has_survives_and_the_repetition_finds_it() {
    let mut net = Net::new(3, majority(), Pattern::OneHopClient);
    let id = net.call(put(b"half"));
    let (stamper, second, third) = (net.id(0), net.id(1), net.id(2));
    net.run_only(|under_way| [Party::Member(stamper), Party::Member(second)].contains(&under_way.to));
    let reports = net.wedge(&[second, third]);
    net.copies.remove(&stamper);
    let survivors = view(2, vec![member(2, 1), member(3, 1)]);
    net.install(&survivors, &reports, None);
    let mut out = Vec::new();
    net.client.view_known(net.now, &survivors, &mut out);
    net.client_effects(out, 0, 0);
    net.run();
    assert_eq!(done(&net, id), (Version { view: ViewId(1), counter: 1 }, Outcome::Written, true));
    assert_eq!(net.copies[&third].state(0).value(b"k").expect("it was fetched").value, b"half");
}

/// SEQUENCER2's joiner: it waits for no number that was given before it came, and GEODE-6195: the duplicate table comes with the data.
#[test]
fn a_member_that_joins_under_load_has_all_and_answers_repetitions() {
    let mut net = Net::new(2, config(), Pattern::OneHop);
    let ids: Vec<OperationId> = (0..5)
        .map(|_| {
            let id = net.call(increment());
            net.run();
            id
        })
        .collect();
    let joiner = member(3, 2).id();
    net.copies.insert(joiner, Region::new(net.config));
    let from = net.id(1);
    net.step(joiner, Event::Learn { me: joiner, sources: vec![from] });
    net.call(increment());
    net.run();
    net.pass(100);
    assert!(net.said.contains(&(joiner, Effect::Learned)));
    let last = net.call(increment());
    net.run();
    let reports = net.wedge(&[net.id(0), net.id(1)]);
    let grown = view(2, vec![member(1, 1), member(2, 1), member(3, 2)]);
    net.install(&grown, &reports, None);
    assert_eq!(net.copies[&joiner].phase(), Phase::Serving);
    assert_eq!(net.copies[&joiner].state(0).digest, net.copies[&from].state(0).digest);
    assert_eq!(net.copies[&joiner].state(0).duplicates, net.copies[&from].state(0).duplicates);
    // Only the joiner is left: it answers as the others would have.
    let reports = net.wedge(&[from, joiner]);
    let mut alone = view(3, vec![member(3, 2)]);
    alone.members[0].born = ViewId(2);
    net.install(&alone, &reports, None);
    let mut out = Vec::new();
    net.client.view_known(net.now, &alone, &mut out);
    for (id, counted) in [(ids[2], 3), (last, 7)] {
        net.ended.clear();
        net.client.call_again(net.now, id, increment(), &mut out);
        net.client_effects(std::mem::take(&mut out), 0, 0);
        net.run();
        assert_eq!(done(&net, id).1, Outcome::Counted(counted));
        assert!(done(&net, id).2);
    }
}

/// GEODE-9640: who acts on a change is told that it may be a repetition, also where no table has the first attempt.
#[test]
fn a_repetition_that_no_table_knows_is_flagged_to_subscribers() {
    let mut net = Net::new(3, config(), Pattern::OneHop);
    let second = net.id(1);
    let body = Body::Subscribe { from: Version { view: ViewId(1), counter: 0 } };
    let message = Message { view: ViewId(1), shard: 0, body };
    net.step(second, Event::Received { from: Party::Client(CLIENT), message });
    net.call(put(b"one"));
    net.queue.clear();
    net.pass(300);
    let flags: Vec<bool> = net
        .heard
        .iter()
        .filter_map(|body| match body {
            Body::Changed(applied) => Some(applied.possible_duplicate),
            _ => None,
        })
        .collect();
    assert_eq!(flags, [true]);
}

/// A read at the stamper does not show what could still be undone, and none is answered without a lease.
#[test]
fn a_read_at_the_stamper_waits_for_what_is_stable_and_needs_the_lease() {
    let mut net = Net::new(3, config(), Pattern::OneHopClient);
    let stamper = net.id(0);
    let read = |request| {
        let query = Query::Get { key: b"k".into() };
        let body = Body::Read { request, query, freshness: Freshness::Linearizable };
        Event::Received { from: Party::Client(CLIENT), message: Message { view: ViewId(1), shard: 0, body } }
    };
    net.step(stamper, read(1));
    net.run();
    assert!(matches!(net.heard[..], [Body::Answer { request: 1, found: Err(Refusal::NoLease) }]));
    net.heard.clear();
    let until = net.now.after(Duration::from_secs(10));
    net.step(stamper, Event::Lease { until });
    net.call(put(b"new"));
    net.run_only(|under_way| under_way.to == Party::Member(stamper));
    net.step(stamper, read(2));
    net.run();
    assert!(net.heard.iter().all(|body| !matches!(body, Body::Answer { .. })), "only the stamper has it");
    net.pass(200);
    let answered = net.heard.iter().find_map(|body| match body {
        Body::Answer { request: 2, found: Ok(found) } => Some(found.entries.clone()),
        _ => None,
    });
    assert_eq!(answered.expect("it is stable now")[0].1.value, b"new");
}

/// A life that ended is over: what is found again reports, and accepts nothing in its view.
#[test]
fn a_copy_found_again_reports_what_it_acknowledged_and_accepts_nothing() {
    let mut net = Net::new(3, config(), Pattern::OneHop);
    net.call(put(b"kept"));
    net.run();
    let second = net.id(1);
    let journal = net.journals[&second].clone();
    let again = Region::recover(net.config, journal.iter().map(Vec::as_slice)).expect("the journal is whole");
    assert_eq!((again.phase(), again.standing()), (Phase::Wedged, ViewId(1)));
    net.copies.insert(second, again);
    net.said.clear();
    net.step(second, Event::Wedge { view: ViewId(1), request: 7 });
    assert!(matches!(net.said[..], [(_, Effect::Report { request: 7, .. })]));
    let counted = net.copies[&second].log(0).count() + net.copies[&second].state(0).map.len();
    assert_eq!(counted, 1);
}

/// A flood of payloads that wait for a version meets a limit for each client.
#[test]
fn a_client_that_floods_payloads_is_told_that_it_is_too_much() {
    let mut net = Net::new(3, config(), Pattern::Tagged);
    let second = net.id(1);
    let max = net.config.limits.held_payloads_per_client_max as u64;
    for sequence in 1..=max + 1 {
        let id = OperationId { client: CLIENT, thread: ThreadId(1), sequence: Sequence(sequence) };
        let body = Body::Tagged { id, operation: put(b"flood") };
        let message = Message { view: ViewId(1), shard: 0, body };
        net.step(second, Event::Received { from: Party::Client(CLIENT), message });
    }
    net.run();
    let refused =
        net.heard.iter().filter(|body| matches!(body, Body::Refused { refusal: Refusal::Busy(_), .. }));
    assert_eq!(refused.count(), 1);
}

fn inspect(net: &mut Net, id: OperationId) -> Body {
    let stamper = net.id(0);
    net.heard.clear();
    let message = Message { view: ViewId(1), shard: 0, body: Body::Inspect { id } };
    net.step(stamper, Event::Received { from: Party::Client(CLIENT), message });
    net.run();
    net.heard.pop().expect("it is answered")
}

/// It said "not seen" of what a majority had acknowledged without the stamper, and what a later stamper may have acknowledged.
#[test]
fn nobody_is_told_that_an_operation_was_not_seen_by_a_stamper_that_cannot_know() {
    let mut net = Net::new(3, majority(), Pattern::VersionRequest);
    let never = OperationId { client: CLIENT, thread: ThreadId(9), sequence: Sequence(1) };
    let no_lease = Body::Refused { id: never, refusal: Refusal::NoLease };
    assert_eq!(inspect(&mut net, never), no_lease);
    let stamper = net.id(0);
    let until = net.now.after(Duration::from_secs(1));
    net.step(stamper, Event::Lease { until });
    assert_eq!(inspect(&mut net, never), Body::NotSeen { id: never });
    let id = net.call(put(b"past the stamper"));
    net.run_only(|under_way| {
        let payload = matches!(under_way.message.body, Body::Payload { .. });
        !payload || under_way.to != Party::Member(stamper)
    });
    assert!(matches!(net.how(id)[..], [Ended::Done { .. }]), "two of three have it");
    assert_eq!(inspect(&mut net, id), Body::Refused { id, refusal: Refusal::NotSettled });
    net.ended.clear();
    net.pass(500);
    assert!(matches!(inspect(&mut net, id), Body::Acknowledged(done) if done[0].stable && done[0].duplicate));
    net.now = until;
    assert_eq!(inspect(&mut net, never), no_lease);
}

/// It said 0 at a stamper that was replaced long ago, and the time since its last word at copies that heard such a stamper.
#[test]
fn a_read_at_any_copy_is_not_older_than_it_says() {
    let mut net = Net::new(3, config(), Pattern::OneHop);
    let age = |net: &mut Net, place: usize| {
        let query = Query::Get { key: b"k".into() };
        let body = Body::Read { request: 9, query, freshness: Freshness::Any };
        let message = Message { view: ViewId(1), shard: 0, body };
        net.heard.clear();
        net.step(net.id(place), Event::Received { from: Party::Client(CLIENT), message });
        net.run();
        match net.heard.pop() {
            Some(Body::Answer { found: Ok(found), .. }) => found.age_ns.map(Duration::from_nanos),
            other => panic!("a read is answered: {other:?}"),
        }
    };
    net.pass(50);
    assert_eq!((age(&mut net, 0), age(&mut net, 1)), (None, None), "there was no lease yet");
    let (stamper, until) = (net.id(0), net.now.after(Duration::from_millis(100)));
    net.step(stamper, Event::Lease { until });
    net.pass(50);
    assert_eq!(age(&mut net, 0), Some(Duration::ZERO));
    assert!(age(&mut net, 1).expect("it was heard") <= Duration::from_millis(21));
    net.pass(500);
    // What a clock may be too slow by is in it.
    assert_eq!(age(&mut net, 0), Some(Duration::from_micros(450_900)));
    assert!(age(&mut net, 1).expect("it was heard") >= Duration::from_millis(450));
}

/// Each operation waited as long as for an answer that was lost.
#[test]
fn a_client_whose_pattern_is_not_taken_goes_on_by_one_hop_at_once() {
    for pattern in [Pattern::Tagged, Pattern::VersionRequest] {
        let mut net = Net::new(3, Config { payloads_from_clients: false, ..config() }, pattern);
        let id = net.call(put(b"one"));
        net.run();
        assert_eq!(done(&net, id).1, Outcome::Written, "{pattern:?}");
    }
}
