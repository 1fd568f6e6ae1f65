//! Regions that require roles, which some nodes offer in some of their lives: what views lack goes and comes.

use super::world::{Next, World};
use crate::group::setup::BEAT_NS;
use crate::properties::Violation;
use crate::properties::region_roles_decide::{check_answered, restricts};
use crate::random::Random;
use crate::reach::Reach;
use mainstay_group::ballot::Proposal;
use mainstay_group::roles::{LossAction, Requirement};
use mainstay_region::message::{Body, Message, Refusal};
use mainstay_replica::definition::{Definition, RegionId};
use mainstay_replica::replica::Replica;
use mainstay_types::view::{View, ViewId};
use std::collections::BTreeMap;

const ROLES: [&str; 2] = ["stock", "prices"];

/// Who offers what.
pub(crate) struct Roles {
    /// Apart from the world's, so that runs without roles are what they were.
    random: Random,
    /// Of each role that is required: the node that offers it in each of its lives, so that it is there in the end.
    holders: Vec<(&'static str, usize)>,
}

impl Roles {
    /// In three of ten runs regions require some.
    pub(crate) fn draw(seed: u64, nodes: usize, regions: &mut [Definition]) -> Self {
        let mut random = Random::new(seed ^ 0x726F_6C65_7300_0000);
        let mut holders = Vec::new();
        if random.chance(300) {
            holders.extend(ROLES.map(|role| (role, random.index(nodes))));
            for region in regions {
                let some = random.index(ROLES.len() + 1);
                let roles = ROLES[..some].iter().map(|&role| role.to_owned()).collect();
                region.requirement = Requirement { roles, loss: *random.pick(&LossAction::ALL) };
            }
        }
        Self { random, holders }
    }

    /// No run of this kind has any.
    pub(crate) fn none() -> Self {
        Self { random: Random::new(0), holders: Vec::new() }
    }

    /// What a node offers in a new life.
    pub(crate) fn offered_by(&mut self, node: usize) -> Vec<String> {
        let random = &mut self.random;
        let offered = self.holders.iter().filter(|(_, holder)| *holder == node || random.chance(150));
        offered.map(|(role, _)| (*role).to_owned()).collect()
    }
}

/// A view by its number: one that was decided, or that the node knows. (Who is alone tells nobody of its view.)
pub(crate) fn known_view<'a>(
    decided: &'a BTreeMap<ViewId, Proposal>,
    node: &'a Replica,
    id: ViewId,
) -> Option<&'a View> {
    let known = || node.group().record().view().filter(|view| view.id == id);
    decided.get(&id).map(|proposal| &proposal.view).or_else(known)
}

impl World {
    /// A node answers a client.
    pub(crate) fn judge_answered(
        &mut self,
        at: usize,
        region: RegionId,
        message: &Message,
    ) -> Result<(), Violation> {
        let requirement = &self.setup.regions[usize::from(region.0) - 1].requirement;
        let Some(running) = self.nodes[at].running.as_ref().filter(|_| !requirement.roles.is_empty()) else {
            return Ok(());
        };
        let views = (known_view(&self.decided, running, message.view), running.view());
        check_answered(u8::try_from(at).expect("few machines"), views, requirement, &message.body)?;
        match message.body {
            Body::Refused { refusal: Refusal::RoleMissing, .. } => self.reached.hit(Reach::WriteWithoutRole),
            Body::Answer { found: Err(Refusal::RoleMissing), .. } => self.reached.hit(Reach::ReadWithoutRole),
            _ => {}
        }
        Ok(())
    }

    /// A node serves a view. One whose region reconnects when a role goes, and which has seen it, ends and is started again, as the driver does.
    pub(crate) fn look_for_roles(&mut self, at: usize, view: &View) {
        let regions = self.setup.regions.iter();
        let mut reconnects = regions.filter(|region| region.requirement.loss == LossAction::Reconnect);
        let is_restricted = reconnects.any(|region| restricts(view, &region.requirement));
        let had_roles = std::mem::replace(&mut self.nodes[at].had_roles, !is_restricted);
        if is_restricted && had_roles {
            self.reached.hit(Reach::Reconnected);
            self.kill(at);
            let after_ns = self.roles.random.below(BEAT_NS);
            self.schedule(after_ns, Next::Start { node: at });
        }
    }
}
