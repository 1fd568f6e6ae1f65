//! After a crash the same history gives the same state; what does not is refused with the place and the reason.

use crate::support::{Memo, World, config, key};
use mainstay_journal::storage::Storage;
use mainstay_process::checkpoint;
use mainstay_process::config::{Config, Limits};
use mainstay_process::effect::Effect;
use mainstay_process::effect::Reply;
use mainstay_process::event::{Event, Identity, ReplyToken};
use mainstay_process::recover::RecoverError;
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use mainstay_types::time::Time;

fn client(client: ClientId, sequence: u64) -> Identity {
    Identity::Client { client, thread: ThreadId(0), sequence: Sequence(sequence) }
}

#[test]
fn what_was_acknowledged_is_there_and_what_was_not_may_be_gone() {
    let mut world = World::new(config());
    world.request(1, key("k"), "a");
    world.say(2, "random");
    world.settle();
    let (random, _) = world.answer(2);
    world.say(3, "lost");
    let mut world = world.crash(config()).expect("it recovers");
    assert_eq!(world.process.handler().lines, ["a", random.split_once(':').expect("n:line").1]);
    assert_eq!(world.recovery.replayed, 2);
    world.request(4, key("k"), "a");
    world.settle();
    assert_eq!(world.answer(4), ("1:a".to_owned(), true));
}

#[test]
fn client_numbers_and_floors_survive() {
    let mut world = World::new(config());
    world.step(Event::Register { token: ReplyToken(1) });
    world.settle();
    let Some(Reply::Registered { client: number }) = world.reply(1) else { panic!("a number was asked for") };
    world.request(2, client(number, 1), "a");
    world.request(3, client(number, 2), "b");
    world.settle();
    let mut world = world.crash(config()).expect("it recovers");
    world.request(4, client(number, 1), "a");
    world.request(5, client(number, 2), "b");
    world.request(6, client(ClientId(99), 1), "x");
    world.step(Event::Register { token: ReplyToken(7) });
    world.settle();
    assert_eq!(world.reply(4), Some(Reply::Evicted));
    assert_eq!(world.answer(5), ("2:b".to_owned(), true));
    assert_eq!(world.reply(6), Some(Reply::Evicted));
    let Some(Reply::Registered { client: next }) = world.reply(7) else { panic!("a number was asked for") };
    assert!(next > number, "numbers are never given twice");
    assert_eq!(world.process.handler().lines, ["a", "b"]);
}

#[test]
fn recovery_begins_with_the_newest_checkpoint_and_falls_back_to_the_one_before() {
    let mut world = World::new(config());
    for round in 0..3 {
        world.say(round, &format!("round {round}"));
        world.settle();
        world.step(Event::CheckpointNow);
        world.settle();
    }
    world.say(9, "after");
    world.settle();
    assert_eq!(world.process.stats().checkpoints, 3);

    let world = world.crash(config()).expect("it recovers");
    assert_eq!(world.recovery.replayed, 1);
    let newest = world.recovery.checkpoint.expect("there were three");

    let mut damaged = world.storage.crash_image(&mut |_| 0);
    damaged.write(&checkpoint::final_name(newest), 50, b"xx").expect("memory does not fail");
    let world = World::open(damaged, config(), Memo::default()).expect("the older one serves");
    assert_eq!(world.recovery.passed_over.len(), 1);
    assert_eq!(world.recovery.replayed, 2);
    assert_eq!(world.process.handler().lines, ["round 0", "round 1", "round 2", "after"]);
}

#[test]
fn a_handler_that_looks_at_the_world_is_caught_with_both_summaries() {
    let mut world = World::new(config());
    world.say(1, "diverge");
    world.say(2, "a");
    world.settle();
    let error =
        world.crash_with(config(), Memo { world: 5000, ..Memo::default() }).err().expect("it diverges");
    let RecoverError::Diverged { delivery, recorded, now, .. } = &error else { panic!("got {error}") };
    assert_eq!(delivery.0, 1);
    assert_ne!(recorded, now);
    assert!(error.to_string().contains("hash map"), "{error}");
}

#[test]
fn another_version_is_refused_with_the_remedy_unless_nothing_is_to_be_replayed() {
    let newer = || Config { version: 2, ..config() };
    let mut world = World::new(config());
    world.say(1, "a");
    world.settle();
    let storage = world.storage.crash_image(&mut |_| 0);
    let error = World::open(storage.clone(), newer(), Memo::default()).err().expect("it is refused");
    assert!(matches!(error, RecoverError::VersionChanged { recorded: 1, now: 2, .. }));
    assert!(error.to_string().contains("takes a checkpoint"), "{error}");

    let mut world = World::open(storage, config(), Memo::default()).expect("the old version goes on");
    world.step(Event::Stop);
    world.settle();
    assert!(world.other.iter().any(|effect| matches!(effect, Effect::Stopped)), "{:?}", world.other);
    let world = world.crash(newer()).expect("the new version takes over");
    assert!(world.report.sealed);
    assert_eq!(world.process.handler().lines, ["a"]);
    assert_eq!(world.recovery.replayed, 0);
}

#[test]
fn another_services_directory_is_refused_by_name() {
    let mut world = World::new(config());
    world.say(1, "a");
    world.settle();
    let error = world.crash(Config { name: "other".to_owned(), ..config() }).err().expect("it is refused");
    assert!(matches!(error, RecoverError::NameChanged { .. }), "{error}");
}

#[test]
fn a_body_limit_that_no_page_holds_is_refused_at_start() {
    let limits = Limits { body_bytes_max: 1 << 20, ..Limits::default() };
    let error = World::open(
        mainstay_journal::memory_storage::MemoryStorage::default(),
        Config { limits, ..config() },
        Memo::default(),
    );
    assert!(matches!(error.err(), Some(RecoverError::BodyLimit { .. })));
}

#[test]
fn a_client_whose_place_is_being_given_away_is_told_so_and_nothing_is_applied() {
    let limits = Limits { clients_max: 1, client_idle_min: std::time::Duration::ZERO, ..config().limits };
    let immediate = mainstay_recovery::policy::Policy::Immediate;
    let mut world = World::new(Config { limits, policy: immediate, ..config() });
    world.step(Event::Register { token: ReplyToken(1) });
    world.settle();
    let Some(Reply::Registered { client: first }) = world.reply(1) else { panic!("a number was asked for") };
    world.step(Event::Register { token: ReplyToken(2) });
    world.request(3, client(first, 1), "a");
    assert_eq!(world.reply(3), None, "it depends on a registration that is not durable");
    world.settle();
    assert!(matches!(world.reply(2), Some(Reply::Registered { .. })));
    assert_eq!(world.reply(3), Some(Reply::Evicted));
    assert!(world.process.handler().lines.is_empty());
}

#[test]
fn the_largest_body_that_is_accepted_fits_a_page_with_the_longest_key() {
    let with = |body_bytes_max| Config { limits: Limits { body_bytes_max, ..config().limits }, ..config() };
    let storage = mainstay_journal::memory_storage::MemoryStorage::default;
    let (body_bytes_max, mut world) = (0..4096)
        .rev()
        .find_map(|bytes| Some((bytes, World::open(storage(), with(bytes), Memo::default()).ok()?)))
        .expect("some limit fits");
    world.settle();
    world.request(1, key(&"k".repeat(255)), &"x".repeat(body_bytes_max));
    world.settle();
    world.request(2, key(&"l".repeat(255)), &"y".repeat(body_bytes_max));
    world.settle();
    assert!(world.answer(2).0.starts_with("2:yyy"));
}

#[test]
fn a_panic_gives_the_process_up_and_leaves_no_answer() {
    let mut world = World::new(config());
    world.say(1, "a");
    world.settle();
    world.request(2, key("bad"), "panic");
    assert!(
        world
            .other
            .iter()
            .any(|effect| matches!(effect, Effect::Abandon(abandoned) if abandoned.attempts == 1))
    );
    world.settle();
    assert_eq!(world.reply(2), None);
    // Its record was not durable: after a power cut it never happened.
    let world = world.crash(config()).expect("it recovers");
    assert_eq!(world.process.handler().lines, ["a"]);
}

#[test]
fn a_delivery_that_failed_too_often_is_skipped_for_good_and_its_verdict_is_its_answer() {
    let once = || Config { limits: Limits { handler_attempts_max: 1, ..config().limits }, ..config() };
    let mut world = World::new(once());
    world.say(1, "a");
    world.settle();
    world.request(2, key("bad"), "panic");
    assert!(
        world
            .other
            .iter()
            .any(|effect| matches!(effect, Effect::Abandon(abandoned) if abandoned.attempts == 1))
    );

    let mut world = world.kill(once()).expect("it recovers without the handler's help");
    assert!(world.recovery.quarantined.is_some());
    world.say(3, "b");
    world.settle();
    assert_eq!(world.answer(3).0, "2:b");

    for _ in 0..2 {
        world = world.crash(once()).expect("the verdict is in the journal");
        assert_eq!(world.recovery.quarantined, None, "it is not judged twice");
        world.request(4, key("bad"), "panic");
        world.settle();
        let Some(Reply::Answer { answer, replayed: true, .. }) = world.reply(4) else {
            panic!("it has an answer")
        };
        assert_eq!(answer.status, 500);
        assert_eq!(world.process.handler().lines, ["a", "b"]);
    }
}

#[test]
fn deaths_in_the_replay_of_a_delivery_that_ended_well_are_not_counted_against_it() {
    let once = || Config { limits: Limits { handler_attempts_max: 1, ..config().limits }, ..config() };
    let mut world = World::new(once());
    world.request(1, key("k"), "a");
    world.settle();
    assert_eq!(world.answer(1).0, "1:a");
    for _ in 0..3 {
        world = world.kill(once()).expect("it recovers");
        assert_eq!(world.recovery.quarantined, None);
        assert_eq!(world.process.handler().lines, ["a"]);
    }
}

#[test]
fn keys_are_kept_as_long_as_their_record_says_whatever_the_settings_say_now() {
    let keep = |seconds| Config {
        limits: Limits { key_retention: std::time::Duration::from_secs(seconds), ..config().limits },
        ..config()
    };
    for (before, after) in [(86_400, 60), (60, 86_400)] {
        let mut world = World::new(keep(before));
        world.request(1, key("a"), "a");
        world.settle();
        let mut world = world.crash(keep(after)).expect("it recovers");
        for (token, wait_s) in [(2, 0), (3, 61), (4, 61)] {
            world.now = world.now.after(std::time::Duration::from_secs(wait_s));
            world.request(token, key("b"), "b");
            world.settle();
        }
        let lines = world.process.handler().lines.clone();
        let world = world.crash(keep(before)).expect("it recovers");
        assert_eq!(world.process.handler().lines, lines);
    }
}

#[test]
fn a_checkpoint_of_another_format_version_is_refused_by_name() {
    let mut world = World::new(config());
    world.say(1, "a");
    world.step(Event::CheckpointNow);
    world.settle();
    let files = world.storage.list().expect("memory does not fail");
    let file = files.into_iter().find(|file| file.name.starts_with("checkpoint-")).expect("it was published");
    let mut bytes = vec![0; usize::try_from(file.bytes).expect("it is small")];
    world.storage.read(&file.name, 0, &mut bytes).expect("it is there");
    bytes[7] = b'4';
    let checked = bytes.len() - 16;
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..checked]);
    bytes[checked..checked + 8].copy_from_slice(&checksum.to_le_bytes());
    world.storage.write(&file.name, 0, &bytes).expect("memory is large");
    let error = world.kill(config()).err().expect("it is refused");
    let said = error.to_string();
    assert!(said.contains(&file.name) && said.contains("format version 4, this program reads 3"), "{said}");
}

#[test]
fn a_checkpoint_beyond_the_journals_end_is_refused_by_name() {
    let mut world = World::new(config());
    world.say(1, "a");
    world.settle();
    let before = world.storage.crash_image(&mut |_| 0);
    world.say(2, "b");
    world.step(Event::CheckpointNow);
    world.settle();
    let newest = world.storage.list().expect("memory does not fail");
    let newest =
        newest.into_iter().find(|file| file.name.starts_with("checkpoint-")).expect("it was published");
    let mut bytes = vec![0; usize::try_from(newest.bytes).expect("it is small")];
    world.storage.read(&newest.name, 0, &mut bytes).expect("it is there");
    let mut rewound = before;
    rewound.create(&newest.name, 0).expect("the name is new");
    rewound.write(&newest.name, 0, &bytes).expect("memory is large");
    let error = World::open(rewound, config(), Memo::default()).err().expect("it is refused");
    assert!(matches!(&error, RecoverError::CheckpointAhead { file, .. } if *file == newest.name), "{error}");
}

#[test]
fn a_life_that_lost_its_tail_does_not_give_its_numbers_again() {
    let at_process = || Config { level: mainstay_types::level::Level::Process, ..config() };
    let mut world = World::new(at_process());
    world.settle();
    world.say(1, "send once first");
    world.step(Event::Register { token: ReplyToken(2) });
    let first = world.outputs.remove(0);
    let Some(Reply::Registered { client }) = world.reply(2) else { panic!("a number was asked for") };
    let mut world = world.crash(at_process()).expect("it recovers, without what was only in the ring");
    assert!(world.process.handler().lines.is_empty());
    world.say(3, "send once second");
    world.step(Event::Register { token: ReplyToken(4) });
    assert_ne!(world.outputs[0].key, first.key);
    assert!(matches!(world.reply(4), Some(Reply::Registered { client: next }) if next != client));
}

#[test]
fn a_clean_stop_leaves_nothing_behind_its_checkpoint() {
    let mut world = World::new(config());
    world.say(1, "send once hello");
    world.settle();
    world.step(Event::Stop);
    let output = world.outputs[0].id;
    world.step(Event::Output {
        output,
        outcome: mainstay_process::handler::Outcome::Delivered { status: 200 },
    });
    world.settle();
    assert!(world.other.iter().any(|effect| matches!(effect, Effect::Stopped)));
    let world = world.crash(Config { version: 2, ..config() }).expect("nothing is to be replayed");
    assert_eq!(world.recovery.replayed, 0);
}

#[test]
fn at_level_process_kill_9_loses_nothing_that_was_acknowledged() {
    let at_process = || Config { level: mainstay_types::level::Level::Process, ..config() };
    let mut world = World::new(at_process());
    world.settle();
    world.say(1, "a");
    assert_eq!(world.answer(1).0, "1:a");
    let world = world.kill(at_process()).expect("it recovers");
    assert_eq!(world.process.handler().lines, ["a"]);
}

#[test]
fn a_timer_fires_once_at_its_time_also_after_a_crash() {
    let mut world = World::new(config());
    world.say(1, "timer 5");
    world.settle();
    let due = world.now.after(std::time::Duration::from_millis(5));
    assert!(world.other.iter().any(|effect| matches!(effect, Effect::Wake(at) if *at <= due)));
    let mut world = world.crash(config()).expect("it recovers");
    world.now = Time(due.0 - 1);
    world.step(Event::Tick);
    assert_eq!(world.process.handler().lines.len(), 1);
    world.now = due;
    world.step(Event::Tick);
    world.step(Event::Tick);
    assert_eq!(world.process.handler().lines.len(), 2, "{:?}", world.process.handler().lines);
}
