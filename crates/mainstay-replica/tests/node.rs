//! One node alone: it founds a group, waits for its records, answers, and is found again.

use mainstay_region::effect::RecordNumber;
use mainstay_region::message::{Body, Message as RegionMessage};
use mainstay_region::operation::Operation;
use mainstay_region::patterns::Pattern;
use mainstay_replica::config::{Begin, Config, StartError, Stored};
use mainstay_replica::definition::{Definition, RegionId};
use mainstay_replica::effect::Effect;
use mainstay_replica::event::Event;
use mainstay_replica::replica::Replica;
use mainstay_types::id::{ClientId, ClusterId, Incarnation, Sequence, StoreId, ThreadId};
use mainstay_types::machine::Machine;
use mainstay_types::operation::OperationId;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, ViewId};

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
    let id = OperationId { client: ClientId(7), thread: ThreadId(1), sequence: Sequence(1) };
    let operation = Operation::Put { key: b"key".to_vec(), value: b"value".to_vec() };
    let body = Body::Operate { id, retry: false, pattern: Pattern::OneHop, operation };
    let shard = mainstay_region::operation::shard_of(b"key", 2);
    let message = RegionMessage { view: ViewId(1), shard, body };
    Event::Asked { client: ClientId(7), region: REGION, message }
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
    assert!(!out.iter().any(|effect| matches!(effect, Effect::Answer { .. })), "it is not safe yet");
    let (_, record) = keep(&mut stored, &out);
    out.clear();
    node.step(now, Event::Appended { region: REGION, record }, &mut out);
    let answered = |effect: &Effect| {
        matches!(effect, Effect::Answer { message: RegionMessage { body: Body::Acknowledged(done), .. }, .. }
            if done.stable)
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
