//! A delivery without a process: the handler called once, with what a record would give it. For those who run a history by
//! themselves, as a model does.

use crate::handler::{Answer, Asked, Context, Handler, Outcome, Random, RequestId};
use crate::history::guarded;
use crate::port::{Port, PortIndex};
use crate::summary::Summary;
use mainstay_types::id::{DeliveryIndex, NodeId, OutputId, StoreId};
use mainstay_types::time::Time;

/// Which of its functions is called.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// [`Handler::handle`] with this body.
    Request(&'a [u8]),
    /// [`Handler::message`] of this node, with this body.
    Message(NodeId, &'a [u8]),
    /// [`Handler::timer`] with this token.
    Timer(u64),
    /// [`Handler::output_settled`].
    Settled(OutputId, &'a Outcome),
}

/// What the delivery gets through its context.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The recorded time.
    pub now: Time,
    /// The recorded seed of its randomness.
    pub seed: u64,
    /// Its place in history.
    pub delivery: DeliveryIndex,
    /// The number of the first output that it emits.
    pub next_output: OutputId,
    /// The directory it would live in.
    pub store: StoreId,
    /// The declared ports.
    pub ports: &'a [Port],
    /// The other nodes of its cluster.
    pub nodes: &'a [NodeId],
    /// Bytes of a message to one of them, at most.
    pub message_bytes_max: usize,
}

impl<'a> Given<'a> {
    /// What a handler is given that has not drawn a random number yet: for one that is wrapped and recorded.
    #[must_use]
    pub fn of(context: &'a Context<'_>) -> Self {
        Self {
            now: context.now,
            seed: context.random.0,
            delivery: context.delivery,
            next_output: context.asked.next_output,
            store: context.store,
            ports: context.ports,
            nodes: context.nodes,
            message_bytes_max: context.message_bytes_max,
        }
    }
}

/// What the delivery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Performed {
    /// The answer to a request; `None` where a later delivery gives it.
    pub answer: Option<Answer>,
    /// Outputs, in order.
    pub outputs: Vec<(OutputId, PortIndex, Vec<u8>)>,
    /// Timers set: when they are due, and their tokens.
    pub timers: Vec<(Time, u64)>,
    /// Messages to other nodes, in order.
    pub messages: Vec<(NodeId, Vec<u8>)>,
    /// Answers to requests of earlier deliveries.
    pub late_answers: Vec<(RequestId, Answer)>,
}

/// The handler panicked; its state is worthless now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the handler panicked: {message}")]
pub struct HandlerPanicked {
    /// What the panic said.
    pub message: String,
}

impl Performed {
    /// What a delivery did that ended with `answer`, and whose context this is.
    #[must_use]
    pub fn of(answer: Option<Answer>, context: &Context<'_>) -> Self {
        let Asked { outputs, timers, messages, answers, .. } = &*context.asked;
        Self {
            answer,
            outputs: outputs.clone(),
            timers: timers.clone(),
            messages: messages.clone(),
            late_answers: answers.clone(),
        }
    }

    /// What a process would record of it.
    #[must_use]
    pub fn summary(&self, ports: &[Port]) -> Summary {
        let Self { answer, outputs, timers, messages, late_answers } = self.clone();
        let asked = Asked { outputs, timers, messages, answers: late_answers, ..Asked::default() };
        Summary::of(answer.as_ref(), &asked, ports)
    }
}

/// Calls `handler` once.
///
/// # Errors
/// [`HandlerPanicked`]; then the handler is not to be used any further.
pub fn deliver<H: Handler>(
    handler: &mut H,
    call: Call<'_>,
    given: Given<'_>,
) -> Result<Performed, HandlerPanicked> {
    let mut asked = Asked { next_output: given.next_output, ..Asked::default() };
    let mut context = Context {
        now: given.now,
        store: given.store,
        random: Random(given.seed),
        asked: &mut asked,
        ports: given.ports,
        delivery: given.delivery,
        nodes: given.nodes,
        message_bytes_max: given.message_bytes_max,
    };
    let done = guarded(|| match call {
        Call::Request(body) => handler.handle(body, &mut context),
        Call::Message(from, body) => {
            handler.message(from, body, &mut context);
            None
        }
        Call::Timer(token) => {
            handler.timer(token, &mut context);
            None
        }
        Call::Settled(output, outcome) => {
            handler.output_settled(output, outcome, &mut context);
            None
        }
    });
    let answer = done.map_err(|panicked| HandlerPanicked { message: panicked.message })?;
    Ok(Performed::of(answer, &context))
}
