//! A static list of nodes that tell each other: who they are, where, by which policy each survives crashes, and what proves them.

use mainstay_process::config::{self, LinkLimits as Limits};
use mainstay_recovery::policy::Policy;
use mainstay_runtime::peers::settings::{PeerAddress, PeersSettings, Security, SettingsError};
use mainstay_runtime::peers::tls::{TlsError, check_files};
use mainstay_runtime::places::PlacesSettings;
use mainstay_runtime::settings::Settings;
use mainstay_types::id::{ClusterId, NodeId};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;

pub use mainstay_runtime::peers::settings::TlsFiles;

/// The list of nodes, the same on every node, and which of them this one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    name: Option<String>,
    me: NodeId,
    nodes: Vec<(NodeId, Member)>,
    listen: Option<SocketAddr>,
    tls: Option<TlsFiles>,
    links: Limits,
    places: Option<Places>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    /// Empty: the node says it when it takes its place.
    address: String,
    policy: Option<Policy>,
}

/// The region in which nodes take their places.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Places {
    servers: Vec<SocketAddr>,
    region: String,
    take: bool,
}

/// A list of nodes that cannot be used. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// It contradicts itself.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The files of this node prove nothing to the others.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A type lives on a node that is not there.
    #[error(
        "all instances of `{type_name}` live on {node}, and the list of nodes has only {listed:?}: put it in, the same list on every node"
    )]
    PlacedNowhere {
        /// The type.
        type_name: &'static str,
        /// The node.
        node: NodeId,
        /// Those of the list.
        listed: Vec<NodeId>,
    },
    /// Nobody could find a node.
    #[error(
        "the list of nodes does not say where {node} listens: give it an address, or a region in which nodes take their places (--places)"
    )]
    Nowhere {
        /// The node.
        node: NodeId,
    },
    /// The others cannot be told where this one is.
    #[error(
        "{listen} is no address that other nodes could be told: give this node one in the list, or listen on one address"
    )]
    Unspecified {
        /// Where it listens.
        listen: SocketAddr,
    },
    /// This node's own entry is no address of this machine's.
    #[error(
        "`{address}`, where the list of nodes has this one, is no address to listen on: {source}. Correct it, or say where to listen"
    )]
    Listen {
        /// As listed.
        address: String,
        /// Why.
        source: io::Error,
    },
}

impl Cluster {
    /// A cluster without any node yet, of which this is the node `me`.
    #[must_use]
    pub fn new(me: u32) -> Self {
        let links = Limits::default();
        let me = NodeId(me);
        Self { name: None, me, nodes: Vec::new(), listen: None, tls: None, links, places: None }
    }

    /// A node of the list, this one included, and where the others reach it: `host:port`. It logs by the policy of the server's settings, as all
    /// nodes are then expected to.
    #[must_use]
    pub fn node(mut self, number: u32, address: impl Into<String>) -> Self {
        self.nodes.push((NodeId(number), Member { address: address.into(), policy: None }));
        self
    }

    /// The same for a node with a policy of its own.
    #[must_use]
    pub fn node_under(mut self, number: u32, address: impl Into<String>, policy: Policy) -> Self {
        self.nodes.push((NodeId(number), Member { address: address.into(), policy: Some(policy) }));
        self
    }

    /// Its name, if that is not the program's: nodes of other clusters are refused.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Where this node listens for the others, if that is not its own entry's address.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// TLS with these files. Without, nodes talk in plain text, on loopback only. The certificate of node 2 is for the name `n2`.
    #[must_use]
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }

    /// TLS with the files of a directory as `mainstay cert` makes them: `ca.pem`, and `n2.pem` and `n2.key` for node 2.
    #[must_use]
    pub fn tls_in(self, directory: impl AsRef<Path>) -> Self {
        let (directory, name) = (directory.as_ref(), certified_name(self.me));
        let file = |name: String| directory.join(name);
        let files = TlsFiles {
            authority: file("ca.pem".to_owned()),
            certificate: file(format!("{name}.pem")),
            key: file(format!("{name}.key")),
        };
        self.tls(files)
    }

    /// How many bytes of messages that one other node pins are kept in memory: what is above goes to a file that lives as long as
    /// this process. With twice as many in memory all the same, new requests are refused, 64 MiB at least.
    #[must_use]
    pub fn sender_log_memory_bytes(mut self, bytes: u64) -> Self {
        self.links.log_memory_bytes_max = bytes;
        self.links.log_bytes_max = bytes.saturating_mul(2).max(Limits::default().log_bytes_max);
        self
    }

    /// How many bytes of them that file takes for one other node; none with zero.
    #[must_use]
    pub fn sender_log_spill_bytes(mut self, bytes: u64) -> Self {
        self.links.log_spill_bytes_max = bytes;
        self
    }

    /// Nodes take their places in a replicated region: `servers` are nodes of its group. A node whose address the list leaves empty says there
    /// where it listens, and the others find it; another directory is refused, and of a directory and its copies the one that was started last
    /// is the node, while an earlier one ends.
    #[must_use]
    pub fn places(mut self, servers: Vec<SocketAddr>, region: impl Into<String>) -> Self {
        self.places = Some(Places { servers, region: region.into(), take: false });
        self
    }

    /// This directory takes the place of a copy of it that is gone for good.
    #[must_use]
    pub fn take_place(mut self) -> Self {
        if let Some(places) = &mut self.places {
            places.take = true;
        }
        self
    }

    /// Its name, if that is not the program's.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The number of this node.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Makes `settings` those of this node.
    pub(crate) fn apply(&self, settings: &mut Settings) -> Result<(), ClusterError> {
        let Some((_, own)) = self.nodes.iter().find(|(node, _)| *node == self.me) else {
            return Err(SettingsError::NotListed { node: self.me }.into());
        };
        if let Some((node, _)) = self.nodes.iter().find(|(_, member)| member.address.is_empty())
            && self.places.is_none()
        {
            return Err(ClusterError::Nowhere { node: *node });
        }
        let listen = match self.listen {
            Some(listen) => listen,
            None if own.address.is_empty() => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            None => resolve(&own.address)
                .map_err(|source| ClusterError::Listen { address: own.address.clone(), source })?,
        };
        let usual = settings.process.policy;
        let policy = |member: &Member| member.policy.unwrap_or(usual);
        let name = self.name.as_deref().unwrap_or(&settings.process.name).to_owned();
        let id = ClusterId::named(&name);
        let address = Some(own.address.clone()).filter(|address| !address.is_empty());
        if self.places.is_some() && address.is_none() && listen.ip().is_unspecified() {
            return Err(ClusterError::Unspecified { listen });
        }
        settings.places = self.places.clone().map(|Places { servers, region, take }| PlacesSettings {
            servers,
            region,
            cluster: name,
            address,
            take,
        });
        let address = |(node, member): &(NodeId, Member)| PeerAddress {
            node: *node,
            name: certified_name(*node),
            address: member.address.clone(),
        };
        let nodes = self.nodes.iter().map(address).collect();
        let security = self.tls.clone().map_or(Security::Plain, Security::Tls);
        let peers = PeersSettings::new(id, self.me, listen, nodes, security);
        // The transport would find the same, but only when the process has recovered among the wrong nodes.
        peers.check()?;
        if let Some(files) = &self.tls {
            check_files(files, &certified_name(self.me))?;
        }
        let others = self.nodes.iter().filter(|(node, _)| *node != self.me);
        settings.process.policy = policy(own);
        settings.process.cluster = Some(config::Cluster {
            id,
            me: self.me,
            others: others.map(|(node, member)| (*node, policy(member))).collect(),
            links: self.links,
        });
        settings.peers = Some(peers);
        Ok(())
    }
}

/// What a node's certificate calls it.
fn certified_name(node: NodeId) -> String {
    format!("n{}", node.0)
}

fn resolve(address: &str) -> io::Result<SocketAddr> {
    address.to_socket_addrs()?.next().ok_or_else(|| io::Error::other("the name has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Node;

    fn applied(cluster: Cluster, policy: Policy) -> Result<Settings, ClusterError> {
        let mut settings = Node::named("shop").server().policy(policy).settings().clone();
        cluster.apply(&mut settings).map(|()| settings)
    }

    #[test]
    fn a_node_without_a_policy_of_its_own_logs_as_the_server_says() {
        let list =
            |me| Cluster::new(me).node(1, "127.0.0.1:7171").node_under(2, "127.0.0.1:7172", Policy::Deferred);
        let seen = |me| {
            let process = applied(list(me), Policy::Hybrid).expect("the list is good").process;
            (process.policy, process.cluster.expect("it is in one").others.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(seen(1), (Policy::Hybrid, vec![(NodeId(2), Policy::Deferred)]));
        assert_eq!(seen(2), (Policy::Deferred, vec![(NodeId(1), Policy::Hybrid)]));
    }

    #[test]
    fn a_list_that_cannot_be_is_refused_before_anything_is_started() {
        let refused =
            |cluster: Cluster| applied(cluster, Policy::Deferred).expect_err("it cannot be").to_string();
        let list = || Cluster::new(1).node(1, "127.0.0.1:7171");
        for (cluster, said) in [
            (Cluster::new(3).node(1, "127.0.0.1:7171"), "node 3 is this node, and not in the list"),
            (list().node(2, "127.0.0.1:1").node(2, "127.0.0.1:2"), "node 2 is in the list of nodes twice"),
            (list().node(2, "192.0.2.7:7171"), "192.0.2.7:7171 is not on loopback"),
            (Cluster::new(1).node(1, "127.0.0.1"), "no address to listen on"),
            (list().tls_in("nowhere"), "nowhere/ca.pem"),
            (list().node(2, ""), "does not say where node 2 listens"),
            (
                Cluster::new(1)
                    .node(1, "")
                    .places(vec![], "data")
                    .listen("0.0.0.0:7171".parse().expect("an address")),
                "no address that other nodes could be told",
            ),
        ] {
            let error = refused(cluster);
            assert!(error.contains(said), "`{error}` does not say `{said}`");
        }
    }
}
