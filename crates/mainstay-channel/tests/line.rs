//! Who went on from before a line in another version, and who is talked to.

use mainstay_channel::channel::Channel;
use mainstay_channel::hello::{Declared, Identity};
use mainstay_channel::limits::Limits;
use mainstay_channel::refusal::Refusal;
use mainstay_types::id::{ClusterId, Incarnation, NodeId, StoreId};
use mainstay_types::snapshot::SnapshotId;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

fn channel(node: NodeId, version: u32) -> Channel {
    let (cluster, store) = (ClusterId([7; 16]), StoreId([node.0 as u8; 16]));
    let identity = Identity { cluster, node, store, incarnation: Incarnation(5) };
    Channel::new(identity, Declared { version, ..Declared::default() }, &[A, B], Limits::default())
}

/// Exchanged at a line, a node talks to who was exchanged there as well, and to its own version; two that were exchanged one after the other
/// talk to each other.
#[test]
fn who_went_on_from_before_a_line_in_another_version_is_refused() {
    let line = SnapshotId { number: 3, initiator: A, life: Incarnation(1) };
    let in_version = |node: NodeId, version: u32, begins_at: Option<SnapshotId>| {
        let mut saved = Vec::new();
        let mut stops = channel(node, version);
        stops.stop_at(begins_at.unwrap_or(SnapshotId::NONE));
        stops.save(&mut saved);
        let mut channel = channel(node, version);
        channel.restore(&saved).expect("it was just saved");
        channel.begin(begins_at.is_some());
        assert_eq!(channel.recovered(), []);
        channel
    };
    let check = |one: (u32, Option<SnapshotId>), other: (u32, Option<SnapshotId>)| {
        let (one, mut other) = (in_version(A, one.0, one.1), in_version(B, other.0, other.1));
        one.check(&other.connected(A))
    };
    assert_eq!(check((2, Some(line)), (2, Some(line))), Ok(()));
    assert_eq!(check((1, None), (2, None)), Ok(()), "one after the other");
    assert_eq!(check((2, Some(line)), (2, None)), Ok(()), "exchanged alone, later");
    let refused = Refusal::OtherLine { node: B, ours: (line, 2), theirs: (SnapshotId::NONE, 1) };
    assert_eq!(check((2, Some(line)), (1, None)), Err(refused));
    assert!(refused.to_string().len() <= 1024);
    // The same version goes on as if it had not stopped.
    let mut again = in_version(A, 1, None);
    again.stop_at(line);
    again.begin(false);
    assert_eq!(again.line(), SnapshotId::NONE);
    again.begin(true);
    assert_eq!(again.line(), SnapshotId::NONE);
}
