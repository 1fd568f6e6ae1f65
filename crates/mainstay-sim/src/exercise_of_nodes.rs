//! A user's service on several simulated nodes: their handlers, their requests, what must hold on each node and over all of them.

use crate::cluster::recorded::{Delivered, NUMBER_BYTES, Past, READ_BYTES, Recorded, Took, difference};
use crate::cluster::service::{Asks, Entry, What};
use crate::cluster::setup::{Rates, Setup};
use crate::cluster::subject::{Asked, Hosted, Subject, known};
use crate::cluster::world::ClusterWorld;
use crate::order::Differs;
use crate::plan::{Plan, Trouble};
use crate::properties::legal_order::{Alone, LegalOrder};
use crate::properties::{Property, Violation, deterministic, state_saved};
use crate::quiet;
use crate::random::{Random, SplitMix};
use crate::story::Story;
use crate::subject::saved;
use mainstay_process::dry_run::{self, Given, Performed};
use mainstay_process::event::Identity;
use mainstay_process::handler::{Answer, Handler};
use mainstay_process::port::Port;
use mainstay_recovery::policy::Policy;
use mainstay_types::id::NodeId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

/// A service of a user on several nodes, bytes in and bytes out, with what is asked of it and what must always hold.
pub trait ExerciseOfNodes: Send + Sync + 'static {
    /// The handler of a node.
    type Handler: Handler + 'static;

    /// The service's name.
    fn name(&self) -> &str;

    /// The ports that it sends to.
    fn ports(&self) -> &[Port];

    /// How many nodes there may be; the numbers of n nodes are 1 to n.
    fn nodes(&self) -> RangeInclusive<u32>;

    /// The policy of all nodes; `None`: drawn, also a different one for each.
    fn policy(&self) -> Option<Policy>;

    /// Bytes of a request's body, and of a message, at most.
    fn body_bytes_max(&self) -> usize;

    /// The handler of node `me` among `nodes`, that nothing was delivered to yet.
    fn handler(&self, me: NodeId, nodes: &[NodeId]) -> Self::Handler;

    /// A request: the node that takes it, and its body. The same draws give the same request.
    fn request(&self, nodes: &[NodeId], random: &mut Random) -> (NodeId, Vec<u8>);

    /// A read; `None`: nobody reads.
    fn read(&self, nodes: &[NodeId], random: &mut Random) -> Option<(NodeId, Vec<u8>)>;

    /// Panics when a node is in a state that it must never be in.
    fn assert_invariant(&self, handler: &Self::Handler);

    /// Panics when all nodes together are in a state that they must not be in once every request is answered and every message
    /// has arrived.
    fn assert_at_rest(&self, handlers: &[&Self::Handler]);

    /// Whether two handlers are in the same state. What has no order may be in any.
    fn is_same(&self, one: &Self::Handler, other: &Self::Handler) -> bool;

    /// A state for people.
    fn show(&self, handler: &Self::Handler) -> String;

    /// A request, an answer, a message or an output for people.
    fn show_body(&self, body: &[u8]) -> String;
}

/// An exercise under a plan.
pub(crate) struct ExercisedNodes<E> {
    exercise: Arc<E>,
    seed: u64,
    plan: Plan,
    nodes: RefCell<Vec<NodeId>>,
    pasts: RefCell<BTreeMap<NodeId, Rc<RefCell<Past>>>>,
    pub(crate) story: Rc<RefCell<Story>>,
    /// Requests made so far.
    made: Cell<u64>,
}

impl<E: ExerciseOfNodes> ExercisedNodes<E> {
    pub(crate) fn new(exercise: &Arc<E>, seed: u64, plan: &Plan, story: Story) -> Self {
        Self {
            exercise: Arc::clone(exercise),
            seed,
            plan: plan.clone(),
            nodes: RefCell::default(),
            pasts: RefCell::default(),
            story: Rc::new(RefCell::new(story)),
            made: Cell::new(0),
        }
    }

    /// Requests made so far.
    pub(crate) fn made(&self) -> u64 {
        self.made.get()
    }

    /// Deliveries in the histories so far.
    pub(crate) fn deliveries(&self) -> u64 {
        self.pasts.borrow().values().map(|past| past.borrow().deliveries.len() as u64).sum()
    }

    /// Runs the histories again, node by node. What does not do the same there is the handlers' doing, however the world noticed.
    pub(crate) fn review(&self, world: &ClusterWorld, found: Option<Violation>) -> Option<Violation> {
        let pasts = self.pasts.borrow();
        let histories: BTreeMap<NodeId, Vec<Delivered>> = match &found {
            None => world.nodes.keys().map(|&node| (node, self.at_rest(world, node).history())).collect(),
            Some(_) => pasts.iter().map(|(&node, past)| (node, past.borrow().deliveries.clone())).collect(),
        };
        let runs = if found.is_some() { deterministic::RUNS_AGAIN } else { 1 };
        let mut alone = Vec::new();
        for (&node, history) in &histories {
            if let Some(differs) = &pasts[&node].borrow().differs {
                return Some(self.unlike(world, node, history, differs));
            }
            let reads = if found.is_some() { Vec::new() } else { world.reads_of(node) };
            for _ in 0..runs {
                match self.again(world, node, history, &reads, false) {
                    Ok(handler) => alone.push((node, handler)),
                    Err(Stopped::Differs(differs)) => {
                        return Some(self.unlike(world, node, history, &differs));
                    }
                    Err(Stopped::Violated(violation)) => return Some(violation),
                }
            }
        }
        for (&node, history) in &histories {
            match self.again(world, node, history, &[], true) {
                Ok(handler) if found.is_none() => {
                    let (_, whole) = alone.iter().find(|(of, _)| *of == node).expect("each node was run");
                    if let Some(what) = self.differ(whole, &handler) {
                        let what = format!("{node}, saved and restored before every delivery: {what}");
                        return Some(Violation::new(Property::StateSaved, what));
                    }
                }
                Ok(_) => {}
                Err(Stopped::Differs(differs)) => return Some(state_saved::violated(&differs)),
                Err(Stopped::Violated(violation)) => return Some(violation),
            }
        }
        found.or_else(|| self.final_states(world, &alone))
    }

    /// A delivery did something else when it was run again. Is it different each time, or only where the handler was saved and
    /// restored by a recovery?
    fn unlike(
        &self,
        world: &ClusterWorld,
        node: NodeId,
        history: &[Delivered],
        differs: &Differs,
    ) -> Violation {
        let plain = self.executed(world, node, history, false);
        if (1..deterministic::RUNS_AGAIN).all(|_| self.executed(world, node, history, false) == plain) {
            let restored = self.executed(world, node, history, true);
            for ((delivered, plain), restored) in history.iter().zip(&plain).zip(&restored) {
                if let Some(what) = difference(&*self.exercise, plain, restored) {
                    let told = format!("on {node}, {}", delivered.took.told(&*self.exercise));
                    return state_saved::violated(&Differs { delivery: delivered.delivery, told, what });
                }
            }
        }
        deterministic::violated(differs)
    }

    /// What the deliveries of a history do now, as far as a new handler gets.
    fn executed(
        &self,
        world: &ClusterWorld,
        node: NodeId,
        history: &[Delivered],
        restores: bool,
    ) -> Vec<Performed> {
        let mut did = Vec::new();
        let each = &mut |_: &Delivered, performed: Performed, _: &E::Handler| {
            did.push(performed);
            Ok(())
        };
        // Where it stops, the list ends.
        let _ = self.execute(world, node, history, restores, each);
        did
    }

    fn final_states(&self, world: &ClusterWorld, alone: &[(NodeId, E::Handler)]) -> Option<Violation> {
        for (node, alone) in alone {
            if let Some(what) = self.differ(alone, &self.at_rest(world, *node).handler) {
                let what = format!("the final state of {node} is not that of a run without failures: {what}");
                return Some(Violation::new(Property::LegalOrder, what));
            }
        }
        let handlers: Vec<&E::Handler> = alone.iter().map(|(_, handler)| handler).collect();
        let asserted = catch_unwind(AssertUnwindSafe(|| self.exercise.assert_at_rest(&handlers)));
        let payload = asserted.err()?;
        let states =
            alone.iter().map(|(node, handler)| format!("\n  {node}: {}", self.exercise.show(handler)));
        let what = format!(
            "once every request is answered and every message has arrived: {}{}{}",
            quiet::message(payload.as_ref()),
            quiet::last_panic_place(),
            states.collect::<String>()
        );
        Some(Violation::new(Property::Invariant, what))
    }

    fn differ(&self, model: &E::Handler, found: &E::Handler) -> Option<String> {
        (!self.exercise.is_same(model, found)).then(|| {
            format!(
                "\n    expected: {}\n    found:    {}",
                self.exercise.show(model),
                self.exercise.show(found)
            )
        })
    }

    fn at_rest<'a>(&self, world: &'a ClusterWorld, node: NodeId) -> &'a Recorded<E> {
        known(world.handler(node))
    }

    /// Runs a history by a new handler, and compares what it does with what is recorded.
    fn again(
        &self,
        world: &ClusterWorld,
        node: NodeId,
        history: &[Delivered],
        reads: &[(&[u8], &Answer)],
        restores: bool,
    ) -> Result<E::Handler, Stopped> {
        let exercise = &*self.exercise;
        let mut count = 0_u64;
        self.read_again(&exercise.handler(node, &self.nodes.borrow()), node, count, reads)?;
        let each = &mut |delivered: &Delivered, performed: Performed, handler: &E::Handler| {
            let told = || format!("on {node}, {}", delivered.took.told(exercise));
            if let Some(what) = difference(exercise, &delivered.performed, &performed) {
                return Err(Stopped::Differs(Differs { delivery: delivered.delivery, told: told(), what }));
            }
            if !restores {
                self.assert_invariant(handler, &|| format!("delivery {}, {}", delivered.delivery, told()))?;
            }
            count += 1;
            self.read_again(handler, node, count, reads)
        };
        self.execute(world, node, history, restores, each)
    }

    /// Compares what readers saw after `count` deliveries.
    fn read_again(
        &self,
        handler: &E::Handler,
        node: NodeId,
        count: u64,
        reads: &[(&[u8], &Answer)],
    ) -> Result<(), Stopped> {
        let then = |seen: &Answer| seen.body[..NUMBER_BYTES] == count.to_le_bytes();
        for (query, seen) in reads.iter().filter(|(_, seen)| then(seen)) {
            let Answer { status, body } = handler.query(query);
            if seen.body[NUMBER_BYTES..] != [&status.to_le_bytes()[..], &body].concat() {
                let what = format!(
                    "{node} showed a reader {} after {count} deliveries; a run without failures: {}",
                    self.exercise.show_body(&seen.body[READ_BYTES..]),
                    self.exercise.show_body(&body)
                );
                return Err(Stopped::Violated(Violation::new(Property::LegalOrder, what)));
            }
        }
        Ok(())
    }

    /// Runs a history by a new handler; with `restores`, it is saved and restored before every delivery.
    fn execute(
        &self,
        world: &ClusterWorld,
        node: NodeId,
        history: &[Delivered],
        restores: bool,
        each: &mut Each<'_, E::Handler>,
    ) -> Result<E::Handler, Stopped> {
        let exercise = &*self.exercise;
        let nodes = self.nodes.borrow();
        let others: Vec<NodeId> = nodes.iter().copied().filter(|other| *other != node).collect();
        let mut handler = exercise.handler(node, &nodes);
        for delivered in history {
            let differs = |what| {
                let told = format!("on {node}, {}", delivered.took.told(exercise));
                Stopped::Differs(Differs { delivery: delivered.delivery, told, what })
            };
            if restores {
                let state = saved(&handler);
                handler = exercise.handler(node, &nodes);
                handler.restore(&state).map_err(|error| differs(error.to_string()))?;
            }
            let given = Given {
                now: delivered.now,
                seed: delivered.seed,
                delivery: delivered.delivery,
                next_output: delivered.next_output,
                store: delivered.store,
                ports: &world.setup.ports,
                nodes: &others,
                message_bytes_max: delivered.message_bytes_max,
            };
            let performed = dry_run::deliver(&mut handler, delivered.took.call(), given)
                .map_err(|panicked| differs(format!("{panicked}{}", quiet::last_panic_place())))?;
            each(delivered, performed, &handler)?;
        }
        Ok(handler)
    }

    fn assert_invariant(&self, handler: &E::Handler, told: &dyn Fn() -> String) -> Result<(), Stopped> {
        let asserted = catch_unwind(AssertUnwindSafe(|| self.exercise.assert_invariant(handler)));
        let Err(payload) = asserted else { return Ok(()) };
        let what = format!(
            "after {}: {}{}\n  the state: {}",
            told(),
            quiet::message(payload.as_ref()),
            quiet::last_panic_place(),
            self.exercise.show(handler)
        );
        Err(Stopped::Violated(Violation::new(Property::Invariant, what)))
    }
}

/// Is told each delivery: as recorded, what it did now, and the handler behind it.
type Each<'a, H> = dyn FnMut(&Delivered, Performed, &H) -> Result<(), Stopped> + 'a;

/// Why a history was not run to its end.
enum Stopped {
    Differs(Differs),
    Violated(Violation),
}

impl<E: ExerciseOfNodes> Subject for ExercisedNodes<E> {
    fn setup(&self, random: &mut Random) -> Setup {
        let exercise = &*self.exercise;
        let range = exercise.nodes();
        let drawn = random.between(u64::from(*range.start()), u64::from(*range.end())) as u32;
        let count = if self.plan.has(Trouble::Nodes) { drawn } else { *range.start() };
        let nodes: Vec<NodeId> = (1..=count).map(NodeId).collect();
        let policies = Setup::policies(random, &nodes, exercise.policy());
        self.nodes.borrow_mut().clone_from(&nodes);
        let mut setup = Setup::among(random, policies);
        exercise.name().clone_into(&mut setup.name);
        setup.ports = exercise.ports().to_vec();
        setup.takes(exercise.body_bytes_max() + NUMBER_BYTES);
        if let Some(requests) = &self.plan.requests {
            setup.calls = requests.len();
        }
        if !self.plan.has(Trouble::Network) {
            setup.rates.client_lost_per_mille = 0;
        }
        if !self.plan.has(Trouble::Power) {
            setup.rates.power_cuts_per_mille = 0;
        }
        let policies: Vec<String> =
            setup.policies.iter().map(|(node, policy)| format!("{node} {policy}")).collect();
        let (level, down_max) = (setup.level, setup.down_max);
        self.story.borrow_mut().tell(|| {
            format!(
                "nodes and their policies: {}; level {level}, {down_max} down at once",
                policies.join(", ")
            )
        });
        setup
    }

    fn handler(&self, node: NodeId) -> Box<dyn Hosted> {
        let mut pasts = self.pasts.borrow_mut();
        let past = pasts.entry(node).or_default();
        Box::new(Recorded::new(&self.exercise, (node, &self.nodes.borrow()), past, &self.story))
    }

    fn call(&self, number: u64, nodes: &[NodeId], _: &Rates, random: &mut Random) -> Option<Asked> {
        let made = self.made.get();
        let planned = match &self.plan.requests {
            Some(planned) => *planned.get(usize::try_from(made).expect("a list fits in memory"))?,
            None => made,
        };
        self.made.set(made + 1);
        // The same request, whichever others are made.
        let mut drawn = Random::new(SplitMix(self.seed ^ planned.rotate_left(32)).draw());
        let (home, body) = self.exercise.request(nodes, &mut drawn);
        let most = self.exercise.body_bytes_max();
        assert!(body.len() <= most, "a request has {} bytes, at most {most} were announced", body.len());
        let again = random.below(3).saturating_sub(1) as u32;
        Some(Asked {
            home,
            body: [&number.to_le_bytes()[..], &body].concat(),
            identity: Identity::Key(format!("call {number}").into_bytes()),
            again: if self.plan.has(Trouble::Misuse) { again } else { 0 },
        })
    }

    fn read(&self, nodes: &[NodeId], random: &mut Random) -> Option<(NodeId, Vec<u8>)> {
        if self.plan.has(Trouble::Reads) { self.exercise.read(nodes, random) } else { None }
    }

    fn show(&self, body: &[u8]) -> String {
        self.exercise.show_body(&body[NUMBER_BYTES..])
    }

    /// What the histories say was told, set and answered; whether the handlers do that again is for [`ExercisedNodes::review`].
    fn judge(&self, world: &ClusterWorld) -> Result<(), Violation> {
        let told = |&node: &NodeId| {
            let history = self.at_rest(world, node).history();
            let entries = history.iter().map(entry).collect();
            let did = history.into_iter().map(|delivered| delivered.performed).collect();
            (node.0, (Told { did }, entries))
        };
        let order = LegalOrder::of(world.nodes.keys().map(told).collect(), &|call| world.asked(call))?;
        order.nothing_under_way()?;
        world.compare(&order)
    }
}

/// A node that does what it is recorded to have done.
struct Told {
    did: VecDeque<Performed>,
}

impl Alone for Told {
    fn apply(&mut self, entry: &Entry, asks: &mut dyn Asks) {
        let did = self.did.pop_front().expect("every entry of a history did something");
        if let (What::Request { index, .. }, Some(answer)) = (&entry.what, did.answer) {
            asks.answer(*index, answer);
        }
        for (to, body) in did.messages {
            asks.tell(to.0, body);
        }
        for (_, port, body) in did.outputs {
            asks.send(u8::try_from(port.0).expect("there are few ports"), body);
        }
        for (due, token) in did.timers {
            let delay_us = (due.0 - entry.now) / 1000;
            asks.timer(u32::try_from(delay_us).unwrap_or(u32::MAX), token);
        }
        for (request, answer) in did.late_answers {
            asks.answer(request.0.0, answer);
        }
    }

    fn call_of(body: &[u8]) -> u64 {
        u64::from_le_bytes(body[..NUMBER_BYTES].try_into().expect("a request has its number ahead"))
    }
}

fn entry(delivered: &Delivered) -> Entry {
    let what = match &delivered.took {
        Took::Request(body) => What::Request { index: delivered.delivery.0, body: body.clone() },
        Took::Message(from, body) => What::Message { from: from.0, body: body.clone() },
        Took::Timer(token) => What::Timer { token: *token },
        Took::Settled(output, _) => What::Settled { output: output.0, outcome: 0 },
    };
    let outputs = delivered.performed.outputs.iter().map(|(id, ..)| id.0).collect();
    Entry { delivery: 0, now: delivered.now.0, draw: delivered.seed, what, outputs }
}
