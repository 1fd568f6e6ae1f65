//! Campaigns on instances: the user's types on one to four simulated nodes that tell each other, under any logging policy.

use super::{counted, forget_order, json, options, seeds_of_environment, tell_tenths, told};
use crate::instance::address::Address;
use crate::instance::envelope::{Envelope, Told};
use crate::instance::handler::{Facts, NodeHandler};
use crate::instance::hosted::{Instances, Shown};
use crate::instance::node::HostedType;
use crate::instance::placement::Placement;
use crate::instance::{Instance, Node};
use mainstay_process::handler::Answer;
use mainstay_process::port::{Guarantee, Port};
use mainstay_recovery::policy::Policy;
use mainstay_runtime::service::Unfit;
use mainstay_sim::campaign::{CampaignReport, run_nodes};
use mainstay_sim::exercise::shown;
use mainstay_sim::exercise_of_nodes::ExerciseOfNodes;
use mainstay_sim::random::Random;
use mainstay_types::id::NodeId;
use serde::Serialize;
use serde_json::Value;
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Nodes of a campaign at most, unless it says otherwise.
const NODES_MAX: u32 = 4;
/// Bytes of a command or a message at most, unless [`InstanceCampaign::body_bytes_max`] says otherwise.
const BODY_BYTES_MAX: usize = 2000;

/// What a client asks of an instance, or reads of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    to: Address,
    body: Vec<u8>,
}

impl Call {
    /// A command, or a query, to the instance of a type with a key; `body` is what `I::Command`, or `I::Query`, reads as JSON.
    ///
    /// # Panics
    /// When the key cannot be one.
    #[must_use]
    pub fn to<I: Instance>(key: &str, body: impl Serialize) -> Self {
        Self { to: Address::new(I::TYPE, key), body: json(&body) }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.to.put(&mut bytes);
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// All instances on all nodes, once every request is answered and every message has arrived.
#[derive(Clone, Copy)]
pub struct AtRest<'a> {
    nodes: &'a [&'a NodeHandler],
}

impl<'a> AtRest<'a> {
    /// Every instance of a type, with its key.
    pub fn all<I: Instance>(&self) -> impl Iterator<Item = (&'a str, &'a I)> {
        self.nodes.iter().flat_map(|node| states::<I>(node))
    }

    /// One of them.
    #[must_use]
    pub fn get<I: Instance>(&self, key: &str) -> Option<&'a I> {
        self.all::<I>().find(|(of, _)| *of == key).map(|(_, state)| state)
    }
}

/// The instances of a type on a node; none if it does not host the type.
fn states<I: Instance>(node: &NodeHandler) -> impl Iterator<Item = (&str, &I)> {
    let hosted = node.types.get(I::TYPE).and_then(|hosted| {
        let hosted: &dyn Any = &**hosted;
        hosted.downcast_ref::<Instances<I>>()
    });
    hosted.into_iter().flat_map(|hosted| hosted.states.iter().map(|(key, state)| (key.as_str(), state)))
}

type DrawCall = Box<dyn Fn(&mut Random) -> Call + Send + Sync>;
type Invariant = Box<dyn Fn(&NodeHandler) + Send + Sync>;
type RestInvariant = Box<dyn Fn(&AtRest<'_>) + Send + Sync>;

/// A campaign on instances: what is asked of them, and what must always hold of one and in the end of all.
///
/// Each seed draws how many nodes there are, by which policy each logs, how quick disks and links are, and what crashes when; never more
/// nodes at the same time than the policies survive.
#[must_use = "a campaign does nothing before `run` or `report`"]
pub struct InstanceCampaign {
    seeds: Range<u64>,
    exercise: Exercise,
}

struct Exercise {
    name: String,
    types: Vec<HostedType>,
    commands: Option<DrawCall>,
    reads: Option<DrawCall>,
    invariants: Vec<Invariant>,
    at_rest: Vec<RestInvariant>,
    ports: Vec<Port>,
    nodes: RangeInclusive<u32>,
    policy: Option<Policy>,
    body_bytes_max: usize,
}

impl InstanceCampaign {
    pub(super) fn new(node: Node, seeds: Range<u64>) -> Self {
        let exercise = Exercise {
            name: node.name,
            types: node.types,
            commands: None,
            reads: None,
            invariants: Vec::new(),
            at_rest: Vec::new(),
            ports: Vec::new(),
            nodes: 1..=NODES_MAX,
            policy: None,
            body_bytes_max: BODY_BYTES_MAX,
        };
        Self { seeds, exercise }
    }

    /// What clients ask for: each call gives one command. All chance must come from the argument.
    pub fn commands(mut self, draw: impl Fn(&mut Random) -> Call + Send + Sync + 'static) -> Self {
        self.exercise.commands = Some(Box::new(draw));
        self
    }

    /// What clients read. Without this, `null` of an instance that is also sent commands, if its type takes that.
    pub fn reads(mut self, draw: impl Fn(&mut Random) -> Call + Send + Sync + 'static) -> Self {
        self.exercise.reads = Some(Box::new(draw));
        self
    }

    /// Asserts what must hold of every instance of a type, by its key, after every delivery to its node: a panic is a violation.
    pub fn invariant<I: Instance>(mut self, assert: impl Fn(&str, &I) + Send + Sync + 'static) -> Self {
        let each = move |node: &NodeHandler| states::<I>(node).for_each(|(key, state)| assert(key, state));
        self.exercise.invariants.push(Box::new(each));
        self
    }

    /// Asserts what must hold over all instances once every request is answered and every message has arrived. Timers that are set
    /// again and again may be still to come.
    pub fn at_rest(mut self, assert: impl Fn(&AtRest<'_>) + Send + Sync + 'static) -> Self {
        self.exercise.at_rest.push(Box::new(assert));
        self
    }

    /// Declares an output port; a simulated receiver with that guarantee stands behind it.
    pub fn output(mut self, name: &str, guarantee: Guarantee) -> Self {
        self.exercise.ports.push(Port { name: name.to_owned(), guarantee, lines: false });
        self
    }

    /// How many nodes there may be, numbered from 1. Without this 1 to 4, and as many as a type is hosted on, or the policy needs.
    ///
    /// # Panics
    /// When there may be none.
    pub fn nodes(mut self, nodes: RangeInclusive<u32>) -> Self {
        assert!(!nodes.is_empty() && *nodes.start() > 0, "{nodes:?} is no number of nodes");
        self.exercise.nodes = nodes;
        self
    }

    /// The policy by which all nodes log. Without this each seed draws one, sometimes another one for each node.
    ///
    /// # Panics
    /// When it survives nothing.
    pub fn policy(mut self, policy: Policy) -> Self {
        assert!(policy != Policy::Unlogged, "`{policy}` survives nothing: there is nothing to find out");
        self.exercise.policy = Some(policy);
        self
    }

    /// Bytes of the longest command or message as JSON, with the addresses ahead of it; 2000 without this.
    pub fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.exercise.body_bytes_max = bytes;
        self
    }

    /// Runs it: the seeds given, or those of the environment variable [`super::SEEDS_VARIABLE`]. Says on standard output what was done.
    ///
    /// # Panics
    /// With the shortest history found, and the line that shows it again, when something was violated; when no commands, or
    /// commands that are none of the types', were given.
    pub fn run(mut self) -> CampaignReport {
        self.seeds = seeds_of_environment().unwrap_or(self.seeds);
        told(self.report())
    }

    /// Runs the seeds given and returns what was found; says on standard error how far it is.
    ///
    /// # Panics
    /// When no commands, or commands that are none of the types', were given.
    #[must_use]
    pub fn report(self) -> CampaignReport {
        self.check_commands();
        let Self { seeds, exercise } = self;
        let exercise = Arc::new(exercise);
        run_nodes(&exercise, &options(&seeds), &mut tell_tenths(&exercise.name))
    }

    /// A command that would be refused before it is recorded tests nothing.
    fn check_commands(&self) {
        let mut random = Random::new(self.seeds.start);
        for _ in 0..100 {
            let call = self.exercise.command(&mut random);
            let Some(hosted) = self.exercise.hosted(&call.to) else {
                panic!("{} is of no type that `{}` hosts", call.to, self.exercise.name);
            };
            if let Err(Unfit::Content { message } | Unfit::Syntax { message }) =
                (hosted.check_command)()(&call.body)
            {
                panic!("{} is no command of {}: {message}", String::from_utf8_lossy(&call.body), call.to);
            }
        }
    }
}

impl Exercise {
    fn command(&self, random: &mut Random) -> Call {
        let draw = self.commands.as_ref().expect("a campaign needs `.commands(…)`: what clients ask for");
        draw(random)
    }

    fn hosted(&self, address: &Address) -> Option<&HostedType> {
        self.types.iter().find(|hosted| hosted.name == address.type_name)
    }

    fn home(&self, address: &Address, nodes: &[NodeId]) -> NodeId {
        let hosted = self.hosted(address).expect("only types that are hosted are called");
        hosted.placement.node_of(address, nodes)
    }

    /// All states, by address, without any order in them: a hash map that is only looked up in is saved in another order each time,
    /// and rightly so.
    fn unordered(node: &NodeHandler) -> BTreeMap<String, Result<Value, Vec<usize>>> {
        let unordered = |state| match state {
            Shown::Json(mut value) => {
                forget_order(&mut value);
                Ok(value)
            }
            Shown::Bytes(bytes) => Err(counted(&bytes).to_vec()),
        };
        let all = node.types.iter().flat_map(|(name, hosted)| {
            hosted
                .keys()
                .into_iter()
                .filter_map(move |key| Some((format!("{name}/{key}"), hosted.state(key)?)))
        });
        all.map(|(address, state)| (address, unordered(state))).collect()
    }
}

impl ExerciseOfNodes for Exercise {
    type Handler = NodeHandler;

    fn name(&self) -> &str {
        &self.name
    }

    fn ports(&self) -> &[Port] {
        &self.ports
    }

    fn nodes(&self) -> RangeInclusive<u32> {
        let placed = self.types.iter().map(|hosted| match hosted.placement {
            Placement::On(node) => node.0,
            Placement::Hashed | Placement::By(_) => 1,
        });
        let by_policy = match self.policy {
            Some(Policy::Causal { f }) => u32::from(f) + 1,
            Some(policy) if policy.collects() => 2,
            _ => 1,
        };
        let least = placed.chain([by_policy, *self.nodes.start()]).max().expect("there are two at least");
        least..=least.max(*self.nodes.end())
    }

    fn policy(&self) -> Option<Policy> {
        self.policy
    }

    fn body_bytes_max(&self) -> usize {
        self.body_bytes_max
    }

    fn handler(&self, me: NodeId, nodes: &[NodeId]) -> NodeHandler {
        let facts = Facts {
            me,
            nodes: nodes.to_vec(),
            placements: self.types.iter().map(|hosted| (hosted.name, hosted.placement.clone())).collect(),
            message_bytes_max: self.body_bytes_max,
        };
        NodeHandler::new(Arc::new(facts), &self.types)
    }

    fn request(&self, nodes: &[NodeId], random: &mut Random) -> (NodeId, Vec<u8>) {
        let call = self.command(random);
        (self.home(&call.to, nodes), call.to_bytes())
    }

    fn read(&self, nodes: &[NodeId], random: &mut Random) -> Option<(NodeId, Vec<u8>)> {
        let read = match &self.reads {
            Some(draw) => draw(random),
            None => {
                let to = self.command(random).to;
                let body = b"null".to_vec();
                (self.hosted(&to)?.check_query)()(&body).ok()?;
                Call { to, body }
            }
        };
        Some((self.home(&read.to, nodes), read.to_bytes()))
    }

    fn assert_invariant(&self, handler: &NodeHandler) {
        self.invariants.iter().for_each(|assert| assert(handler));
    }

    fn assert_at_rest(&self, handlers: &[&NodeHandler]) {
        self.at_rest.iter().for_each(|assert| assert(&AtRest { nodes: handlers }));
    }

    fn is_same(&self, one: &NodeHandler, other: &NodeHandler) -> bool {
        one.book == other.book && Self::unordered(one) == Self::unordered(other)
    }

    fn show(&self, handler: &NodeHandler) -> String {
        let mut all = Vec::new();
        for (name, hosted) in &handler.types {
            for key in hosted.keys() {
                let state = match hosted.state(key).expect("it was just named") {
                    Shown::Json(value) => value.to_string(),
                    Shown::Bytes(bytes) => format!("{} bytes", bytes.len()),
                };
                all.push(format!("{name}/{key} {state}"));
            }
        }
        if all.is_empty() { "no instances".to_owned() } else { all.join(", ") }
    }

    fn show_body(&self, body: &[u8]) -> String {
        match Envelope::from_bytes(body) {
            Some(Envelope::Tell(Told { from, to, message })) => {
                format!("{from} tells {to} {}", shown(&message))
            }
            Some(Envelope::Answer(request, Answer { status, body })) => {
                format!("the answer to {}, {status} {}", request.0, shown(&body))
            }
            None => match Address::take(body) {
                Some((to, body)) => format!("{to} {}", shown(body)),
                None => shown(body),
            },
        }
    }
}
