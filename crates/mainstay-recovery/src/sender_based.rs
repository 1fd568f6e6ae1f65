//! Sender-based message logging (Johnson and Zwaenepoel 1987; Zhao 2014, section 2.3.2), and the hybrid of it with the receiver's
//! journal (Rao, Alvisi and Vin 2000).
//!
//! The receiver gives every message a place and tells it to the message's sender (ORDER); the sender keeps it beside the message
//! and says so (ACK). Until then the place is *outstanding*, and what depends on it stays in the gate, so that a place that is
//! lost with its receiver had nobody else depending on it: while e is not stable, |Depend(e)| = 1 (Alvisi and Marzullo 1998).
//! Under the hybrid the receiver's own record, once safe, serves as well as the ACK, and a place that is safe before it was told is told
//! nobody: what only this node's journal could give back, it will.
//!
//! Execution goes on meanwhile, and ORDERs and ACKs are cumulative: one of each per sender and round.
//!
//! # One failure at a time
//!
//! A place is in two memories, the receiver's ([history](Link::history)) and the sender's. When the sender fails, the receiver
//! tells its new life the whole history; until that has arrived, one memory holds it. What had been confirmed to the former life
//! counts as confirmed all the same: to take it back would not help, for others depend on it already, and would stop the
//! receiver during every recovery of a sender. It is the second failure *during* a recovery that this protocol does not plan for.
//! "During" ends when every peer has been told, which happens at the head of every new session.
//!
//! # The reply that need not wait
//!
//! A message to `to` may leave although places are outstanding, if `to` itself is to keep them all: they are told ahead of the
//! message or ride along with it ([`SenderBased::waits_for`], [`SenderBased::attach`]). Claim: this creates no orphan that the
//! plain rule does not.
//!
//! Let r send m to s while e is outstanding; the message that e delivered came from s.
//!
//! 1. *s never depends on e without keeping it.* ORDERs and messages share one session, in order, and s takes in what rides along
//!    before it delivers. A session that breaks in between loses the tail of both; the next one begins with all ORDERs that have no
//!    ACK, before the channel sends m again. So when s delivers m: Log(e) = {r, s} = Depend(e), and the sufficient condition
//!    Depend(e) ⊆ Log(e) holds. From here on e is as stable as an ACK would say: the ACK informs r, it does not protect e.
//! 2. *r fails.* If s delivered m, s has e and r replays it. If m was lost on its way, nobody but r depended on e.
//! 3. *s fails.* r has e and tells it to the next life of s, which has lost its dependence on e as well or gets it back by
//!    delivering m again: m is retained at r.
//! 4. *Third parties.* s sends to t only when its own places are confirmed by nodes other than t or ride along to t. t depends on
//!    e then, with Log(e) = {r, s}: only r *and* s failing would lose it, which the plain rule does not survive either (there too
//!    e is with r and s when the first message that depends on it leaves).
//! 5. *Both r and s fail* before an ACK was given: under the plain rule m would not have left; here s depended on e and has failed
//!    itself, so Depend(e) ⊆ C. A third node depends on e only by 4.
//!
//! What leaves for the outside waits for the ACK in every case: the world keeps no places. An outstanding place at any *other* node
//! makes m wait, because s would come to depend on it while its only copy besides r's is still on its way.
//!
//! # Stale places
//!
//! A life of the receiver that ends with outstanding places may leave confirmed ones *above* the first lost one. Nobody depends on
//! them, but their senders keep them, until the next life's ORDER replaces them. A second crash may find both; a [`Place`] names the
//! life that gave it. Whoever replays takes, for every index, the place of the highest life: had anything depended on index i of
//! life k, each later life replayed up to i, and none gave i to something else.

use crate::keeper::Keeper;
use crate::logging::{Admission, Logging, Malformed, Source, Wish};
use crate::order::{self, PLACES_MAX};
use mainstay_types::codec::Reader;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use std::collections::{BTreeMap, VecDeque};

/// The protocol at one node: the receiver's half, and a [`Keeper`].
#[derive(Debug)]
pub struct SenderBased {
    /// Whether messages are journaled as well.
    journals: bool,
    links: BTreeMap<NodeId, Link>,
    keeper: Keeper,
    delivered: DeliveryIndex,
    safe: Lsn,
    needed: DeliveryIndex,
    /// Up to where the journal was asked to become durable in place of a sender that is away.
    asked: DeliveryIndex,
}

/// What one peer sent here.
#[derive(Debug, Default)]
struct Link {
    /// Every message since the last durable checkpoint, or under the hybrid since the last record that is safe: a duplicate, or a sender in
    /// a new life, is told the same place again. Numbers are contiguous and end at `delivered`.
    history: VecDeque<Entry>,
    delivered: Ssn,
    /// How far places were told in this session, or need not be.
    told: Ssn,
    /// How far the sender confirmed them in its present life.
    acked: Ssn,
    /// How far places are outstanding no more: confirmed, covered by a checkpoint or, under the hybrid, safe in the journal.
    logged: Ssn,
    /// Messages at or below `told` that arrived again and whose places are told again: first and last.
    again: Option<(Ssn, Ssn)>,
    connected: bool,
    /// The sender's life that was told the history.
    life: Option<Incarnation>,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    /// End of its record, under the hybrid.
    end: Option<Lsn>,
}

impl Link {
    /// The number before the history's first.
    fn forgotten(&self) -> Ssn {
        Ssn(self.delivered.0 - self.history.len() as u64)
    }

    /// Where in the history the message after `ssn` stands.
    fn after(&self, ssn: Ssn) -> usize {
        let forgotten = self.forgotten();
        assert!(ssn >= forgotten, "what is asked for stands in the history");
        usize::try_from(ssn.0 - forgotten.0).expect("a history fits memory")
    }

    /// The first place outstanding.
    fn outstanding(&self) -> Option<&Entry> {
        (self.logged < self.delivered).then(|| &self.history[self.after(self.logged)])
    }

    fn take_safe(&mut self, safe: Lsn) {
        while self.history.front().is_some_and(|entry| entry.end.is_some_and(|end| end <= safe)) {
            self.history.pop_front();
        }
        self.told = self.told.max(self.forgotten());
        self.logged = self.logged.max(self.forgotten());
    }

    fn put_places(&self, after: Ssn, to: Ssn, out: &mut Vec<u8>) {
        if after < to {
            let entries = self.history.range(self.after(after)..self.after(to));
            order::put_order(out, after.next(), entries.map(|entry| &entry.place));
        }
    }

    /// Writes all places that were not told in this session.
    fn put_untold(&mut self, out: &mut Vec<u8>) {
        self.put_places(self.told, self.delivered, out);
        self.told = self.delivered;
    }
}

impl SenderBased {
    /// Sender-based logging: places are in memories only.
    #[must_use]
    pub fn new() -> Self {
        Self {
            journals: false,
            links: BTreeMap::new(),
            keeper: Keeper::default(),
            delivered: DeliveryIndex(0),
            safe: Lsn::ZERO,
            needed: DeliveryIndex(0),
            asked: DeliveryIndex(0),
        }
    }

    /// The hybrid: as [`Self::new`], and every message's record says its end.
    #[must_use]
    pub fn hybrid() -> Self {
        Self { journals: true, ..Self::new() }
    }

    fn take(&mut self, from: NodeId, body: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        if body.is_empty() {
            return Ok(());
        }
        let link = self.links.entry(from).or_default();
        if let Some(acked) = self.keeper.take_with_acks(from, body, link.told, wishes)? {
            link.acked = link.acked.max(acked);
            link.logged = link.logged.max(link.acked);
        }
        Ok(())
    }

    /// Tells `to` what it was not told in this session: one control message, or several if a long history is due.
    fn tell(&mut self, to: NodeId, wishes: &mut Vec<Wish>) {
        let link = self.links.entry(to).or_default();
        let mut body = Vec::new();
        if let Some((first, last)) = link.again.take() {
            link.put_places(Ssn(first.0 - 1).max(link.forgotten()), last.min(link.told), &mut body);
        }
        while link.delivered.0 - link.told.0 > PLACES_MAX as u64 {
            let end = Ssn(link.told.0 + PLACES_MAX as u64);
            link.put_places(link.told, end, &mut body);
            link.told = end;
            wishes.push(Wish::Tell { to, body: std::mem::take(&mut body) });
        }
        link.put_untold(&mut body);
        self.keeper.confirm(to, &mut body);
        if !body.is_empty() {
            wishes.push(Wish::Tell { to, body });
        }
    }

    /// While a sender is away nobody confirms its places; the journal can stand in for it.
    fn ask_journal(&mut self, wishes: &mut Vec<Wish>) {
        let needed = self.needed;
        if !self.journals || self.asked >= needed.min(self.delivered) {
            return;
        }
        let blocked = self.links.values().filter(|link| !link.connected).filter_map(Link::outstanding);
        if blocked.into_iter().any(|entry| entry.place.delivery <= needed) {
            self.asked = self.delivered;
            wishes.push(Wish::Flush);
        }
    }
}

impl Default for SenderBased {
    fn default() -> Self {
        Self::new()
    }
}

impl Logging for SenderBased {
    fn delivered(&mut self, place: Place, source: &Source) {
        self.delivered = place.delivery;
        let Source::Message { from, ssn, end, .. } = source else { return };
        let link = self.links.entry(*from).or_default();
        assert_eq!(*ssn, link.delivered.next(), "a link delivers in order, without a gap");
        assert!(!self.journals || end.is_some(), "the hybrid journals every message");
        link.history.push_back(Entry { place, end: *end });
        link.delivered = *ssn;
        link.take_safe(self.safe);
    }

    fn stamp(&mut self, _: &mut Vec<u8>) {}

    fn attach(&mut self, to: NodeId, out: &mut Vec<u8>) {
        // Without a limit: the message may leave only because all of them are with it or before it.
        self.links.entry(to).or_default().put_untold(out);
        self.keeper.confirm(to, out);
    }

    fn arrived(
        &mut self,
        from: NodeId,
        _: Point,
        _: &[u8],
        attached: &[u8],
        wishes: &mut Vec<Wish>,
    ) -> Result<Admission, Malformed> {
        self.take(from, attached, wishes)?;
        Ok(Admission::Deliver)
    }

    fn carried(&mut self, from: NodeId, attached: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        self.take(from, attached, wishes)
    }

    /// The last delivery whose place is outstanding at a node other than `to`.
    fn waits_for(&self, to: NodeId, _: DeliveryIndex) -> DeliveryIndex {
        let elsewhere = self.links.iter().filter(|(peer, link)| **peer != to && link.logged < link.delivered);
        elsewhere
            .filter_map(|(_, link)| link.history.back())
            .map(|entry| entry.place.delivery)
            .max()
            .unwrap_or(DeliveryIndex(0))
    }

    fn duplicate(&mut self, from: NodeId, ssn: Ssn, _: &mut Vec<Wish>) {
        let link = self.links.entry(from).or_default();
        // What was not told yet is told anyway; what the checkpoint covers is answered by the channel.
        if link.forgotten() < ssn && ssn <= link.told {
            let (first, last) = link.again.unwrap_or((ssn, ssn));
            link.again = Some((first.min(ssn), last.max(ssn)));
        }
    }

    fn control(&mut self, from: NodeId, body: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        self.take(from, body, wishes)
    }

    fn safe(&mut self, lsn: Lsn) {
        self.safe = self.safe.max(lsn);
        self.links.values_mut().for_each(|link| link.take_safe(self.safe));
    }

    fn needed(&mut self, index: DeliveryIndex, wishes: &mut Vec<Wish>) {
        self.needed = self.needed.max(index);
        self.ask_journal(wishes);
    }

    fn flush(&mut self, wishes: &mut Vec<Wish>) {
        let connected = self.links.iter().filter(|(_, link)| link.connected);
        for to in connected.map(|(peer, _)| *peer).collect::<Vec<_>>() {
            self.tell(to, wishes);
        }
        self.ask_journal(wishes);
    }

    fn recoverable(&self) -> DeliveryIndex {
        let outstanding = self.links.values().filter_map(Link::outstanding);
        let first = outstanding.map(|entry| entry.place.delivery).min();
        first.map_or(self.delivered, |first| DeliveryIndex(first.0 - 1))
    }

    fn connected(&mut self, peer: NodeId, incarnation: Incarnation, wishes: &mut Vec<Wish>) {
        self.keeper.connected(peer, incarnation);
        let link = self.links.entry(peer).or_default();
        link.connected = true;
        link.again = None;
        // A new life has lost the places with its memory; the former one still has all that it confirmed.
        if link.life != Some(incarnation) {
            link.life = Some(incarnation);
            link.acked = Ssn(0);
        }
        link.told = link.acked.max(link.forgotten());
        // At once, not at the end of the round: ahead of every message of this session, and of the word that all was collected.
        self.tell(peer, wishes);
    }

    fn disconnected(&mut self, peer: NodeId) {
        self.keeper.disconnected(peer);
        self.links.entry(peer).or_default().connected = false;
    }

    /// Nothing: a recovering node gets its places with its messages, and those of its own that it gave away it will be told
    /// by [`Self::connected`].
    fn collect(&mut self, _: NodeId, _: &mut Vec<Wish>) {}

    fn recovered(&mut self, _: Incarnation, last: DeliveryIndex, _: &mut Vec<Wish>) {
        self.delivered = last;
        // Whatever was replayed was found in a sender's memory or in the journal: it is in a second place by that. It must count
        // at once, for a peer that fails next needs the messages that were let go in the former life.
        self.links.values_mut().for_each(|link| link.logged = link.delivered);
    }

    fn checkpoint_may_cover(&self) -> DeliveryIndex {
        // A checkpoint that holds a delivery needs no place of it.
        self.delivered
    }

    fn checkpointed(&mut self, index: DeliveryIndex) {
        for link in self.links.values_mut() {
            while link.outstanding().is_some_and(|entry| entry.place.delivery <= index) {
                link.logged = link.logged.next();
            }
            // The sender counts places without a gap, so that those not told yet go when they are.
            while link.history.front().is_some_and(|entry| entry.place.delivery <= index)
                && (!link.connected || link.forgotten() < link.told)
            {
                link.history.pop_front();
            }
            link.told = link.told.max(link.forgotten());
        }
    }

    /// | bytes | what |
    /// |---|---|
    /// | 8 | last delivery |
    /// | 4 | how many links follow |
    /// | 4 + 8 each | peer, number of its last message delivered |
    fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.delivered.0.to_le_bytes());
        let count = u32::try_from(self.links.len()).expect("node ids have 32 bits");
        out.extend_from_slice(&count.to_le_bytes());
        for (peer, link) in &self.links {
            out.extend_from_slice(&peer.0.to_le_bytes());
            out.extend_from_slice(&link.delivered.0.to_le_bytes());
        }
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(bytes);
        let delivered = DeliveryIndex(reader.u64()?);
        let mut links = BTreeMap::new();
        for _ in 0..reader.u32()? {
            let peer = NodeId(reader.u32()?);
            let ssn = Ssn(reader.u64()?);
            links
                .insert(peer, Link { delivered: ssn, told: ssn, acked: ssn, logged: ssn, ..Link::default() });
        }
        (self.delivered, self.links) = (delivered, links);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::time::Time;

    const S: NodeId = NodeId(1);
    const T: NodeId = NodeId(2);
    const FIRST: Incarnation = Incarnation(1);
    const SECOND: Incarnation = Incarnation(2);

    fn place(delivery: u64) -> Place {
        Place { delivery: DeliveryIndex(delivery), life: FIRST, now: Time(0), seed: 0 }
    }

    fn order(first: u64, deliveries: &[u64]) -> Vec<u8> {
        let mut body = Vec::new();
        let places: Vec<_> = deliveries.iter().map(|delivery| place(*delivery)).collect();
        order::put_order(&mut body, Ssn(first), places.iter());
        body
    }

    fn ack(ssn: u64) -> Vec<u8> {
        let mut body = Vec::new();
        order::put_ack(&mut body, Ssn(ssn));
        body
    }

    /// A node in session with S and T.
    fn started(mut node: SenderBased) -> SenderBased {
        let mut wishes = Vec::new();
        for peer in [S, T] {
            node.connected(peer, FIRST, &mut wishes);
        }
        node.recovered(FIRST, DeliveryIndex(0), &mut wishes);
        assert_eq!(wishes, []);
        node
    }

    fn deliver(node: &mut SenderBased, delivery: u64, from: NodeId, ssn: u64) {
        let end = node.journals.then_some(Lsn(delivery * 10));
        let source = Source::Message { from, ssn: Ssn(ssn), origin: Point::default(), end };
        node.delivered(place(delivery), &source);
    }

    fn flushed(node: &mut SenderBased) -> Vec<Wish> {
        let mut wishes = Vec::new();
        node.flush(&mut wishes);
        wishes
    }

    fn told(node: &mut SenderBased, from: NodeId, body: &[u8]) -> Result<Vec<Wish>, Malformed> {
        let mut wishes = vec![Wish::Flush];
        let outcome = node.control(from, body, &mut wishes);
        assert_eq!(wishes.remove(0), Wish::Flush);
        assert!(outcome.is_ok() || wishes.is_empty(), "nothing is wished for by what is refused");
        outcome.map(|()| wishes)
    }

    #[test]
    fn a_delivery_is_recoverable_when_it_and_all_before_it_are_acked() {
        let mut node = started(SenderBased::new());
        deliver(&mut node, 1, S, 1);
        deliver(&mut node, 2, T, 1);
        deliver(&mut node, 3, S, 2);
        assert_eq!(node.recoverable(), DeliveryIndex(0));
        let orders = [(S, order(1, &[1, 3])), (T, order(1, &[2]))];
        assert_eq!(flushed(&mut node), orders.map(|(to, body)| Wish::Tell { to, body }));
        assert_eq!(flushed(&mut node), []);
        assert_eq!(told(&mut node, S, &ack(2)), Ok(vec![]));
        assert_eq!(node.recoverable(), DeliveryIndex(1));
        assert_eq!(
            (node.waits_for(S, DeliveryIndex(3)), node.waits_for(T, DeliveryIndex(3))),
            (DeliveryIndex(2), DeliveryIndex(0))
        );
        assert_eq!(told(&mut node, T, &ack(1)), Ok(vec![]));
        assert_eq!(node.recoverable(), DeliveryIndex(3));
    }

    #[test]
    fn a_sender_keeps_the_places_before_it_confirms_them_and_a_reply_carries_both() {
        let mut node = started(SenderBased::new());
        let kept = |ssn, delivery| Wish::Ordered { to: S, ssn: Ssn(ssn), place: place(delivery) };
        assert_eq!(told(&mut node, S, &order(1, &[4, 7])), Ok(vec![kept(1, 4), kept(2, 7)]));
        deliver(&mut node, 1, S, 1);
        let mut attached = Vec::new();
        node.attach(S, &mut attached);
        assert_eq!(attached, [order(1, &[1]), ack(2)].concat());
        assert_eq!(flushed(&mut node), []);
        assert_eq!(told(&mut node, S, &order(2, &[7])), Ok(vec![kept(2, 7)]));
        assert_eq!(flushed(&mut node), [Wish::Tell { to: S, body: ack(2) }]);
    }

    #[test]
    fn what_cannot_have_happened_is_refused_and_changes_nothing() {
        let mut node = started(SenderBased::new());
        deliver(&mut node, 1, S, 1);
        let never = |what, number| Err(Malformed::NeverReached { peer: S, what, number });
        assert_eq!(told(&mut node, S, &ack(1)), never("the place of message", 1));
        assert_eq!(told(&mut node, S, &order(0, &[1])), never("message", 0));
        assert_eq!(told(&mut node, S, &order(u64::MAX, &[1])), never("message", u64::MAX));
        assert_eq!(told(&mut node, S, &order(1, &[5, 5])), never("delivery", 5));
        assert!(told(&mut node, S, &order(1, &[5])).is_ok());
        assert_eq!(told(&mut node, S, &order(2, &[4])), never("delivery", 4));
        let mut late = Vec::new();
        order::put_order(&mut late, Ssn(2), [Place { life: SECOND, ..place(6) }].iter());
        assert_eq!(told(&mut node, S, &late), never("life", 2));
        assert_eq!(told(&mut node, S, &[order(2, &[6]), ack(9)].concat()), never("the place of message", 9));
        assert_eq!(told(&mut node, S, &[9]), Err(Malformed::Tag { tag: 9 }));
        assert!(told(&mut node, S, &order(2, &[6])).is_ok());
    }

    #[test]
    fn a_new_life_of_a_sender_is_told_the_history_and_nothing_becomes_outstanding() {
        let mut node = started(SenderBased::new());
        for delivery in 1..=3 {
            deliver(&mut node, delivery, S, delivery);
        }
        flushed(&mut node);
        told(&mut node, S, &ack(2)).expect("two were told");
        for (life, first) in [(FIRST, 3), (SECOND, 1), (SECOND, 1)] {
            node.disconnected(S);
            let mut wishes = Vec::new();
            node.connected(S, life, &mut wishes);
            let deliveries: Vec<_> = (first..=3).collect();
            assert_eq!(wishes, [Wish::Tell { to: S, body: order(first, &deliveries) }]);
            assert_eq!(node.recoverable(), DeliveryIndex(2));
        }
    }

    #[test]
    fn a_checkpoint_ends_the_history_but_leaves_no_gap_in_what_is_told() {
        let mut node = started(SenderBased::new());
        deliver(&mut node, 1, S, 1);
        flushed(&mut node);
        deliver(&mut node, 2, S, 2);
        node.checkpointed(DeliveryIndex(2));
        assert_eq!(node.recoverable(), DeliveryIndex(2));
        node.duplicate(S, Ssn(1), &mut Vec::new());
        assert_eq!(flushed(&mut node), [Wish::Tell { to: S, body: order(2, &[2]) }]);
        node.duplicate(S, Ssn(2), &mut Vec::new());
        assert_eq!(flushed(&mut node), [Wish::Tell { to: S, body: order(2, &[2]) }]);

        let mut saved = Vec::new();
        node.save(&mut saved);
        let mut next = SenderBased::new();
        next.restore(&saved).expect("what was saved reads back");
        deliver(&mut next, 3, S, 3);
        assert_eq!(next.recoverable(), DeliveryIndex(2));
        next.recovered(SECOND, DeliveryIndex(3), &mut Vec::new());
        assert_eq!(next.recoverable(), DeliveryIndex(3));
        for end in 0..saved.len() {
            assert!(matches!(SenderBased::new().restore(&saved[..end]), Err(Malformed::Truncated(_))));
        }
    }

    #[test]
    fn a_long_history_is_told_in_pieces() {
        let mut node = started(SenderBased::new());
        let count = 2 * PLACES_MAX as u64 + 1;
        for delivery in 1..=count {
            deliver(&mut node, delivery, S, delivery);
        }
        let wishes = flushed(&mut node);
        assert_eq!(wishes.len(), 3);
        let mut sender = started(SenderBased::new());
        for wish in wishes {
            let Wish::Tell { body, .. } = wish else { panic!("something is told") };
            told(&mut sender, S, &body).expect("pieces join");
        }
        assert_eq!(flushed(&mut sender), [Wish::Tell { to: S, body: ack(count) }]);
    }

    #[test]
    fn the_hybrid_takes_whichever_is_first_and_asks_the_journal_for_a_sender_that_is_away() {
        let mut node = started(SenderBased::hybrid());
        deliver(&mut node, 1, S, 1);
        deliver(&mut node, 2, T, 1);
        flushed(&mut node);
        told(&mut node, T, &ack(1)).expect("it was told");
        node.safe(Lsn(10));
        assert_eq!(node.recoverable(), DeliveryIndex(2));

        deliver(&mut node, 3, S, 2);
        let mut wishes = Vec::new();
        node.needed(DeliveryIndex(3), &mut wishes);
        assert_eq!(wishes, [], "S is there and will confirm");
        node.disconnected(S);
        assert_eq!(flushed(&mut node), [Wish::Flush]);
        assert_eq!(flushed(&mut node), [], "once is enough");
        node.safe(Lsn(30));
        assert_eq!(node.recoverable(), DeliveryIndex(3));
    }

    #[test]
    fn the_hybrid_tells_nobody_a_place_that_its_journal_has_already() {
        let (mut node, mut sender) = (started(SenderBased::hybrid()), started(SenderBased::new()));
        deliver(&mut node, 1, S, 1);
        let told_first = flushed(&mut node);
        node.safe(Lsn(20));
        deliver(&mut node, 2, S, 2);
        assert_eq!((node.recoverable(), flushed(&mut node)), (DeliveryIndex(2), vec![]));
        assert_eq!(told(&mut node, S, &ack(1)), Ok(vec![]), "it was told, and is needed no more");

        deliver(&mut node, 3, S, 3);
        let told_behind_a_gap = flushed(&mut node);
        assert_eq!(told_behind_a_gap, [Wish::Tell { to: S, body: order(3, &[3]) }]);
        for wish in [told_first, told_behind_a_gap].concat() {
            let Wish::Tell { body, .. } = wish else { panic!("something is told") };
            assert_eq!(told(&mut sender, S, &body).map(|wishes| wishes.len()), Ok(1));
        }
        assert_eq!(flushed(&mut sender), [Wish::Tell { to: S, body: ack(3) }]);

        let mut wishes = Vec::new();
        node.disconnected(S);
        node.connected(S, SECOND, &mut wishes);
        assert_eq!(wishes, [Wish::Tell { to: S, body: order(3, &[3]) }], "also a new life of the sender");
    }
}
