//! Fuzzes what a process of a group may be told, and what its disk may hold: whatever comes is taken in or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_group::event::Event;
use mainstay_group::group::{Begin, Config, Group};
use mainstay_group::limits::{Limits, Timing};
use mainstay_group::message::Message;
use mainstay_group::record::Record;
use mainstay_types::id::{ClusterId, Incarnation, StoreId};
use mainstay_types::machine::Machine;
use mainstay_types::rules::Rules;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, Offer};

fuzz_target!(|told: Vec<Vec<u8>>| {
    let me = JoinerId { address: Address::v4([10, 0, 0, 1], 1), store: StoreId([1; 16]), life: Incarnation(1) };
    let config = Config {
        me,
        offer: Offer::server(),
        ask_at: Vec::new(),
        begin: Some(Begin { cluster: ClusterId([1; 16]), arbitrated: false, cut: Vec::new() }),
        limits: Limits::default(),
        timing: Timing::default(),
        rules: Rules::KEPT,
    };
    let mut out = Vec::new();
    let mut group = Group::start(config, None, Time::EPOCH, &mut out).expect("an empty store begins a group");
    group.step(Time::EPOCH, Event::Persisted { ticket: 1 }, &mut out);
    for bytes in told {
        if let Ok(record) = Record::parse(&bytes) {
            let mut again = Vec::new();
            record.put(&mut again);
            assert_eq!(Record::parse(&again), Ok(record));
        }
        if let Ok(message) = Message::parse(&bytes) {
            let mut again = Vec::new();
            message.put(&mut again);
            assert_eq!(again, bytes, "there is one encoding of a message");
            group.step(Time::EPOCH, Event::Arrived(message), &mut out);
            out.clear();
        }
    }
});
