//! From the door into the journal: what a request is, and whether it is logged.

use crate::attempts::lsn_of_message;
use crate::effect::{Effect, Limit, Reply, Unavailable};
use crate::event::{Identity, ReplyToken, Resolution};
use crate::handler::{Answer, Handler};
use crate::history::panic_message;
use crate::lifecycle::Life;
use crate::port::OutputState;
use crate::process::{INSTANCE, Process, Scratch};
use crate::record::delivery::Delivery;
use crate::record::prefix::Prefix;
use crate::tables::Known;
use mainstay_journal::journal::{AppendError, Appended, Health};
use mainstay_journal::memory::PageMemory;
use mainstay_types::id::{ClientId, Lsn, OutputId};
use mainstay_types::rules::Rule;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Something that wants to be logged and delivered.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) delivery: Delivery,
    pub(crate) token: Option<ReplyToken>,
}

/// Something logged whose delivery waits for its record to be safe.
#[derive(Debug)]
pub(crate) struct Logged {
    pub(crate) appended: Appended,
    pub(crate) prefix: Prefix,
    pub(crate) pending: Pending,
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    pub(crate) fn request(&mut self, delivery: Delivery, token: ReplyToken, out: &mut Vec<Effect>) {
        let refusal = if !matches!(self.life, Life::Running | Life::Collecting | Life::Agreeing) {
            Some(Reply::Unavailable { reason: Unavailable::Stopping })
        } else if self.backlog.len() + self.logged.len() >= self.config.limits.backlog_requests_max {
            self.stats.refused += 1;
            Some(Reply::Busy { limit: Limit::Backlog })
        } else if self.keeps_too_little() {
            self.stats.refused += 1;
            Some(Reply::Busy { limit: Limit::Unkept })
        } else {
            None
        };
        if let Some(reply) = refusal {
            out.push(Effect::Reply { token, reply });
            return;
        }
        self.submit(Pending { delivery, token: Some(token) }, out);
    }

    /// Deliveries that nobody could repeat if they were refused: bounded by the outputs and timers that lead to them.
    pub(crate) fn internal(&mut self, delivery: Delivery, out: &mut Vec<Effect>) {
        self.submit(Pending { delivery, token: None }, out);
    }

    pub(crate) fn submit(&mut self, pending: Pending, out: &mut Vec<Effect>) {
        // The handler panicked earlier in this step. Nothing may be logged or tried behind that: a later attempt would overwrite the
        // count of this one, and the next life would take the panic for a delivery that had succeeded.
        if self.life == Life::Abandoned {
            return;
        }
        let Some(pending) = self.hold_back(pending, out) else { return };
        // On a full disk what nobody could repeat waits for space; a request is answered at once.
        let not_behind = pending.token.is_some() && matches!(self.journal.health(), Health::Full { .. });
        let waits = self.waits_for_others() || !self.line.in_hand.is_empty();
        if !waits && (self.backlog.is_empty() || not_behind) {
            if let Err(pending) = self.admit(pending, out) {
                self.stats.stalled += 1;
                self.backlog.push_back(pending);
            }
        } else {
            self.stats.stalled += 1;
            self.backlog.push_back(pending);
        }
    }

    pub(crate) fn query(&mut self, token: ReplyToken, body: &[u8], out: &mut Vec<Effect>) {
        let handler = &self.history.handler;
        let answer = catch_unwind(AssertUnwindSafe(|| handler.query(body)))
            .unwrap_or_else(|payload| failed_query(&panic_message(payload.as_ref())));
        let as_of = self.history.tables.executed_end;
        self.hold_reply(token, Reply::Read { answer, as_of }, as_of, Rule::AcknowledgeAfterStable, out);
    }

    /// Whether a person may decide so about this output. Not while another decision, or its end, is logged and waits to be delivered: a second
    /// decision would send twice, or be told that it was taken when it was not.
    fn may_be_resolved(&self, id: OutputId, resolution: Resolution) -> bool {
        let is_its = |delivery: &Delivery| matches!(delivery, Delivery::Resolved { output, .. } | Delivery::Settled { output, .. } if *output == id);
        let Some(output) = self.history.tables.outbox.find(id) else { return false };
        let open = match output.state {
            OutputState::InDoubt => true,
            OutputState::Released => {
                resolution != Resolution::SendAgain && self.port_to_withdraw_from(id).is_some()
            }
            OutputState::Prepared | OutputState::Stable => false,
        };
        open && !self.logged.iter().any(|logged| is_its(&logged.pending.delivery))
    }

    /// Whether the delivery of a due timer is on its way already.
    pub(crate) fn waits(&self, timer: u64) -> bool {
        let is_its = |pending: &Pending| pending.delivery == Delivery::Timer { timer };
        self.backlog.iter().any(is_its)
            || self.held_back().any(is_its)
            || self.logged.iter().any(|logged| is_its(&logged.pending))
    }

    pub(crate) fn tick(&mut self, out: &mut Vec<Effect>) {
        self.wake = None;
        for timer in self.history.tables.timers.due(self.now) {
            // A timer that sets the next one would go on without end while nothing is kept.
            if !self.keeps_too_little() && !self.waits(timer) {
                self.internal(Delivery::Timer { timer }, out);
            }
        }
        if matches!(self.journal.health(), Health::Full { .. }) {
            self.journal.retry(&mut self.scratch.disk);
        }
        if let Some(links) = &mut self.history.links {
            links.channel.retry_spill();
        }
    }

    /// Decides what a pending delivery is; gives it back if no page is free.
    pub(crate) fn admit(&mut self, mut pending: Pending, out: &mut Vec<Effect>) -> Result<(), Pending> {
        match (&mut pending.delivery, pending.token) {
            (Delivery::Request { identity, expires, body }, Some(token)) => {
                let limits = &self.config.limits;
                *expires = matches!(identity, Identity::Key(_)).then(|| self.now.after(limits.key_retention));
                if self.is_pinned() {
                    self.stats.refused += 1;
                    out.push(Effect::Reply { token, reply: Reply::Busy { limit: Limit::SenderLog } });
                    return Ok(());
                }
                let known = match given_away(&self.logged, identity) {
                    Some(end) => Known::Evicted { end: Some(end) },
                    None => self.history.tables.lookup(identity, body, self.now, limits, self.config.rules),
                };
                if let Known::Open(request) = known {
                    self.stats.duplicates += 1;
                    self.waiting.entry(request).or_default().push(token);
                    return Ok(());
                }
                if let Some((reply, end)) = self.known_reply(known) {
                    self.hold_reply(token, reply, end, Rule::DuplicateAfterStable, out);
                    return Ok(());
                }
            }
            (Delivery::Registered { replaces }, Some(token)) => match self.place_for_client() {
                Some(place) => *replaces = place,
                None => {
                    self.stats.refused += 1;
                    out.push(Effect::Reply { token, reply: Reply::Busy { limit: Limit::Clients } });
                    return Ok(());
                }
            },
            (Delivery::Resolved { output, resolution }, Some(token))
                if !self.may_be_resolved(*output, *resolution) =>
            {
                let end = self.history.tables.executed_end;
                self.hold_reply(token, Reply::NoSuchOutput, end, Rule::AcknowledgeAfterStable, out);
                return Ok(());
            }
            // A receiver may answer twice, or a life after the one that was told already.
            (Delivery::Settled { output, .. }, _) if self.history.tables.outbox.find(*output).is_none() => {
                return Ok(());
            }
            _ => {}
        }
        self.log(pending, out)
    }

    /// The place for one more client: a free one (`Some(None)`), that of the longest idle one, or none. Registrations that are logged and
    /// not executed count, and a client with a request on its way is not idle.
    fn place_for_client(&self) -> Option<Option<ClientId>> {
        let limits = &self.config.limits;
        let clients = &self.history.tables.clients;
        let mut taken = clients.len();
        let mut busy = Vec::new();
        for logged in &self.logged {
            match &logged.pending.delivery {
                Delivery::Registered { replaces } => {
                    taken += usize::from(replaces.is_none());
                    busy.extend(*replaces);
                }
                Delivery::Request { identity: Identity::Client { client, .. }, .. } => busy.push(*client),
                _ => {}
            }
        }
        if taken < limits.clients_max {
            return Some(None);
        }
        clients.idle(limits.client_idle_min, self.now).find(|client| !busy.contains(client)).map(Some)
    }

    /// What is said to a request that is not to be delivered, and on the record that ends where that depends.
    fn known_reply(&mut self, known: Known) -> Option<(Reply, Lsn)> {
        let executed_end = self.history.tables.executed_end;
        match known {
            Known::Fresh | Known::Open(_) => None,
            Known::Answered { answer, end, expires } => {
                self.stats.duplicates += 1;
                Some((Reply::Answer { answer, replayed: true, expires }, end))
            }
            Known::Running { end } => {
                self.stats.conflicts += 1;
                Some((Reply::StillRunning, end))
            }
            Known::Reused { end } => {
                self.stats.conflicts += 1;
                Some((Reply::KeyReused, end))
            }
            Known::Evicted { end } => {
                self.stats.evicted += 1;
                Some((Reply::Evicted, end.unwrap_or(executed_end)))
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
        if matches!(pending.delivery, Delivery::Message { .. }) && !self.config.policy.journals_messages() {
            self.deliver_unjournaled(prefix, pending, out);
            return Ok(());
        }
        let Scratch { head, disk, .. } = &mut self.scratch;
        head.clear();
        pending.delivery.put_head(&prefix, head);
        let parts = [head.as_slice(), pending.delivery.tail()];
        let appended = match self.journal.append(pending.delivery.kind(), INSTANCE, &parts, disk) {
            Ok(appended) => appended,
            Err(error) => return self.not_logged(pending, error, out),
        };
        self.last_logged = prefix.delivery;
        self.history.logged(&pending.delivery, &prefix, appended.end);
        self.publish(out);
        let logged = Logged { appended, prefix, pending };
        if self.logged.is_empty() && self.may_deliver(&logged) {
            self.deliver(logged, out);
        } else {
            self.logged.push_back(logged);
        }
        Ok(())
    }

    /// Under a policy that keeps messages in other nodes' memory: the delivery has a place, but no record.
    fn deliver_unjournaled(&mut self, prefix: Prefix, pending: Pending, out: &mut Vec<Effect>) {
        let Delivery::Message { from, ssn, .. } = pending.delivery else {
            unreachable!("what comes from outside is always in the journal")
        };
        self.last_logged = prefix.delivery;
        let lsn = lsn_of_message(from, ssn);
        let appended = Appended { lsn, end: self.history.tables.executed_end };
        let logged = Logged { appended, prefix, pending };
        if self.logged.is_empty() {
            self.deliver(logged, out);
        } else {
            self.logged.push_back(logged);
        }
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
            out.push(Effect::Reply { token, reply: Reply::Unavailable { reason } });
        }
        Ok(())
    }
}

/// Where the logged registration ends that takes the place of this request's client: once it is delivered, what such a
/// request did could not be found again.
fn given_away(logged: &VecDeque<Logged>, identity: &Identity) -> Option<Lsn> {
    let Identity::Client { client, .. } = identity else { return None };
    let takes_it = |logged: &&Logged| matches!(logged.pending.delivery, Delivery::Registered { replaces: Some(replaced) } if replaced == *client);
    logged.iter().find(takes_it).map(|logged| logged.appended.end)
}

fn failed_query(message: &str) -> Answer {
    let message: String = message.chars().filter(|c| !c.is_control() && *c != '"' && *c != '\\').collect();
    let body = format!(
        r#"{{"error":"read_failed","message":"the handler failed on this read: {message}; no state was changed"}}"#
    );
    Answer { status: 500, body: body.into_bytes() }
}
