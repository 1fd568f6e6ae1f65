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

mod link;
mod log;
mod wire;

use crate::logging::{Admission, Logging, Malformed, Source, Wish};
use link::{Link, Standing};
use log::{Log, bit};
use mainstay_types::codec::Reader;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use std::collections::VecDeque;
pub use wire::INPUT_BYTES_MAX;
use wire::{CONTROL_BYTES_TARGET, Determinant, Header, RunWriter, What, ended, put_varint, tag, varint};

/// How many nodes a cluster under causal logging has at most; their ids are below it.
pub const NODES_MAX: u32 = u64::BITS;

/// What the determinants of other nodes may take in memory, in bytes. Beyond it nothing that brings more is taken in until
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
    decoded: Vec<Determinant>,
    runs: Vec<u8>,
}

/// How a batch came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// With a message, which is asked about again if the batch cannot be taken.
    Attached,
    /// By itself.
    Carried,
    /// As the answer to this node's collecting: it is taken whatever it says of nodes that recover as well.
    Retold,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Yes,
    /// Nothing was taken; when a peer has announced something, or what is missing was told again, it can be.
    NotYet,
    /// Taken but for determinants of a history that its owner lost.
    Orphan,
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
            decoded: Vec::new(),
            runs: Vec::new(),
        })
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

    /// Up to which position the log may be told: nothing behind an input that is not carried, which may be lost with it.
    fn tellable(&self) -> u64 {
        self.barriers.front().map_or(self.log.end(), |&(_, position)| position - 1)
    }

    /// Appends to `out` a batch of what `link` is not known to hold, at most about `limit` bytes of it. Returns whether there
    /// was anything to say.
    fn put_batch(&mut self, link: usize, limit: usize, out: &mut Vec<u8>) -> bool {
        let upto = self.tellable();
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        let mut writer = RunWriter::default();
        let view = &self.links[link];
        let mut scanned = view.scanned.max(upto);
        for entry in self.log.behind(view.scanned) {
            if entry.position > upto {
                break;
            }
            if runs.len() >= limit {
                scanned = entry.position - 1;
                break;
            }
            if entry.gone() || entry.stable() || entry.held_by(view.peer) {
                continue;
            }
            writer.put(entry.owner, &entry.place, &entry.what, &mut runs);
        }
        let view = &mut self.links[link];
        view.scanned = scanned;
        let anything = !runs.is_empty() || view.taken > view.told;
        if anything {
            let to = if runs.is_empty() { view.announced } else { scanned };
            put_header(view, to, self.log.own_stable(), out);
            out.extend_from_slice(&runs);
        }
        self.runs = runs;
        anything
    }

    /// Tells `link` everything up to `target` that it is not known to hold.
    fn carry(&mut self, link: usize, target: u64, wishes: &mut Vec<Wish>) {
        while self.links[link].scanned < target.min(self.tellable()) {
            let mut body = vec![tag::CARRY];
            if self.put_batch(link, CONTROL_BYTES_TARGET, &mut body) {
                wishes.push(Wish::Tell { to: self.links[link].peer, body });
            }
        }
    }

    /// Takes in a batch of `from`.
    fn take_batch(
        &mut self,
        from: NodeId,
        bytes: &[u8],
        how: Way,
        wishes: &mut Vec<Wish>,
    ) -> Result<Taken, Malformed> {
        let link = self.link(from)?;
        let mut reader = Reader::new(bytes);
        let header = Header::take(from, &mut reader)?;
        let mut decoded = std::mem::take(&mut self.decoded);
        decoded.clear();
        let result = wire::take_runs(from, &mut reader, self.cluster, &mut decoded)
            .and_then(|()| self.take_held(link, header.taken, header.stable))
            .map(|()| self.take_determinants(link, header, &mut decoded, how, wishes));
        decoded.clear();
        self.decoded = decoded;
        self.log.settle();
        result
    }

    fn take_determinants(
        &mut self,
        link: usize,
        header: Header,
        decoded: &mut Vec<Determinant>,
        how: Way,
        wishes: &mut Vec<Wish>,
    ) -> Taken {
        let from = self.links[link].peer;
        let view = &mut self.links[link];
        view.seen = view.seen.max(header.to);
        if header.from > view.taken {
            if !self.links[link].refused {
                self.ask_again(link, wishes);
            }
            return Taken::NotYet;
        }
        let collecting = how == Way::Retold;
        let mut orphan = false;
        let mut pending = !collecting && !decoded.is_empty() && self.log.foreign_bytes() > FOREIGN_BYTES_MAX;
        decoded.retain(|one| {
            if one.owner == self.me {
                return collecting && self.take_own(one, wishes);
            }
            match self.log.place(one.owner, one.place.delivery) {
                Some(known) if known == one.place => return true,
                // Of two lives that gave the place, the earlier one lost its delivery.
                Some(known) if known.life > one.place.life => {
                    orphan = true;
                    return false;
                }
                Some(_) => {
                    pending |= !collecting;
                    return !collecting;
                }
                None => {}
            }
            match self.of(one.owner).standing(one.place.life, one.place.delivery) {
                Standing::Valid => true,
                Standing::Covered => false,
                Standing::Pending => {
                    pending |= !collecting;
                    true
                }
                Standing::Lost => {
                    orphan = true;
                    false
                }
            }
        });
        if pending {
            let view = &mut self.links[link];
            view.refused = true;
            // This may be the answer: then it has to be asked for again.
            view.asked_again &= how == Way::Attached;
            return if orphan { Taken::Orphan } else { Taken::NotYet };
        }
        for one in decoded.drain(..) {
            let (owner, delivery) = (one.owner, one.place.delivery);
            self.log.merge(from, one);
            if owner != self.me && delivery <= self.of(owner).stable {
                self.log.make_stable_of(owner, DeliveryIndex(delivery.0 - 1), delivery);
            }
        }
        let view = &mut self.links[link];
        view.taken = view.taken.max(header.to);
        view.refused = false;
        if view.taken >= view.seen {
            view.asked_again = false;
        } else {
            self.ask_again(link, wishes);
        }
        if orphan { Taken::Orphan } else { Taken::Yes }
    }

    fn ask_again(&mut self, link: usize, wishes: &mut Vec<Wish>) {
        let view = &mut self.links[link];
        if !view.asked_again {
            view.asked_again = true;
            let mut body = vec![tag::AGAIN];
            put_varint(&mut body, view.taken);
            wishes.push(Wish::Tell { to: view.peer, body });
        }
    }

    /// Something changed that untaken batches may have waited for.
    fn ask_for_refused(&mut self, wishes: &mut Vec<Wish>) {
        for link in 0..self.links.len() {
            if self.links[link].refused && self.links[link].connected {
                self.ask_again(link, wishes);
            }
        }
    }

    /// The peer has taken this node's log up to `taken`, and calls its own deliveries up to `stable` stable.
    fn take_held(&mut self, link: usize, taken: u64, stable: DeliveryIndex) -> Result<(), Malformed> {
        let view = &mut self.links[link];
        if taken > view.announced_max {
            return Err(wire::never(view.peer, "position", taken));
        }
        if taken > view.held {
            self.log.held(view.peer, view.held, taken);
            view.held = taken;
            view.announced = view.announced.max(taken);
            view.scanned = view.scanned.max(taken);
        }
        if stable > view.stable {
            self.log.make_stable_of(view.peer, view.stable, stable);
            view.stable = stable;
        }
        self.log.settle();
        Ok(())
    }

    fn take_covered(&mut self, link: usize, index: DeliveryIndex, wishes: &mut Vec<Wish>) {
        let view = &mut self.links[link];
        if index > view.covered {
            view.covered = index;
            self.log.drop_covered(view.peer, index);
            self.log.settle();
            self.ask_for_refused(wishes);
        }
    }

    fn take_recovered(
        &mut self,
        link: usize,
        incarnation: Incarnation,
        last: DeliveryIndex,
        wishes: &mut Vec<Wish>,
    ) -> Result<(), Malformed> {
        let view = &mut self.links[link];
        let peer = view.peer;
        match view.incarnation {
            Some(present) if incarnation < present => return Ok(()),
            Some(present) if incarnation == present => {}
            _ => return Err(wire::never(peer, "life", incarnation.0)),
        }
        view.recovered(incarnation, last);
        if let Some(keep) = self.kept_without(peer, incarnation, last) {
            wishes.push(Wish::RollBack { keep, lost: peer });
        }
        self.log.drop_lost(peer, last, incarnation);
        self.log.settle();
        self.ask_for_refused(wishes);
        Ok(())
    }

    /// The last own delivery that does not depend on what `peer` lost above `last`; none is lost while no more fail than
    /// planned for.
    fn kept_without(
        &self,
        peer: NodeId,
        incarnation: Incarnation,
        last: DeliveryIndex,
    ) -> Option<DeliveryIndex> {
        let first = self.log.behind(0).find(|entry| {
            let told = entry.owner == peer && entry.place.delivery > last && entry.place.life < incarnation;
            let delivered = entry.owner == self.me
                && matches!(entry.what, What::Message { from, .. } if from == peer)
                && entry.origin.delivery > last
                && entry.origin.incarnation < incarnation;
            (told || delivered) && !entry.gone()
        })?;
        let keep = self.log.own_before(first.position);
        (keep < self.log.own_last()).then_some(keep)
    }

    /// A peer gives back a delivery of this node. Returns whether it is to be taken into the log.
    fn take_own(&mut self, one: &Determinant, wishes: &mut Vec<Wish>) -> bool {
        let delivery = one.place.delivery;
        match self.log.place(self.me, delivery) {
            Some(known) if known == one.place => return true,
            // Replayed, or in the checkpoint; or of a life that lost it.
            _ if delivery <= self.log.own_last() => return false,
            Some(known) if known.life > one.place.life => return false,
            Some(_) => self.log.drop_own(delivery),
            None => {}
        }
        wishes.push(Wish::Remembered { place: one.place, source: remembered_source(one.what.clone()) });
        true
    }

    /// Makes sure that `f` connected peers have been offered everything that `needed` depends on.
    fn offer_needed(&mut self, wishes: &mut Vec<Wish>) {
        let target = self.log.position(self.me, self.needed).unwrap_or(self.log.end());
        if let Some(&(end, position)) = self.barriers.front()
            && position <= target
            && end > self.flush_asked
        {
            self.flush_asked = end;
            wishes.push(Wish::Flush);
        }
        let offered = |link: &Link| link.connected && link.scanned >= target;
        let mut missing = self.f.saturating_sub(self.links.iter().filter(|&link| offered(link)).count());
        // From the next node on, so that neighbours do not all choose the same.
        let first = self.links.partition_point(|link| link.peer < self.me);
        for step in 0..self.links.len() {
            let link = (first + step) % self.links.len();
            if missing == 0 {
                break;
            }
            if self.links[link].connected && !offered(&self.links[link]) {
                self.carry(link, target, wishes);
                missing -= 1;
            }
        }
    }
}

fn put_header(view: &mut Link, to: u64, stable: DeliveryIndex, out: &mut Vec<u8>) {
    Header { from: view.announced, to, taken: view.taken, stable }.put(out);
    view.announced = to;
    view.announced_max = view.announced_max.max(to);
    view.told = view.taken;
}

fn remembered_source(what: What) -> Source {
    match what {
        What::Message { from, ssn } => Source::Message { from, ssn, origin: Point::default(), end: None },
        What::Input { end, record } => {
            Source::Local { end, record: record.expect("what was decoded came with its record") }
        }
    }
}

fn tell(to: NodeId, tag: u8, numbers: &[u64]) -> Wish {
    let mut body = vec![tag];
    numbers.iter().for_each(|&number| put_varint(&mut body, number));
    Wish::Tell { to, body }
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
                let stable = DeliveryIndex(varint(&mut reader)?);
                ended(&reader)?;
                self.take_held(link, taken, stable)?;
            }
            tag::AGAIN => {
                let taken = varint(&mut reader)?;
                ended(&reader)?;
                self.take_held(link, taken, DeliveryIndex(0))?;
                let target = self.links[link].announced;
                (self.links[link].announced, self.links[link].scanned) = (taken, taken);
                self.carry(link, target, wishes);
                // Even if nothing is left to tell: what follows must not look like a gap.
                let mut body = vec![tag::CARRY];
                let to = self.links[link].scanned.max(taken);
                put_header(&mut self.links[link], to, self.log.own_stable(), &mut body);
                wishes.push(Wish::Tell { to: from, body });
            }
            tag::COVERED => {
                let index = DeliveryIndex(varint(&mut reader)?);
                ended(&reader)?;
                self.take_covered(link, index, wishes);
            }
            tag::RECOVERED => {
                let incarnation = Incarnation(varint(&mut reader)?);
                let last = DeliveryIndex(varint(&mut reader)?);
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

    fn collect(&mut self, peer: NodeId, wishes: &mut Vec<Wish>) {
        let Ok(link) = self.link(peer) else { return };
        let upto = self.tellable();
        // Its memory is empty: from the front, and in the order of the log, so that wherever the session breaks the peer knows of
        // nothing without knowing what that depends on.
        self.links[link].announced = 0;
        let mut chunks = Chunks::default();
        for entry in self.log.behind(0).filter(|entry| !entry.gone() && entry.what.carried()) {
            if entry.owner != self.me || entry.position <= upto {
                chunks.put(entry);
                let to = entry.position.min(upto);
                chunks.end_if_long(&mut self.links[link], to, self.log.own_stable(), wishes);
            }
        }
        chunks.end(&mut self.links[link], upto, self.log.own_stable(), wishes);
        self.links[link].scanned = upto;
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
        let last = DeliveryIndex(varint(&mut reader)?);
        let links = varint(&mut reader)?;
        let mut saved = Vec::new();
        for _ in 0..links {
            let number = varint(&mut reader)?;
            let covered = DeliveryIndex(varint(&mut reader)?);
            let mut recoveries = Vec::new();
            for _ in 0..varint(&mut reader)? {
                let incarnation = Incarnation(varint(&mut reader)?);
                recoveries.push((incarnation, DeliveryIndex(varint(&mut reader)?)));
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

/// Determinants that a recovering peer is told, in control messages of limited length.
#[derive(Default)]
struct Chunks {
    writer: RunWriter,
    runs: Vec<u8>,
}

impl Chunks {
    fn put(&mut self, entry: &log::Entry) {
        self.writer.put(entry.owner, &entry.place, &entry.what, &mut self.runs);
    }

    fn end_if_long(&mut self, view: &mut Link, to: u64, stable: DeliveryIndex, wishes: &mut Vec<Wish>) {
        if self.runs.len() >= CONTROL_BYTES_TARGET {
            self.end(view, to, stable, wishes);
        }
    }

    fn end(&mut self, view: &mut Link, to: u64, stable: DeliveryIndex, wishes: &mut Vec<Wish>) {
        if self.runs.is_empty() {
            return;
        }
        let mut body = vec![tag::RETOLD];
        put_header(view, to, stable, &mut body);
        body.append(&mut self.runs);
        self.writer = RunWriter::default();
        wishes.push(Wish::Tell { to: view.peer, body });
    }
}
