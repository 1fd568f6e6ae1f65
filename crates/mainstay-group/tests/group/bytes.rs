//! Messages and records read back, and nothing else is taken for one.

use crate::rig::joiner;
use mainstay_group::ballot::{Ballot, Because, Departure, Promised, Proposal};
use mainstay_group::message::{Body, Message, MessageError, PROTOCOL, Refusal};
use mainstay_group::record::{Record, RecordError};
use mainstay_types::id::{ClusterId, StoreId};
use mainstay_types::view::{Member, MemberId, Offer, View, ViewId};

fn proposal() -> Proposal {
    let members = (1..=3)
        .map(|number| Member {
            born: ViewId(u64::from(number)),
            joiner: joiner(number, 1),
            offer: Offer { roles: vec!["stock".to_owned()], ..Offer::server() },
        })
        .collect();
    let departure = Departure {
        member: MemberId { address: joiner(4, 1).address, born: ViewId(1) },
        store: StoreId([4; 16]),
        because: Because::Silent { votes: 2 },
        view: ViewId(4),
    };
    Proposal {
        view: View { id: ViewId(4), arbitrated: false, members },
        base: ViewId(3),
        cut: b"cut".to_vec(),
        departures: vec![departure],
    }
}

fn bodies() -> Vec<Body> {
    let ballot = Ballot { round: 7, proposer: StoreId([2; 16]) };
    let member = MemberId { address: joiner(2, 1).address, born: ViewId(3) };
    let promised = Promised {
        accepted: Some((ballot, proposal())),
        report: b"report".to_vec(),
        grants: vec![(member, 5)],
        ready: ViewId(3),
    };
    vec![
        Body::Beat { sent: 1, echo: 2, grants: true, ready: false },
        Body::Verify { suspect: member },
        Body::Verified { suspect: member, silent: true },
        Body::Leave,
        Body::Join { offer: Offer::server(), votes: true, hears: false, learned: true },
        Body::Located { coordinator: joiner(1, 1).address },
        Body::Prepare { ballot },
        Body::Promise { ballot, promised: Box::new(promised) },
        Body::Rejected { promised: ballot },
        Body::Accept { ballot, proposal: proposal() },
        Body::Accepted { ballot },
        Body::Install { proposal: proposal() },
        Body::Shunned { departure: proposal().departures.first().copied() },
        Body::Refused {
            refusal: Refusal::OtherCluster { ours: ClusterId([1; 16]), theirs: ClusterId([2; 16]) },
        },
        Body::Refused { refusal: Refusal::Full { members: 3 } },
        Body::Refused { refusal: Refusal::Busy { joiners: 3 } },
        Body::Askers { joiners: vec![joiner(1, 1), joiner(2, 1)] },
    ]
}

#[test]
fn messages_read_back_and_no_part_of_one_is_taken_for_one() {
    for body in bodies() {
        let message =
            Message { cluster: Some(ClusterId([9; 16])), view: ViewId(3), from: joiner(1, 2), body };
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        assert_eq!(Message::parse(&bytes), Ok(message.clone()));
        for end in 0..bytes.len() {
            assert!(Message::parse(&bytes[..end]).is_err(), "{} cut at {end}", message.body.name());
        }
        bytes.push(0);
        assert!(Message::parse(&bytes).is_err());
        bytes[0] += 1;
        assert_eq!(Message::parse(&bytes), Err(MessageError::Protocol { found: PROTOCOL + 1 }));
    }
}

/// Found by fuzzing: a reason that has no votes took any number of them, and a message had many encodings.
#[test]
fn only_who_was_silent_was_voted_out() {
    let departure = |because| {
        let departure = Departure { because, ..proposal().departures[0] };
        let body = Body::Shunned { departure: Some(departure) };
        let mut bytes = Vec::new();
        Message { cluster: None, view: ViewId(3), from: joiner(1, 2), body }.put(&mut bytes);
        bytes
    };
    for (kind, because) in [(0, Because::Left), (2, Because::Replaced), (3, Because::Absent)] {
        let mut bytes = departure(because);
        assert!(Message::parse(&bytes).is_ok());
        // The votes stand before the number of the view.
        let votes = bytes.len() - 16;
        bytes[votes] = 1;
        assert_eq!(Message::parse(&bytes), Err(MessageError::Reason { kind }));
    }
}

#[test]
fn a_record_reads_back_and_a_damaged_one_is_refused_by_name() {
    let record = Record {
        cluster: Some(ClusterId([9; 16])),
        store: StoreId([1; 16]),
        installed: Some(proposal()),
        promised: Ballot { round: 3, proposer: StoreId([2; 16]) },
        accepted: Some((Ballot { round: 2, proposer: StoreId([1; 16]) }, proposal())),
        ready: ViewId(3),
    };
    let mut bytes = Vec::new();
    record.put(&mut bytes);
    assert_eq!(Record::parse(&bytes), Ok(record));
    for end in 1..bytes.len() {
        assert!(matches!(Record::parse(&bytes[..end]), Err(RecordError::Damaged(_))), "cut at {end}");
    }
    bytes[0] = 9;
    assert_eq!(Record::parse(&bytes), Err(RecordError::Version { found: 9 }));
}
