//! A node that did not fail goes on: it rolls back only under a policy that says so, and no two nodes find that they cannot both be
//! right about the past.

use super::{Property, Violation};
use mainstay_channel::refusal::Refusal;
use mainstay_process::effect::HangUp;
use mainstay_process::loss::{Loss, RollBack};
use mainstay_recovery::policy::Policy;
use mainstay_types::id::NodeId;

pub(crate) const SOURCE: &str = "no orphans under pessimistic and causal logging: Alvisi and Marzullo 1998; at most the orphans of a lost state roll back under \
     optimistic logging: Strom and Yemini 1985";

/// Fails if `node`, under `policy`, may not do that.
pub(crate) fn rolls_back(node: NodeId, policy: Policy, rolled_back: &RollBack) -> Result<(), Violation> {
    if policy.rolls_back() && matches!(rolled_back, RollBack::To(_)) {
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

/// Beyond what they survive they refuse only who depends on what is lost, and only until it has gone back.
pub(crate) fn may_refuse(why: &HangUp) -> bool {
    match why {
        HangUp::Refused(refusal) => {
            matches!(refusal, Refusal::PeerOrphaned { .. } | Refusal::Orphaned { .. } | Refusal::Ahead { .. })
        }
        HangUp::RefusedByPeer { .. } => true,
        HangUp::Frame(_) | HangUp::Control(_) | HangUp::Policies { .. } => false,
    }
}
