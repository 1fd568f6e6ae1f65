//! The model's world: links that break, nodes that crash, a seeded schedule, and the oracle.

use crate::node::{Letter, Node, Phase, id, message, mix};
use mainstay_recovery::logging::{Admission, Logging, Source, Wish};
use mainstay_types::id::{DeliveryIndex, Incarnation};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A rule that is turned off, so that the oracle can show that it would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Nothing,
    /// Determinants do not ride along.
    NothingAttached,
    /// Recoverable is claimed with a copy less than needed.
    OneCopyShort,
    /// A message that is not yet to be delivered is.
    NotYetIgnored,
    /// Peers give a recovering node nothing back.
    NothingCollected,
    /// A checkpoint holds nothing of what its node knew of others.
    OthersNotSaved,
    /// Messages leave although an input that is not carried is not safe.
    BarrierIgnored,
    /// A node that collects answers others that do at once.
    AnswersTooEarly,
    /// Frames of a session with an ended life are still taken.
    NotFenced,
}

#[derive(Clone, Debug)]
enum Frame {
    Letter(Letter, Vec<u8>),
    Control(Vec<u8>),
    Collected,
}

#[derive(Clone, Debug, Default)]
struct Session {
    open: bool,
    /// The receiver may still read what the last session left, until the next begins.
    frames: VecDeque<Frame>,
    /// Messages up to this have been sent in this session.
    sent: u64,
}

/// How often the schedule came to what is rare.
pub(crate) type Reached = BTreeMap<&'static str, u64>;

pub(crate) struct World {
    n: usize,
    f: u8,
    broken: Broken,
    random: u64,
    nodes: Vec<Node>,
    /// By sender and receiver.
    sessions: Vec<Vec<Session>>,
    /// Every node's history as it was executed first: hashes by delivery; index 0 is the beginning.
    history: Vec<Vec<u64>>,
    pub(crate) reached: Reached,
}

type Verdict = Result<(), String>;

impl World {
    pub(crate) fn new(n: usize, f: u8, seed: u64, broken: Broken) -> Self {
        let machine_f = if broken == Broken::OneCopyShort { f - 1 } else { f };
        let mut world = Self {
            n,
            f,
            broken,
            random: mix(seed, 0x5EED),
            nodes: (0..n).map(|me| Node::new(me, n, machine_f)).collect(),
            sessions: vec![vec![Session::default(); n]; n],
            history: vec![vec![0]; n],
            reached: Reached::new(),
        };
        for node in &mut world.nodes {
            node.logging.recovered(Incarnation(1), DeliveryIndex(0), &mut Vec::new());
        }
        world
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random = mix(self.random, 1);
        (self.random % below as u64) as usize
    }

    fn count(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    fn both_up(&self, a: usize, b: usize) -> bool {
        self.nodes[a].phase != Phase::Down && self.nodes[b].phase != Phase::Down
    }

    fn failed(&self) -> usize {
        self.nodes.iter().filter(|node| node.phase != Phase::Running).count()
    }

    /// A whole history: a schedule of `steps`, then calm until everything has arrived everywhere.
    pub(crate) fn run(&mut self, steps: usize) -> Verdict {
        for step in 0..steps {
            self.step().and_then(|()| self.check()).map_err(|what| format!("step {step}: {what}"))?;
        }
        self.calm().map_err(|what| format!("in the calm: {what}"))
    }

    fn step(&mut self) -> Verdict {
        let (a, b) = (self.draw(self.n), self.draw(self.n));
        let up = self.nodes[a].phase != Phase::Down;
        let running = self.nodes[a].phase == Phase::Running;
        match self.draw(100) {
            0..12 if running => self.input(a),
            12..50 if a != b => self.read(b, a)?,
            50..68 if a != b && up => self.send(a, b),
            68..78 if up => self.flush(a)?,
            78..82 if running => {
                let last = DeliveryIndex(self.nodes[a].state.last);
                self.with_wishes(a, |node, wishes| node.logging.needed(last, wishes))?;
            }
            82..86 if running => self.nodes[a].sync(),
            86 if running => {
                let save = self.broken != Broken::OthersNotSaved;
                let known = if save { self.known_to(a) } else { BTreeSet::new() };
                self.nodes[a].take_checkpoint(known, save);
            }
            87 if running => self.nodes[a].checkpoint_is_durable(),
            88 if self.failed() < usize::from(self.f) && running => self.crash(a),
            // So that several are often down at once.
            89 if self.failed() > 0 && self.failed() < usize::from(self.f) && running => self.crash(a),
            90 if up && !running => {
                self.count("crash in recovery");
                self.crash(a);
            }
            91..93 => {
                if let Some(down) = self.nodes.iter().position(|node| node.phase == Phase::Down) {
                    self.restart(down);
                }
            }
            93 if a != b => self.cut(a, b),
            94..100 => {
                let first = self.draw(self.n * self.n);
                let mut pairs = (0..self.n * self.n).map(|pair| (first + pair) % (self.n * self.n));
                let apart = |a: usize, b: usize| a != b && !self.sessions[a][b].open && self.both_up(a, b);
                let n = self.n;
                if let Some(pair) = pairs.find(|pair| apart(pair / n, pair % n)) {
                    self.connect(pair / n, pair % n)?;
                }
            }
            _ => {}
        }
        self.go_on(a)
    }

    /// No more failures: whatever is down comes up, and everything is read until nothing is left.
    fn calm(&mut self) -> Verdict {
        for round in 0..400 {
            for a in 0..self.n {
                if self.nodes[a].phase == Phase::Down {
                    self.restart(a);
                }
                for b in 0..self.n {
                    if a != b {
                        self.connect(a, b)?;
                        self.send(a, b);
                        while !self.sessions[b][a].frames.is_empty() {
                            self.read(b, a)?;
                        }
                    }
                }
                self.go_on(a)?;
                if self.nodes[a].phase == Phase::Running {
                    self.nodes[a].sync();
                    let last = DeliveryIndex(self.nodes[a].state.last);
                    self.with_wishes(a, |node, wishes| node.logging.needed(last, wishes))?;
                }
                self.flush(a)?;
            }
            self.check()?;
            if self.settled() {
                return Ok(());
            }
            if round == 399 {
                break;
            }
        }
        let nodes = self.nodes.iter();
        let state: Vec<_> = nodes
            .map(|node| (node.phase, node.state.last, node.logging.recoverable(), node.state.cursors.clone()))
            .collect();
        Err(format!("it does not come to rest: {state:?}"))
    }

    fn settled(&self) -> bool {
        let all_read = self.sessions.iter().flatten().all(|session| session.frames.is_empty());
        all_read
            && self.nodes.iter().all(|node| {
                let last = node.state.last;
                let received =
                    |to: usize| self.nodes[to].state.cursors[node.me] == node.sent[to].len() as u64;
                node.phase == Phase::Running
                    && node.logging.recoverable().0 == last
                    && (0..self.n).all(|to| to == node.me || received(to))
            })
    }

    fn input(&mut self, a: usize) {
        let (seed, draw) = (mix(self.random, 5), self.draw(20));
        let length = if draw == 0 { 5_000 } else { 8 + draw };
        if draw == 0 {
            self.count("input too long");
        }
        self.nodes[a].input(seed, vec![seed as u8; length]);
        self.executed(a).expect("an input is new");
    }

    /// Node `a` has executed its last delivery: it is new, or the same as in its former life.
    fn executed(&mut self, a: usize) -> Verdict {
        let (last, hash) = self.nodes[a].state.depends[a];
        match self.history[a].get(last as usize) {
            Some(&before) if before != hash => Err(format!("node {a} replays delivery {last} otherwise")),
            Some(_) => Ok(()),
            None => {
                self.history[a].push(hash);
                Ok(())
            }
        }
    }

    fn with_wishes(&mut self, a: usize, act: impl FnOnce(&mut Node, &mut Vec<Wish>)) -> Verdict {
        let mut wishes = Vec::new();
        act(&mut self.nodes[a], &mut wishes);
        self.perform(a, wishes)
    }

    fn perform(&mut self, a: usize, wishes: Vec<Wish>) -> Verdict {
        for wish in wishes {
            match wish {
                Wish::Tell { to, body } => {
                    self.count(match body[0] {
                        0x40 => "held",
                        0x41 => "carry",
                        0x42 => "again",
                        0x43 => "retold",
                        0x44 => "covered",
                        _ => "recovered",
                    });
                    let session = &mut self.sessions[a][to.0 as usize];
                    if session.open {
                        session.frames.push_back(Frame::Control(body));
                    }
                }
                Wish::Flush => self.nodes[a].sync(),
                Wish::Remembered { place, source } => {
                    self.count("remembered");
                    if self.nodes[a].phase == Phase::Collecting {
                        self.nodes[a].remembered.insert(place.delivery.0, (place, source));
                    }
                }
                Wish::Ordered { .. } => {
                    return Err("causal logging keeps no places beside messages".to_owned());
                }
                Wish::RollBack { keep, lost } => {
                    return Err(format!("node {a} shall roll back to {keep} because of {lost}"));
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self, a: usize) -> Verdict {
        self.with_wishes(a, |node, wishes| node.logging.flush(wishes))
    }

    /// Sends the next message that may leave.
    fn send(&mut self, a: usize, b: usize) {
        let session = &mut self.sessions[a][b];
        if !session.open {
            return;
        }
        let node = &mut self.nodes[a];
        while let Some(letter) = node.sent[b].get(session.sent as usize) {
            if letter.waits.0 > node.synced && self.broken != Broken::BarrierIgnored {
                break;
            }
            let mut attached = Vec::new();
            if self.broken != Broken::NothingAttached {
                node.logging.attach(id(b), &mut attached);
            }
            session.sent += 1;
            session.frames.push_back(Frame::Letter(letter.clone(), attached));
        }
    }

    /// Node `b` reads a frame from `a`.
    fn read(&mut self, a: usize, b: usize) -> Verdict {
        if self.nodes[b].phase == Phase::Down {
            return Ok(());
        }
        let Some(frame) = self.sessions[a][b].frames.pop_front() else { return Ok(()) };
        match frame {
            Frame::Collected => self.nodes[b].answered[a] = true,
            Frame::Control(body) => {
                let mut wishes = Vec::new();
                let told = self.nodes[b].logging.control(id(a), &body, &mut wishes);
                told.map_err(|error| format!("node {b} refuses control of {a}: {error}"))?;
                self.perform(b, wishes)?;
                for from in 0..self.n {
                    self.deliver_waiting(from, b)?;
                }
            }
            Frame::Letter(letter, attached) => {
                let seen = self.nodes[b].state.cursors[a] + self.nodes[b].waiting[a].len() as u64;
                let (mut wishes, running) = (Vec::new(), self.nodes[b].phase == Phase::Running);
                if letter.ssn <= seen || !running || !self.nodes[b].waiting[a].is_empty() {
                    let told = self.nodes[b].logging.carried(id(a), &attached, &mut wishes);
                    told.map_err(|error| format!("node {b} refuses what {a} attached: {error}"))?;
                }
                self.perform(b, wishes)?;
                if letter.ssn > seen {
                    assert_eq!(letter.ssn, seen + 1, "sessions are in order");
                    self.nodes[b].waiting[a].push_back((letter, attached));
                    self.deliver_waiting(a, b)?;
                }
            }
        }
        self.go_on(b)
    }

    fn deliver_waiting(&mut self, a: usize, b: usize) -> Verdict {
        while self.nodes[b].phase == Phase::Running {
            let Some((letter, attached)) = self.nodes[b].waiting[a].front().cloned() else { break };
            let mut wishes = Vec::new();
            let admission = self.nodes[b].logging.arrived(id(a), letter.origin, &[], &attached, &mut wishes);
            self.perform(b, wishes)?;
            match admission.map_err(|error| format!("node {b} refuses what {a} attached: {error}"))? {
                Admission::Deliver => {}
                Admission::NotYet => {
                    self.count("not yet");
                    if self.broken != Broken::NotYetIgnored {
                        break;
                    }
                }
                Admission::Orphan => return Err(format!("a message of {a} to {b} is an orphan")),
            }
            self.nodes[b].waiting[a].pop_front();
            let place = self.nodes[b].place(mix(self.random, letter.content));
            self.nodes[b].deliver(place, &message(a, &letter), Some(&letter));
            self.count("message delivered");
            self.executed(b)?;
        }
        Ok(())
    }

    /// Recovery goes on as far as it can.
    fn go_on(&mut self, a: usize) -> Verdict {
        let collecting = |world: &Self, node: usize| world.nodes[node].phase == Phase::Collecting;
        if self.nodes[a].phase == Phase::Down {
            return Ok(());
        }
        // Who collects answers others who do when all that do not have answered it.
        let open = |world: &Self, peer: usize| world.sessions[a][peer].open;
        let ready = !collecting(self, a)
            || self.broken == Broken::AnswersTooEarly
            || (0..self.n)
                .all(|peer| self.nodes[a].answered[peer] || (open(self, peer) && collecting(self, peer)));
        if ready {
            for peer in std::mem::take(&mut self.nodes[a].owes) {
                if self.broken != Broken::NothingCollected {
                    self.with_wishes(a, |node, wishes| node.logging.collect(id(peer), wishes))?;
                }
                self.send(a, peer);
                self.sessions[a][peer].frames.push_back(Frame::Collected);
            }
        }
        if collecting(self, a) && self.nodes[a].answered.iter().all(|&answered| answered) {
            self.nodes[a].phase = Phase::Replaying;
        }
        while self.nodes[a].phase == Phase::Replaying {
            let Some((place, source)) = self.nodes[a].next_known() else {
                return self.recovered(a);
            };
            self.count("replayed");
            match &source {
                Source::Local { record, .. } => {
                    if !self.nodes[a].journal.iter().any(|record| record.place == place) {
                        self.count("input given back");
                    }
                    self.nodes[a].replay_input(place, record);
                }
                Source::Message { from, ssn, .. } => {
                    let from = from.0 as usize;
                    let Some((letter, _)) = self.nodes[a].waiting[from].front().cloned() else { break };
                    assert_eq!(letter.ssn, ssn.0, "messages were delivered in their order");
                    self.nodes[a].waiting[from].pop_front();
                    self.nodes[a].deliver(place, &message(from, &letter), Some(&letter));
                }
            }
            self.executed(a)?;
        }
        Ok(())
    }

    fn recovered(&mut self, a: usize) -> Verdict {
        let (last, claimed) = (self.nodes[a].state.last, self.nodes[a].claimed);
        if claimed.0 > last || self.history[a][claimed.0 as usize] != claimed.1 {
            return Err(format!("node {a} claimed {} and recovered only {last}", claimed.0));
        }
        if self.history[a].len() as u64 > last + 1 {
            self.count("tail lost");
        }
        self.history[a].truncate(last as usize + 1);
        self.nodes[a].phase = Phase::Running;
        let life = Incarnation(self.nodes[a].life);
        self.with_wishes(a, |node, wishes| node.logging.recovered(life, DeliveryIndex(last), wishes))?;
        for bytes in self.nodes[a].take_left_over() {
            self.count("input behind a hole");
            let seed = mix(self.random, last);
            self.nodes[a].input(seed, bytes);
            self.executed(a)?;
        }
        for from in 0..self.n {
            self.deliver_waiting(from, a)?;
        }
        Ok(())
    }

    fn crash(&mut self, a: usize) {
        self.count("crash");
        if self.failed() > 0 {
            self.count("crash while another is down");
        }
        self.nodes[a].crash();
        for peer in 0..self.n {
            // What it sent may still be read; what was sent to it is lost.
            self.sessions[peer][a] = Session::default();
            self.sessions[a][peer].open = false;
            if self.sessions[a][peer].frames.len() > 2 {
                let keep = self.draw(self.sessions[a][peer].frames.len());
                self.sessions[a][peer].frames.truncate(keep);
            }
        }
    }

    fn restart(&mut self, a: usize) {
        let f = if self.broken == Broken::OneCopyShort { self.f - 1 } else { self.f };
        self.nodes[a].restart(f);
    }

    /// The connection breaks; the receiver still reads a part of what was sent.
    fn cut(&mut self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            let keep = self.draw(self.sessions[from][to].frames.len() + 1);
            self.sessions[from][to].frames.truncate(keep);
            if self.sessions[from][to].open {
                self.nodes[to].logging.disconnected(id(from));
            }
            self.sessions[from][to].open = false;
        }
    }

    fn connect(&mut self, a: usize, b: usize) -> Verdict {
        if self.sessions[a][b].open
            || self.nodes[a].phase == Phase::Down
            || self.nodes[b].phase == Phase::Down
        {
            return Ok(());
        }
        for (from, to) in [(a, b), (b, a)] {
            let left = std::mem::take(&mut self.sessions[from][to].frames);
            self.sessions[from][to] =
                Session { open: true, frames: VecDeque::new(), sent: self.nodes[to].state.cursors[from] };
            if self.broken == Broken::NotFenced {
                let controls = left.into_iter().filter(|frame| matches!(frame, Frame::Control(_)));
                self.sessions[from][to].frames.extend(controls);
            }
            self.nodes[to].waiting[from].clear();
        }
        for (from, to) in [(a, b), (b, a)] {
            let life = Incarnation(self.nodes[from].life);
            self.with_wishes(to, |node, wishes| node.logging.connected(id(from), life, wishes))?;
            if self.nodes[from].phase == Phase::Collecting {
                // An answer of a former life, or one that was cut off, counts no more.
                self.nodes[from].answered[to] = false;
                self.nodes[to].owes.insert(from);
            } else {
                self.nodes[to].owes.remove(&from);
            }
        }
        self.go_on(a)?;
        self.go_on(b)
    }

    fn known_to(&self, a: usize) -> BTreeSet<(usize, u64)> {
        let knows = |owner: usize, index: u64| self.nodes[a].logging.knows(id(owner), DeliveryIndex(index));
        (0..self.n)
            .filter(|&owner| owner != a)
            .flat_map(|owner| self.uncovered(owner).map(move |index| (owner, index)))
            .filter(|&(owner, index)| knows(owner, index))
            .collect()
    }

    fn uncovered(&self, owner: usize) -> std::ops::Range<u64> {
        let covered = self.nodes[owner].durable.as_ref().map_or(0, |checkpoint| checkpoint.state.last);
        covered + 1..self.history[owner].len() as u64
    }

    /// Whether no failure within the plan can lose delivery `index` of `owner`, whoever depends on it.
    fn stable(&self, owner: usize, index: u64) -> bool {
        let node = &self.nodes[owner];
        let journaled = |index: u64| {
            node.journal.iter().any(|record| record.place.delivery.0 == index && record.end <= node.synced)
        };
        let saved = |index: u64| {
            let mut durable = self.nodes.iter().filter_map(|node| node.durable.as_ref());
            durable.any(|checkpoint| checkpoint.holds.contains(&(owner, index)))
        };
        !self.uncovered(owner).contains(&index)
            || journaled(index)
            || self.holders(owner, index).count() > self.spare()
            || saved(index)
    }

    /// How many more nodes may fail.
    fn spare(&self) -> usize {
        usize::from(self.f) - self.failed()
    }

    fn holders(&self, owner: usize, index: u64) -> impl Iterator<Item = usize> + '_ {
        let running = self.nodes.iter().filter(|node| node.phase == Phase::Running);
        running.filter(move |node| node.logging.knows(id(owner), DeliveryIndex(index))).map(|node| node.me)
    }

    /// Alvisi and Marzullo 1998: no orphans; unless stable, Depend(e) within Log(e); and every claim stands.
    fn check(&mut self) -> Verdict {
        let running: Vec<usize> =
            (0..self.n).filter(|&node| self.nodes[node].phase == Phase::Running).collect();
        for &p in &running {
            for &q in &running {
                let (index, hash) = self.nodes[p].state.depends[q];
                if self.history[q].get(index as usize) != Some(&hash) {
                    return Err(format!(
                        "node {p} depends on delivery {index} of {q}, which {q} does not have"
                    ));
                }
            }
        }
        for owner in 0..self.n {
            for index in self.uncovered(owner) {
                let log: Vec<usize> = self.holders(owner, index).collect();
                let mut depend = running.iter().filter(|&&p| self.nodes[p].state.depends[owner].0 >= index);
                if log.len() <= self.spare()
                    && let Some(p) = depend.find(|p| !log.contains(p))
                    && !self.stable(owner, index)
                {
                    return Err(format!(
                        "node {p} depends on delivery {index} of {owner}, which only {log:?} remember"
                    ));
                }
            }
        }
        for &p in &running {
            let node = &self.nodes[p];
            let recoverable = node.logging.recoverable().0;
            if recoverable <= node.claimed.0 {
                continue;
            }
            let depends = node.past[&recoverable].clone();
            for (owner, &(upto, _)) in depends.iter().enumerate() {
                let mut needed = self.uncovered(owner).take_while(|&index| index <= upto);
                if let Some(index) = needed.find(|&index| !self.stable(owner, index)) {
                    return Err(format!(
                        "node {p} calls {recoverable} recoverable, which depends on delivery {index} of {owner}"
                    ));
                }
            }
            self.nodes[p].claimed = (recoverable, depends[p].1);
        }
        Ok(())
    }
}
