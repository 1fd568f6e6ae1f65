//! Three processes that talk: a request goes through all of them and back, whatever crashes on the way.

mod support;

use mainstay_channel::limits::Limits as LinkLimits;
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_process::config::{Cluster, Config, Limits};
use mainstay_process::effect::{Effect, Reply};
use mainstay_process::event::{Event, PeerEvent};
use mainstay_process::handler::{Answer, Context, Handler, RequestId, RestoreError};
use mainstay_process::record::rolled_back::RolledBack;
use mainstay_process::recover::RecoverError;
use mainstay_recovery::policy::Policy;
use mainstay_types::id::{ClusterId, DeliveryIndex, NodeId, StoreId};
use mainstay_types::level::Level;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use support::{Machine, key};

/// A ring of nodes: a request is folded into each node's chain in turn, and comes back with all their values.
#[derive(Debug, Default)]
struct Ring {
    me: u32,
    chain: u64,
    folded: Vec<String>,
}

impl Ring {
    fn fold(&mut self, text: &str) -> u64 {
        self.chain = self.chain.wrapping_mul(1_000_003)
            ^ text.bytes().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
        self.folded.push(text.to_owned());
        self.chain
    }

    fn next(&self) -> NodeId {
        NodeId(self.me % 3 + 1)
    }
}

impl Handler for Ring {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        let text = String::from_utf8(body.to_vec()).expect("tests send text");
        let value = self.fold(&text);
        let RequestId(request) = context.request();
        context.tell(self.next(), format!("{} {} {text} {value:x}", self.me, request.0));
        None
    }

    fn message(&mut self, _from: NodeId, body: &[u8], context: &mut Context<'_>) {
        let text = String::from_utf8(body.to_vec()).expect("tests send text");
        let mut words = text.split(' ');
        let mut number = || words.next().expect("a word").parse::<u64>().expect("a number");
        let (home, request) = (number(), number());
        let folded = words.next().expect("the request's text").to_owned();
        if home == u64::from(self.me) {
            context
                .answer(RequestId(DeliveryIndex(request)), Answer { status: 200, body: text.into_bytes() });
            return;
        }
        let value = self.fold(&folded);
        context.tell(self.next(), format!("{text} {value:x}"));
    }

    fn query(&self, _: &[u8]) -> Answer {
        Answer { status: 200, body: format!("{:x} {}", self.chain, self.folded.len()).into_bytes() }
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        writeln!(into, "{}", self.chain)?;
        into.write_all(self.folded.join("\n").as_bytes())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let text = std::str::from_utf8(bytes).map_err(|error| RestoreError { reason: error.to_string() })?;
        let mut lines = text.lines();
        let chain = lines.next().and_then(|line| line.parse().ok());
        self.chain = chain.ok_or_else(|| RestoreError { reason: "no chain".to_owned() })?;
        self.folded = lines.map(str::to_owned).collect();
        Ok(())
    }
}

fn config(me: u32, policies: [Policy; 3], level: Level, window_messages_max: u32) -> Config {
    let mut others: BTreeMap<NodeId, Policy> = (1..).map(NodeId).zip(policies).collect();
    let policy = others.remove(&NodeId(me)).expect("one of the three");
    let links = LinkLimits { window_messages_max, ..LinkLimits::default() };
    let cluster = Cluster { id: ClusterId([3; 16]), me: NodeId(me), others, links };
    Config {
        level,
        policy,
        cluster: Some(cluster),
        limits: Limits { body_bytes_max: 512, ..Limits::default() },
        ..support::config()
    }
}

type Node = Machine<Ring>;

/// Three nodes and what is on its way between them.
struct Net {
    /// Of nodes 1, 2 and 3.
    policies: [Policy; 3],
    level: Level,
    window_messages_max: u32,
    nodes: BTreeMap<NodeId, Node>,
    disks: BTreeMap<NodeId, MemoryStorage>,
    on_the_way: BTreeMap<(NodeId, NodeId), VecDeque<Vec<u8>>>,
    connected: BTreeSet<(NodeId, NodeId)>,
    seed: u64,
    answers: BTreeMap<String, String>,
    asked: BTreeMap<u64, String>,
    rolled_back: u32,
    homes: BTreeMap<String, NodeId>,
}

impl Net {
    fn new(policies: [Policy; 3], level: Level, seed: u64) -> Self {
        let mut net = Self {
            policies,
            level,
            window_messages_max: LinkLimits::default().window_messages_max,
            nodes: BTreeMap::new(),
            disks: (1..=3).map(|node| (NodeId(node), MemoryStorage::default())).collect(),
            on_the_way: BTreeMap::new(),
            connected: BTreeSet::new(),
            seed,
            answers: BTreeMap::new(),
            asked: BTreeMap::new(),
            rolled_back: 0,
            homes: BTreeMap::new(),
        };
        for node in 1..=3 {
            net.start(NodeId(node), None);
        }
        net
    }

    fn random(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.seed >> 33) % below as u64).expect("below a usize")
    }

    fn start(&mut self, node: NodeId, roll_back: Option<RolledBack>) {
        let disk = self.disks.remove(&node).expect("a dead node's disk lies there");
        let handler = Ring { me: node.0, ..Ring::default() };
        let config = config(node.0, self.policies, self.level, self.window_messages_max);
        let store = StoreId([u8::try_from(node.0).expect("small"); 16]);
        let machine = Machine::start(disk, config, handler, store, roll_back).expect("it recovers");
        self.nodes.insert(node, machine);
        self.take_out(node);
        for other in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.connect(node, other);
        }
    }

    fn connect(&mut self, one: NodeId, other: NodeId) {
        let pair = (one.min(other), one.max(other));
        if one == other
            || !self.nodes.contains_key(&one)
            || !self.nodes.contains_key(&other)
            || !self.connected.insert(pair)
        {
            return;
        }
        for (at, peer) in [(one, other), (other, one)] {
            self.step(at, Event::Peer(PeerEvent::Connected { peer }));
        }
    }

    fn disconnect(&mut self, one: NodeId, other: NodeId) {
        if self.connected.remove(&(one.min(other), one.max(other))) {
            for (at, peer) in [(one, other), (other, one)] {
                self.on_the_way.remove(&(at, peer));
                if self.nodes.contains_key(&at) {
                    self.step(at, Event::Peer(PeerEvent::Disconnected { peer }));
                }
            }
        }
    }

    /// The power of one node fails: its memory and everything unsynced is gone.
    fn crash(&mut self, node: NodeId) {
        let Some(machine) = self.nodes.remove(&node) else { return };
        self.disks.insert(node, machine.storage.crash_image(&mut |_| 0));
        for other in 1..=3 {
            self.disconnect(node, NodeId(other));
        }
    }

    fn step(&mut self, node: NodeId, event: Event) {
        self.nodes.get_mut(&node).expect("it runs").step(event);
        self.take_out(node);
    }

    fn take_out(&mut self, node: NodeId) {
        let Some(machine) = self.nodes.get_mut(&node) else { return };
        for (token, reply) in std::mem::take(&mut machine.replies) {
            let name = self.asked[&token].clone();
            if let Reply::Answer { answer, .. } = reply {
                let text = String::from_utf8(answer.body.clone()).expect("text");
                let before = self.answers.insert(name.clone(), text.clone());
                assert!(
                    before.is_none_or(|before| before == text),
                    "{name} is answered twice, and differently"
                );
            }
        }
        let mut roll_back = None;
        for effect in std::mem::take(&mut machine.other) {
            match effect {
                Effect::Frames { to, bytes } if self.connected.contains(&(node.min(to), node.max(to))) => {
                    self.on_the_way.entry((node, to)).or_default().push_back(bytes);
                }
                Effect::HangUp { peer, why } => panic!("{node} hangs up on {peer}: {why}"),
                Effect::RollBack(rolled_back) => roll_back = Some(rolled_back),
                Effect::Abandon(abandoned) => panic!("{node}: {abandoned:?}"),
                _ => {}
            }
        }
        if let Some(rolled_back) = roll_back {
            assert_eq!(self.policies[node.0 as usize - 1], Policy::Optimistic);
            self.rolled_back += 1;
            let machine = self.nodes.remove(&node).expect("it just ran");
            // The process lives on: its page cache and ring do as well.
            self.disks.insert(node, machine.killed());
            for other in 1..=3 {
                self.disconnect(node, NodeId(other));
            }
            self.start(node, Some(rolled_back));
        }
    }

    fn ask(&mut self, node: NodeId, name: &str) {
        if !self.nodes.contains_key(&node) {
            return;
        }
        self.homes.entry(name.to_owned()).or_insert(node);
        let token = self.asked.len() as u64;
        self.asked.insert(token, name.to_owned());
        let request = support::request(token, key(name), name);
        self.step(node, request);
    }

    /// Something that may happen now, chosen by the seed; false if nothing may.
    fn happen(&mut self) -> bool {
        let ways: Vec<_> =
            self.on_the_way.iter().filter(|(_, bytes)| !bytes.is_empty()).map(|(way, _)| *way).collect();
        let busy: Vec<_> =
            self.nodes.iter().filter(|(_, node)| !node.disk.is_empty()).map(|(node, _)| *node).collect();
        let choices = ways.len() + busy.len();
        if choices == 0 {
            return false;
        }
        let choice = self.random(choices);
        if let Some(&(from, to)) = ways.get(choice) {
            let bytes =
                self.on_the_way.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("it is not empty");
            self.step(to, Event::Peer(PeerEvent::Frames { peer: from, bytes }));
            if self.random(2) == 0 && self.nodes.contains_key(&to) {
                self.step(to, Event::Drained);
            }
        } else {
            let node = busy[choice - ways.len()];
            self.nodes.get_mut(&node).expect("it is busy").perform_one();
            self.take_out(node);
        }
        true
    }

    /// Everything that `from` has sent to `to` arrives.
    fn arrive(&mut self, from: u32, to: u32) {
        let (from, to) = (NodeId(from), NodeId(to));
        for bytes in self.on_the_way.remove(&(from, to)).unwrap_or_default() {
            self.step(to, Event::Peer(PeerEvent::Frames { peer: from, bytes }));
        }
        self.step(to, Event::Drained);
    }

    fn finish_disk_of(&mut self, node: u32) {
        self.nodes.get_mut(&NodeId(node)).expect("it runs").complete_disk();
        self.take_out(NodeId(node));
    }

    fn folded_by(&self, node: u32) -> usize {
        self.nodes[&NodeId(node)].process.handler().folded.len()
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            for node in self.nodes.keys().copied().collect::<Vec<_>>() {
                if self.nodes.contains_key(&node) {
                    self.step(node, Event::Drained);
                }
            }
            for (one, other) in [(1, 2), (1, 3), (2, 3)] {
                self.connect(NodeId(one), NodeId(other));
            }
            if !self.happen() {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Every node folded every request once, and every answer shows the values of one history.
    fn check(&self, names: &[String]) {
        for name in names {
            let answer = self.answers.get(name).unwrap_or_else(|| panic!("{name} is not answered"));
            assert_eq!(answer.split(' ').count(), 6, "{answer}");
            for (node, machine) in &self.nodes {
                let folded = &machine.process.handler().folded;
                let times = folded.iter().filter(|text| *text == name).count();
                assert_eq!(times, 1, "{node} folded {name} {times} times");
            }
        }
        for machine in self.nodes.values() {
            let handler = machine.process.handler();
            let mut replayed = Ring { me: handler.me, ..Ring::default() };
            for text in &handler.folded {
                let value = format!("{:x}", replayed.fold(text));
                let answer = &self.answers[text];
                assert!(answer.split(' ').any(|word| word == value), "{text} shows {answer}, not {value}");
            }
        }
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("r{number}")).collect()
}

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

impl Net {
    /// Where a request was asked first: its key is known there.
    fn home_of(&self, name: &str) -> NodeId {
        self.homes.get(name).copied().unwrap_or(NodeId(1))
    }

    /// Whoever got no answer asks again, by the same key, where it asked first.
    fn ask_again(&mut self, names: &[String]) {
        for _ in 0..3 {
            for name in names {
                if !self.answers.contains_key(name) {
                    let home = self.home_of(name);
                    self.ask(home, name);
                    self.settle();
                }
            }
        }
    }
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
        let alone = Config { policy, ..support::config() };
        let opened = support::World::open(MemoryStorage::default(), alone, support::Memo::default());
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
    machine.step(support::request(0, key("long"), &long));
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
