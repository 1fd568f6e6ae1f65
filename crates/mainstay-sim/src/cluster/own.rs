//! The simulator's own service as the subject of a cluster: requests that wander through the nodes, judged by the chains they leave.

use crate::cluster::service::{Asks, Command, Entry, Kind, Service, State};
use crate::cluster::setup::{Rates, Setup};
use crate::cluster::subject::{Asked, Hosted, Subject, known};
use crate::cluster::world::ClusterWorld;
use crate::properties::legal_order::{Alone, LegalOrder};
use crate::properties::{Property, Violation};
use crate::random::Random;
use mainstay_process::event::Identity;
use mainstay_types::id::NodeId;
use mainstay_types::time::Time;
use std::collections::BTreeMap;

/// The simulator's own service.
#[derive(Default)]
pub(crate) struct OwnSubject {
    /// More nodes are down at once than their policies survive.
    pub(crate) beyond: bool,
}

impl Hosted for Service {
    fn open(&self) -> usize {
        self.state.open()
    }

    /// A timer of this service answers a request, which is waited for.
    fn next_timer(&self) -> Option<Time> {
        None
    }
}

/// A node of the run without failures.
pub(crate) struct OwnAlone {
    pub(crate) state: State,
    /// The chain after so many deliveries.
    chains: Vec<u64>,
}

impl OwnAlone {
    pub(crate) fn new(node: u32) -> Self {
        Self { state: State::new(node), chains: vec![0] }
    }
}

impl Alone for OwnAlone {
    fn apply(&mut self, entry: &Entry, asks: &mut dyn Asks) {
        self.state.apply(entry, asks);
        self.chains.push(self.state.chain);
    }

    fn call_of(body: &[u8]) -> u64 {
        Command::decode(body).call
    }
}

impl Subject for OwnSubject {
    fn setup(&self, random: &mut Random) -> Setup {
        let mut setup = Setup::draw(random, self.beyond);
        setup.snapshot_ms = if !self.beyond && random.chance(600) { random.between(10, 60) } else { 0 };
        setup
    }

    fn handler(&self, node: NodeId) -> Box<dyn Hosted> {
        Box::new(Service { state: State::new(node.0) })
    }

    fn call(&self, number: u64, nodes: &[NodeId], rates: &Rates, random: &mut Random) -> Option<Asked> {
        let home = nodes[random.index(nodes.len())];
        let kind = draw_kind(home, nodes, random);
        let padding = random.between(0, rates.padding_bytes_max) as u16;
        let body = Command { call: number, kind, padding }.encode();
        let identity = match random.below(10) {
            0 => Identity::None,
            _ => Identity::Key(format!("call {number}").into_bytes()),
        };
        let again = random.below(3).saturating_sub(1) as u32;
        Some(Asked { home, body, identity, again })
    }

    fn read(&self, nodes: &[NodeId], random: &mut Random) -> Option<(NodeId, Vec<u8>)> {
        Some((nodes[random.index(nodes.len())], Vec::new()))
    }

    fn show(&self, body: &[u8]) -> String {
        format!("{:?}", Command::decode(body))
    }

    fn judge(&self, world: &ClusterWorld) -> Result<(), Violation> {
        let state = |node| known::<Service>(world.handler(node)).state.clone();
        let states: BTreeMap<NodeId, State> = world.nodes.keys().map(|&node| (node, state(node))).collect();
        let alone =
            |(node, state): (&NodeId, &State)| (node.0, (OwnAlone::new(node.0), state.history.clone()));
        let order = LegalOrder::of(states.iter().map(alone).collect(), &|call| world.asked(call))?;
        order.nothing_under_way()?;
        for (&node, state) in &states {
            let alone = order.alone(node.0);
            order.nothing_awaited(node.0, alone.state.open())?;
            if alone.state != *state {
                let what = format!("the final state of {node} is not that of a run without failures");
                return Err(Violation::new(Property::LegalOrder, what));
            }
        }
        for &(node, _, ref shown, made) in &world.reads {
            let number = |at: usize| {
                u64::from_le_bytes(shown.body[at..at + 8].try_into().expect("a read shows two numbers"))
            };
            let (chain, deliveries) = (number(0), number(8));
            let chains = &order.alone(node.0).chains;
            let model = usize::try_from(deliveries).ok().and_then(|place| chains.get(place));
            let there = if model == Some(&chain) {
                Ok(())
            } else {
                let what = format!(
                    "{node} showed the chain {chain:x} after {deliveries} deliveries; a run without failures: {model:x?}"
                );
                Err(Violation::new(Property::LegalOrder, what))
            };
            world.stated.judge(node, made, "a read", there)?;
        }
        world.compare(&order)
    }
}

fn draw_kind(home: NodeId, nodes: &[NodeId], random: &mut Random) -> Kind {
    let others: Vec<u32> = nodes.iter().filter(|id| **id != home).map(|id| id.0).collect();
    let other = |random: &mut Random| others[random.index(others.len())];
    match random.below(12) {
        0 => Kind::Local,
        1..=4 => {
            let mut route = Vec::new();
            let mut at = home.0;
            for _ in 0..random.between(1, 4) {
                let next: Vec<u32> = nodes.iter().map(|id| id.0).filter(|id| *id != at).collect();
                at = next[random.index(next.len())];
                if at != home.0 {
                    route.push(at);
                } else if next.len() == 1 {
                    break;
                }
            }
            // No node tells itself: the same twice in a row would.
            route.dedup();
            if route.is_empty() {
                route.push(other(random));
            }
            Kind::Chain { route }
        }
        5..=7 => {
            let to: Vec<u32> = others.iter().copied().filter(|_| random.coin()).collect();
            Kind::Fan { to: if to.is_empty() { others } else { to } }
        }
        8 => Kind::PingPong { with: other(random), turns: random.between(0, 6) as u8 },
        9 => Kind::Timer { delay_us: random.below(5_000) as u32, tells: other(random) },
        _ => Kind::Output { port: random.below(3) as u8 },
    }
}
