//! Roles: what a view that has its majority may do, by who is present. They only ever take away (GemFire's required roles, where they were
//! all there was: Schuchardt 2010, GemFire and Paxos).

use mainstay_types::view::View;

/// What a region does when a role that it needs is not played by anybody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LossAction {
    /// It goes on.
    FullAccess,
    /// It is read, and not written.
    ReadOnly,
    /// It is neither read nor written.
    NoAccess,
    /// The process leaves and asks to be let in again.
    Reconnect,
}

/// What it does when the role is back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resumption {
    /// It goes on with the data that it has.
    Continue,
    /// It fetches its data anew.
    Reinitialise,
}

/// What a region needs of its view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Requirement {
    /// The roles; each must be offered by a member.
    pub roles: Vec<String>,
    /// What happens while one is missing.
    pub loss: LossAction,
    /// What happens when all are there again.
    pub resumption: Resumption,
}

/// What a region may do now, the most restrictive last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Access {
    /// Everything.
    Full,
    /// Something less, because of roles that are missing.
    Restricted {
        /// What happens.
        loss: LossAction,
        /// The roles that nobody in the view offers.
        missing: Vec<String>,
    },
    /// Nothing: this process does not serve, whoever is present.
    NotServing,
}

/// What a region may do in `view`; `serves` is whether this process may serve it at all, which no role can give.
#[must_use]
pub fn access(view: &View, serves: bool, requirement: &Requirement) -> Access {
    if !serves {
        return Access::NotServing;
    }
    let offered = |role: &String| view.members.iter().any(|member| member.offer.roles.contains(role));
    let missing: Vec<String> = requirement.roles.iter().filter(|role| !offered(role)).cloned().collect();
    match missing.is_empty() || requirement.loss == LossAction::FullAccess {
        true => Access::Full,
        false => Access::Restricted { loss: requirement.loss, missing },
    }
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
            resumption: Resumption::Continue,
        };
        assert_eq!(access(&view, true, &needs(&["stock"], LossAction::NoAccess)), Access::Full);
        let missing = vec!["prices".to_owned()];
        let restricted = Access::Restricted { loss: LossAction::ReadOnly, missing };
        assert_eq!(access(&view, true, &needs(&["stock", "prices"], LossAction::ReadOnly)), restricted);
        assert_eq!(access(&view, true, &needs(&["prices"], LossAction::FullAccess)), Access::Full);
        for loss in
            [LossAction::FullAccess, LossAction::ReadOnly, LossAction::NoAccess, LossAction::Reconnect]
        {
            assert_eq!(access(&view, false, &needs(&["stock"], loss)), Access::NotServing);
        }
    }
}
