//! Where a node stands, for people and programs.

use crate::address::of_socket;
use crate::command::OWN_KEYS;
use crate::gateway::Gateway;
use crate::settings::acknowledgement_name;
use crate::store::Store;
use mainstay_group::explain::Explanation;
use mainstay_region::blob::Blob;
use mainstay_replica::replica::Replica;
use mainstay_types::level::Level;
use mainstay_types::time::Time;
use mainstay_types::view::JoinerId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;

/// Where a node stands: the answer to `MAINSTAY.STATUS`, as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Where other nodes reach it.
    pub nodes_at: SocketAddr,
    /// Where clients reach it.
    pub clients_at: SocketAddr,
    /// The identity of its directory.
    pub store: String,
    /// The number of its life; every start is a new one.
    pub life: u64,
    /// The group's identity, once known.
    pub cluster: Option<String>,
    /// Whether it serves.
    pub serves: bool,
    /// Why, or why not.
    pub explanation: String,
    /// Why another node did not hear it or let it in, since it served last.
    pub refused: Option<String>,
    /// The number of the view that it is in; 0 outside.
    pub view: u64,
    /// The members of that view, the oldest first.
    pub members: Vec<MemberStatus>,
    /// The regions that it has a copy of.
    pub regions: Vec<RegionStatus>,
    /// Connections of clients, and what is under way for them.
    pub clients: BTreeMap<&'static str, usize>,
    /// What the next start of this node reads.
    pub journal_bytes: u64,
    /// Messages sent to other nodes, and to native clients, since the start.
    pub messages_sent: u64,
    /// Messages to other nodes dropped since the start, because they were not taken.
    pub messages_dropped: u64,
}

/// A member of a view.
#[derive(Clone, Debug, Serialize)]
pub struct MemberStatus {
    /// Where other nodes reach it.
    pub address: SocketAddr,
    /// The view that it came in with.
    pub born: u64,
    /// Its votes.
    pub weight: u32,
    /// The roles that it offers.
    pub roles: Vec<String>,
    /// It is the node that answers.
    pub me: bool,
}

/// A region.
#[derive(Clone, Debug, Serialize)]
pub struct RegionStatus {
    /// Its name.
    pub name: String,
    /// Its shards.
    pub shards: u16,
    /// How first attempts travel.
    pub pattern: &'static str,
    /// Who must have a write.
    pub acknowledged_by: &'static str,
    /// What a copy must have survived before it says that it has a write.
    pub level: Level,
    /// The roles that members must offer.
    pub requires: Vec<String>,
    /// What happens while nobody offers one of them.
    pub on_role_loss: &'static str,
    /// Those that nobody in the view offers.
    pub roles_missing: Vec<String>,
    /// Keys in this copy.
    pub keys: usize,
    /// Of each shard the version that this copy's stable state stands at, and the hash of its whole map: equal versions have equal hashes.
    pub stands: Vec<(String, String)>,
}

impl Status {
    pub(crate) fn of(
        replica: &Replica,
        now: Time,
        me: JoinerId,
        clients_at: SocketAddr,
        gateway: &Gateway,
        store: &Store,
        (messages_sent, messages_dropped): (u64, u64),
    ) -> Self {
        let view = replica.view();
        let members = view.into_iter().flat_map(|view| &view.members).map(|member| MemberStatus {
            address: of_socket(member.joiner.address),
            born: member.born.0,
            weight: member.offer.weight,
            roles: member.offer.roles.clone(),
            me: member.joiner == me,
        });
        let regions = replica.regions().map(|(id, definition, copy)| {
            let shards = || (0..definition.shards).map(|shard| copy.state(shard));
            RegionStatus {
                name: definition.name.clone(),
                shards: definition.shards,
                pattern: definition.pattern.name(),
                acknowledged_by: acknowledgement_name(definition.acknowledgement()),
                level: definition.level,
                requires: definition.requirement.roles.clone(),
                on_role_loss: definition.requirement.loss.name(),
                roles_missing: replica.restriction(id).map(|without| without.missing).unwrap_or_default(),
                keys: shards().map(|state| state.map.len() - own_keys(&state.map)).sum(),
                stands: shards()
                    .map(|state| {
                        let at = state.at;
                        (format!("{}.{}", at.view.0, at.counter), format!("{:016x}", state.digest))
                    })
                    .collect(),
            }
        });
        Self {
            nodes_at: of_socket(me.address),
            clients_at,
            store: me.store.to_string(),
            life: me.life.0,
            cluster: replica.cluster().map(|cluster| cluster.to_string()),
            serves: replica.serves(now),
            explanation: explain(replica, now),
            refused: None,
            view: view.map_or(0, |view| view.id.0),
            members: members.collect(),
            regions: regions.collect(),
            clients: gateway.sizes().into_iter().collect(),
            journal_bytes: store.journal_bytes(),
            messages_sent,
            messages_dropped,
        }
    }
}

/// Where the node stands: a word for programs, a colon, and a sentence.
pub(crate) fn explain(replica: &Replica, now: Time) -> String {
    let explanation = replica.explain(now);
    let word = match &explanation {
        Explanation::Serves { .. } if replica.serves(now) => "serves",
        Explanation::Serves { .. } | Explanation::Fetches { .. } => "fetches",
        Explanation::Wedged { .. } => "changing",
        Explanation::CutOff { .. } => "minority",
        Explanation::Outside { .. } => "outside",
        Explanation::Left => "left",
    };
    let mut text = format!("{word}: {explanation}");
    for (id, definition, _) in replica.regions() {
        if let Some(without) = replica.restriction(id).filter(|_| word == "serves") {
            text.push_str(&format!("; but region `{}` is restricted: {without}", definition.name));
        }
    }
    text
}

/// How many of the keys are the nodes' own, which no client sees.
fn own_keys<V>(map: &BTreeMap<Blob, V>) -> usize {
    let from = (Bound::Included(OWN_KEYS), Bound::Unbounded);
    map.range::<[u8], _>(from).take_while(|(key, _)| key.starts_with(OWN_KEYS)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_nodes_keep_for_themselves_is_not_counted() {
        let own = [OWN_KEYS, b"clients"].concat();
        let keys: [&[u8]; 4] = [b"\0", own.as_slice(), b"\0other", b"a"];
        let map: BTreeMap<Blob, ()> = keys.into_iter().map(|key| (Blob::from(key), ())).collect();
        assert_eq!(own_keys(&map), 1);
    }
}
