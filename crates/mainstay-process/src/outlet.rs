//! From the journal through the handler and the gate to the world.

use crate::effect::{Abandoned, Effect, Output, Reply, Unavailable};
use crate::event::{ReplyToken, Resolution};
use crate::handler::{Handler, RequestId};
use crate::history::{Done, History};
use crate::intake::{Logged, Pending};
use crate::lifecycle::Life;
use crate::links::Emitted;
use crate::port::{Guarantee, OutputState, Port, PortIndex};
use crate::process::{INSTANCE, Process};
use crate::record::delivery::Delivery;
use crate::record::intended;
use crate::record::prefix::Prefix;
use mainstay_gate::gate::Hold;
use mainstay_journal::journal::AppendError;
use mainstay_journal::memory::PageMemory;
use mainstay_recovery::policy::record_safe;
use mainstay_types::held::{Held, Origin};
use mainstay_types::id::{Lsn, NodeId, OutputId, Ssn};
use mainstay_types::mark::After;
use mainstay_types::rules::Rule;
use std::sync::Arc;

/// What stands in the gate.
#[derive(Debug)]
pub(crate) enum Leaving {
    Reply {
        token: ReplyToken,
        reply: Reply,
    },
    Output(OutputId),
    /// An output of an earlier life, taken up again.
    OutputAgain(OutputId),
    /// A message to another node.
    Message(Emitted),
    /// An at-most-once output whose delivery is stable; now its intention must become durable.
    Intended(OutputId),
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    pub(crate) fn may_deliver(&self, logged: &Logged) -> bool {
        let after = self.config.policy.delivery_after(self.config.level, logged.appended.end);
        self.gate.met(&after)
    }

    pub(crate) fn deliver(&mut self, logged: Logged, out: &mut Vec<Effect>) {
        let Logged { appended, prefix, pending } = logged;
        if self.life == Life::Abandoned {
            // The state is worthless since a delivery of this very step failed; an attempt at another would be counted in its place.
            return;
        }
        let (index, from) = (prefix.delivery, sender_of(&pending.delivery));
        if let Delivery::Resolved { output, resolution: Resolution::Delivered | Resolution::Abandon } =
            pending.delivery
            && let Some(port) = self.port_to_withdraw_from(output)
        {
            out.push(Effect::Withdraw { port, output });
        }
        if let Some(verdict) = self.given_up(appended.lsn) {
            let done = self.history.skip(&pending.delivery, &prefix, appended.end, &self.config);
            self.verdicts.push(verdict);
            self.record_verdicts();
            if let Some((from, ssn)) = from {
                self.received(from, ssn, index, appended.end);
            }
            self.hold_effects(pending, &prefix, done, out);
            return;
        }
        let attempts = self.begin_attempt(appended.lsn);
        match self.history.execute(&pending.delivery, &prefix, appended.end, &self.config) {
            Ok(done) => {
                self.end_attempt(appended.lsn);
                self.note_newest();
                self.stats.delivered += 1;
                if let Some((from, ssn)) = from {
                    self.received(from, ssn, index, appended.end);
                }
                self.hold_effects(pending, &prefix, done, out);
            }
            Err(panicked) => {
                self.life = Life::Abandoned;
                let lsn = appended.lsn;
                out.push(Effect::Abandon(Abandoned { lsn, attempts, message: panicked.message }));
            }
        }
    }

    fn hold_effects(&mut self, pending: Pending, prefix: &Prefix, done: Done, out: &mut Vec<Effect>) {
        let end = self.history.tables.executed_end;
        if self.history.links.is_some() {
            // A delivery may be recoverable from the start: what it leads to need not stand in the gate.
            self.publish(out);
        }
        let is_request = matches!(pending.delivery, Delivery::Request { .. });
        if let (true, None, Some(token)) = (is_request, &done.answer, pending.token) {
            self.waiting.insert(RequestId(prefix.delivery), vec![token]);
            self.waiting_end = end;
        }
        let reply = match (&pending.delivery, done.answer, done.registered) {
            (Delivery::Request { identity, .. }, Some(answer), _) => {
                let expires = self.history.tables.expires(identity, prefix.now);
                Some(Reply::Answer { answer, replayed: false, expires })
            }
            (_, _, Some(client)) => Some(Reply::Registered { client }),
            (Delivery::Resolved { .. }, ..) => Some(Reply::Resolved),
            _ => None,
        };
        if let (Some(token), Some(reply)) = (pending.token, reply) {
            self.hold_reply(token, reply, end, Rule::AcknowledgeAfterStable, out);
        }
        for late in done.late {
            for token in self.waiting.remove(&late.request).unwrap_or_default() {
                let reply = Reply::Answer {
                    answer: Arc::clone(&late.answer),
                    replayed: false,
                    expires: late.expires,
                };
                self.hold_reply(token, reply, end, Rule::AcknowledgeAfterStable, out);
            }
        }
        for output in done.outputs {
            self.hold_output(output, end, out);
        }
        for &message in &done.messages {
            self.hold_message(message, end, out);
        }
        self.history.reuse(done.messages);
        if let Some(output) = done.send_again
            && let Some(pending) = self.history.tables.outbox.find_mut(output)
            && pending.state == OutputState::InDoubt
        {
            // Not in doubt any more: a repeated decision finds nothing to decide.
            pending.state = OutputState::Stable;
            let after = self.effect_after(end);
            self.hold(Leaving::Intended(output), after, out);
        }
    }

    pub(crate) fn hold_reply(
        &mut self,
        token: ReplyToken,
        reply: Reply,
        end: Lsn,
        rule: Rule,
        out: &mut Vec<Effect>,
    ) {
        let after = if self.config.rules.keep(rule) { self.effect_after(end) } else { After::NOTHING };
        let after = self.confirmed_after(after, &reply);
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

    fn hold_message(&mut self, message: Emitted, end: Lsn, out: &mut Vec<Effect>) {
        let after = if self.config.rules.keep(Rule::MessageAfterLogged) {
            let links = self.history.links.as_ref().expect("only a node of a cluster emits messages");
            let index = links.logging.waits_for(message.to, self.history.tables.executed);
            let to = links.policies[&message.to];
            let after = self.config.policy.message_after(to, self.config.level, end, index);
            match links.logging.message_waits() {
                Some(end) => record_safe(self.config.level, end)
                    .waits()
                    .fold(after, |after, (mark, value)| after.and(mark, value)),
                None => after,
            }
        } else {
            After::NOTHING
        };
        self.hold(Leaving::Message(message), after, out);
    }

    pub(crate) fn hold(&mut self, what: Leaving, after: After, out: &mut Vec<Effect>) {
        let delivery = self.history.tables.executed;
        let origin = Origin { instance: INSTANCE, incarnation: self.incarnation, delivery };
        match self.gate.hold(Held { what, after, origin }) {
            Hold::Passed(held) => self.release(held.what, out),
            Hold::Waiting => {}
            Hold::Never(held) => refuse_poisoned(held.what, out),
        }
    }

    pub(crate) fn effect_after(&self, end: Lsn) -> After {
        self.config.policy.effect_after(self.config.level, end, self.history.tables.executed)
    }

    pub(crate) fn release(&mut self, leaving: Leaving, out: &mut Vec<Effect>) {
        match leaving {
            Leaving::Reply { token, reply } => out.push(Effect::Reply { token, reply }),
            Leaving::Output(output) => self.output_stable(output, out),
            Leaving::OutputAgain(output) => self.emit(output, true, out),
            Leaving::Message(Emitted { to, ssn }) => self.message_may_leave(to, ssn),
            Leaving::Intended(output) => self.emit(output, false, out),
        }
    }

    fn output_stable(&mut self, id: OutputId, out: &mut Vec<Effect>) {
        let Some(pending) = self.history.tables.outbox.find_mut(id) else {
            return;
        };
        match History::<H>::guarantee(pending, &self.config) {
            Some(Guarantee::AtMostOnce) if !pending.intended => {
                pending.state = OutputState::Stable;
                self.intend(id, out);
            }
            Some(_) => self.emit(id, false, out),
            None => pending.state = OutputState::InDoubt,
        }
    }

    /// Records that an at-most-once output is about to leave; it leaves when that record is safe.
    pub(crate) fn intend(&mut self, id: OutputId, out: &mut Vec<Effect>) {
        let payload = intended::encode(id);
        match self.journal.append(intended::KIND, INSTANCE, &[&payload], &mut self.scratch.disk) {
            Ok(appended) => {
                let pending = self.history.tables.outbox.find_mut(id).expect("a stable output is pending");
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
        let Some(port) = self.config.ports.iter().position(|port| *port.name == *pending.port) else {
            pending.state = OutputState::InDoubt;
            return;
        };
        pending.state = OutputState::Released;
        let output = Output { id, port: PortIndex(port), key, body: Arc::clone(&pending.body), again };
        self.stats.outputs_released += 1;
        if !self.config.rules.keep(Rule::ReleaseOnce) {
            out.push(Effect::Output(output.clone()));
        }
        out.push(Effect::Output(output));
    }

    /// Not logged: a later life finds the intention without an outcome and comes to the same.
    pub(crate) fn output_in_doubt(&mut self, id: OutputId) {
        if let Some(pending) = self.history.tables.outbox.find_mut(id)
            && pending.state == OutputState::Released
        {
            pending.state = OutputState::InDoubt;
        }
    }

    /// The port that has this output in hand and gives it back.
    pub(crate) fn port_to_withdraw_from(&self, id: OutputId) -> Option<PortIndex> {
        let pending =
            self.history.tables.outbox.find(id).filter(|pending| pending.state == OutputState::Released)?;
        let is_its = |port: &Port| *port.name == *pending.port && !port.lines;
        self.config.ports.iter().position(is_its).map(PortIndex)
    }

    pub(crate) fn output_key(&self, id: OutputId) -> String {
        let earlier = self.history.tables.outbox.find(id).and_then(|pending| pending.store);
        format!("{}-{}", earlier.unwrap_or(self.history.store), id.0)
    }

    pub(crate) fn intention_after(&self, id: OutputId) -> After {
        self.gate
            .iter()
            .find(|held| matches!(held.what, Leaving::Intended(waiting) if waiting == id))
            .map_or(After::NOTHING, |held| held.after)
    }
}

fn sender_of(delivery: &Delivery) -> Option<(NodeId, Ssn)> {
    match delivery {
        Delivery::Message { from, ssn, .. } => Some((*from, *ssn)),
        _ => None,
    }
}

/// What waited for a disk that failed: the client learns nothing of the outcome; an output is taken up by the next life.
pub(crate) fn refuse_poisoned(leaving: Leaving, out: &mut Vec<Effect>) {
    if let Leaving::Reply { token, .. } = leaving {
        out.push(Effect::Reply { token, reply: Reply::Unavailable { reason: Unavailable::Poisoned } });
    }
}
