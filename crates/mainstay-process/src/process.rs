//! The composer: routes events to the journal, the tables, the handler and the gate, and their wishes to the driver.
//!
//! One owner of all data, one event at a time, no locks. The price is that waiting is spelled out as state: a request that
//! finds no free page stands in `backlog`, a delivery that waits for its record in `logged`, an effect in the gate.
//!
//! After every step: what the journal has published is known to the gate; nothing stands in `logged` whose record is safe;
//! nothing stands in `backlog` while the journal takes records.

use crate::blocking::Blocked;
use crate::checkpoint::{self, Saved};
use crate::config::Config;
use crate::effect::{Effect, Reply, Unavailable};
use crate::event::{Event, ReplyToken, Request};
use crate::handler::{Handler, Random, RequestId};
use crate::history::History;
use crate::intake::{Logged, Pending};
use crate::keeping::Keeping;
use crate::lifecycle::Life;
use crate::line::Line;
use crate::links::Links;
use crate::loss::{LOSSES_MAX, Loss};
use crate::outlet::{Leaving, refuse_poisoned};
use crate::port::OutputState;
use crate::record::delivery::Delivery;
use crate::record::quarantined::Quarantined;
use crate::schedule::Schedule;
use crate::sessions::Sessions;
use crate::snapshot::Snapshots;
use crate::stats::Stats;
use mainstay_channel::channel::Retained;
use mainstay_gate::gate::Gate;
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::journal::{Health, Journal};
use mainstay_journal::memory::PageMemory;
use mainstay_journal::open::Attempt;
use mainstay_types::held::Held;
use mainstay_types::id::{DeliveryIndex, Incarnation, InstanceId, Lsn, NodeId, OutputId, StoreId};
use mainstay_types::level::Level;
use mainstay_types::machine::Machine;
use mainstay_types::mark::{After, Mark};
use mainstay_types::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// The instance of a process with a single state.
pub(crate) const INSTANCE: InstanceId = InstanceId(0);

/// A recoverable process. Made by [`Process::recover`].
#[derive(Debug)]
pub struct Process<H, M> {
    pub(crate) config: Config,
    pub(crate) incarnation: Incarnation,
    pub(crate) history: History<H>,
    pub(crate) journal: Journal<M>,
    pub(crate) keeping: Keeping,
    pub(crate) gate: Gate<Leaving>,
    pub(crate) backlog: VecDeque<Pending>,
    pub(crate) logged: VecDeque<Logged>,
    /// At-most-once outputs whose intention found no free page.
    pub(crate) intents: VecDeque<OutputId>,
    pub(crate) schedule: Schedule,
    pub(crate) last_logged: DeliveryIndex,
    pub(crate) seeds: Random,
    pub(crate) now: Time,
    pub(crate) life: Life,
    pub(crate) wake: Option<Time>,
    pub(crate) stats: Stats,
    pub(crate) scratch: Scratch,
    /// The message without a record whose delivery an earlier life did not survive, until it is tried again.
    pub(crate) suspect: Option<Attempt>,
    /// Verdicts of this life that are not recorded yet.
    pub(crate) verdicts: Vec<Quarantined>,
    /// Who waits for requests that a later delivery answers.
    pub(crate) waiting: BTreeMap<RequestId, Vec<ReplyToken>>,
    /// Where the record of the last of them ends.
    pub(crate) waiting_end: Lsn,
    /// A clean stop was asked for while this life still collected; it begins when that is over.
    pub(crate) stop_asked: bool,
    /// What this life knows to be lost for good.
    pub(crate) losses: Vec<Loss>,
    /// Whether the life before ended as it should, or there was none: nothing of it can be missing.
    pub(crate) began_whole: bool,
    /// What is volatile about the links to other nodes; `None` for a process that stands alone.
    pub(crate) sessions: Option<Sessions>,
    pub(crate) snapshots: Snapshots,
    /// Set while it begins nothing new.
    pub(crate) blocked: Option<Blocked>,
    /// Its way to a line that all nodes agree on, after a loss.
    pub(crate) line: Line,
}

/// Buffers reused between steps.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) disk: Vec<DiskEffect>,
    pub(crate) released: Vec<Held<Leaving>>,
    pub(crate) head: Vec<u8>,
}

/// A pending output, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputView {
    /// Its number.
    pub id: OutputId,
    /// The name of its port.
    pub port: String,
    /// What its receiver deduplicates by.
    pub key: String,
    /// How far it is.
    pub state: OutputState,
    /// Length of its body, in bytes.
    pub bytes: usize,
    /// What it still waits for: mark, value waited for, value published.
    pub waits_for: Option<(Mark, u64, u64)>,
}

/// What a recovery would have to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToReplay {
    /// Where it would begin.
    pub from: Lsn,
    /// Deliveries to be executed again; some of them may have to come from other nodes.
    pub deliveries: u64,
    /// Bytes of log to be read.
    pub bytes: u64,
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Takes one event; see [`Machine::step`].
    pub fn step(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        let round_ends = matches!(event, Event::Drained);
        if matches!(self.life, Life::Abandoned | Life::Stopped) {
            refuse_after_life(event, out);
            return;
        }
        self.unblock_if_over();
        self.read_on(out);
        match event {
            Event::Request(request) => {
                let Request { token, identity, body } = request;
                let delivery = Delivery::Request { identity, expires: None, body };
                self.request(delivery, token, out);
            }
            Event::Register { token } => self.request(Delivery::Registered { replaces: None }, token, out),
            Event::Query { token, body } => self.query(token, &body, out),
            Event::Resolve { token, output, resolution } => {
                self.request(Delivery::Resolved { output, resolution }, token, out);
            }
            // What changes the state behind the last checkpoint would have to be replayed: the next life asks again.
            Event::Output { .. } | Event::Tick if self.is_closing() => {}
            Event::Output { output, outcome } => self.internal(Delivery::Settled { output, outcome }, out),
            Event::OutputInDoubt { output } => self.output_in_doubt(output),
            Event::Disk(event) => {
                self.disk_event(event, out);
                self.publish(out);
                // Whoever asked how far this disk is waits for the answer, not for the next round.
                let wanted = self.flush_logging();
                if wanted.is_some_and(|wanted| wanted > self.journal.durable().0) {
                    self.journal.flush(&mut self.scratch.disk);
                }
            }
            Event::Checkpoint(event) => self.checkpoint_event(event),
            Event::Snapshot(event) => self.snapshot_event(event, out),
            Event::TakeSnapshot { snapshot } => self.hear_of(snapshot),
            Event::Block(event) => self.block_event(event, out),
            Event::Peer(event) => self.peer_event(event, out),
            Event::Spill(event) => self.spill_event(event),
            Event::Kept { to, confirmed, checkpoint } => self.kept_event(to, confirmed, checkpoint),
            Event::Drained => {
                self.retry_postponed(out);
                self.drained();
            }
            Event::Tick => self.tick(out),
            Event::CheckpointNow => self.schedule.force(),
            Event::Stop if self.life == Life::Running => {
                self.unblock();
                self.life = Life::Stopping { checkpoint_asked: false, seal: None };
            }
            Event::Stop => self.stop_asked |= self.waits_for_others(),
        }
        self.after_step(round_ends, out);
    }

    /// Writes the checkpoint of this moment. The driver calls it when it performs [`Effect::SaveCheckpoint`], before the next step.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn save(&self, into: &mut dyn io::Write) -> io::Result<Saved> {
        self.save_by(into, |into| self.history.handler.save(into))
    }

    /// The same, by [`Handler::save_checked`].
    ///
    /// # Errors
    /// As there.
    pub fn save_checked(&self, into: &mut dyn io::Write) -> io::Result<Saved> {
        self.save_by(into, |into| self.history.handler.save_checked(into))
    }

    fn save_by(
        &self,
        into: &mut dyn io::Write,
        state: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> io::Result<Saved> {
        let identity =
            (self.replay_from(), self.history.store, self.config.version, self.config.name.as_str());
        let links = self.history.links.as_ref().map(Links::save).unwrap_or_default();
        checkpoint::save(into, identity, &self.history.tables, &links, state)
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let tables = &self.history.tables;
        let gate = self.gate.stats();
        Stats {
            outputs_settled: tables.outbox.settled,
            outputs_pending: tables.outbox.len(),
            outputs_in_doubt: tables
                .outbox
                .iter()
                .filter(|(_, output)| output.state == OutputState::InDoubt)
                .count(),
            held: self.gate.len(),
            passed: gate.passed,
            released: gate.released,
            keys: tables.keys.len(),
            clients: tables.clients.len(),
            backlog: self.backlog.len() + self.logged.len() + self.held_back().count(),
            quarantined: tables.quarantined,
            ..self.stats
        }
    }

    /// All outputs whose fate is not known, in the order of their emission.
    pub fn outputs(&self) -> impl Iterator<Item = OutputView> + '_ {
        self.history.tables.outbox.iter().map(|(id, pending)| {
            let after = match pending.state {
                OutputState::Prepared => self.effect_after(pending.end),
                OutputState::Stable => self.intention_after(id),
                OutputState::Released | OutputState::InDoubt => After::NOTHING,
            };
            let waits_for = after
                .waits()
                .map(|(mark, value)| (mark, value, self.gate.published(mark)))
                .find(|(_, value, published)| published < value);
            OutputView {
                id,
                port: pending.port.to_string(),
                key: self.output_key(id),
                state: pending.state,
                bytes: pending.body.len(),
                waits_for,
            }
        })
    }

    /// The journal, for its marks and counters.
    #[must_use]
    pub fn journal(&self) -> &Journal<M> {
        &self.journal
    }

    /// The handler, for tests and reports.
    #[must_use]
    pub fn handler(&self) -> &H {
        &self.history.handler
    }

    /// What a recovery would have to do if this process died now.
    #[must_use]
    pub fn to_replay(&self) -> ToReplay {
        let (from, known) = self.schedule.last();
        ToReplay {
            from,
            deliveries: self.history.tables.executed.0.saturating_sub(known.0),
            bytes: self.journal.end().0.saturating_sub(from.0),
        }
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The identity of its directory.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.history.store
    }

    /// This life.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The last delivery executed.
    #[must_use]
    pub fn executed(&self) -> DeliveryIndex {
        self.history.tables.executed
    }

    /// Whether this life still gathers what other nodes remember of its past, or waits for all to agree on a line after a loss: until then
    /// the node counts as down.
    #[must_use]
    pub fn is_collecting(&self) -> bool {
        self.waits_for_others()
    }

    /// Whether `peer`, itself recovered, has said that it knows that this node is: from then on a failure of `peer` is one after this node's, and not at
    /// the same time.
    #[must_use]
    pub fn is_known_to_be_recovered(&self, peer: NodeId) -> bool {
        self.history.links.as_ref().is_none_or(|links| links.channel.is_heard_by(peer))
    }

    /// What this life knows to be lost for good, because more nodes failed at once than a policy survives: the last
    /// [`LOSSES_MAX`] that it found.
    #[must_use]
    pub fn losses(&self) -> &[Loss] {
        &self.losses
    }

    /// Says what is lost; what a later life must say again has been recorded.
    pub(crate) fn say_loss(&mut self, loss: Loss, out: &mut Vec<Effect>) {
        if !self.losses.contains(&loss) {
            if self.losses.len() == LOSSES_MAX {
                self.losses.remove(0);
            }
            self.losses.push(loss.clone());
            out.push(Effect::Lost(loss));
        }
    }

    /// What is kept for each other node until it has no more need of it.
    pub fn retained(&self) -> impl Iterator<Item = Retained> + '_ {
        self.history.links.iter().flat_map(|links| links.channel.retained())
    }

    fn disk_event(&mut self, event: DiskEvent, out: &mut Vec<Effect>) {
        self.journal.step(event, &mut self.scratch.disk);
        if matches!(self.journal.health(), Health::Poisoned { .. }) {
            self.poisoned(out);
        }
    }

    /// Nothing held on the durable mark will ever leave: say so to whoever waits, without saying what became of it.
    fn poisoned(&mut self, out: &mut Vec<Effect>) {
        self.unblock();
        let mut discarded = Vec::new();
        self.gate.never(Mark::Durable, &mut discarded);
        for held in discarded {
            refuse_poisoned(held.what, out);
        }
        let logged = self.logged.drain(..).filter_map(|logged| logged.pending.token);
        let backlog = self.backlog.drain(..).filter_map(|pending| pending.token);
        for token in logged.chain(backlog) {
            out.push(Effect::Reply { token, reply: Reply::Unavailable { reason: Unavailable::Poisoned } });
        }
    }

    pub(crate) fn publish(&mut self, out: &mut Vec<Effect>) {
        let safe = self.safe_lsn();
        let mut released = std::mem::take(&mut self.scratch.released);
        let mut discarded = Vec::new();
        self.gate.advance(Mark::Appended, self.journal.end().0, &mut released, &mut discarded);
        self.gate.advance(Mark::Durable, self.journal.durable().0, &mut released, &mut discarded);
        if self.config.level == Level::Peers {
            for (mark, value) in self.keeping_marks() {
                self.gate.advance(mark, value, &mut released, &mut discarded);
            }
        }
        if let Some(links) = &mut self.history.links {
            links.logging.safe(safe);
            let recoverable = links.logging.recoverable();
            self.gate.advance(Mark::Recoverable, recoverable.0, &mut released, &mut discarded);
        }
        for held in discarded {
            refuse_poisoned(held.what, out);
        }
        for held in released.drain(..) {
            self.release(held.what, out);
        }
        self.scratch.released = released;
    }

    pub(crate) fn after_step(&mut self, round_ends: bool, out: &mut Vec<Effect>) {
        if self.life != Life::Abandoned {
            self.publish(out);
            self.answer_the_unanswered(out);
            self.agree_on_a_line(out);
            self.go_on(out);
            self.say_passive();
            self.perform_wishes(out);
            self.cut(round_ends, out);
            self.finish_snapshot(out);
            self.checkpoint(out);
            self.stop(out);
            self.cover_senders();
            self.spill(out);
            self.set_wake(out);
        }
        self.send_frames(round_ends, out);
        self.keep(round_ends, out);
        out.extend(self.scratch.disk.drain(..).map(Effect::Disk));
    }

    /// Takes up everything that waited for the journal.
    fn go_on(&mut self, out: &mut Vec<Effect>) {
        self.record_missed();
        self.record_verdicts();
        self.go_on_collecting(out);
        while self.life != Life::Abandoned && self.logged.front().is_some_and(|first| self.may_deliver(first))
        {
            let first = self.logged.pop_front().expect("a front was just seen");
            self.deliver(first, out);
        }
        for _ in 0..self.intents.len() {
            let Some(output) = self.intents.pop_front() else {
                break;
            };
            self.intend(output, out);
        }
        if self.waits_for_others() || !self.deliver_in_hand(out) {
            return;
        }
        self.take_up_outcomes();
        while self.life != Life::Abandoned
            && let Some(pending) = self.backlog.pop_front()
        {
            if let Err(pending) = self.admit(pending, out) {
                self.backlog.push_front(pending);
                break;
            }
        }
    }

    /// One sync for everything that waits for one, and none if nothing does.
    fn drained(&mut self) {
        let flush = self.flush_logging();
        // At level peers they wait for the region, and for no disk.
        let logged = self.logged.back().filter(|_| self.config.level != Level::Peers);
        let logged = logged.map(|last| last.appended.end.0);
        let checkpoint = self.schedule.wants_durable().map(|lsn| lsn.0);
        let stopping = matches!(self.life, Life::Stopping { .. }).then(|| self.journal.end().0);
        // Where messages are in no journal, this record is all that the answer will wait for here: the disk works while other nodes do.
        let answer = (!self.config.policy.journals_messages())
            .then(|| self.effect_after(self.waiting_end).value_of(Mark::Durable))
            .flatten();
        let snapshot = self.snapshots.wants_durable();
        let wanted = [self.gate.wanted(Mark::Durable), logged, checkpoint, snapshot, stopping, answer, flush]
            .into_iter()
            .flatten()
            .max();
        if wanted.is_some_and(|wanted| wanted > self.journal.durable().0) {
            self.journal.flush(&mut self.scratch.disk);
        }
    }
}

impl<H: Handler, M: PageMemory> Machine for Process<H, M> {
    type Event = Event;
    type Effect = Effect;

    fn step(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        Self::step(self, now, event, out);
    }
}

/// A request that reaches a process at the end of its life still gets a word.
fn refuse_after_life(event: Event, out: &mut Vec<Effect>) {
    let token = match event {
        Event::Request(request) => request.token,
        Event::Query { token, .. } | Event::Register { token } | Event::Resolve { token, .. } => token,
        _ => return,
    };
    out.push(Effect::Reply { token, reply: Reply::Unavailable { reason: Unavailable::Stopping } });
}
