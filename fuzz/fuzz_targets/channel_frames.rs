//! Fuzzes what a peer and a checkpoint may hold: the frames of a session, taken in by a node as they come, and saved links.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_channel::channel::{Arrival, Channel};
use mainstay_channel::frame::{Frame, split};
use mainstay_channel::hello::{Declared, Identity};
use mainstay_channel::limits::Limits;
use mainstay_channel::refusal::Refusal;
use mainstay_types::determinant::Point;
use mainstay_types::id::{ClusterId, Incarnation, NodeId, Ssn, StoreId};

const PEER: NodeId = NodeId(1);

fn node(node: NodeId) -> Channel {
    let (cluster, store) = (ClusterId([0; 16]), StoreId([0; 16]));
    let identity = Identity { cluster, node, store, incarnation: Incarnation(1) };
    Channel::new(identity, Declared::default(), &[NodeId(0), PEER], Limits::default())
}

fn take_in(channel: &mut Channel, bytes: &[u8]) -> Result<(), Refusal> {
    match Frame::parse(bytes)? {
        Frame::Hello(hello) => channel.greeted(PEER, &hello).map(|_| ()),
        Frame::Message(message) => {
            if channel.arrived(PEER, &message)? == Arrival::Next
                && message.ssn == channel.delivered_up_to(PEER).next()
            {
                channel.delivered(PEER, message.ssn, message.origin);
            }
            Ok(())
        }
        Frame::Received { ssn } => channel.received(PEER, ssn),
        Frame::Covered { ssn } => channel.covered(PEER, ssn),
        Frame::Collected => channel.collected(PEER),
        // Of the others the channel is told nothing: a process takes them in.
        _ => Ok(()),
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(frame) = Frame::parse(bytes) {
        let mut again = Vec::new();
        frame.put(&mut again);
        assert_eq!(again, bytes);
    }
    let mut restored = node(NodeId(0));
    if restored.restore(bytes).is_ok() {
        let (mut once, mut twice) = (Vec::new(), Vec::new());
        restored.save(&mut once);
        let mut restored = node(NodeId(0));
        restored.restore(&once).expect("it was saved by this version");
        restored.save(&mut twice);
        assert_eq!(once, twice);
    }

    let mut channel = node(NodeId(0));
    let ssn = channel.append(PEER, Point::default(), vec![1], vec![2; 3].into());
    channel.release(PEER, ssn);
    channel.connected(PEER);
    let mut hello = Vec::new();
    Frame::Hello(Box::new(node(PEER).connected(NodeId(0)))).put(&mut hello);
    let _ = take_in(&mut channel, &hello);
    let mut rest = bytes;
    while let Ok(Some((frame, after))) = split(rest, 1 << 20) {
        if take_in(&mut channel, frame).is_err() {
            break;
        }
        channel.frames_for(PEER, |_| {}, |_| {});
        rest = after;
    }
    let _ = channel.recovered();
    assert!(channel.appended(PEER) == Ssn(1));
});
