//! What an instance may ask for while it handles something.

use crate::instance::Instance;
use crate::instance::address::Address;
use crate::instance::envelope::{Envelope, Told};
use crate::instance::handler::{Book, Facts, Work};
use crate::refusal::Refusal;
use crate::typed;
use mainstay_process::handler::{self, Answer, RequestId, SendError};
use mainstay_types::id::{NodeId, OutputId};
use mainstay_types::time::Time;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// What [`Instance::handle`] and the others may ask for. Everything is recorded or follows from what is recorded, so that replay gives the
/// same.
pub struct Context<'a, I> {
    pub(crate) delivering: Delivering<'a>,
    pub(crate) address: &'a Address,
    pub(crate) arrived: Arrived<'a>,
    pub(crate) caller_taken: bool,
    pub(crate) ended: bool,
    pub(crate) of: PhantomData<fn() -> I>,
}

/// By what an instance was called upon.
#[derive(Clone, Copy)]
pub(crate) enum Arrived<'a> {
    /// A client's request.
    Request,
    /// A message of another instance.
    Message(&'a Address),
    /// A timer or the outcome of an output.
    Other,
}

/// The node's side of one delivery: the process's context, what the whole delivery has led to, whose timers and outputs there are.
pub(crate) struct Delivering<'a> {
    pub(crate) ask: &'a mut (dyn Ask + 'a),
    pub(crate) work: &'a mut Work,
    pub(crate) book: &'a mut Book,
    pub(crate) facts: &'a Facts,
}

/// Who waits for the answer to a request. It may be kept in a state, and told to instances on any node: whoever has it first answers.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Caller<A> {
    node: NodeId,
    request: RequestId,
    #[serde(skip)]
    answer: PhantomData<fn(A)>,
}

impl<I: Instance> Context<'_, I> {
    /// The key of this instance.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.address.key
    }

    /// Type and key of this instance.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.address
    }

    /// Who told the message that is being handled; `None` for anything but a message.
    #[must_use]
    pub fn sender(&self) -> Option<&Address> {
        match self.arrived {
            Arrived::Message(from) => Some(from),
            Arrived::Request | Arrived::Other => None,
        }
    }

    /// The recorded time of this delivery; on a node it never goes back.
    #[must_use]
    pub fn now(&self) -> Time {
        self.delivering.ask.now()
    }

    /// The next random number of this delivery, from a recorded seed. Not for secrets.
    pub fn random_u64(&mut self) -> u64 {
        self.delivering.ask.random_u64()
    }

    /// Who waits for the answer, for [`super::Reply::Later`].
    ///
    /// # Panics
    /// Outside of [`Instance::handle`]: a bug in the service.
    pub fn caller(&mut self) -> Caller<I::Answer> {
        assert!(
            matches!(self.arrived, Arrived::Request),
            "nobody waits for an answer of {}: it does not handle a request",
            self.address
        );
        self.caller_taken = true;
        let request = self.delivering.ask.request();
        Caller { node: self.delivering.facts.me, request, answer: PhantomData }
    }

    /// Answers a request that was not answered when it was handled. Where two do, the first counts.
    ///
    /// # Panics
    /// When the answer is longer than a message may be and the request was taken by another node: a bug in the service.
    pub fn answer<A: Serialize>(&mut self, caller: Caller<A>, answer: Result<A, Refusal>) {
        let answer = typed::answer(&answer);
        if caller.node == self.delivering.facts.me {
            self.answer_here(caller.request, answer);
        } else {
            let bytes = Envelope::Answer(caller.request, answer).to_bytes();
            self.delivering.facts.assert_fits(&bytes, &format_args!("an answer of {}", self.address));
            self.delivering.ask.tell(caller.node, bytes);
        }
    }

    /// Tells another instance, wherever it lives: its [`Instance::message`] takes it exactly once, whatever crashes within what
    /// the logging policy promises. On the same node that is part of this delivery: it follows when this handler has returned, in the order of telling.
    ///
    /// # Panics
    /// When the node does not host the type, the key cannot be one (for keys from outside there is [`super::Key`]), or the message is longer than a request may be
    /// ([`mainstay_process::config::Limits::body_bytes_max`], and that of the links): bugs in the service, treated as any panic of a handler.
    pub fn tell<T: Instance>(&mut self, key: &str, message: &T::Message) {
        let facts = self.delivering.facts;
        let to = Address::new(T::TYPE, key);
        let node = facts.node_of(&to).unwrap_or_else(|| {
            panic!("{} tells {to}, but this program hosts {:?} only", self.address, facts.type_names())
        });
        let message = serde_json::to_vec(message).expect("the service's own message can be written as JSON");
        let told = Told { from: self.address.clone(), to, message };
        let bytes = told.to_bytes();
        // Here as on the way to another node, so that a service does not depend on where its instances live.
        facts.assert_fits(&bytes, &format_args!("a message of {} to {}", told.from, told.to));
        if node == facts.me {
            self.delivering.work.tell_here(told);
        } else {
            self.delivering.ask.tell(node, bytes);
        }
    }

    /// Emits an output to the outside world; see [`handler::Context::send`].
    ///
    /// # Panics
    /// Where [`Self::try_send`] has an error: a bug in the service.
    pub fn send(&mut self, port: &str, body: impl Into<Vec<u8>>) -> OutputId {
        self.try_send(port, body).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same, for ports and bodies that come from outside.
    ///
    /// # Errors
    /// [`SendError`]; then nothing is emitted.
    pub fn try_send(&mut self, port: &str, body: impl Into<Vec<u8>>) -> Result<OutputId, SendError> {
        let output = self.delivering.ask.try_send(port, body.into())?;
        self.delivering.book.sent(output, self.address);
        Ok(output)
    }

    /// Asks for [`Instance::timer`] with `token` once `delay` has passed.
    pub fn set_timer(&mut self, delay: Duration, token: u64) {
        let timer = self.delivering.book.set(self.address, token);
        self.delivering.ask.set_timer(delay, timer);
    }

    /// Ends this instance once the handler returns: its state and its timers are gone, and the outcomes of its outputs are told nobody. Called or
    /// told once more, it begins anew.
    pub fn end(&mut self) {
        self.ended = true;
    }

    fn answer_here(&mut self, request: RequestId, answer: Answer) {
        let work = &mut *self.delivering.work;
        if work.request == Some(request) {
            work.answer.get_or_insert(answer);
        } else {
            self.delivering.ask.answer(request, answer);
        }
    }
}

impl<I> fmt::Debug for Context<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("address", self.address).finish_non_exhaustive()
    }
}

impl<A> Clone for Caller<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Caller<A> {}

impl<A> PartialEq for Caller<A> {
    fn eq(&self, other: &Self) -> bool {
        (self.node, self.request) == (other.node, other.request)
    }
}

impl<A> Eq for Caller<A> {}

impl<A> fmt::Debug for Caller<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Caller({}, {:?})", self.node, self.request)
    }
}

/// The process's context, as far as instances use it.
pub(crate) trait Ask {
    fn now(&self) -> Time;
    fn random_u64(&mut self) -> u64;
    fn request(&self) -> RequestId;
    fn answer(&mut self, request: RequestId, answer: Answer);
    fn tell(&mut self, to: NodeId, body: Vec<u8>);
    fn try_send(&mut self, port: &str, body: Vec<u8>) -> Result<OutputId, SendError>;
    fn set_timer(&mut self, delay: Duration, token: u64);
}

impl Ask for handler::Context<'_> {
    fn now(&self) -> Time {
        self.now()
    }

    fn random_u64(&mut self) -> u64 {
        self.random_u64()
    }

    fn request(&self) -> RequestId {
        self.request()
    }

    fn answer(&mut self, request: RequestId, answer: Answer) {
        self.answer(request, answer);
    }

    fn tell(&mut self, to: NodeId, body: Vec<u8>) {
        self.tell(to, body);
    }

    fn try_send(&mut self, port: &str, body: Vec<u8>) -> Result<OutputId, SendError> {
        self.try_send(port, body)
    }

    fn set_timer(&mut self, delay: Duration, token: u64) {
        self.set_timer(delay, token);
    }
}
