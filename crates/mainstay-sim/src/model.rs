//! The failure-free run: deliveries in the surviving order, one after another, with nothing that could fail.

use crate::ledger::{AlwaysPanics, Asks, Command, PORTS, State};
use crate::properties::delivered_once::{Delivered, DeliveredOnce};
use crate::properties::evicted_not_reapplied::EvictedNotReapplied;
use crate::properties::{Violation, failure_free};
use crate::random::SplitMix;
use mainstay_process::event::Resolution;
use mainstay_process::handler::{Answer, Outcome};
use mainstay_process::record::delivery::Delivery;
use mainstay_process::record::prefix::Prefix;
use mainstay_types::id::{ClientId, Lsn, OutputId};
use mainstay_types::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What one delivery did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) answer: Option<Arc<Answer>>,
    pub(crate) registered: Option<ClientId>,
    /// What a read of the state behind it answers.
    pub(crate) read: Vec<u8>,
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

/// The model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) state: State,
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

struct Wishes<'a> {
    now: Time,
    random: SplitMix,
    last_output: u64,
    outputs: &'a mut Vec<(OutputId, usize, Vec<u8>)>,
    timers: &'a mut Vec<(Time, u64)>,
}

impl Asks for Wishes<'_> {
    fn now(&self) -> Time {
        self.now
    }

    fn random(&mut self) -> u64 {
        self.random.draw()
    }

    fn send(&mut self, port: &str, body: Vec<u8>) -> OutputId {
        self.last_output += 1;
        let port = PORTS.iter().position(|&known| known == port).expect("the ledger knows its ports");
        self.outputs.push((OutputId(self.last_output), port, body));
        OutputId(self.last_output)
    }

    fn set_timer(&mut self, delay: Duration, token: u64) {
        self.timers.push((self.now.after(delay), token));
    }
}

/// Why a delivery did not run.
pub(crate) enum Stopped {
    /// The handler panics on it: only a verdict lets the run go on.
    Panics,
    Violated(Violation),
}

impl From<Violation> for Stopped {
    fn from(violation: Violation) -> Self {
        Self::Violated(violation)
    }
}

impl Model {
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

    /// Runs the delivery of the record `lsn..end`, or passes over it if there is a verdict.
    pub(crate) fn deliver(
        &mut self,
        (lsn, end): (Lsn, Lsn),
        prefix: &Prefix,
        delivery: &Delivery,
        quarantined: bool,
        key_retention: Duration,
    ) -> Result<Done, Stopped> {
        let command = match delivery {
            Delivery::Request { body, .. } => Some(Command::decode(body)),
            _ => None,
        };
        let before = command.is_some_and(may_panic).then(|| self.state.clone());
        if prefix.now < self.now {
            return Err(failure_free::violated(format!("time went back at {lsn}")).into());
        }
        if prefix.delivery.0 != self.executed + 1 {
            let what = format!("delivery {} at {lsn} follows {}", prefix.delivery, self.executed);
            return Err(failure_free::violated(what).into());
        }
        let (mut outputs, mut timers) = (Vec::new(), Vec::new());
        let mut wishes = Wishes {
            now: prefix.now,
            random: SplitMix(prefix.seed),
            last_output: self.last_output,
            outputs: &mut outputs,
            timers: &mut timers,
        };
        let mut done = Done::default();
        match delivery {
            Delivery::Request { .. } if quarantined => {
                done.answer = Some(Arc::new(Answer { status: 500, body: Vec::new() }));
            }
            Delivery::Request { .. } => {
                let command = command.expect("a request has a command");
                match self.state.apply(&command, &mut wishes) {
                    Ok(answer) => done.answer = Some(Arc::new(answer)),
                    Err(AlwaysPanics) => {
                        self.state = before.expect("it was kept for commands that may panic");
                        return Err(Stopped::Panics);
                    }
                }
            }
            Delivery::Timer { timer } => {
                if let Some((due, token)) = self.timers.remove(timer) {
                    if prefix.now < due {
                        return Err(failure_free::violated(format!("timer {timer} fired early")).into());
                    }
                    done.timer = true;
                    self.state.timer(token, &mut wishes);
                }
            }
            Delivery::Settled { output, outcome } => self.settle(*output, outcome, &mut done),
            Delivery::Message { .. } => unreachable!("a process that stands alone has no peers"),
            Delivery::Registered { .. } => {
                self.clients += 1;
                done.registered = Some(ClientId(self.clients));
            }
            Delivery::Resolved { output, resolution } => match resolution {
                Resolution::SendAgain => done.send_again = Some(*output),
                Resolution::Delivered => self.settle(*output, &Outcome::Delivered { status: 0 }, &mut done),
                Resolution::Abandon => self.settle(*output, &Outcome::Abandoned, &mut done),
            },
        }
        if let Delivery::Request { identity, .. } = delivery {
            let expires = prefix.now.after(key_retention);
            let delivered = self.delivered.deliver(identity, lsn, prefix.now, expires);
            self.floors.deliver(identity, lsn)?;
            done.after_expiry = delivered? == Delivered::AfterExpiry;
        }
        for (id, port, body) in outputs {
            self.last_output = id.0;
            self.outputs.insert(id, Emitted { port, body, end, settled: false });
        }
        for timer in timers {
            self.last_timer += 1;
            self.timers.insert(self.last_timer, timer);
        }
        self.now = prefix.now;
        self.executed += 1;
        done.read = self.state.read().body;
        Ok(done)
    }

    fn settle(&mut self, output: OutputId, outcome: &Outcome, done: &mut Done) {
        if let Some(emitted) = self.outputs.get_mut(&output).filter(|emitted| !emitted.settled) {
            emitted.settled = true;
            self.state.output_settled(output, outcome);
            done.settled = Some((output, outcome.clone()));
        }
    }
}

fn may_panic(command: Command) -> bool {
    matches!(command.operation, crate::ledger::Operation::Poison)
}
