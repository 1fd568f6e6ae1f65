//! Three nodes that talk, with everything that is on its way between them: what happens next is the test's to say, or a seed's.

use super::{Machine, key};
use mainstay_channel::limits::Limits as LinkLimits;
use mainstay_channel::refusal::Refusal;
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_process::config::{Cluster, Config, Limits};
use mainstay_process::effect::{Effect, HangUp, Reply};
use mainstay_process::event::{Event, PeerEvent};
use mainstay_process::handler::{Answer, Context, Handler, RequestId, RestoreError};
use mainstay_process::loss::{Loss, RollBack};
use mainstay_process::recover::RecoverError;
use mainstay_recovery::policy::Policy;
use mainstay_types::id::{ClusterId, DeliveryIndex, NodeId, StoreId};
use mainstay_types::level::Level;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

/// A ring of nodes: a request is folded into each node's chain in turn, and comes back with all their values. One that is
/// called "via:" and a list of nodes goes through these instead, of which the last is the one that was asked.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    pub(crate) me: u32,
    pub(crate) chain: u64,
    pub(crate) folded: Vec<String>,
}

impl Ring {
    pub(crate) fn fold(&mut self, text: &str) -> u64 {
        self.chain = self.chain.wrapping_mul(1_000_003)
            ^ text.bytes().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
        self.folded.push(text.to_owned());
        self.chain
    }

    /// Where a request goes that so many nodes have folded.
    pub(crate) fn next(&self, request: &str, folds: usize) -> NodeId {
        let route = request.strip_prefix("via:").map(|route| u32::from(route.as_bytes()[folds - 1] - b'0'));
        NodeId(route.unwrap_or(self.me % 3 + 1))
    }
}

impl Handler for Ring {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        let text = String::from_utf8(body.to_vec()).expect("tests send text");
        let value = self.fold(&text);
        let RequestId(request) = context.request();
        context.tell(self.next(&text, 1), format!("{} {} {text} {value:x}", self.me, request.0));
        None
    }

    fn message(&mut self, _from: NodeId, body: &[u8], context: &mut Context<'_>) {
        let text = String::from_utf8(body.to_vec()).expect("tests send text");
        let mut words = text.split(' ');
        let mut number = || words.next().expect("a word").parse::<u64>().expect("a number");
        let (home, request) = (number(), number());
        let folded = words.next().expect("the request's text").to_owned();
        let folds = words.count() + 1;
        if home == u64::from(self.me) {
            context
                .answer(RequestId(DeliveryIndex(request)), Answer { status: 200, body: text.into_bytes() });
            return;
        }
        let value = self.fold(&folded);
        context.tell(self.next(&folded, folds), format!("{text} {value:x}"));
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

pub(crate) fn config(me: u32, policies: [Policy; 3], level: Level, window_messages_max: u32) -> Config {
    let mut others: BTreeMap<NodeId, Policy> = (1..).map(NodeId).zip(policies).collect();
    let policy = others.remove(&NodeId(me)).expect("one of the three");
    let links = LinkLimits { window_messages_max, ..LinkLimits::default() };
    let cluster = Cluster { id: ClusterId([3; 16]), me: NodeId(me), others, links };
    Config {
        level,
        policy,
        cluster: Some(cluster),
        limits: Limits { body_bytes_max: 512, ..Limits::default() },
        ..super::config()
    }
}

pub(crate) type Node = Machine<Ring>;

/// Three nodes and what is on its way between them.
pub(crate) struct Net {
    /// Of nodes 1, 2 and 3.
    pub(crate) policies: [Policy; 3],
    pub(crate) level: Level,
    pub(crate) window_messages_max: u32,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) disks: BTreeMap<NodeId, MemoryStorage>,
    pub(crate) on_the_way: BTreeMap<(NodeId, NodeId), VecDeque<Vec<u8>>>,
    pub(crate) connected: BTreeSet<(NodeId, NodeId)>,
    pub(crate) seed: u64,
    pub(crate) answers: BTreeMap<String, String>,
    pub(crate) asked: BTreeMap<u64, String>,
    pub(crate) rolled_back: u32,
    pub(crate) homes: BTreeMap<String, NodeId>,
    /// Nodes that ended a clean stop.
    pub(crate) stopped: BTreeSet<NodeId>,
    /// Set when more nodes fail at once than the policy survives.
    pub(crate) beyond: Option<Beyond>,
}

/// More nodes fail at once than the policy survives: what is said and done then.
#[derive(Debug, Default)]
pub(crate) struct Beyond {
    pub(crate) losses: Vec<(NodeId, Loss)>,
    pub(crate) rolled_back: BTreeSet<NodeId>,
    /// Nodes that cannot go back, and say so.
    pub(crate) stopped: BTreeSet<NodeId>,
    pub(crate) answers: BTreeMap<String, String>,
}

impl Beyond {
    /// Takes what may be seen only now; gives back everything else. A peer that is refused goes into `refused`.
    pub(crate) fn take(&mut self, node: NodeId, effect: Effect, refused: &mut Vec<NodeId>) -> Option<Effect> {
        match effect {
            Effect::HangUp { peer, why } => {
                let for_a_loss = matches!(
                    why,
                    HangUp::Refused(
                        Refusal::PeerOrphaned { .. }
                            | Refusal::Orphaned { .. }
                            | Refusal::Ahead { .. }
                            | Refusal::Poisoned { .. }
                    ) | HangUp::RefusedByPeer { code: 10 | 17 | 18 | 20, .. }
                );
                assert!(for_a_loss, "{node} hangs up on {peer}: {why}");
                refused.push(peer);
                None
            }
            Effect::Lost(loss) => {
                self.losses.push((node, loss));
                None
            }
            other => Some(other),
        }
    }
}

impl Net {
    pub(crate) fn new(policies: [Policy; 3], level: Level, seed: u64) -> Self {
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
            stopped: BTreeSet::new(),
            beyond: None,
        };
        for node in 1..=3 {
            net.start(NodeId(node), None);
        }
        net
    }

    pub(crate) fn random(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.seed >> 33) % below as u64).expect("below a usize")
    }

    pub(crate) fn start(&mut self, node: NodeId, roll_back: Option<RollBack>) {
        let disk = self.disks.remove(&node).expect("a dead node's disk lies there");
        let handler = Ring { me: node.0, ..Ring::default() };
        let config = config(node.0, self.policies, self.level, self.window_messages_max);
        let store = StoreId([u8::try_from(node.0).expect("small"); 16]);
        let machine = match Machine::start(disk, config, handler, store, roll_back) {
            Ok(machine) => machine,
            Err(RecoverError::CannotGoBack { .. }) if self.beyond.is_some() => {
                self.beyond.as_mut().expect("seen a line above").stopped.insert(node);
                return;
            }
            Err(error) => panic!("{node}: {error}"),
        };
        self.nodes.insert(node, machine);
        self.take_out(node);
        for other in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.connect(node, other);
        }
    }

    pub(crate) fn connect(&mut self, one: NodeId, other: NodeId) {
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

    pub(crate) fn disconnect(&mut self, one: NodeId, other: NodeId) {
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
    pub(crate) fn crash(&mut self, node: NodeId) {
        let Some(machine) = self.nodes.remove(&node) else { return };
        self.disks.insert(node, machine.storage.crash_image(&mut |_| 0));
        for other in 1..=3 {
            self.disconnect(node, NodeId(other));
        }
    }

    /// Its process ends and begins anew: what it gave the operating system is there.
    pub(crate) fn restart(&mut self, node: NodeId) {
        let Some(machine) = self.nodes.remove(&node) else { return };
        self.disks.insert(node, machine.killed());
        for other in 1..=3 {
            self.disconnect(node, NodeId(other));
        }
        self.start(node, None);
    }

    pub(crate) fn step(&mut self, node: NodeId, event: Event) {
        self.nodes.get_mut(&node).expect("it runs").step(event);
        self.take_out(node);
    }

    pub(crate) fn take_out(&mut self, node: NodeId) {
        let Some(machine) = self.nodes.get_mut(&node) else { return };
        for (token, reply) in std::mem::take(&mut machine.replies) {
            let name = self.asked[&token].clone();
            if let Reply::Answer { answer, .. } = reply {
                let text = String::from_utf8(answer.body.clone()).expect("text");
                if let Some(beyond) = &mut self.beyond {
                    beyond.answers.insert(name, text);
                    continue;
                }
                let before = self.answers.insert(name.clone(), text.clone());
                assert!(
                    before.is_none_or(|before| before == text),
                    "{name} is answered twice, and differently"
                );
            }
        }
        let (mut roll_back, mut refused) = (None, Vec::new());
        for effect in std::mem::take(&mut machine.other) {
            let effect = match &mut self.beyond {
                Some(beyond) => beyond.take(node, effect, &mut refused),
                None => Some(effect),
            };
            match effect {
                Some(Effect::Frames { to, bytes })
                    if self.connected.contains(&(node.min(to), node.max(to))) =>
                {
                    self.on_the_way.entry((node, to)).or_default().push_back(bytes);
                }
                Some(Effect::HangUp { peer, why }) => panic!("{node} hangs up on {peer}: {why}"),
                Some(Effect::RollBack(rolled_back)) => roll_back = Some(rolled_back),
                Some(Effect::Abandon(abandoned)) => panic!("{node}: {abandoned:?}"),
                Some(Effect::Stopped) => _ = self.stopped.insert(node),
                Some(Effect::Lost(loss)) => panic!("{node} states a loss: {loss}"),
                _ => {}
            }
        }
        for peer in refused {
            // After what was given before.
            for bytes in self.on_the_way.remove(&(node, peer)).unwrap_or_default() {
                if self.connected.contains(&(node.min(peer), node.max(peer))) {
                    self.step(peer, Event::Peer(PeerEvent::Frames { peer: node, bytes }));
                }
            }
            self.disconnect(node, peer);
        }
        if let Some(rolled_back) = roll_back {
            match &mut self.beyond {
                Some(beyond) => _ = beyond.rolled_back.insert(node),
                None => assert_eq!(self.policies[node.0 as usize - 1], Policy::Optimistic),
            }
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

    pub(crate) fn ask(&mut self, node: NodeId, name: &str) {
        if !self.nodes.contains_key(&node) {
            return;
        }
        self.homes.entry(name.to_owned()).or_insert(node);
        let token = self.asked.len() as u64;
        self.asked.insert(token, name.to_owned());
        let request = super::request(token, key(name), name);
        self.step(node, request);
    }

    /// Something that may happen now, chosen by the seed; false if nothing may.
    pub(crate) fn happen(&mut self) -> bool {
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
    pub(crate) fn arrive(&mut self, from: u32, to: u32) {
        let (from, to) = (NodeId(from), NodeId(to));
        for bytes in self.on_the_way.remove(&(from, to)).unwrap_or_default() {
            self.step(to, Event::Peer(PeerEvent::Frames { peer: from, bytes }));
        }
        self.step(to, Event::Drained);
    }

    pub(crate) fn finish_disk_of(&mut self, node: u32) {
        self.nodes.get_mut(&NodeId(node)).expect("it runs").complete_disk();
        self.take_out(NodeId(node));
    }

    pub(crate) fn folded_by(&self, node: u32) -> usize {
        self.nodes[&NodeId(node)].process.handler().folded.len()
    }

    /// Ends a round at `node`, and performs what its disk is asked for until it is asked for nothing more.
    pub(crate) fn perform_disk(&mut self, node: NodeId) {
        self.step(node, Event::Drained);
        while let Some(machine) = self.nodes.get_mut(&node).filter(|machine| !machine.disk.is_empty()) {
            machine.perform_one();
            self.take_out(node);
        }
    }

    pub(crate) fn settle(&mut self) {
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
    pub(crate) fn check(&self, names: &[String]) {
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

pub(crate) fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("r{number}")).collect()
}

impl Net {
    /// Where a request was asked first: its key is known there.
    pub(crate) fn home_of(&self, name: &str) -> NodeId {
        self.homes.get(name).copied().unwrap_or(NodeId(1))
    }

    /// Whoever got no answer asks again, by the same key, where it asked first.
    pub(crate) fn ask_again(&mut self, names: &[String]) {
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
