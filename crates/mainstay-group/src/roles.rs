//! Roles: what a view that has its majority may do, by who is present. They only ever take away (GemFire's required roles, where they were
//! all there was: Schuchardt 2010, GemFire and Paxos).
//!
//! Every member of a view comes to the same verdict, since what members offer is part of the view.

use mainstay_types::view::{View, ViewId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a region does while a role that it requires is not played by anybody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum LossAction {
    /// It goes on.
    FullAccess,
    /// It is read, and not written.
    ReadOnly,
    /// It is neither read nor written.
    #[default]
    NoAccess,
    /// The same; and a process that sees the role go leaves once, and asks to be let in again.
    Reconnect,
}

impl LossAction {
    /// All of them, the least restrictive first.
    pub const ALL: [Self; 4] = [Self::FullAccess, Self::ReadOnly, Self::NoAccess, Self::Reconnect];

    /// Its name, on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FullAccess => "full",
            Self::ReadOnly => "read-only",
            Self::NoAccess => "none",
            Self::Reconnect => "reconnect",
        }
    }
}

/// What a region requires of its view.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Requirement {
    /// The roles; each must be offered by a member.
    pub roles: Vec<String>,
    /// What happens while one is missing.
    pub loss: LossAction,
}

/// What a region may do now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Access {
    /// Everything.
    Full,
    /// Something less, because of roles that are missing.
    Restricted(Restriction),
    /// Nothing: this process does not serve, whoever is present.
    NotServing,
}

/// A role that is required is offered by nobody. What is refused because of it was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restriction {
    /// What happens.
    pub loss: LossAction,
    /// The view that lacks them.
    pub view: ViewId,
    /// The roles that nobody in it offers: at least one.
    pub missing: Vec<String>,
}

impl Restriction {
    /// Nothing is written. What is restricted is not written in any case.
    #[must_use]
    pub fn refuses_reads(&self) -> bool {
        matches!(self.loss, LossAction::NoAccess | LossAction::Reconnect)
    }
}

impl std::error::Error for Restriction {}

impl fmt::Display for Restriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.refuses_reads() { "neither read nor written" } else { "read, and not written" };
        write!(f, "it is {what}: it requires ")?;
        for (place, role) in self.missing.iter().enumerate() {
            write!(f, "{}role `{role}`", if place > 0 { " and " } else { "" })?;
        }
        write!(f, ", which no member of view {} offers; start a node with", self.view)?;
        self.missing.iter().try_for_each(|role| write!(f, " --role {role}"))
    }
}

/// What a region may do in `view`; `serves` is whether this process may serve it at all, which no role can give.
#[must_use]
pub fn access(view: &View, serves: bool, requirement: &Requirement) -> Access {
    if !serves {
        return Access::NotServing;
    }
    restriction(view, requirement).map_or(Access::Full, Access::Restricted)
}

/// What a region must not do in `view`, whoever may serve it.
#[must_use]
pub fn restriction(view: &View, requirement: &Requirement) -> Option<Restriction> {
    let offered = |role: &String| view.members.iter().any(|member| member.offer.roles.contains(role));
    let missing: Vec<String> = requirement.roles.iter().filter(|role| !offered(role)).cloned().collect();
    let restricts = !missing.is_empty() && requirement.loss != LossAction::FullAccess;
    restricts.then_some(Restriction { loss: requirement.loss, view: view.id, missing })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::{Incarnation, StoreId};
    use mainstay_types::view::{Address, JoinerId, Member, Offer, ViewId};

    #[test]
    fn a_role_takes_away_and_never_gives() {
        let joiner = JoinerId {
            address: Address::v4([10, 0, 0, 1], 1),
            store: StoreId([1; 16]),
            life: Incarnation(1),
        };
        let offer = Offer { roles: vec!["stock".to_owned()], ..Offer::server() };
        let members = vec![Member { born: ViewId(1), joiner, offer }];
        let view = View { id: ViewId(1), arbitrated: false, members };
        let needs = |roles: &[&str], loss| Requirement {
            roles: roles.iter().map(|&role| role.to_owned()).collect(),
            loss,
        };
        assert_eq!(access(&view, true, &needs(&["stock"], LossAction::NoAccess)), Access::Full);
        let missing = vec!["prices".to_owned()];
        let restriction = Restriction { loss: LossAction::ReadOnly, view: ViewId(1), missing };
        let said = restriction.to_string();
        assert!(said.contains("role `prices`") && said.ends_with("--role prices"), "{said}");
        let restricted = Access::Restricted(restriction);
        assert_eq!(access(&view, true, &needs(&["stock", "prices"], LossAction::ReadOnly)), restricted);
        assert_eq!(access(&view, true, &needs(&["prices"], LossAction::FullAccess)), Access::Full);
        for loss in LossAction::ALL {
            assert_eq!(access(&view, false, &needs(&["stock"], loss)), Access::NotServing);
        }
    }
}
