//! The composer: routes events to the journal, the tables, the handler and the gate, and their wishes to the driver.
//!
//! One owner of all data, one event at a time, no locks. The price is that waiting is spelled out as state: a request that
//! finds no free page stands in `backlog`, a delivery that waits for its record in `logged`, an effect in the gate.
//!
//! After every step: what the journal has published is known to the gate; nothing stands in `logged` whose record is safe;
//! nothing stands in `backlog` while the journal takes records.

use crate::checkpoint::{self, Saved};
use crate::config::Config;
use crate::effect::{Abandoned, Effect, Limit, Output, Reply, Unavailable};
use crate::event::{CheckpointEvent, Event, ReplyToken};
use crate::handler::{Answer, Handler, Random};
use crate::history::{Done, History, panic_message};
use crate::port::{Delivery as PortDelivery, OutputState, PortIndex};
use crate::record::delivery::Delivery;
use crate::record::intended;
use crate::record::prefix::Prefix;
use crate::schedule::Schedule;
use crate::stats::Stats;
use crate::tables::Known;
use mainstay_gate::gate::Gate;
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::journal::{AppendError, Appended, Health, Journal};
use mainstay_journal::memory::PageMemory;
use mainstay_types::held::{Held, Origin};
use mainstay_types::id::{DeliveryIndex, Incarnation, InstanceId, Lsn, OutputId};
use mainstay_types::machine::Machine;
use mainstay_types::mark::{After, Mark};
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The instance of a process with a single state.
pub(crate) const INSTANCE: InstanceId = InstanceId(0);

/// How often a full disk is asked again.
const FULL_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A recoverable process. Made by [`Process::recover`].
#[derive(Debug)]
pub struct Process<H, M> {
    pub(crate) config: Config,
    pub(crate) incarnation: Incarnation,
    pub(crate) history: History<H>,
    pub(crate) journal: Journal<M>,
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
}

/// Buffers reused between steps.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    disk: Vec<DiskEffect>,
    released: Vec<Held<Leaving>>,
    head: Vec<u8>,
}

/// What stands in the gate.
#[derive(Debug)]
pub(crate) enum Leaving {
    Reply {
        token: ReplyToken,
        reply: Reply,
    },
    Output(OutputId),
    /// An at-most-once output whose delivery is stable; now its intention must become durable.
    Intended(OutputId),
}

/// Something that wants to be logged and delivered.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) delivery: Delivery,
    pub(crate) token: Option<ReplyToken>,
}

/// Something logged whose delivery waits for its record to be safe.
#[derive(Debug)]
pub(crate) struct Logged {
    appended: Appended,
    prefix: Prefix,
    pending: Pending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Running,
    /// Letting out what is held, then a checkpoint, then the seal.
    Stopping {
        checkpoint_asked: bool,
        seal: Option<Lsn>,
    },
    Stopped,
    /// The handler panicked: state and tables are worthless, every further event is ignored.
    Abandoned,
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

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Takes one event; see [`Machine::step`].
    pub fn step(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        if matches!(self.life, Life::Abandoned | Life::Stopped) {
            refuse_after_life(event, out);
            return;
        }
        match event {
            Event::Request(request) => {
                let delivery = Delivery::Request {
                    identity: request.identity,
                    body: request.body,
                };
                self.request(delivery, request.token, out);
            }
            Event::Register { token } => self.request(Delivery::Registered, token, out),
            Event::Query { token, body } => self.query(token, &body, out),
            Event::Resolve {
                token,
                output,
                resolution,
            } => {
                self.request(Delivery::Resolved { output, resolution }, token, out);
            }
            Event::Output { output, outcome } => self.internal(Delivery::Settled { output, outcome }, out),
            Event::OutputInDoubt { output } => self.output_in_doubt(output),
            Event::Disk(event) => self.disk_event(event, out),
            Event::Checkpoint(event) => self.checkpoint_event(event),
            Event::Drained => self.drained(),
            Event::Tick => self.tick(out),
            Event::CheckpointNow => self.schedule.force(),
            Event::Stop if self.life == Life::Running => {
                self.life = Life::Stopping {
                    checkpoint_asked: false,
                    seal: None,
                };
            }
            Event::Stop => {}
        }
        self.after_step(out);
    }

    /// Writes the checkpoint of this moment. The driver calls it when it performs [`Effect::SaveCheckpoint`], before the next step.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn save(&self, into: &mut dyn io::Write) -> io::Result<Saved> {
        let identity = (
            self.replay_from(),
            self.history.store,
            self.config.version,
            self.config.name.as_str(),
        );
        checkpoint::save(into, identity, &self.history.tables, |into| {
            self.history.handler.save(into)
        })
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
            backlog: self.backlog.len() + self.logged.len(),
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

    /// The last delivery executed.
    #[must_use]
    pub fn executed(&self) -> DeliveryIndex {
        self.history.tables.executed
    }

    // ---- what comes in

    fn request(&mut self, delivery: Delivery, token: ReplyToken, out: &mut Vec<Effect>) {
        let refusal = if self.life != Life::Running {
            Some(Reply::Unavailable {
                reason: Unavailable::Stopping,
            })
        } else if self.backlog.len() + self.logged.len() >= self.config.limits.backlog_requests_max {
            self.stats.refused += 1;
            Some(Reply::Busy {
                limit: Limit::Backlog,
            })
        } else {
            None
        };
        if let Some(reply) = refusal {
            out.push(Effect::Reply { token, reply });
            return;
        }
        self.submit(
            Pending {
                delivery,
                token: Some(token),
            },
            out,
        );
    }

    /// Deliveries that nobody could repeat if they were refused: bounded by the outputs and timers that lead to them.
    fn internal(&mut self, delivery: Delivery, out: &mut Vec<Effect>) {
        self.submit(
            Pending {
                delivery,
                token: None,
            },
            out,
        );
    }

    fn submit(&mut self, pending: Pending, out: &mut Vec<Effect>) {
        if self.backlog.is_empty() {
            if let Err(pending) = self.admit(pending, out) {
                self.stats.stalled += 1;
                self.backlog.push_back(pending);
            }
        } else {
            self.stats.stalled += 1;
            self.backlog.push_back(pending);
        }
    }

    fn query(&mut self, token: ReplyToken, body: &[u8], out: &mut Vec<Effect>) {
        let handler = &self.history.handler;
        let answer = catch_unwind(AssertUnwindSafe(|| handler.query(body)))
            .unwrap_or_else(|payload| failed_query(&panic_message(payload.as_ref())));
        let as_of = self.history.tables.executed_end;
        self.hold_reply(
            token,
            Reply::Read { answer, as_of },
            as_of,
            Rule::AcknowledgeAfterStable,
            out,
        );
    }

    fn tick(&mut self, out: &mut Vec<Effect>) {
        self.wake = None;
        for timer in self.history.tables.timers.due(self.now) {
            let waits = |pending: &Pending| pending.delivery == Delivery::Timer { timer };
            if !self.backlog.iter().any(waits) && !self.logged.iter().any(|logged| waits(&logged.pending)) {
                self.internal(Delivery::Timer { timer }, out);
            }
        }
        if matches!(self.journal.health(), Health::Full { .. }) {
            self.journal.retry(&mut self.scratch.disk);
        }
    }

    // ---- from the door into the journal

    /// Decides what a pending delivery is; gives it back if no page is free.
    fn admit(&mut self, pending: Pending, out: &mut Vec<Effect>) -> Result<(), Pending> {
        match (&pending.delivery, pending.token) {
            (Delivery::Request { identity, body }, Some(token)) => {
                let limits = &self.config.limits;
                let known = self
                    .history
                    .tables
                    .lookup(identity, body, self.now, limits, self.config.rules);
                if let Some((reply, end)) = self.known_reply(known) {
                    self.hold_reply(token, reply, end, Rule::DuplicateAfterStable, out);
                    return Ok(());
                }
            }
            (Delivery::Registered, Some(token)) => {
                let limits = &self.config.limits;
                if self
                    .history
                    .tables
                    .clients
                    .full(limits.clients_max, limits.client_idle_min, self.now)
                {
                    self.stats.refused += 1;
                    out.push(Effect::Reply {
                        token,
                        reply: Reply::Busy {
                            limit: Limit::Clients,
                        },
                    });
                    return Ok(());
                }
            }
            (Delivery::Resolved { output, .. }, Some(token)) => {
                let in_doubt = |output: &crate::outbox::Pending| output.state == OutputState::InDoubt;
                if !self.history.tables.outbox.find(*output).is_some_and(in_doubt) {
                    let end = self.history.tables.executed_end;
                    self.hold_reply(token, Reply::NoSuchOutput, end, Rule::AcknowledgeAfterStable, out);
                    return Ok(());
                }
            }
            // A receiver may answer twice, or a life after the one that was told already.
            (Delivery::Settled { output, .. }, _) if self.history.tables.outbox.find(*output).is_none() => {
                return Ok(());
            }
            _ => {}
        }
        self.log(pending, out)
    }

    /// What is said to a request that is not to be delivered, and on the record that ends where that depends.
    fn known_reply(&mut self, known: Known) -> Option<(Reply, Lsn)> {
        let executed_end = self.history.tables.executed_end;
        match known {
            Known::Fresh => None,
            Known::Answered { answer, end, expires } => {
                self.stats.duplicates += 1;
                Some((
                    Reply::Answer {
                        answer,
                        replayed: true,
                        expires,
                    },
                    end,
                ))
            }
            Known::Running { end } => {
                self.stats.conflicts += 1;
                Some((Reply::StillRunning, end))
            }
            Known::Reused { end } => {
                self.stats.conflicts += 1;
                Some((Reply::KeyReused, end))
            }
            Known::Evicted => {
                self.stats.evicted += 1;
                Some((Reply::Evicted, executed_end))
            }
            Known::Refused(limit) => {
                self.stats.refused += 1;
                Some((Reply::Busy { limit }, Lsn::ZERO))
            }
        }
    }

    fn log(&mut self, pending: Pending, out: &mut Vec<Effect>) -> Result<(), Pending> {
        let tables = &self.history.tables;
        let prefix = Prefix {
            delivery: self.last_logged.next(),
            now: self.now,
            seed: self.seeds.next(),
            executed: tables.executed,
            summary: tables.summary,
        };
        let Scratch { head, disk, .. } = &mut self.scratch;
        head.clear();
        pending.delivery.put_head(&prefix, head);
        let parts = [head.as_slice(), pending.delivery.tail()];
        let appended = match self
            .journal
            .append(pending.delivery.kind(), INSTANCE, &parts, disk)
        {
            Ok(appended) => appended,
            Err(error) => return self.not_logged(pending, error, out),
        };
        self.last_logged = prefix.delivery;
        self.history
            .logged(&pending.delivery, &prefix, appended.end, &self.config);
        self.publish(out);
        let logged = Logged {
            appended,
            prefix,
            pending,
        };
        if self.logged.is_empty() && self.may_deliver(&logged) {
            self.deliver(logged, out);
        } else {
            self.logged.push_back(logged);
        }
        Ok(())
    }

    fn not_logged(&self, pending: Pending, error: AppendError, out: &mut Vec<Effect>) -> Result<(), Pending> {
        let reason = match error {
            AppendError::Stalled => return Err(pending),
            AppendError::Full { .. } if pending.token.is_none() => return Err(pending),
            AppendError::Full { .. } => Unavailable::DiskFull,
            AppendError::Poisoned { .. } => Unavailable::Poisoned,
            AppendError::Sealed => Unavailable::Stopping,
            AppendError::TooLarge { payload_bytes, .. } => {
                panic!(
                    "a record of {payload_bytes} bytes passed the body limit, which recovery checked against the page size"
                )
            }
        };
        if let Some(token) = pending.token {
            out.push(Effect::Reply {
                token,
                reply: Reply::Unavailable { reason },
            });
        }
        Ok(())
    }

    // ---- from the journal through the handler to the gate

    fn may_deliver(&self, logged: &Logged) -> bool {
        let after = self
            .config
            .policy
            .delivery_after(self.config.level, logged.appended.end);
        self.gate.met(&after)
    }

    fn deliver(&mut self, logged: Logged, out: &mut Vec<Effect>) {
        let Logged {
            appended,
            prefix,
            pending,
        } = logged;
        let attempts = self.journal.begin_attempt(appended.lsn);
        match self
            .history
            .execute(&pending.delivery, &prefix, appended.end, &self.config)
        {
            Ok(done) => {
                self.journal.end_attempt();
                self.stats.delivered += 1;
                self.hold_effects(&pending, &prefix, appended.end, done, out);
            }
            Err(panicked) => {
                self.life = Life::Abandoned;
                let lsn = appended.lsn;
                out.push(Effect::Abandon(Abandoned {
                    lsn,
                    attempts,
                    message: panicked.message,
                }));
            }
        }
    }

    fn hold_effects(
        &mut self,
        pending: &Pending,
        prefix: &Prefix,
        end: Lsn,
        done: Done,
        out: &mut Vec<Effect>,
    ) {
        let reply = match (&pending.delivery, done.answer, done.registered) {
            (Delivery::Request { identity, .. }, Some(answer), _) => {
                let expires = self.history.tables.expires(identity, prefix.now);
                Some(Reply::Answer {
                    answer,
                    replayed: false,
                    expires,
                })
            }
            (_, _, Some(client)) => Some(Reply::Registered { client }),
            (Delivery::Resolved { .. }, ..) => Some(Reply::Resolved),
            _ => None,
        };
        if let (Some(token), Some(reply)) = (pending.token, reply) {
            self.hold_reply(token, reply, end, Rule::AcknowledgeAfterStable, out);
        }
        for output in done.outputs {
            self.hold_output(output, end, out);
        }
        if let Some(output) = done.send_again {
            let after = self.effect_after(end);
            self.hold(Leaving::Intended(output), after, out);
        }
    }

    fn hold_reply(&mut self, token: ReplyToken, reply: Reply, end: Lsn, rule: Rule, out: &mut Vec<Effect>) {
        let after = if self.config.rules.keep(rule) {
            self.effect_after(end)
        } else {
            After::NOTHING
        };
        self.hold(Leaving::Reply { token, reply }, after, out);
    }

    pub(crate) fn hold_output(&mut self, output: OutputId, end: Lsn, out: &mut Vec<Effect>) {
        let after = if self.config.rules.keep(Rule::SendAfterStable) {
            self.effect_after(end)
        } else {
            After::NOTHING
        };
        self.hold(Leaving::Output(output), after, out);
    }

    fn hold(&mut self, what: Leaving, after: After, out: &mut Vec<Effect>) {
        let delivery = self.history.tables.executed;
        let origin = Origin {
            instance: INSTANCE,
            incarnation: self.incarnation,
            delivery,
        };
        if let Some(held) = self.gate.hold(Held { what, after, origin }) {
            self.release(held.what, out);
        }
    }

    fn effect_after(&self, end: Lsn) -> After {
        self.config.policy.effect_after(self.config.level, end)
    }

    // ---- from the gate to the world

    fn release(&mut self, leaving: Leaving, out: &mut Vec<Effect>) {
        match leaving {
            Leaving::Reply { token, reply } => out.push(Effect::Reply { token, reply }),
            Leaving::Output(output) => self.output_stable(output, out),
            Leaving::Intended(output) => self.emit(output, false, out),
        }
    }

    fn output_stable(&mut self, id: OutputId, out: &mut Vec<Effect>) {
        let Some(pending) = self.history.tables.outbox.find_mut(id) else {
            return;
        };
        match History::<H>::guarantee(pending, &self.config) {
            Some(PortDelivery::AtMostOnce) if !pending.intended => {
                pending.state = OutputState::Stable;
                self.intend(id, out);
            }
            Some(_) => self.emit(id, false, out),
            None => pending.state = OutputState::InDoubt,
        }
    }

    /// Records that an at-most-once output is about to leave; it leaves when that record is safe.
    fn intend(&mut self, id: OutputId, out: &mut Vec<Effect>) {
        let payload = intended::encode(id);
        match self
            .journal
            .append(intended::KIND, INSTANCE, &[&payload], &mut self.scratch.disk)
        {
            Ok(appended) => {
                let pending = self
                    .history
                    .tables
                    .outbox
                    .find_mut(id)
                    .expect("a stable output is pending");
                pending.intended = true;
                self.publish(out);
                let after = self.effect_after(appended.end);
                self.hold(Leaving::Intended(id), after, out);
            }
            Err(AppendError::Stalled | AppendError::Full { .. }) => self.intents.push_back(id),
            // It stays pending and was not sent: the next life takes it up.
            Err(AppendError::Poisoned { .. } | AppendError::Sealed) => {}
            Err(AppendError::TooLarge { .. }) => unreachable!("8 bytes fit every page"),
        }
    }

    pub(crate) fn emit(&mut self, id: OutputId, again: bool, out: &mut Vec<Effect>) {
        let key = self.output_key(id);
        let Some(pending) = self.history.tables.outbox.find_mut(id) else {
            return;
        };
        let Some(port) = self
            .config
            .ports
            .iter()
            .position(|port| *port.name == *pending.port)
        else {
            pending.state = OutputState::InDoubt;
            return;
        };
        pending.state = OutputState::Released;
        let output = Output {
            id,
            port: PortIndex(port),
            key,
            body: Arc::clone(&pending.body),
            again,
        };
        self.stats.outputs_released += 1;
        if !self.config.rules.keep(Rule::ReleaseOnce) {
            out.push(Effect::Output(output.clone()));
        }
        out.push(Effect::Output(output));
    }

    /// Not logged: a later life finds the intention without an outcome and comes to the same.
    fn output_in_doubt(&mut self, id: OutputId) {
        if let Some(pending) = self.history.tables.outbox.find_mut(id)
            && pending.state == OutputState::Released
        {
            pending.state = OutputState::InDoubt;
        }
    }

    fn output_key(&self, id: OutputId) -> String {
        format!("{}-{}", self.history.store, id.0)
    }

    fn intention_after(&self, id: OutputId) -> After {
        self.gate
            .iter()
            .find(|held| matches!(held.what, Leaving::Intended(waiting) if waiting == id))
            .map_or(After::NOTHING, |held| held.after)
    }

    // ---- what the journal says

    fn disk_event(&mut self, event: DiskEvent, out: &mut Vec<Effect>) {
        self.journal.step(event, &mut self.scratch.disk);
        if matches!(self.journal.health(), Health::Poisoned { .. }) {
            self.poisoned(out);
        }
    }

    /// Nothing held on the durable mark will ever leave: say so to whoever waits, without saying what became of it.
    fn poisoned(&mut self, out: &mut Vec<Effect>) {
        let mut discarded = Vec::new();
        self.gate.never(Mark::Durable, &mut discarded);
        let held = discarded.into_iter().filter_map(|held| match held.what {
            Leaving::Reply { token, .. } => Some(token),
            Leaving::Output(_) | Leaving::Intended(_) => None,
        });
        let logged = self.logged.drain(..).filter_map(|logged| logged.pending.token);
        let backlog = self.backlog.drain(..).filter_map(|pending| pending.token);
        for token in held.chain(logged).chain(backlog) {
            out.push(Effect::Reply {
                token,
                reply: Reply::Unavailable {
                    reason: Unavailable::Poisoned,
                },
            });
        }
    }

    fn publish(&mut self, out: &mut Vec<Effect>) {
        let mut released = std::mem::take(&mut self.scratch.released);
        self.gate
            .advance(Mark::Appended, self.journal.end().0, &mut released);
        self.gate
            .advance(Mark::Durable, self.journal.durable().0, &mut released);
        for held in released.drain(..) {
            self.release(held.what, out);
        }
        self.scratch.released = released;
    }

    fn after_step(&mut self, out: &mut Vec<Effect>) {
        if self.life != Life::Abandoned {
            self.publish(out);
            self.go_on(out);
            self.checkpoint(out);
            self.stop(out);
            self.set_wake(out);
        }
        out.extend(self.scratch.disk.drain(..).map(Effect::Disk));
    }

    /// The end of a recovery is the end of a step.
    pub(crate) fn after_recovery(&mut self, out: &mut Vec<Effect>) {
        self.after_step(out);
    }

    /// Takes up everything that waited for the journal.
    fn go_on(&mut self, out: &mut Vec<Effect>) {
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
        let logged = self.logged.back().map(|last| last.appended.end.0);
        let checkpoint = self.schedule.wants_durable().map(|lsn| lsn.0);
        let stopping = matches!(self.life, Life::Stopping { .. }).then(|| self.journal.end().0);
        let wanted = [self.gate.wanted(Mark::Durable), logged, checkpoint, stopping]
            .into_iter()
            .flatten()
            .max();
        if wanted.is_some_and(|wanted| wanted > self.journal.durable().0) {
            self.journal.flush(&mut self.scratch.disk);
        }
    }

    // ---- checkpoints and the clean stop

    /// Where a replay of this moment's state would begin.
    fn replay_from(&self) -> Lsn {
        self.logged
            .front()
            .map_or(self.journal.end(), |first| first.appended.lsn)
    }

    fn checkpoint(&mut self, out: &mut Vec<Effect>) {
        let executed = self.history.tables.executed;
        if self.life != Life::Abandoned
            && !matches!(self.journal.health(), Health::Poisoned { .. } | Health::Sealed)
            && self
                .schedule
                .due(self.journal.end(), executed, self.now, &self.config.limits)
        {
            let lsn = self.replay_from();
            self.schedule.begin(lsn, executed, self.now);
            out.push(Effect::SaveCheckpoint { lsn });
            if !self.config.rules.keep(Rule::TrimAfterCheckpoint) {
                self.journal.trim(lsn, &mut self.scratch.disk);
            }
        }
        if let Some(lsn) = self.schedule.publishable(self.journal.durable()) {
            out.push(Effect::PublishCheckpoint { lsn });
        }
    }

    fn checkpoint_event(&mut self, event: CheckpointEvent) {
        match event {
            CheckpointEvent::Saved {
                lsn,
                state_hash,
                bytes,
            } => self.schedule.saved(lsn, Saved { state_hash, bytes }),
            CheckpointEvent::Published { lsn, oldest } => {
                if let Some(bytes) = self.schedule.published(lsn) {
                    self.stats.checkpoints += 1;
                    self.stats.checkpoint_bytes = bytes;
                    if oldest > self.journal.first() {
                        self.journal.trim(oldest, &mut self.scratch.disk);
                    }
                }
            }
            CheckpointEvent::Failed { .. } => {
                self.stats.checkpoints_failed += 1;
                self.schedule.failed();
            }
        }
    }

    fn stop(&mut self, out: &mut Vec<Effect>) {
        let Life::Stopping {
            checkpoint_asked,
            seal,
        } = self.life
        else {
            return;
        };
        if matches!(
            self.journal.health(),
            Health::Poisoned { .. } | Health::Full { .. }
        ) {
            self.life = Life::Stopped;
            out.push(Effect::Stopped);
            return;
        }
        if let Some(sealed) = seal {
            if self.journal.durable() >= sealed {
                self.life = Life::Stopped;
                out.push(Effect::Stopped);
            }
            return;
        }
        let outbox = &self.history.tables.outbox;
        // An at-most-once output in flight would be in doubt in the next life: its answer is worth waiting for.
        let in_flight = outbox
            .iter()
            .any(|(_, output)| output.intended && output.state != OutputState::InDoubt);
        if !self.backlog.is_empty() || !self.logged.is_empty() || !self.gate.is_empty() || in_flight {
            return;
        }
        let executed = self.history.tables.executed;
        if !checkpoint_asked && self.schedule.idle() {
            self.life = Life::Stopping {
                checkpoint_asked: true,
                seal: None,
            };
            if !self.schedule.current(executed) {
                self.schedule.force();
                self.checkpoint(out);
                return;
            }
        }
        let trimming_done = self.schedule.idle();
        if trimming_done && self.journal.durable() == self.journal.end() && !self.journal.flushing() {
            // A journal with no free page seals after the next completion.
            if let Ok(appended) = self.journal.seal(&mut self.scratch.disk) {
                self.life = Life::Stopping {
                    checkpoint_asked: true,
                    seal: Some(appended.end),
                };
            }
        }
    }

    pub(crate) fn set_wake(&mut self, out: &mut Vec<Effect>) {
        let tables = &self.history.tables;
        let retry =
            matches!(self.journal.health(), Health::Full { .. }).then(|| self.now.after(FULL_RETRY_INTERVAL));
        let checkpoint = self.schedule.next(tables.executed, &self.config.limits);
        let next = [tables.timers.next(), checkpoint, retry]
            .into_iter()
            .flatten()
            .min();
        if let Some(next) = next
            && self.wake.is_none_or(|wake| next < wake)
        {
            self.wake = Some(next);
            out.push(Effect::Wake(next));
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
    out.push(Effect::Reply {
        token,
        reply: Reply::Unavailable {
            reason: Unavailable::Stopping,
        },
    });
}

fn failed_query(message: &str) -> Answer {
    let message: String = message
        .chars()
        .filter(|c| !c.is_control() && *c != '"' && *c != '\\')
        .collect();
    let body = format!(
        r#"{{"error":"read_failed","message":"the handler failed on this read: {message}; no state was changed"}}"#
    );
    Answer {
        status: 500,
        body: body.into_bytes(),
    }
}
