//! Causal logging with parameter `f`: the determinants of deliveries ride on messages until `f + 1` nodes hold them.
//!
//! Source: family-based logging, Alvisi, Hoppe and Marzullo, FTCS-23 (1993); the condition that it keeps, for every
//! delivery `e` while at most `f` nodes are down (Alvisi and Marzullo 1998): `|Log(e)| <= f` implies `Depend(e)` is within
//! `Log(e)`. So no message waits, and nobody who survives depends on what nobody remembers.
//!
//! ```text
//!   own delivery ─> determinant log ─ attach ─> rides on every message until stable
//!   arrived ──────> (by position)   <─ Held ──  the peer has taken the log up to here
//!   needed ───────> Carry to f peers, when no traffic does it
//!   stable = f + 1 nodes hold it, or its owner's journal or checkpoint does; prefix of the log stable = recoverable
//! ```
//!
//! What a node holds is known from that node alone: that it told the determinant, owns it, or said `Held`. Nobody passes
//! on what others are said to hold, because that could have been true before a crash of theirs and false after it.
//!
//! A recovering node is told *everything* its peers know: what is its own, so that it can replay it; and what is others', so that
//! whoever counted on its copy is right again. It counts as down until then.
//!
//! What this protocol asks of the composer: [`Logging::recovered`] at every start, also the first; [`Logging::safe`] before a
//! mark of the journal is published; a node that itself collects answers a collecting peer only after every peer that is not
//! collecting has answered it, and an answer counts no more when its giver has begun another life before the collecting ended.

mod intake;
mod link;
mod log;
mod offer;
mod positions;
mod wire;

use crate::logging::{Admission, Logging, Malformed, Source, Wish};
use intake::{Taken, Way};
use link::{Link, Standing};
use log::{Log, bit};
use mainstay_types::codec::Reader;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use offer::tell;
use std::collections::VecDeque;
pub use wire::INPUT_BYTES_MAX;
use wire::{Determinant, RunWriter, What, ended, put_varint, tag, varint};

/// How many nodes a cluster under causal logging has at most; their ids are below it.
pub const NODES_MAX: u32 = u64::BITS;

/// What the determinants of other nodes may take in memory unless said otherwise, in bytes. Beyond it nothing that brings more is taken in until
/// an owner's checkpoint covers some: [`Causal::heaviest`] names the one to look at.
pub const FOREIGN_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// First byte of what [`Logging::save`] writes.
const SAVED_VERSION: u8 = 1;

/// A cluster in which causal logging cannot keep its promise. Nothing was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Too few nodes to keep the copies.
    #[error("surviving {f} failures takes {} nodes under causal logging, the cluster has {nodes}", u32::from(*f) + 1)]
    TooFewNodes {
        /// The parameter.
        f: u8,
        /// How many there are, this one included.
        nodes: usize,
    },
    /// With no failure planned for there is nothing to log.
    #[error("causal logging plans for at least one failure")]
    NoFailure,
    /// A node's id does not fit the set of holders.
    #[error("{node} is beyond the {NODES_MAX} nodes of a cluster under causal logging")]
    NodeBeyond {
        /// Which.
        node: NodeId,
    },
}

/// One node's side of the protocol.
#[derive(Debug)]
pub struct Causal {
    me: NodeId,
    f: usize,
    /// Bit per node.
    cluster: u64,
    /// This life, and how far it recovered; `None` while it does.
    began: Option<(Incarnation, DeliveryIndex)>,
    log: Log,
    links: Vec<Link>,
    safe: Lsn,
    /// Own inputs that the journal has not made safe yet: end of the record, and position.
    unsafe_inputs: VecDeque<(Lsn, u64)>,
    /// Own inputs too long to be carried, not safe yet. Nothing of this node behind the first is told to anybody.
    barriers: VecDeque<(Lsn, u64)>,
    flush_asked: Lsn,
    needed: DeliveryIndex,
    covered: DeliveryIndex,
    foreign_bytes_max: u64,
    decoded: Vec<Determinant>,
    runs: Vec<u8>,
}

impl Causal {
    /// The node `me` of a cluster whose other nodes under causal logging are `peers`, planning for `f` failures at a time.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn new(me: NodeId, peers: &[NodeId], f: u8) -> Result<Self, Unfit> {
        let mut others: Vec<NodeId> = peers.iter().copied().filter(|&peer| peer != me).collect();
        others.sort_unstable();
        others.dedup();
        if f == 0 {
            return Err(Unfit::NoFailure);
        }
        if others.len() < usize::from(f) {
            return Err(Unfit::TooFewNodes { f, nodes: others.len() + 1 });
        }
        if let Some(&node) = others.iter().chain([&me]).find(|node| node.0 >= NODES_MAX) {
            return Err(Unfit::NodeBeyond { node });
        }
        Ok(Self {
            me,
            f: usize::from(f),
            cluster: others.iter().fold(bit(me), |set, &peer| set | bit(peer)),
            began: None,
            log: Log::new(me, f),
            links: others.into_iter().map(Link::new).collect(),
            safe: Lsn::ZERO,
            unsafe_inputs: VecDeque::new(),
            barriers: VecDeque::new(),
            flush_asked: Lsn::ZERO,
            needed: DeliveryIndex(0),
            covered: DeliveryIndex(0),
            foreign_bytes_max: FOREIGN_BYTES_MAX,
            decoded: Vec::new(),
            runs: Vec::new(),
        })
    }

    /// Limits what the determinants of other nodes may take in memory, in bytes, instead of [`FOREIGN_BYTES_MAX`].
    #[must_use]
    pub fn with_foreign_bytes_max(mut self, bytes: u64) -> Self {
        self.foreign_bytes_max = bytes;
        self
    }

    /// Whether this node could give `owner` back its delivery `index`: one element of Log(e).
    #[must_use]
    pub fn knows(&self, owner: NodeId, index: DeliveryIndex) -> bool {
        self.log.knows(owner, index)
    }

    /// How many determinants this node holds.
    #[must_use]
    pub fn determinants(&self) -> usize {
        self.log.known()
    }

    /// The other node whose determinants take most memory here, and how many bytes: it should take a checkpoint.
    #[must_use]
    pub fn heaviest(&self) -> Option<(NodeId, u64)> {
        self.log.heaviest()
    }

    fn link(&self, peer: NodeId) -> Result<usize, Malformed> {
        self.links
            .binary_search_by_key(&peer, |link| link.peer)
            .map_err(|_| wire::never(peer, "node", u64::from(peer.0)))
    }

    fn of(&self, owner: NodeId) -> &Link {
        let at = self.link(owner).expect("owners of determinants were checked to be peers");
        &self.links[at]
    }
}

impl Logging for Causal {
    fn delivered(&mut self, place: Place, source: &Source) {
        match source {
            Source::Message { from, ssn, origin, .. } => {
                self.log.push_own(place, What::Message { from: *from, ssn: *ssn }, *origin);
            }
            Source::Local { end, record } => {
                let safe = *end <= self.safe;
                // A copy is of no use once the record is safe, and one that is too long is not made.
                let carried = !safe && record.len() <= INPUT_BYTES_MAX;
                let what = What::Input { end: *end, record: carried.then(|| record.clone()) };
                let position = self.log.push_own(place, what, Point::default());
                if safe {
                    self.log.make_stable(position);
                    self.log.settle();
                } else {
                    self.unsafe_inputs.push_back((*end, position));
                    if !carried {
                        self.barriers.push_back((*end, position));
                    }
                }
            }
        }
    }

    /// Nothing: what a message depends on rides along with it until it is stable, and need not be said twice.
    fn stamp(&mut self, _out: &mut Vec<u8>) {}

    fn attach(&mut self, to: NodeId, out: &mut Vec<u8>) {
        // A peer under another policy gets only messages that have waited until nothing they depend on is unstable.
        if let Ok(link) = self.link(to) {
            self.put_batch(link, usize::MAX, out);
        }
    }

    fn arrived(
        &mut self,
        from: NodeId,
        origin: Point,
        _stamp: &[u8],
        attached: &[u8],
        wishes: &mut Vec<Wish>,
    ) -> Result<Admission, Malformed> {
        let Ok(link) = self.link(from) else { return Ok(Admission::Deliver) };
        let view = &self.links[link];
        let taken = match attached.is_empty() {
            // It depends on what was told before it, which was left untaken.
            true if view.taken < view.seen => Taken::NotYet,
            true => Taken::Yes,
            false => self.take_batch(from, attached, Way::Attached, wishes)?,
        };
        if self.links[link].standing(origin.incarnation, origin.delivery) == Standing::Lost {
            return Ok(Admission::Orphan);
        }
        Ok(match taken {
            Taken::Yes => Admission::Deliver,
            Taken::NotYet => Admission::NotYet,
            Taken::Orphan => Admission::Orphan,
        })
    }

    fn carried(&mut self, from: NodeId, attached: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        if !attached.is_empty() {
            self.take_batch(from, attached, Way::Attached, wishes)?;
        }
        Ok(())
    }

    /// 0: what a message depends on rides along.
    fn waits_for(&self, _to: NodeId, _index: DeliveryIndex) -> DeliveryIndex {
        DeliveryIndex(0)
    }

    /// Nothing: a sender does not keep places under this policy.
    fn duplicate(&mut self, _from: NodeId, _ssn: Ssn, _wishes: &mut Vec<Wish>) {}

    fn control(&mut self, from: NodeId, body: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        let link = self.link(from)?;
        let mut reader = Reader::new(body);
        let kind = reader.u8()?;
        match kind {
            tag::CARRY => {
                self.take_batch(from, reader.rest(), Way::Carried, wishes)?;
            }
            tag::RETOLD => {
                self.take_batch(from, reader.rest(), Way::Retold, wishes)?;
            }
            tag::HELD => {
                let taken = varint(&mut reader)?;
                let stable = wire::delivery(from, &mut reader)?;
                ended(&reader)?;
                self.take_held(link, taken, stable)?;
            }
            tag::AGAIN => {
                let taken = varint(&mut reader)?;
                ended(&reader)?;
                self.take_held(link, taken, DeliveryIndex(0))?;
                self.tell_again(link, taken, wishes);
            }
            tag::COVERED => {
                let index = wire::delivery(from, &mut reader)?;
                ended(&reader)?;
                self.take_covered(link, index, wishes);
            }
            tag::RECOVERED => {
                let incarnation = Incarnation(varint(&mut reader)?);
                let last = wire::delivery(from, &mut reader)?;
                ended(&reader)?;
                self.take_recovered(link, incarnation, last, wishes)?;
            }
            tag => return Err(Malformed::Tag { tag }),
        }
        Ok(())
    }

    fn safe(&mut self, lsn: Lsn) {
        self.safe = self.safe.max(lsn);
        while let Some(&(end, position)) = self.unsafe_inputs.front()
            && end <= self.safe
        {
            self.unsafe_inputs.pop_front();
            self.log.make_stable(position);
        }
        while self.barriers.front().is_some_and(|&(end, _)| end <= self.safe) {
            self.barriers.pop_front();
        }
        self.log.settle();
    }

    fn message_waits(&self) -> Option<Lsn> {
        self.barriers.back().map(|&(end, _)| end)
    }

    fn needed(&mut self, index: DeliveryIndex, _wishes: &mut Vec<Wish>) {
        // Told at the end of the round: messages that leave until then may do it.
        self.needed = self.needed.max(index);
    }

    fn flush(&mut self, wishes: &mut Vec<Wish>) {
        if self.needed > self.log.recoverable() {
            self.offer_needed(wishes);
        }
        let stable = self.log.own_stable();
        for view in self.links.iter_mut().filter(|link| link.connected) {
            if view.taken > view.told {
                view.told = view.taken;
                wishes.push(tell(view.peer, tag::HELD, &[view.taken, stable.0]));
            }
            if self.covered > view.covered_told {
                view.covered_told = self.covered;
                wishes.push(tell(view.peer, tag::COVERED, &[self.covered.0]));
            }
        }
    }

    fn recoverable(&self) -> DeliveryIndex {
        self.log.recoverable()
    }

    fn connected(&mut self, peer: NodeId, incarnation: Incarnation, wishes: &mut Vec<Wish>) {
        let Ok(link) = self.link(peer) else { return };
        if self.links[link].connect(incarnation) {
            self.log.forgotten_by(peer);
        }
        if let Some((life, last)) = self.began {
            wishes.push(tell(peer, tag::RECOVERED, &[life.0, last.0]));
        }
    }

    fn disconnected(&mut self, peer: NodeId) {
        if let Ok(link) = self.link(peer) {
            self.links[link].connected = false;
        }
    }

    fn ended(&mut self, peer: NodeId, incarnation: Incarnation, last: DeliveryIndex, wishes: &mut Vec<Wish>) {
        if let Ok(link) = self.link(peer) {
            self.take_loss(link, incarnation.next(), last, wishes);
        }
    }

    fn collect(&mut self, peer: NodeId, wishes: &mut Vec<Wish>) {
        if let Ok(link) = self.link(peer) {
            self.tell_everything(link, wishes);
        }
    }

    fn recovered(&mut self, incarnation: Incarnation, last: DeliveryIndex, wishes: &mut Vec<Wish>) {
        assert!(last == self.log.own_last(), "what was recovered is what was replayed");
        self.began = Some((incarnation, last));
        self.log.drop_not_replayed();
        self.log.settle();
        for link in self.links.iter().filter(|link| link.connected) {
            wishes.push(tell(link.peer, tag::RECOVERED, &[incarnation.0, last.0]));
        }
    }

    fn checkpointed(&mut self, index: DeliveryIndex) {
        if index <= self.covered {
            return;
        }
        self.covered = index;
        // The checkpoint holds what this node knew of others, so that whoever of them recovers is told it also after a crash of
        // this node.
        if let Some(position) = self.log.last_position_upto(index) {
            self.log.make_stable_upto(position);
            self.barriers.retain(|&(_, barrier)| barrier > position);
        }
        self.log.drop_covered(self.me, index);
        self.log.settle();
    }

    fn save(&self, out: &mut Vec<u8>) {
        out.push(SAVED_VERSION);
        put_varint(out, self.log.own_last().0);
        put_varint(out, self.links.len() as u64);
        for link in &self.links {
            put_varint(out, u64::from(link.peer.0));
            put_varint(out, link.covered.0);
            put_varint(out, link.recoveries.len() as u64);
            for (incarnation, last) in &link.recoveries {
                put_varint(out, incarnation.0);
                put_varint(out, last.0);
            }
        }
        let mut writer = RunWriter::default();
        for entry in self.log.behind(0).filter(|entry| entry.owner != self.me && !entry.gone()) {
            writer.put(entry.owner, &entry.place, &entry.what, out);
        }
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let (me, mut reader) = (self.me, Reader::new(bytes));
        let version = reader.u8()?;
        if version != SAVED_VERSION {
            return Err(Malformed::Tag { tag: version });
        }
        let last = wire::delivery(me, &mut reader)?;
        let links = varint(&mut reader)?;
        let mut saved = Vec::new();
        for _ in 0..links {
            let number = varint(&mut reader)?;
            let covered = wire::delivery(me, &mut reader)?;
            let mut recoveries = Vec::new();
            for _ in 0..varint(&mut reader)? {
                let incarnation = Incarnation(varint(&mut reader)?);
                recoveries.push((incarnation, wire::delivery(me, &mut reader)?));
            }
            let peer = u32::try_from(number).map(NodeId).map_err(|_| wire::never(me, "node", number))?;
            saved.push((self.link(peer)?, covered, recoveries));
        }
        let mut decoded = Vec::new();
        wire::take_runs(me, &mut reader, self.cluster & !bit(me), &mut decoded)?;
        for (link, covered, recoveries) in saved {
            (self.links[link].covered, self.links[link].recoveries) = (covered, recoveries);
        }
        self.log.start_behind(last);
        self.covered = last;
        for one in decoded {
            self.log.merge(me, one);
        }
        self.log.make_stable_upto(self.log.end());
        self.log.settle();
        Ok(())
    }
}
