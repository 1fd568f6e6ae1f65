//! What is said once for all that came together.

use crate::net::{CLIENT, Net, config, one_entry, put};
use mainstay_region::client::Ended;
use mainstay_region::effect::{Effect, Event, RecordNumber};
use mainstay_region::limits::{Config, Limits};
use mainstay_region::log::{ENTRY_BYTES, Entry};
use mainstay_region::message::{Acknowledge, Body, Message, Party};
use mainstay_region::patterns::Pattern;
use mainstay_types::id::{Sequence, ThreadId};
use mainstay_types::machine::Machine;
use mainstay_types::operation::OperationId;
use mainstay_types::view::ViewId;
use std::collections::BTreeMap;

/// One position for many entries, and none for what is not safe yet.
#[test]
fn a_copy_says_once_how_far_it_is_and_only_what_is_safe() {
    let mut net = Net::new(3, config(), Pattern::OneHop);
    let (stamper, second, now) = (net.id(0), net.id(1), net.now);
    let region = net.copies.get_mut(&second).expect("it is there");
    let mut last = RecordNumber::default();
    let mut step = |event| {
        let mut out = Vec::new();
        region.step(now, event, &mut out);
        let mut positions = Vec::new();
        for effect in out {
            match effect {
                Effect::Append { record, .. } => last = record,
                Effect::Send {
                    to,
                    message: Message { body: Body::Positions { positions: said, .. }, .. },
                    ..
                } => {
                    assert_eq!(to, Party::Member(stamper));
                    positions.extend(said.into_iter().map(|(_, counter)| counter));
                }
                _ => {}
            }
        }
        (positions, last)
    };
    let entry = |counter| {
        let id = OperationId { client: CLIENT, thread: ThreadId(1), sequence: Sequence(counter) };
        let entry = Entry::Operation { id, possible_duplicate: false, operation: put(b"v") };
        let message =
            Message { view: ViewId(1), shard: 0, body: one_entry(counter, entry, Acknowledge::Stamper) };
        Event::Received { from: Party::Member(stamper), message }
    };
    let before = step(Event::Drained).1;
    assert_eq!(
        [1, 2].map(|counter| step(entry(counter)).1),
        [before; 2],
        "they wait for what comes with them"
    );
    let (said, first) = step(Event::Drained);
    assert!(said.is_empty() && first > before, "one record, which is not safe");
    step(entry(3));
    let (_, second) = step(Event::Drained);
    step(Event::Appended(first));
    assert_eq!(step(Event::Drained).0, [2], "two of three are");
    assert_eq!(step(Event::Drained).0, [0_u64; 0], "it is said");
    step(Event::Appended(second));
    assert_eq!(step(Event::Drained).0, [3]);
    // The stamper sends again what it does not know to have come: it is told again.
    step(entry(2));
    assert_eq!(step(Event::Drained).0, [3]);
}

/// One message to each member for many operations, and one record.
#[test]
fn what_was_stamped_together_leaves_together_in_messages_of_bounded_length() {
    let mut limits = Limits { together_bytes_max: 2 * (ENTRY_BYTES + 2), ..Limits::default() };
    for (together_bytes_max, parcels) in [(limits.together_bytes_max, vec![2, 2, 1]), (1, vec![1; 5])] {
        limits.together_bytes_max = together_bytes_max;
        let mut net = Net::new(3, Config { limits, ..config() }, Pattern::OneHop);
        let (stamper, now) = (net.id(0), net.now);
        let region = net.copies.get_mut(&stamper).expect("it is there");
        let (mut sent, mut records) = (BTreeMap::new(), 0);
        let mut step = |event| {
            let mut out = Vec::new();
            region.step(now, event, &mut out);
            for effect in out {
                match effect {
                    Effect::Append { .. } => records += 1,
                    Effect::Send {
                        to, message: Message { body: Body::Entries { entries, .. }, .. }, ..
                    } => {
                        sent.entry(to).or_insert_with(Vec::new).push(entries);
                    }
                    _ => {}
                }
            }
        };
        for number in 1..=5 {
            let id = OperationId { client: CLIENT, thread: ThreadId(1), sequence: Sequence(number) };
            let body = Body::Operate { id, retry: false, pattern: Pattern::OneHop, operation: put(b"v") };
            let message = Message { view: ViewId(1), shard: 0, body };
            step(Event::Received { from: Party::Client(CLIENT), message });
        }
        step(Event::Drained);
        assert_eq!(sent.len(), 2, "both others");
        for messages in sent.values() {
            let lengths: Vec<usize> = messages.iter().map(Vec::len).collect();
            assert_eq!(lengths, parcels);
            let counters: Vec<u64> = messages.iter().flatten().map(|entry| entry.counter).collect();
            assert_eq!(counters, [1, 2, 3, 4, 5]);
        }
        assert_eq!(records, parcels.len(), "records are bounded alike");
    }
}

/// In the next view its record would count for versions of that view.
#[test]
fn what_was_accepted_is_recorded_before_anything_else_happens_to_the_copy() {
    for kind in 0..4 {
        let mut net = Net::new(3, config(), Pattern::OneHop);
        let (stamper, second, now) = (net.id(0), net.id(1), net.now);
        let next = match kind {
            0 => Event::Tick,
            1 => Event::Checkpoint,
            2 => Event::Wedge { view: ViewId(1), request: 1 },
            _ => Event::Learn { me: second, sources: vec![stamper] },
        };
        let region = net.copies.get_mut(&second).expect("it is there");
        let id = OperationId { client: CLIENT, thread: ThreadId(1), sequence: Sequence(1) };
        let entry = Entry::Operation { id, possible_duplicate: false, operation: put(b"v") };
        let body = one_entry(1, entry, Acknowledge::Stamper);
        let message = Message { view: ViewId(1), shard: 0, body };
        let mut out = Vec::new();
        region.step(now, Event::Received { from: Party::Member(stamper), message }, &mut out);
        assert_eq!((out.len(), region.unrecorded().count()), (0, 1));
        region.step(now, next.clone(), &mut out);
        assert!(matches!(out.first(), Some(Effect::Append { .. })), "{next:?}: {out:?}");
        assert_eq!(region.unrecorded().count(), 0);
    }
}

/// A driver that forgets to drain is late, and stops nobody.
#[test]
fn what_is_not_drained_leaves_with_the_next_tick() {
    let mut net = Net::new(3, config(), Pattern::OneHop);
    net.drains = false;
    let id = net.call(put(b"v"));
    net.run();
    assert!(net.how(id).is_empty());
    net.pass(40);
    assert!(matches!(net.how(id)[..], [Ended::Done { .. }]), "{:?}", net.how(id));
}
