//! How a connection between nodes begins: a head that says who speaks; and, where that one is not heard, an answer that says why.
//!
//! ```text
//!   head     "MSN2"  messages u8, group u8   flag u8, cluster [16]   store [16]   address [16], port u16   life u64   connection u64
//!   refusal  "MSN2"  messages u8, group u8   why u8, detail [16]
//! ```
//!
//! All little-endian. The four letters and the two bytes behind them are the versions of this head, of the messages between nodes and of those of
//! the group: nodes that differ in one of them say so instead of guessing.

use mainstay_group::message::PROTOCOL as GROUP_PROTOCOL;
use mainstay_replica::message::PROTOCOL as MESSAGE_PROTOCOL;
use mainstay_types::codec::{Reader, Truncated};
use mainstay_types::id::{ClusterId, StoreId};
use mainstay_types::view::Address;
use std::fmt;
use std::net::IpAddr;

/// What all versions begin with.
const NAME: &[u8; 3] = b"MSN";

/// Length of what says the versions, in bytes: the same in every version.
pub(crate) const VERSIONS_BYTES: usize = 6;

/// Length of the whole head, in bytes.
pub(crate) const HEAD_BYTES: usize = VERSIONS_BYTES + 17 + 16 + Address::BYTES + 16;

/// Length of a refusal, in bytes.
pub(crate) const REFUSAL_BYTES: usize = VERSIONS_BYTES + 17;

/// What a node speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Versions {
    head: u8,
    messages: u8,
    group: u8,
}

impl Versions {
    /// This version of mainstay.
    pub(crate) const OURS: Self = Self { head: 2, messages: MESSAGE_PROTOCOL, group: GROUP_PROTOCOL };

    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(NAME);
        out.extend_from_slice(&[b'0' + self.head, self.messages, self.group]);
    }

    /// Reads the first [`VERSIONS_BYTES`] of a connection; `None` if no node of any version has written them.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        match bytes.strip_prefix(NAME)? {
            &[head @ b'0'..=b'9', messages, group, ..] => Some(Self { head: head - b'0', messages, group }),
            _ => None,
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.head, self.messages, self.group)
    }
}

/// Who speaks on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// Its group, once it knows it.
    pub(crate) cluster: Option<ClusterId>,
    /// Its directory.
    pub(crate) store: StoreId,
    /// Where it is reached.
    pub(crate) address: Address,
    /// The life of its directory.
    pub(crate) life: u64,
    /// The number of the connection in that life: what comes from one with a lower number is not heard any more.
    pub(crate) connection: u64,
}

impl Head {
    /// Its bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES);
        Versions::OURS.put(&mut out);
        out.push(u8::from(self.cluster.is_some()));
        out.extend_from_slice(&self.cluster.map_or([0; 16], |cluster| cluster.0));
        out.extend_from_slice(&self.store.0);
        self.address.put(&mut out);
        out.extend_from_slice(&self.life.to_le_bytes());
        out.extend_from_slice(&self.connection.to_le_bytes());
        out
    }

    /// Reads what stands behind the versions, which are ours.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut from = Reader::new(bytes);
        let knows = from.u8()? == 1;
        let cluster = ClusterId(sixteen(&mut from)?);
        Ok(Self {
            cluster: knows.then_some(cluster),
            store: StoreId(sixteen(&mut from)?),
            address: Address::take(&mut from)?,
            life: from.u64()?,
            connection: from.u64()?,
        })
    }
}

fn sixteen(from: &mut Reader<'_>) -> Result<[u8; 16], Truncated> {
    Ok(from.take(16)?.try_into().expect("16 bytes were taken"))
}

/// Why a node does not hear another one. Nothing that was said on the connection was heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum LinkRefusal {
    /// They belong to different groups.
    #[error(
        "it belongs to group {theirs}, and this node to group {ours}: correct the addresses of --join and --listen, or, to give up a group that was \
         begun by mistake, start its nodes on empty directories without --init"
    )]
    OtherCluster {
        /// The group of who was refused: of this node.
        ours: ClusterId,
        /// The group of who refused.
        theirs: ClusterId,
    },
    /// They do not speak the same.
    #[error(
        "it speaks version {theirs} of the protocol of nodes, and this node {}: run the same version of mainstay on all nodes",
        Versions::OURS
    )]
    Version {
        /// What who refused speaks.
        theirs: Versions,
    },
    /// It hears as many as it may.
    #[error(
        "it has as many connections from nodes as it may, {connections_max}: it is asked again; find out who else speaks to it there"
    )]
    Full {
        /// The limit.
        connections_max: u16,
    },
    /// Its certificate is not that of a node at the address that it says.
    #[error(
        "the certificate that was shown does not carry {address}, where the node says it is: make it with \
         `mainstay cert node DIR NAME --address {address}`"
    )]
    Address {
        /// What it should carry.
        address: IpAddr,
    },
}

/// Not one of the reasons that this version knows.
const OTHER_CLUSTER: u8 = 1;
const OTHER_VERSION: u8 = 2;
const FULL: u8 = 3;
const ADDRESS: u8 = 4;

impl LinkRefusal {
    /// What who refuses says: `ours` is its group.
    pub(crate) fn other_cluster(ours: ClusterId) -> Vec<u8> {
        said(OTHER_CLUSTER, ours.0)
    }

    /// The same, to who speaks another version: the versions at the beginning say it all.
    pub(crate) fn other_version() -> Vec<u8> {
        said(OTHER_VERSION, [0; 16])
    }

    /// The same, to one more than there may be.
    pub(crate) fn full(connections_max: u16) -> Vec<u8> {
        let mut detail = [0; 16];
        detail[..2].copy_from_slice(&connections_max.to_le_bytes());
        said(FULL, detail)
    }

    /// The same, to who is not at the address that it says.
    pub(crate) fn other_address(address: Address) -> Vec<u8> {
        said(ADDRESS, address.ip)
    }

    /// What was said to a node of group `ours`; `None` if it is no refusal that is known.
    pub(crate) fn read(bytes: &[u8; REFUSAL_BYTES], ours: Option<ClusterId>) -> Option<Self> {
        let theirs = Versions::read(bytes)?;
        if theirs != Versions::OURS {
            return Some(Self::Version { theirs });
        }
        let detail: [u8; 16] = bytes[VERSIONS_BYTES + 1..].try_into().expect("a refusal has its length");
        match bytes[VERSIONS_BYTES] {
            OTHER_CLUSTER => Some(Self::OtherCluster { ours: ours?, theirs: ClusterId(detail) }),
            ADDRESS => Some(Self::Address { address: IpAddr::from(detail).to_canonical() }),
            FULL => Some(Self::Full { connections_max: u16::from_le_bytes([detail[0], detail[1]]) }),
            _ => None,
        }
    }
}

fn said(why: u8, detail: [u8; 16]) -> Vec<u8> {
    let mut out = Vec::with_capacity(REFUSAL_BYTES);
    Versions::OURS.put(&mut out);
    out.push(why);
    out.extend_from_slice(&detail);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_back_and_what_is_none_is_told_from_another_version() {
        let head = Head {
            cluster: None,
            store: StoreId([3; 16]),
            address: Address::v4([127, 0, 0, 1], 7171),
            life: 3,
            connection: 9,
        };
        for head in [head, Head { cluster: Some(ClusterId([7; 16])), ..head }] {
            let bytes = head.bytes();
            assert_eq!(bytes.len(), HEAD_BYTES);
            assert_eq!(Versions::read(&bytes), Some(Versions::OURS));
            assert_eq!(Head::read(&bytes[VERSIONS_BYTES..]), Ok(head));
        }
        assert_eq!(Versions::read(b"GET / HTTP/1.1\r\n"), None);
        assert_ne!(Versions::read(b"MSN1\x7f\0"), Some(Versions::OURS));
    }

    #[test]
    fn a_refusal_says_why() {
        let (ours, theirs) = (ClusterId([1; 16]), ClusterId([2; 16]));
        let read = |said: Vec<u8>| {
            LinkRefusal::read(&said.try_into().expect("a refusal has its length"), Some(ours))
        };
        let other = LinkRefusal::OtherCluster { ours, theirs };
        assert_eq!(read(LinkRefusal::other_cluster(theirs)), Some(other));
        assert_eq!(read(LinkRefusal::full(256)), Some(LinkRefusal::Full { connections_max: 256 }));
        let mut newer = LinkRefusal::other_version();
        newer[3] = b'3';
        let said = read(newer).expect("it is a refusal").to_string();
        assert!(said.contains("version 3.") && said.contains("the same version of mainstay"), "{said}");
        assert!(other.to_string().contains("--join"));
    }
}
