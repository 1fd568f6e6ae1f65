//! While no member of a view offers a role that a region requires, nothing is written in that view, nor read if the loss of the role says so; and nothing else is
//! refused for a role.

use super::{Property, Violation};
use mainstay_group::roles::{LossAction, Requirement};
use mainstay_region::log::Entry;
use mainstay_region::message::{Body, Refusal};
use mainstay_types::view::View;

pub(crate) const SOURCE: &str =
    "required roles and their loss actions: Schuchardt 2010, GemFire and Paxos; docs/group.md, roles";

/// What the loss of a role leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Allowed {
    Everything,
    Reads,
    Nothing,
}

/// By what the members of the view offer, and by nothing that a copy says.
fn allowed(view: &View, requirement: &Requirement) -> Allowed {
    let is_offered = |role: &String| view.members.iter().any(|member| member.offer.roles.contains(role));
    if requirement.roles.iter().all(is_offered) {
        return Allowed::Everything;
    }
    match requirement.loss {
        LossAction::FullAccess => Allowed::Everything,
        LossAction::ReadOnly => Allowed::Reads,
        LossAction::NoAccess | LossAction::Reconnect => Allowed::Nothing,
    }
}

/// Whether the view lacks a role, so that something is not allowed.
pub(crate) fn restricts(view: &View, requirement: &Requirement) -> bool {
    allowed(view, requirement) != Allowed::Everything
}

/// A copy has accepted this in the view.
pub(crate) fn check_accepted(
    copy: u8,
    view: &View,
    requirement: &Requirement,
    entry: &Entry,
) -> Result<(), Violation> {
    // What ends by itself, and what comes to nothing, is nobody's write.
    let Entry::Operation { id, .. } = entry else { return Ok(()) };
    if allowed(view, requirement) == Allowed::Everything {
        return Ok(());
    }
    let what = format!("n{copy} accepts {id:?} in {view}, which lacks a role of {requirement:?}");
    Err(Violation::new(Property::RegionRolesDecide, what))
}

/// A client is answered this. `said_in` is the view that the answer is of, `standing_in` the one that the node is in.
pub(crate) fn check_answered(
    copy: u8,
    (said_in, standing_in): (Option<&View>, Option<&View>),
    requirement: &Requirement,
    body: &Body,
) -> Result<(), Violation> {
    let may = |view: Option<&View>| view.map_or(Allowed::Everything, |view| allowed(view, requirement));
    let wrong = match body {
        Body::Answer { found: Ok(_), .. } => may(said_in) == Allowed::Nothing,
        Body::Answer { found: Err(Refusal::RoleMissing), .. } => may(standing_in) != Allowed::Nothing,
        Body::Refused { refusal: Refusal::RoleMissing, .. } => may(standing_in) == Allowed::Everything,
        _ => false,
    };
    if !wrong {
        return Ok(());
    }
    let what = format!(
        "n{copy}, in {}, answers {body:?} in {}, by {requirement:?}",
        named(standing_in),
        named(said_in)
    );
    Err(Violation::new(Property::RegionRolesDecide, what))
}

fn named(view: Option<&View>) -> String {
    view.map_or_else(|| "no view".to_owned(), ToString::to_string)
}
