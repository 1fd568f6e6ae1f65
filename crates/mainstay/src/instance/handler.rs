//! A node's instances as one handler of bytes: one history, in which what instances of the node tell each other belongs to the delivery
//! that it follows from.

use crate::instance::address::Address;
use crate::instance::context::{Ask, Delivering};
use crate::instance::envelope::{Envelope, Told};
use crate::instance::hosted::{Hosted, What};
use crate::instance::node::HostedType;
use crate::instance::placement::{PlacedBy, Placement};
use crate::replay::follow::Followed;
use crate::save;
use mainstay_process::handler::{Answer, Context, Handler, Outcome, RequestId, RestoreError};
use mainstay_types::id::{NodeId, OutputId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Messages within a node that may follow from one delivery: more are taken for instances that tell each other for ever.
const MESSAGES_PER_DELIVERY_MAX: usize = 100_000;

/// What a node knows before anything has happened.
pub(crate) struct Facts {
    pub(crate) me: NodeId,
    /// All nodes, ascending.
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) placements: BTreeMap<&'static str, Placement>,
    /// The longest message, in bytes.
    pub(crate) message_bytes_max: usize,
}

impl Facts {
    /// Where an instance lives; `None` if no type has that name.
    pub(crate) fn node_of(&self, address: &Address) -> Option<NodeId> {
        Some(self.placements.get(address.type_name.as_str())?.node_of(address, &self.nodes))
    }

    pub(crate) fn type_names(&self) -> Vec<&'static str> {
        self.placements.keys().copied().collect()
    }

    pub(crate) fn assert_fits(&self, bytes: &[u8], what: &dyn fmt::Display) {
        let (length, limit) = (bytes.len(), self.message_bytes_max);
        assert!(length <= limit, "{what} has {length} bytes; between nodes {limit} are taken");
    }
}

/// What one delivery has led to so far.
#[derive(Default)]
pub(crate) struct Work {
    /// The request that is being delivered.
    pub(crate) request: Option<RequestId>,
    /// Its answer, if an instance gave it by [`super::Context::answer`].
    pub(crate) answer: Option<Answer>,
    told: VecDeque<Told>,
    told_count: usize,
}

impl Work {
    pub(crate) fn tell_here(&mut self, told: Told) {
        self.told_count += 1;
        assert!(
            self.told_count <= MESSAGES_PER_DELIVERY_MAX,
            "more than {MESSAGES_PER_DELIVERY_MAX} messages within the node follow from one delivery, the last from {} to {}",
            told.from,
            told.to
        );
        self.told.push_back(told);
    }
}

/// Whose timers and outputs there are. Part of the state.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Book {
    next_timer: u64,
    /// By the process's token: the instance, and its own.
    timers: BTreeMap<u64, (Address, u64)>,
    timers_of: BTreeMap<Address, BTreeSet<u64>>,
    outputs: BTreeMap<OutputId, Address>,
    /// The same by instance.
    #[serde(skip)]
    outputs_of: BTreeMap<Address, BTreeSet<OutputId>>,
}

impl Book {
    /// Makes the index that is not saved.
    fn indexed(mut self) -> Self {
        for (&output, of) in &self.outputs {
            self.outputs_of.entry(of.clone()).or_default().insert(output);
        }
        self
    }

    pub(crate) fn set(&mut self, of: &Address, token: u64) -> u64 {
        self.next_timer += 1;
        self.timers.insert(self.next_timer, (of.clone(), token));
        self.timers_of.entry(of.clone()).or_default().insert(self.next_timer);
        self.next_timer
    }

    /// Whose timer is due, if its instance has not ended since.
    fn due(&mut self, timer: u64) -> Option<(Address, u64)> {
        let (address, token) = self.timers.remove(&timer)?;
        if let Some(of) = self.timers_of.get_mut(&address) {
            of.remove(&timer);
            if of.is_empty() {
                self.timers_of.remove(&address);
            }
        }
        Some((address, token))
    }

    pub(crate) fn sent(&mut self, output: OutputId, of: &Address) {
        self.outputs.insert(output, of.clone());
        self.outputs_of.entry(of.clone()).or_default().insert(output);
    }

    /// Whose output it is, if its instance has not ended since; its fate is known now.
    fn settled(&mut self, output: OutputId) -> Option<Address> {
        let address = self.outputs.remove(&output)?;
        if let Some(of) = self.outputs_of.get_mut(&address) {
            of.remove(&output);
            if of.is_empty() {
                self.outputs_of.remove(&address);
            }
        }
        Some(address)
    }

    pub(crate) fn ended(&mut self, instance: &Address) {
        for timer in self.timers_of.remove(instance).unwrap_or_default() {
            self.timers.remove(&timer);
        }
        // A later instance of the same key never sent them.
        for output in self.outputs_of.remove(instance).unwrap_or_default() {
            self.outputs.remove(&output);
        }
    }
}

/// What is saved ahead of the states.
#[derive(Serialize, Deserialize)]
struct Preface {
    me: NodeId,
    nodes: Vec<NodeId>,
    book: Book,
    types: Vec<(String, PlacedBy)>,
}

/// All instances of a node.
pub(crate) struct NodeHandler {
    facts: Arc<Facts>,
    pub(crate) types: BTreeMap<&'static str, Box<dyn Hosted>>,
    pub(crate) book: Book,
    /// Told what reaches one instance, in a replay for people.
    followed: Option<Arc<Followed>>,
}

impl NodeHandler {
    pub(crate) fn new(facts: Arc<Facts>, types: &[HostedType]) -> Self {
        let types = types.iter().map(|hosted| (hosted.name, (hosted.make)())).collect();
        Self { facts, types, book: Book::default(), followed: None }
    }

    /// The same, followed.
    pub(crate) fn following(self, followed: Option<Arc<Followed>>) -> Self {
        Self { followed, ..self }
    }

    /// Delivers to one instance, and then whatever instances of this node tell each other because of it, in the order of telling.
    fn run(&mut self, to: &Address, what: What<'_>, mut work: Work, ask: &mut dyn Ask) -> Option<Answer> {
        let Self { facts, types, book, followed } = self;
        let facts: &Facts = facts;
        let mut deliver = |to: &Address, what: What<'_>, work: &mut Work| {
            let here = facts.node_of(to);
            let hosted = types.get_mut(to.type_name.as_str());
            let (Some(hosted), Some(node)) = (hosted, here) else {
                panic!("{to} is of no type that this program hosts: {:?}", facts.type_names());
            };
            assert!(
                node == facts.me,
                "{to} lives on {node}, this is {}: nodes differ in their list of nodes or in how they place the type, or did before",
                facts.me
            );
            let told_before = work.told.len();
            let delivering = Delivering { ask: &mut *ask, work: &mut *work, book: &mut *book, facts };
            let answer = hosted.deliver(to, what, delivering);
            if let Some(followed) = followed.as_ref().filter(|followed| followed.address == *to) {
                followed.touched(what, work.told.iter().skip(told_before), hosted.state(&to.key));
            }
            answer
        };
        let answer = deliver(to, what, &mut work);
        while let Some(told) = work.told.pop_front() {
            deliver(&told.to, What::Message(&told.from, &told.message), &mut work);
        }
        answer.or(work.answer)
    }
}

impl Handler for NodeHandler {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        let (to, command) = Address::take(body).expect("a request is logged behind its address");
        let work = Work { request: Some(context.request()), ..Work::default() };
        self.run(&to, What::Command(command), work, context)
    }

    fn message(&mut self, from: NodeId, body: &[u8], context: &mut Context<'_>) {
        match Envelope::from_bytes(body) {
            Some(Envelope::Tell(Told { from, to, message })) => {
                self.run(&to, What::Message(&from, &message), Work::default(), context);
            }
            Some(Envelope::Answer(request, answer)) => context.answer(request, answer),
            None => panic!("{from} says what this version of the program does not understand"),
        }
    }

    fn query(&self, body: &[u8]) -> Answer {
        let (of, question) = Address::take(body).expect("a read comes behind its address");
        let hosted = self.types.get(of.type_name.as_str()).expect("the type was looked for at the door");
        hosted.query(&of.key, question)
    }

    fn timer(&mut self, token: u64, context: &mut Context<'_>) {
        if let Some((of, token)) = self.book.due(token) {
            self.run(&of, What::Timer(token), Work::default(), context);
        }
    }

    fn output_settled(&mut self, output: OutputId, outcome: &Outcome, context: &mut Context<'_>) {
        if let Some(of) = self.book.settled(output) {
            self.run(&of, What::Settled(output, outcome), Work::default(), context);
        }
    }

    fn save(&self, into: &mut dyn Write) -> io::Result<()> {
        let types: Vec<_> =
            self.facts.placements.iter().map(|(&name, placement)| (name, placement.placed_by())).collect();
        let preface = (self.facts.me, &self.facts.nodes, &self.book, types);
        save::buffered(into, |mut into| {
            save::write(&preface, into)?;
            self.types.values().try_for_each(|hosted| hosted.save(&mut into))
        })
    }

    fn save_checked(&self, into: &mut dyn Write) -> io::Result<()> {
        let read_back = |bytes: &[u8]| {
            let (_, mut rest) = take_preface(bytes)?;
            for hosted in self.types.values() {
                rest = hosted.read_back(rest)?;
            }
            nothing_left(rest)
        };
        save::checked(into, |into| self.save(into), read_back)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.take_over(bytes, None)
    }

    fn migrate(&mut self, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        self.take_over(bytes, Some(version))
    }
}

impl NodeHandler {
    /// Takes the saved states; those of another version are migrated.
    fn take_over(&mut self, bytes: &[u8], other_version: Option<u32>) -> Result<(), RestoreError> {
        let broken = |reason: String| RestoreError { reason };
        let (preface, mut rest) = take_preface(bytes)?;
        if (preface.me, &preface.nodes) != (self.facts.me, &self.facts.nodes) {
            return Err(broken(format!(
                "its instances were placed by the list of nodes {:?}, of which this was {}; now the list is {:?} and this is {}, and \
                 instances would be looked for where they are not. Start it with the list that it ran with",
                preface.nodes, preface.me, self.facts.nodes, self.facts.me
            )));
        }
        for (name, before) in preface.types {
            let Some(hosted) = self.types.get_mut(name.as_str()) else {
                return Err(broken(format!(
                    "it has instances of type `{name}`, which this program does not host"
                )));
            };
            let now = self.facts.placements[name.as_str()].placed_by();
            rest = match other_version {
                None => hosted.restore(rest)?,
                Some(version) => hosted.migrate(version, rest)?,
            };
            if before != now && self.facts.nodes.len() > 1 {
                return Err(broken(format!(
                    "the instances of `{name}` were placed {before}, now they are {now}, and would be looked for where they are not"
                )));
            }
        }
        nothing_left(rest)?;
        self.book = preface.book.indexed();
        Ok(())
    }
}

fn take_preface(bytes: &[u8]) -> Result<(Preface, &[u8]), RestoreError> {
    postcard::take_from_bytes(bytes).map_err(|error| RestoreError { reason: error.to_string() })
}

fn nothing_left(rest: &[u8]) -> Result<(), RestoreError> {
    if rest.is_empty() {
        return Ok(());
    }
    Err(RestoreError { reason: format!("{} bytes are left over: a state has another type", rest.len()) })
}
