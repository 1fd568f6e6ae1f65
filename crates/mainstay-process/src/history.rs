//! The deliveries of a process: the handler, its tables, and the one function through which both a first run and a replay
//! execute.

use crate::config::Config;
use crate::event::Resolution;
use crate::handler::{Answer, Asked, Context, Handler, Outcome, Random, RequestId};
use crate::links::{Emitted, LateAnswer, Links};
use crate::newest::Newest;
use crate::outbox::Pending;
use crate::port::{Guarantee, OutputState};
use crate::record::delivery::Delivery;
use crate::record::prefix::Prefix;
use crate::summary::Summary;
use crate::tables::Tables;
use mainstay_recovery::policy::Policy;
use mainstay_types::id::{ClientId, DeliveryIndex, Generation, Incarnation, Lsn, NodeId, OutputId, StoreId};
use mainstay_types::time::Time;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The handler with everything that a delivery may change.
#[derive(Debug)]
pub(crate) struct History<H> {
    pub(crate) handler: H,
    pub(crate) tables: Tables,
    pub(crate) store: StoreId,
    /// Its share of the cluster; `None` for a process that stands alone.
    pub(crate) links: Option<Links>,
    /// What the latest deliveries did, as far back as a record may still speak of it: a record written while other
    /// deliveries waited (immediate logging) names an earlier one.
    recent: VecDeque<(DeliveryIndex, Summary)>,
    recent_max: usize,
    /// Of a process that stands alone.
    pub(crate) newest: Option<Newest>,
    /// Buffers reused between deliveries.
    spare: Spare,
}

/// Empty, with room: a delivery that sends messages allocates nothing but the messages.
#[derive(Debug, Default)]
struct Spare {
    asked: Vec<(NodeId, Vec<u8>)>,
    emitted: Vec<Emitted>,
}

/// What a delivery led to, for the caller to hold.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) answer: Option<Arc<Answer>>,
    pub(crate) registered: Option<ClientId>,
    /// Emitted by this delivery.
    pub(crate) outputs: Vec<OutputId>,
    /// An output in doubt that a person wants sent again.
    pub(crate) send_again: Option<OutputId>,
    /// Timers set: when each is due, and its token.
    pub(crate) timers: Vec<(Time, u64)>,
    /// Messages to other nodes.
    pub(crate) messages: Vec<Emitted>,
    /// Requests of earlier deliveries that this one answered.
    pub(crate) late: Vec<LateAnswer>,
}

/// The handler panicked; the state of the history is worthless now.
#[derive(Debug)]
pub(crate) struct Panicked {
    pub(crate) message: String,
}

impl<H: Handler> History<H> {
    pub(crate) fn new(
        handler: H,
        tables: Tables,
        links: Option<Links>,
        store: StoreId,
        config: &Config,
    ) -> Self {
        let recent = VecDeque::from([(tables.executed, tables.summary)]);
        let recent_max = config.limits.backlog_requests_max + 2;
        let newest = links.is_none().then(|| Newest::after(tables.executed));
        Self { handler, tables, store, links, recent, recent_max, newest, spare: Spare::default() }
    }

    /// What follows is delivered in `life`: the lives before it ended here, for good.
    pub(crate) fn enter_life(&mut self, life: Generation) {
        if life > self.tables.life
            && let Some(links) = &mut self.links
        {
            links.channel.ended(Incarnation(life.0.saturating_sub(1)), self.tables.executed);
        }
        self.tables.enter_life(life);
    }

    /// Remembers that a delivery has its place in history.
    pub(crate) fn logged(&mut self, delivery: &Delivery, prefix: &Prefix, end: Lsn) {
        if let Delivery::Request { identity, expires, body } = delivery {
            self.tables.logged(identity, body, end, prefix.now, *expires);
        }
    }

    /// Executes a delivery that has its place; `end` is that of its record, or of the one before where it has none.
    pub(crate) fn execute(
        &mut self,
        delivery: &Delivery,
        prefix: &Prefix,
        end: Lsn,
        config: &Config,
    ) -> Result<Done, Panicked> {
        let mut done = Done::default();
        let next_output = self.tables.last_output.next();
        let messages = std::mem::take(&mut self.spare.asked);
        let mut asked = Asked { next_output, messages, ..Asked::default() };
        if let Some(links) = &mut self.links {
            links.delivered(delivery, prefix, self.tables.life, end, config.policy.journals_messages());
        }
        let mut context = Context {
            now: prefix.now,
            store: self.store,
            random: Random(prefix.seed),
            asked: &mut asked,
            ports: &config.ports,
            delivery: prefix.delivery,
            nodes: self.links.as_ref().map_or(&[], |links| &links.nodes),
            message_bytes_max: self.links.as_ref().map_or(0, |links| links.message_bytes_max),
        };
        let handler = &mut self.handler;
        let tables = &mut self.tables;
        match delivery {
            Delivery::Request { body, .. } => {
                done.answer = guarded(|| handler.handle(body, &mut context))?.map(Arc::new);
            }
            Delivery::Timer { timer } => {
                if let Some(token) = tables.timers.take(*timer) {
                    guarded(|| handler.timer(token, &mut context))?;
                }
            }
            Delivery::Settled { output, outcome } => {
                if tables.outbox.settle(*output) {
                    guarded(|| handler.output_settled(*output, outcome, &mut context))?;
                }
            }
            Delivery::Message { from, body, .. } => {
                guarded(|| handler.message(*from, body, &mut context))?;
            }
            Delivery::Registered { replaces } => {
                done.registered = Some(tables.clients.register(*replaces, prefix.now));
            }
            Delivery::Resolved { output, resolution } => {
                let outcome = match resolution {
                    Resolution::SendAgain => {
                        done.send_again = Some(*output);
                        None
                    }
                    Resolution::Delivered => Some(Outcome::Delivered { status: 0 }),
                    Resolution::Abandon => Some(Outcome::Abandoned),
                };
                if let Some(outcome) = outcome
                    && tables.outbox.settle(*output)
                {
                    guarded(|| handler.output_settled(*output, &outcome, &mut context))?;
                }
            }
        }
        let summary = Summary::of(done.answer.as_deref(), &asked, &config.ports);
        self.finish(delivery, prefix, end, config, summary, asked, &mut done);
        Ok(done)
    }

    /// Puts the recorded verdict in the place of a delivery that is never tried again.
    pub(crate) fn skip(&mut self, delivery: &Delivery, prefix: &Prefix, end: Lsn, config: &Config) -> Done {
        let mut done = Done::default();
        match delivery {
            Delivery::Request { .. } => done.answer = Some(Arc::new(quarantine_answer())),
            // Done with, or it would be delivered again, and fail again, for ever.
            Delivery::Timer { timer } => {
                self.tables.timers.take(*timer);
            }
            Delivery::Settled { output, .. }
            | Delivery::Resolved { output, resolution: Resolution::Delivered | Resolution::Abandon } => {
                self.tables.outbox.settle(*output);
            }
            Delivery::Message { .. } | Delivery::Registered { .. } | Delivery::Resolved { .. } => {}
        }
        if let Some(links) = &mut self.links {
            links.delivered(delivery, prefix, self.tables.life, end, config.policy.journals_messages());
        }
        self.tables.quarantined += 1;
        let asked = Asked { next_output: self.tables.last_output.next(), ..Asked::default() };
        let summary = Summary::of(done.answer.as_deref(), &asked, &config.ports);
        self.finish(delivery, prefix, end, config, summary, asked, &mut done);
        done
    }

    /// What delivery `executed` did, if that is known still.
    pub(crate) fn summary_of(&self, executed: DeliveryIndex) -> Option<Summary> {
        self.recent.iter().rev().find(|(index, _)| *index == executed).map(|(_, summary)| *summary)
    }

    #[expect(clippy::too_many_arguments, reason = "the end of two functions, not an interface")]
    fn finish(
        &mut self,
        delivery: &Delivery,
        prefix: &Prefix,
        end: Lsn,
        config: &Config,
        summary: Summary,
        mut asked: Asked,
        done: &mut Done,
    ) {
        let tables = &mut self.tables;
        tables.executed = prefix.delivery;
        // For messages the mark `Recoverable` speaks, where the policy has one.
        let is_message = matches!(delivery, Delivery::Message { .. });
        if !is_message || matches!(config.policy, Policy::Immediate | Policy::Deferred) {
            tables.executed_end = end;
        }
        tables.summary = summary;
        tables.now = prefix.now;
        for (id, port, body) in asked.outputs {
            tables.last_output = id;
            let pending = Pending {
                port: Arc::from(config.ports[port.0].name.as_str()),
                body: body.into(),
                end,
                state: OutputState::Prepared,
                intended: false,
                store: None,
                delivery: prefix.delivery,
            };
            tables.outbox.insert(id, pending);
            done.outputs.push(id);
        }
        for &(due, token) in &asked.timers {
            tables.timers.set(due, token);
        }
        done.timers = asked.timers;
        if let Delivery::Request { identity, .. } = delivery {
            match &done.answer {
                Some(answer) => tables.answered(identity, answer, prefix.now),
                None => tables.open.insert(RequestId(prefix.delivery), identity),
            }
        }
        for (request, answer) in asked.answers {
            let Some(identity) = tables.open.remove(request) else { continue };
            let answer = Arc::new(answer);
            tables.answered(&identity, &answer, prefix.now);
            let expires = tables.expires(&identity, prefix.now);
            done.late.push(LateAnswer { request, answer, expires });
        }
        if let Some(links) = &mut self.links {
            done.messages = std::mem::take(&mut self.spare.emitted);
            for (to, body) in asked.messages.drain(..) {
                let ssn = links.emit(to, tables.life, prefix.delivery, body);
                done.messages.push(Emitted { to, ssn });
            }
            self.spare.asked = asked.messages;
        }
        if let Some(newest) = &mut self.newest {
            newest.take(prefix.delivery, summary);
        }
        self.recent.push_back((prefix.delivery, summary));
        if self.recent.len() > self.recent_max {
            self.recent.pop_front();
        }
    }

    /// Takes back the list of messages that a delivery led to, for the next one.
    pub(crate) fn reuse(&mut self, mut emitted: Vec<Emitted>) {
        emitted.clear();
        self.spare.emitted = emitted;
    }

    /// The guarantee of the port that `pending` goes to; `None` if this version of the service no longer
    /// declares that port.
    pub(crate) fn guarantee(pending: &Pending, config: &Config) -> Option<Guarantee> {
        config.ports.iter().find(|port| *port.name == *pending.port).map(|port| port.guarantee)
    }
}

pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, Panicked> {
    // What the closure borrowed is not looked at again after a panic: the process gives itself up.
    catch_unwind(AssertUnwindSafe(run))
        .map_err(|payload| Panicked { message: panic_message(payload.as_ref()) })
}

pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

fn quarantine_answer() -> Answer {
    let body = concat!(
        r#"{"error":"quarantined","message":"the handler failed on this request each time it was tried; "#,
        r#"nothing it did was kept, and it is not tried again. This is the recorded answer."}"#
    );
    Answer { status: 500, body: body.as_bytes().to_vec() }
}
