//! The outside of a cluster: clients who repeat by key at the same node, readers, receivers of outputs and the person who resolves
//! what is in doubt.

use crate::cluster::service::delivery_of;
use crate::cluster::subject::Asked;
use crate::cluster::world::{ClusterWorld, Happening};
use crate::plan::Trouble;
use crate::properties::legal_order::{Alone, LegalOrder};
use crate::properties::losses_stated::{Made, Stated};
use crate::properties::{Property, Violation};
use crate::reach::Reach;
use crate::world::{MICROSECOND, MILLISECOND};
use mainstay_process::effect::{Limit, Output, Reply};
use mainstay_process::event::{Event, Identity, ReplyToken, Request, Resolution};
use mainstay_process::handler::{Answer, Outcome};
use mainstay_process::port::Guarantee;
use mainstay_types::id::{NodeId, OutputId};

const STATUS_TAKEN: u16 = 200;

/// Something that a client asks for.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) home: NodeId,
    pub(crate) body: Vec<u8>,
    identity: Identity,
    pub(crate) answer: Option<Answer>,
    /// The life that gave the answer.
    answered_in: u64,
    made: Made,
    /// How often it is asked for again once it is answered.
    again: u32,
}

/// Who waits for a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Who {
    Call(usize),
    /// A reader, by the number of the read.
    Reader(usize),
    Person,
}

impl Call {
    /// Whether the client still wants an answer. Without a key it does not dare to ask twice.
    pub(crate) fn waits(&self) -> bool {
        self.identity != Identity::None && (self.answer.is_none() || self.again > 0)
    }

    /// The same call to a cluster that went back: what had been `answered` before the line must be answered so again.
    pub(crate) fn anew(self, answered: Option<Answer>) -> Self {
        Self { again: u32::from(answered.is_some()), answer: answered, answered_in: 0, ..self }
    }

    /// Compares with a run without failures.
    pub(crate) fn check<A: Alone>(
        &self,
        number: u64,
        order: &LegalOrder<A>,
        stated: &Stated,
    ) -> Result<(), Violation> {
        let folded = order.folded(self.home.0, number);
        let lost = self.answer.is_some() && stated.names(self.home, self.made);
        let least = usize::from(self.identity != Identity::None && !lost);
        if folded > 1 || folded < least {
            let what = format!("call {number} was taken in {folded} times at {}", self.home);
            return Err(Violation::new(Property::DeliveredOnce, what));
        }
        let Some(answer) = &self.answer else { return Ok(()) };
        let there = order.answered(self.home.0, number, answer);
        stated.judge(self.home, self.made, "the answer to a call", there)
    }
}

impl ClusterWorld {
    pub(crate) fn new_call(&mut self) {
        if self.calls.len() < 1000 && !self.ending {
            // Beyond those that were planned only while faults go on, and rarely.
            let planned = self.calls.len() < self.setup.calls;
            let pause_us = self.setup.rates.call_us * if planned { 1 } else { 10 };
            self.after_up_to(pause_us * MICROSECOND, Happening::NewCall);
        } else {
            return;
        }
        if !self.plan.has(Trouble::Crowd) && self.calls.iter().any(Call::waits) {
            return;
        }
        let ids = self.ids();
        let number = self.calls.len();
        let asked = self.subject.call(number as u64, &ids, &self.setup.rates, &mut self.random);
        let Some(Asked { home, body, identity, again }) = asked else { return };
        self.calls.push(Call {
            home,
            body,
            identity,
            answer: None,
            answered_in: 0,
            made: Made::default(),
            again,
        });
        self.ask(number);
    }

    /// Asks, and again later for as long as there is no answer.
    pub(crate) fn ask(&mut self, call: usize) {
        let node = self.calls[call].home;
        let repeats = self.calls[call].identity != Identity::None;
        if !self.calls[call].waits() && (repeats || self.calls[call].answer.is_some()) {
            return;
        }
        if self.calls[call].answer.is_some() {
            self.calls[call].again -= 1;
        }
        if repeats {
            let waits_ns = self.waits_until_ns.saturating_sub(self.now_ns);
            let pause_ns = self.random.between(1, 20 * MILLISECOND);
            self.after(pause_ns + waits_ns, Happening::Ask { call });
        }
        self.send_to(node, Who::Call(call));
    }

    fn send_to(&mut self, node: NodeId, who: Who) {
        if !self.ending && self.random.chance(self.setup.rates.client_lost_per_mille) {
            self.reached.hit(Reach::MessageLost);
            return;
        }
        let token = ReplyToken(self.tokens.len() as u64);
        self.tokens.push(who);
        self.under_way += 1;
        self.after_up_to(MILLISECOND / 4, Happening::Arrive { node, token });
    }

    pub(crate) fn read(&mut self) {
        if !self.ending {
            let ids = self.ids();
            if let Some((node, query)) = self.subject.read(&ids, &mut self.random) {
                self.queries.push(query);
                self.send_to(node, Who::Reader(self.queries.len() - 1));
                self.after_up_to(6 * MILLISECOND, Happening::Read);
            }
        }
    }

    pub(crate) fn arrive(&mut self, node: NodeId, token: ReplyToken) -> Result<(), Violation> {
        self.under_way -= 1;
        let event = match self.who(token) {
            Who::Call(call) => {
                let Call { identity, body, .. } = &self.calls[call];
                Event::Request(Request { token, identity: identity.clone(), body: body.clone() })
            }
            Who::Reader(number) => Event::Query { token, body: self.queries[number].clone() },
            Who::Person => unreachable!("a person acts at the node"),
        };
        self.step(node, event)
    }

    fn who(&self, token: ReplyToken) -> Who {
        self.tokens[usize::try_from(token.0).expect("a token is an index")]
    }

    pub(crate) fn replied(&mut self, node: NodeId, token: ReplyToken, reply: Reply) -> Result<(), Violation> {
        let lost = !self.ending && self.random.chance(self.setup.rates.client_lost_per_mille);
        match (self.who(token), reply) {
            (Who::Reader(number), Reply::Read { answer, .. }) => {
                self.reached.hit(Reach::Read);
                let life = self.incarnation(node);
                let delivery = delivery_of(&answer.body);
                self.reads.push((node, number, answer, Made { life, delivery }));
            }
            (Who::Call(number), Reply::Answer { answer, replayed, .. }) => {
                let (life, incarnation) = (self.nodes[&node].lives, self.incarnation(node));
                let call = &mut self.calls[number];
                if call.answer.as_ref().is_some_and(|before| *before != *answer)
                    && self.stated.names(node, call.made)
                {
                    // Lost, and named: it was asked for again, and is another request.
                    self.reached.hit(Reach::AnsweredAnew);
                    call.answered_in = life;
                    call.answer = Some((*answer).clone());
                }
                if let Some(before) = &call.answer
                    && *before != *answer
                {
                    let what = format!("call {number} was answered {before:?} first and {answer:?} now");
                    return Err(Violation::new(Property::SameAnswer, what));
                }
                if replayed && call.answer.is_some() {
                    let live = call.answered_in == life;
                    self.reached.hit(if live { Reach::DuplicateLive } else { Reach::DuplicateAfterCrash });
                }
                // What a node has let out counts, also if the client does not get it.
                if call.answer.is_none() {
                    call.answered_in = life;
                    call.again += u32::from(lost);
                }
                call.made = Made { life: incarnation, delivery: delivery_of(&answer.body) };
                call.answer = Some((*answer).clone());
            }
            (_, Reply::Busy { limit: Limit::Blocked }) => self.reached.hit(Reach::BusyBlocked),
            (_, Reply::Busy { limit: Limit::SenderLog }) => self.reached.hit(Reach::BusySenderLog),
            (Who::Person, Reply::Resolved) => self.reached.hit(Reach::Resolved),
            _ => {}
        }
        Ok(())
    }

    fn incarnation(&self, node: NodeId) -> u64 {
        self.nodes[&node].life.as_ref().map_or(0, |life| life.process.incarnation().0)
    }

    // ---- receivers of outputs

    pub(crate) fn let_out(&mut self, node: NodeId, output: Output) -> Result<(), Violation> {
        let Output { id, port, key, body, .. } = output;
        let incarnation = self.incarnation(node);
        self.outputs.entry((node, id)).or_default().leaves(port.0, &key, &body, incarnation)?;
        self.under_way += 1;
        let life = self.nodes[&node].lives;
        let arrives = Happening::Output { node, life, output: id, port: port.0, key, body: body.to_vec() };
        self.after_up_to(2 * MILLISECOND, arrives);
        Ok(())
    }

    pub(crate) fn output_arrives(
        &mut self,
        (node, life): (NodeId, u64),
        output: OutputId,
        port: usize,
        key: &str,
        body: Vec<u8>,
    ) -> Result<(), Violation> {
        let received = self.outputs.get_mut(&(node, output)).expect("it has left");
        received.under_way -= 1;
        if received.decision == Some(Resolution::Abandon) {
            let what = format!("{key} arrived at port {port} after it was given up: {body:?}");
            return Err(Violation::new(Property::OutputsGuaranteed, what));
        }
        let drops = self.setup.ports[port].guarantee == Guarantee::Deduplicated && received.times > 0;
        self.reached.add(Reach::DuplicateDropped, u64::from(drops));
        received.times += 1;
        // The answer is under way as the output was.
        self.after_up_to(2 * MILLISECOND, Happening::Settled { node, life, output });
        Ok(())
    }

    pub(crate) fn settled(&mut self, node: NodeId, life: u64, output: OutputId) -> Result<(), Violation> {
        self.under_way -= 1;
        if !self.lives(node, life) {
            return Ok(());
        }
        self.step(node, Event::Output { output, outcome: Outcome::Delivered { status: STATUS_TAKEN } })
    }

    /// Asks the receiver what became of an output in doubt.
    pub(crate) fn resolve(&mut self, node: NodeId, output: OutputId) -> Result<(), Violation> {
        let gives_up = self.random.coin();
        let received = self.outputs.entry((node, output)).or_default();
        if received.under_way > 0 {
            return Ok(());
        }
        // Whoever decides twice decides the same: the first word may still be on its way into the journal.
        let resolution = match received.times {
            0 if gives_up => *received.decision.get_or_insert(Resolution::Abandon),
            0 => *received.decision.get_or_insert(Resolution::SendAgain),
            _ => Resolution::Delivered,
        };
        let token = ReplyToken(self.tokens.len() as u64);
        self.tokens.push(Who::Person);
        self.step(node, Event::Resolve { token, output, resolution })
    }
}
