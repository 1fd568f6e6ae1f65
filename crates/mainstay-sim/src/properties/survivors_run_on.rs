//! A node that did not fail goes on: it rolls back only under a policy that says so, and no two nodes find that they cannot both be
//! right about the past.

use super::{Property, Violation};
use mainstay_process::effect::HangUp;
use mainstay_process::loss::Loss;
use mainstay_process::record::rolled_back::RolledBack;
use mainstay_recovery::policy::Policy;
use mainstay_types::id::NodeId;

pub(crate) const SOURCE: &str = "no orphans under pessimistic and causal logging: Alvisi and Marzullo 1998; at most the orphans of a lost state roll back under \
     optimistic logging: Strom and Yemini 1985";

/// Fails if `node`, under `policy`, may not do that.
pub(crate) fn rolls_back(node: NodeId, policy: Policy, rolled_back: &RolledBack) -> Result<(), Violation> {
    if policy.rolls_back() {
        return Ok(());
    }
    let what = format!("{node} rolls back under `{policy}`: {rolled_back:?}");
    Err(Violation::new(Property::SurvivorsRunOn, what))
}

/// Nodes that keep to the protocol and do not fail beyond what their policies survive never hang up on each other.
pub(crate) fn hung_up(node: NodeId, peer: NodeId, why: &HangUp) -> Violation {
    Violation::new(Property::SurvivorsRunOn, format!("{node} hangs up on {peer}: {why}"))
}

/// Nor do they ever find that something is lost for good.
pub(crate) fn stated_loss(node: NodeId, loss: &Loss) -> Violation {
    Violation::new(Property::SurvivorsRunOn, format!("{node} states a loss: {loss}"))
}
