//! Recovery by collecting: what of this node's past is in other nodes' memory comes back and is replayed in its place.
//!
//! ```text
//!   checkpoint + journal up to the first hole
//!        │                                           every peer: its retained messages for us, with the places it knows,
//!        v                                           then `Collected`
//!   replay the next index ── from the journal's records behind the hole, or a collected message at its place ──┐
//!        ▲                                                                                                     │
//!        └─────────────────────────────────────────────────────────────────────────────────────────────────────┘
//!        │ nothing placed is left, everyone has told
//!        v
//!   a new life: what came without a place is delivered now, in any order (nothing this node sent can depend on it)
//! ```
//! (Johnson and Zwaenepoel 1987; Zhao 2014, section 2.3.2; Alvisi, Hoppe and Marzullo 1993 for places kept by third nodes.)
//!
//! A place without its message is waited for as long as its sender is itself recovering: its replay sends it again. What lies
//! behind a hole that nobody can fill is given up: had anything depended on it, the hole would not be there, unless more nodes failed at
//! once than the policy survives; then the nodes that do depend on it say so when they greet.

mod passive;
mod together;

use self::passive::Passive;
use self::together::Together;
use crate::attempts::{lsn_of_input, lsn_of_message};
use crate::effect::{Abandoned, Effect};
use crate::handler::Handler;
use crate::lifecycle::Life;
use crate::process::{INSTANCE, Process};
use crate::record::delivery::Delivery;
use crate::record::prefix::Prefix;
use crate::record::quarantined::{self, Quarantined};
use crate::record::recalled;
use crate::record::rolled_back::{self, RolledBack};
use crate::sessions::Arrived;
use mainstay_channel::hello::Hello;
use mainstay_journal::memory::PageMemory;
use mainstay_journal::record::Kind;
use mainstay_recovery::logging::Source;
use mainstay_types::determinant::Place;
use mainstay_types::id::{DeliveryIndex, Generation, Lsn, NodeId, OutputId, Ssn};
use std::collections::{BTreeMap, BTreeSet};

/// What has been gathered so far.
#[derive(Debug, Default)]
pub(crate) struct Collecting {
    /// Who has not told everything it holds yet.
    waiting_for: BTreeSet<NodeId>,
    /// Who was recovering itself when it greeted, and has not said that its log is whole again.
    recovering: BTreeSet<NodeId>,
    /// Who was down in the time of this collection, and who with whom.
    pub(crate) together: Together,
    /// Whether anybody who recovers may still bring anybody else something.
    pub(crate) passive: Passive,
    /// Who crashed after this node did, and kept nothing in memory that it would have kept for this node.
    pub(crate) rejoining: BTreeSet<NodeId>,
    /// Deliveries of this node's own journal behind the first hole.
    pub(crate) journaled: BTreeMap<DeliveryIndex, Journaled>,
    /// Where messages belong.
    places: BTreeMap<DeliveryIndex, (Place, NodeId, Ssn)>,
    /// Outside inputs that other nodes remember.
    inputs: BTreeMap<DeliveryIndex, Journaled>,
    messages: BTreeMap<(NodeId, Ssn), Arrived>,
    /// Who collects as well and is to be answered once everyone who does not collect has told.
    pub(crate) to_answer: BTreeSet<NodeId>,
    /// At-most-once outputs whose intention is recorded, though their delivery stands behind the hole.
    pub(crate) intended: Vec<OutputId>,
    pub(crate) skipped: BTreeMap<Lsn, Quarantined>,
    /// The delivery that was being tried when the last life ended, and how often.
    pub(crate) attempt: Option<(Lsn, u32)>,
    /// Deliveries of this node's journal were undone, in this replay or before.
    pub(crate) went_back: bool,
    /// The first delivery that is left out, whatever comes: it depends on what another node lost.
    cut: Option<DeliveryIndex>,
}

/// A delivery of the journal that cannot be replayed before what is missing in front of it.
#[derive(Clone, Debug)]
pub(crate) struct Journaled {
    pub(crate) lsn: Lsn,
    pub(crate) end: Lsn,
    pub(crate) life: Generation,
    pub(crate) prefix: Prefix,
    pub(crate) delivery: Delivery,
}

enum Next {
    Journaled(Journaled),
    /// An outside input that this node's own journal lost.
    Input(Journaled),
    Message(Place, Arrived),
    /// A hole, or the end.
    None,
}

impl Collecting {
    pub(crate) fn from(peers: &[NodeId]) -> Self {
        Self { waiting_for: peers.iter().copied().collect(), ..Self::default() }
    }

    /// Nothing from delivery `at` on is to be replayed.
    pub(crate) fn cut(&mut self, at: Option<DeliveryIndex>) {
        self.cut = at;
        if let Some(at) = at {
            self.journaled.retain(|&index, _| index < at);
        }
    }

    /// A session with `peer` begins, in which it is asked for everything. What an earlier one told counts no more: the peer may have
    /// failed since, or it was recovering and had more to send. Its messages come again.
    pub(crate) fn connected(&mut self, peer: NodeId) {
        self.waiting_for.insert(peer);
        self.recovering.remove(&peer);
        self.to_answer.remove(&peer);
        self.messages.retain(|(from, _), _| *from != peer);
        self.together.session_changed(peer);
        self.passive.session_changed(peer);
    }

    /// The session with `peer` ended. One that recovers had more to send.
    pub(crate) fn disconnected(&mut self, peer: NodeId) {
        self.to_answer.remove(&peer);
        self.together.session_changed(peer);
        self.passive.session_changed(peer);
        if self.recovering.remove(&peer) {
            self.waiting_for.insert(peer);
        }
    }

    pub(crate) fn greeted(&mut self, peer: NodeId, hello: &Hello) {
        if hello.collecting {
            self.recovering.insert(peer);
        }
        if hello.rejoins {
            self.rejoining.insert(peer);
        }
        if !hello.collecting && !hello.agreeing {
            self.together.recovered(peer);
        } else if hello.crashed || hello.agreeing {
            self.together.down(peer, hello.identity.incarnation);
        }
    }

    /// `peer` has told everything it holds now.
    pub(crate) fn told(&mut self, peer: NodeId) {
        self.waiting_for.remove(&peer);
    }

    /// `peer` is recovered itself: it has sent everything again that it ever sent.
    pub(crate) fn recovered(&mut self, peer: NodeId) {
        self.recovering.remove(&peer);
        self.together.recovered(peer);
    }

    /// Who recovers as well, in a session with this node.
    pub(crate) fn recovering(&self) -> &BTreeSet<NodeId> {
        &self.recovering
    }

    pub(crate) fn waits_to_be_told_by(&self, peer: NodeId) -> bool {
        self.waiting_for.contains(&peer)
    }

    /// Whether nobody is left to hear from but nodes that collect themselves: a node that collects answers another one last, with what
    /// it has heard from those that do not.
    pub(crate) fn may_answer(&self) -> bool {
        self.waiting_for.is_subset(&self.recovering)
    }

    pub(crate) fn arrived(&mut self, arrived: Arrived) {
        if let Some(place) = arrived.place {
            self.place(place, arrived.from, arrived.ssn);
        }
        self.messages.insert((arrived.from, arrived.ssn), arrived);
    }

    /// Several lives may have given an index: the last one's counts, because it replayed what anything depended on.
    fn place(&mut self, place: Place, from: NodeId, ssn: Ssn) {
        let known = self.places.get(&place.delivery);
        if known.is_none_or(|(known, ..)| known.life <= place.life) {
            self.places.insert(place.delivery, (place, from, ssn));
        }
    }

    /// What another node's protocol remembers of this node's past.
    pub(crate) fn remembered(&mut self, place: Place, source: &Source) {
        match source {
            Source::Message { from, ssn, .. } => {
                self.place(place, *from, *ssn);
            }
            Source::Local { record, .. } => {
                if let Some(input) = input(place, record) {
                    self.inputs.insert(place.delivery, input);
                }
            }
        }
    }

    /// What stands at `index`, behind deliveries of `life`. Of several lives the last one's counts, and lives never go back along a history: what an
    /// earlier life put there was given up by the later one, even if its place is still remembered.
    fn take(&mut self, index: DeliveryIndex, life: Generation) -> Next {
        let placed = self.placed(index, life).copied();
        let later = |recorded: &Journaled| {
            recorded.life >= life && placed.is_none_or(|(place, ..)| place.life.0 <= recorded.life.0)
        };
        if self.journaled.get(&index).is_some_and(later) {
            return self.journaled.remove(&index).map_or(Next::None, Next::Journaled);
        }
        if self.inputs.get(&index).is_some_and(later) {
            return self.inputs.remove(&index).map_or(Next::None, Next::Input);
        }
        let Some((place, from, ssn)) = placed else { return Next::None };
        match self.messages.remove(&(from, ssn)) {
            Some(arrived) => Next::Message(place, arrived),
            None => Next::None,
        }
    }

    fn placed(&self, index: DeliveryIndex, life: Generation) -> Option<&(Place, NodeId, Ssn)> {
        let counts = self.cut.is_none_or(|cut| index < cut);
        self.places.get(&index).filter(|(place, ..)| counts && place.life.0 >= life.0)
    }

    /// Whether the content of `index` may still come: its place is known, and its sender is recovering.
    fn may_come(&self, index: DeliveryIndex, life: Generation) -> bool {
        self.placed(index, life).is_some_and(|(_, from, _)| self.recovering.contains(from))
    }

    /// What is left once nothing placed can be replayed any more: messages to be delivered as new.
    pub(crate) fn without_places(&mut self) -> Vec<Arrived> {
        std::mem::take(&mut self.messages).into_values().collect()
    }
}

/// An outside input as another node gives it back: kind and payload of its record. A message is none: its sender has it.
fn input(place: Place, record: &[u8]) -> Option<Journaled> {
    let (kind, payload) = record.split_at_checked(2)?;
    let kind = Kind(u16::from_le_bytes(kind.try_into().expect("split at 2")));
    let (prefix, delivery) = Delivery::decode(kind, payload).ok()??;
    let is_input = !matches!(delivery, Delivery::Message { .. });
    (is_input && prefix.delivery == place.delivery).then_some(Journaled {
        lsn: lsn_of_input(place.delivery),
        end: Lsn::ZERO,
        life: Generation(place.life.0),
        prefix,
        delivery,
    })
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Replays what has come, as far as it reaches; begins the new life when that is everything.
    pub(crate) fn go_on_collecting(&mut self, out: &mut Vec<Effect>) {
        while self.life == Life::Collecting {
            let next_index = self.history.tables.executed.next();
            let life = self.history.tables.life;
            let Some(collecting) = self.sessions.as_mut().and_then(|sessions| sessions.collecting.as_mut())
            else {
                return;
            };
            let next = collecting.take(next_index, life);
            collecting.passive.set(matches!(next, Next::None) && collecting.waiting_for.is_empty());
            match next {
                Next::Journaled(Journaled { lsn, end, life, prefix, delivery }) => {
                    self.replay_collected(lsn, end, life, &prefix, &delivery, out);
                }
                Next::Input(input) => {
                    let Some(end) = self.journal_again(&input) else {
                        // No free page: taken up again when one is written.
                        let collecting =
                            self.sessions.as_mut().and_then(|sessions| sessions.collecting.as_mut());
                        collecting.expect("seen above").inputs.insert(next_index, input);
                        return;
                    };
                    let Journaled { lsn, life, prefix, delivery, .. } = input;
                    self.replay_collected(lsn, end, life, &prefix, &delivery, out);
                }
                Next::Message(place, arrived) => {
                    let Place { delivery, life, now, seed } = place;
                    let tables = &self.history.tables;
                    let (executed, summary, end) = (tables.executed, tables.summary, tables.executed_end);
                    let (from, ssn) = (arrived.from, arrived.ssn);
                    let mut message = Journaled {
                        lsn: lsn_of_message(from, ssn),
                        end,
                        life: Generation(life.0),
                        prefix: Prefix { delivery, now, seed, executed, summary },
                        delivery: arrived.clone().delivery(),
                    };
                    if self.config.policy.journals_messages() {
                        // A hole in the journal would make what stands behind it worthless in the next crash, when those who fill it
                        // now have been told that it is safe.
                        let Some(end) = self.journal_again(&message) else {
                            let collecting =
                                self.sessions.as_mut().and_then(|sessions| sessions.collecting.as_mut());
                            collecting.expect("seen above").messages.insert((from, ssn), arrived);
                            return;
                        };
                        message.end = end;
                        self.received(from, ssn, delivery, end);
                    }
                    let Journaled { lsn, end, life, prefix, delivery } = message;
                    self.replay_collected(lsn, end, life, &prefix, &delivery, out);
                }
                Next::None if !collecting.waiting_for.is_empty() => return,
                Next::None if collecting.may_come(next_index, life) => return,
                Next::None => {
                    if self.go_behind_who_recovered(out)
                        || self.ask_who_outlived_whom()
                        || self.more_failed_than_is_survived() && !self.ask_whether_all_are_passive()
                    {
                        return;
                    }
                    if !self.void_what_is_behind_the_hole(out) {
                        // No free page: taken up again when one is written.
                        return;
                    }
                    self.begin_after_collecting(out);
                }
            }
        }
    }

    fn replay_collected(
        &mut self,
        lsn: Lsn,
        end: Lsn,
        life: Generation,
        prefix: &Prefix,
        delivery: &Delivery,
        out: &mut Vec<Effect>,
    ) {
        let collecting = self.sessions.as_mut().and_then(|sessions| sessions.collecting.as_mut());
        let collecting = collecting.expect("only a collecting life replays what it collected");
        let skipped = collecting.skipped.contains_key(&lsn);
        let failed = collecting.attempt.filter(|(at, _)| *at == lsn).map_or(0, |(_, attempts)| attempts);
        self.history.enter_life(life);
        self.last_logged = prefix.delivery;
        self.history.logged(delivery, prefix, end);
        self.stats.replayed += 1;
        let give_up = failed >= self.config.limits.handler_attempts_max;
        if skipped || give_up {
            self.history.skip(delivery, prefix, end, &self.config);
            // Whatever was counted, there is a verdict now.
            self.suspect = self.suspect.filter(|suspect| suspect.lsn != lsn);
            if give_up && !skipped {
                self.verdicts.push(Quarantined { lsn, attempts: failed });
            }
            return;
        }
        let attempts = self.begin_attempt(lsn);
        match self.history.execute(delivery, prefix, end, &self.config) {
            Ok(done) => {
                self.end_attempt(lsn);
                // A node that recovers at the same time may need them for its own replay.
                for message in done.messages {
                    self.message_may_leave(message.to, message.ssn);
                }
            }
            Err(panicked) => {
                self.life = Life::Abandoned;
                out.push(Effect::Abandon(Abandoned { lsn, attempts, message: panicked.message }));
            }
        }
    }

    /// What other nodes gave back is theirs to forget once this node's journal has it again.
    fn journal_again(&mut self, input: &Journaled) -> Option<Lsn> {
        let head = &mut self.scratch.head;
        head.clear();
        input.delivery.put_head(&input.prefix, head);
        let recalled = recalled::head(input.life, input.delivery.kind());
        let parts = [&recalled, head.as_slice(), input.delivery.tail()];
        let appended = self.journal.append(recalled::KIND, INSTANCE, &parts, &mut self.scratch.disk);
        appended.ok().map(|appended| appended.end)
    }

    /// Records of this node's journal behind a hole are never replayed: other deliveries get their indices.
    fn void_what_is_behind_the_hole(&mut self, out: &mut Vec<Effect>) -> bool {
        let cluster = self.config.cluster.as_ref().expect("only a node of a cluster collects");
        let keep = self.history.tables.executed;
        let sessions = self.sessions.as_mut().expect("a node has sessions");
        let journaled =
            sessions.collecting.as_mut().map(|collecting| std::mem::take(&mut collecting.journaled));
        let journaled = journaled.unwrap_or_default();
        if self.line.orphaned.is_some() {
            self.note_undone(&journaled);
            return self.say_what_is_undone(out);
        }
        if journaled.is_empty() {
            return true;
        }
        let void = RolledBack { keep, lost: cluster.me, losses: Vec::new() };
        let appended =
            self.journal.append(rolled_back::KIND, INSTANCE, &[&void.encode()], &mut self.scratch.disk);
        match appended {
            Ok(appended) => self.history.tables.executed_end = appended.end,
            Err(_) => {
                let collecting = self.sessions.as_mut().and_then(|sessions| sessions.collecting.as_mut());
                collecting.expect("it still collects").journaled = journaled;
                return false;
            }
        }
        true
    }

    /// Whatever verdicts a recovery came to are recorded; what leaves from now on waits for them.
    pub(crate) fn record_verdicts(&mut self) {
        while let Some(verdict) = self.verdicts.last() {
            let payload = verdict.encode();
            match self.journal.append(quarantined::KIND, INSTANCE, &[&payload], &mut self.scratch.disk) {
                Ok(appended) => self.history.tables.executed_end = appended.end,
                Err(_) => return,
            }
            self.verdicts.pop();
        }
    }
}

#[cfg(test)]
mod tests;
