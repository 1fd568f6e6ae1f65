//! The finished parts of a snapshot are a consistent global state, and the cluster can go on from it: the histories are those of a run
//! without failures that was stopped there, and what it had on the way is what the senders' parts keep.
//!
//! That a cluster restored from it delivers each message once, and answers as it had answered, the other properties check in the world
//! that goes on from the line.

use super::legal_order::LegalOrder;
use super::{Property, Violation};
use crate::cluster::own::OwnAlone;
use crate::cluster::service::State;
use mainstay_process::part::{self, Part};
use mainstay_types::id::{NodeId, OutputId};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const SOURCE: &str =
    "consistent cuts: Chandy and Lamport 1985, theorem 1; Lai and Yang 1987; docs/snapshots.md";

/// The parts of all nodes.
pub(crate) struct Line {
    parts: Vec<Part>,
    states: BTreeMap<u32, State>,
}

impl Line {
    pub(crate) fn read(bytes: &BTreeMap<NodeId, &[u8]>) -> Result<Self, Violation> {
        let mut line = Self { parts: Vec::new(), states: BTreeMap::new() };
        for (&node, bytes) in bytes {
            let unreadable = |error| violated(format!("the part of {node} cannot be read: {error}"));
            line.parts.push(Part::read(bytes).map_err(unreadable)?);
            let state = part::handler_state(bytes).map_err(unreadable)?;
            let state = postcard::from_bytes(&state).expect("the service wrote it");
            line.states.insert(node.0, state);
        }
        Ok(line)
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Fails if it is none. Returns how many messages are on the way in it.
    pub(crate) fn check(&self, asked: &dyn Fn(u64) -> Option<(u32, Vec<u8>)>) -> Result<usize, Violation> {
        part::check_line(&self.parts).map_err(|error| violated(error.to_string()))?;
        let alone = |(&id, state): (&u32, &State)| (id, (OwnAlone::new(id), state.history.clone()));
        let order = LegalOrder::of(self.states.iter().map(alone).collect(), asked)
            .map_err(|error| violated(error.what))?;
        for (&id, state) in &self.states {
            if order.alone(id).state != *state {
                return Err(violated(format!("the state of n{id} is not that of its history")));
            }
        }
        let mut total = 0;
        for from in &self.parts {
            for to in self.parts.iter().filter(|to| to.node != from.node) {
                let (model, kept) = (order.on_the_way(from.node.0, to.node.0), from.on_the_way(to));
                if model as u64 != kept {
                    let what = format!(
                        "{} messages from {} to {} are on the way, and {kept} are kept for it",
                        model, from.node, to.node
                    );
                    return Err(violated(what));
                }
                total += model;
            }
        }
        Ok(total)
    }
}

/// The outputs that the histories of the line led to.
pub(crate) fn outputs(line: &Line) -> BTreeSet<(NodeId, OutputId)> {
    let of = |(&node, state): (&u32, &State)| {
        let outputs = state.history.iter().flat_map(|entry| entry.outputs.clone());
        outputs.map(|output| (NodeId(node), OutputId(output))).collect::<Vec<_>>()
    };
    line.states.iter().flat_map(of).collect()
}

fn violated(what: String) -> Violation {
    Violation::new(Property::LineRestorable, what)
}
