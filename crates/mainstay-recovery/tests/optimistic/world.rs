//! A made cluster of optimistic nodes: random traffic, flushes, crashes that lose what was not flushed, links that break; and
//! the truth beside it: which state descends from which.

mod failures;

use crate::truth::Truth;
use mainstay_recovery::logging::{Admission, Logging, Malformed, Source, Wish};
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use mainstay_types::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// What must never happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// An output had left, and then its state was lost or given up, or it depends on one that was.
    ReleasedUndone,
    /// A node gave up a state that depended on nothing lost.
    RolledBackUnneeded,
    /// A node rolled back twice for one crash.
    RolledBackAgain,
    /// A node rolled back because another did, without knowing which crash made that one do so.
    RolledBackWithoutCause,
    /// A node rolled back and kept a state that it knew to depend on a lost one.
    OrphanKept,
    /// A state that depends on a lost one is still there when everything has come to rest.
    OrphanSurvives,
    /// Everything came to rest, and an output still waits or a message was not delivered.
    Stuck,
    /// Bytes of a peer were refused.
    Refused(Malformed),
    /// A replay said something else than the first run.
    ReplayDiffers,
    /// A rollback crossed a published checkpoint.
    CheckpointUndone,
}

/// How often the rare things happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reached {
    pub(crate) states_lost: u64,
    pub(crate) rollbacks: u64,
    pub(crate) rollbacks_of_safe_states: u64,
    pub(crate) orphans_dropped: u64,
    pub(crate) postponed: u64,
    pub(crate) released: u64,
    pub(crate) checkpoints: u64,
    pub(crate) replayed: u64,
}

pub(crate) type Make = dyn Fn(NodeId, &[NodeId]) -> Box<dyn Logging>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    origin: Point,
    stamp: Vec<u8>,
    seed: u64,
    hops: u64,
    /// The truth: the state that emitted it.
    state: usize,
}

#[derive(Clone, Debug)]
enum Frame {
    Control(Vec<u8>),
    Message(Ssn, Sent),
}

#[derive(Clone, Debug)]
enum Input {
    Local { seed: u64 },
    Message { from: usize, ssn: Ssn, sent: Sent },
}

#[derive(Clone, Debug)]
enum Record {
    Delivery { place: Place, input: Input },
    Life { losses: Vec<u8> },
}

/// A node's state after one delivery.
#[derive(Clone, Debug)]
struct State {
    id: usize,
    received: Vec<u64>,
    sent: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Checkpoint {
    index: usize,
    records: usize,
    bytes: Vec<u8>,
}

struct Node {
    logging: Box<dyn Logging>,
    up: bool,
    life: u64,
    journal: Vec<Record>,
    durable: usize,
    states: Vec<State>,
    log: Vec<Vec<Sent>>,
    outputs: BTreeSet<usize>,
    released: BTreeMap<usize, usize>,
    taken: Option<Checkpoint>,
    published: Option<Checkpoint>,
    flush_wished: bool,
}

#[derive(Default)]
struct Link {
    frames: VecDeque<Frame>,
    /// Messages from the first that must wait on.
    postponed: VecDeque<(Ssn, Sent)>,
    sent: usize,
}

/// The cluster.
pub(crate) struct World<'a> {
    make: &'a Make,
    random: u64,
    nodes: Vec<Node>,
    /// By sender, then receiver.
    links: Vec<Vec<Link>>,
    open: BTreeSet<(usize, usize)>,
    /// Pairs that take long to connect again.
    slow: BTreeSet<(usize, usize)>,
    truth: Truth,
    /// The node and the crash.
    rolled_back_for: BTreeSet<(usize, usize)>,
    pub(crate) reached: Reached,
}

fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn node_id(node: usize) -> NodeId {
    NodeId(node as u32)
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl<'a> World<'a> {
    pub(crate) fn new(seed: u64, make: &'a Make) -> Self {
        let count = 2 + (mix(seed) % 4) as usize;
        let all: Vec<NodeId> = (0..count).map(node_id).collect();
        let node = |me: usize| Node {
            logging: make(node_id(me), &all),
            up: false,
            life: 0,
            journal: Vec::new(),
            durable: 0,
            states: vec![State { id: me, received: vec![0; count], sent: vec![0; count] }],
            log: vec![Vec::new(); count],
            outputs: BTreeSet::new(),
            released: BTreeMap::new(),
            taken: None,
            published: None,
            flush_wished: false,
        };
        let pairs = (0..count).flat_map(|a| (0..a).map(move |b| pair(a, b)));
        let slow = pairs.filter(|&(a, b)| mix(seed ^ (a * 8 + b) as u64).is_multiple_of(3)).collect();
        Self {
            make,
            slow,
            random: seed,
            nodes: (0..count).map(node).collect(),
            links: (0..count).map(|_| (0..count).map(|_| Link::default()).collect()).collect(),
            open: BTreeSet::new(),
            truth: Truth::new(count),
            rolled_back_for: BTreeSet::new(),
            reached: Reached::default(),
        }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random = mix(self.random);
        (self.random % below as u64) as usize
    }

    /// A history, then rest.
    pub(crate) fn run(&mut self, steps: usize) -> Result<(), Violation> {
        for node in 0..self.nodes.len() {
            self.start(node)?;
        }
        for _ in 0..steps {
            self.step()?;
        }
        self.rest()
    }

    fn step(&mut self) -> Result<(), Violation> {
        let node = self.draw(self.nodes.len());
        let peer = (node + 1 + self.draw(self.nodes.len() - 1)) % self.nodes.len();
        if !self.nodes[node].up {
            return if self.draw(4) == 0 { self.start(node) } else { Ok(()) };
        }
        match self.draw(100) {
            0..12 => {
                let seed = mix(self.random);
                self.deliver(node, Input::Local { seed });
                Ok(())
            }
            12..55 => (0..1 + self.draw(3)).try_for_each(|_| self.receive(peer, node)),
            55..75 => {
                self.pump(node, peer);
                Ok(())
            }
            75..78 => self.sync(node),
            78..82 => self.flush(node),
            82..85 => self.need(node),
            85..95 if self.slow.contains(&pair(node, peer)) && self.draw(8) > 0 => Ok(()),
            85..95 => self.connect(node, peer),
            95 => {
                self.end_session(node, peer);
                Ok(())
            }
            96 => {
                self.take_checkpoint(node);
                Ok(())
            }
            97 => self.publish_checkpoint(node),
            _ => self.crash(node),
        }
    }

    /// No more faults: everything must come to its end.
    fn rest(&mut self) -> Result<(), Violation> {
        const ROUNDS_MAX: usize = 200;
        let count = self.nodes.len();
        for _ in 0..ROUNDS_MAX {
            for node in 0..count {
                if !self.nodes[node].up {
                    self.start(node)?;
                }
                for peer in (0..count).filter(|&peer| peer != node) {
                    self.connect(node, peer)?;
                    self.pump(node, peer);
                    while !self.links[peer][node].frames.is_empty() {
                        self.receive(peer, node)?;
                    }
                }
                if self.nodes[node].flush_wished {
                    self.sync(node)?;
                }
                self.flush(node)?;
                self.need(node)?;
            }
            if self.resting() {
                return self.judge();
            }
        }
        let orphan = |world: &Self| {
            world
                .nodes
                .iter()
                .flat_map(|node| &node.states)
                .any(|state| !world.truth.losses(state.id).is_empty())
        };
        Err(if orphan(self) { Violation::OrphanSurvives } else { Violation::Stuck })
    }

    fn resting(&self) -> bool {
        let count = self.nodes.len();
        (0..count).all(|node| {
            self.nodes[node].outputs.is_empty()
                && (0..count).filter(|&peer| peer != node).all(|peer| {
                    let received = self.nodes[peer].states.last().expect("a first state").received[node];
                    self.links[node][peer].frames.is_empty()
                        && received == self.nodes[node].log[peer].len() as u64
                })
        })
    }

    fn judge(&self) -> Result<(), Violation> {
        for node in &self.nodes {
            if node.states.iter().any(|state| !self.truth.losses(state.id).is_empty()) {
                return Err(Violation::OrphanSurvives);
            }
            if node.released.iter().any(|(&index, &id)| node.states[index].id != id) {
                return Err(Violation::ReleasedUndone);
            }
        }
        Ok(())
    }

    fn perform(&mut self, node: usize, wishes: Vec<Wish>) -> Result<(), Violation> {
        for wish in wishes {
            match wish {
                Wish::Tell { to, body } => {
                    let to = to.0 as usize;
                    if self.open.contains(&pair(node, to)) {
                        self.links[node][to].frames.push_back(Frame::Control(body));
                    }
                }
                Wish::Flush => self.nodes[node].flush_wished = true,
                Wish::RollBack { keep, .. } => self.roll_back(node, keep.0 as usize)?,
                Wish::Ordered { .. } | Wish::Remembered { .. } => panic!("no wish of optimistic logging"),
            }
        }
        self.release(node);
        Ok(())
    }

    fn release(&mut self, node: usize) {
        let this = &mut self.nodes[node];
        let recoverable = this.logging.recoverable().0 as usize;
        while let Some(&index) = this.outputs.first()
            && index <= recoverable
        {
            this.outputs.pop_first();
            this.released.insert(index, this.states[index].id);
            self.reached.released += 1;
        }
    }

    fn deliver(&mut self, node: usize, input: Input) {
        let this = &mut self.nodes[node];
        let place = Place {
            delivery: DeliveryIndex(this.states.len() as u64),
            life: Incarnation(this.life),
            now: Time(0),
            seed: 0,
        };
        this.journal.push(Record::Delivery { place, input: input.clone() });
        let end = this.journal.len();
        let before = this.states.last().expect("a first state");
        let mut parents = vec![before.id];
        if let Input::Message { sent, .. } = &input {
            parents.push(sent.state);
        }
        let point = Point { incarnation: place.life, delivery: place.delivery };
        let id = self.truth.add(node, point, parents);
        self.execute(node, place, &input, end, id);
        self.release(node);
    }

    /// The handler, for a first run and for a replay.
    fn execute(&mut self, node: usize, place: Place, input: &Input, end: usize, id: usize) {
        let count = self.nodes.len();
        let this = &mut self.nodes[node];
        let mut state = this.states.last().expect("a first state").clone();
        state.id = id;
        let end = Lsn(end as u64);
        let (source, seed, hops) = match input {
            Input::Local { seed } => (Source::Local { end, record: Arc::from([]) }, *seed, 4),
            Input::Message { from, ssn, sent } => {
                state.received[*from] = ssn.0;
                let (from, origin) = (node_id(*from), sent.origin);
                (Source::Message { from, ssn: *ssn, origin, end: Some(end) }, sent.seed, sent.hops)
            }
        };
        this.logging.delivered(place, &source);
        let origin = Point { incarnation: place.life, delivery: place.delivery };
        for message in 0..mix(seed) % 3 {
            if hops > 0 {
                let seed = mix(seed ^ message);
                let to = (node + 1 + (seed >> 8) as usize % (count - 1)) % count;
                let mut stamp = Vec::new();
                this.logging.stamp(&mut stamp);
                this.log[to].push(Sent { origin, stamp, seed, hops: hops - 1, state: id });
                state.sent[to] += 1;
            }
        }
        if seed % 3 == 0 && !this.released.contains_key(&this.states.len()) {
            this.outputs.insert(this.states.len());
        }
        this.states.push(state);
    }

    fn pump(&mut self, from: usize, to: usize) {
        if !self.nodes[from].up || !self.open.contains(&pair(from, to)) {
            return;
        }
        let link = &mut self.links[from][to];
        for at in link.sent..self.nodes[from].log[to].len() {
            let sent = self.nodes[from].log[to][at].clone();
            link.frames.push_back(Frame::Message(Ssn(at as u64 + 1), sent));
            link.sent = at + 1;
        }
    }

    fn receive(&mut self, from: usize, to: usize) -> Result<(), Violation> {
        if !self.nodes[to].up {
            return Ok(());
        }
        match self.links[from][to].frames.pop_front() {
            None => Ok(()),
            Some(Frame::Control(body)) => {
                let mut wishes = Vec::new();
                self.nodes[to]
                    .logging
                    .control(node_id(from), &body, &mut wishes)
                    .map_err(Violation::Refused)?;
                self.perform(to, wishes)?;
                self.ask_again(to)
            }
            Some(Frame::Message(ssn, sent)) => {
                self.links[from][to].postponed.push_back((ssn, sent));
                if self.links[from][to].postponed.len() == 1 { self.admit(from, to) } else { Ok(()) }
            }
        }
    }

    fn ask_again(&mut self, to: usize) -> Result<(), Violation> {
        (0..self.nodes.len()).try_for_each(|from| self.admit(from, to))
    }

    /// Delivers from the front of what arrived, as far as it may be.
    fn admit(&mut self, from: usize, to: usize) -> Result<(), Violation> {
        while let Some((ssn, sent)) = self.links[from][to].postponed.pop_front() {
            let next = self.nodes[to].states.last().expect("a first state").received[from] + 1;
            if ssn.0 < next {
                self.nodes[to].logging.duplicate(node_id(from), ssn, &mut Vec::new());
                continue;
            }
            let admission = if ssn.0 > next {
                // One before was dropped as an orphan.
                Admission::Orphan
            } else {
                let mut wishes = Vec::new();
                let admission = self.nodes[to]
                    .logging
                    .arrived(node_id(from), sent.origin, &sent.stamp, &[], &mut wishes)
                    .map_err(Violation::Refused)?;
                self.perform(to, wishes)?;
                admission
            };
            match admission {
                Admission::Deliver => self.deliver(to, Input::Message { from, ssn, sent }),
                Admission::NotYet => {
                    self.reached.postponed += 1;
                    self.links[from][to].postponed.push_front((ssn, sent));
                    return Ok(());
                }
                Admission::Orphan => {
                    self.reached.orphans_dropped += 1;
                    self.end_session(from, to);
                    self.links[from][to] = Link::default();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn sync(&mut self, node: usize) -> Result<(), Violation> {
        let this = &mut self.nodes[node];
        this.flush_wished = false;
        this.durable = this.journal.len();
        this.logging.safe(Lsn(this.durable as u64));
        self.release(node);
        self.ask_again(node)?;
        self.flush(node)
    }

    fn flush(&mut self, node: usize) -> Result<(), Violation> {
        let mut wishes = Vec::new();
        self.nodes[node].logging.flush(&mut wishes);
        self.perform(node, wishes)
    }

    fn need(&mut self, node: usize) -> Result<(), Violation> {
        let Some(&last) = self.nodes[node].outputs.last() else { return Ok(()) };
        let mut wishes = Vec::new();
        self.nodes[node].logging.needed(DeliveryIndex(last as u64), &mut wishes);
        self.perform(node, wishes)
    }

    fn connect(&mut self, a: usize, b: usize) -> Result<(), Violation> {
        if !self.nodes[a].up || !self.nodes[b].up || !self.open.insert(pair(a, b)) {
            return Ok(());
        }
        for (from, to) in [(a, b), (b, a)] {
            let received = self.nodes[to].states.last().expect("a first state").received[from] as usize;
            let sent = received.min(self.nodes[from].log[to].len());
            self.links[from][to] = Link { sent, ..Link::default() };
        }
        for (node, peer) in [(a, b), (b, a)] {
            let mut wishes = Vec::new();
            let life = Incarnation(self.nodes[peer].life);
            self.nodes[node].logging.connected(node_id(peer), life, &mut wishes);
            self.perform(node, wishes)?;
        }
        Ok(())
    }

    /// A connection breaks: of what is on its way, the first part still arrives.
    fn end_session(&mut self, a: usize, b: usize) {
        if self.open.remove(&pair(a, b)) {
            for (from, to) in [(a, b), (b, a)] {
                let arrives = self.draw(self.links[from][to].frames.len() + 1);
                self.links[from][to].frames.truncate(arrives);
            }
        }
    }

    /// A node loses its connections, and what they held for it.
    fn cut_off(&mut self, node: usize) {
        for peer in 0..self.nodes.len() {
            self.end_session(node, peer);
            self.links[peer][node] = Link::default();
        }
    }
}
