//! Which node an instance lives on: a function of its address and of the list of nodes, the same on every node.

use crate::instance::address::Address;
use mainstay_types::id::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How the instances of a type are spread over the nodes.
#[derive(Clone)]
pub(crate) enum Placement {
    /// Each on the node that [`highest`] names.
    Hashed,
    /// All on one node.
    On(NodeId),
    /// Where a function of the service says, given the key and all nodes in ascending order.
    By(Arc<Choice>),
}

/// A placement of the service's own.
pub(crate) type Choice = dyn Fn(&str, &[NodeId]) -> NodeId + Send + Sync;

/// A placement as it is saved with the state that it placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PlacedBy {
    Hash,
    Node(NodeId),
    Function,
}

impl Placement {
    /// Where `address` lives among `nodes`, which are in ascending order and not none.
    ///
    /// # Panics
    /// When a function of the service names a node that is not there: a bug in the service.
    pub(crate) fn node_of(&self, address: &Address, nodes: &[NodeId]) -> NodeId {
        match self {
            Self::Hashed => highest(address, nodes),
            Self::On(node) => *node,
            Self::By(choose) => {
                let node = choose(&address.key, nodes);
                assert!(nodes.contains(&node), "{address} was placed on {node}, which is none of {nodes:?}");
                node
            }
        }
    }

    pub(crate) fn placed_by(&self) -> PlacedBy {
        match self {
            Self::Hashed => PlacedBy::Hash,
            Self::On(node) => PlacedBy::Node(*node),
            Self::By(_) => PlacedBy::Function,
        }
    }
}

/// Highest random weight (Thaler and Ravishankar 1998): the node with the highest XXH3-64 of `TYPE/KEY`, seeded with the node's number. Of
/// n nodes each gets about a share of 1/n, and a list with one node more moves only the share of that one. The hash is part of
/// the format: another one would look for saved instances at other nodes.
fn highest(address: &Address, nodes: &[NodeId]) -> NodeId {
    let name = address.to_string();
    let weight = |node: &NodeId| (xxh3_64_with_seed(name.as_bytes(), u64::from(node.0)), *node);
    nodes.iter().copied().max_by_key(weight).expect("a node is always among the nodes")
}

impl fmt::Display for PlacedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hash => f.write_str("by hash over all nodes"),
            Self::Node(node) => write!(f, "all on {node}"),
            Self::Function => f.write_str("by a function of the service"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u32) -> Vec<NodeId> {
        (1..=count).map(NodeId).collect()
    }

    #[test]
    fn the_hash_is_that_of_every_version_before() {
        let placed = |key: &str| highest(&Address::new("stock", key), &nodes(3)).0;
        let keys = ["apple", "pear", "plum", "fig", "lime", "kiwi"];
        assert_eq!(keys.map(placed), [1, 2, 1, 1, 2, 1]);
    }

    #[test]
    fn instances_are_spread_and_one_node_more_moves_only_its_share() {
        let keys = (0..6000).map(|number| Address::new("stock", &number.to_string()));
        let mut counts = [0_u32; 5];
        for address in keys {
            let before = highest(&address, &nodes(3));
            let after = highest(&address, &nodes(4));
            counts[before.0 as usize] += 1;
            if after != before {
                assert_eq!(after, NodeId(4), "{address} moved between nodes that were there");
                counts[4] += 1;
            }
        }
        assert!(counts[1..4].iter().all(|count| (1900..2100).contains(count)), "{counts:?}");
        assert!((1400..1600).contains(&counts[4]), "{counts:?}");
    }

    #[test]
    #[should_panic(expected = "none of")]
    fn a_function_must_name_a_node_that_is_there() {
        let placement = Placement::By(Arc::new(|_, _| NodeId(9)));
        placement.node_of(&Address::new("stock", "apple"), &nodes(2));
    }
}
