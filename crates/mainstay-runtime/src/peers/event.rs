//! What the transport reports: connections that come and go, the frames on them, and why an attempt failed.

use crate::peers::frames::FrameTooLong;
use crate::peers::preamble::{PreambleError, Refusal};
use mainstay_types::codec::Truncated;
use mainstay_types::id::NodeId;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Something happened between this node and another.
///
/// For each peer: `Connected`, any number of `Frames`, `Disconnected`, and only then the next `Connected`.
#[derive(Debug)]
pub enum PeerEvent {
    /// Both agreed to talk. What either sent on an earlier connection may or may not have arrived.
    Connected {
        /// The peer.
        node: NodeId,
        /// The connection: a number never used before in the life of this [`Peers`](crate::peers::Peers).
        session: u64,
        /// Longest frame that the peer takes, in bytes.
        frame_bytes_max: u32,
    },
    /// All whole frames of one read, in the order in which the peer sent them.
    Frames {
        /// The peer.
        node: NodeId,
        /// The connection.
        session: u64,
        /// Whole frames, each behind its length: see [`frames`](crate::peers::frames::frames).
        bytes: Vec<u8>,
    },
    /// The connection is gone. The transport dials again by itself.
    Disconnected {
        /// The peer.
        node: NodeId,
        /// The connection.
        session: u64,
        /// Why.
        why: DisconnectReason,
    },
    /// No connection came about. The transport tries again by itself.
    Failed {
        /// The peer that was dialled, or that the other said it was.
        node: Option<NodeId>,
        /// Where the other is, as far as that is known.
        remote: Option<SocketAddr>,
        /// Why.
        why: ConnectError,
    },
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum DisconnectReason {
    /// The peer closed it, or its process ended.
    #[error("closed by the peer")]
    Closed,
    /// The operating system ended it.
    #[error("broken")]
    Broken(#[from] io::Error),
    /// Nothing came, not even a heartbeat.
    #[error("nothing came for {silence_max:?}, not even a heartbeat")]
    Silent {
        /// The patience.
        silence_max: Duration,
    },
    /// The peer sent something that is no frame of this cluster.
    #[error(transparent)]
    Frame(#[from] FrameTooLong),
    /// What came was not what the peer had sent.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The peer has opened a newer one.
    #[error("the peer has opened a newer one")]
    Superseded,
    /// This node hung up: see [`Peers::hang_up`](crate::peers::Peers::hang_up).
    #[error("this node hung up")]
    HungUp,
    /// This node stops.
    #[error("this node stops")]
    Stopped,
}

/// Why no connection came about. Nothing was sent but greetings.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A host name has no address.
    #[error("`{address}` cannot be resolved")]
    Resolve {
        /// As it is in the list of nodes.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// It has not taken its place yet, and the list does not say where it listens.
    #[error("nobody knows yet where it listens: it has not been started")]
    Placeless,
    /// A name led off this machine.
    #[error(
        "`{address}` is not on loopback, and plain text does not leave the machine: use TLS (`mainstay cert --help`)"
    )]
    PlainBeyondLoopback {
        /// As it is in the list of nodes.
        address: String,
    },
    /// Nobody listens there, or no packet gets there.
    #[error("cannot be reached")]
    Connect(#[source] io::Error),
    /// It broke before both had agreed to talk.
    #[error("broken off during the greeting")]
    Broken(#[source] io::Error),
    /// It took too long.
    #[error("no agreement within {connect_timeout:?}")]
    Timeout {
        /// The patience.
        connect_timeout: Duration,
    },
    /// One does not trust the other.
    #[error("TLS: {source}{}", mainstay_tls::remedy(source))]
    Tls {
        /// Why.
        source: rustls::Error,
    },
    /// What came is no preamble.
    #[error(transparent)]
    Preamble(#[from] PreambleError),
    /// This node refused, and told the other why.
    #[error("refused by this node: {0}")]
    Refused(#[from] Refusal),
    /// The other refused.
    #[error("refused by the other: {text}")]
    RefusedByPeer {
        /// [`Refusal::code`].
        code: u16,
        /// Why, in its words.
        text: String,
    },
    /// The answer to the preamble is none.
    #[error("an answer to a preamble that announces more text than allowed")]
    Verdict,
}

impl From<Truncated> for ConnectError {
    fn from(truncated: Truncated) -> Self {
        Self::Preamble(PreambleError::Truncated(truncated))
    }
}
