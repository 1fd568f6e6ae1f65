//! From a policy to the protocol that keeps it: the one place that names all protocols.

use crate::causal::{Causal, Unfit};
use crate::local::Local;
use crate::logging::Logging;
use crate::mixed::Mixed;
use crate::optimistic::Optimistic;
use crate::policy::{Departure, NoGuarantee, Pair, Policy};
use crate::sender_based::SenderBased;
use mainstay_types::id::NodeId;
use std::collections::BTreeSet;

/// The policies of a cluster do not fit together, or not the cluster. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuited {
    /// A peer's policy and this node's guarantee nothing together.
    #[error("{peer}: {reason}")]
    Pair {
        /// The peer.
        peer: NodeId,
        /// Why.
        reason: NoGuarantee,
    },
    /// Causal logging cannot place its copies.
    #[error(transparent)]
    Causal(#[from] Unfit),
}

/// The protocol of node `me` under `policy`, in a cluster all of whose nodes are under it.
///
/// # Errors
/// [`Unsuited::Causal`].
pub fn protocol(policy: Policy, me: NodeId, peers: &[NodeId]) -> Result<Box<dyn Logging>, Unsuited> {
    Ok(match policy {
        Policy::Immediate | Policy::Deferred | Policy::Unlogged => Box::new(Local::default()),
        Policy::SenderBased => Box::new(SenderBased::new()),
        Policy::Hybrid => Box::new(SenderBased::hybrid()),
        Policy::Causal { f } => Box::new(Causal::new(me, peers, f)?),
        Policy::Optimistic => Box::new(Optimistic::new(me, peers)),
    })
}

/// The protocol of node `me` under `policy`, among peers each under its own.
///
/// # Errors
/// [`Unsuited`].
pub fn protocol_among(
    policy: Policy,
    me: NodeId,
    peers: &[(NodeId, Policy)],
) -> Result<Box<dyn Logging>, Unsuited> {
    let (mut kin, mut strangers) = (Vec::new(), BTreeSet::new());
    for &(peer, other) in peers.iter().filter(|(peer, _)| *peer != me) {
        let unsuited = |reason| Unsuited::Pair { peer, reason };
        other.pair(policy).map_err(unsuited)?;
        match policy.pair(other).map_err(unsuited)? {
            Pair { departure: Departure::AsMessage, .. } => kin.push(peer),
            Pair { departure: Departure::AsEffect, .. } => {
                strangers.insert(peer);
            }
        }
    }
    let own = protocol(policy, me, &kin)?;
    Ok(if strangers.is_empty() { own } else { Box::new(Mixed::new(own, strangers)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(policies: &[Policy]) -> Vec<(NodeId, Policy)> {
        (0..).map(NodeId).zip(policies.iter().copied()).collect()
    }

    #[test]
    fn every_policy_has_a_protocol_and_none_goes_with_none_only() {
        for policy in Policy::ALL {
            assert!(protocol(policy, NodeId(0), &[NodeId(0), NodeId(1)]).is_ok(), "{policy}");
            let beside = nodes(&[policy, Policy::Unlogged]);
            assert_eq!(protocol_among(policy, NodeId(0), &beside).is_ok(), policy == Policy::Unlogged);
        }
        let all = nodes(&[
            Policy::Immediate,
            Policy::SenderBased,
            Policy::Hybrid,
            Policy::Causal { f: 1 },
            Policy::Causal { f: 1 },
            Policy::Optimistic,
        ]);
        for &(me, policy) in &all {
            assert!(protocol_among(policy, me, &all).is_ok(), "{policy}");
        }
    }

    /// Copies of a causal node's determinants are with causal nodes: nodes under other policies do not count.
    #[test]
    fn one_causal_node_among_others_is_refused() {
        let peers = nodes(&[Policy::Causal { f: 1 }, Policy::Deferred, Policy::Deferred]);
        let refused = protocol_among(Policy::Causal { f: 1 }, NodeId(0), &peers);
        assert!(matches!(refused, Err(Unsuited::Causal(Unfit::TooFewNodes { f: 1, nodes: 1 }))));
    }
}
