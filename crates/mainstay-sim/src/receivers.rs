//! The outside: the network, clients' messages, receivers of outputs and the person who resolves what is in doubt.
//!
//! What the ports assume of the network is made so here: an asked receiver gets the messages of one service in order (a
//! question never overtakes an earlier sending), and a message to an at-most-once receiver is not doubled under way.

use crate::clients::{Call, CallKind, Turn};
use crate::oracle::key_of;
use crate::plan::Trouble;
use crate::properties::{Property, Violation};
use crate::reach::Reach;
use crate::subject::Subject;
use crate::world::{Happening, MICROSECOND, MILLISECOND, World};
use mainstay_process::effect::{Output, Reply};
use mainstay_process::event::{Event, Identity, ReplyToken, Resolution};
use mainstay_process::handler::Outcome;
use mainstay_process::port::{Guarantee, OutputState};
use mainstay_types::id::OutputId;
use xxhash_rust::xxh3::xxh3_64;

/// An output on its way.
#[derive(Clone, Debug)]
pub(crate) struct OutputFlight {
    pub(crate) id: OutputId,
    pub(crate) port: usize,
    pub(crate) key: String,
    /// Whether the receiver is asked before it is sent.
    asks: bool,
    attempt: u32,
}

/// What a receiver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Took,
    Refused,
    HasNot,
}

/// Whoever sees an output fail more often than this may decide about it.
const ATTEMPTS_BEFORE_GIVEN_UP: u32 = 2;

const STATUS_TAKEN: u16 = 200;
const STATUS_REFUSED: u16 = 422;

impl<S: Subject> World<S> {
    // ---- network

    fn delay_ns(&mut self) -> u64 {
        let slow = self.random.chance(30);
        self.random.between(10, if slow { 5000 } else { 300 }) * MICROSECOND
    }

    /// Sends a message that may be lost, doubled, delayed and overtaken.
    pub(crate) fn send(&mut self, message: impl Fn() -> Happening) {
        if self.random.chance(self.fault_rates.message_lost) {
            self.reached.hit(Reach::MessageLost);
            return;
        }
        if self.random.chance(self.fault_rates.message_doubled) {
            self.reached.hit(Reach::MessageDoubled);
            let delay_ns = self.delay_ns();
            self.after(delay_ns, message());
        }
        let delay_ns = self.delay_ns();
        self.after(delay_ns, message());
    }

    // ---- clients

    pub(crate) fn client_turn(&mut self, place: usize) {
        let era = self.era;
        let misuses = self.plan.has(Trouble::Misuse);
        let client = &mut self.clients[place];
        let turn = client.turn(&*self.subject, &mut self.random, &self.calls, (misuses, self.ending));
        let wait_ns = match turn {
            Turn::Again(call) | Turn::AsideAgain(call) => {
                self.call(call);
                8 * MILLISECOND
            }
            Turn::New(call) => {
                self.calls.push(call);
                self.call(self.calls.len() - 1);
                8 * MILLISECOND
            }
            Turn::Aside(call) => {
                self.calls.push(call);
                self.call(self.calls.len() - 1);
                MILLISECOND
            }
            Turn::Rest => return,
        };
        let wait_ns = if self.life.is_none() { wait_ns * 2 } else { wait_ns };
        self.after_up_to(wait_ns, Happening::Client { place, era });
    }

    fn call(&mut self, number: usize) {
        let token = ReplyToken(self.messages.len() as u64);
        self.messages.push(number);
        let era = self.era;
        // Each copy under way is a connection of its own, hence a token of its own.
        if self.random.chance(self.fault_rates.message_doubled) {
            let doubled = ReplyToken(self.messages.len() as u64);
            self.messages.push(number);
            self.reached.hit(Reach::MessageDoubled);
            let delay_ns = self.delay_ns();
            self.after(delay_ns, Happening::Arrive { token: doubled, era });
        }
        if self.random.chance(self.fault_rates.message_lost) {
            self.reached.hit(Reach::MessageLost);
            return;
        }
        let delay_ns = self.delay_ns();
        self.after(delay_ns, Happening::Arrive { token, era });
    }

    pub(crate) fn arrive(&mut self, token: ReplyToken) -> Result<(), Violation> {
        if self.life.is_none() {
            return Ok(());
        }
        let number = self.messages[usize::try_from(token.0).expect("a message number is an index")];
        self.step(self.request_event(number, token))
    }

    pub(crate) fn client_replied(&mut self, token: ReplyToken, reply: &Reply) {
        let number = self.messages[usize::try_from(token.0).expect("a message number is an index")];
        let place = self.calls[number].client;
        if let Some(client) = self.clients.get_mut(place) {
            client.replied(number, &self.calls, reply);
        }
    }

    // ---- outputs

    /// An output leaves. `withdrawn`: a later effect of the same step takes it back, so that its process knows nothing of it any more.
    pub(crate) fn let_out(&mut self, output: Output, withdrawn: bool) -> Result<(), Violation> {
        let port = output.port.0;
        let asks = output.again && self.config.ports[port].guarantee == Guarantee::Asked;
        let flight = OutputFlight { id: output.id, port, key: output.key, asks, attempt: 0 };
        if withdrawn {
            self.attempt(flight);
            return Ok(());
        }
        self.send_output(flight)
    }

    fn send_output(&mut self, flight: OutputFlight) -> Result<(), Violation> {
        let life = self.life.as_ref().expect("outputs leave a living service");
        if life.process.outputs().all(|output| output.id != flight.id) {
            let what = format!("output {} is sent, and its process knows nothing of it any more", flight.key);
            return Err(Violation::new(Property::OutputsGuaranteed, what));
        }
        self.attempt(flight);
        Ok(())
    }

    fn attempt(&mut self, mut flight: OutputFlight) {
        flight.attempt += 1;
        let (life, era, output, attempt) = (self.lives, self.era, flight.id, flight.attempt);
        let living = self.life.as_mut().expect("outputs leave a living service");
        living.flights.insert(output, flight.clone());
        let ask = flight.asks;
        let message = || Happening::ToReceiver { life, flight: flight.clone(), ask, era };
        match self.config.ports[flight.port].guarantee {
            Guarantee::Asked => {
                let delay_ns = self.delay_ns();
                let at = (self.now_ns + delay_ns).max(self.asked_last_ns + 1);
                self.asked_last_ns = at;
                if !self.random.chance(self.fault_rates.message_lost) {
                    self.after(at - self.now_ns, message());
                }
            }
            Guarantee::AtMostOnce => {
                if !self.random.chance(self.fault_rates.message_lost) {
                    *self.under_way.entry(flight.key.clone()).or_default() += 1;
                    let delay_ns = self.delay_ns();
                    self.after(delay_ns, message());
                }
            }
            Guarantee::Deduplicated | Guarantee::AtLeastOnce => self.send(message),
        }
        let patience_ns = self.random.between(1000, 8000) * MICROSECOND;
        self.after(patience_ns, Happening::OutputTimeout { life, output, attempt });
    }

    pub(crate) fn reach_receiver(
        &mut self,
        life: u64,
        flight: OutputFlight,
        ask: bool,
    ) -> Result<(), Violation> {
        let OutputFlight { id, port, key, attempt, .. } = flight;
        let guarantee = self.config.ports[port].guarantee;
        if guarantee == Guarantee::AtMostOnce
            && let Some(copies) = self.under_way.get_mut(&key)
        {
            *copies -= 1;
        }
        let had = self.oracle.has_taken(&key);
        let said = if ask {
            self.reached.hit(if had { Reach::AskedHas } else { Reach::AskedHasNot });
            if had { Said::Took } else { Said::HasNot }
        } else if xxh3_64(key.as_bytes()).is_multiple_of(12) {
            self.reached.hit(Reach::OutputRefused);
            Said::Refused
        } else if guarantee == Guarantee::Deduplicated && had {
            self.reached.hit(Reach::DuplicateDropped);
            Said::Took
        } else {
            self.trace.line(self.now_ns, format_args!("output {key} takes effect"));
            self.oracle.taken(port, id, &key)?;
            Said::Took
        };
        self.send(|| Happening::FromReceiver { life, output: id, attempt, said });
        Ok(())
    }

    pub(crate) fn receiver_said(
        &mut self,
        output: OutputId,
        attempt: u32,
        said: Said,
    ) -> Result<(), Violation> {
        let living = self.life.as_mut().expect("it lives");
        let outcome = match said {
            Said::HasNot => {
                // The answer to an earlier question is on a connection that nobody reads any more: the output was sent since.
                let answers = |flight: &&mut OutputFlight| flight.asks && flight.attempt == attempt;
                if let Some(flight) = living.flights.get_mut(&output).filter(answers) {
                    flight.asks = false;
                    let flight = flight.clone();
                    return self.send_output(flight);
                }
                return Ok(());
            }
            Said::Took => Outcome::Delivered { status: STATUS_TAKEN },
            Said::Refused => Outcome::Refused { status: STATUS_REFUSED },
        };
        if living.flights.remove(&output).is_none() {
            return Ok(());
        }
        self.step(Event::Output { output, outcome })
    }

    pub(crate) fn output_timeout(&mut self, output: OutputId, attempt: u32) -> Result<(), Violation> {
        let living = self.life.as_mut().expect("it lives");
        let Some(flight) = living.flights.get(&output).filter(|flight| flight.attempt == attempt) else {
            return Ok(());
        };
        let mut flight = flight.clone();
        match self.config.ports[flight.port].guarantee {
            Guarantee::AtMostOnce => {
                living.flights.remove(&output);
                self.reached.hit(Reach::InDoubtLive);
                self.step(Event::OutputInDoubt { output })
            }
            guarantee => {
                flight.asks = guarantee == Guarantee::Asked;
                self.send_output(flight)
            }
        }
    }

    /// A copy that is under way may still arrive.
    pub(crate) fn withdraw(&mut self, output: OutputId) {
        let life = self.life.as_mut().expect("effects are performed for a living service");
        if life.flights.remove(&output).is_some() {
            self.reached.hit(Reach::Withdrawn);
        }
    }

    /// Now and then a person decides about an output that does not get through, or has heard from its receiver by other means.
    fn lose_patience(&mut self) {
        let Some(life) = &self.life else { return };
        let is_late = |flight: &&OutputFlight| {
            let once = self.config.ports[flight.port].guarantee == Guarantee::AtMostOnce;
            once || flight.attempt > ATTEMPTS_BEFORE_GIVEN_UP
        };
        let late = life.flights.values().find(is_late).map(|flight| (flight.id, flight.key.clone()));
        let Some((output, key)) = late else { return };
        if self.random.chance(200) {
            let resolution = match self.oracle.has_taken(&key) {
                true => Resolution::Delivered,
                false if self.random.chance(100) => Resolution::SendAgain,
                false => Resolution::Abandon,
            };
            self.decide(output, resolution);
        }
    }

    fn decide(&mut self, output: OutputId, resolution: Resolution) {
        self.calls.push(Call {
            client: usize::MAX,
            kind: CallKind::Resolve(output, resolution),
            identity: Identity::None,
            body: Vec::new(),
        });
        self.call(self.calls.len() - 1);
    }

    /// A person finds out what became of outputs in doubt, once no copy can be under way any more, and says so.
    pub(crate) fn operator(&mut self) {
        self.lose_patience();
        let Some(life) = &self.life else { return };
        let in_doubt: Vec<OutputId> = life
            .process
            .outputs()
            .filter(|output| output.state == OutputState::InDoubt)
            .map(|output| output.id)
            .collect();
        for output in in_doubt {
            let key = key_of(&self.store, output);
            if self.under_way.get(&key).is_some_and(|&copies| copies > 0) {
                continue;
            }
            let resolution = if self.oracle.has_taken(&key) {
                Resolution::Delivered
            } else if self.random.chance(600) {
                self.reached.hit(Reach::SentAgainByPerson);
                Resolution::SendAgain
            } else {
                Resolution::Abandon
            };
            self.decide(output, resolution);
        }
    }
}
