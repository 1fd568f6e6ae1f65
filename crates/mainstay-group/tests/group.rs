//! Messages and records read back; and the peers' bugs that a group without them must not have, each by name.

use mainstay_group::ballot::{Ballot, Because, Departure, Promised, Proposal};
use mainstay_group::effect::Effect;
use mainstay_group::event::Event;
use mainstay_group::explain::Explanation;
use mainstay_group::group::{Begin, Config, Group, StartError};
use mainstay_group::limits::{Limits, Timing};
use mainstay_group::message::{Body, Message, MessageError, Refusal};
use mainstay_group::record::{Record, RecordError};
use mainstay_types::id::{ClusterId, Incarnation, StoreId};
use mainstay_types::machine::Machine;
use mainstay_types::rules::Rules;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, Member, MemberId, Offer, View, ViewId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const BEAT: Duration = Duration::from_millis(100);

fn joiner(number: u8, life: u64) -> JoinerId {
    JoinerId {
        address: Address::v4([10, 0, 0, number], 7171),
        store: StoreId([number; 16]),
        life: Incarnation(life),
    }
}

/// Processes over a network that delivers at once, but for what is cut.
struct Rig {
    now: Time,
    groups: BTreeMap<u8, Group>,
    records: BTreeMap<u8, Record>,
    mail: VecDeque<(u8, Address, Message)>,
    /// Messages from the first to the second are lost.
    cut: BTreeSet<(u8, u8)>,
    expelled: Vec<(u8, Explanation)>,
    refused: Vec<(u8, Refusal)>,
    /// Whose regions fetch nothing for now.
    learning: BTreeSet<u8>,
    fetching: BTreeMap<u8, ViewId>,
    /// Whoever wants to say this falls silent with it.
    dies_with: Option<(u8, &'static str)>,
}

impl Rig {
    fn new() -> Self {
        Self {
            now: Time(1_000_000_000),
            groups: BTreeMap::new(),
            records: BTreeMap::new(),
            mail: VecDeque::new(),
            cut: BTreeSet::new(),
            expelled: Vec::new(),
            refused: Vec::new(),
            learning: BTreeSet::new(),
            fetching: BTreeMap::new(),
            dies_with: None,
        }
    }

    /// A group of processes 1 to `count` with these weights.
    fn of(weights: &[u32]) -> Self {
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

    fn start(&mut self, number: u8, life: u64, weight: u32, begin: Option<Begin>) {
        let config = Config {
            me: joiner(number, life),
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

    fn step(&mut self, number: u8, event: Event) {
        let mut out = Vec::new();
        if let Some(group) = self.groups.get_mut(&number) {
            group.step(self.now, event, &mut out);
        }
        self.perform(number, out);
    }

    fn perform(&mut self, number: u8, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Send { message, .. } if self.dies_with == Some((number, message.body.name())) => {
                    self.groups.remove(&number);
                    self.dies_with = None;
                    return;
                }
                Effect::Send { to, message } => self.mail.push_back((number, to, message)),
                Effect::Persist { ticket, record } => {
                    self.records.insert(number, Record::parse(&record).expect("it reads back"));
                    self.step(number, Event::Persisted { ticket });
                }
                Effect::Wedge { view, request } => {
                    self.step(number, Event::Report { view, request, bytes: vec![number] });
                }
                Effect::Settle { view, ballot, reports } => {
                    let bytes = reports.into_iter().flat_map(|(_, report)| report).collect();
                    self.step(number, Event::Cut { view, ballot, bytes });
                }
                Effect::Fetch { view, .. } if self.learning.contains(&number) => {
                    self.fetching.insert(number, view.id);
                }
                Effect::Fetch { view, .. } => self.step(number, Event::Fetched { view: view.id }),
                Effect::Expelled { explanation } => self.expelled.push((number, explanation)),
                Effect::Refused { refusal } => self.refused.push((number, refusal)),
                Effect::Left => drop(self.groups.remove(&number)),
                Effect::Wake { .. } | Effect::Installed { .. } => {}
                Effect::AskArbiter { .. } | Effect::Stopped => panic!("not in these groups"),
            }
        }
    }

    /// Lets so many beats pass.
    fn run(&mut self, beats: u32) {
        for _ in 0..beats {
            self.now = self.now.after(BEAT);
            for number in self.groups.keys().copied().collect::<Vec<_>>() {
                self.step(number, Event::Tick);
            }
            while let Some((from, to, message)) = self.mail.pop_front() {
                let number = to.ip[15];
                if !self.cut.contains(&(from, number)) {
                    self.step(number, Event::Arrived(message));
                }
            }
        }
    }

    /// The regions of a process have learned all.
    fn learned(&mut self, number: u8) {
        self.learning.remove(&number);
        if let Some(view) = self.fetching.remove(&number) {
            self.step(number, Event::Fetched { view });
        }
    }

    fn serves(&self, number: u8) -> bool {
        self.groups.get(&number).is_some_and(|group| group.serves(self.now))
    }

    fn split(&mut self, one: &[u8], other: &[u8]) {
        for &a in one {
            for &b in other {
                self.cut.extend([(a, b), (b, a)]);
            }
        }
    }

    fn view(&self, number: u8) -> &View {
        self.groups[&number].view().expect("it is a member")
    }

    fn names(&self, number: u8) -> Vec<u8> {
        self.view(number).members.iter().map(|member| member.joiner.address.ip[15]).collect()
    }
}

/// GEODE-9822: an even cluster split both ways, and with 49 % on two sides both went on.
#[test]
fn of_two_sides_with_49_per_cent_neither_goes_on() {
    let mut rig = Rig::of(&[49, 2, 49]);
    rig.split(&[1], &[2, 3]);
    rig.split(&[2], &[3]);
    rig.run(60);
    assert_eq!([1, 2, 3].map(|number| rig.serves(number)), [false; 3]);
    let explained = rig.groups[&1].explain(rig.now);
    assert_eq!(explained, Explanation::CutOff { view: rig.view(1).id, heard: 49, votes: 100 });
    rig.cut.clear();
    rig.run(60);
    assert_eq!([1, 2, 3].map(|number| rig.serves(number)), [true; 3]);
}

/// Corosync 182: the majority acted before the minority noticed. The losing side stops first, is told why, and comes back by itself.
#[test]
fn the_losing_side_stops_first_and_comes_back_by_itself() {
    let mut rig = Rig::of(&[1, 1, 1]);
    let old = rig.view(3).id;
    rig.split(&[3], &[1, 2]);
    while rig.view(1).id == old {
        rig.run(1);
        let both = rig.serves(3) && rig.view(1).id > old && rig.serves(1);
        assert!(!both, "two views are served");
    }
    assert!(!rig.serves(3));
    rig.run(3);
    assert_eq!((rig.names(1), rig.serves(1)), (vec![1, 2], true));
    rig.cut.clear();
    rig.run(60);
    let [(3, Explanation::Outside { departure: Some(departure), .. })] = rig.expelled[..] else {
        panic!("{:?}", rig.expelled);
    };
    assert_eq!(departure.because, Because::Silent { votes: 2 });
    assert_eq!((rig.names(1), rig.serves(3)), (vec![1, 2, 3], true));
    assert!(rig.view(3).members[2].born > old, "it is another member now");
}

/// Derecho 126: the coordinator dies between ACCEPT and INSTALL; the next one must go on with what was accepted.
#[test]
fn who_takes_over_goes_on_with_what_its_predecessor_proposed() {
    let mut rig = Rig::of(&[1, 1, 1, 1, 1]);
    let old = rig.view(2).id;
    rig.groups.remove(&5);
    rig.dies_with = Some((1, "Install"));
    rig.run(80);
    assert!(!rig.groups.contains_key(&1), "the coordinator died with the view decided");
    // The view that 1 had proposed, without 5 and with itself, came first; only the one after it is without 1.
    assert_eq!(rig.view(2).id, old.next().next());
    let departures = &rig.groups[&2].record().installed.as_ref().expect("it knows a view").departures;
    assert_eq!(departures.iter().map(|gone| gone.member.address.ip[15]).collect::<Vec<_>>(), [1]);
    assert_eq!(rig.names(2), [2, 3, 4]);
    assert!([2, 3, 4].iter().all(|&number| rig.serves(number)));
}

/// Corosync PR 828: a node joins and dies in the same round, and stays as a ghost that everybody waits for.
#[test]
fn who_joins_and_dies_at_once_is_out_again() {
    let mut rig = Rig::of(&[1, 1, 1]);
    rig.start(4, 1, 1, None);
    rig.dies_with = Some((4, "Beat"));
    rig.run(5);
    assert!(!rig.groups.contains_key(&4));
    rig.run(60);
    assert_eq!((rig.names(1), rig.serves(1)), (vec![1, 2, 3], true));
}

/// foca 31, chitchat 94: after a restart on the same address the old incarnation lives on beside the new one.
#[test]
fn a_restart_on_the_same_address_leaves_one_member_with_a_new_name() {
    let mut rig = Rig::of(&[1, 1, 1]);
    let before: MemberId = rig.groups[&2].member_id().expect("it is a member");
    for life in 2..6 {
        rig.groups.remove(&2);
        rig.start(2, life, 1, None);
        rig.run(40);
    }
    let after = rig.groups[&2].member_id().expect("it is a member again");
    assert_eq!(after.address, before.address);
    assert!(after.born > before.born);
    assert_eq!(rig.view(1).members.iter().filter(|member| member.joiner.address == after.address).count(), 1);
    assert_eq!(rig.view(1).members.len(), 3);
}

/// A total restart goes on only with a majority of the stores of the last view, and its numbers never begin again.
#[test]
fn a_total_restart_needs_a_majority_and_goes_on_counting() {
    let mut rig = Rig::of(&[1, 1, 1]);
    let (last, name) = (rig.view(1).id, rig.groups[&1].member_id().expect("it is a member"));
    rig.groups.clear();
    rig.start(1, 2, 1, None);
    rig.run(100);
    assert!(!rig.serves(1) && rig.groups[&1].view().is_none(), "one of three is no majority");
    rig.start(2, 2, 1, None);
    rig.run(60);
    assert!(rig.serves(1) && rig.serves(2));
    assert!(rig.view(1).id > last && rig.groups[&1].member_id() > Some(name));
    rig.start(3, 2, 1, None);
    rig.run(60);
    assert!([1, 2, 3].iter().all(|&number| rig.serves(number)));
}

/// A link that is cut in one direction, between two members only, changes no view.
#[test]
fn a_cut_that_only_one_member_sees_changes_nothing() {
    let mut rig = Rig::of(&[1, 1, 1, 1]);
    let view = rig.view(1).id;
    rig.cut.insert((4, 1));
    rig.run(100);
    assert_eq!(rig.view(1).id, view);
    assert!([1, 2, 3, 4].iter().all(|&number| rig.serves(number)));
}

/// GEODE-6724: a second group that was begun by mistake never mixes with the first; who asks is told what to do.
#[test]
fn two_groups_never_mix() {
    let mut rig = Rig::of(&[1, 1]);
    rig.start(5, 1, 1, Some(Begin { cluster: ClusterId([8; 16]), arbitrated: false, cut: Vec::new() }));
    rig.run(10);
    assert!(rig.serves(5));
    rig.groups.remove(&5);
    rig.start(5, 2, 1, None);
    rig.run(30);
    assert!(rig.serves(5), "its own group goes on");
    assert_eq!(rig.names(1), [1, 2]);
    let told = Refusal::OtherCluster { ours: ClusterId([9; 16]), theirs: ClusterId([8; 16]) };
    assert_eq!(rig.refused, [(5, told)]);
    let mut config_again = Vec::new();
    let again = Config {
        me: joiner(5, 3),
        offer: Offer::server(),
        ask_at: Vec::new(),
        begin: Some(Begin { cluster: ClusterId([7; 16]), arbitrated: false, cut: Vec::new() }),
        limits: Limits::default(),
        timing: Timing::default(),
        rules: Rules::KEPT,
    };
    let refused = Group::start(again, rig.records.remove(&5), rig.now, &mut config_again);
    assert_eq!(refused.err(), Some(StartError::InGroup { cluster: ClusterId([8; 16]) }));
}

/// A region that still learns has nothing to report: its member promises all the same, and the others go on.
#[test]
fn a_member_without_the_data_promises_without_a_report() {
    let mut rig = Rig::of(&[1, 1]);
    rig.learning.insert(3);
    rig.start(3, 1, 1, None);
    rig.run(20);
    rig.groups.remove(&2);
    rig.run(40);
    assert_eq!(rig.names(1), [1, 3], "the view without 2 needed the promise of 3");
    let installed = rig.groups[&1].record().installed.clone().expect("it knows a view");
    assert_eq!((installed.cut, installed.base.next()), (vec![1], installed.view.id));
    rig.learned(3);
    rig.run(5);
    assert!(rig.serves(1) && rig.serves(3));
}

/// Acknowledged writes lost by a view that shrinks, serves, grows and then loses its servers: those who are left have a majority of the
/// view, and one of an earlier view whose data they have, and none of what was done between the two.
#[test]
fn who_missed_a_view_that_served_does_not_go_on_without_it() {
    let shrink_at = (1..30).find(|&beats| {
        let mut rig = Rig::of(&[1, 1, 1]);
        rig.groups.remove(&3);
        rig.run(beats + 1);
        rig.names(1) == [1, 2]
    });
    let mut rig = Rig::of(&[1, 1, 1]);
    rig.groups.remove(&3);
    rig.run(shrink_at.expect("3 is left out"));
    rig.step(2, Event::Leave);
    rig.run(2);
    assert_eq!((rig.names(1), rig.serves(1)), (vec![1], true), "1 serves alone");
    rig.learning.extend([2, 3]);
    rig.start(2, 2, 1, None);
    rig.start(3, 2, 1, None);
    rig.run(6);
    assert_eq!(rig.names(1).len(), 3, "both are in and have fetched nothing");
    let grown = rig.view(1).id;
    rig.groups.remove(&1);
    rig.run(100);
    assert!(
        [2, 3].iter().all(|number| rig.groups[number].record().view_id() == grown && !rig.serves(*number))
    );
    rig.start(1, 2, 1, None);
    rig.learned(2);
    rig.learned(3);
    rig.run(60);
    assert!([1, 2, 3].iter().all(|&number| rig.serves(number)));
}

#[test]
fn who_leaves_is_out_of_the_next_view() {
    let mut rig = Rig::of(&[1, 1, 1]);
    rig.step(1, Event::Leave);
    rig.run(20);
    assert!(!rig.groups.contains_key(&1), "the coordinator itself left");
    rig.step(3, Event::Leave);
    rig.run(20);
    assert_eq!((rig.names(2), rig.serves(2)), (vec![2], true));
}

fn proposal() -> Proposal {
    let members = (1..=3)
        .map(|number| Member {
            born: ViewId(u64::from(number)),
            joiner: joiner(number, 1),
            offer: Offer { roles: vec!["stock".to_owned()], ..Offer::server() },
        })
        .collect();
    let departure = Departure {
        member: MemberId { address: joiner(4, 1).address, born: ViewId(1) },
        store: StoreId([4; 16]),
        because: Because::Silent { votes: 2 },
        view: ViewId(4),
    };
    Proposal {
        view: View { id: ViewId(4), arbitrated: false, members },
        base: ViewId(3),
        cut: b"cut".to_vec(),
        departures: vec![departure],
    }
}

fn bodies() -> Vec<Body> {
    let ballot = Ballot { round: 7, proposer: StoreId([2; 16]) };
    let member = MemberId { address: joiner(2, 1).address, born: ViewId(3) };
    let promised = Promised {
        accepted: Some((ballot, proposal())),
        report: b"report".to_vec(),
        grants: vec![(member, 5)],
        ready: ViewId(3),
    };
    vec![
        Body::Beat { sent: 1, echo: 2 },
        Body::Verify { suspect: member },
        Body::Verified { suspect: member, silent: true },
        Body::Leave,
        Body::Join { offer: Offer::server(), votes: true },
        Body::Located { coordinator: joiner(1, 1).address },
        Body::Prepare { ballot },
        Body::Promise { ballot, promised: Box::new(promised) },
        Body::Rejected { promised: ballot },
        Body::Accept { ballot, proposal: proposal() },
        Body::Accepted { ballot },
        Body::Install { proposal: proposal() },
        Body::Shunned { departure: proposal().departures.first().copied() },
        Body::Refused {
            refusal: Refusal::OtherCluster { ours: ClusterId([1; 16]), theirs: ClusterId([2; 16]) },
        },
        Body::Refused { refusal: Refusal::Full { members: 3 } },
        Body::Refused { refusal: Refusal::Busy { joiners: 3 } },
    ]
}

#[test]
fn messages_read_back_and_no_part_of_one_is_taken_for_one() {
    for body in bodies() {
        let message =
            Message { cluster: Some(ClusterId([9; 16])), view: ViewId(3), from: joiner(1, 2), body };
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        assert_eq!(Message::parse(&bytes), Ok(message.clone()));
        for end in 0..bytes.len() {
            assert!(Message::parse(&bytes[..end]).is_err(), "{} cut at {end}", message.body.name());
        }
        bytes.push(0);
        assert!(Message::parse(&bytes).is_err());
        bytes[0] += 1;
        assert_eq!(Message::parse(&bytes), Err(MessageError::Protocol { found: 2 }));
    }
}

#[test]
fn a_record_reads_back_and_a_damaged_one_is_refused_by_name() {
    let record = Record {
        cluster: Some(ClusterId([9; 16])),
        store: StoreId([1; 16]),
        installed: Some(proposal()),
        promised: Ballot { round: 3, proposer: StoreId([2; 16]) },
        accepted: Some((Ballot { round: 2, proposer: StoreId([1; 16]) }, proposal())),
        ready: ViewId(3),
    };
    let mut bytes = Vec::new();
    record.put(&mut bytes);
    assert_eq!(Record::parse(&bytes), Ok(record));
    for end in 1..bytes.len() {
        assert!(matches!(Record::parse(&bytes[..end]), Err(RecordError::Damaged(_))), "cut at {end}");
    }
    bytes[0] = 9;
    assert_eq!(Record::parse(&bytes), Err(RecordError::Version { found: 9 }));
}
