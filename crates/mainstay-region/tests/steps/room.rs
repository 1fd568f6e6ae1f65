//! What logs, reports and cuts may have in bytes.

use crate::net::{Net, majority, put, view};
use mainstay_region::effect::Event;
use mainstay_region::limits::{Config, Limits};
use mainstay_region::message::{Body, Limit, Message, Party, Refusal};
use mainstay_region::patterns::Pattern;
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use mainstay_types::operation::OperationId;
use mainstay_types::view::MemberId;

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
