//! Going on from a consistent line after more failures than a policy survives.
//!
//! ```text
//!   A recovers, less than it had delivered ──────────┐ both wait, delivering nothing, until all nodes name the same lives:
//!   B greets A: depends on what A lost               │
//!     └─> RollBack ─> replay up to the first delivery│that does ─> a new life, whose dependants do the same ─┐
//!         what is undone is named                    │                                                       │
//!                                                    └── Agreed ── Agreed ── Agreed ── all the same ── go on ◄┘
//! ```
//! Two nodes in session do not depend on anything that the present life of the other has lost: both checked that when they greeted. So when
//! every node has named the same lives as those it is in session with, no state anywhere depends on a lost one, directly or through others.
//! Who has gone back delivers nothing before that. Each further step back therefore takes at least one delivery, and none goes below the
//! line, the latest states that depend on nothing lost: a cascade ends (docs/message-logging.md).
//!
//! What is undone has left the senders' logs where this node's journal had it: such messages stay *in hand* and are delivered anew, before
//! anything else. They are not asked for again.

use crate::collecting::{Collecting, Journaled};
use crate::effect::{Effect, HangUp};
use crate::event::Identity;
use crate::handler::Handler;
use crate::intake::{Logged, Pending};
use crate::lifecycle::Life;
use crate::links::Links;
use crate::loss::{Loss, RollBack, UNDONE_REQUESTS_NAMED_MAX};
use crate::process::{INSTANCE, Process};
use crate::record::delivery::Delivery;
use crate::record::orphaned::Orphaned;
use crate::record::prefix::Prefix;
use crate::record::rolled_back::{self, RolledBack};
use crate::record::stated;
use crate::sessions::Arrived;
use mainstay_channel::frame::Frame;
use mainstay_channel::hello::Orphan;
use mainstay_channel::refusal::Refusal;
use mainstay_journal::memory::PageMemory;
use mainstay_recovery::policy::Policy;
use mainstay_types::determinant::Point;
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId, Ssn};
use mainstay_types::rules::Rule;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Ended lives of a node, each with the last delivery that was recovered.
pub(crate) type Ends = Vec<(Incarnation, DeliveryIndex)>;

/// Nodes, each with the life that someone is in session with.
type Lives = Vec<(NodeId, Incarnation)>;

/// What a replay leaves out, because another node lost what it depends on.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    /// Why anything is left out in this replay.
    orphaned: Option<Orphaned>,
    /// The first delivery left out, once it is found.
    pub(crate) at: Option<DeliveryIndex>,
    /// What is known to be lost: messages made of that are not kept.
    lost: Vec<(NodeId, Ends)>,
    /// Messages of deliveries that are undone; the last record of each counts.
    in_hand: BTreeMap<(NodeId, Ssn), Arrived>,
    undone: Undone,
}

/// What is undone besides messages, as far as this node's journal tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Undone {
    requests: BTreeMap<DeliveryIndex, String>,
    outputs: BTreeMap<DeliveryIndex, u16>,
}

impl Undone {
    pub(crate) fn add(&mut self, prefix: &Prefix, delivery: &Delivery) {
        if let Delivery::Request { identity, .. } = delivery {
            self.requests.insert(prefix.delivery, named(identity));
        }
        self.outputs.insert(prefix.executed, prefix.summary.outputs);
    }
}

impl Cut {
    /// For a node that goes back for `orphaned`, and that went back for `before`.
    pub(crate) fn new(orphaned: Option<Orphaned>, before: &[Orphaned]) -> Self {
        let lost = before.iter().chain(&orphaned);
        let lost = lost.map(|orphaned| (orphaned.lost, orphaned.ends.clone())).collect();
        Self { orphaned, lost, ..Self::default() }
    }

    /// Whether this delivery, or one before it, depends on what was lost.
    pub(crate) fn leaves_out(&mut self, prefix: &Prefix, delivery: &Delivery) -> bool {
        if self.at.is_none()
            && let Some(Orphaned { lost, ends, .. }) = &self.orphaned
            && let Delivery::Message { from, origin, .. } = delivery
            && from == lost
            && Orphan::of(*origin, ends).is_some()
        {
            self.at = Some(prefix.delivery);
        }
        let left_out = self.at.is_some_and(|at| prefix.delivery >= at);
        if left_out {
            self.undone.add(prefix, delivery);
        }
        left_out
    }

    /// A delivery is undone: if it was of a message that is not lost itself, the message is still there.
    pub(crate) fn keep_in_hand(&mut self, delivery: Delivery) {
        let Delivery::Message { from, ssn, origin, stamp, body } = delivery else { return };
        let lost = self.lost.iter().any(|(node, ends)| *node == from && Orphan::of(origin, ends).is_some());
        if !lost {
            self.in_hand.insert((from, ssn), Arrived { from, ssn, origin, place: None, stamp, body });
        }
    }

    /// What a life begins with, behind a replay that has come to its end.
    pub(crate) fn into_line(self, links: Option<&mut Links>) -> Line {
        let Self { orphaned, in_hand, undone, .. } = self;
        let mut line = Line { must_agree: orphaned.is_some(), orphaned, undone, ..Line::default() };
        let Some(links) = links else { return line };
        for ((from, ssn), arrived) in in_hand {
            let last = line.last_in_hand(from).unwrap_or_else(|| links.channel.delivered_up_to(from));
            if ssn == last.next() {
                links.channel.hold_in_hand(from, ssn);
                line.in_hand.push_back(arrived);
            }
        }
        line.must_agree |= !line.in_hand.is_empty();
        line
    }
}

/// How far this life is from a line that all nodes agree on.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// This life goes back behind what another node lost, and has not said yet how far.
    pub(crate) orphaned: Option<Orphaned>,
    pub(crate) undone: Undone,
    /// It delivers nothing before all agree.
    pub(crate) must_agree: bool,
    /// It has waited for that at some time.
    pub(crate) had_to_agree: bool,
    /// To be delivered before anything else.
    pub(crate) in_hand: VecDeque<Arrived>,
    /// Who asked for the lives that this node is in session with.
    asking: BTreeSet<NodeId>,
    told: BTreeMap<NodeId, Lives>,
    agreed: BTreeMap<NodeId, Lives>,
}

impl Line {
    fn last_in_hand(&self, from: NodeId) -> Option<Ssn> {
        self.in_hand.iter().rev().find(|arrived| arrived.from == from).map(|arrived| arrived.ssn)
    }

    pub(crate) fn session_ended(&mut self, peer: NodeId) {
        self.asking.remove(&peer);
        self.told.remove(&peer);
    }

    /// Whether `peer` has said that it is in session with these lives.
    pub(crate) fn agrees(&self, peer: NodeId, lives: &[(NodeId, Incarnation)]) -> bool {
        self.agreed.get(&peer).is_some_and(|agreed| agreed == lives)
    }

    pub(crate) fn take_agreed(&mut self, peer: NodeId, asks: bool, lives: Lives) {
        if asks {
            self.asking.insert(peer);
        }
        self.agreed.insert(peer, lives);
    }
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// More nodes were down at once than a policy survives: it is told how far this one came, and it waits for the others to go back.
    pub(crate) fn state_what_is_lost(&mut self, collecting: &Collecting, out: &mut Vec<Effect>) {
        if self.failures_survived().is_none() {
            return;
        }
        let (others, beyond) = self.down_together(collecting);
        let orphans = self.history.links.as_ref().is_some_and(|links| links.channel.has_orphans());
        if (beyond || orphans) && !self.began_whole {
            let life = Incarnation(self.incarnation.0.saturating_sub(1));
            let recovered = self.history.tables.executed;
            let together_with = others.into_iter().collect();
            // Nothing that was lost may be given another place, or number, before those who depend on it have gone back.
            self.line.must_agree = true;
            if self.config.rules.keep(Rule::LossStated) {
                let loss = Loss::Recovered { life, recovered, together_with };
                // Without a free page it is only said.
                let record = stated::encode(&loss);
                let _recorded =
                    self.journal.append(stated::KIND, INSTANCE, &[&record], &mut self.scratch.disk);
                self.say_loss(loss, out);
            }
        }
    }

    /// This node depends on what `lost` has lost: it gives itself up, and its next life leaves that out.
    pub(crate) fn go_behind(
        &mut self,
        lost: NodeId,
        ends: &[(Incarnation, DeliveryIndex)],
        out: &mut Vec<Effect>,
    ) {
        if self.life == Life::Abandoned || !self.goes_back() {
            return;
        }
        self.life = Life::Abandoned;
        let executed = self.history.tables.executed;
        let orphaned = Orphaned { lost, executed, ends: ends.to_vec() };
        out.push(Effect::RollBack(RollBack::Orphan(orphaned)));
    }

    /// Whether this node depends on what `peer` lost, if its lives ended as `ends` says: what is logged and waits to be delivered is history
    /// as well. Not of a node that rolls back: its protocol tells what it lost.
    pub(crate) fn depends_on_lost(&self, peer: NodeId, ends: &[(Incarnation, DeliveryIndex)]) -> bool {
        let Some(links) = &self.history.links else { return false };
        !links.policies[&peer].rolls_back()
            && (links.channel.depends_on_lost(peer, ends).is_some()
                || Orphan::of(seen_by(&self.logged, peer), ends).is_some())
    }

    /// What it has replayed last may depend on what another node lost that recovered before it: then it gives itself up again. Returns whether it has.
    pub(crate) fn go_behind_who_recovered(&mut self, out: &mut Vec<Effect>) -> bool {
        let lost = self.history.links.as_ref().and_then(|links| links.channel.orphaned_by());
        let Some((peer, ends)) = lost.map(|(peer, ends)| (peer, ends.to_vec())) else { return false };
        if !self.depends_on_lost(peer, &ends) {
            return false;
        }
        self.go_behind(peer, &ends, out);
        self.life == Life::Abandoned
    }

    /// Without any log there is nothing to go back to.
    pub(crate) fn goes_back(&self) -> bool {
        self.config.policy != Policy::Unlogged && self.config.rules.keep(Rule::OrphansRollBack)
    }

    /// Messages in hand that `peer` has lost meanwhile are dropped; the session, in which they were not asked for, is to begin again.
    pub(crate) fn drop_lost_in_hand(
        &mut self,
        peer: NodeId,
        ends: &[(Incarnation, DeliveryIndex)],
    ) -> Result<(), HangUp> {
        let is_lost = |arrived: &&Arrived| arrived.from == peer && Orphan::of(arrived.origin, ends).is_some();
        let Some(first) = self.line.in_hand.iter().find(is_lost) else { return Ok(()) };
        let first = first.ssn;
        let Some(Orphan { depends_on, ended, last }) =
            self.line.in_hand.iter().find(is_lost).and_then(|arrived| Orphan::of(arrived.origin, ends))
        else {
            return Ok(());
        };
        self.line.in_hand.retain(|arrived| arrived.from != peer || arrived.ssn < first);
        if let Some(links) = &mut self.history.links {
            links.channel.hold_in_hand(peer, Ssn(first.0 - 1));
        }
        Err(Refusal::Orphaned { node: peer, depends_on, ended, recovered: last }.into())
    }

    /// How far this life went back is known: it is recorded, and said.
    ///
    /// Returns whether it is; a journal without a free page takes it later.
    pub(crate) fn say_what_is_undone(&mut self, out: &mut Vec<Effect>) -> bool {
        let Some(Orphaned { lost, executed, .. }) = &self.line.orphaned else { return true };
        let (lost, executed, kept) = (*lost, *executed, self.history.tables.executed);
        let Undone { requests, outputs } = self.line.undone.clone();
        let requests: Vec<String> =
            requests.into_iter().filter(|(index, _)| *index > kept).map(|(_, name)| name).collect();
        let outputs = outputs.into_iter().filter(|(index, _)| *index > kept);
        let loss = Loss::Undone {
            life: Incarnation(self.incarnation.0.saturating_sub(1)),
            kept,
            executed,
            lost_by: lost,
            requests: requests.len() as u64,
            outputs: outputs.map(|(_, count)| u64::from(count)).sum(),
            named: requests.into_iter().take(UNDONE_REQUESTS_NAMED_MAX).collect(),
        };
        // In front of the record that lets no later life undo it again: that life would not know what there was.
        let states = self.config.rules.keep(Rule::LossStated);
        let stated = stated::encode(&loss);
        if states && self.journal.append(stated::KIND, INSTANCE, &[&stated], &mut self.scratch.disk).is_err()
        {
            return false;
        }
        let done = RolledBack { keep: kept, lost, losses: Vec::new() };
        let appended =
            self.journal.append(rolled_back::KIND, INSTANCE, &[&done.encode()], &mut self.scratch.disk);
        let Ok(appended) = appended else { return false };
        self.history.tables.executed_end = self.history.tables.executed_end.max(appended.end);
        self.line.orphaned = None;
        self.line.undone = Undone::default();
        if states {
            self.say_loss(loss, out);
        }
        true
    }

    /// A record behind a hole that nobody can fill is undone as well.
    pub(crate) fn note_undone(&mut self, behind: &BTreeMap<DeliveryIndex, Journaled>) {
        if self.line.orphaned.is_some() {
            for Journaled { prefix, delivery, .. } in behind.values() {
                self.line.undone.add(prefix, delivery);
            }
        }
    }

    /// Whether new deliveries wait: for what other nodes remember, or for all to agree on a line.
    pub(crate) fn waits_for_others(&self) -> bool {
        matches!(self.life, Life::Collecting | Life::Agreeing)
    }

    /// Behind everything that `peer`, after a crash, has to keep for this node again.
    pub(crate) fn say_all_is_told(&mut self, peer: NodeId) {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        if links.channel.session(peer).is_some() {
            sessions.put(peer, &Frame::Agreed { asks: false, lives: links.channel.lives() });
        }
    }

    /// Tells those who ask, or whom this node asks, which lives it is in session with; goes on when all say the same.
    pub(crate) fn agree_on_a_line(&mut self, out: &mut Vec<Effect>) {
        let agreeing = self.life == Life::Agreeing;
        if self.life == Life::Collecting || !agreeing && self.line.asking.is_empty() {
            return;
        }
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        links.channel.agreeing(agreeing);
        self.line.had_to_agree |= agreeing;
        let lives = links.channel.lives();
        for &(peer, _) in &lives {
            let concerned = agreeing || self.line.asking.contains(&peer);
            if concerned
                && links.channel.is_peer(peer)
                && links.channel.session(peer).is_some()
                && self.line.told.get(&peer) != Some(&lives)
            {
                sessions.put(peer, &Frame::Agreed { asks: agreeing, lives: lives.clone() });
                self.line.told.insert(peer, lives.clone());
            }
        }
        let all_agree = links.channel.is_everyone(&lives)
            && links.nodes.iter().all(|&peer| self.line.agrees(peer, &lives));
        if agreeing && all_agree {
            links.channel.agreeing(false);
            self.line.must_agree = false;
            for (peer, _) in lives {
                if links.channel.is_peer(peer) {
                    sessions.put(peer, &Frame::Heard);
                }
            }
            self.go_on_from_the_line(out);
        }
    }

    /// Delivers what is in hand, while the journal takes it. Returns whether none is left.
    pub(crate) fn deliver_in_hand(&mut self, out: &mut Vec<Effect>) -> bool {
        while let Some(arrived) = self.line.in_hand.front().cloned() {
            if matches!(self.life, Life::Abandoned) {
                return false;
            }
            let pending = Pending { delivery: arrived.delivery(), token: None };
            if self.admit(pending, out).is_err() {
                return false;
            }
            self.line.in_hand.pop_front();
        }
        true
    }
}

/// The highest state of `peer` that a message came from which is logged and waits to be delivered.
pub(crate) fn seen_by(logged: &VecDeque<Logged>, peer: NodeId) -> Point {
    let origins = logged.iter().filter_map(|logged| match logged.pending.delivery {
        Delivery::Message { from, origin, .. } if from == peer => Some(origin),
        _ => None,
    });
    origins.max().unwrap_or_default()
}

fn named(identity: &Identity) -> String {
    match identity {
        Identity::None => "a request without a key".to_owned(),
        Identity::Key(key) => String::from_utf8_lossy(key).into_owned(),
        Identity::Client { client, thread, sequence } => format!("{client}, {thread}, {sequence}"),
    }
}
