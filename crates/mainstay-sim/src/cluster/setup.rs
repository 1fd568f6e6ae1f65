//! What a seed decides before anything happens: nodes, policies, level, limits, and how often what goes wrong.

use crate::cluster::service::PORTS;
use crate::random::Random;
use mainstay_channel::limits::Limits as LinkLimits;
use mainstay_journal::geometry::{BLOCK_BYTES, Geometry};
use mainstay_journal::options::OpenOptions;
use mainstay_process::config::{Cluster, Config, Limits};
use mainstay_process::port::{Guarantee, Port};
use mainstay_recovery::policy::{Failures, Policy};
use mainstay_types::id::{ClusterId, NodeId, StoreId};
use mainstay_types::level::Level;
use mainstay_types::rules::Rules;
use std::collections::BTreeMap;
use std::time::Duration;

/// What each port's receiver is able to do.
const GUARANTEES: [Guarantee; 3] = [Guarantee::Deduplicated, Guarantee::AtLeastOnce, Guarantee::AtMostOnce];

/// How often a cluster that is large enough has optimistic nodes beside causal ones that survive several failures, per mille: by chance it is rare.
const OPTIMISTIC_BESIDE_CAUSAL_PER_MILLE: u64 = 100;

/// How a run is laid out.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) policies: BTreeMap<NodeId, Policy>,
    pub(crate) level: Level,
    /// How many nodes may be down at the same time.
    pub(crate) down_max: usize,
    /// Whether that is more than their policies survive.
    pub(crate) beyond: bool,
    pub(crate) calls: usize,
    pub(crate) rates: Rates,
    /// Between two snapshots, in milliseconds, at most; 0 if nobody asks for any.
    pub(crate) snapshot_ms: u64,
    /// Whether snapshots are blocking ones, where none is under way.
    pub(crate) blocks: bool,
    pub(crate) name: String,
    pub(crate) ports: Vec<Port>,
    pub(crate) page_bytes: u32,
    limits: Limits,
    links: LinkLimits,
}

/// How often what goes wrong, and how quick things are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// Between two faults, in microseconds, at most.
    pub(crate) fault_us: u64,
    pub(crate) power_cuts_per_mille: u64,
    /// Crashes in the life that a crash is followed by.
    pub(crate) again_per_mille: u64,
    pub(crate) write_us: u64,
    pub(crate) inline_writes: bool,
    pub(crate) link_us: u64,
    pub(crate) round_us: u64,
    pub(crate) client_lost_per_mille: u64,
    /// Between two calls, in microseconds, at most.
    pub(crate) call_us: u64,
    pub(crate) spill_fails_per_mille: u64,
    pub(crate) padding_bytes_max: u64,
}

impl Setup {
    pub(crate) fn draw(random: &mut Random, beyond: bool) -> Self {
        let count = match random.below(10) {
            0 => 2,
            1..=5 => 3,
            6..=7 => 4,
            _ => random.between(5, 8),
        };
        let nodes: Vec<NodeId> = (1..=count as u32).map(NodeId).collect();
        let mut policies = drawn_policies(random, &nodes);
        // Optimistic nodes survive any number; beside others that lose more than they survive, they say that they cannot go back.
        let no_beyond = |policies: &BTreeMap<NodeId, Policy>| {
            let survives_any = policies.values().all(|policy| policy.survives() == Failures::Any);
            survives_any || policies.values().any(|policy| policy.rolls_back())
        };
        // Beside the other draws: seeds that show something without it go on showing it.
        let mut aside = Random::new(random.clone().draw());
        if !beyond && nodes.len() > 3 && aside.chance(OPTIMISTIC_BESIDE_CAUSAL_PER_MILLE) {
            policies = optimistic_beside_causal(&mut aside, &nodes);
        }
        while beyond && no_beyond(&policies) {
            policies = drawn_policies(random, &nodes);
        }
        let mut setup = Self::among(random, policies);
        if beyond {
            let least = setup.down_max as u64 + 1;
            setup.down_max = usize::try_from(random.between(least, count)).expect("a cluster is small");
            setup.beyond = true;
        }
        setup
    }

    /// The policies of these nodes: `given`, or drawn.
    ///
    /// # Panics
    /// When `given` needs more nodes than there are.
    pub(crate) fn policies(
        random: &mut Random,
        nodes: &[NodeId],
        given: Option<Policy>,
    ) -> BTreeMap<NodeId, Policy> {
        match given {
            Some(policy) => {
                let least = match policy {
                    Policy::Causal { f } => usize::from(f) + 1,
                    policy => 1 + usize::from(policy.collects()),
                };
                assert!(nodes.len() >= least, "`{policy}` needs {least} nodes, there are {}", nodes.len());
                nodes.iter().map(|&node| (node, policy)).collect()
            }
            None if nodes.len() > 1 => drawn_policies(random, nodes),
            None => {
                let policy = if random.coin() { Policy::Immediate } else { Policy::Deferred };
                nodes.iter().map(|&node| (node, policy)).collect()
            }
        }
    }

    /// Everything else, for nodes with these policies.
    pub(crate) fn among(random: &mut Random, policies: BTreeMap<NodeId, Policy>) -> Self {
        let nodes = policies.len();
        let least = policies.values().map(|policy| policy.survives()).min().expect("there are nodes");
        let down_max = match least {
            Failures::Any => nodes,
            Failures::AtMost(failures) => usize::from(failures),
        };
        let small = random.chance(300);
        // Beside the other draws: seeds that show something without it go on showing it.
        let mut aside = Random::new(random.clone().draw());
        let spills = aside.chance(400);
        let links = LinkLimits {
            log_bytes_max: if small { random.between(2, 8) << 10 } else { 64 << 20 },
            log_memory_bytes_max: if spills { aside.between(1, 4) << 9 } else { 16 << 20 },
            log_spill_bytes_max: if spills { aside.between(0, 8) << 10 } else { 256 << 20 },
            window_messages_max: if small { random.between(1, 6) as u32 } else { 4096 },
            window_bytes_max: if small { random.between(1, 4) << 10 } else { 8 << 20 },
            message_bytes_max: 2000,
            ..LinkLimits::default()
        };
        let often = random.coin();
        let limits = Limits {
            body_bytes_max: 1000,
            checkpoint_log_bytes: if often { random.between(4, 24) << 10 } else { 1 << 20 },
            checkpoint_interval: Duration::from_millis(if often { random.between(5, 60) } else { 10_000 }),
            ..Limits::default()
        };
        let rates = Rates {
            fault_us: random.between(2_000, 20_000),
            power_cuts_per_mille: random.between(200, 900),
            again_per_mille: random.between(0, 500),
            write_us: random.between(20, 600),
            inline_writes: random.coin(),
            link_us: random.between(20, 1_000),
            round_us: random.between(10, 200),
            client_lost_per_mille: random.below(100),
            call_us: random.between(200, 3_000),
            spill_fails_per_mille: if aside.coin() { aside.between(0, 400) } else { 0 },
            padding_bytes_max: if random.coin() { random.between(0, 300) } else { 0 },
        };
        let blocks = aside.chance(300);
        let limits = Limits {
            block_max: Duration::from_millis(aside.between(5, 100)),
            blocked_requests_max: aside.between(1, 6) as usize,
            ..limits
        };
        let level = if random.chance(250) { Level::Process } else { Level::Disk };
        let calls = random.between(20, 60) as usize;
        let ports = PORTS.iter().zip(GUARANTEES);
        let ports = ports.map(|(name, guarantee)| Port { name: (*name).to_owned(), guarantee, lines: false });
        let (name, ports, page_bytes) = ("service".to_owned(), ports.collect(), 4096);
        Self {
            policies,
            level,
            down_max,
            beyond: false,
            calls,
            rates,
            snapshot_ms: 0,
            blocks,
            name,
            ports,
            page_bytes,
            limits,
            links,
        }
    }

    /// Makes room for bodies of so many bytes, and messages that carry them. A key is remembered longer than anybody repeats it.
    pub(crate) fn takes(&mut self, body_bytes_max: usize) {
        let times = body_bytes_max.div_ceil(self.limits.body_bytes_max) as u64;
        self.limits.body_bytes_max = body_bytes_max;
        self.limits.key_retention = Duration::from_secs(100 * 365 * 24 * 3600);
        self.links.message_bytes_max = u32::try_from(body_bytes_max).expect("a body is short");
        self.links.log_bytes_max = self.links.log_bytes_max.max(2048 * times);
        self.links.window_bytes_max = self.links.window_bytes_max.max(1024 * times);
        let page_bytes = (2 * body_bytes_max + 2048).next_power_of_two().max(4096);
        self.page_bytes = u32::try_from(page_bytes).expect("a body is short");
    }

    pub(crate) fn config(&self, me: NodeId, rules: Rules) -> Config {
        let others =
            self.policies.iter().filter(|(node, _)| **node != me).map(|(&node, &policy)| (node, policy));
        let cluster = Cluster { id: ClusterId([7; 16]), me, others: others.collect(), links: self.links };
        Config {
            name: self.name.clone(),
            version: 1,
            level: self.level,
            policy: self.policies[&me],
            ports: self.ports.clone(),
            cluster: (self.policies.len() > 1).then_some(cluster),
            limits: self.limits,
            entropy: 0,
            rules,
        }
    }

    pub(crate) fn options(&self, random: &mut Random, me: NodeId, rules: Rules) -> OpenOptions {
        OpenOptions {
            geometry: Geometry {
                page_bytes: self.page_bytes,
                pages: random.between(1, 4) as u16,
                segment_pages: random.between(2, 8) as u32,
            },
            new_store: StoreId([me.0 as u8; 16]),
            stripes: 1,
            create: true,
            rules,
            buffer_only: false,
            half_bytes_min: BLOCK_BYTES,
            free_segments_max: random.index(3),
        }
    }
}

/// All the same, or each node its own, among those that guarantee something together.
fn drawn_policies(random: &mut Random, nodes: &[NodeId]) -> BTreeMap<NodeId, Policy> {
    let logged: Vec<Policy> = Policy::ALL.into_iter().filter(|policy| *policy != Policy::Unlogged).collect();
    let failures_max = (nodes.len() as u64 - 1).min(3);
    let one = |random: &mut Random| match logged[random.index(logged.len())] {
        Policy::Causal { .. } => Policy::Causal { f: random.between(1, failures_max) as u8 },
        policy => policy,
    };
    if random.chance(700) {
        let policy = one(random);
        return nodes.iter().map(|&node| (node, policy)).collect();
    }
    let mut drawn: BTreeMap<NodeId, Policy> = nodes.iter().map(|&node| (node, one(random))).collect();
    // Copies need somewhere to be: as many causal nodes as their greatest f asks for.
    let is_causal = |policy: &&Policy| matches!(policy, Policy::Causal { .. });
    let causal = drawn.values().filter(is_causal).count();
    for policy in drawn.values_mut() {
        if let Policy::Causal { f } = policy {
            *policy = match causal {
                1 => Policy::Hybrid,
                _ => Policy::Causal { f: (*f).min(u8::try_from(causal - 1).expect("a cluster is small")) },
            };
        }
    }
    drawn
}

/// Three causal nodes or more that survive two failures at least, an optimistic one, and others that survive any number.
fn optimistic_beside_causal(random: &mut Random, nodes: &[NodeId]) -> BTreeMap<NodeId, Policy> {
    let causal = random.between(3, nodes.len() as u64 - 1);
    let f = u8::try_from(random.between(2, (causal - 1).min(3))).expect("a cluster is small");
    let first = random.index(nodes.len());
    let in_turn = nodes[first..].iter().chain(&nodes[..first]).zip(0..);
    let policies = in_turn.map(|(&node, place)| {
        let policy = match place {
            _ if place < causal => Policy::Causal { f },
            _ if place == causal => Policy::Optimistic,
            _ => *random.pick(&[Policy::Optimistic, Policy::Deferred, Policy::Immediate]),
        };
        (node, policy)
    });
    policies.collect()
}
