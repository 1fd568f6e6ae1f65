//! The channel: all links of a node.

use crate::frame::{Frame, Message};
use crate::hello::{Declared, Hello, Identity, Orphan};
use crate::limits::Limits;
use crate::link::{Link, Stage};
use crate::refusal::Refusal;
use crate::sender_log::Entry;
use crate::session::Session;
use crate::spill::{Body, Spilling};
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId, Ssn};
use mainstay_types::snapshot::SnapshotId;

pub use crate::link::Stats;
pub use crate::memory::Retained;

/// All links of one node: what it sent and may have to send again, and how far it has received.
///
/// Two roads lead here. A *life* begins with [`Self::new`], [`Self::restore`] and a replay that calls [`Self::append`],
/// [`Self::ordered`] and [`Self::delivered`] like the first run; it recovers until [`Self::recovered`]. A *session* with a peer
/// begins with [`Self::connected`] and [`Self::greeted`]; what arrived in an earlier session and was not delivered comes
/// again in it, so that the caller drops what it holds of that.
///
/// Every call that names a peer of this node's own choice expects it to be in the list of peers; only [`Self::check`] and
/// [`Self::greeted`] take a stranger's name.
#[derive(Debug)]
pub struct Channel {
    pub(crate) identity: Identity,
    pub(crate) declared: Declared,
    pub(crate) limits: Limits,
    /// By node.
    pub(crate) links: Vec<Link>,
    /// This node's ended lives.
    pub(crate) ends: Vec<(Incarnation, DeliveryIndex)>,
    /// The highest snapshot that this node took part in.
    pub(crate) snapshot: SnapshotId,
    /// The line at which its service was exchanged together with those of all other nodes.
    pub(crate) line: SnapshotId,
    /// The line that its last life stopped at: that of whoever goes on in another version.
    pub(crate) stopped_at: SnapshotId,
    pub(crate) recovering: bool,
    /// It asks in every greeting for what its peers retain.
    pub(crate) collecting: bool,
    /// Its life began with a crash.
    pub(crate) crashed: bool,
    pub(crate) agreeing: bool,
    pub(crate) orphans_roll_back: bool,
    attached: Vec<u8>,
    pub(crate) spilling: Spilling,
}

/// What became of a message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next one: deliver it, then say so with [`Channel::delivered`].
    Next,
    /// It was delivered before. If it is covered, the channel answers its sender; otherwise the logging protocol is to tell its
    /// place again.
    Duplicate {
        /// Whether this node never needs it again.
        covered: bool,
    },
}

/// A session that both sides have begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeted {
    /// The life of the peer.
    pub incarnation: Incarnation,
    /// Whether this life of it is new to this node.
    pub reborn: bool,
    /// Whether it collects: after [`Channel::frames_for`] the caller sends what its logging protocol remembers, then what
    /// [`Channel::close_collection`] gives.
    pub collecting: bool,
    /// This node depends on a state that the peer lost. Refused unless [`Channel::let_orphans_roll_back`].
    pub orphan: Option<Orphan>,
    /// The peer depends on a state that this node lost. Refused likewise.
    pub peer_orphan: Option<Orphan>,
}

/// Whether frames wait to be sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owed {
    /// There are none, or there is no session.
    Nothing,
    /// Acknowledgements that can wait for a frame to ride with, or for a quiet moment; not for ever.
    Later,
    /// The peer waits for them.
    Now,
}

/// A message that cannot be sent. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsendable {
    /// It is addressed to this node itself or to none of the list.
    #[error("{to} is not another node of this cluster's list")]
    Stranger {
        /// To whom.
        to: NodeId,
    },
    /// Its body is too long.
    #[error("a message of {bytes} bytes is longer than the limit of {limit} bytes")]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// [`Limits::message_bytes_max`].
        limit: u32,
    },
}

impl Channel {
    /// The links of a node without a history, to all `peers` but itself. It recovers until [`Self::recovered`].
    #[must_use]
    pub fn new(identity: Identity, declared: Declared, peers: &[NodeId], limits: Limits) -> Self {
        let mut peers: Vec<NodeId> = peers.iter().copied().filter(|peer| *peer != identity.node).collect();
        peers.sort_unstable();
        peers.dedup();
        let links = peers.into_iter().map(Link::new).collect();
        Self {
            identity,
            declared,
            limits,
            links,
            ends: Vec::new(),
            snapshot: SnapshotId::NONE,
            line: SnapshotId::NONE,
            stopped_at: SnapshotId::NONE,
            recovering: true,
            collecting: false,
            crashed: false,
            agreeing: false,
            orphans_roll_back: false,
            attached: Vec::new(),
            spilling: Spilling::default(),
        }
    }

    /// A peer that holds more than this node's recovered history sent is no sign of too many failures, but an orphan that rolls back
    /// by itself once it is told: sessions with it are opened, and no message is sent on them.
    pub fn let_orphans_roll_back(&mut self) {
        self.orphans_roll_back = true;
    }

    /// Who this node says it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The peers, ascending.
    pub fn peers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.links.iter().map(|link| link.peer)
    }

    // Sending

    /// Whether a message of that length could be appended.
    ///
    /// # Errors
    /// [`Unsendable`].
    pub fn check_sendable(&self, to: NodeId, body_bytes: usize) -> Result<(), Unsendable> {
        if self.find(to).is_none() {
            return Err(Unsendable::Stranger { to });
        }
        let (bytes, limit) = (body_bytes as u64, self.limits.message_bytes_max);
        if bytes > u64::from(limit) {
            return Err(Unsendable::TooLarge { bytes, limit });
        }
        Ok(())
    }

    /// Retains a message that the handler emitted in its delivery `origin`, and numbers it. A replay gives the same numbers.
    ///
    /// # Panics
    /// If `to` is no peer, or the body is longer than the limit in a life that does not recover: see [`Self::check_sendable`].
    #[inline]
    pub fn append(&mut self, to: NodeId, origin: Point, stamp: Vec<u8>, body: Box<[u8]>) -> Ssn {
        assert!(
            self.recovering || self.check_sendable(to, body.len()).is_ok(),
            "an unsendable message is refused to the handler"
        );
        self.link_mut(to).log.append(Entry { origin, place: None, stamp, body: Body::Memory(body) })
    }

    /// The gate let the messages to `to` up to `ssn` leave: they are sent as soon as session and window allow. Never taken back.
    pub fn release(&mut self, to: NodeId, ssn: Ssn) {
        let link = self.link_mut(to);
        assert!(ssn <= link.log.appended(), "only what was emitted can be released");
        link.released = link.released.max(ssn);
    }

    /// Keeps the place that `to` gave the message beside it, to be told when `to` collects. A message that is needed no
    /// more is passed over; one that a recovering node has yet to emit again is waited for.
    pub fn ordered(&mut self, to: NodeId, ssn: Ssn, place: Place) {
        let (recovering, limit) = (self.recovering, self.limits.log_bytes_max);
        let link = self.link_mut(to);
        let emitted = ssn <= link.log.appended();
        // What is not emitted yet is the peer's word only, so that its room has a limit.
        if emitted || (recovering && link.log.bytes() < limit) {
            link.log.ordered(ssn, place);
        }
    }

    /// The body of a message that is retained.
    #[must_use]
    pub fn body(&self, to: NodeId, ssn: Ssn) -> Option<&[u8]> {
        self.link(to).log.entry(ssn).map(|entry| &*entry.body)
    }

    /// The highest number given to a message to `to`.
    #[must_use]
    pub fn appended(&self, to: NodeId) -> Ssn {
        self.link(to).log.appended()
    }

    /// The messages retained for `to`, in order, each with the delivery that emitted it.
    pub fn emitted(&self, to: NodeId) -> impl Iterator<Item = (Ssn, Point)> + '_ {
        let log = &self.link(to).log;
        (log.covered().0 + 1..).map(Ssn).zip(log.entries().map(|entry| entry.origin))
    }

    // Receiving

    /// A message arrived: whether it is the one to deliver next. Does not yet count as delivered.
    ///
    /// # Errors
    /// [`Refusal`]; it was not taken in, and the session is to be ended.
    #[inline]
    pub fn arrived(&mut self, from: NodeId, message: &Message<'_>) -> Result<Arrival, Refusal> {
        let limits = self.limits;
        let link = self.link_mut(from);
        let sized = [
            ("message", message.body, limits.message_bytes_max),
            ("stamp", message.stamp, limits.control_bytes_max),
            ("attachment", message.attached, limits.control_bytes_max),
        ];
        if let Some(&(what, bytes, limit)) =
            sized.iter().find(|(_, bytes, limit)| bytes.len() > *limit as usize)
        {
            return Err(Refusal::TooLarge { node: from, what, bytes: bytes.len() as u64, limit });
        }
        let (delivered, covered) = (link.delivered, link.covered);
        let receiving = &mut link.session("a message")?.receiving;
        let expected = receiving.expected();
        let ssn = message.ssn;
        if ssn == expected {
            let length = u32::try_from(message.body.len()).expect("it is within its limit");
            receiving.arrive(from, length)?;
        } else if ssn > delivered || ssn > expected || ssn == Ssn(0) {
            return Err(Refusal::OutOfOrder { node: from, expected, found: ssn });
        }
        if ssn > delivered {
            return Ok(Arrival::Next);
        }
        receiving.tell_again();
        link.stats.duplicates += 1;
        Ok(Arrival::Duplicate { covered: ssn <= covered })
    }

    /// The message `ssn` of `from` was delivered; also in a replay. `origin` is the sender's delivery that emitted it.
    ///
    /// # Panics
    /// If it is not the one behind the last one delivered: messages of a link are delivered in order.
    #[inline]
    pub fn delivered(&mut self, from: NodeId, ssn: Ssn, origin: Point) {
        let link = self.link_mut(from);
        assert_eq!(ssn, link.delivered.next(), "messages of a link are delivered in order, without a gap");
        link.delivered = ssn;
        link.seen = link.seen.max(origin);
        link.incarnation = link.incarnation.max(origin.incarnation);
    }

    /// This node never needs the messages of `from` up to `ssn` again: its durable history covers them. The sender is told.
    ///
    /// # Panics
    /// If they are not delivered yet.
    pub fn cover(&mut self, from: NodeId, ssn: Ssn) {
        let link = self.link_mut(from);
        assert!(ssn <= link.delivered, "only what was delivered can be covered");
        link.covered = link.covered.max(ssn);
    }

    /// The highest message of `from` that was delivered.
    #[must_use]
    pub fn delivered_up_to(&self, from: NodeId) -> Ssn {
        self.link(from).delivered
    }

    /// What [`Self::cover`] may be told once everything of this moment is durable: each peer, and its highest message delivered.
    pub fn cursors(&self) -> impl Iterator<Item = (NodeId, Ssn)> + '_ {
        self.links.iter().map(|link| (link.peer, link.delivered))
    }

    // Sessions

    /// Whether the one who greets may be talked to. Changes nothing: a node that accepts a connection asks this before
    /// [`Self::connected`], lest a stranger's connection end the session of the one it claims to be.
    ///
    /// # Errors
    /// [`Refusal`], to be sent back as the last frame.
    pub fn check(&self, theirs: &Hello) -> Result<(), Refusal> {
        let node = theirs.identity.node;
        // A stranger of another cluster is told that first.
        if theirs.identity.cluster != self.identity.cluster {
            let (expected, found) = (self.identity.cluster, theirs.identity.cluster);
            return Err(Refusal::OtherCluster { node, expected, found });
        }
        let link = self.find(node).ok_or(Refusal::Stranger { node })?;
        self.links[link].check(&self.identity, theirs)?;
        let (ours, theirs) = ((self.line, self.declared.version), (theirs.line, theirs.declared.version));
        // One of them was exchanged at a line that the other did not stop at: neither reads what the other's version tells.
        if ours.0 != theirs.0 && ours.1 != theirs.1 {
            return Err(Refusal::OtherLine { node, ours, theirs });
        }
        Ok(())
    }

    /// A connection to `peer` is there. Ends the session on an earlier one; returns what to send on this one first.
    pub fn connected(&mut self, peer: NodeId) -> Hello {
        let collecting = self.collecting;
        let greeting = self.link_mut(peer).greet(collecting);
        Hello {
            identity: self.identity,
            to: peer,
            declared: self.declared,
            received: greeting.received,
            covered: greeting.covered,
            collecting: greeting.collecting,
            crashed: self.crashed,
            rejoins: self.crashed && !self.link(peer).rejoined,
            agreeing: self.agreeing,
            window_messages_max: self.limits.window_messages_max,
            window_bytes_max: self.limits.window_bytes_max,
            message_bytes_max: self.limits.message_bytes_max,
            seen: self.link(peer).seen,
            snapshot: self.snapshot,
            line: self.line,
            ends: self.ends.clone(),
        }
    }

    /// The first frame on the connection to `peer` came. Opens the session.
    ///
    /// Which policies go together is the caller's to say, before this, with [`Refusal::Policies`].
    ///
    /// # Errors
    /// [`Refusal`], to be sent back as the last frame; the session is not open, and everything else is as it was.
    pub fn greeted(&mut self, peer: NodeId, theirs: &Hello) -> Result<Greeted, Refusal> {
        self.check(theirs)?;
        if theirs.identity.node != peer {
            return Err(Refusal::Misaddressed { meant: peer, reached: theirs.identity.node });
        }
        let (limits, may_be_ahead) = (self.limits, self.recovering || self.orphans_roll_back);
        let peer_orphan = Orphan::of(theirs.seen, &self.ends);
        let orphan = Orphan::of(self.link(peer).seen, &theirs.ends);
        self.note_told(peer, theirs);
        if !self.orphans_roll_back {
            // The numbers of messages do not show it: a new life may have given them again.
            peer_orphan.map_or(Ok(()), |lost| Err(lost.refuse_peer(peer)))?;
            orphan.map_or(Ok(()), |lost| Err(lost.refuse_self(peer)))?;
        }
        let reborn = self.link_mut(peer).open(theirs, &limits, may_be_ahead)?;
        Ok(Greeted {
            incarnation: theirs.identity.incarnation,
            reborn,
            collecting: theirs.collecting,
            orphan,
            peer_orphan,
        })
    }

    /// The connection to `peer` ended, or is to be used no more.
    pub fn disconnected(&mut self, peer: NodeId) {
        self.link_mut(peer).stage = Stage::Apart;
    }

    /// Forgets what was sent to `peer` in the session that ends now, as a sender does that takes the transport's word for the
    /// receiver's: only to show what that loses.
    pub fn trust_transport(&mut self, peer: NodeId) {
        let link = self.link_mut(peer);
        if let Stage::Open(session) = &link.stage {
            let sent = session.sending.sent();
            link.log.cover(sent);
        }
    }

    /// The life of `peer` that a session is open with.
    #[must_use]
    pub fn session(&self, peer: NodeId) -> Option<Incarnation> {
        match &self.link(peer).stage {
            Stage::Open(session) => Some(session.incarnation),
            Stage::Apart | Stage::Greeting(_) => None,
        }
    }

    /// Whether [`Self::frames_for`] has something for `peer`, and whether it hurries.
    #[must_use]
    pub fn owed(&self, peer: NodeId) -> Owed {
        let link = self.link(peer);
        let Some(acknowledgement) = link.owed() else { return Owed::Nothing };
        if link.has_to_send() || acknowledgement.urgent || link.pinned(&self.limits).is_some() {
            return Owed::Now;
        }
        match acknowledgement.received.is_some() || acknowledgement.covered.is_some() {
            true => Owed::Later,
            false => Owed::Nothing,
        }
    }

    /// Gives `emit` every frame that may be sent to `peer` now, in order, each once in a session: acknowledgements, then the
    /// released messages that the window lets through. `attach` writes what rides along with the next message.
    pub fn frames_for(
        &mut self,
        peer: NodeId,
        mut attach: impl FnMut(&mut Vec<u8>),
        mut emit: impl FnMut(Frame<'_>),
    ) {
        let (place, limits) = (self.expect(peer), self.limits);
        let (link, attached) = (&mut self.links[place], &mut self.attached);
        let pinned = link.pinned(&limits);
        let Some(acknowledgement) = link.owed() else { return };
        if let Stage::Open(Session { sending, receiving, .. }) = &mut link.stage {
            receiving.told(acknowledgement);
            if pinned.is_some() {
                sending.told_pinned = sending.received();
            }
        }
        if let Some(ssn) = acknowledgement.received {
            emit(Frame::Received { ssn });
        }
        if let Some(ssn) = acknowledgement.covered {
            emit(Frame::Covered { ssn });
        }
        if let Some(bytes) = pinned {
            emit(Frame::Pinned { bytes });
        }
        while let Some(ssn) = link.next_to_send() {
            let Entry { origin, place, stamp, body } =
                link.log.entry(ssn).expect("what may be sent is retained");
            attached.clear();
            attach(attached);
            emit(Frame::Message(Message { ssn, origin: *origin, place: *place, stamp, attached, body }));
        }
    }

    /// The peer's history holds this node's messages up to `ssn`.
    ///
    /// # Errors
    /// [`Refusal`]; nothing was changed, and the session is to be ended.
    pub fn received(&mut self, peer: NodeId, ssn: Ssn) -> Result<(), Refusal> {
        self.link_mut(peer).credit("Received", ssn)
    }

    /// The peer never needs this node's messages up to `ssn` again: they are dropped.
    ///
    /// # Errors
    /// [`Refusal`]; nothing was changed, and the session is to be ended.
    pub fn covered(&mut self, peer: NodeId, ssn: Ssn) -> Result<(), Refusal> {
        let link = self.link_mut(peer);
        link.credit("Covered", ssn)?;
        link.log.cover(ssn);
        Ok(())
    }

    // Recovery

    /// Until [`Self::recovered`] this node asks in every session for what its peer retains; before [`Self::connected`]. What an
    /// earlier session told counts no more in the next: the peer may have failed in between, or have had more to say.
    pub fn collect(&mut self) {
        self.collecting = true;
    }

    /// The peer says that it has told everything. From one that recovers itself more comes until [`Self::peer_recovered`].
    ///
    /// # Errors
    /// [`Refusal`], if it was not asked.
    pub fn collected(&mut self, peer: NodeId) -> Result<(), Refusal> {
        let receiving = &mut self.link_mut(peer).session("Collected")?.receiving;
        match receiving.collected() {
            true => Ok(()),
            false => Err(Refusal::OutOfTurn { node: peer, what: "Collected", when: "without being asked" }),
        }
    }

    /// The peer was recovering when it greeted, and says that it has sent again all that its history sent, and which of its lives ended where.
    ///
    /// # Errors
    /// [`Refusal`], if it was not recovering.
    pub fn peer_recovered(
        &mut self,
        peer: NodeId,
        ends: &[(Incarnation, DeliveryIndex)],
    ) -> Result<(), Refusal> {
        let receiving = &mut self.link_mut(peer).session("Recovered")?.receiving;
        match receiving.peer_recovered() {
            true => {
                self.link_mut(peer).rejoined = true;
                self.link_mut(peer).peer_ends = ends.to_vec();
                Ok(())
            }
            false => {
                Err(Refusal::OutOfTurn { node: peer, what: "Recovered", when: "without having recovered" })
            }
        }
    }

    /// Everything there is for a peer that collects was sent: what to send last. From now on the window binds again, unless this node
    /// recovers: then its replay goes on sending what the peer waits for, and the window binds from [`Self::close_recovery`] on.
    ///
    /// # Panics
    /// If retained messages that may be sent were not: [`Self::frames_for`] comes first.
    pub fn close_collection(&mut self, peer: NodeId) -> Frame<'static> {
        let recovering = self.recovering;
        let link = self.link_mut(peer);
        assert!(!link.has_to_send(), "the messages come before the end of the collection");
        if let Stage::Open(Session { sending, .. }) = &mut link.stage {
            sending.peer_collects &= recovering;
        }
        Frame::Collected
    }

    /// This node was recovering when the session began, and has sent again all that it ever sent: what to send behind it.
    ///
    /// # Panics
    /// If a peer that collects was not sent all of it: [`Self::frames_for`] comes first, and [`Self::close_collection`].
    pub fn close_recovery(&mut self, peer: NodeId) -> Frame<'static> {
        let link = self.link_mut(peer);
        if let Stage::Open(Session { sending, .. }) = &mut link.stage {
            sending.peer_collects = false;
        }
        Frame::Recovered { ends: self.ends.clone() }
    }

    /// What the link to `peer` has done in this life.
    #[must_use]
    pub fn stats(&self, peer: NodeId) -> Stats {
        self.link(peer).stats
    }

    #[inline]
    pub(crate) fn find(&self, peer: NodeId) -> Option<usize> {
        self.links.binary_search_by_key(&peer, |link| link.peer).ok()
    }

    fn expect(&self, peer: NodeId) -> usize {
        self.find(peer).expect("the composer names only nodes of the list of peers")
    }

    #[inline]
    pub(crate) fn link(&self, peer: NodeId) -> &Link {
        &self.links[self.expect(peer)]
    }

    #[inline]
    pub(crate) fn link_mut(&mut self, peer: NodeId) -> &mut Link {
        let place = self.expect(peer);
        &mut self.links[place]
    }
}
