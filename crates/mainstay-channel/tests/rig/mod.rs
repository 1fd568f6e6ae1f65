//! Two nodes with the simplest composers around their channels, one connection between them, and the oracle.

mod live;

use live::{Delivery, Handler, Live, order};
use mainstay_channel::channel::{Arrival, Channel, Owed};
use mainstay_channel::frame::{Frame, split};
use mainstay_channel::hello::{Declared, Hello, Identity};
use mainstay_channel::limits::Limits;
use mainstay_types::determinant::Place;
use mainstay_types::id::{ClusterId, DeliveryIndex, Incarnation, NodeId, Ssn, StoreId};
use mainstay_types::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const LIMITS: Limits = Limits {
    log_bytes_max: 1 << 20,
    log_memory_bytes_max: u64::MAX,
    log_spill_bytes_max: 0,
    window_messages_max: 3,
    window_bytes_max: 60,
    message_bytes_max: 40,
    control_bytes_max: 100,
};

/// How the two composers survive a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Journaled,
    SenderBased,
}

/// One step of the world, at a node or between the two.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// Something from outside.
    Input(usize),
    /// Take in so many frames.
    Take(usize, usize),
    /// Make the journal durable.
    Sync(usize),
    Checkpoint(usize),
    /// The connection breaks: what is on its way is lost.
    Break,
    Crash(usize),
    Start(usize),
    /// This node dials the other.
    Connect(usize),
}

/// How often rare branches were taken.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Reach {
    pub(crate) delivered: u64,
    pub(crate) crashes: u64,
    pub(crate) resent: u64,
    pub(crate) lost_tails: u64,
    pub(crate) replayed_in_place: u64,
    pub(crate) collected_without_place: u64,
    pub(crate) collections_broken: u64,
}

impl Reach {
    pub(crate) fn add(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.crashes += other.crashes;
        self.resent += other.resent;
        self.lost_tails += other.lost_tails;
        self.replayed_in_place += other.replayed_in_place;
        self.collected_without_place += other.collected_without_place;
        self.collections_broken += other.collections_broken;
    }
}

/// What a crash does not take.
#[derive(Debug)]
struct Disk {
    incarnation: u64,
    inputs: u64,
    /// Deliveries with their places behind the checkpoint, as journaled.
    journal: Vec<(Place, Delivery)>,
    /// How many of them are durable.
    durable: usize,
    checkpoint: Option<(Vec<u8>, Handler)>,
}

#[derive(Debug)]
struct Node {
    disk: Disk,
    live: Option<Live>,
    /// The deliveries that something may have left after: no recovery may lose them.
    promised: Vec<Delivery>,
    inbound: VecDeque<Vec<u8>>,
}

/// The world.
#[derive(Debug)]
pub(crate) struct World {
    protocol: Protocol,
    nodes: [Node; 2],
    connected: bool,
    reach: Reach,
}

fn id(node: usize) -> NodeId {
    NodeId(node as u32)
}

impl World {
    pub(crate) fn new(protocol: Protocol) -> Self {
        let node = || Node {
            disk: Disk { incarnation: 0, inputs: 0, journal: Vec::new(), durable: 0, checkpoint: None },
            live: None,
            promised: Vec::new(),
            inbound: VecDeque::new(),
        };
        let mut world = Self { protocol, nodes: [node(), node()], connected: false, reach: Reach::default() };
        // A cluster's first start: nobody has a past to collect.
        for at in 0..2 {
            world.boot(at);
            world.replay_journal(at);
        }
        world
    }

    pub(crate) fn reach(&self) -> Reach {
        let mut reach = self.reach;
        for node in 0..2 {
            if let Some(live) = &self.nodes[node].live {
                reach.resent += live.channel.stats(id(1 - node)).resent;
            }
        }
        reach
    }

    pub(crate) fn perform(&mut self, action: Action) {
        match action {
            Action::Input(at) => self.input(at),
            Action::Take(at, frames) => {
                for _ in 0..frames {
                    self.take(at);
                }
            }
            Action::Sync(at) => self.sync(at, true),
            Action::Checkpoint(at) => self.checkpoint(at),
            Action::Break => self.break_connection(),
            Action::Crash(at) => self.crash(at),
            Action::Start(at) => self.start(at),
            Action::Connect(dialer) => self.connect(dialer),
        }
        self.check_prefixes();
    }

    /// Everything calms down, and then the two must agree to the last message and retain nothing.
    pub(crate) fn settle(&mut self) {
        (0..2).for_each(|at| self.start(at));
        self.connect(0);
        self.calm(false);
        for at in 0..2 {
            assert!(!self.live(at).collecting, "node {at} still collects");
            let delivered = self.live(at).bodies_delivered();
            assert_eq!(
                delivered,
                self.live(1 - at).handler.emitted,
                "node {at} has not all, once and in order"
            );
        }
        (0..2).for_each(|at| self.checkpoint(at));
        self.calm(true);
        for at in 0..2 {
            let retained = self.live(at).channel.retained().next().expect("there is one peer");
            assert_eq!((retained.messages, retained.bytes), (0, 0), "node {at} retains something for ever");
        }
    }

    /// Until no frame is on its way. Without `idle`, acknowledgements that can wait do: nothing may hang for want of them.
    fn calm(&mut self, idle: bool) {
        loop {
            for at in 0..2 {
                self.sync(at, idle);
                while !self.nodes[at].inbound.is_empty() {
                    self.take(at);
                }
            }
            (0..2).for_each(|at| self.sync(at, idle));
            if self.nodes.iter().all(|node| node.inbound.is_empty()) {
                return;
            }
        }
    }

    fn live(&self, at: usize) -> &Live {
        self.nodes[at].live.as_ref().expect("the node was started")
    }

    fn live_mut(&mut self, at: usize) -> &mut Live {
        self.nodes[at].live.as_mut().expect("the node was started")
    }

    /// Whether the node is up and has recovered.
    fn runs(&self, at: usize) -> bool {
        self.nodes[at].live.as_ref().is_some_and(|live| !live.collecting)
    }

    /// At every moment: what a node holds of the other is what that one emitted.
    fn check_prefixes(&self) {
        if !(self.runs(0) && self.runs(1)) {
            return;
        }
        for at in 0..2 {
            let delivered = self.live(at).bodies_delivered();
            assert!(
                self.live(1 - at).handler.emitted.starts_with(&delivered),
                "node {at} was delivered what nobody emitted"
            );
        }
    }

    fn input(&mut self, at: usize) {
        if !self.runs(at) {
            return;
        }
        self.nodes[at].disk.inputs += 1;
        let number = self.nodes[at].disk.inputs * 2 + at as u64;
        self.deliver(at, Delivery::Input(number));
        self.pump(at, false);
    }

    /// A new delivery: journaled as the protocol says, then handled.
    fn deliver(&mut self, at: usize, delivery: Delivery) {
        self.reach.delivered += u64::from(matches!(delivery, Delivery::Message { .. }));
        let protocol = self.protocol;
        let Node { disk, live, .. } = &mut self.nodes[at];
        let live = live.as_mut().expect("only a node that runs delivers");
        let index = live.handler.last() + 1;
        let life = Incarnation(disk.incarnation);
        let place = Place { delivery: DeliveryIndex(index), life, now: Time(index), seed: index };
        if protocol == Protocol::Journaled || matches!(delivery, Delivery::Input(_)) {
            disk.journal.push((place, delivery.clone()));
        }
        live.apply(id(1 - at), place, &delivery);
        if protocol == Protocol::SenderBased {
            disk.durable = disk.journal.len();
            if let Delivery::Message { ssn, .. } = delivery {
                live.tell.push(order(ssn, place));
            }
        }
    }

    /// The last delivery that no permitted crash can lose.
    fn recoverable(&self, at: usize) -> u64 {
        let (live, disk) = (self.live(at), &self.nodes[at].disk);
        match self.protocol {
            Protocol::Journaled => live.handler.last() - (disk.journal.len() - disk.durable) as u64,
            Protocol::SenderBased => live
                .places
                .iter()
                .find(|(ssn, _)| !live.confirmed.contains(ssn))
                .map_or(live.handler.last(), |(_, place)| place.delivery.0 - 1),
        }
    }

    /// Lets leave what may, and sends.
    fn pump(&mut self, at: usize, idle: bool) {
        if self.runs(at) {
            let recoverable = self.recoverable(at);
            let node = &mut self.nodes[at];
            let live = node.live.as_mut().expect("it runs");
            if recoverable as usize > node.promised.len() {
                node.promised = live.handler.history[..recoverable as usize].to_vec();
            }
            let may_leave =
                live.handler.emitters.iter().take_while(|&&emitter| emitter <= recoverable).count();
            live.channel.release(id(1 - at), Ssn(may_leave as u64));
        }
        self.send(at, idle);
    }

    fn send(&mut self, at: usize, idle: bool) {
        let peer = id(1 - at);
        let live = self.live_mut(at);
        if live.channel.session(peer).is_none() {
            return;
        }
        let mut out = Vec::new();
        if live.channel.owed(peer) > if idle { Owed::Nothing } else { Owed::Later } {
            live.channel.frames_for(peer, |_| {}, |frame| frame.put_with_length(&mut out));
        }
        for body in live.tell.drain(..) {
            Frame::Control(&body).put_with_length(&mut out);
        }
        let mut rest = &out[..];
        while let Some((frame, after)) = split(rest, LIMITS.frame_bytes_max()).expect("own frames are short")
        {
            self.nodes[1 - at].inbound.push_back(frame.to_vec());
            rest = after;
        }
    }

    fn take(&mut self, at: usize) {
        let Some(bytes) = self.nodes[at].inbound.pop_front() else { return };
        let peer = id(1 - at);
        let live = self.live_mut(at);
        match Frame::parse(&bytes).expect("a channel writes frames") {
            Frame::Hello(hello) => return self.greeted(at, &hello),
            Frame::Message(message) => match live.channel.arrived(peer, &message) {
                Ok(Arrival::Next) if live.collecting => {
                    live.told.insert(message.ssn, (message.place, message.origin, message.body.into()));
                }
                Ok(Arrival::Next) => {
                    let (ssn, origin) = (message.ssn, message.origin);
                    self.deliver(at, Delivery::Message { ssn, origin, body: message.body.into() });
                }
                other => panic!("a message of a faithful node is next, not {other:?}"),
            },
            Frame::Received { ssn } => {
                live.channel.received(peer, ssn).expect("a faithful node does not lie");
            }
            Frame::Covered { ssn } => live.channel.covered(peer, ssn).expect("a faithful node does not lie"),
            Frame::Control(body) => live.control(peer, body),
            Frame::Collected => {
                live.channel.collected(peer).expect("it was asked");
                self.replay_collected(at);
            }
            other @ (Frame::Agreed { .. }
            | Frame::Heard
            | Frame::Outlived { .. }
            | Frame::Passive { .. }
            | Frame::Pinned { .. }
            | Frame::Recovered { .. }
            | Frame::Marker { .. }
            | Frame::Refused { .. }) => {
                panic!("{other:?} has no reason")
            }
        }
        self.pump(at, false);
    }

    /// The other greets: a node that was dialled greets back first.
    fn greeted(&mut self, at: usize, hello: &Hello) {
        let peer = id(1 - at);
        let live = self.live_mut(at);
        live.channel.check(hello).expect("a faithful node may be talked to");
        let answer = (!live.greeted).then(|| live.greet(peer));
        let greeted = live.channel.greeted(peer, hello).expect("a faithful node may be talked to");
        assert_eq!((greeted.orphan, greeted.peer_orphan), (None, None), "no state was lost that left");
        if self.protocol == Protocol::SenderBased {
            let live = self.live_mut(at);
            if greeted.reborn {
                live.confirmed.clear();
            }
            // What the last session may have lost is told again.
            live.tell = live.places.iter().map(|(ssn, place)| order(*ssn, *place)).collect();
        }
        self.nodes[1 - at].inbound.extend(answer);
        self.pump(at, false);
        if greeted.collecting {
            assert!(self.runs(at), "one failure at a time");
            let mut last = Vec::new();
            self.live_mut(at).channel.close_collection(peer).put(&mut last);
            self.nodes[1 - at].inbound.push_back(last);
        }
    }

    fn sync(&mut self, at: usize, idle: bool) {
        if !self.runs(at) {
            return;
        }
        let Node { disk, live, .. } = &mut self.nodes[at];
        if self.protocol == Protocol::Journaled {
            disk.durable = disk.journal.len();
            live.as_mut().expect("it runs").cover_all();
        }
        self.pump(at, idle);
    }

    fn checkpoint(&mut self, at: usize) {
        if !self.runs(at) {
            return;
        }
        let Node { disk, live, .. } = &mut self.nodes[at];
        let live = live.as_mut().expect("it runs");
        let mut saved = Vec::new();
        live.channel.save(&mut saved);
        disk.checkpoint = Some((saved, live.handler.clone()));
        disk.journal.clear();
        disk.durable = 0;
        live.places.clear();
        live.confirmed.clear();
        live.cover_all();
        self.pump(at, false);
    }

    fn break_connection(&mut self) {
        for at in 0..2 {
            self.nodes[at].inbound.clear();
            let Some(live) = &mut self.nodes[at].live else { continue };
            live.channel.disconnected(id(1 - at));
            live.greeted = false;
            live.tell.clear();
            self.reach.collections_broken += u64::from(!live.told.is_empty());
        }
        self.connected = false;
    }

    fn crash(&mut self, at: usize) {
        let Some(live) = &self.nodes[at].live else { return };
        // Sender-based logging survives one failure at a time, which lasts until the places are at their senders again.
        let one_at_a_time = self.runs(1 - at)
            && (live.collecting || self.nodes[at].promised.len() as u64 <= self.recoverable(at));
        if self.protocol == Protocol::SenderBased && !one_at_a_time {
            return;
        }
        self.reach.crashes += 1;
        self.reach.resent += live.channel.stats(id(1 - at)).resent;
        self.break_connection();
        let Node { disk, live, .. } = &mut self.nodes[at];
        self.reach.lost_tails += u64::from(disk.journal.len() > disk.durable);
        disk.journal.truncate(disk.durable);
        *live = None;
    }

    fn start(&mut self, at: usize) {
        if self.nodes[at].live.is_some() {
            return;
        }
        self.boot(at);
        match self.protocol {
            Protocol::Journaled => self.replay_journal(at),
            Protocol::SenderBased => {
                let live = self.live_mut(at);
                live.channel.collect();
                live.collecting = true;
            }
        }
    }

    fn boot(&mut self, at: usize) {
        let Node { disk, live, .. } = &mut self.nodes[at];
        disk.incarnation += 1;
        let identity = Identity {
            cluster: ClusterId([1; 16]),
            node: id(at),
            store: StoreId([at as u8; 16]),
            incarnation: Incarnation(disk.incarnation),
        };
        let mut channel = Channel::new(identity, Declared::default(), &[id(0), id(1)], LIMITS);
        let mut handler = Handler::default();
        if let Some((saved, state)) = &disk.checkpoint {
            channel.restore(saved).expect("it was saved by this version");
            // The checkpoint is durable, so that everything in it is.
            channel
                .cursors()
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|(peer, ssn)| channel.cover(peer, ssn));
            handler = state.clone();
        }
        *live = Some(Live {
            channel,
            handler,
            places: BTreeMap::new(),
            confirmed: BTreeSet::new(),
            collecting: false,
            told: BTreeMap::new(),
            greeted: false,
            tell: Vec::new(),
        });
    }

    fn replay_journal(&mut self, at: usize) {
        let Node { disk, live, .. } = &mut self.nodes[at];
        let live = live.as_mut().expect("it was booted");
        for (place, delivery) in &disk.journal {
            live.apply(id(1 - at), *place, delivery);
        }
        if self.protocol == Protocol::Journaled {
            live.cover_all();
        }
        self.go_on(at);
    }

    /// Everything was told: what has a place is replayed in it, up to the first place that nobody knows; the rest is new.
    fn replay_collected(&mut self, at: usize) {
        let peer = id(1 - at);
        let Node { disk, live, .. } = &mut self.nodes[at];
        let live = live.as_mut().expect("it collects");
        let mut in_place: BTreeMap<u64, (Place, Delivery)> = disk
            .journal
            .iter()
            .map(|(place, delivery)| (place.delivery.0, (*place, delivery.clone())))
            .collect();
        for (ssn, (place, origin, body)) in &live.told {
            if let Some(place) = place {
                let delivery = Delivery::Message { ssn: *ssn, origin: *origin, body: body.clone() };
                in_place.insert(place.delivery.0, (*place, delivery));
            }
        }
        while let Some((place, delivery)) = in_place.remove(&(live.handler.last() + 1)) {
            live.apply(peer, place, &delivery);
            if let Delivery::Message { ssn, .. } = delivery {
                live.confirmed.insert(ssn);
                live.told.remove(&ssn);
                self.reach.replayed_in_place += 1;
            }
        }
        let last = live.handler.last();
        disk.journal.retain(|(place, _)| place.delivery.0 <= last);
        disk.durable = disk.journal.len();
        live.collecting = false;
        let told = std::mem::take(&mut live.told);
        self.reach.collected_without_place += told.len() as u64;
        self.go_on(at);
        for (_, delivery) in in_place.into_values() {
            if matches!(delivery, Delivery::Input(_)) {
                self.deliver(at, delivery);
            }
        }
        for (ssn, (_, origin, body)) in told {
            self.deliver(at, Delivery::Message { ssn, origin, body });
        }
    }

    fn go_on(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let live = node.live.as_mut().expect("it was booted");
        assert!(
            live.handler.history.starts_with(&node.promised),
            "node {at} lost what something had left after"
        );
        assert_eq!(live.channel.recovered(), [], "the other holds what this one lost");
    }

    fn connect(&mut self, dialer: usize) {
        if self.connected || self.nodes.iter().any(|node| node.live.is_none()) {
            return;
        }
        self.connected = true;
        let hello = self.live_mut(dialer).greet(id(1 - dialer));
        self.nodes[1 - dialer].inbound.push_back(hello);
    }
}
