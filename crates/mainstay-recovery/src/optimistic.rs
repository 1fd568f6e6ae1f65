//! Optimistic logging (Strom and Yemini 1985; Damani and Garg 1996): nothing waits but outputs, and a node that depends on
//! a state that was lost rolls back.
//!
//! ```text
//!            stamp: what the sender's state depends on
//!   node A ──────────────────────────────────────────> node B       each journals its deliveries in the background
//!     │  crashes, loses its unsynced tail                 │
//!     └─ Lives: life 2 began after delivery 7 ──────────> depends on A's delivery 9 of life 1: rolls back
//! ```
//!
//! A state's *dependency vector* has, for each node, the highest [`Point`] that the state depends on, through any number of
//! others. A point is *lost* when a later life of its node began before it ([`Lives`]), and *stable* when its node said that
//! its journal is safe so far. [`Logging::recoverable`] is the last delivery up to which the whole vector is stable.
//!
//! Three rules carry the guarantee that what was recoverable is never rolled back:
//!
//! * *A vector never hides a loss.* A stamp that names a life is taken in only when it is known where that life began
//!   (Damani and Garg's postponement); until then it is [`Admission::NotYet`]. Otherwise a higher life's entry would replace
//!   one that is lost.
//! * *Stable is said of the journal, recoverable of the vector.* A node that says its delivery is stable may still be an
//!   orphan and take it back; who depends on it then depends on the same lost state, and does not count as recoverable.
//! * *No rollback is told without its cause.* A node tells where everybody's lives began together with its own, so that who
//!   would have to roll back twice, for the rollback and for the crash that caused it, does it once: at most one rollback per
//!   node and crash. For the same reason what it knows survives its own crash ([`Logging::known_losses`]).
//!
//! Price: one vector entry is memory until it is settled, 24 bytes per delivery that raised it; a table of lives takes 16
//! bytes per life that made progress, for ever, and is told at every session.

mod dependency;
mod lives;
#[cfg(test)]
mod tests;
mod wire;

use crate::logging::{Admission, Logging, Malformed, Source, Wish};
use dependency::Dependency;
use lives::Lives;
use mainstay_types::codec::Reader;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use std::collections::{BTreeMap, VecDeque};
use wire::Told;

/// Deliveries of this node that depend on one other node and are not settled, at most: 24 bytes each. At the limit no
/// further dependency on that node is taken in.
pub const UNSETTLED_DELIVERIES_MAX: usize = 1 << 16;

/// How many deliveries become stable before peers are told without having asked.
const TOLD_EVERY_DELIVERIES: u64 = 256;

/// Optimistic logging at one node.
///
/// Every delivery is journaled, messages with their stamps, and says in its [`Source`] where its record ends.
#[derive(Debug)]
pub struct Optimistic {
    me: NodeId,
    /// The last delivery.
    last: DeliveryIndex,
    /// The last delivery that is safe in this node's journal.
    safe: DeliveryIndex,
    /// Where the records of later deliveries end.
    unsafe_records: VecDeque<(Lsn, DeliveryIndex)>,
    recoverable: DeliveryIndex,
    /// The last delivery that something in the gate waits for.
    needed: DeliveryIndex,
    lives: Lives,
    peers: BTreeMap<NodeId, Peer>,
}

/// What a node knows of another.
#[derive(Debug, Default)]
struct Peer {
    lives: Lives,
    /// Its deliveries up to here are safe in its journal, in its newest life that is known.
    stable: DeliveryIndex,
    dependency: Dependency,
    admitted: Admitted,
    /// How much of this node's safe history it was told in this session.
    told: DeliveryIndex,
    /// It waits for this delivery of this node to be safe.
    asked: Option<DeliveryIndex>,
    /// What it was asked to hurry with in this session.
    hurried: Option<Point>,
}

/// The stamp of a peer's message between its admission and its delivery. A link delivers one message after the other.
#[derive(Debug, Default)]
struct Admitted {
    /// Whether there is one.
    waiting: bool,
    /// Whether its sender takes part in this protocol, so that it can take its message back.
    dependent: bool,
    entries: Vec<(NodeId, Point)>,
}

impl Peer {
    fn loses(&self, point: Point) -> bool {
        self.lives.lost(point)
    }

    fn knows_life(&self, life: Incarnation) -> bool {
        self.lives.newest() >= Some(life)
    }
}

impl Optimistic {
    /// A node at the beginning of its history.
    ///
    /// `peers` are the other nodes of the cluster. A peer under another policy stamps nothing; what it sends it never takes back.
    #[must_use]
    pub fn new(me: NodeId, peers: &[NodeId]) -> Self {
        let others = peers.iter().filter(|&&peer| peer != me);
        Self {
            me,
            last: DeliveryIndex(0),
            safe: DeliveryIndex(0),
            unsafe_records: VecDeque::new(),
            recoverable: DeliveryIndex(0),
            needed: DeliveryIndex(0),
            lives: Lives::default(),
            peers: others.map(|&peer| (peer, Peer::default())).collect(),
        }
    }

    /// Reads a stamp into what is admitted from `from`. On an error nothing is admitted.
    fn read_stamp(&mut self, from: NodeId, stamp: &[u8]) -> Result<(), Malformed> {
        let Some(peer) = self.peers.get_mut(&from) else {
            return match stamp {
                [] => Ok(()),
                _ => Err(unknown_node(from, from)),
            };
        };
        let mut admitted = std::mem::take(&mut peer.admitted);
        admitted.waiting = false;
        admitted.entries.clear();
        admitted.dependent = !stamp.is_empty();
        if admitted.dependent {
            self.read_entries(from, stamp, &mut admitted.entries)?;
        }
        admitted.waiting = true;
        self.peers.get_mut(&from).expect("it was just there").admitted = admitted;
        Ok(())
    }

    fn read_entries(
        &self,
        from: NodeId,
        stamp: &[u8],
        entries: &mut Vec<(NodeId, Point)>,
    ) -> Result<(), Malformed> {
        let mut reader = Reader::new(stamp);
        for _ in 0..wire::take_number(&mut reader)? {
            let node = wire::take_node(&mut reader)?;
            let known = node == self.me || self.peers.contains_key(&node);
            let in_order = entries.last().is_none_or(|&(before, _)| before < node);
            if !known || !in_order || node == from {
                return Err(unknown_node(from, node));
            }
            entries.push((node, wire::take_point(&mut reader)?));
        }
        wire::ended(&reader)
    }

    /// Whether a state that depends on `point` of `node` may be depended on.
    fn admit(&self, from: NodeId, node: NodeId, point: Point) -> Result<Admission, Malformed> {
        if node != self.me {
            let peer = &self.peers[&node];
            // A crash may have taken what was known of lives that this history names: a lost point of a life before them would vanish behind
            // the entry that the vector has.
            let named = peer.dependency.newest().map_or(point, |newest| newest.max(point));
            return Ok(match () {
                () if peer.loses(point) => Admission::Orphan,
                () if peer.knows_life(named.incarnation) => Admission::Deliver,
                () => Admission::NotYet,
            });
        }
        self.own(from, point).map(|lost| if lost { Admission::Orphan } else { Admission::Deliver })
    }

    /// Whether a point of this node that a peer speaks of is lost.
    fn own(&self, peer: NodeId, point: Point) -> Result<bool, Malformed> {
        if Some(point.incarnation) > self.lives.newest() {
            return Err(Malformed::NeverReached { peer, what: "life", number: point.incarnation.0 });
        }
        let lost = self.lives.lost(point);
        if !lost && point.delivery > self.last {
            return Err(Malformed::NeverReached { peer, what: "delivery", number: point.delivery.0 });
        }
        Ok(lost)
    }

    /// Whether a message of `from`, emitted at `origin`, asks for more memory than there is.
    fn full(&self, from: NodeId, origin: Point) -> bool {
        let named = self.peers[&from].admitted.entries.iter().copied();
        named.chain([(from, origin)]).any(|(node, point)| {
            self.peers.get(&node).is_some_and(|peer| {
                peer.dependency.unsettled() >= UNSETTLED_DELIVERIES_MAX
                    && peer.dependency.newest() < Some(point)
            })
        })
    }

    /// Moves the recoverable line as far as what is known allows.
    fn settle(&mut self) {
        let mut line = self.safe;
        for peer in self.peers.values_mut() {
            peer.dependency.stabilize(&peer.lives, peer.stable);
            if let Some(first) = peer.dependency.first_unstable() {
                line = line.min(DeliveryIndex(first.0 - 1));
            }
        }
        assert!(
            line >= self.recoverable,
            "the recoverable line never goes back: {line} after {}",
            self.recoverable
        );
        self.recoverable = line;
        for peer in self.peers.values_mut() {
            peer.dependency.settle(line);
        }
    }

    /// Asks for a rollback if this node depends on a lost state.
    fn roll_back_orphans(&mut self, wishes: &mut Vec<Wish>) {
        let losses = self.peers.iter_mut().filter_map(|(&node, peer)| {
            peer.dependency.first_lost(&peer.lives).map(|index| (DeliveryIndex(index.0 - 1), node))
        });
        if let Some((keep, lost)) = losses.min() {
            wishes.push(Wish::RollBack { keep, lost });
        }
    }

    /// Takes in where lives began, all or nothing; gives back what was news.
    ///
    /// Together, because a rollback and its cause come in one message: a node that learned of the rollback alone would roll back
    /// for it, and once more for the cause.
    fn learn(
        &mut self,
        from: NodeId,
        tables: Vec<(NodeId, Lives)>,
    ) -> Result<Vec<(NodeId, Lives)>, Malformed> {
        let mut news = Vec::new();
        for (node, lives) in tables {
            if node == self.me {
                if let Some(life) = lives.newest().filter(|_| lives.newest() > self.lives.newest()) {
                    return Err(Malformed::NeverReached { peer: from, what: "life", number: life.0 });
                }
                continue;
            }
            let peer = self.peers.get(&node).ok_or_else(|| unknown_node(from, node))?;
            if peer.lives.newest() >= lives.newest() {
                continue;
            }
            if let Some(claimed) = peer.dependency.at_line()
                && let Some(recovered) = lives.lost_after(claimed)
            {
                return Err(Malformed::Retracted { peer: node, recovered, claimed: claimed.delivery });
            }
            news.push((node, lives));
        }
        for (node, lives) in &news {
            let peer = self.peers.get_mut(node).expect("it was just there");
            for &(life, after) in lives.starts() {
                if !peer.knows_life(life) {
                    peer.stable = peer.stable.min(after);
                }
            }
            peer.lives.learn(lives);
        }
        Ok(news)
    }

    /// Tells `to` where everybody's lives began, and how far the journal is safe.
    fn tell_all(&mut self, to: NodeId, wishes: &mut Vec<Wish>) {
        let others = self.peers.iter().filter(|&(&node, peer)| node != to && peer.lives.newest().is_some());
        let others = others.map(|(&node, peer)| (node, peer.lives.clone()));
        let tables = others.chain([(self.me, self.lives.clone())]).collect();
        wishes.push(tell(to, &Told::Lives(tables)));
        self.tell_stable(to, wishes);
    }

    fn tell_stable(&mut self, to: NodeId, wishes: &mut Vec<Wish>) {
        let Some(incarnation) = self.lives.newest() else { return };
        let peer = self.peers.get_mut(&to).expect("only peers are told");
        peer.told = self.safe;
        peer.asked = peer.asked.filter(|&asked| asked > self.safe);
        wishes.push(tell(to, &Told::Stable(Point { incarnation, delivery: self.safe })));
    }

    /// Asks the peers that needed deliveries depend on to make that safe, each once.
    fn hurry(&mut self, wishes: &mut Vec<Wish>) {
        for (&node, peer) in &mut self.peers {
            let awaited = peer.dependency.awaited(self.needed);
            if let Some(point) = awaited.filter(|_| awaited > peer.hurried) {
                peer.hurried = awaited;
                wishes.push(tell(node, &Told::Hurry(point)));
            }
        }
    }
}

fn tell(to: NodeId, told: &Told) -> Wish {
    Wish::Tell { to, body: told.encode() }
}

fn unknown_node(peer: NodeId, node: NodeId) -> Malformed {
    Malformed::NeverReached { peer, what: "node", number: u64::from(node.0) }
}

impl Logging for Optimistic {
    fn delivered(&mut self, place: Place, source: &Source) {
        assert_eq!(place.delivery, self.last.next(), "deliveries come in order, without a gap");
        if self.lives.newest() < Some(place.life) {
            // Only in a replay: a life that runs has begun.
            self.lives.began(place.life, self.last);
        }
        self.last = place.delivery;
        let end = match source {
            Source::Local { end, .. } => *end,
            Source::Message { end, .. } => end.expect("optimistic logging journals messages"),
        };
        self.unsafe_records.push_back((end, self.last));
        let Source::Message { from, origin, .. } = source else { return };
        let Some(peer) = self.peers.get_mut(from) else { return };
        let mut admitted = std::mem::take(&mut peer.admitted);
        assert!(admitted.waiting, "a message is admitted, or its stamp read again, before it is delivered");
        admitted.waiting = false;
        if admitted.dependent {
            peer.dependency.depend(self.last, *origin);
            for &(node, point) in &admitted.entries {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.dependency.depend(self.last, point);
                }
            }
        }
        self.peers.get_mut(from).expect("it was just there").admitted = admitted;
    }

    fn stamp(&mut self, out: &mut Vec<u8>) {
        let entries = || {
            self.peers.iter().filter_map(|(&node, peer)| peer.dependency.newest().map(|point| (node, point)))
        };
        wire::put_number(out, entries().count() as u64);
        for (node, point) in entries() {
            wire::put_number(out, u64::from(node.0));
            wire::put_point(out, point);
        }
    }

    fn attach(&mut self, _to: NodeId, _out: &mut Vec<u8>) {}

    fn arrived(
        &mut self,
        from: NodeId,
        origin: Point,
        stamp: &[u8],
        _attached: &[u8],
        wishes: &mut Vec<Wish>,
    ) -> Result<Admission, Malformed> {
        self.read_stamp(from, stamp)?;
        let Some(peer) = self.peers.get(&from).filter(|peer| peer.admitted.dependent) else {
            return Ok(Admission::Deliver);
        };
        let mut admission = self.admit(from, from, origin)?;
        for &(node, point) in &peer.admitted.entries {
            admission = match (admission, self.admit(from, node, point)?) {
                (Admission::Orphan, _) | (_, Admission::Orphan) => Admission::Orphan,
                (Admission::NotYet, _) | (_, Admission::NotYet) => Admission::NotYet,
                (Admission::Deliver, Admission::Deliver) => Admission::Deliver,
            };
        }
        if admission == Admission::Deliver && self.full(from, origin) {
            admission = Admission::NotYet;
            self.needed(self.last, wishes);
        }
        Ok(admission)
    }

    fn replaying(&mut self, from: NodeId, _ssn: Ssn, stamp: &[u8]) -> Result<(), Malformed> {
        self.read_stamp(from, stamp)
    }

    fn duplicate(&mut self, _from: NodeId, _ssn: Ssn, _wishes: &mut Vec<Wish>) {}

    fn control(&mut self, from: NodeId, body: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        if !self.peers.contains_key(&from) {
            return Err(unknown_node(from, from));
        }
        match Told::decode(from, body)? {
            Told::Lives(tables) => {
                let news = self.learn(from, tables)?;
                if !news.is_empty() {
                    // Passed on, so that a message that names a new life need not wait for that node's own word.
                    let told = Told::Lives(news);
                    let others = self.peers.keys().filter(|&&peer| peer != from);
                    wishes.extend(others.map(|&peer| tell(peer, &told)));
                    self.roll_back_orphans(wishes);
                    self.settle();
                }
            }
            Told::Stable(Point { incarnation, delivery }) => {
                let peer = self.peers.get_mut(&from).expect("only peers get here");
                if !peer.knows_life(incarnation) {
                    return Err(Malformed::NeverReached { peer: from, what: "life", number: incarnation.0 });
                }
                // What an earlier life said was taken over by the later one as far as it went.
                if peer.lives.newest() == Some(incarnation) {
                    peer.stable = peer.stable.max(delivery);
                    self.settle();
                }
            }
            Told::Hurry(point) => {
                if self.own(from, point)? {
                    return Ok(());
                }
                let peer = self.peers.get_mut(&from).expect("only peers get here");
                peer.asked = peer.asked.max(Some(point.delivery));
                if peer.told >= point.delivery {
                    // It would not ask if it knew.
                    peer.told = DeliveryIndex(0);
                }
                if self.safe < point.delivery {
                    wishes.push(Wish::Flush);
                }
            }
        }
        Ok(())
    }

    fn safe(&mut self, lsn: Lsn) {
        while let Some(&(end, index)) = self.unsafe_records.front()
            && end <= lsn
        {
            self.safe = index;
            self.unsafe_records.pop_front();
        }
        self.settle();
    }

    fn needed(&mut self, index: DeliveryIndex, wishes: &mut Vec<Wish>) {
        self.needed = self.needed.max(index);
        if self.safe < index {
            wishes.push(Wish::Flush);
        }
        self.hurry(wishes);
    }

    fn flush(&mut self, wishes: &mut Vec<Wish>) {
        let due = |peer: &Peer| {
            let untold = self.safe.0.saturating_sub(peer.told.0);
            untold >= TOLD_EVERY_DELIVERIES || (untold > 0 && peer.asked.is_some())
        };
        let due: Vec<NodeId> =
            self.peers.iter().filter(|(_, peer)| due(peer)).map(|(&node, _)| node).collect();
        for peer in due {
            self.tell_stable(peer, wishes);
        }
    }

    fn recoverable(&self) -> DeliveryIndex {
        self.recoverable
    }

    fn waits_for_journal_of(&self, peer: NodeId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.dependency.first_unstable().is_some())
    }

    fn connected(&mut self, peer: NodeId, _incarnation: Incarnation, wishes: &mut Vec<Wish>) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.hurried = None;
        known.asked = None;
        self.tell_all(peer, wishes);
        self.hurry(wishes);
    }

    fn collect(&mut self, _peer: NodeId, _wishes: &mut Vec<Wish>) {}

    fn recovered(&mut self, incarnation: Incarnation, last: DeliveryIndex, wishes: &mut Vec<Wish>) {
        assert!(
            self.recoverable <= last && last <= self.last,
            "a rollback to {last} stays between what was recoverable, {}, and what was delivered, {}",
            self.recoverable,
            self.last
        );
        assert!(Some(incarnation) > self.lives.newest(), "every life has a number above all before");
        self.last = last;
        self.safe = self.safe.min(last);
        self.needed = self.needed.min(last);
        while self.unsafe_records.back().is_some_and(|&(_, index)| index > last) {
            self.unsafe_records.pop_back();
        }
        self.lives.began(incarnation, last);
        for peer in self.peers.values_mut() {
            peer.dependency.undo(last);
            peer.admitted.waiting = false;
            peer.asked = peer.asked.filter(|&asked| asked <= last);
        }
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.tell_all(peer, wishes);
        }
        self.roll_back_orphans(wishes);
        self.settle();
    }

    fn known_losses(&self, out: &mut Vec<u8>) {
        wire::put_tables(out, self.peers.iter().map(|(&node, peer)| (node, &peer.lives)));
    }

    fn learn_losses(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(bytes);
        let tables = wire::take_tables(self.me, &mut reader)?;
        wire::ended(&reader)?;
        self.learn(self.me, tables).map(drop)
    }

    fn checkpointed(&mut self, index: DeliveryIndex) {
        while self.unsafe_records.front().is_some_and(|&(_, delivery)| delivery <= index) {
            self.unsafe_records.pop_front();
        }
        self.safe = self.safe.max(index.min(self.last));
        self.settle();
    }

    fn save(&self, out: &mut Vec<u8>) {
        wire::put_number(out, self.last.0);
        wire::put_lives(out, self.me, &self.lives);
        wire::put_number(out, self.peers.len() as u64);
        for (&node, peer) in &self.peers {
            wire::put_lives(out, node, &peer.lives);
            wire::put_number(out, peer.stable.0);
            let newest = peer.dependency.newest();
            wire::put_number(out, u64::from(newest.is_some()));
            if let Some(point) = newest {
                wire::put_point(out, point);
            }
        }
    }

    /// What is restored is recoverable: [`Logging::checkpoint_may_cover`] let it be published.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(bytes);
        let last = DeliveryIndex(wire::take_number(&mut reader)?);
        let (me, lives) = wire::take_lives(self.me, &mut reader)?;
        if me != self.me {
            return Err(unknown_node(self.me, me));
        }
        let mut peers = BTreeMap::new();
        for _ in 0..wire::take_number(&mut reader)? {
            let (node, lives) = wire::take_lives(self.me, &mut reader)?;
            let stable = DeliveryIndex(wire::take_number(&mut reader)?);
            let dependent = wire::take_number(&mut reader)? != 0;
            let newest = if dependent { Some(wire::take_point(&mut reader)?) } else { None };
            peers.insert(
                node,
                Peer { lives, stable, dependency: Dependency::settled(newest), ..Peer::default() },
            );
        }
        wire::ended(&reader)?;
        (self.last, self.safe, self.recoverable) = (last, last, last);
        self.lives = lives;
        // A node that is no longer in the list may still be named in stamps; one that is new to it has no history here.
        self.peers.extend(peers);
        Ok(())
    }
}
