//! Fuzzes what a copy of a region may be told: whatever comes is taken in or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_region::effect::{Effect, Event};
use mainstay_region::limits::Config;
use mainstay_region::message::{Message, Party};
use mainstay_region::region::Region;
use mainstay_types::id::{ClientId, Incarnation, StoreId};
use mainstay_types::machine::Machine;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, Member, Offer, View, ViewId};

fuzz_target!(|messages: Vec<(u8, Vec<u8>)>| {
    let config = Config { shards: 2, ..Config::default() };
    let member = |number: u8| {
        let joiner = JoinerId {
            address: Address::v4([10, 0, 0, number], 1),
            store: StoreId([number; 16]),
            life: Incarnation(1),
        };
        Member { born: ViewId(1), joiner, offer: Offer::server() }
    };
    let view = View { id: ViewId(1), arbitrated: false, members: (1..=3).map(member).collect() };
    let mut region = Region::new(config);
    let mut out = Vec::new();
    region.step(Time(1), Event::Settle { reports: Vec::new() }, &mut out);
    let Some(Effect::Cut(cut)) = out.pop() else { unreachable!("no reports lead to an empty cut") };
    let (me, sources) = (view.members[0].id(), Vec::new());
    region.step(Time(1), Event::Fetch { me, view: view.clone(), cut, sources }, &mut out);
    region.step(Time(1), Event::Installed { view: ViewId(1) }, &mut out);
    for (from, bytes) in messages {
        let Ok(message) = Message::decode(&bytes, &config.limits) else { continue };
        assert_eq!(Message::decode(&message.encode(), &config.limits), Ok(message.clone()));
        // Members are believed: what they say is checked by their own machine. Clients are not.
        let from = Party::Client(ClientId(u64::from(from)));
        region.step(Time(2), Event::Received { from, message }, &mut out);
        out.clear();
    }
});
