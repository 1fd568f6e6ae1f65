//! The cost table: messages, payloads, hops and payload transfers in the path, counted, for 1 to 7 copies.

use crate::net::{Net, config, payloads, put};
use mainstay_region::client::Ended;
use mainstay_region::duplicates::Seen;
use mainstay_region::limits::Config;
use mainstay_region::operation::Outcome;
use mainstay_region::patterns::{Cost, Pattern};

fn counted(pattern: Pattern, copies: u8) -> Cost {
    let config = Config { unversioned: pattern == Pattern::Unversioned, ..config() };
    let mut net = Net::new(copies, config, pattern);
    let id = net.call(put(b"value"));
    net.run();
    let [(ended, Ended::Done { seen, duplicate: false }, hops, payload_hops)] = &net.ended[..] else {
        panic!("{pattern:?} with {copies} copies ends once: {:?}", net.ended);
    };
    assert_eq!(*ended, id);
    let Seen { version, outcome } = seen;
    assert_eq!(*outcome, Outcome::Written);
    assert_eq!(version.counter, u64::from(pattern != Pattern::Unversioned));
    Cost {
        messages: net.delivered.len() as u64,
        payloads: payloads(&net.delivered),
        hops: *hops,
        payload_hops: *payload_hops,
    }
}

#[test]
fn every_pattern_costs_what_its_row_says() {
    for pattern in Pattern::ALL {
        for copies in [1, 2, 3, 5, 7] {
            assert_eq!(
                counted(pattern, copies),
                pattern.cost(u64::from(copies)),
                "{pattern:?}, {copies} copies"
            );
        }
    }
}

/// The table of docs/region.md, with three copies.
#[test]
fn three_copies_cost_what_the_documentation_says() {
    let cost = |messages, payloads, hops, payload_hops| Cost { messages, payloads, hops, payload_hops };
    let table = [
        (Pattern::Unversioned, cost(6, 3, 2, 1)),
        (Pattern::VersionRequest, cost(8, 3, 4, 1)),
        (Pattern::MessageReturnsVersion, cost(6, 3, 4, 2)),
        (Pattern::OneHop, cost(6, 3, 4, 2)),
        (Pattern::OneHopClient, cost(6, 3, 3, 2)),
        (Pattern::Tagged, cost(8, 3, 3, 1)),
        (Pattern::Chain, cost(4, 3, 4, 3)),
    ];
    for (pattern, expected) in table {
        assert_eq!(pattern.cost(3), expected, "{pattern:?}");
    }
}
