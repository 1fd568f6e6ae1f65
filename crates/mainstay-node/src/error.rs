//! Why a node does not run.

use crate::retired::RetiredError;
use crate::settings::ArbiterError;
use crate::store::StoreError;
use mainstay_disk::log::SealError;
use mainstay_replica::config::StartError;
use mainstay_tls::TlsError;
use mainstay_types::view::ROLES_MAX;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A node that did not start, or ended otherwise than it was told to. Nothing that was acknowledged at its level is lost.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Plain text does not leave the machine.
    #[error(
        "{address} is not a loopback address, and without certificates nothing is encrypted or authenticated: give --tls and --name \
         (`mainstay cert --help`), or listen on 127.0.0.1 or ::1"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// Every address of this machine, which is none that other nodes can be told.
    #[error(
        "other nodes reach this one where it listens for them, and {address} is no address to reach: name one of this machine"
    )]
    Unspecified {
        /// The address.
        address: SocketAddr,
    },
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The arbiter.
    #[error(transparent)]
    Arbiter(#[from] ArbiterError),
    /// An address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its node has left the group.
    #[error(transparent)]
    Retired(#[from] RetiredError),
    /// What the directory holds, or was asked to begin.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The machine was restarted, and what was safe at level process may not have been on the disk. Nothing was changed.
    #[error(
        "the machine was restarted since a node ran in {directory} and did not end cleanly, and region `{region}` is kept at level process: what it \
         acknowledged last may be lost. Move the directory away and start the node with --join, and it joins as new; or, if no node of the group \
         has more, go on with what is left by --accept-loss: acknowledged writes may then be missing, and repeated ones take effect twice",
        directory = directory.display()
    )]
    PowerLost {
        /// The directory.
        directory: PathBuf,
        /// One of its regions.
        region: String,
    },
    /// No group, and none to ask.
    #[error("this directory belongs to no group: begin one with --init, or name nodes of one with --join")]
    NoGroup,
    /// More roles than a member may offer.
    #[error("{roles} roles are offered; {ROLES_MAX} are possible")]
    Roles {
        /// How many.
        roles: usize,
    },
    /// The operating system.
    #[error("the operating system refused: {0}")]
    System(#[from] io::Error),
    /// The disk failed. Nothing is promised any more; a restart goes on from what is durable.
    #[error("{what}; the node has stopped: restart it to go on from what is durable")]
    Disk {
        /// What failed.
        what: String,
    },
    /// The journal could not be sealed; it opens as after a crash.
    #[error(transparent)]
    Seal(#[from] SealError),
}
