//! A user's handler on a simulated node, with a witness beside it: every delivery, what it was given and what it did.

use crate::cluster::subject::Hosted;
use crate::exercise_of_nodes::ExerciseOfNodes;
use crate::order::Differs;
use crate::story::Story;
use mainstay_process::dry_run::{Call, Given, Performed};
use mainstay_process::handler::{Answer, Context, Handler, Outcome, RequestId, RestoreError};
use mainstay_types::id::{DeliveryIndex, NodeId, OutputId, StoreId};
use mainstay_types::time::Time;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes ahead of a request's body, and of a saved state: the number of the call, and of the deliveries so far.
pub(crate) const NUMBER_BYTES: usize = 8;
/// Bytes ahead of what a read shows: the number of the deliveries so far, and the status.
pub(crate) const READ_BYTES: usize = NUMBER_BYTES + 2;

/// What was delivered to a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Took {
    /// A request, with the number of its call ahead.
    Request(Vec<u8>),
    Message(NodeId, Vec<u8>),
    Timer(u64),
    Settled(OutputId, Outcome),
}

impl Took {
    pub(crate) fn call(&self) -> Call<'_> {
        match self {
            Self::Request(body) => Call::Request(&body[NUMBER_BYTES..]),
            Self::Message(from, body) => Call::Message(*from, body),
            Self::Timer(token) => Call::Timer(*token),
            Self::Settled(output, outcome) => Call::Settled(*output, outcome),
        }
    }

    /// For people.
    pub(crate) fn told(&self, exercise: &impl ExerciseOfNodes) -> String {
        match self.call() {
            Call::Request(body) => format!("request {}", exercise.show_body(body)),
            Call::Message(from, body) => format!("message of {from}: {}", exercise.show_body(body)),
            Call::Timer(token) => format!("timer {token}"),
            Call::Settled(output, outcome) => format!("output {output} settled: {outcome:?}"),
        }
    }
}

/// One delivery: what it was given, and what it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) took: Took,
    pub(crate) delivery: DeliveryIndex,
    pub(crate) now: Time,
    pub(crate) seed: u64,
    pub(crate) next_output: OutputId,
    pub(crate) store: StoreId,
    pub(crate) message_bytes_max: usize,
    pub(crate) performed: Performed,
}

impl Delivered {
    /// The delivery that `took`, before it is known what it did.
    fn begun(took: Took, given: &Given<'_>) -> Self {
        let &Given { now, seed, delivery, next_output, store, message_bytes_max, .. } = given;
        Self {
            took,
            delivery,
            now,
            seed,
            next_output,
            store,
            message_bytes_max,
            performed: Performed::default(),
        }
    }

    /// Whether the two took the same and were given the same: then they must do the same.
    fn is_repeated_by(&self, other: &Self) -> bool {
        (&self.took, self.delivery, self.now, self.seed, self.next_output)
            == (&other.took, other.delivery, other.now, other.seed, other.next_output)
    }

    /// For people: what was delivered, and what it led to.
    fn told(&self, node: NodeId, exercise: &impl ExerciseOfNodes) -> String {
        let Performed { answer, outputs, timers, messages, late_answers } = &self.performed;
        let shown = |answer: &Answer| format!("{} {}", answer.status, exercise.show_body(&answer.body));
        let mut did = Vec::new();
        match (&self.took, answer) {
            (_, Some(answer)) => did.push(shown(answer)),
            (Took::Request(_), None) => did.push("answered later".to_owned()),
            _ => {}
        }
        did.extend(messages.iter().map(|(to, body)| format!("to {to}: {}", exercise.show_body(body))));
        did.extend(outputs.iter().map(|(id, _, body)| format!("output {id}: {}", exercise.show_body(body))));
        did.extend(timers.iter().map(|(due, token)| {
            format!("timer {token} in {} ms", due.0.saturating_sub(self.now.0) / 1_000_000)
        }));
        did.extend(
            late_answers.iter().map(|(request, answer)| format!("answers {}: {}", request.0, shown(answer))),
        );
        let did = if did.is_empty() { String::new() } else { format!(" -> {}", did.join("; ")) };
        format!("{node} delivery {}: {}{did}", self.delivery, self.took.told(exercise))
    }
}

/// What a node has executed, as far back as it goes.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// In order. Behind what survives there may be what a crash took and nothing has replaced yet.
    pub(crate) deliveries: Vec<Delivered>,
    /// The first delivery that did something else when a recovery ran it again.
    pub(crate) differs: Option<Differs>,
}

/// The handler of one life of a node.
pub(crate) struct Recorded<E: ExerciseOfNodes> {
    exercise: Arc<E>,
    node: NodeId,
    pub(crate) handler: E::Handler,
    /// Deliveries so far.
    count: usize,
    past: Rc<RefCell<Past>>,
    story: Rc<RefCell<Story>>,
}

impl<E: ExerciseOfNodes> Recorded<E> {
    /// One to which nothing was delivered yet.
    pub(crate) fn new(
        exercise: &Arc<E>,
        (node, nodes): (NodeId, &[NodeId]),
        past: &Rc<RefCell<Past>>,
        story: &Rc<RefCell<Story>>,
    ) -> Self {
        Self {
            handler: exercise.handler(node, nodes),
            exercise: Arc::clone(exercise),
            node,
            count: 0,
            past: Rc::clone(past),
            story: Rc::clone(story),
        }
    }

    /// Everything that led to the present state, in order.
    pub(crate) fn history(&self) -> Vec<Delivered> {
        self.past.borrow().deliveries[..self.count].to_vec()
    }

    fn deliver(
        &mut self,
        took: Took,
        context: &mut Context<'_>,
        run: impl FnOnce(&mut E::Handler, &mut Context<'_>) -> Option<Answer>,
    ) -> Option<Answer> {
        let mut delivered = Delivered::begun(took, &Given::of(context));
        let answer = run(&mut self.handler, context);
        delivered.performed = Performed::of(answer.clone(), context);
        let Past { deliveries, differs } = &mut *self.past.borrow_mut();
        match deliveries.get_mut(self.count) {
            // Run again by a recovery.
            Some(before) if before.is_repeated_by(&delivered) => {
                if let Some(what) = difference(&*self.exercise, &before.performed, &delivered.performed) {
                    let told = format!("on {}, {}", self.node, before.took.told(&*self.exercise));
                    differs.get_or_insert(Differs { delivery: delivered.delivery, told, what });
                }
            }
            _ => {
                self.story.borrow_mut().tell(|| delivered.told(self.node, &*self.exercise));
                deliveries.truncate(self.count);
                deliveries.push(delivered);
            }
        }
        self.count += 1;
        answer
    }
}

impl<E: ExerciseOfNodes> Hosted for Recorded<E> {
    fn open(&self) -> usize {
        let mut open = BTreeSet::new();
        for delivered in &self.past.borrow().deliveries[..self.count] {
            if matches!(delivered.took, Took::Request(_)) && delivered.performed.answer.is_none() {
                open.insert(RequestId(delivered.delivery));
            }
            for (request, _) in &delivered.performed.late_answers {
                open.remove(request);
            }
        }
        open.len()
    }

    fn next_timer(&self) -> Option<Time> {
        let mut set = Vec::new();
        for delivered in &self.past.borrow().deliveries[..self.count] {
            if let Took::Timer(token) = delivered.took
                && let Some(place) = set.iter().position(|&(_, waiting)| waiting == token)
            {
                set.remove(place);
            }
            set.extend_from_slice(&delivered.performed.timers);
        }
        set.into_iter().map(|(due, _)| due).min()
    }
}

impl<E: ExerciseOfNodes> Handler for Recorded<E> {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        self.deliver(Took::Request(body.to_vec()), context, |handler, context| {
            handler.handle(&body[NUMBER_BYTES..], context)
        })
    }

    fn message(&mut self, from: NodeId, body: &[u8], context: &mut Context<'_>) {
        self.deliver(Took::Message(from, body.to_vec()), context, |handler, context| {
            handler.message(from, body, context);
            None
        });
    }

    fn query(&self, body: &[u8]) -> Answer {
        let Answer { status, body } = self.handler.query(body);
        let body = [&(self.count as u64).to_le_bytes()[..], &status.to_le_bytes(), &body].concat();
        Answer { status: 200, body }
    }

    fn timer(&mut self, token: u64, context: &mut Context<'_>) {
        self.deliver(Took::Timer(token), context, |handler, context| {
            handler.timer(token, context);
            None
        });
    }

    fn output_settled(&mut self, output: OutputId, outcome: &Outcome, context: &mut Context<'_>) {
        self.deliver(Took::Settled(output, outcome.clone()), context, |handler, context| {
            handler.output_settled(output, outcome, context);
            None
        });
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        into.write_all(&(self.count as u64).to_le_bytes())?;
        self.handler.save(into)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let (count, state) = bytes.split_at(NUMBER_BYTES);
        let count = u64::from_le_bytes(count.try_into().expect("it was just split off"));
        self.count = usize::try_from(count).expect("a list fits in memory");
        self.handler.restore(state)
    }
}

/// Where the two differ first, for people.
pub(crate) fn difference(
    exercise: &impl ExerciseOfNodes,
    before: &Performed,
    now: &Performed,
) -> Option<String> {
    let answer = |answer: &Answer| format!("{} {}", answer.status, exercise.show_body(&answer.body));
    let told = |what: &str, before: Vec<String>, now: Vec<String>| {
        let list = |these: Vec<String>| if these.is_empty() { "none".to_owned() } else { these.join("; ") };
        (before != now)
            .then(|| format!("{what}\n    recorded: {}\n    now:      {}", list(before), list(now)))
    };
    let both = |of: &dyn Fn(&Performed) -> Vec<String>| (of(before), of(now));
    let answers = both(&|did| did.answer.iter().map(answer).collect());
    let messages = both(&|did| {
        let messages = did.messages.iter();
        messages.map(|(to, body)| format!("to {to} {}", exercise.show_body(body))).collect()
    });
    let outputs = both(&|did| {
        let outputs = did.outputs.iter();
        outputs.map(|(id, port, body)| format!("{id} {port:?} {}", exercise.show_body(body))).collect()
    });
    let timers = both(&|did| did.timers.iter().map(|timer| format!("{timer:?}")).collect());
    let late = both(&|did| {
        did.late_answers.iter().map(|(request, late)| format!("{} {}", request.0, answer(late))).collect()
    });
    told("the answer", answers.0, answers.1)
        .or_else(|| told("what it tells other nodes", messages.0, messages.1))
        .or_else(|| told("its outputs", outputs.0, outputs.1))
        .or_else(|| told("its timers", timers.0, timers.1))
        .or_else(|| told("the answers to earlier requests", late.0, late.1))
}
