//! Copies and one client on a network that delivers in order and loses only what a test takes away.

use mainstay_region::client::{Client, ClientConfig, ClientEffect, Ended};
use mainstay_region::effect::{Effect, Event};
use mainstay_region::limits::{Acknowledgement, Config};
use mainstay_region::log::Entry;
use mainstay_region::message::{Acknowledge, Body, Message, Numbered, Party};
use mainstay_region::operation::Operation;
use mainstay_region::patterns::Pattern;
use mainstay_region::region::Region;
use mainstay_types::id::{ClientId, Incarnation, StoreId, ThreadId};
use mainstay_types::machine::Machine;
use mainstay_types::operation::OperationId;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, Member, MemberId, Offer, View, ViewId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub(crate) const CLIENT: ClientId = ClientId(1);

/// A message under way: how many messages, and how many with a payload, came one after another before it, itself included.
#[derive(Clone, Debug)]
pub(crate) struct UnderWay {
    pub(crate) from: Party,
    pub(crate) to: Party,
    pub(crate) message: Message,
    hops: u64,
    payload_hops: u64,
}

pub(crate) struct Net {
    pub(crate) now: Time,
    pub(crate) config: Config,
    pub(crate) view: View,
    cut: Vec<u8>,
    pub(crate) copies: BTreeMap<MemberId, Region>,
    pub(crate) journals: BTreeMap<MemberId, Vec<Vec<u8>>>,
    pub(crate) client: Client,
    pub(crate) queue: VecDeque<UnderWay>,
    pub(crate) delivered: Vec<UnderWay>,
    pub(crate) ended: Vec<(OperationId, Ended, u64, u64)>,
    /// What each copy said to the group.
    pub(crate) said: Vec<(MemberId, Effect)>,
    /// Answers to reads, and changes, that came to the client.
    pub(crate) heard: Vec<Body>,
    /// The driver says when all was told.
    pub(crate) drains: bool,
}

pub(crate) fn member(number: u8, born: u64) -> Member {
    let joiner = JoinerId {
        address: Address::v4([10, 0, 0, number], 7171),
        store: StoreId([number; 16]),
        life: Incarnation(1),
    };
    Member { born: ViewId(born), joiner, offer: Offer::server() }
}

pub(crate) fn view(id: u64, members: Vec<Member>) -> View {
    View { id: ViewId(id), arbitrated: false, members }
}

pub(crate) fn config() -> Config {
    Config { shards: 1, ..Config::default() }
}

pub(crate) fn put(value: &[u8]) -> Operation {
    Operation::Put { key: b"k".into(), value: value.into() }
}

impl Net {
    pub(crate) fn new(copies: u8, config: Config, pattern: Pattern) -> Self {
        let view = view(1, (1..=copies).map(|number| member(number, 1)).collect());
        let client = Client::new(ClientConfig {
            id: CLIENT,
            shards: config.shards,
            acknowledgement: config.acknowledgement,
            pattern,
            retry_after: Duration::from_millis(100),
            deadline: Duration::from_secs(5),
            window_operations_max: 8,
        });
        let mut net = Self {
            now: Time(1),
            config,
            copies: view.members.iter().map(|member| (member.id(), Region::new(config))).collect(),
            view: view.clone(),
            cut: Vec::new(),
            journals: BTreeMap::new(),
            client,
            queue: VecDeque::new(),
            delivered: Vec::new(),
            ended: Vec::new(),
            said: Vec::new(),
            heard: Vec::new(),
            drains: true,
        };
        net.install(&view, &[], None);
        let mut out = Vec::new();
        net.client.view_known(net.now, &view, &mut out);
        net
    }

    /// Settles `reports`, agrees on `view`, and begins it.
    pub(crate) fn install(
        &mut self,
        view: &View,
        reports: &[(MemberId, Vec<u8>)],
        settler: Option<MemberId>,
    ) {
        self.settle(view, reports, settler);
        self.begin_all();
    }

    /// The same without beginning it: all have the cut.
    pub(crate) fn fetch_cut(&mut self, view: &View, reports: &[(MemberId, Vec<u8>)]) {
        self.settle(view, reports, None);
    }

    fn settle(&mut self, view: &View, reports: &[(MemberId, Vec<u8>)], settler: Option<MemberId>) {
        let settler = settler.unwrap_or(view.members[0].id());
        self.step(settler, Event::Settle { reports: reports.to_vec() });
        let cut = self.said.iter().rev().find_map(|(_, effect)| match effect {
            Effect::Cut(cut) => Some(cut.clone()),
            _ => None,
        });
        let cut = cut.expect("a copy settles");
        self.cut.clone_from(&cut);
        let sources: Vec<MemberId> = reports.iter().map(|(member, _)| *member).collect();
        for member in &view.members {
            let me = member.id();
            let (view, cut, sources) = (view.clone(), cut.clone(), sources.clone());
            self.step(me, Event::Fetch { me, view, cut, sources });
        }
        self.run();
        self.view = view.clone();
    }

    fn begin_all(&mut self) {
        let view = self.view.clone();
        for member in &view.members {
            self.step(member.id(), Event::Installed { view: view.id });
        }
    }

    /// The cut that was made last.
    pub(crate) fn cut(&self) -> Vec<u8> {
        self.cut.clone()
    }

    /// Tells the client the present view.
    pub(crate) fn tell_view(&mut self) {
        let mut out = Vec::new();
        self.client.view_known(self.now, &self.view, &mut out);
        self.client_effects(out, 0, 0);
    }

    /// The reports of these for a change of the present view.
    pub(crate) fn wedge(&mut self, members: &[MemberId]) -> Vec<(MemberId, Vec<u8>)> {
        self.said.clear();
        for &member in members {
            let view = self.view.id;
            self.step(member, Event::Wedge { view, request: 1 });
        }
        let reports = self.said.iter().filter_map(|(member, effect)| match effect {
            Effect::Report { bytes, .. } => Some((*member, bytes.clone())),
            _ => None,
        });
        reports.collect()
    }

    pub(crate) fn id(&self, place: usize) -> MemberId {
        self.view.members[place].id()
    }

    pub(crate) fn call(&mut self, operation: Operation) -> OperationId {
        let mut out = Vec::new();
        let id =
            self.client.call(self.now, ThreadId(1), operation, &mut out).expect("the window is not full");
        self.client_effects(out, 0, 0);
        id
    }

    pub(crate) fn step(&mut self, member: MemberId, event: Event) {
        self.step_behind(member, event, 0, 0);
    }

    fn step_behind(&mut self, member: MemberId, event: Event, hops: u64, payload_hops: u64) {
        let mut events = VecDeque::from([event]);
        let mut drained = !self.drains;
        while let Some(event) = events.pop_front() {
            let Some(region) = self.copies.get_mut(&member) else { return };
            let mut out = Vec::new();
            region.step(self.now, event, &mut out);
            for effect in out {
                match effect {
                    Effect::Append { record, bytes } => {
                        self.journals.entry(member).or_default().push(bytes);
                        events.push_back(Event::Appended(record));
                        drained = !self.drains;
                    }
                    Effect::Send { to, message, .. } => {
                        self.send(Party::Member(member), to, message, hops, payload_hops);
                    }
                    said => self.said.push((member, said)),
                }
            }
            if events.is_empty() && !drained {
                drained = true;
                events.push_back(Event::Drained);
            }
        }
    }

    pub(crate) fn send(&mut self, from: Party, to: Party, message: Message, hops: u64, payload_hops: u64) {
        let bytes = message.encode();
        let message = Message::decode(&bytes, &self.config.limits).expect("what was encoded is read");
        let payload_hops = payload_hops + u64::from(has_payload(&message.body));
        self.queue.push_back(UnderWay { from, to, message, hops: hops + 1, payload_hops });
    }

    pub(crate) fn client_effects(&mut self, out: Vec<ClientEffect>, hops: u64, payload_hops: u64) {
        for effect in out {
            match effect {
                ClientEffect::Send { to, message } => {
                    self.send(Party::Client(CLIENT), Party::Member(to), message, hops, payload_hops);
                }
                ClientEffect::Ended { id, ended } => self.ended.push((id, ended, hops, payload_hops)),
                ClientEffect::AskView | ClientEffect::NotSeen { .. } => {}
            }
        }
    }

    /// Delivers until nothing is under way.
    pub(crate) fn run(&mut self) {
        while let Some(next) = self.queue.pop_front() {
            self.deliver(next);
        }
    }

    /// Delivers what `which` is true for, in order, and drops the rest.
    pub(crate) fn run_only(&mut self, which: impl Fn(&UnderWay) -> bool) {
        while let Some(next) = self.queue.pop_front() {
            if which(&next) {
                self.deliver(next);
            }
        }
    }

    fn deliver(&mut self, next: UnderWay) {
        self.delivered.push(next.clone());
        let UnderWay { from, to, message, hops, payload_hops } = next;
        match (to, from) {
            (Party::Member(member), _) => {
                self.step_behind(member, Event::Received { from, message }, hops, payload_hops);
            }
            (Party::Client(_), Party::Member(member)) => {
                self.heard.push(message.body.clone());
                let mut out = Vec::new();
                self.client.received(self.now, member, message, &mut out);
                self.client_effects(out, hops, payload_hops);
            }
            (Party::Client(_), Party::Client(_)) => unreachable!("clients do not talk to each other"),
        }
    }

    /// Lets time go by, with ticks; everything that is sent is delivered.
    pub(crate) fn pass(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 10 {
            self.now = self.now.after(Duration::from_millis(10));
            for member in self.copies.keys().copied().collect::<Vec<_>>() {
                self.step(member, Event::Tick);
            }
            let mut out = Vec::new();
            self.client.tick(self.now, &mut out);
            self.client_effects(out, 0, 0);
            self.run();
        }
    }

    /// Calls of the client that took effect: how each ended.
    pub(crate) fn how(&self, id: OperationId) -> Vec<Ended> {
        self.ended.iter().filter(|(ended, ..)| *ended == id).map(|(_, ended, ..)| ended.clone()).collect()
    }
}

/// One entry on its way to a copy, of a shard of which nothing is stable.
pub(crate) fn one_entry(counter: u64, entry: Entry, acknowledge: Acknowledge) -> Body {
    Body::Entries { entries: vec![Numbered { shard: 0, counter, entry, acknowledge }], reached: Vec::new() }
}

fn has_payload(body: &Body) -> bool {
    matches!(
        body,
        Body::Operate { .. }
            | Body::Payload { .. }
            | Body::Tagged { .. }
            | Body::Unversioned { .. }
            | Body::Forwarded { .. }
            | Body::Entries { .. }
    )
}

pub(crate) fn payloads(delivered: &[UnderWay]) -> u64 {
    delivered.iter().filter(|under_way| has_payload(&under_way.message.body)).count() as u64
}

pub(crate) fn majority() -> Config {
    Config { acknowledgement: Acknowledgement::Majority, ..config() }
}
