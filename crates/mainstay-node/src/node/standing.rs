//! How a node stands: whether it serves, why not, what its regions require, and what it tells of that.

use super::{Ended, Node};
use crate::gateway::Standing;
use crate::status::{self, Status};
use mainstay_group::roles::LossAction;
use mainstay_types::time::Time;

impl Node {
    pub(super) fn refused_by(&mut self, why: &str) {
        if self.refused.as_deref() != Some(why) {
            tracing::warn!("{why}");
            self.refused = Some(why.to_owned());
        }
    }

    /// Whether a region that requires a role wants this node to reconnect: once, when it sees the role go.
    pub(super) fn look_for_roles(&mut self) {
        let restrictions = self.replica.regions().filter_map(|(region, ..)| self.replica.restriction(region));
        let mut reconnects = restrictions.filter(|without| without.loss == LossAction::Reconnect).peekable();
        let restricted = reconnects.peek().is_some();
        for without in reconnects.filter(|_| self.had_roles) {
            tracing::warn!(%without, "this node leaves and asks to be let in again");
        }
        if restricted && self.had_roles {
            self.end(Ok(Ended::Reconnects));
        }
        self.had_roles = !restricted;
    }

    /// Tells the gateway whether this node serves, and why not.
    pub(super) fn stand(&mut self, now: Time) {
        let serves = self.replica.serves(now) && self.region.is_some();
        let installed = self.replica.group().record().installed.as_ref();
        if let Some(line) = self.transitions.note(now, &self.replica.explain(now), serves, installed) {
            line.log();
        }
        let restriction = self.region.and_then(|region| self.replica.restriction(region));
        let standing = Standing { serves, explanation: self.explain(now), restriction };
        self.gateway.stand(now, standing, &mut self.asked);
    }

    /// What to say to who asks for a region that is not there.
    pub(super) fn no_region(&self, name: &str) -> String {
        let names = self.replica.regions().map(|(_, definition, _)| definition.name.as_str());
        format!("there is no region `{name}`; there is {}", names.collect::<Vec<_>>().join(", "))
    }

    pub(super) fn arbiter_is_silent(&mut self, error: &str) {
        self.refused_by(&format!("the arbiter does not decide: {error}"));
    }

    pub(super) fn explain(&self, now: Time) -> String {
        let explanation = status::explain(&self.replica, now);
        match &self.refused {
            Some(refused) if !self.replica.serves(now) => format!("{explanation}; {refused}"),
            _ => explanation,
        }
    }

    pub(super) fn status(&self, now: Time) -> Status {
        let links = &self.peers.links;
        let messages = (links.sent + self.natives.said, links.dropped);
        let mut status =
            Status::of(&self.replica, now, self.me, self.clients_at, &self.gateway, &self.store, messages);
        status.explanation = self.explain(now);
        status.refused.clone_from(&self.refused);
        status
    }
}
