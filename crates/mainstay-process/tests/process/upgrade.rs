//! Another version of a handler over the same directory, and replays that are watched.

use crate::support::{Machine, Memo, World, config};
use mainstay_channel::limits::Limits as LinkLimits;
use mainstay_journal::journal::Journal;
use mainstay_journal::memory::HeapPages;
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::open;
use mainstay_journal::options::OpenOptions;
use mainstay_process::config::{Cluster, Config};
use mainstay_process::event::Event;
use mainstay_process::handler::{Answer, Context, Handler, RestoreError};
use mainstay_process::recover::RecoverError;
use mainstay_process::retrace::{Beginning, Executed, Recorded, Retrace, Retraced, Watcher, retrace};
use mainstay_recovery::policy::Policy;
use mainstay_types::id::{ClusterId, Lsn, NodeId, OutputId, StoreId};
use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

const STORE: StoreId = StoreId([9; 16]);

fn among_two(policy: Policy, version: u32) -> Config {
    let others = BTreeMap::from([(NodeId(2), policy)]);
    let cluster = Cluster { id: ClusterId([3; 16]), me: NodeId(1), others, links: LinkLimits::default() };
    Config { policy, version, cluster: Some(cluster), ..config() }
}

fn start(storage: MemoryStorage, config: Config) -> Result<World, RecoverError> {
    Machine::start(storage, config, Memo::default(), STORE, None)
}

/// The other node may remember deliveries that this journal never had: they are the old version's to replay.
#[test]
fn a_killed_version_whose_past_others_remember_is_not_replaced() {
    let old = start(MemoryStorage::default(), among_two(Policy::SenderBased, 1)).expect("it is new");
    let storage = old.killed();
    let refused = start(storage.clone(), among_two(Policy::SenderBased, 2)).map(drop);
    assert!(
        matches!(refused, Err(RecoverError::VersionKilled { recorded: 1, now: 2 })),
        "unexpected {refused:?}"
    );
    start(storage, among_two(Policy::SenderBased, 1)).expect("the old version goes on");
}

/// Else the next recovery would migrate the old state again, and the old version could be started over the new one's deliveries.
#[test]
fn a_new_version_is_durable_and_takes_a_checkpoint_at_once() {
    let mut old = World::new(config());
    old.say(1, "say a");
    old.settle();
    old.step(Event::Stop);
    old.settle();
    let new = Config { version: 2, ..config() };
    let mut world = World::open(old.killed(), new.clone(), Memo::default()).expect("it was sealed");
    world.settle();
    assert_eq!(world.process.stats().checkpoints, 1);
    world.say(2, "say b");
    world.settle();
    let storage = world.storage.crash_image(&mut |_| 0);
    let refused = World::open(storage.clone(), config(), Memo::default()).map(drop);
    assert!(
        matches!(refused, Err(RecoverError::VersionChanged { recorded: 2, now: 1, .. })),
        "unexpected {refused:?}"
    );
    World::open(storage, new, Memo::default()).expect("the new version goes on");
}

/// Does one of everything that a delivery can do.
#[derive(Debug, Default)]
struct Busy {
    asked: u64,
}

impl Handler for Busy {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        self.asked += 1;
        let request = context.request();
        context.send("once", format!("output {}", self.asked));
        context.set_timer(Duration::from_secs(5), 7);
        context.tell(NodeId(2), format!("message {}", self.asked));
        let answer = |text: &str| Answer { status: 200, body: text.as_bytes().to_vec() };
        if body == b"later" {
            context.answer(request, answer("late"));
            return None;
        }
        Some(answer("at once"))
    }

    fn query(&self, _: &[u8]) -> Answer {
        Answer { status: 200, body: Vec::new() }
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        into.write_all(&self.asked.to_le_bytes())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let bytes = bytes.try_into().map_err(|_| RestoreError { reason: "not 8 bytes".to_owned() })?;
        self.asked = u64::from_le_bytes(bytes);
        Ok(())
    }
}

/// Writes down what it is shown; stops before a delivery if told to.
#[derive(Default)]
struct Scribe {
    lines: Vec<String>,
    stop_before: Option<u64>,
}

impl Watcher for Scribe {
    fn begin(&mut self, beginning: &Beginning) {
        self.lines.push(format!("begin {:?}", beginning.checkpoint));
    }

    fn before(&mut self, recorded: &Recorded<'_>) -> ControlFlow<()> {
        if self.stop_before == Some(recorded.prefix.delivery.0) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn after(&mut self, recorded: &Recorded<'_>, executed: &Executed<'_>) -> ControlFlow<()> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut line = format!("{}:", recorded.prefix.delivery);
        line += &executed.answer.map(|answer| format!(" [{}]", text(&answer.body))).unwrap_or_default();
        for (id, port, body) in &executed.outputs {
            line += &format!(" {id}>{port}:{}", text(body));
        }
        for (due, token) in executed.timers {
            line += &format!(" {token}@{}", due.since(recorded.prefix.now).as_secs());
        }
        for (to, body) in &executed.messages {
            line += &format!(" {to}<{}", text(body));
        }
        for (request, answer) in &executed.late_answers {
            line += &format!(" {}={}", request.0, text(&answer.body));
        }
        line += &format!(" {:?}", executed.is_as_recorded(recorded));
        self.lines.push(line);
        ControlFlow::Continue(())
    }
}

fn watched(mut storage: MemoryStorage, config: Config, watcher: &mut Scribe) -> Retraced {
    let opened = open::open(&mut storage, &OpenOptions::default()).expect("the journal opens");
    let geometry = opened.resume.geometry();
    let journal = Journal::start(opened.resume, HeapPages::new(geometry.page_bytes, geometry.pages));
    retrace(Retrace {
        config,
        handler: Busy::default(),
        journal,
        report: &opened.report,
        storage: &mut storage,
        catalog: &opened.catalog,
        from: Lsn(u64::MAX),
        go_on: false,
        watcher,
    })
    .expect("it replays")
}

#[test]
fn a_watched_replay_shows_every_effect_and_stops_where_told() {
    let config = among_two(Policy::Deferred, 1);
    let mut world = Machine::start(MemoryStorage::default(), config.clone(), Busy::default(), STORE, None)
        .expect("it is new");
    for (token, body) in [(1, "now"), (2, "later"), (3, "now")] {
        world.say(token, body);
        world.settle();
    }
    let storage = world.killed();
    let mut scribe = Scribe::default();
    let retraced = watched(storage.clone(), config.clone(), &mut scribe);
    assert_eq!((retraced.recovery.replayed, retraced.stopped), (3, false));
    let shown = |delivery: u64, answer: &str, late: &str, same: &str| {
        // Outputs are numbered within the life that emitted them, the first one here.
        let output = OutputId((1 << 32) + delivery);
        format!(
            "d{delivery}:{answer} {output}>once:output {delivery} 7@5 {}<message {delivery}{late} {same}",
            NodeId(2)
        )
    };
    let expected = [
        "begin None".to_owned(),
        shown(1, " [at once]", "", "Some(true)"),
        shown(2, "", " d2=late", "Some(true)"),
        shown(3, " [at once]", "", "None"),
    ];
    assert_eq!(scribe.lines, expected);
    let mut scribe = Scribe { stop_before: Some(3), ..Scribe::default() };
    let retraced = watched(storage, config, &mut scribe);
    assert_eq!((retraced.recovery.replayed, retraced.stopped), (2, true));
    assert_eq!(scribe.lines, expected[..3]);
}
