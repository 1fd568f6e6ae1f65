//! One node of the model: a handler whose answers depend on everything it has delivered, a sender log, a journal, a gate, and
//! the protocol under test. Small and slow versions of the real rooms, so that the protocol is all that is clever here.

use mainstay_recovery::local::Local;
use mainstay_recovery::logging::{Admission, Logging, Malformed, Source, Wish};
use mainstay_recovery::policy::Policy;
use mainstay_recovery::sender_based::SenderBased;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use mainstay_types::level::Level;
use mainstay_types::mark::{After, Mark};
use mainstay_types::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A rule that the model can leave out, to see whether its oracle notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    /// A message leaves whatever is outstanding.
    MessagesWait,
    /// A message counts as waiting for nothing although a third node has yet to keep a place.
    OnlyTheKeeperMayReceive,
    /// What rides along with a message is dropped on the way.
    RidesAlong,
    /// A sender's new life is taken for its former one and is not told the history.
    NewLivesAreTold,
    /// A restarted node does not wait for its peers' copies.
    Collects,
}

/// Splitmix64.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// For the oracle only: the state of each node that something depends on, by its index and what it looked like.
pub(crate) type Depends = BTreeMap<NodeId, (DeliveryIndex, u64)>;

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) ssn: Ssn,
    pub(crate) origin: Point,
    pub(crate) body: u64,
    pub(crate) hops: u32,
    pub(crate) after: After,
    pub(crate) place: Option<Place>,
    pub(crate) depends: Depends,
}

#[derive(Clone, Debug)]
pub(crate) enum Input {
    Outside { id: u64, hops: u32 },
    Message { from: NodeId, message: Message },
}

#[derive(Clone, Debug)]
pub(crate) enum Frame {
    Message { message: Message, attached: Vec<u8> },
    Control(Vec<u8>),
    Collected,
}

#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) number: u64,
    pub(crate) body: u64,
    pub(crate) after: After,
    pub(crate) depends: Depends,
}

/// What a checkpoint holds, besides the protocol's own bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    pub(crate) state: u64,
    pub(crate) place: DeliveryIndex,
    pub(crate) life: Incarnation,
    pub(crate) cursor: BTreeMap<NodeId, Ssn>,
    pub(crate) log: BTreeMap<NodeId, Vec<Message>>,
    pub(crate) held: VecDeque<Output>,
    outputs: u64,
    inputs: BTreeSet<u64>,
    last_input: Lsn,
    pub(crate) depends: Depends,
}

#[derive(Debug)]
pub(crate) enum Phase {
    Down,
    Collecting { missing: BTreeSet<NodeId> },
    Running,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) policy: Policy,
    pub(crate) broken: Option<Broken>,
    pub(crate) life: Incarnation,
    pub(crate) phase: Phase,
    pub(crate) logging: Box<dyn Logging>,
    pub(crate) image: Image,
    checkpoint: (Image, Vec<u8>),
    /// Records with their places: record n ends at LSN n + 1.
    journal: Vec<(Place, Input)>,
    durable: usize,
    collected: BTreeMap<(NodeId, Ssn), Message>,
    early: BTreeMap<(NodeId, Ssn), Place>,
    /// What every state looked like, by index; for the oracle.
    pub(crate) states: Vec<u64>,
    nodes: u32,
}

impl Node {
    pub(crate) fn new(id: NodeId, nodes: u32, policy: Policy, broken: Option<Broken>) -> Self {
        let mut saved = Vec::new();
        protocol(policy).save(&mut saved);
        Self {
            id,
            policy,
            broken,
            life: Incarnation(0),
            phase: Phase::Down,
            logging: protocol(policy),
            image: Image::default(),
            checkpoint: (Image::default(), saved),
            journal: Vec::new(),
            durable: 0,
            collected: BTreeMap::new(),
            early: BTreeMap::new(),
            states: vec![0],
            nodes,
        }
    }

    pub(crate) fn runs(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    fn peers(&self) -> impl Iterator<Item = NodeId> + use<> {
        let me = self.id;
        (0..self.nodes).map(NodeId).filter(move |peer| *peer != me)
    }

    // A life

    pub(crate) fn start(&mut self) {
        self.life = self.life.next();
        self.logging = protocol(self.policy);
        self.image = self.checkpoint.0.clone();
        self.logging.restore(&self.checkpoint.1).expect("a checkpoint reads back");
        self.states.truncate(self.image.place.0 as usize + 1);
        let first = self.life == Incarnation(1) || self.broken == Some(Broken::Collects);
        self.phase =
            Phase::Collecting { missing: if first { BTreeSet::new() } else { self.peers().collect() } };
        self.finish_collecting();
    }

    pub(crate) fn crash(&mut self) {
        self.phase = Phase::Down;
        self.journal.truncate(self.durable);
        self.collected.clear();
        self.early.clear();
    }

    fn finish_collecting(&mut self) {
        if !matches!(&self.phase, Phase::Collecting { missing } if missing.is_empty()) {
            return;
        }
        self.logging.safe(Lsn(self.durable as u64));
        while let Some((place, input, end)) = self.next_of_history() {
            self.execute(place, input, end);
        }
        self.early.clear();
        self.phase = Phase::Running;
        let mut wishes = Vec::new();
        self.logging.recovered(self.life, self.image.place, &mut wishes);
        assert_eq!(wishes, []);
        // Nobody depends on the rest: any order will do, and new places.
        let inputs: Vec<_> = self.journal.iter().map(|(_, input)| input.clone()).collect();
        for input in inputs {
            if matches!(&input, Input::Outside { id, .. } if !self.image.inputs.contains(id)) {
                self.deliver(input);
            }
        }
        for ((from, ssn), message) in std::mem::take(&mut self.collected) {
            if ssn > self.cursor(from) {
                self.deliver(Input::Message { from, message });
            }
        }
    }

    /// What has the next index: in the journal or remembered by a sender; of several, what the latest life put there.
    fn next_of_history(&self) -> Option<(Place, Input, Option<Lsn>)> {
        let index = self.image.place.next();
        let journaled = self.journal.iter().enumerate();
        let journaled =
            journaled.map(|(at, (place, input))| (*place, input.clone(), Some(Lsn(at as u64 + 1))));
        let remembered = self.collected.iter().filter_map(|((from, _), message)| {
            Some((message.place?, Input::Message { from: *from, message: message.clone() }, None))
        });
        journaled
            .chain(remembered)
            .filter(|(place, input, _)| {
                let fits = match input {
                    Input::Outside { id, .. } => !self.image.inputs.contains(id),
                    Input::Message { from, message } => message.ssn == self.cursor(*from).next(),
                };
                place.delivery == index && place.life >= self.image.life && fits
            })
            .max_by_key(|(place, _, end)| (place.life, end.is_some()))
    }

    // Deliveries

    pub(crate) fn cursor(&self, from: NodeId) -> Ssn {
        self.image.cursor.get(&from).copied().unwrap_or_default()
    }

    /// As something new, in this life.
    pub(crate) fn deliver(&mut self, input: Input) {
        let place = Place {
            delivery: self.image.place.next(),
            life: self.life,
            now: Time(self.life.0),
            seed: mix(self.life.0, self.image.state),
        };
        self.execute(place, input, None);
    }

    fn execute(&mut self, place: Place, input: Input, end: Option<Lsn>) {
        let journals = matches!(input, Input::Outside { .. }) || self.policy.journals_messages();
        let end = end.or_else(|| {
            journals.then(|| {
                self.journal.push((place, input.clone()));
                Lsn(self.journal.len() as u64)
            })
        });
        let image = &mut self.image;
        image.place = place.delivery;
        image.life = place.life;
        let (what, hops, source) = match input {
            Input::Outside { id, hops } => {
                image.inputs.insert(id);
                (
                    id,
                    hops,
                    Source::Local { end: end.expect("inputs are journaled"), record: Vec::new().into() },
                )
            }
            Input::Message { from, message } => {
                for (node, state) in message.depends {
                    let known = image.depends.entry(node).or_insert(state);
                    *known = (*known).max(state);
                }
                image.cursor.insert(from, message.ssn);
                let (ssn, origin) = (message.ssn, message.origin);
                let hash = mix(u64::from(from.0), message.body);
                (hash, message.hops, Source::Message { from, ssn, origin, end })
            }
        };
        image.state = mix(mix(image.state, what), place.seed);
        image.depends.insert(self.id, (place.delivery, image.state));
        self.states.push(image.state);
        // Under the hybrid the Recoverable mark speaks for messages; under deferred their own record does.
        if let Some(end) = end
            && (matches!(source, Source::Local { .. }) || self.policy == Policy::Deferred)
        {
            image.last_input = end;
        }
        self.logging.delivered(place, &source);
        self.emit(place, hops);
    }

    fn emit(&mut self, place: Place, hops: u32) {
        let state = self.image.state;
        let end = self.image.last_input;
        if hops > 0 {
            for nth in 0..(state % 4).min(2) {
                let turn = 1 + (mix(state, nth) % u64::from(self.nodes - 1)) as u32;
                let to = NodeId((self.id.0 + turn) % self.nodes);
                let waits = match self.broken {
                    Some(Broken::OnlyTheKeeperMayReceive | Broken::MessagesWait) => DeliveryIndex(0),
                    _ => self.logging.waits_for(to, place.delivery),
                };
                let log = self.image.log.entry(to).or_default();
                let ssn = Ssn(log.len() as u64 + 1);
                let mut stamp = Vec::new();
                self.logging.stamp(&mut stamp);
                assert_eq!(stamp, []);
                log.push(Message {
                    ssn,
                    origin: Point { incarnation: place.life, delivery: place.delivery },
                    body: mix(state, nth + 7),
                    hops: hops - 1,
                    after: self.policy.message_after(Policy::Deferred, Level::Disk, end, waits),
                    place: self.early.remove(&(to, ssn)),
                    depends: self.image.depends.clone(),
                });
            }
        }
        if state.is_multiple_of(3) || hops == 0 {
            self.image.outputs += 1;
            self.image.held.push_back(Output {
                number: self.image.outputs,
                body: state,
                after: self.policy.effect_after(Level::Disk, end, place.delivery),
                depends: self.image.depends.clone(),
            });
        }
    }

    // What leaves

    pub(crate) fn met(&self, after: &After) -> bool {
        after.waits().all(|(mark, value)| match mark {
            Mark::Appended => true,
            Mark::Durable => self.durable as u64 >= value,
            Mark::Recoverable => self.logging.recoverable().0 >= value,
            Mark::Kept | Mark::Confirmed => unreachable!("no node here is at level peers"),
        })
    }

    pub(crate) fn may_leave(&self, message: &Message) -> bool {
        self.broken == Some(Broken::MessagesWait) || self.met(&message.after)
    }

    pub(crate) fn frame(&mut self, to: NodeId, message: Message) -> Frame {
        let mut attached = Vec::new();
        self.logging.attach(to, &mut attached);
        Frame::Message { message, attached }
    }

    pub(crate) fn release(&mut self) -> Vec<Output> {
        let mut released = Vec::new();
        if let Some(output) = self.image.held.front() {
            let mut wishes = Vec::new();
            let index = output.depends[&self.id].0;
            self.logging.needed(index, &mut wishes);
            if wishes.contains(&Wish::Flush) {
                self.sync();
            }
        }
        while self.image.held.front().is_some_and(|output| self.met(&output.after)) {
            released.extend(self.image.held.pop_front());
        }
        released
    }

    pub(crate) fn sync(&mut self) {
        self.durable = self.journal.len();
        self.logging.safe(Lsn(self.durable as u64));
    }

    pub(crate) fn take_checkpoint(&mut self) {
        // A checkpoint in the journal's directory is behind the records that it covers.
        self.sync();
        let mut saved = Vec::new();
        self.logging.save(&mut saved);
        self.checkpoint = (self.image.clone(), saved);
        self.logging.checkpointed(self.image.place);
    }

    pub(crate) fn covered(&self) -> DeliveryIndex {
        self.checkpoint.0.place
    }

    /// Whether the record of that delivery is safe in the journal, if it has one.
    pub(crate) fn journaled(&self, index: DeliveryIndex) -> bool {
        self.journal[..self.durable].iter().any(|(place, _)| place.delivery == index)
    }

    // What arrives

    pub(crate) fn perform(&mut self, wishes: Vec<Wish>) -> Vec<(NodeId, Vec<u8>)> {
        let mut told = Vec::new();
        for wish in wishes {
            match wish {
                Wish::Tell { to, body } => told.push((to, body)),
                Wish::Ordered { to, ssn, place } => {
                    match self.image.log.entry(to).or_default().get_mut(ssn.0 as usize - 1) {
                        Some(message) => message.place = Some(place),
                        None => {
                            assert!(!self.runs(), "{to} gave message {ssn} a place before it was emitted");
                            self.early.insert((to, ssn), place);
                        }
                    }
                }
                Wish::Flush => self.sync(),
                Wish::Remembered { .. } | Wish::RollBack { .. } => panic!("not a wish of these protocols"),
            }
        }
        told
    }

    /// Takes a frame in; gives what is to be told.
    pub(crate) fn take(&mut self, from: NodeId, frame: Frame) -> Result<Vec<(NodeId, Vec<u8>)>, Malformed> {
        let mut wishes = Vec::new();
        match frame {
            Frame::Control(body) => self.logging.control(from, &body, &mut wishes)?,
            Frame::Collected => {
                if let Phase::Collecting { missing } = &mut self.phase {
                    missing.remove(&from);
                }
                self.finish_collecting();
            }
            Frame::Message { message, mut attached } => {
                if self.broken == Some(Broken::RidesAlong) {
                    attached.clear();
                }
                let cursor = self.cursor(from);
                if message.ssn <= cursor {
                    self.logging.carried(from, &attached, &mut wishes)?;
                    self.logging.duplicate(from, message.ssn, &mut wishes);
                } else {
                    let admission =
                        self.logging.arrived(from, message.origin, &[], &attached, &mut wishes)?;
                    assert_eq!(admission, Admission::Deliver);
                    if self.runs() {
                        assert_eq!(message.ssn, cursor.next(), "a session has no gaps");
                        // The places that rode along are kept before the message is delivered.
                        let told = self.perform(std::mem::take(&mut wishes));
                        assert_eq!(told, []);
                        self.deliver(Input::Message { from, message });
                    } else {
                        self.collected.insert((from, message.ssn), message);
                    }
                }
            }
        }
        Ok(self.perform(wishes))
    }
}

fn protocol(policy: Policy) -> Box<dyn Logging> {
    match policy {
        Policy::SenderBased => Box::new(SenderBased::new()),
        Policy::Hybrid => Box::new(SenderBased::hybrid()),
        Policy::Deferred => Box::new(Local::default()),
        _ => panic!("not a policy of this model"),
    }
}
