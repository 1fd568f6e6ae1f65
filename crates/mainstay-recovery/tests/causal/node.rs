//! One node of the model: what a composer does around the protocol, with a journal, a sender log and checkpoints that are
//! plain vectors.

use mainstay_recovery::causal::Causal;
use mainstay_recovery::logging::{Logging, Source};
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use mainstay_types::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// For every node the last delivery that a state depends on, and a hash of that node's whole history up to it.
pub(crate) type Vector = Vec<(u64, u64)>;

#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) ssn: u64,
    pub(crate) origin: Point,
    pub(crate) content: u64,
    pub(crate) depends: Vector,
    /// The journal must be safe up to here before it leaves.
    pub(crate) waits: Lsn,
}

#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) place: Place,
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) end: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) state: State,
    pub(crate) sent: Vec<Vec<Letter>>,
    pub(crate) saved: Vec<u8>,
    /// Determinants that it holds: they survive any crash.
    pub(crate) holds: BTreeSet<(usize, u64)>,
}

/// What a checkpoint of the composer would hold of the handler and the receive cursors.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) last: u64,
    pub(crate) depends: Vector,
    /// Per sender, the last message delivered.
    pub(crate) cursors: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Down,
    /// Asks its peers; `true` for who has answered.
    Collecting,
    Replaying,
    Running,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) me: usize,
    pub(crate) life: u64,
    pub(crate) phase: Phase,
    pub(crate) logging: Causal,
    pub(crate) state: State,
    pub(crate) sent: Vec<Vec<Letter>>,
    pub(crate) journal: Vec<Record>,
    pub(crate) synced: u64,
    pub(crate) durable: Option<Checkpoint>,
    pub(crate) tentative: Option<Checkpoint>,
    /// While it recovers: what peers gave back.
    pub(crate) remembered: BTreeMap<u64, (Place, Source)>,
    pub(crate) answered: Vec<bool>,
    /// Peers that collect and wait for this node's answer.
    pub(crate) owes: BTreeSet<usize>,
    /// Per sender, what arrived and is not delivered yet, with what rode along.
    pub(crate) waiting: Vec<VecDeque<(Letter, Vec<u8>)>>,
    /// The highest delivery once called recoverable, and the history's hash there.
    pub(crate) claimed: (u64, u64),
    /// Dependencies after each delivery since the checkpoint, for the oracle.
    pub(crate) past: BTreeMap<u64, Vector>,
}

impl Node {
    pub(crate) fn new(me: usize, n: usize, f: u8) -> Self {
        Self {
            me,
            life: 1,
            phase: Phase::Running,
            logging: machine(me, n, f),
            state: State { last: 0, depends: vec![(0, 0); n], cursors: vec![0; n] },
            sent: vec![Vec::new(); n],
            journal: Vec::new(),
            synced: 0,
            durable: None,
            tentative: None,
            remembered: BTreeMap::new(),
            answered: vec![false; n],
            owes: BTreeSet::new(),
            waiting: vec![VecDeque::new(); n],
            claimed: (0, 0),
            past: BTreeMap::new(),
        }
    }

    pub(crate) fn place(&self, seed: u64) -> Place {
        let delivery = DeliveryIndex(self.state.last + 1);
        Place { delivery, life: Incarnation(self.life), now: Time(1_000 * delivery.0), seed }
    }

    /// Executes one delivery: the whole state is a hash, and so is what it emits.
    pub(crate) fn deliver(&mut self, place: Place, source: &Source, letter: Option<&Letter>) {
        let n = self.sent.len();
        assert_eq!(place.delivery.0, self.state.last + 1);
        self.logging.delivered(place, source);
        let mut hash = mix(self.state.depends[self.me].1, place.seed ^ place.now.0);
        match (source, letter) {
            (Source::Message { from, ssn, .. }, Some(letter)) => {
                let from = from.0 as usize;
                assert_eq!(ssn.0, self.state.cursors[from] + 1, "links deliver in order, each once");
                self.state.cursors[from] = ssn.0;
                hash = mix(hash, mix(from as u64 + 1, letter.content));
                for (mine, theirs) in self.state.depends.iter_mut().zip(&letter.depends) {
                    assert!(mine.0 != theirs.0 || mine.1 == theirs.1, "two histories of one node meet");
                    *mine = (*mine).max(*theirs);
                }
            }
            (Source::Local { record, .. }, None) => {
                hash = record.iter().step_by(64).fold(hash, |hash, &byte| mix(hash, u64::from(byte)));
            }
            _ => unreachable!("a message comes with its letter"),
        }
        self.state.last = place.delivery.0;
        self.state.depends[self.me] = (self.state.last, hash);
        self.past.insert(self.state.last, self.state.depends.clone());
        let origin = Point { incarnation: place.life, delivery: place.delivery };
        // An input starts traffic, a message half keeps it up, so that it ends by itself.
        let starts = u64::from(letter.is_none());
        for draw in 0..(starts + hash % 5 / 2) {
            let to = (self.me + 1 + (mix(hash, draw) as usize) % (n - 1)) % n;
            let waits = self.logging.message_waits().unwrap_or(Lsn::ZERO);
            let letter = Letter {
                ssn: self.sent[to].len() as u64 + 1,
                origin,
                content: mix(hash, 77 + draw),
                depends: self.state.depends.clone(),
                waits,
            };
            self.sent[to].push(letter);
            if hash % 11 > 4 {
                break;
            }
        }
    }

    pub(crate) fn input(&mut self, seed: u64, bytes: Vec<u8>) {
        let place = self.place(seed);
        self.replay_input(place, &bytes.into());
    }

    /// One that peers gave back is journaled anew.
    pub(crate) fn replay_input(&mut self, place: Place, bytes: &Arc<[u8]>) {
        let journaled = self.journal.iter().find(|record| record.place == place).map(|record| record.end);
        let end = journaled.unwrap_or_else(|| {
            let end =
                self.journal.iter().map(|record| record.end).max().unwrap_or(0) + bytes.len() as u64 + 32;
            self.journal.push(Record { place, bytes: bytes.clone(), end });
            end
        });
        self.deliver(place, &Source::Local { end: Lsn(end), record: bytes.clone() }, None);
    }

    pub(crate) fn sync(&mut self) {
        self.synced = self.journal.iter().map(|record| record.end).max().unwrap_or(0).max(self.synced);
        self.logging.safe(Lsn(self.synced));
    }

    pub(crate) fn take_checkpoint(&mut self, known: BTreeSet<(usize, u64)>, save: bool) {
        let mut saved = Vec::new();
        match save {
            true => self.logging.save(&mut saved),
            // The broken rule: a checkpoint that says nothing of others.
            false => {
                let n = self.sent.len();
                let mut blank = machine(self.me, n, 1);
                let mut of_nobody = Vec::new();
                blank.save(&mut of_nobody);
                // version, the last delivery, then the peers
                saved.push(of_nobody[0]);
                let mut last = self.state.last;
                while last >= 0x80 {
                    saved.push(last as u8 | 0x80);
                    last >>= 7;
                }
                saved.push(last as u8);
                saved.extend_from_slice(&of_nobody[2..]);
                let _ = &mut blank;
            }
        }
        self.tentative =
            Some(Checkpoint { state: self.state.clone(), sent: self.sent.clone(), saved, holds: known });
    }

    pub(crate) fn checkpoint_is_durable(&mut self) {
        if let Some(checkpoint) = self.tentative.take() {
            let last = checkpoint.state.last;
            self.logging.checkpointed(DeliveryIndex(last));
            self.past.retain(|&index, _| index >= last);
            self.durable = Some(checkpoint);
        }
    }

    pub(crate) fn crash(&mut self) {
        self.phase = Phase::Down;
        self.tentative = None;
        self.journal.retain(|record| record.end <= self.synced);
        self.waiting.iter_mut().for_each(VecDeque::clear);
        self.owes.clear();
    }

    pub(crate) fn restart(&mut self, f: u8) {
        let n = self.sent.len();
        self.life += 1;
        self.phase = Phase::Collecting;
        self.logging = machine(self.me, n, f);
        self.remembered.clear();
        self.past.clear();
        self.answered = (0..n).map(|peer| peer == self.me).collect();
        match &self.durable {
            Some(checkpoint) => {
                self.state = checkpoint.state.clone();
                self.sent = checkpoint.sent.clone();
                // The checkpoint holds what they depended on.
                self.sent.iter_mut().flatten().for_each(|letter| letter.waits = Lsn::ZERO);
                self.logging.restore(&checkpoint.saved).expect("what was saved is restored");
            }
            None => {
                self.state = State { last: 0, depends: vec![(0, 0); n], cursors: vec![0; n] };
                self.sent = vec![Vec::new(); n];
            }
        }
        self.past.insert(self.state.last, self.state.depends.clone());
        self.logging.safe(Lsn(self.synced));
    }

    /// What stands at the next place, if anybody knows it.
    pub(crate) fn next_known(&self) -> Option<(Place, Source)> {
        let next = self.state.last + 1;
        let journaled = self.journal.iter().find(|record| record.place.delivery.0 == next).map(|record| {
            let source = Source::Local { end: Lsn(record.end), record: record.bytes.clone() };
            (record.place, source)
        });
        journaled.or_else(|| self.remembered.get(&next).cloned())
    }

    /// Inputs that stand behind a hole: they get new places.
    pub(crate) fn take_left_over(&mut self) -> Vec<Vec<u8>> {
        let last = self.state.last;
        let behind = |record: &Record| record.place.delivery.0 > last;
        let left =
            self.journal.iter().filter(|record| behind(record)).map(|record| record.bytes.to_vec()).collect();
        self.journal.retain(|record| record.place.delivery.0 <= last);
        left
    }
}

pub(crate) fn machine(me: usize, n: usize, f: u8) -> Causal {
    let peers: Vec<NodeId> = (0..n).map(id).collect();
    Causal::new(id(me), &peers, f).expect("the cluster is large enough")
}

pub(crate) fn id(node: usize) -> NodeId {
    NodeId(u32::try_from(node).expect("the model has few nodes"))
}

pub(crate) fn message(from: usize, letter: &Letter) -> Source {
    Source::Message { from: id(from), ssn: Ssn(letter.ssn), origin: letter.origin, end: None }
}

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(23) ^ b.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 32)
}
