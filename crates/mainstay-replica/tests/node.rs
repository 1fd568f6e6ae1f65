//! One node alone founds a group, waits for its records, answers, and is found again; one that joins counts when it has learned.

use mainstay_group::roles::{LossAction, Requirement};
use mainstay_region::effect::RecordNumber;
use mainstay_region::message::{Body, Freshness, Message as RegionMessage, Query, Refusal};
use mainstay_region::operation::Operation;
use mainstay_region::patterns::Pattern;
use mainstay_replica::config::{Begin, Config, StartError, Stored};
use mainstay_replica::definition::{Definition, RegionId};
use mainstay_replica::effect::Effect;
use mainstay_replica::event::Event;
use mainstay_replica::message::Message;
use mainstay_replica::redefining::RedefineError;
use mainstay_replica::replica::Replica;
use mainstay_types::id::{ClientId, ClusterId, Incarnation, Sequence, StoreId, ThreadId};
use mainstay_types::machine::Machine;
use mainstay_types::operation::OperationId;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, ViewId};
use std::collections::VecDeque;
use std::time::Duration;

const REGION: RegionId = RegionId(1);

fn config(life: u64, begins: bool) -> Config {
    let me = JoinerId {
        address: Address::v4([10, 0, 0, 1], 7171),
        store: StoreId([1; 16]),
        life: Incarnation(life),
    };
    let regions = vec![Definition { shards: 2, ..Definition::named("orders") }];
    let begin = Begin { cluster: ClusterId([9; 16]), arbitrated: false, regions };
    Config::of(me, Vec::new(), begins.then_some(begin))
}

fn put() -> Event {
    put_in(ViewId(1))
}

fn put_in(view: ViewId) -> Event {
    let operation = Operation::Put { key: b"key".into(), value: b"value".into() };
    asked(view, b"key", operate(operation))
}

fn operate(operation: Operation) -> Body {
    let id = OperationId { client: ClientId(7), thread: ThreadId(1), sequence: Sequence(1) };
    Body::Operate { id, retry: false, pattern: Pattern::OneHop, operation }
}

fn asked(view: ViewId, key: &[u8], body: Body) -> Event {
    let shard = mainstay_region::operation::shard_of(key, 2);
    Event::Asked { client: ClientId(7), region: REGION, message: RegionMessage { view, shard, body } }
}

/// Takes what is to be kept out of the effects.
fn keep(stored: &mut Stored, effects: &[Effect]) -> (Vec<u64>, RecordNumber) {
    let (mut tickets, mut last) = (Vec::new(), RecordNumber(0));
    for effect in effects {
        match effect {
            Effect::PersistRecord { ticket, bytes } => {
                stored.record = Some(bytes.clone());
                tickets.push(*ticket);
            }
            Effect::Append { region, record, bytes } => {
                stored.records.push((*region, bytes.clone()));
                last = *record;
            }
            _ => {}
        }
    }
    (tickets, last)
}

#[test]
fn a_founder_serves_when_all_is_safe_and_answers_when_the_write_is() {
    let (now, mut stored, mut out) = (Time(1_000_000), Stored::default(), Vec::new());
    let mut node = Replica::start(config(1, true), Stored::default(), now, &mut out).expect("it can begin");
    let (tickets, record) = keep(&mut stored, &out);
    assert_eq!(tickets, [0_u64; 0], "the group's record waits for the region's");
    out.clear();
    node.step(now, Event::Appended { region: REGION, record }, &mut out);
    let (tickets, _) = keep(&mut stored, &out);
    assert!(!node.serves(now));
    out.clear();
    node.step(now, Event::Persisted { ticket: tickets[0] }, &mut out);
    assert!(node.serves(now) && out.iter().any(|effect| matches!(effect, Effect::Serving { .. })));
    out.clear();
    node.step(now, put(), &mut out);
    node.step(now, Event::Drained, &mut out);
    assert!(!out.iter().any(|effect| matches!(effect, Effect::Answer { .. })), "it is not safe yet");
    let (_, record) = keep(&mut stored, &out);
    out.clear();
    node.step(now, Event::Appended { region: REGION, record }, &mut out);
    node.step(now, Event::Drained, &mut out);
    let answered = |effect: &Effect| {
        matches!(effect, Effect::Answer { message: RegionMessage { body: Body::Acknowledged(done), .. }, .. }
            if done[0].stable)
    };
    assert!(out.iter().any(answered), "{out:?}");

    let again = Replica::start(config(2, false), stored.clone(), now, &mut Vec::new()).expect("it is found");
    assert_eq!(again.named("orders"), Some(REGION));
    assert!(!again.serves(now), "another life is not the member that the view names");
    let lost = Stored { records: Vec::new(), ..stored.clone() };
    let refused = Replica::start(config(2, false), lost, now, &mut Vec::new()).map(|_| ());
    assert_eq!(refused, Err(StartError::Behind { region: REGION, standing: ViewId::NONE, ready: ViewId(1) }));
    let lost = Stored { record: None, ..stored };
    let refused = Replica::start(config(2, false), lost, now, &mut Vec::new()).map(|_| ());
    assert_eq!(refused, Err(StartError::RecordLost));
}

/// Nodes whose disks are quick, over a network that delivers at once but for what is lost.
struct Net {
    now: Time,
    nodes: Vec<Replica>,
    mail: VecDeque<(Address, Message)>,
    /// Messages between copies arrive.
    filled: bool,
    answered: Vec<Body>,
    /// What came of patterns that were asked for.
    redefined: Vec<Result<ViewId, RedefineError>>,
    /// What the first node's disk keeps.
    stored: Stored,
}

impl Net {
    fn new() -> Self {
        Self {
            now: Time(1_000_000_000),
            nodes: Vec::new(),
            mail: VecDeque::new(),
            filled: true,
            answered: Vec::new(),
            redefined: Vec::new(),
            stored: Stored::default(),
        }
    }

    fn start(&mut self, number: u8, begin: Option<Begin>, roles: &[&str]) {
        let address = |number| Address::v4([10, 0, 0, number], 7171);
        let me = JoinerId { address: address(number), store: StoreId([number; 16]), life: Incarnation(1) };
        let mut out = Vec::new();
        let mut config = Config::of(me, vec![address(1)], begin);
        config.offer.roles = roles.iter().map(|&role| role.to_owned()).collect();
        config.own_keys = Some(b"own/");
        let node = Replica::start(config, Stored::default(), self.now, &mut out).expect("it starts");
        self.nodes.push(node);
        self.perform(self.nodes.len() - 1, out);
    }

    fn step(&mut self, at: usize, event: Event) {
        for event in [event, Event::Drained] {
            let mut out = Vec::new();
            self.nodes[at].step(self.now, event, &mut out);
            self.perform(at, out);
        }
    }

    fn perform(&mut self, at: usize, out: Vec<Effect>) {
        if at == 0 {
            keep(&mut self.stored, &out);
        }
        for effect in out {
            match effect {
                Effect::Send { message: Message::Region { .. }, .. } if !self.filled => {}
                Effect::Send { to, message } => self.mail.push_back((to, message)),
                Effect::PersistRecord { ticket, .. } => self.step(at, Event::Persisted { ticket }),
                Effect::Append { region, record, .. } => self.step(at, Event::Appended { region, record }),
                Effect::Answer { message, .. } => self.answered.push(message.body),
                Effect::Redefined { view, .. } => self.redefined.push(Ok(view)),
                Effect::NotRedefined { error, .. } => self.redefined.push(Err(error)),
                _ => {}
            }
        }
    }

    fn pass(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.now = self.now.after(Duration::from_millis(5));
            (0..self.nodes.len()).for_each(|at| self.step(at, Event::Tick));
            while let Some((to, message)) = self.mail.pop_front() {
                let at = usize::from(to.ip[15]) - 1;
                if at < self.nodes.len() {
                    self.step(at, Event::Arrived(message));
                }
            }
        }
    }

    fn patterns(&self) -> Vec<Pattern> {
        let patterns = self.nodes.iter().flat_map(Replica::regions);
        patterns.map(|(_, definition, _)| definition.pattern).collect()
    }

    fn members(&self) -> usize {
        self.nodes[0].view().map_or(0, |view| view.members.len())
    }

    fn has_key(&self, at: usize) -> bool {
        self.nodes[at]
            .regions()
            .any(|(_, _, region)| (0..2).any(|shard| region.state(shard).value(b"key").is_some()))
    }
}

/// A region that all must acknowledge stood still from the moment in which a node was let in until it had learned the region.
#[test]
fn a_node_that_joins_counts_when_it_has_learned() {
    let regions = vec![Definition { shards: 2, acknowledged_by_all: true, ..Definition::named("orders") }];
    let begin = Begin { cluster: ClusterId([9; 16]), arbitrated: false, regions };
    let mut net = Net { filled: false, ..Net::new() };
    net.start(1, Some(begin), &[]);
    net.pass(10);
    net.start(2, None, &[]);
    net.pass(400);
    assert_eq!(net.members(), 1, "it has not learned");
    net.step(0, put());
    net.pass(1);
    let done = |body: &Body| matches!(body, Body::Acknowledged(done) if done[0].stable);
    assert!(net.answered.iter().any(done), "nobody waits for it: {:?}", net.answered);
    net.filled = true;
    let mut ticks = 0;
    while net.members() == 1 {
        net.pass(1);
        ticks += 1;
        assert!(ticks < 2000, "it is let in");
    }
    assert!(net.has_key(1), "it was filled outside");
    net.pass(100);
    assert!(net.nodes.iter().all(|node| node.serves(net.now)));
}

/// What is refused is refused by the view, whatever side of it changes; what nodes count for themselves is not.
#[test]
fn a_write_is_done_in_a_view_that_offers_the_role_or_not_at_all() {
    let requirement = Requirement { roles: vec!["stock".to_owned()], loss: LossAction::ReadOnly };
    let regions = vec![Definition { shards: 2, requirement, ..Definition::named("orders") }];
    let mut net = Net::new();
    net.start(1, Some(Begin { cluster: ClusterId([9; 16]), arbitrated: false, regions }), &["prices"]);
    net.pass(10);
    let told = |net: &mut Net, event: Event| {
        net.answered.clear();
        net.step(0, event);
        net.pass(8);
        std::mem::take(&mut net.answered)
    };
    let done = |body: &Body| matches!(body, Body::Acknowledged(done) if done[0].stable);
    let refused = |body: &Body| matches!(body, Body::Refused { refusal: Refusal::RoleMissing, .. });
    let said = told(&mut net, put());
    assert!(said.iter().all(refused) && said.len() == 1, "{said:?}");
    let query = Query::Get { key: b"key".to_vec() };
    let read = Body::Read { request: 1, query, freshness: Freshness::Linearizable };
    let said = told(&mut net, asked(ViewId(1), b"key", read));
    assert!(
        matches!(&said[..], [Body::Answer { found: Ok(found), .. }] if found.entries.is_empty()),
        "{said:?}"
    );
    let count =
        Operation::CompareAndSet { key: b"own/count".into(), expected: None, value: Some(b"1".into()) };
    assert!(told(&mut net, asked(ViewId(1), b"own/count", operate(count))).iter().any(done));

    net.start(2, None, &["stock"]);
    let mut ticks = 0;
    while net.members() == 1 || !net.nodes.iter().all(|node| node.serves(net.now)) {
        net.pass(1);
        ticks += 1;
        assert!(ticks < 2000, "it is let in");
    }
    let view = net.nodes[0].view().expect("it is a member").id;
    assert_eq!(net.nodes[0].restriction(REGION), None);
    let id = OperationId { client: ClientId(8), thread: ThreadId(1), sequence: Sequence(1) };
    let operation = Operation::Put { key: b"key".into(), value: b"value".into() };
    let body = Body::Operate { id, retry: false, pattern: Pattern::OneHop, operation };
    assert!(told(&mut net, asked(view, b"key", body)).iter().any(done));
}

#[test]
fn a_pattern_changes_with_a_view_at_all_members_and_is_found_again() {
    let regions = vec![Definition { shards: 2, ..Definition::named("orders") }];
    let mut net = Net::new();
    net.start(1, Some(Begin { cluster: ClusterId([9; 16]), arbitrated: false, regions }), &[]);
    net.pass(10);
    (2..=3).for_each(|number| net.start(number, None, &[]));
    net.pass(600);
    assert!(net.members() == 3 && net.nodes.iter().all(|node| node.serves(net.now)));
    let before = net.nodes[0].view().expect("it is in one").id;
    net.step(0, put_in(before));

    // The youngest is asked: it does not coordinate.
    net.step(2, Event::Redefine { region: REGION, pattern: Pattern::Tagged });
    assert_eq!(net.patterns(), [Pattern::OneHop; 3], "nothing changes before a view says so");
    net.pass(200);
    assert_eq!(net.redefined, [Ok(before.next())]);
    assert_eq!(net.patterns(), [Pattern::Tagged; 3]);
    assert!(net.nodes.iter().all(|node| node.serves(net.now)) && net.members() == 3);
    assert!((0..3).all(|at| net.has_key(at)), "what was under way is settled");

    // What it is already needs no view; the pattern without versions is none that a region can be given.
    net.step(1, Event::Redefine { region: REGION, pattern: Pattern::Tagged });
    net.step(1, Event::Redefine { region: REGION, pattern: Pattern::Unversioned });
    net.step(1, Event::Redefine { region: RegionId(9), pattern: Pattern::Chain });
    let refused = [Err(RedefineError::Versions), Err(RedefineError::NoRegion { region: RegionId(9) })];
    assert_eq!(net.redefined[1..], [&[Ok(before.next())], &refused[..]].concat());

    let again = Replica::start(config(2, false), net.stored.clone(), net.now, &mut Vec::new());
    let again = again.expect("it is found");
    assert_eq!(
        again.regions().map(|(_, definition, _)| definition.pattern).collect::<Vec<_>>(),
        [Pattern::Tagged]
    );
    assert!(!again.serves(net.now));
}

#[test]
fn of_two_patterns_asked_for_at_once_each_gets_its_view() {
    let regions = vec![Definition { shards: 2, ..Definition::named("orders") }];
    let mut net = Net::new();
    net.start(1, Some(Begin { cluster: ClusterId([9; 16]), arbitrated: false, regions }), &[]);
    net.pass(10);
    (2..=3).for_each(|number| net.start(number, None, &[]));
    net.pass(600);
    net.step(1, Event::Redefine { region: REGION, pattern: Pattern::Chain });
    net.step(2, Event::Redefine { region: REGION, pattern: Pattern::OneHopClient });
    net.step(2, Event::Redefine { region: REGION, pattern: Pattern::Tagged });
    assert_eq!(net.redefined, [Err(RedefineError::NotServing)], "it proposes already");
    net.pass(600);
    let mut views: Vec<ViewId> =
        net.redefined[1..].iter().map(|ended| ended.expect("both are in effect")).collect();
    views.dedup();
    assert_eq!(views.len(), 2, "{views:?}");
    let patterns = net.patterns();
    assert!(patterns.iter().all(|&pattern| pattern == patterns[0]), "{patterns:?}");
}

#[test]
fn who_asks_for_the_pattern_that_is_being_agreed_on_waits_for_the_same_view() {
    let regions = vec![Definition { shards: 2, ..Definition::named("orders") }];
    let mut net = Net::new();
    net.start(1, Some(Begin { cluster: ClusterId([9; 16]), arbitrated: false, regions }), &[]);
    net.pass(10);
    (2..=3).for_each(|number| net.start(number, None, &[]));
    net.pass(600);
    let before = net.nodes[0].view().expect("it is in one").id;
    net.step(2, Event::Redefine { region: REGION, pattern: Pattern::Tagged });
    assert!(!net.nodes[2].serves(net.now), "it proposes");
    net.step(2, Event::Redefine { region: REGION, pattern: Pattern::Tagged });
    assert_eq!(net.redefined, [], "nobody is told that nothing was done");
    net.pass(200);
    assert_eq!(net.redefined, [Ok(before.next())], "which answers all who wait");
    assert_eq!(net.patterns(), [Pattern::Tagged; 3]);
}
