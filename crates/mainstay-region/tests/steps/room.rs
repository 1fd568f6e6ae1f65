//! What logs, reports and cuts may have in bytes.

use crate::net::{Net, majority, one_entry, put, view};
use mainstay_region::effect::Event;
use mainstay_region::limits::{Config, Limits};
use mainstay_region::log::Entry;
use mainstay_region::message::{Acknowledge, Body, Limit, Message, Party, Refusal};
use mainstay_region::operation::{Operation, shard_of};
use mainstay_region::patterns::Pattern;
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use mainstay_types::operation::OperationId;
use mainstay_types::view::MemberId;
use std::time::Duration;

const VALUE_BYTES: usize = 30_000;

/// Three stampers, each with room for three such values.
fn limited() -> Config {
    let limits = Limits { log_bytes_max: 300_000, ..Limits::default() };
    Config { limits, ..majority() }
}

/// A client of its own puts a large value at the stamper.
fn put_large(net: &mut Net, number: u64) {
    let client = ClientId(100 + number);
    let id = OperationId { client, thread: ThreadId(1), sequence: Sequence(1) };
    let operation = put(&[u8::try_from(number).expect("it is small"); VALUE_BYTES]);
    let body = Body::Operate { id, retry: false, pattern: Pattern::OneHop, operation };
    let message = Message { view: net.view.id, shard: 0, body };
    net.step(net.id(0), Event::Received { from: Party::Client(client), message });
}

fn run_without(net: &mut Net, away: MemberId) {
    net.run_only(|under_way| under_way.to != Party::Member(away) && under_way.from != Party::Member(away));
}

fn refused_for_bytes(net: &Net) -> usize {
    let refused =
        |body: &&Body| matches!(body, Body::Refused { refusal: Refusal::Busy(Limit::LogBytes), .. });
    net.heard.iter().filter(refused).count()
}

/// Logs were limited to 4096 entries of a shard, of a megabyte each if they were so long: a copy that lagged made the next cut longer than a message may
/// be, and no view came about.
#[test]
fn a_copy_that_lags_stops_writers_before_the_next_cut_is_too_long() {
    let mut net = Net::new(3, limited(), Pattern::OneHop);
    let third = net.id(2);
    for number in 1..=8 {
        put_large(&mut net, number);
        run_without(&mut net, third);
    }
    assert_eq!(refused_for_bytes(&net), 5);
    let two = [net.id(0), net.id(1)];
    let reports = net.wedge(&two);
    assert!(reports.iter().all(|(_, report)| report.len() <= 100_000), "a share is the most");
    let members = net.view.members.clone();
    net.install(&view(2, members), &reports, None);
    assert!(net.cut().len() > 3 * VALUE_BYTES, "the third lacks all three");
    let at = |place: usize| net.copies[&net.id(place)].state(0).value(b"k").map(|stored| stored.value[0]);
    assert_eq!([0, 1, 2].map(at), [Some(3); 3]);
    // There is room again in the next view.
    put_large(&mut net, 9);
    net.run();
    assert_eq!(refused_for_bytes(&net), 5);
}

#[test]
fn there_is_room_again_when_all_have_caught_up() {
    let mut net = Net::new(3, limited(), Pattern::OneHop);
    let third = net.id(2);
    for number in 1..=4 {
        put_large(&mut net, number);
        run_without(&mut net, third);
    }
    assert_eq!(refused_for_bytes(&net), 1);
    net.pass(500);
    put_large(&mut net, 5);
    net.run();
    assert_eq!(refused_for_bytes(&net), 1);
}

#[test]
fn a_value_above_the_share_is_taken_alone() {
    let limits = Limits { log_bytes_max: 1_000, ..Limits::default() };
    let mut net = Net::new(3, Config { limits, ..majority() }, Pattern::OneHop);
    for number in 1..=3 {
        put_large(&mut net, number);
        net.run();
        net.pass(100);
    }
    assert_eq!(refused_for_bytes(&net), 0);
    assert!((0..3).all(|place| net.copies[&net.id(place)].state(0).at.counter == 3));
}

#[test]
fn a_cut_leaves_out_what_all_copies_have_reported() {
    let mut net = Net::new(3, majority(), Pattern::OneHop);
    for number in 1..=3 {
        put_large(&mut net, number);
    }
    net.run();
    let members = net.view.members.clone();
    let all: Vec<MemberId> = members.iter().map(mainstay_types::view::Member::id).collect();
    let reports = net.wedge(&all);
    net.install(&view(2, members), &reports, None);
    assert!(net.cut().len() < VALUE_BYTES, "{} bytes", net.cut().len());
    let at = |place: usize| net.copies[&net.id(place)].state(0).value(b"k").map(|stored| stored.value[0]);
    assert_eq!([0, 1, 2].map(at), [Some(3); 3]);
}

fn id_of(number: u64) -> OperationId {
    OperationId { client: ClientId(100 + number), thread: ThreadId(1), sequence: Sequence(1) }
}

/// A client of its own says something to a copy.
fn say(net: &mut Net, at: usize, shard: u16, body: Body) {
    let from = Party::Client(body.operation().expect("it is about one").client);
    let message = Message { view: net.view.id, shard, body };
    net.step(net.id(at), Event::Received { from, message });
}

/// Time goes by, and only what `which` is true for arrives.
fn pass_only(net: &mut Net, milliseconds: u64, which: impl Fn(&Message, Party) -> bool) {
    for _ in 0..milliseconds / 10 {
        net.now = net.now.after(Duration::from_millis(10));
        for member in net.copies.keys().copied().collect::<Vec<_>>() {
            net.step(member, Event::Tick);
        }
        net.run_only(|under_way| which(&under_way.message, under_way.to));
    }
}

/// What the stamper held back filled its share, and the payload that all of it waited for was refused for want of room, for ever.
#[test]
fn what_is_held_back_keeps_out_nothing_that_it_waits_for() {
    for retried in [false, true] {
        let mut net = Net::new(3, limited(), Pattern::OneHop);
        let id = id_of(50);
        say(&mut net, 0, 0, Body::VersionRequest { id });
        for number in 1..=4 {
            put_large(&mut net, number);
        }
        net.run();
        assert_eq!(refused_for_bytes(&net), 1, "what is held back fills the share");
        let operation = put(&[50; VALUE_BYTES]);
        if retried {
            let pattern = Pattern::OneHop;
            say(&mut net, 0, 0, Body::Operate { id, retry: true, pattern, operation });
        } else {
            say(&mut net, 1, 0, Body::Payload { id, counter: 1, operation });
        }
        net.run();
        net.pass(1_000);
        assert_eq!(refused_for_bytes(&net), 1);
        assert!((0..3).all(|place| net.copies[&net.id(place)].state(0).at.counter == 4));
    }
}

/// A payload that does not come next counts with what is held back: many versions granted before are no way around the limit.
#[test]
fn payloads_of_many_grants_are_held_back_up_to_the_share() {
    let mut net = Net::new(3, limited(), Pattern::OneHop);
    for number in 1..=8 {
        say(&mut net, 0, 0, Body::VersionRequest { id: id_of(number) });
    }
    for number in 2..=8 {
        let operation = put(&[u8::try_from(number).expect("it is small"); VALUE_BYTES]);
        for at in 0..3 {
            let (id, operation) = (id_of(number), operation.clone());
            say(&mut net, at, 0, Body::Payload { id, counter: number, operation });
        }
    }
    for copy in net.copies.values() {
        assert!(copy.sizes(0).iter().any(|&(name, held, _)| name == "hold_back_entries_max" && held == 3));
    }
    let operation = put(&[1; VALUE_BYTES]);
    say(&mut net, 0, 0, Body::Payload { id: id_of(1), counter: 1, operation });
    net.run();
    net.pass(2_000);
    assert!((0..3).all(|place| net.copies[&net.id(place)].state(0).at.counter == 8));
}

/// A stamper's log has two shares when the payload came that a share waited for. With one share alone in each copy, one was full of one shard, the other of
/// the other, and nothing was ever everywhere.
#[test]
fn copies_do_not_keep_each_other_out_with_two_shards() {
    let mut net = Net::new(3, Config { shards: 6, ..limited() }, Pattern::OneHop);
    let key = |shard| (0..).map(|at: u32| at.to_le_bytes()).find(|key| shard_of(key, 6) == shard);
    let put = |shard, bytes| {
        let key = key(shard).expect("each shard has keys");
        Operation::Put { key: key.as_slice().into(), value: vec![7; bytes].as_slice().into() }
    };
    for number in 1..=3 {
        say(&mut net, 0, 3, Body::VersionRequest { id: id_of(number) });
    }
    say(&mut net, 0, 0, Body::VersionRequest { id: id_of(10) });
    for number in 11..=13 {
        let (pattern, operation) = (Pattern::OneHop, put(0, VALUE_BYTES));
        say(&mut net, 0, 0, Body::Operate { id: id_of(number), retry: false, pattern, operation });
    }
    net.queue.clear();
    for number in 1..=3 {
        for at in [0, 2] {
            let (id, operation) = (id_of(number), put(3, VALUE_BYTES));
            say(&mut net, at, 3, Body::Payload { id, counter: number, operation });
        }
    }
    net.queue.clear();
    for at in [0, 1] {
        say(&mut net, at, 0, Body::Payload { id: id_of(10), counter: 1, operation: put(0, 100) });
    }
    let second = net.id(1);
    let sent = |message: &Message, to: Party| match &message.body {
        Body::Entries { entries, .. } => {
            entries.iter().all(|entry| entry.shard == 0) && to == Party::Member(second)
        }
        _ => true,
    };
    pass_only(&mut net, 200, sent);
    let ends = |net: &Net, place: usize| {
        [0, 3].map(|shard| net.copies[&net.id(place)].log(shard).last().map_or(0, |last| last.0))
    };
    assert_eq!([0, 1, 2].map(|place| ends(&net, place)), [[4, 3], [4, 0], [0, 3]]);
    net.pass(500);
    for place in 0..3 {
        assert_eq!([0, 3].map(|shard| net.copies[&net.id(place)].state(shard).at.counter), [4, 3]);
    }
}

#[test]
fn versions_without_an_operation_take_no_room() {
    let limits = Limits { log_bytes_max: 3_000, ..Limits::default() };
    let mut net = Net::new(3, Config { limits, ..majority() }, Pattern::OneHop);
    for number in 1..=20 {
        say(&mut net, 0, 0, Body::VersionRequest { id: id_of(number) });
    }
    let third = Party::Member(net.id(2));
    pass_only(&mut net, 300, |message, to| to != third || !matches!(message.body, Body::Entries { .. }));
    assert_eq!(net.copies[&net.id(0)].log(0).filter(|(_, entry)| **entry == Entry::Void).count(), 20);
    let (pattern, operation) = (Pattern::OneHop, put(&[1; 900]));
    say(&mut net, 0, 0, Body::Operate { id: id_of(30), retry: false, pattern, operation });
    net.run();
    assert_eq!(refused_for_bytes(&net), 0);
}

/// The stamper may not refuse what has no operation, so that its log and a copy's could differ by it.
#[test]
fn a_copy_without_room_takes_what_has_no_operation() {
    let limits = Limits {
        log_bytes_max: 3_000,
        key_bytes_max: 1,
        value_bytes_max: VALUE_BYTES,
        batch_bytes_max: 1_000,
        ..Limits::default()
    };
    let mut net = Net::new(3, Config { limits, ..majority() }, Pattern::OneHop);
    let (stamper, copy) = (net.id(0), net.id(1));
    let send = |net: &mut Net, counter, entry| {
        let body = one_entry(counter, entry, Acknowledge::Stamper);
        let message = Message { view: net.view.id, shard: 0, body };
        net.step(copy, Event::Received { from: Party::Member(stamper), message });
        net.copies[&copy].log(0).count()
    };
    let large = |number| {
        let (id, operation) = (id_of(number), put(&[9; VALUE_BYTES]));
        Entry::Operation { id, possible_duplicate: false, operation }
    };
    let taken: Vec<usize> = (1..=4).map(|number| send(&mut net, number, large(number))).collect();
    assert_eq!(taken, [1, 2, 3, 3]);
    assert_eq!(send(&mut net, 4, Entry::Void), 4);
    assert_eq!(send(&mut net, 5, Entry::Expire { until_ms: 1 }), 5);
    assert_eq!(send(&mut net, 6, large(6)), 5);
}
