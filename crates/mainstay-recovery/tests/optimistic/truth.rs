//! The truth beside the protocol: which state descends from which, and which crash lost which.

use mainstay_types::codec::Reader;
use mainstay_types::determinant::Point;
use std::collections::{BTreeMap, BTreeSet};

/// All states that ever were, numbered in the order in which they were made. The first state of each node comes first.
#[derive(Debug)]
pub(crate) struct Truth {
    states: Vec<Made>,
    crashes: usize,
}

#[derive(Clone, Debug)]
struct Made {
    node: usize,
    point: Point,
    parents: Vec<usize>,
    lost_in: Option<usize>,
}

impl Truth {
    pub(crate) fn new(nodes: usize) -> Self {
        let mut truth = Self { states: Vec::new(), crashes: 0 };
        for node in 0..nodes {
            truth.add(node, Point::default(), Vec::new());
        }
        truth
    }

    pub(crate) fn add(&mut self, node: usize, point: Point, parents: Vec<usize>) -> usize {
        self.states.push(Made { node, point, parents, lost_in: None });
        self.states.len() - 1
    }

    /// A crash.
    pub(crate) fn lose(&mut self, states: &[usize]) {
        for &state in states {
            self.states[state].lost_in = Some(self.crashes);
        }
        self.crashes += 1;
    }

    /// The crashes that lost a state that state `id` descends from, itself included.
    pub(crate) fn losses(&self, id: usize) -> BTreeSet<usize> {
        self.losses_where(id, |_| true)
    }

    /// Those of them that are known to who wrote `known` with `Logging::known_losses`.
    pub(crate) fn losses_known(&self, id: usize, known: &[u8]) -> BTreeSet<usize> {
        let mut reader = Reader::new(known);
        let mut lives: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for _ in 0..number(&mut reader) {
            let node = number(&mut reader);
            let starts = (0..number(&mut reader)).map(|_| (number(&mut reader), number(&mut reader)));
            lives.insert(node, starts.collect());
        }
        self.losses_where(id, |Made { node, point, .. }| {
            let loses = |&(life, after): &(u64, u64)| life > point.incarnation.0 && after < point.delivery.0;
            lives.get(&(*node as u64)).is_some_and(|starts| starts.iter().any(loses))
        })
    }

    fn losses_where(&self, id: usize, counts: impl Fn(&Made) -> bool) -> BTreeSet<usize> {
        let mut seen = BTreeSet::from([id]);
        let mut open = vec![id];
        let mut losses = BTreeSet::new();
        while let Some(id) = open.pop() {
            let state = &self.states[id];
            losses.extend(state.lost_in.filter(|_| counts(state)));
            open.extend(state.parents.iter().filter(|&&parent| seen.insert(parent)));
        }
        losses
    }
}

/// Reads a varint (LEB128).
pub(crate) fn number(reader: &mut Reader<'_>) -> u64 {
    let byte = u64::from(reader.u8().expect("a whole number"));
    if byte < 0x80 { byte } else { byte - 0x80 + (number(reader) << 7) }
}
