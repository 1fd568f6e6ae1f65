//! What two nodes say first to each other: who they are, what they hold, and which of their lives ended where.

use crate::frame::FrameError;
use crate::limits::Limits;
use crate::refusal::Refusal;
use mainstay_types::codec::{Reader, Truncated};
use mainstay_types::determinant::Point;
use mainstay_types::id::{ClusterId, DeliveryIndex, Incarnation, NodeId, Ssn, StoreId};
use mainstay_types::snapshot::SnapshotId;

/// The version of the frames. A change of any frame changes it; only [`Hello`] keeps its beginning in all versions.
pub const PROTOCOL: u16 = 4;

/// Most ended lives that a node remembers and tells; older ones are forgotten.
pub const ENDS_MAX: usize = 256;

/// No link comes near it in a thousand years; a peer that names a higher number lies.
const SSN_MAX: u64 = 1 << 62;

const COLLECTING: u8 = 1;
const REJOINS: u8 = 2;
const AGREEING: u8 = 4;
const CRASHED: u8 = 8;

const MAGIC: [u8; 4] = *b"MNST";

/// Who a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its place in the cluster's list.
    pub node: NodeId,
    /// Its directory.
    pub store: StoreId,
    /// Its life.
    pub incarnation: Incarnation,
}

/// What a node runs, as numbers: the composer knows their meaning and which policies go together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Declared {
    /// The policy.
    pub policy: u8,
    /// How many nodes may fail at once.
    pub failures_max: u8,
    /// The version of its service.
    pub version: u32,
}

/// The first frame in both directions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Who speaks.
    pub identity: Identity,
    /// Who is meant.
    pub to: NodeId,
    /// The policy and the version of the one who speaks.
    pub declared: Declared,
    /// The highest message of the other that the history of the one who speaks holds: it goes on behind it.
    pub received: Ssn,
    /// The highest that it never needs again. Never above `received`.
    pub covered: Ssn,
    /// It recovers, and asks for every retained message above `received`, whatever the window. Said in every session of a recovery.
    pub collecting: bool,
    /// Its life began with a crash, and not with the making of its directory or behind a clean stop, which keeps in a checkpoint all that it
    /// had in memory.
    pub crashed: bool,
    /// So it did, and it has not yet heard in it that the other is recovered: what it kept in memory for the other is lost.
    pub rejoins: bool,
    /// It recovered, and waits for all nodes to agree on a line, because more is lost than a policy survives.
    pub agreeing: bool,
    /// Most messages it takes before it has delivered them.
    pub window_messages_max: u32,
    /// Most bytes of bodies among them.
    pub window_bytes_max: u64,
    /// Longest body it takes, in bytes.
    pub message_bytes_max: u32,
    /// The highest state of the other that it depends on through messages of the other itself.
    pub seen: Point,
    /// The highest snapshot that it took part in: whatever this session brings came after that.
    pub snapshot: SnapshotId,
    /// The line at which its service was exchanged together with those of all other nodes, the last time.
    pub line: SnapshotId,
    /// Its lives that ended, in order, with the last delivery that was recovered of each.
    pub ends: Vec<(Incarnation, DeliveryIndex)>,
}

impl Hello {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        assert!(self.ends.len() <= ENDS_MAX, "the ends are pruned to their limit");
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&PROTOCOL.to_le_bytes());
        out.extend_from_slice(&self.identity.cluster.0);
        out.extend_from_slice(&self.identity.node.0.to_le_bytes());
        out.extend_from_slice(&self.identity.store.0);
        out.extend_from_slice(&self.identity.incarnation.0.to_le_bytes());
        out.extend_from_slice(&self.to.0.to_le_bytes());
        out.extend_from_slice(&[self.declared.policy, self.declared.failures_max]);
        out.extend_from_slice(&self.declared.version.to_le_bytes());
        out.extend_from_slice(&self.received.0.to_le_bytes());
        out.extend_from_slice(&self.covered.0.to_le_bytes());
        let flags = [
            (self.collecting, COLLECTING),
            (self.rejoins, REJOINS),
            (self.agreeing, AGREEING),
            (self.crashed, CRASHED),
        ];
        out.push(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
        out.extend_from_slice(&self.window_messages_max.to_le_bytes());
        out.extend_from_slice(&self.window_bytes_max.to_le_bytes());
        out.extend_from_slice(&self.message_bytes_max.to_le_bytes());
        self.seen.put(out);
        self.snapshot.put(out);
        self.line.put(out);
        put_ends(&self.ends, out);
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, FrameError> {
        if from.take(MAGIC.len())? != MAGIC {
            return Err(FrameError::Foreign);
        }
        let protocol = from.u16()?;
        if protocol != PROTOCOL {
            return Err(FrameError::Protocol { found: protocol });
        }
        let cluster = ClusterId(take_id(from)?);
        let node = NodeId(from.u32()?);
        let store = StoreId(take_id(from)?);
        let identity = Identity { cluster, node, store, incarnation: Incarnation(from.u64()?) };
        let to = NodeId(from.u32()?);
        let declared = Declared { policy: from.u8()?, failures_max: from.u8()?, version: from.u32()? };
        let (received, covered, flags) = (Ssn(from.u64()?), Ssn(from.u64()?), from.u8()?);
        if flags & !(COLLECTING | REJOINS | AGREEING | CRASHED) != 0 {
            return Err(FrameError::Flag { flag: flags });
        }
        let hello = Self {
            identity,
            to,
            declared,
            received,
            covered,
            collecting: flags & COLLECTING != 0,
            crashed: flags & CRASHED != 0,
            rejoins: flags & REJOINS != 0,
            agreeing: flags & AGREEING != 0,
            window_messages_max: from.u32()?,
            window_bytes_max: from.u64()?,
            message_bytes_max: from.u32()?,
            seen: Point::take(from)?,
            snapshot: SnapshotId::take(from)?,
            line: SnapshotId::take(from)?,
            ends: take_ends(from)?,
        };
        if hello.covered > hello.received {
            return Err(FrameError::CoveredAboveReceived {
                covered: hello.covered,
                received: hello.received,
            });
        }
        if hello.received.0 > SSN_MAX {
            return Err(FrameError::Number { ssn: hello.received });
        }
        Ok(hello)
    }
}

/// What a link lets through: the smaller limits of its two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) messages_max: u32,
    pub(crate) bytes_max: u64,
}

impl Window {
    pub(crate) fn of(ours: &Limits, theirs: &Hello) -> Self {
        Self {
            messages_max: ours.window_messages_max.min(theirs.window_messages_max).max(1),
            bytes_max: ours.window_bytes_max.min(theirs.window_bytes_max),
        }
    }
}

/// A node depends on a state of another that was lost: it is an orphan (Alvisi and Marzullo 1998).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Orphan {
    /// The highest state that it depends on.
    pub depends_on: Point,
    /// The life after which it was lost.
    pub ended: Incarnation,
    /// The last delivery that was recovered.
    pub last: DeliveryIndex,
}

impl Orphan {
    /// Whether a state that depends on `seen` outlived the lives that ended as `ends` says.
    ///
    /// A later life that ended below loses what earlier lives did above as well.
    #[must_use]
    pub fn of(seen: Point, ends: &[(Incarnation, DeliveryIndex)]) -> Option<Self> {
        ends.iter()
            .find(|(ended, last)| *ended >= seen.incarnation && *last < seen.delivery)
            .map(|&(ended, last)| Self { depends_on: seen, ended, last })
    }

    /// What `node`, which is the orphan, is refused by.
    pub(crate) fn refuse_peer(self, node: NodeId) -> Refusal {
        let Self { depends_on, ended, last } = self;
        Refusal::PeerOrphaned { node, depends_on, ended, recovered: last }
    }

    /// What `node`, whose orphan this node is, is refused by.
    pub(crate) fn refuse_self(self, node: NodeId) -> Refusal {
        let Self { depends_on, ended, last } = self;
        Refusal::Orphaned { node, depends_on, ended, recovered: last }
    }
}

/// Adds the end of a life, forgetting what it says better than earlier ones and the oldest past the limit.
pub(crate) fn add_end(
    ends: &mut Vec<(Incarnation, DeliveryIndex)>,
    incarnation: Incarnation,
    last: DeliveryIndex,
) {
    ends.retain(|&(ended, delivery)| ended < incarnation && delivery < last);
    ends.push((incarnation, last));
    if ends.len() > ENDS_MAX {
        ends.remove(0);
    }
}

pub(crate) fn put_ends(ends: &[(Incarnation, DeliveryIndex)], out: &mut Vec<u8>) {
    let count = u16::try_from(ends.len()).expect("the ends are pruned to their limit");
    out.extend_from_slice(&count.to_le_bytes());
    for (incarnation, delivery) in ends {
        out.extend_from_slice(&incarnation.0.to_le_bytes());
        out.extend_from_slice(&delivery.0.to_le_bytes());
    }
}

pub(crate) fn take_ends(from: &mut Reader<'_>) -> Result<Vec<(Incarnation, DeliveryIndex)>, FrameError> {
    let count = usize::from(from.u16()?);
    if count > ENDS_MAX {
        return Err(FrameError::Ends { count });
    }
    let ends: Result<Vec<_>, Truncated> =
        (0..count).map(|_| Ok((Incarnation(from.u64()?), DeliveryIndex(from.u64()?)))).collect();
    Ok(ends?)
}

pub(crate) fn take_id(from: &mut Reader<'_>) -> Result<[u8; 16], Truncated> {
    Ok(from.take(16)?.try_into().expect("16 bytes were taken"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(incarnation: u64, delivery: u64) -> Point {
        Point { incarnation: Incarnation(incarnation), delivery: DeliveryIndex(delivery) }
    }

    #[test]
    fn a_state_is_lost_when_its_life_or_a_later_one_ended_below_it() {
        let mut ends = Vec::new();
        add_end(&mut ends, Incarnation(1), DeliveryIndex(10));
        add_end(&mut ends, Incarnation(2), DeliveryIndex(20));
        assert_eq!(Orphan::of(point(1, 10), &ends), None);
        assert_eq!(Orphan::of(point(1, 11), &ends).map(|orphan| orphan.last), Some(DeliveryIndex(10)));
        assert_eq!(Orphan::of(point(2, 11), &ends), None);
        assert_eq!(Orphan::of(point(3, 99), &ends), None);
        // Life 3 went back below what life 1 had reached: that is lost now, too.
        add_end(&mut ends, Incarnation(3), DeliveryIndex(5));
        assert_eq!(ends, [(Incarnation(3), DeliveryIndex(5))]);
        assert!(Orphan::of(point(1, 10), &ends).is_some());
        assert!(Orphan::of(point(1, 5), &ends).is_none());
    }

    #[test]
    fn the_ends_stay_within_their_limit() {
        let mut ends = Vec::new();
        for life in 0..1000 {
            add_end(&mut ends, Incarnation(life), DeliveryIndex(life));
        }
        assert_eq!(ends.len(), ENDS_MAX);
        assert_eq!(ends.last(), Some(&(Incarnation(999), DeliveryIndex(999))));
    }
}
