//! What a cluster went wrong with once, step by step.

use crate::support::net::{Beyond, Net, names};
use mainstay_channel::frame::{Frame, split};
use mainstay_process::effect::Effect;
use mainstay_process::event::{Event, PeerEvent};
use mainstay_process::loss::Loss;
use mainstay_process::waits::{Wait, Why};
use mainstay_recovery::policy::Policy;
use mainstay_types::id::{DeliveryIndex, NodeId};
use mainstay_types::level::Level;
use std::collections::VecDeque;
use std::time::Duration;

/// The request's own record is safe long before the one of the message that led to its answer: repeated in between, it waits like the first.
#[test]
fn a_late_answer_given_again_waits_for_the_record_that_it_depends_on() {
    let mut net = Net::new([Policy::Deferred; 3], Level::Disk, 1);
    net.settle();
    let [one, two, three] = [1, 2, 3].map(NodeId);
    net.ask(one, "late");
    net.perform_disk(one);
    // Once around, while the disk of the first node does nothing more.
    for _ in 0..100 {
        for (from, to) in [(one, two), (two, three), (three, one), (two, one), (three, two), (one, three)] {
            while let Some(bytes) = net.on_the_way.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
                net.step(to, Event::Peer(PeerEvent::Frames { peer: from, bytes }));
            }
        }
        net.perform_disk(two);
        net.perform_disk(three);
    }
    let folded = net.nodes[&three].process.handler().folded.len();
    assert_eq!((folded, net.nodes[&one].process.executed()), (1, DeliveryIndex(2)), "it came back");
    assert!(net.answers.is_empty());
    net.ask(one, "late");
    assert!(net.answers.is_empty(), "given again before it was given");
    net.crash(one);
    net.start(one, None);
    net.settle();
    net.ask_again(&["late".to_owned()]);
    net.check(&["late".to_owned()]);
}

/// A checkpoint is published, and messages are let go, when nothing can take them back any more. Nobody asks the others how far they are for
/// the sake of an answer then.
#[test]
fn nodes_at_rest_complete_their_checkpoints_and_retain_nothing() {
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Unlogged) {
        let mut net = Net::new([policy; 3], Level::Disk, 5);
        net.settle();
        for name in names(3) {
            net.ask(NodeId(1), &name);
            net.settle();
        }
        for node in [1, 2, 3, 1, 2, 3].map(NodeId) {
            net.step(node, Event::CheckpointNow);
            net.settle();
        }
        for (node, machine) in &net.nodes {
            assert_eq!(machine.process.stats().checkpoints, 2, "{policy}: {node}");
            let retained: u64 = machine.process.retained().map(|retained| retained.messages).sum();
            assert_eq!(retained, 0, "{policy}: {node}");
        }
    }
}

/// Its checkpoint and its seal are what another version of the service may start from.
#[test]
fn a_node_that_is_asked_to_stop_while_it_collects_stops_cleanly_once_it_is_recovered() {
    let mut net = Net::new([Policy::Hybrid; 3], Level::Disk, 1);
    net.settle();
    net.ask(NodeId(1), "once");
    net.settle();
    net.crash(NodeId(1));
    net.start(NodeId(1), None);
    assert!(net.nodes[&NodeId(1)].process.is_collecting());
    net.step(NodeId(1), Event::Stop);
    net.settle();
    assert!(net.stopped.contains(&NodeId(1)));
    assert_eq!(net.nodes[&NodeId(1)].process.stats().checkpoints, 1);
}

#[test]
fn a_node_that_collects_is_not_woken_for_a_checkpoint_that_it_may_not_take() {
    let mut net = Net::new([Policy::SenderBased; 3], Level::Disk, 1);
    net.settle();
    net.ask(NodeId(1), "once");
    net.settle();
    net.crash(NodeId(1));
    net.start(NodeId(1), None);
    let machine = net.nodes.get_mut(&NodeId(1)).expect("it runs");
    assert!(machine.process.is_collecting());
    machine.now = machine.now.after(Duration::from_secs(24 * 3600));
    machine.step(Event::Tick);
    let now = machine.now;
    let busy = |effect: &&Effect| matches!(effect, Effect::Wake(at) if *at <= now);
    assert_eq!(machine.other.iter().find(busy).map(|effect| format!("{effect:?}")), None);
}

/// Both collect: the one may need for its replay what the other has in its journal, and the other the one's. Neither is to wait for the
/// end of its own recovery.
#[test]
fn what_its_journal_replays_leaves_before_a_node_has_collected() {
    let mut net = Net::new([Policy::Causal { f: 2 }; 3], Level::Disk, 1);
    net.settle();
    let [one, two, three] = [1, 2, 3].map(NodeId);
    net.ask(one, "told");
    net.settle();
    crash_together(&mut net, [one, two]);
    for node in [one, two] {
        net.disconnect(node, three);
    }
    let mut told = false;
    while net.happen() {
        let frames = net.on_the_way.get(&(one, two)).into_iter().flatten().flatten().copied();
        told |= holds_message(&frames.collect::<Vec<u8>>());
    }
    assert!(net.nodes.values().filter(|node| node.process.is_collecting()).count() == 2);
    assert!(told, "the second node waits for the message");
    net.settle();
    net.check(&["told".to_owned()]);
}

/// It is history as soon as it is logged: a greeting that only asks what was delivered would let it be delivered after the loss.
#[test]
fn a_message_that_waits_for_its_record_is_given_up_when_its_sender_has_lost_it() {
    let mut net = Net::new([Policy::SenderBased, Policy::Immediate, Policy::SenderBased], Level::Disk, 1);
    net.settle();
    net.beyond = Some(Beyond::default());
    let [one, two, three] = [1, 2, 3].map(NodeId);
    net.ask(three, "lost");
    net.perform_disk(three);
    for (from, to) in [(3, 1), (1, 3), (3, 1), (1, 2)] {
        net.arrive(from, to);
    }
    let waiting = net.nodes[&two].process.stats().backlog;
    assert_eq!((waiting, net.folded_by(2)), (1, 0), "it is logged, and its record is not safe");
    // One more than survives: the place that the first gave is lost.
    crash_together(&mut net, [one, three]);
    let went_back = |net: &Net| net.beyond.as_ref().is_some_and(|beyond| beyond.rolled_back.contains(&two));
    for _ in 0..1000 {
        for (from, to) in [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)] {
            net.connect(NodeId(from), NodeId(to));
            net.arrive(from, to);
        }
        net.perform_disk(one);
        net.perform_disk(three);
        if went_back(&net) {
            break;
        }
    }
    assert!(went_back(&net), "{:?}", net.beyond);
    net.settle();
    net.ask(three, "lost");
    net.settle();
    net.answers = net.beyond.take().expect("it was set").answers;
    net.check(&["lost".to_owned()]);
}

/// The word that the second is recovered reaches the first, which recovers as well, only after the third has failed. Two are survived.
#[test]
fn a_node_that_recovered_before_another_failed_was_not_down_together_with_it() {
    let mut net = Net::new([Policy::Causal { f: 2 }; 3], Level::Disk, 1);
    net.settle();
    let [one, two, three] = [1, 2, 3].map(NodeId);
    net.ask(one, "told");
    net.settle();
    crash_together(&mut net, [one, two]);
    net.arrive(2, 1);
    all_but_from_two_to_one_arrives(&mut net);
    let collects = [one, two].map(|node| net.nodes[&node].process.is_collecting());
    assert_eq!(collects, [true, false]);
    net.crash(three);
    net.start(three, None);
    all_but_from_two_to_one_arrives(&mut net);
    // A loss that is stated fails the test.
    net.settle();
    net.check(&["told".to_owned()]);
}

/// All are down before the first is up again.
fn crash_together(net: &mut Net, nodes: [NodeId; 2]) {
    for node in nodes {
        net.crash(node);
    }
    for node in nodes {
        net.start(node, None);
    }
}

/// The first holds where the third delivered its last message, and makes that message only when the third has made its own again. What the third
/// asks goes with that, and the answer in front of what it leads to (seed 40747 of `beyond`).
#[test]
fn what_the_replay_of_another_is_about_to_bring_is_not_stated_as_lost() {
    let mut net = Net::new([Policy::SenderBased; 3], Level::Disk, 1);
    net.settle();
    let [one, two, three] = [1, 2, 3].map(NodeId);
    let names = ["via:21", "via:3132"].map(str::to_owned);
    for (node, name) in [(one, &names[0]), (two, &names[1])] {
        net.ask(node, name);
        net.settle();
    }
    assert_eq!(net.answers.len(), 2);
    net.beyond = Some(Beyond::default());
    let delivered = net.nodes[&three].process.executed();
    net.crash(one);
    net.start(one, None);
    // The third tells what it delivered where, and where the first delivered its message; what the first delivered before that, the second has not
    // told yet.
    for (from, to) in [(1, 3), (3, 1), (1, 2)] {
        net.arrive(from, to);
    }
    net.crash(three);
    net.start(three, None);
    for (from, to) in [(2, 1), (1, 3), (3, 1), (1, 3), (3, 1), (3, 2), (2, 3), (3, 1), (1, 3)] {
        net.arrive(from, to);
    }
    net.settle();
    let beyond = net.beyond.take().expect("it was set");
    assert!(beyond.rolled_back.is_empty() && beyond.stopped.is_empty(), "{beyond:?}");
    assert!(beyond.losses.iter().any(|(node, _)| *node == three), "more failed than is survived: {beyond:?}");
    for (node, loss) in &beyond.losses {
        let all =
            matches!(loss, Loss::Recovered { recovered, .. } if *node != three || *recovered == delivered);
        assert!(all, "{node} delivered up to {delivered}, and all of it comes back: {loss}");
    }
    // An answer that differs from the first one fails the test.
    net.ask_again(&names);
    assert_eq!(net.answers.len(), 2);
}

/// What the second recovered waits for the first's journal, so that the third, which recovers, is not answered. While there is hope it is said who waits
/// for whom; when the second's own journal fails, the third is told what to do.
#[test]
fn who_keeps_a_recovering_node_waiting_says_for_whom_and_a_poisoned_one_that_it_cannot_answer() {
    let mut net = Net::new([Policy::Optimistic, Policy::Optimistic, Policy::SenderBased], Level::Disk, 1);
    net.settle();
    let [one, two, three] = [1, 2, 3].map(NodeId);
    net.ask(one, "r");
    net.arrive(1, 2);
    net.finish_disk_of(2);
    for node in [two, three] {
        net.crash(node);
        net.start(node, None);
    }
    let around = |net: &mut Net| {
        for _ in 0..5 {
            for (from, to) in [(1, 2), (2, 1), (2, 3), (3, 2), (1, 3), (3, 1)] {
                net.arrive(from, to);
            }
        }
    };
    around(&mut net);
    let waits = |net: &Net, node: &NodeId| net.nodes[node].process.waits_for();
    assert_eq!(waits(&net, &three), [Wait { node: two, why: Why::Collected }]);
    assert_eq!(net.nodes[&two].process.kept_waiting(), [three].into());
    assert_eq!(waits(&net, &two), [Wait { node: one, why: Why::Journal }]);

    net.beyond = Some(Beyond::default());
    net.ask(two, "s");
    net.nodes.get_mut(&two).expect("it runs").fail_disk();
    net.take_out(two);
    let why = waits(&net, &three).remove(0).why;
    assert!(
        matches!(&why, Why::Apart { refused: Some(text) } if text.contains("start this node again")),
        "{why:?}"
    );
    // Which is one crash more beside that of the third than the third survives.
    net.restart(two);
    net.settle();
    assert_eq!((waits(&net, &three), waits(&net, &two)), (Vec::new(), Vec::new()));
    for (node, name) in [(one, "r"), (two, "s")] {
        net.ask(node, name);
        net.settle();
    }
    net.answers = net.beyond.take().expect("it was set").answers;
    net.check(&["r", "s"].map(str::to_owned));
}

fn all_but_from_two_to_one_arrives(net: &mut Net) {
    for _ in 0..100 {
        for (from, to) in [(1, 2), (1, 3), (3, 1), (2, 3), (3, 2)] {
            net.arrive(from, to);
        }
        for node in [1, 2, 3].map(NodeId) {
            net.perform_disk(node);
        }
    }
}

fn holds_message(mut frames: &[u8]) -> bool {
    while let Ok(Some((frame, rest))) = split(frames, u64::MAX) {
        if matches!(Frame::parse(frame), Ok(Frame::Message(_))) {
            return true;
        }
        frames = rest;
    }
    false
}
