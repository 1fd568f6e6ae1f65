//! Answers, outputs, reads and final states are those of a crash-free run in some legal order: one in which every node takes in
//! what it says it took in, each message after its sending, each client's request once.
//!
//! The order is rebuilt from the histories of all nodes at the end: each names its deliveries, with what the world gave them. A
//! history that no such run can have holds an orphan, a loss or a repetition.

use super::{Property, Violation};
use crate::cluster::service::{Asks, Entry, What};
use mainstay_process::handler::Answer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

pub(crate) const SOURCE: &str = "consistent global state: Chandy and Lamport 1985; no orphans: Alvisi and Marzullo 1998; recovery is correct if some failure-free run \
     looks the same: Elnozahy et al. 2002, section 2.2";

/// What a node of the crash-free run does with what it takes in.
pub(crate) trait Alone {
    /// Applies one delivery.
    fn apply(&mut self, entry: &Entry, asks: &mut dyn Asks);

    /// The number of the call that the body of a request belongs to.
    fn call_of(body: &[u8]) -> u64;
}

/// A node of the crash-free run.
struct Node<A> {
    alone: A,
    history: VecDeque<Entry>,
    delivered: u64,
    timers: BTreeMap<u64, u64>,
    outputs: BTreeMap<u64, (u8, Vec<u8>)>,
    unsettled: BTreeSet<u64>,
    answers: BTreeMap<u64, Answer>,
    /// The call of each request.
    calls: BTreeMap<u64, u64>,
}

/// What a crash-free run shows.
pub(crate) struct LegalOrder<A> {
    nodes: BTreeMap<u32, Node<A>>,
    under_way: BTreeMap<(u32, u32), VecDeque<Vec<u8>>>,
}

/// The world of one delivery of that run.
struct Model<'a> {
    me: u32,
    now: u64,
    /// Of the outputs: given by the process.
    numbers: std::vec::IntoIter<u64>,
    under_way: &'a mut BTreeMap<(u32, u32), VecDeque<Vec<u8>>>,
    timers: &'a mut BTreeMap<u64, u64>,
    outputs: &'a mut BTreeMap<u64, (u8, Vec<u8>)>,
    unsettled: &'a mut BTreeSet<u64>,
    answers: &'a mut BTreeMap<u64, Answer>,
    calls: &'a BTreeMap<u64, u64>,
}

impl Asks for Model<'_> {
    fn tell(&mut self, to: u32, body: Vec<u8>) {
        self.under_way.entry((self.me, to)).or_default().push_back(body);
    }

    fn answer(&mut self, request: u64, answer: Answer) {
        let call = self.calls.get(&request).expect("only requests are answered");
        // Where two answer, the first counts.
        self.answers.entry(*call).or_insert(answer);
    }

    fn send(&mut self, port: u8, body: Vec<u8>) -> u64 {
        // One that is not in the history is a difference of its own: the states will not be the same.
        let id = self.numbers.next().unwrap_or(0);
        self.outputs.insert(id, (port, body));
        self.unsettled.insert(id);
        id
    }

    fn timer(&mut self, delay_us: u32, token: u64) {
        self.timers.insert(token, self.now + u64::from(delay_us) * 1000);
    }
}

impl<A: Alone> LegalOrder<A> {
    /// Executes the histories without failures. `asked` says what a client asked of a node: call, node, body.
    pub(crate) fn of(
        histories: BTreeMap<u32, (A, Vec<Entry>)>,
        asked: &dyn Fn(u64) -> Option<(u32, Vec<u8>)>,
    ) -> Result<Self, Violation> {
        let node = |(me, (alone, history)): (u32, (A, Vec<Entry>))| {
            let node = Node {
                alone,
                history: history.into(),
                delivered: 0,
                timers: BTreeMap::new(),
                outputs: BTreeMap::new(),
                unsettled: BTreeSet::new(),
                answers: BTreeMap::new(),
                calls: BTreeMap::new(),
            };
            (me, node)
        };
        let mut order = Self { nodes: histories.into_iter().map(node).collect(), under_way: BTreeMap::new() };
        let mut moved = true;
        while moved {
            moved = false;
            for (&me, node) in &mut order.nodes {
                while node.deliver(me, &mut order.under_way, asked)? {
                    moved = true;
                }
            }
        }
        let mut stuck = String::new();
        for (me, node) in &order.nodes {
            if let Some(next) = node.history.front() {
                let expected = match &next.what {
                    What::Message { from, .. } => {
                        order.under_way.get(&(*from, *me)).and_then(VecDeque::front)
                    }
                    _ => None,
                };
                let (at, left) = (node.delivered, node.history.len());
                let _ =
                    write!(stuck, "\n  n{me}, delivery {at}, {left} left: {next:?}, to come is {expected:?}");
            }
        }
        if !stuck.is_empty() {
            return Err(violated(format!("nodes took in what nobody sent, twice, or after a loss:{stuck}")));
        }
        Ok(order)
    }

    /// At rest every message has arrived.
    pub(crate) fn nothing_under_way(&self) -> Result<(), Violation> {
        if let Some(((from, to), bodies)) = self.under_way.iter().find(|(_, bodies)| !bodies.is_empty()) {
            return Err(violated(format!("{} messages from n{from} to n{to} are lost", bodies.len())));
        }
        Ok(())
    }

    /// Messages of one node that another one has not taken in.
    pub(crate) fn on_the_way(&self, from: u32, to: u32) -> usize {
        self.under_way.get(&(from, to)).map_or(0, VecDeque::len)
    }

    /// A node that has come to its end waits for nothing, with so many open requests.
    pub(crate) fn nothing_awaited(&self, node: u32, open: usize) -> Result<(), Violation> {
        let Node { timers, unsettled, .. } = &self.nodes[&node];
        if open + timers.len() + unsettled.len() == 0 {
            return Ok(());
        }
        Err(violated(format!(
            "n{node} is at rest with {open} open requests, timers {timers:?}, outputs {unsettled:?}"
        )))
    }

    /// A node at the end.
    pub(crate) fn alone(&self, node: u32) -> &A {
        &self.nodes[&node].alone
    }

    /// A client of `node` got this answer to `call`.
    pub(crate) fn answered(&self, node: u32, call: u64, answer: &Answer) -> Result<(), Violation> {
        let model = self.nodes[&node].answers.get(&call);
        if model == Some(answer) {
            return Ok(());
        }
        Err(violated(format!(
            "n{node} answered call {call} with {answer:?}; a run without failures: {model:?}"
        )))
    }

    /// `node` let out this output.
    pub(crate) fn sent(&self, node: u32, output: u64, port: usize, body: &[u8]) -> Result<(), Violation> {
        let model = self.nodes[&node].outputs.get(&output);
        if model.is_some_and(|(model, bytes)| usize::from(*model) == port && bytes == body) {
            return Ok(());
        }
        Err(violated(format!(
            "n{node} let out output {output}, port {port}, {body:?}; a run without failures: {model:?}"
        )))
    }

    /// How often the clients' call was folded at `node`.
    pub(crate) fn folded(&self, node: u32, call: u64) -> usize {
        self.nodes[&node].calls.values().filter(|folded| **folded == call).count()
    }

    /// Every output of `node`.
    pub(crate) fn outputs(&self, node: u32) -> &BTreeMap<u64, (u8, Vec<u8>)> {
        &self.nodes[&node].outputs
    }
}

impl<A: Alone> Node<A> {
    /// Executes the next delivery, if it can come next.
    fn deliver(
        &mut self,
        me: u32,
        under_way: &mut BTreeMap<(u32, u32), VecDeque<Vec<u8>>>,
        asked: &dyn Fn(u64) -> Option<(u32, Vec<u8>)>,
    ) -> Result<bool, Violation> {
        let Some(entry) = self.history.front() else { return Ok(false) };
        let may = match &entry.what {
            What::Request { index, body } => {
                let call = A::call_of(body);
                if asked(call).is_none_or(|(home, sent)| home != me || sent != *body) {
                    return Err(violated(format!("n{me} took in call {call}, which no client asked of it")));
                }
                self.calls.insert(*index, call);
                true
            }
            What::Message { from, body } => {
                let waiting = under_way.entry((*from, me)).or_default();
                let next = waiting.front() == Some(body);
                if next {
                    waiting.pop_front();
                }
                next
            }
            What::Timer { token } => {
                let due = self.timers.get(token).is_some_and(|due| *due <= entry.now);
                due && self.timers.remove(token).is_some()
            }
            What::Settled { output, .. } => self.unsettled.remove(output),
        };
        if !may {
            return Ok(false);
        }
        let entry = self.history.pop_front().expect("it was just seen");
        let mut model = Model {
            me,
            now: entry.now,
            numbers: entry.outputs.clone().into_iter(),
            under_way,
            timers: &mut self.timers,
            outputs: &mut self.outputs,
            unsettled: &mut self.unsettled,
            answers: &mut self.answers,
            calls: &self.calls,
        };
        self.alone.apply(&entry, &mut model);
        self.delivered += 1;
        Ok(true)
    }
}

fn violated(what: String) -> Violation {
    Violation::new(Property::LegalOrder, what)
}
