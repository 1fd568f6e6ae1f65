//! What a node is told about its cluster: who is in it, where, and what proves it.

pub use mainstay_tls::{TlsFiles, is_node_name};
pub use mainstay_types::id::ClusterId;
use mainstay_types::id::NodeId;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

/// One node in the list that all nodes of a cluster share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// Its number. Of two nodes the lower one dials.
    pub node: NodeId,
    /// Its name, which its certificate carries: see [`is_node_name`].
    pub name: String,
    /// Where it listens: `host:port`, resolved anew for every attempt.
    pub address: String,
}

/// What protects a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Security {
    /// Nothing: on loopback only, where whoever can reach the port may take the place of any node.
    Plain,
    /// TLS 1.3, both sides with a certificate of the cluster's authority.
    Tls(TlsFiles),
}

/// Settings of the transport between nodes.
#[derive(Clone, Debug)]
pub struct PeersSettings {
    /// The cluster.
    pub cluster: ClusterId,
    /// Which node of the list this one is.
    pub me: NodeId,
    /// Where this node listens; port 0 lets the operating system choose. The highest node is dialled by all others, the
    /// lowest by none, and listens all the same.
    pub listen: SocketAddr,
    /// All nodes of the cluster, this one among them.
    pub nodes: Vec<PeerAddress>,
    /// What protects the connections.
    pub security: Security,
    /// Pause before the second attempt to reach a peer; it doubles with every further one.
    pub reconnect_min: Duration,
    /// Longest pause between two attempts. A connection that lived as long as that begins with the shortest again.
    pub reconnect_max: Duration,
    /// How long it may take until a connection is there, and after that until both have agreed to talk.
    pub connect_timeout: Duration,
    /// Something is sent to each peer at least about this often: after one to two such intervals of silence a heartbeat.
    pub heartbeat_every: Duration,
    /// A peer that sends nothing for so long is taken for dead; at least three times a peer's `heartbeat_every`.
    pub silence_max: Duration,
    /// Longest frame that is taken from a peer, in bytes.
    pub frame_bytes_max: u32,
    /// Bytes that may wait for one peer's socket; [`Peers::send`](crate::peers::Peers::send) refuses more.
    pub outgoing_bytes_max: usize,
    /// Connections that have not said yet who they are; more are closed at once.
    pub strangers_max: usize,
}

/// Heartbeats that must fit into a peer's patience, so that one that is late or on its way does no harm.
pub(crate) const HEARTBEATS_IN_SILENCE_MIN: u32 = 3;

impl PeersSettings {
    /// Settings with the usual limits.
    #[must_use]
    pub fn new(
        cluster: ClusterId,
        me: NodeId,
        listen: SocketAddr,
        nodes: Vec<PeerAddress>,
        security: Security,
    ) -> Self {
        Self {
            cluster,
            me,
            listen,
            nodes,
            security,
            reconnect_min: Duration::from_millis(10),
            reconnect_max: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(3),
            heartbeat_every: Duration::from_secs(1),
            silence_max: Duration::from_secs(5),
            frame_bytes_max: 16 << 20,
            outgoing_bytes_max: 64 << 20,
            strangers_max: 64,
        }
    }

    /// Checks what can be known without the network.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn check(&self) -> Result<(), SettingsError> {
        let (mut numbers, mut names) = (BTreeSet::new(), BTreeSet::new());
        for PeerAddress { node, name, .. } in &self.nodes {
            if !numbers.insert(*node) {
                return Err(SettingsError::NumberTwice { node: *node });
            }
            if !is_node_name(name) {
                return Err(SettingsError::Name { name: name.clone() });
            }
            if !names.insert(name) {
                return Err(SettingsError::NameTwice { name: name.clone() });
            }
        }
        if !numbers.contains(&self.me) {
            return Err(SettingsError::NotListed { node: self.me });
        }
        if self.security == Security::Plain {
            let fixed = self.nodes.iter().filter_map(|node| node.address.parse::<SocketAddr>().ok());
            let mut beyond =
                std::iter::once(self.listen).chain(fixed).filter(|address| !address.ip().is_loopback());
            if let Some(address) = beyond.next() {
                return Err(SettingsError::PlainBeyondLoopback { address });
            }
        }
        let silence_min = self.heartbeat_every * HEARTBEATS_IN_SILENCE_MIN;
        if self.silence_max < silence_min || self.heartbeat_every < Duration::from_millis(1) {
            return Err(SettingsError::Silence { silence_max: self.silence_max, silence_min });
        }
        Ok(())
    }
}

/// Settings contradict themselves or each other. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Two nodes have one number.
    #[error("{node} is in the list of nodes twice")]
    NumberTwice {
        /// Which.
        node: NodeId,
    },
    /// Two nodes have one name.
    #[error("the name `{name}` is in the list of nodes twice")]
    NameTwice {
        /// Which.
        name: String,
    },
    /// A name that no certificate can carry.
    #[error(
        "`{name}` is no name for a node: 1 to 63 of a-z, 0-9 and -, the first and the last no -, not digits alone"
    )]
    Name {
        /// Which.
        name: String,
    },
    /// This node is missing.
    #[error("{node} is this node, and not in the list of nodes")]
    NotListed {
        /// This node.
        node: NodeId,
    },
    /// Plain text would leave the machine.
    #[error(
        "{address} is not on loopback, and plain text does not leave the machine: use TLS (`mainstay cert --help`)"
    )]
    PlainBeyondLoopback {
        /// Where.
        address: SocketAddr,
    },
    /// Healthy peers would be taken for dead.
    #[error(
        "peers silent for {silence_max:?} are taken for dead, which must be at least three heartbeats ({silence_min:?}) of 1 ms or more"
    )]
    Silence {
        /// The patience.
        silence_max: Duration,
        /// The least there must be.
        silence_min: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn settings() -> PeersSettings {
        let node = |number: u32, name: &str, address: &str| PeerAddress {
            node: NodeId(number),
            name: name.to_owned(),
            address: address.to_owned(),
        };
        let nodes = vec![node(1, "n1", "127.0.0.1:7171"), node(2, "n2", "localhost:7172")];
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 7171));
        PeersSettings::new(ClusterId::named("test"), NodeId(1), listen, nodes, Security::Plain)
    }

    #[test]
    fn plain_text_does_not_leave_the_machine() {
        assert_eq!(settings().check(), Ok(()));
        let elsewhere: SocketAddr = "192.0.2.1:7172".parse().expect("it is an address");
        let refused = Err(SettingsError::PlainBeyondLoopback { address: elsewhere });
        let mut listens_outside = settings();
        listens_outside.listen = elsewhere;
        assert_eq!(listens_outside.check(), refused);
        let mut dials_outside = settings();
        dials_outside.nodes[1].address = elsewhere.to_string();
        assert_eq!(dials_outside.check(), refused);
    }

    #[test]
    fn a_list_that_contradicts_itself_is_refused() {
        let mut twice = settings();
        twice.nodes[1].node = NodeId(1);
        assert_eq!(twice.check(), Err(SettingsError::NumberTwice { node: NodeId(1) }));
        let mut namesakes = settings();
        namesakes.nodes[1].name = "n1".to_owned();
        assert_eq!(namesakes.check(), Err(SettingsError::NameTwice { name: "n1".to_owned() }));
        let mut missing = settings();
        missing.me = NodeId(3);
        assert_eq!(missing.check(), Err(SettingsError::NotListed { node: NodeId(3) }));
        let mut hasty = settings();
        hasty.silence_max = hasty.heartbeat_every;
        assert!(matches!(hasty.check(), Err(SettingsError::Silence { .. })));
    }
}
