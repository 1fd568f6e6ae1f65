//! The model's world: nodes, sessions that keep order and lose what is in them when they break, one source of chance, and an
//! oracle.
//!
//! The oracle knows what every state looked like and which states everything depends on. After each recovery, and at the
//! end, whatever lives or was let out must depend only on states that are in their nodes' present histories (no orphans:
//! Alvisi and Marzullo 1998); at each delivery every place that the message depends on is in a second memory or safe.

use crate::node::{Broken, Depends, Frame, Input, Node, Phase, mix};
use mainstay_recovery::policy::Policy;
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId, Ssn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug)]
struct Session {
    frames: VecDeque<Frame>,
    sent: Ssn,
}

#[derive(Debug, Default)]
pub(crate) struct Reached {
    pub(crate) crashes: u64,
    pub(crate) outputs: u64,
    pub(crate) messages: u64,
    pub(crate) rode_along: u64,
    pub(crate) stale_places: u64,
}

/// What the oracle found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation(String);

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    sessions: BTreeMap<(NodeId, NodeId), Session>,
    outputs: BTreeMap<(NodeId, u64), (u64, Depends)>,
    chance: u64,
    inputs: u64,
    pub(crate) reached: Reached,
}

impl World {
    pub(crate) fn new(seed: u64, policies: &[Policy], broken: Option<Broken>) -> Self {
        let count = policies.len() as u32;
        let nodes =
            policies.iter().zip(0..).map(|(policy, id)| Node::new(NodeId(id), count, *policy, broken));
        let mut world = Self {
            nodes: nodes.collect(),
            sessions: BTreeMap::new(),
            outputs: BTreeMap::new(),
            chance: mix(seed, 1),
            inputs: 0,
            reached: Reached::default(),
        };
        world.nodes.iter_mut().for_each(Node::start);
        world
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.chance = mix(self.chance, 1);
        self.chance % limit
    }

    fn node(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    fn pairs(&self) -> Vec<(NodeId, NodeId)> {
        let ids = || self.nodes.iter().map(|node| node.id);
        ids().flat_map(|a| ids().filter(move |b| *b > a).map(move |b| (a, b))).collect()
    }

    /// One step of chance. Crashes are made by [`Self::crash`] only.
    pub(crate) fn step(&mut self) -> Result<(), Violation> {
        let id = NodeId(self.below(self.nodes.len() as u64) as u32);
        match self.below(100) {
            0..5 if self.inputs < 40 => self.input(id),
            0..50 => {
                let busy: Vec<_> =
                    self.sessions.iter().filter(|(_, s)| !s.frames.is_empty()).map(|(l, _)| *l).collect();
                if !busy.is_empty() {
                    let link = busy[self.below(busy.len() as u64) as usize];
                    self.arrive(link)?;
                }
            }
            50..75 => self.pump(id),
            75..85 => self.round(id),
            85..88 if self.nodes[id.0 as usize].runs() => self.node(id).sync(),
            88 if self.nodes[id.0 as usize].runs() => self.node(id).take_checkpoint(),
            90 => {
                let pairs = self.pairs();
                let (a, b) = pairs[self.below(pairs.len() as u64) as usize];
                self.disconnect(a, b);
            }
            92..99 => {
                let pairs = self.pairs();
                let (a, b) = pairs[self.below(pairs.len() as u64) as usize];
                self.connect(a, b);
            }
            _ => self.let_out(id)?,
        }
        Ok(())
    }

    pub(crate) fn all_run(&self) -> bool {
        self.nodes.iter().all(Node::runs)
    }

    pub(crate) fn crash(&mut self, id: NodeId) {
        self.reached.crashes += 1;
        for other in 0..self.nodes.len() as u32 {
            self.disconnect(id, NodeId(other));
        }
        self.node(id).crash();
    }

    pub(crate) fn restart(&mut self, id: NodeId) -> Result<(), Violation> {
        self.node(id).start();
        self.no_orphans()
    }

    fn input(&mut self, id: NodeId) {
        if self.nodes[id.0 as usize].runs() {
            self.inputs += 1;
            let id_of_input = self.inputs;
            self.node(id).deliver(Input::Outside { id: id_of_input, hops: 6 });
        }
    }

    fn arrive(&mut self, (from, to): (NodeId, NodeId)) -> Result<(), Violation> {
        let session = self.sessions.get_mut(&(from, to)).expect("the link was chosen among the open ones");
        let Some(frame) = session.frames.pop_front() else { return Ok(()) };
        let collecting = !self.nodes[to.0 as usize].runs();
        let depends = match &frame {
            Frame::Message { message, attached } => {
                self.reached.messages += 1;
                self.reached.rode_along += u64::from(attached.len() > 13);
                Some(message.depends.clone())
            }
            _ => None,
        };
        let told = self.node(to).take(from, frame).map_err(|malformed| Violation(malformed.to_string()))?;
        self.tell(to, told);
        if collecting {
            if self.nodes[to.0 as usize].runs() {
                self.no_orphans()?;
            }
            return Ok(());
        }
        depends.map_or(Ok(()), |depends| self.second_memory(to, &depends, false))
    }

    fn tell(&mut self, from: NodeId, told: Vec<(NodeId, Vec<u8>)>) {
        for (to, body) in told {
            if let Some(session) = self.sessions.get_mut(&(from, to)) {
                session.frames.push_back(Frame::Control(body));
            }
        }
    }

    fn round(&mut self, id: NodeId) {
        if !matches!(self.nodes[id.0 as usize].phase, Phase::Down) {
            let mut wishes = Vec::new();
            self.node(id).logging.flush(&mut wishes);
            let told = self.node(id).perform(wishes);
            self.tell(id, told);
        }
    }

    /// Sends what may leave.
    fn pump(&mut self, from: NodeId) {
        let links: Vec<_> = self.sessions.keys().filter(|(a, _)| *a == from).copied().collect();
        if self.nodes[from.0 as usize].runs() {
            links.into_iter().for_each(|link| self.send(link));
        }
    }

    fn send(&mut self, (from, to): (NodeId, NodeId)) {
        let node = &mut self.nodes[from.0 as usize];
        let session = self.sessions.get_mut(&(from, to)).expect("the link is open");
        while let Some(message) = node.image.log.get(&to).and_then(|log| log.get(session.sent.0 as usize)) {
            if !node.may_leave(message) {
                break;
            }
            session.sent = message.ssn;
            let message = message.clone();
            session.frames.push_back(node.frame(to, message));
        }
    }

    fn let_out(&mut self, id: NodeId) -> Result<(), Violation> {
        if !self.nodes[id.0 as usize].runs() {
            return Ok(());
        }
        for output in self.node(id).release() {
            let depends = output.depends;
            self.second_memory(id, &depends, true)?;
            self.reached.outputs += 1;
            let former = self.outputs.insert((id, output.number), (output.body, depends));
            if former.is_some_and(|(body, _)| body != output.body) {
                return Err(Violation(format!("output {} of {id} left twice, and differs", output.number)));
            }
        }
        Ok(())
    }

    fn disconnect(&mut self, a: NodeId, b: NodeId) {
        for (from, to) in [(a, b), (b, a)] {
            if self.sessions.remove(&(from, to)).is_some() {
                self.node(from).logging.disconnected(to);
            }
        }
    }

    fn connect(&mut self, a: NodeId, b: NodeId) {
        let down = |id: NodeId| matches!(self.nodes[id.0 as usize].phase, Phase::Down);
        if self.sessions.contains_key(&(a, b)) || down(a) || down(b) {
            return;
        }
        let former_life = self.nodes[0].broken == Some(Broken::NewLivesAreTold);
        for (from, to) in [(a, b), (b, a)] {
            let sent = self.node(to).cursor(from);
            self.sessions.insert((from, to), Session { frames: VecDeque::new(), sent });
        }
        for (from, to) in [(a, b), (b, a)] {
            let life = if former_life { Incarnation(u64::MAX) } else { self.nodes[to.0 as usize].life };
            let mut wishes = Vec::new();
            self.node(from).logging.connected(to, life, &mut wishes);
            let told = self.node(from).perform(wishes);
            self.tell(from, told);
            if matches!(self.nodes[to.0 as usize].phase, Phase::Collecting { .. }) {
                self.send((from, to));
                let mut wishes = Vec::new();
                self.node(from).logging.collect(to, &mut wishes);
                let told = self.node(from).perform(wishes);
                self.tell(from, told);
                let session = self.sessions.get_mut(&(from, to)).expect("it was just opened");
                session.frames.push_back(Frame::Collected);
            }
        }
    }

    /// Lets everything come to rest, without chance.
    pub(crate) fn settle(&mut self) -> Result<(), Violation> {
        for id in 0..self.nodes.len() as u32 {
            if matches!(self.nodes[id as usize].phase, Phase::Down) {
                self.restart(NodeId(id))?;
            }
        }
        loop {
            let before = self.progress();
            for (a, b) in self.pairs() {
                self.connect(a, b);
            }
            for link in self.sessions.keys().copied().collect::<Vec<_>>() {
                while self.sessions.get(&link).is_some_and(|session| !session.frames.is_empty()) {
                    self.arrive(link)?;
                }
            }
            for id in (0..self.nodes.len() as u32).map(NodeId) {
                self.node(id).sync();
                self.round(id);
                self.pump(id);
                self.let_out(id)?;
            }
            if before == self.progress() && self.sessions.values().all(|session| session.frames.is_empty()) {
                break;
            }
        }
        self.no_orphans()?;
        self.at_rest()
    }

    fn progress(&self) -> Vec<(u64, u64, usize)> {
        let progress =
            |node: &Node| (node.image.place.0, node.logging.recoverable().0, node.image.held.len());
        self.nodes.iter().map(progress).collect()
    }

    /// Nothing waits for ever, and no message is lost.
    fn at_rest(&self) -> Result<(), Violation> {
        for node in &self.nodes {
            if !node.runs() || !node.image.held.is_empty() || node.logging.recoverable() != node.image.place {
                return Err(Violation(format!("{} is stuck", node.id)));
            }
            for (to, log) in &node.image.log {
                let last = Ssn(log.len() as u64);
                if self.nodes[to.0 as usize].cursor(node.id) != last {
                    return Err(Violation(format!("a message from {} to {to} was lost", node.id)));
                }
            }
        }
        Ok(())
    }

    /// No live node and no output depends on a state that its node does not have in its history.
    fn no_orphans(&mut self) -> Result<(), Violation> {
        self.reached.stale_places += self.stale_places();
        let living = self.nodes.iter().filter(|node| node.runs()).map(|node| &node.image.depends);
        for depends in living.chain(self.outputs.values().map(|(_, depends)| depends)) {
            for (id, (index, state)) in depends {
                let node = &self.nodes[id.0 as usize];
                if node.runs() && node.states.get(index.0 as usize) != Some(state) {
                    return Err(Violation(format!(
                        "something depends on delivery {index} of {id}, which is lost"
                    )));
                }
            }
        }
        Ok(())
    }

    fn stale_places(&self) -> u64 {
        let stale = self.nodes.iter().flat_map(|node| &node.image.log).flat_map(|(to, log)| {
            let last = self.nodes[to.0 as usize].image.place;
            log.iter().filter(move |message| message.place.is_some_and(|place| place.delivery > last))
        });
        stale.count() as u64
    }

    /// I1: what `to` now depends on is, place by place, in a second memory, safe in a journal or covered by a checkpoint. Its own
    /// places count once something left for the outside. A node that recovers is itself the failure that is planned for.
    fn second_memory(&self, to: NodeId, depends: &Depends, outside: bool) -> Result<(), Violation> {
        if !self.all_run() {
            return Ok(());
        }
        for (id, (index, _)) in depends.iter().filter(|(id, _)| outside || **id != to) {
            let node = &self.nodes[id.0 as usize];
            let places = self.nodes.iter().filter_map(|sender| sender.image.log.get(id)).flatten();
            let kept: BTreeSet<_> = places.filter_map(|message| Some(message.place?.delivery)).collect();
            let mut indices = (node.covered().0 + 1..=index.0).map(DeliveryIndex);
            if let Some(lost) = indices.find(|place| !kept.contains(place) && !node.journaled(*place)) {
                return Err(Violation(format!(
                    "{to} depends on delivery {lost} of {id}, which only {id} remembers"
                )));
            }
        }
        Ok(())
    }
}
