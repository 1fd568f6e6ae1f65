//! Which node logs by which policy, and how many of them may be down at the same time.

use super::NODES;
use crate::verdict::UsageError;
use mainstay_recovery::policy::{Failures, Policy};
use std::fmt;
use std::str::FromStr;

/// Nodes that the demo takes down at the same time, at most, where the policy would bear more: one must be left for others
/// to meet a peer that did not fail.
const DOWN_MAX: usize = NODES - 1;

/// One policy for each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policies {
    /// The same for all.
    All(Policy),
    /// [`MIXED`].
    Mixed,
}

/// A policy with a journal alone, one with memory alone, one with both.
const MIXED: [Policy; NODES] = [Policy::Deferred, Policy::SenderBased, Policy::Hybrid];

impl Policies {
    /// Those of the nodes, in their order.
    #[must_use]
    pub(crate) fn each(self) -> [Policy; NODES] {
        match self {
            Self::All(policy) => [policy; NODES],
            Self::Mixed => MIXED,
        }
    }

    /// How many nodes may be down at the same time: what the weakest pair survives, and not all of them.
    #[must_use]
    pub(crate) fn down_max(self) -> usize {
        match self.survives() {
            Failures::AtMost(count) => usize::from(count).min(DOWN_MAX),
            Failures::Any => DOWN_MAX,
        }
    }

    /// How many nodes down at the same time are too many; `None` where any number is survived.
    #[must_use]
    pub(crate) fn beyond(self) -> Option<usize> {
        match self.survives() {
            Failures::AtMost(count) => Some(usize::from(count) + 1),
            Failures::Any => None,
        }
    }

    /// What the weakest pair does.
    fn survives(self) -> Failures {
        let each = self.each();
        let pairs = each.iter().flat_map(|from| each.iter().map(|to| from.pair(*to)));
        let survives = pairs.map(|pair| pair.map_or(Failures::AtMost(0), |pair| pair.survives)).min();
        survives.expect("there are nodes")
    }
}

impl FromStr for Policies {
    type Err = UsageError;

    fn from_str(given: &str) -> Result<Self, UsageError> {
        let policies = match given {
            "mixed" => Self::Mixed,
            // What the literature calls it.
            "pessimistic" => Self::All(Policy::Immediate),
            _ => Self::All(given.parse().map_err(|_| UsageError {
                explanation: format!(
                    "`{given}` is no logging policy; the policies are immediate (or pessimistic), deferred, sender-based, hybrid, causal \
                     (or causal:2), optimistic, and mixed for {}, {} and {} together",
                    MIXED[0], MIXED[1], MIXED[2]
                ),
            })?),
        };
        if policies.down_max() == 0 {
            let explanation =
                format!("--policy {given} survives nothing, so that kill -9 would show what is known");
            return Err(UsageError { explanation });
        }
        if let Some(policy) = policies.each().into_iter().find(|policy| policy.nodes_min() > NODES) {
            let explanation = format!(
                "--policy {policy} needs {} nodes, for its copies to be somewhere; the demo has {NODES}",
                policy.nodes_min()
            );
            return Err(UsageError { explanation });
        }
        Ok(policies)
    }
}

impl fmt::Display for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(policy) => policy.fmt(f),
            Self::Mixed => f.pad("mixed"),
        }
    }
}

impl serde::Serialize for Policies {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Policies {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <String as serde::Deserialize>::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_nodes_go_down_as_the_weakest_pair_bears_and_never_all() {
        let down_max = |name: &str| name.parse::<Policies>().map(Policies::down_max);
        for (name, nodes) in [
            ("immediate", 2),
            ("deferred", 2),
            ("optimistic", 2),
            ("causal:2", 2),
            ("causal", 1),
            ("sender-based", 1),
            ("hybrid", 1),
            ("mixed", 1),
        ] {
            assert_eq!(down_max(name), Ok(nodes), "{name}");
            let policies: Policies = name.parse().expect("just parsed");
            assert_eq!(policies.to_string(), name);
        }
        assert_eq!("pessimistic".parse(), Ok(Policies::All(Policy::Immediate)));
        for refused in ["none", "causal:3", "causal:0", "eager"] {
            assert!(down_max(refused).is_err(), "{refused}");
        }
    }
}
