//! Processes over a network that delivers at once, but for what is cut.

use mainstay_group::effect::Effect;
use mainstay_group::event::Event;
use mainstay_group::explain::Explanation;
use mainstay_group::group::{Begin, Config, Group};
use mainstay_group::limits::{Limits, Timing};
use mainstay_group::message::{Message, Refusal};
use mainstay_group::record::Record;
use mainstay_types::id::{ClusterId, Incarnation, StoreId};
use mainstay_types::machine::Machine;
use mainstay_types::rules::Rules;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, Offer, View, ViewId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const BEAT: Duration = Duration::from_millis(100);

pub(crate) fn joiner(number: u8, life: u64) -> JoinerId {
    JoinerId {
        address: Address::v4([10, 0, 0, number], 7171),
        store: StoreId([number; 16]),
        life: Incarnation(life),
    }
}

/// Processes over a network that delivers at once, but for what is cut.
pub(crate) struct Rig {
    pub(crate) now: Time,
    pub(crate) groups: BTreeMap<u8, Group>,
    pub(crate) records: BTreeMap<u8, Record>,
    pub(crate) mail: VecDeque<(u8, Address, Message)>,
    /// Messages from the first to the second are lost.
    pub(crate) cut: BTreeSet<(u8, u8)>,
    pub(crate) expelled: Vec<(u8, Explanation)>,
    pub(crate) refused: Vec<(u8, Refusal)>,
    /// Whose regions fetch nothing for now.
    pub(crate) learning: BTreeSet<u8>,
    pub(crate) fetching: BTreeMap<u8, ViewId>,
    /// Whose regions nobody fills before it is let in, and who was asked to.
    pub(crate) unfilled: BTreeSet<u8>,
    pub(crate) shown: Vec<u8>,
    /// Who listens at another port than it did first.
    pub(crate) moved: BTreeSet<u8>,
    /// Cuts that are held back, while there is a place to hold them.
    pub(crate) late_cuts: Option<Vec<(u8, Event)>>,
    /// How many beats a write of whose disk takes.
    pub(crate) slow: BTreeMap<u8, u32>,
    /// What disks are writing, until when, and what comes after that: the last record alone.
    writing: BTreeMap<u8, (Time, u64, Record)>,
    waiting: BTreeMap<u8, (u64, Record)>,
    /// Whoever wants to say this falls silent with it.
    pub(crate) dies_with: Option<(u8, &'static str)>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self {
            now: Time(1_000_000_000),
            groups: BTreeMap::new(),
            records: BTreeMap::new(),
            mail: VecDeque::new(),
            cut: BTreeSet::new(),
            expelled: Vec::new(),
            refused: Vec::new(),
            learning: BTreeSet::new(),
            unfilled: BTreeSet::new(),
            shown: Vec::new(),
            moved: BTreeSet::new(),
            late_cuts: None,
            fetching: BTreeMap::new(),
            slow: BTreeMap::new(),
            writing: BTreeMap::new(),
            waiting: BTreeMap::new(),
            dies_with: None,
        }
    }

    /// A group of processes 1 to `count` with these weights.
    pub(crate) fn of(weights: &[u32]) -> Self {
        let mut rig = Self::new();
        for (number, &weight) in (1..).zip(weights) {
            let begin = (number == 1).then_some(Begin {
                cluster: ClusterId([9; 16]),
                arbitrated: false,
                cut: Vec::new(),
            });
            rig.start(number, 1, weight, begin);
            rig.run(20);
            assert!(rig.serves(number), "{number} is let in");
        }
        rig
    }

    pub(crate) fn start(&mut self, number: u8, life: u64, weight: u32, begin: Option<Begin>) {
        let config = Config {
            me: JoinerId { address: self.address(number), ..joiner(number, life) },
            offer: Offer { weight, ..Offer::server() },
            ask_at: vec![joiner(1, 1).address, joiner(2, 1).address],
            begin,
            limits: Limits::default(),
            timing: Timing::of_beat(BEAT),
            rules: Rules::KEPT,
        };
        let mut out = Vec::new();
        let record = self.records.get(&number).cloned();
        let group = Group::start(config, record, self.now, &mut out).expect("it starts");
        self.groups.insert(number, group);
        self.perform(number, out);
    }

    pub(crate) fn address(&self, number: u8) -> Address {
        Address { port: 7171 + u16::from(self.moved.contains(&number)), ..joiner(number, 1).address }
    }

    pub(crate) fn step(&mut self, number: u8, event: Event) {
        let mut out = Vec::new();
        if let Some(group) = self.groups.get_mut(&number) {
            group.step(self.now, event, &mut out);
        }
        self.perform(number, out);
    }

    pub(crate) fn perform(&mut self, number: u8, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Send { message, .. } if self.dies_with == Some((number, message.body.name())) => {
                    self.groups.remove(&number);
                    self.dies_with = None;
                    return;
                }
                Effect::Send { to, message } => self.mail.push_back((number, to, message)),
                Effect::Persist { ticket, record } => {
                    self.waiting.insert(number, (ticket, Record::parse(&record).expect("it reads back")));
                    self.write(number);
                }
                Effect::Wedge { view, request } => {
                    self.step(number, Event::Report { view, request, bytes: vec![number] });
                }
                Effect::Settle { view, ballot, reports } => {
                    let bytes = reports.into_iter().flat_map(|(_, report)| report).collect();
                    let cut = Event::Cut { view, ballot, bytes };
                    match &mut self.late_cuts {
                        Some(late) => late.push((number, cut)),
                        None => self.step(number, cut),
                    }
                }
                Effect::Fetch { view, .. } if self.learning.contains(&number) => {
                    self.fetching.insert(number, view.id);
                }
                Effect::Fetch { view, .. } => self.step(number, Event::Fetched { view: view.id }),
                Effect::Learn { .. } if self.unfilled.contains(&number) => self.shown.push(number),
                Effect::Learn { .. } => self.step(number, Event::Learned),
                Effect::Expelled { explanation } => self.expelled.push((number, explanation)),
                Effect::Refused { refusal } => self.refused.push((number, refusal)),
                Effect::Left => drop(self.groups.remove(&number)),
                Effect::Wake { .. } | Effect::Installed { .. } => {}
                Effect::AskArbiter { .. } | Effect::Stopped => panic!("not in these groups"),
            }
        }
    }

    /// The disk begins with what waits, unless it is at something.
    fn write(&mut self, number: u8) {
        if self.writing.contains_key(&number) {
            return;
        }
        let Some((ticket, record)) = self.waiting.remove(&number) else { return };
        match self.slow.get(&number) {
            Some(&beats) => {
                self.writing.insert(number, (self.now.after(BEAT * beats), ticket, record));
            }
            None => self.written(number, ticket, record),
        }
    }

    fn written(&mut self, number: u8, ticket: u64, record: Record) {
        self.records.insert(number, record);
        self.step(number, Event::Persisted { ticket });
        self.write(number);
    }

    /// A process ends, and what its disk was at comes to nothing.
    pub(crate) fn kill(&mut self, number: u8) {
        self.groups.remove(&number);
        self.writing.remove(&number);
        self.waiting.remove(&number);
    }

    /// Lets so many beats pass.
    pub(crate) fn run(&mut self, beats: u32) {
        for _ in 0..beats {
            self.now = self.now.after(BEAT);
            for number in self.writing.keys().copied().collect::<Vec<_>>() {
                if self.writing[&number].0 <= self.now
                    && let Some((_, ticket, record)) = self.writing.remove(&number)
                {
                    self.written(number, ticket, record);
                }
            }
            for number in self.groups.keys().copied().collect::<Vec<_>>() {
                self.step(number, Event::Tick);
            }
            while let Some((from, to, message)) = self.mail.pop_front() {
                let number = to.ip[15];
                if !self.cut.contains(&(from, number)) && to == self.address(number) {
                    self.step(number, Event::Arrived(message));
                }
            }
        }
    }

    /// The regions of a process have learned all.
    pub(crate) fn learned(&mut self, number: u8) {
        self.learning.remove(&number);
        if let Some(view) = self.fetching.remove(&number) {
            self.step(number, Event::Fetched { view });
        }
    }

    pub(crate) fn serves(&self, number: u8) -> bool {
        self.groups.get(&number).is_some_and(|group| group.serves(self.now))
    }

    pub(crate) fn split(&mut self, one: &[u8], other: &[u8]) {
        for &a in one {
            for &b in other {
                self.cut.extend([(a, b), (b, a)]);
            }
        }
    }

    pub(crate) fn view(&self, number: u8) -> &View {
        self.groups[&number].view().expect("it is a member")
    }

    pub(crate) fn names(&self, number: u8) -> Vec<u8> {
        self.view(number).members.iter().map(|member| member.joiner.address.ip[15]).collect()
    }
}
