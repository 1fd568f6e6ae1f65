//! Each port of each node gives its guarantee, and shows only what a crash-free run shows.

use super::legal_order::{Alone, LegalOrder};
use super::losses_stated::{Made, Stated};
use super::{Property, Violation};
use crate::cluster::service::delivery_of;
use mainstay_process::event::Resolution;
use mainstay_process::port::{Guarantee, Port};
use mainstay_types::id::{NodeId, OutputId};
use std::collections::BTreeMap;

/// What a receiver got of one output.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    pub(crate) port: usize,
    pub(crate) key: String,
    pub(crate) body: Vec<u8>,
    /// When it left last.
    pub(crate) made: Made,
    pub(crate) times: u32,
    pub(crate) under_way: u32,
    /// What a person decided while it was in doubt and had not arrived.
    pub(crate) decision: Option<Resolution>,
}

impl Received {
    /// Takes note of one that leaves.
    pub(crate) fn leaves(&mut self, port: usize, key: &str, body: &[u8], life: u64) -> Result<(), Violation> {
        self.made = Made { life, delivery: delivery_of(body) };
        let first = self.times + self.under_way == 0;
        self.under_way += 1;
        if first && self.key.is_empty() {
            (self.port, self.key, self.body) = (port, key.to_owned(), body.to_vec());
        }
        if self.port == port && self.key == key && self.body == body {
            return Ok(());
        }
        let what =
            format!("{key} left as {:?} for port {}, and now as {body:?} for {port}", self.body, self.port);
        Err(Violation::new(Property::OutputsGuaranteed, what))
    }
}

/// Fails unless the receivers got what the crash-free run sends, as often as their ports promise.
pub(crate) fn check<A: Alone>(
    ports: &[Port],
    received: &BTreeMap<(NodeId, OutputId), Received>,
    order: &LegalOrder<A>,
    stated: &Stated,
    nodes: impl Iterator<Item = NodeId>,
) -> Result<(), Violation> {
    let left = received.iter().filter(|(_, received)| !received.key.is_empty());
    for (&(node, output), received) in left {
        let there = order.sent(node.0, output.0, received.port, &received.body);
        stated.judge(node, received.made, &received.key, there)?;
    }
    for node in nodes {
        for (&output, &(port, _)) in order.outputs(node.0) {
            let got = received.get(&(node, OutputId(output)));
            let times = got.map_or(0, |received| received.times);
            let wrong = match ports[usize::from(port)].guarantee {
                Guarantee::AtMostOnce => times > 1,
                _ => times == 0,
            };
            if wrong {
                let what = format!("{node} output {output} took effect {times} times at port {port}");
                return Err(Violation::new(Property::OutputsGuaranteed, what));
            }
        }
    }
    Ok(())
}
