//! Three processes that talk: a request goes through all of them and back, whatever crashes on the way.

use crate::support::net::{Beyond, Net, names};
use crate::support::{Memo, World, config, key, request};
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_process::config::Config;
use mainstay_process::effect::Effect;
use mainstay_process::event::Event;
use mainstay_process::loss::Loss;
use mainstay_process::recover::RecoverError;
use mainstay_recovery::policy::Policy;
use mainstay_types::id::NodeId;
use mainstay_types::level::Level;

/// Returns how often a node that did not fail rolled back.
fn run(policy: Policy, level: Level, seed: u64, crashes: usize) -> u32 {
    let mut net = Net::new([policy; 3], level, seed);
    net.settle();
    let names = names(12);
    let mut left = crashes;
    for name in &names {
        let node = NodeId(u32::try_from(net.random(3)).expect("small") + 1);
        net.ask(node, name);
        for _ in 0..net.random(12) {
            net.happen();
        }
        if net.random(4) == 0 {
            let node = NodeId(u32::try_from(net.random(3)).expect("small") + 1);
            net.step(node, Event::CheckpointNow);
        }
        if left > 0 && net.random(3) == 0 {
            left -= 1;
            let node = NodeId(u32::try_from(net.random(3)).expect("small") + 1);
            net.crash(node);
            for _ in 0..net.random(8) {
                net.happen();
            }
            net.start(node, None);
            // One failure at a time: until it has collected what the others hold.
            net.settle();
        }
    }
    net.settle();
    net.ask_again(&names);
    net.check(&names);
    net.rolled_back
}

/// Two of the three are down at once, and come back in any order and at any moment of each other's recovery.
fn run_pairs(policy: Policy, window_messages_max: u32, seed: u64) {
    let mut net = Net::new([policy; 3], Level::Disk, seed);
    net.window_messages_max = window_messages_max;
    net.settle();
    let names = names(12);
    for name in &names {
        let node = NodeId(u32::try_from(net.random(3)).expect("small") + 1);
        net.ask(node, name);
        for _ in 0..net.random(30) {
            net.happen();
        }
        if net.random(4) > 0 {
            continue;
        }
        let spared = u32::try_from(net.random(3)).expect("small") + 1;
        let mut pair: Vec<NodeId> = (1..=3).filter(|node| *node != spared).map(NodeId).collect();
        if net.random(2) == 0 {
            pair.reverse();
        }
        net.crash(pair[0]);
        for _ in 0..net.random(8) {
            net.happen();
        }
        net.crash(pair[1]);
        for _ in 0..net.random(6) {
            let node = pair[net.random(2)];
            match net.nodes.contains_key(&node) {
                false => net.start(node, None),
                true if net.random(3) == 0 => net.crash(node),
                true => {}
            }
            for _ in 0..net.random(20) {
                net.happen();
            }
        }
        for node in pair {
            if !net.nodes.contains_key(&node) {
                net.start(node, None);
            }
        }
        net.settle();
    }
    net.settle();
    net.ask_again(&names);
    net.check(&names);
}

#[test]
fn a_request_goes_round_and_comes_back_under_every_policy() {
    for policy in Policy::ALL {
        for level in [Level::Process, Level::Disk] {
            run(policy, level, 1, 0);
        }
    }
}

#[test]
fn a_policy_that_needs_other_nodes_is_refused_to_a_process_that_stands_alone() {
    for policy in Policy::ALL {
        let alone = Config { policy, ..config() };
        let opened = World::open(MemoryStorage::default(), alone, Memo::default());
        let refused = matches!(opened, Err(RecoverError::StandsAlone { policy: named }) if named == policy);
        assert_eq!(refused, !matches!(policy, Policy::Immediate | Policy::Deferred), "{policy}");
    }
}

#[test]
fn a_message_that_is_too_long_is_a_failure_of_its_handler() {
    let mut net = Net::new([Policy::Deferred; 3], Level::Disk, 1);
    net.settle();
    // Within the limit as a request; the handler adds its own words to it.
    let long = "x".repeat(510);
    let machine = net.nodes.get_mut(&NodeId(1)).expect("it runs");
    machine.step(request(0, key("long"), &long));
    let abandoned = |effect: &Effect| matches!(effect, Effect::Abandon(why) if why.message.contains("a message has at most 512"));
    assert!(machine.other.iter().any(abandoned), "{:?}", machine.other);
}

#[test]
fn one_power_failure_at_a_time_loses_and_doubles_nothing() {
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Unlogged) {
        let mut rolled_back = 0;
        for seed in 0..100 {
            rolled_back += run(policy, Level::Disk, seed, 3);
        }
        assert_eq!(rolled_back > 0, policy == Policy::Optimistic);
    }
}

/// Also with a window so small that a recovering node cannot send all that another one waits for.
#[test]
fn two_power_failures_at_once_lose_and_double_nothing_under_causal_2() {
    for (window_messages_max, seeds) in [(4096, 0..60), (1, 60..120)] {
        for seed in seeds {
            run_pairs(Policy::Causal { f: 2 }, window_messages_max, seed);
        }
    }
}

/// Node 2 recovers a delivery that is safe in its own journal and depends on one that node 1 can still lose. What it then told node 3,
/// which never takes anything back, must wait in the new life as it did in the old one.
#[test]
fn a_recovered_optimistic_node_lets_no_stranger_see_what_another_can_still_lose() {
    let policies = [Policy::Optimistic, Policy::Optimistic, Policy::Deferred];
    let mut net = Net::new(policies, Level::Disk, 1);
    net.settle();
    net.ask(NodeId(1), "r");
    net.arrive(1, 2);
    net.finish_disk_of(2);
    net.arrive(2, 3);
    assert_eq!((net.folded_by(2), net.folded_by(3)), (1, 0), "it waits for node 1's journal");

    net.crash(NodeId(2));
    net.start(NodeId(2), None);
    assert_eq!(net.folded_by(2), 1, "its own journal had it");
    for _ in 0..3 {
        net.arrive(3, 2);
        net.arrive(2, 3);
    }
    assert_eq!(net.folded_by(3), 0, "it waits still");

    net.crash(NodeId(1));
    net.start(NodeId(1), None);
    net.settle();
    assert_eq!((net.rolled_back, net.folded_by(2)), (1, 0), "node 1 lost the request");
    net.ask(NodeId(1), "r");
    net.settle();
    net.check(&["r".to_owned()]);
}

/// A node that tells and is told, and lets nothing out, has no reason to wait for its disk.
#[test]
fn an_optimistic_node_without_an_effect_asks_for_no_sync() {
    let mut net = Net::new([Policy::Optimistic; 3], Level::Disk, 1);
    net.settle();
    net.ask(NodeId(1), "r");
    net.arrive(1, 2);
    net.arrive(2, 3);
    assert_eq!((net.folded_by(2), net.folded_by(3)), (1, 1));
    let writes = |net: &Net, node| net.nodes[&NodeId(node)].writes_asked();
    assert_eq!([1, 2, 3].map(|node| writes(&net, node)), [0, 0, 0]);
    net.arrive(3, 1);
    net.arrive(1, 2);
    net.arrive(1, 3);
    assert_eq!([1, 2, 3].map(|node| writes(&net, node)), [1, 1, 1], "the answer waits for all three");
    net.settle();
    net.check(&["r".to_owned()]);
}

/// Two nodes at once under a policy that survives one. Returns what was said, and how many answers are lost.
fn run_beyond(policy: Policy, seed: u64) -> (Beyond, u32) {
    let mut net = Net::new([policy; 3], Level::Disk, seed);
    net.settle();
    let names = names(12);
    for name in &names {
        let node = NodeId(u32::try_from(net.random(3)).expect("small") + 1);
        net.ask(node, name);
        for _ in 0..net.random(12) {
            net.happen();
        }
        if net.random(3) == 0 {
            net.settle();
        }
        if net.random(12) == 0 {
            let node = NodeId(u32::try_from(net.random(3)).expect("small") + 1);
            net.step(node, Event::CheckpointNow);
        }
    }
    net.beyond = Some(Beyond::default());
    let alive = NodeId(u32::try_from(net.random(3)).expect("small") + 1);
    let failed: Vec<NodeId> = (1..=3).map(NodeId).filter(|node| *node != alive).collect();
    for &node in &failed {
        net.crash(node);
    }
    for &node in &failed {
        net.start(node, None);
    }
    net.settle();
    let stopped = net.beyond.as_ref().expect("it was set").stopped.clone();
    let mut lost = 0;
    for (name, answer) in net.answers.clone() {
        let home = net.home_of(&name);
        if !stopped.is_empty() {
            // A person has to help: who stays stopped says so, and who waits for it says nothing to anybody.
            continue;
        }
        assert!(!net.nodes[&home].process.is_collecting(), "{policy}, seed {seed}: {home} does not go on");
        net.ask(home, &name);
        net.settle();
        let beyond = net.beyond.as_ref().expect("it was set");
        if beyond.answers.get(&name) == Some(&answer) {
            continue;
        }
        lost += 1;
        assert!(beyond.answers.contains_key(&name), "{policy}, seed {seed}: {name} is not answered anew");
        let said = |(node, loss): &(NodeId, Loss)| {
            *node == home && matches!(loss, Loss::Recovered { .. } | Loss::Undone { .. })
        };
        assert!(
            beyond.losses.iter().any(said),
            "{policy}, seed {seed}: {home} lost {name} in silence: {beyond:?}"
        );
    }
    say_again(&mut net, policy, seed);
    (net.beyond.take().expect("it was set"), lost)
}

/// The life that found a loss may end before anybody heard: the next one says the same.
fn say_again(net: &mut Net, policy: Policy, seed: u64) {
    let own = |(_, loss): &&(NodeId, Loss)| matches!(loss, Loss::Recovered { .. } | Loss::Undone { .. });
    let said: Vec<_> =
        net.beyond.iter().flat_map(|beyond| beyond.losses.iter().filter(own).cloned()).collect();
    for node in [1, 2, 3].map(NodeId) {
        net.restart(node);
        let Some(machine) = net.nodes.get(&node) else { continue };
        for (_, loss) in said.iter().filter(|(by, _)| *by == node) {
            assert!(
                machine.process.losses().contains(loss),
                "{policy}, seed {seed}: {node} says no more: {loss}"
            );
        }
    }
}

#[test]
fn more_power_failures_at_once_than_a_policy_survives_are_said_and_nothing_else_is_lost() {
    for policy in [Policy::SenderBased, Policy::Hybrid, Policy::Causal { f: 1 }] {
        let (mut losses, mut orphans, mut lost) = (0, 0, 0);
        for seed in 0..60 {
            let (beyond, answers) = run_beyond(policy, seed);
            let is_orphan =
                |(_, loss): &&(NodeId, Loss)| matches!(loss, Loss::Orphan { .. } | Loss::Ahead { .. });
            losses += beyond.losses.len();
            orphans += beyond.losses.iter().filter(is_orphan).count();
            lost += answers;
        }
        assert!(losses > 0, "{policy}: nothing was said");
        match policy {
            Policy::SenderBased | Policy::Hybrid => {
                assert!(orphans > 0 && lost > 0, "{orphans} orphans, {lost} lost");
            }
            _ => {}
        }
    }
}
