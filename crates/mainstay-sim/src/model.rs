//! The failure-free run: deliveries in the surviving order, one after another, with nothing that could fail.

use crate::properties::delivered_once::{Delivered, DeliveredOnce};
use crate::properties::evicted_not_reapplied::EvictedNotReapplied;
use crate::properties::failure_free;
use crate::subject::{FailureFree, Stopped};
use mainstay_process::dry_run::{Call, Given, Performed};
use mainstay_process::event::Resolution;
use mainstay_process::handler::{Answer, Outcome};
use mainstay_process::port::Port;
use mainstay_process::record::delivery::Delivery;
use mainstay_process::record::prefix::Prefix;
use mainstay_process::summary::Summary;
use mainstay_types::id::{ClientId, Lsn, OutputId, StoreId};
use mainstay_types::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What one delivery did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) answer: Option<Arc<Answer>>,
    pub(crate) registered: Option<ClientId>,
    /// The state behind it.
    pub(crate) state: Vec<u8>,
    /// What each read of that state answers.
    pub(crate) reads: Vec<Answer>,
    /// What a process records of it; `None` in place of a verdict.
    pub(crate) summary: Option<Summary>,
    /// A key was used anew after its expiry.
    pub(crate) after_expiry: bool,
    /// An output's fate, recorded by it.
    pub(crate) settled: Option<(OutputId, Outcome)>,
    pub(crate) send_again: Option<OutputId>,
    pub(crate) timer: bool,
}

/// An output as emitted.
#[derive(Clone, Debug)]
pub(crate) struct Emitted {
    pub(crate) port: usize,
    pub(crate) body: Vec<u8>,
    /// End of the record of the delivery that emitted it.
    pub(crate) end: Lsn,
    pub(crate) settled: bool,
}

/// What does not change in a run.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) store: StoreId,
    pub(crate) ports: Vec<Port>,
    pub(crate) key_retention: Duration,
}

/// The model.
pub(crate) struct Model<F> {
    alone: F,
    pub(crate) executed: u64,
    pub(crate) outputs: BTreeMap<OutputId, Emitted>,
    pub(crate) timers: BTreeMap<u64, (Time, u64)>,
    last_timer: u64,
    clients: u64,
    last_output: u64,
    now: Time,
    delivered: DeliveredOnce,
    floors: EvictedNotReapplied,
}

impl<F: FailureFree> Model<F> {
    /// One to which nothing was delivered yet, as to `alone`, which it runs.
    pub(crate) fn new(alone: F) -> Self {
        Self {
            alone,
            executed: 0,
            outputs: BTreeMap::new(),
            timers: BTreeMap::new(),
            last_timer: 0,
            clients: 0,
            last_output: 0,
            now: Time::default(),
            delivered: DeliveredOnce::default(),
            floors: EvictedNotReapplied::default(),
        }
    }

    /// The present state.
    pub(crate) fn state(&self) -> Vec<u8> {
        self.alone.state()
    }

    /// What each of `queries` answers now.
    pub(crate) fn reads(&self, queries: &[Vec<u8>]) -> Vec<Answer> {
        queries.iter().map(|query| self.alone.query(query)).collect()
    }

    /// A life begins: numbers that it gives are above all that an earlier one can have given.
    pub(crate) fn enter_life(&mut self, life: u64) {
        let base = life << 32;
        self.last_output = self.last_output.max(base);
        self.clients = self.clients.max(base);
    }

    /// Outputs whose fate is not recorded.
    pub(crate) fn pending(&self) -> impl Iterator<Item = OutputId> + '_ {
        self.outputs.iter().filter(|(_, output)| !output.settled).map(|(&id, _)| id)
    }

    /// Runs the delivery of the record `lsn..end`, or passes over it if there is a verdict. After an error the model is not used any
    /// further.
    pub(crate) fn deliver(
        &mut self,
        (lsn, end): (Lsn, Lsn),
        prefix: &Prefix,
        delivery: &Delivery,
        quarantined: bool,
        terms: &Terms,
    ) -> Result<Done, Stopped> {
        if prefix.now < self.now {
            return Err(failure_free::violated(format!("time went back at {lsn}")).into());
        }
        if prefix.delivery.0 != self.executed + 1 {
            let what = format!("delivery {} at {lsn} follows {}", prefix.delivery, self.executed);
            return Err(failure_free::violated(what).into());
        }
        let given = Given {
            now: prefix.now,
            seed: prefix.seed,
            delivery: prefix.delivery,
            next_output: OutputId(self.last_output + 1),
            store: terms.store,
            ports: &terms.ports,
            nodes: &[],
            message_bytes_max: 0,
        };
        let mut done = Done::default();
        let mut performed = Performed::default();
        match delivery {
            Delivery::Request { .. } if quarantined => {
                performed.answer = Some(Answer { status: 500, body: Vec::new() });
            }
            Delivery::Request { body, .. } => performed = self.alone.deliver(Call::Request(body), given)?,
            Delivery::Timer { timer } => {
                if let Some((due, token)) = self.timers.remove(timer) {
                    if prefix.now < due {
                        return Err(failure_free::violated(format!("timer {timer} fired early")).into());
                    }
                    done.timer = true;
                    if !quarantined {
                        performed = self.alone.deliver(Call::Timer(token), given)?;
                    }
                }
            }
            Delivery::Settled { output, outcome } => done.settled = self.settle(*output, outcome),
            Delivery::Message { .. } => unreachable!("a process that stands alone has no peers"),
            Delivery::Registered { .. } => {
                self.clients += 1;
                done.registered = Some(ClientId(self.clients));
            }
            Delivery::Resolved { output, resolution } => {
                done.settled = match resolution {
                    Resolution::SendAgain => {
                        let is_open = self.outputs.get(output).is_some_and(|emitted| !emitted.settled);
                        done.send_again = is_open.then_some(*output);
                        None
                    }
                    Resolution::Delivered => self.settle(*output, &Outcome::Delivered { status: 0 }),
                    Resolution::Abandon => self.settle(*output, &Outcome::Abandoned),
                };
            }
        }
        if let Some((output, outcome)) = &done.settled
            && !quarantined
        {
            performed = self.alone.deliver(Call::Settled(*output, outcome), given)?;
        }
        if let Delivery::Request { identity, .. } = delivery {
            let expires = prefix.now.after(terms.key_retention);
            let delivered = self.delivered.deliver(identity, lsn, prefix.now, expires);
            self.floors.deliver(identity, lsn)?;
            done.after_expiry = delivered? == Delivered::AfterExpiry;
        }
        done.summary = (!quarantined).then(|| performed.summary(&terms.ports));
        for (id, port, body) in performed.outputs {
            self.last_output = id.0;
            self.outputs.insert(id, Emitted { port: port.0, body, end, settled: false });
        }
        for timer in performed.timers {
            self.last_timer += 1;
            self.timers.insert(self.last_timer, timer);
        }
        self.now = prefix.now;
        self.executed += 1;
        done.answer = performed.answer.map(Arc::new);
        done.state = self.state();
        Ok(done)
    }

    /// Records an output's fate; `None` if it was recorded before.
    fn settle(&mut self, output: OutputId, outcome: &Outcome) -> Option<(OutputId, Outcome)> {
        let emitted = self.outputs.get_mut(&output).filter(|emitted| !emitted.settled)?;
        emitted.settled = true;
        Some((output, outcome.clone()))
    }
}
