//! What is said once for all that came together.

use crate::net::{CLIENT, Net, config, put};
use mainstay_region::client::Ended;
use mainstay_region::effect::{Effect, Event, RecordNumber};
use mainstay_region::log::Entry;
use mainstay_region::message::{Acknowledge, Body, Message, Party};
use mainstay_region::patterns::Pattern;
use mainstay_types::id::{Sequence, ThreadId};
use mainstay_types::machine::Machine;
use mainstay_types::operation::OperationId;
use mainstay_types::view::ViewId;

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
                    to, message: Message { body: Body::Position { counter, .. }, .. }, ..
                } => {
                    assert_eq!(to, Party::Member(stamper));
                    positions.push(counter);
                }
                _ => {}
            }
        }
        (positions, last)
    };
    let entry = |counter| {
        let id = OperationId { client: CLIENT, thread: ThreadId(1), sequence: Sequence(counter) };
        let entry = Entry::Operation { id, possible_duplicate: false, operation: put(b"v") };
        let body =
            Body::Entry { counter, entry, acknowledge: Acknowledge::Stamper, stable: 0, everywhere: 0 };
        let message = Message { view: ViewId(1), shard: 0, body };
        Event::Received { from: Party::Member(stamper), message }
    };
    let safe: Vec<RecordNumber> = (1..=3).map(|counter| step(entry(counter)).1).collect();
    assert_eq!(step(Event::Drained).0, [0_u64; 0], "nothing is safe");
    step(Event::Appended(safe[1]));
    assert_eq!(step(Event::Drained).0, [2], "two of three are");
    assert_eq!(step(Event::Drained).0, [0_u64; 0], "it is said");
    step(Event::Appended(safe[2]));
    assert_eq!(step(Event::Drained).0, [3]);
    // The stamper sends again what it does not know to have come: it is told again.
    step(entry(2));
    assert_eq!(step(Event::Drained).0, [3]);
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
