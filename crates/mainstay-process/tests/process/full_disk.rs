//! A start on a full disk: what is there is replayed and read, nothing new is taken, and with space it goes on by itself.

use crate::support::{Memo, World, config, key};
use mainstay_journal::journal::Health;
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::storage::Storage;
use mainstay_process::config::{Config, Limits};
use mainstay_process::effect::{Effect, Reply, Unavailable};
use mainstay_process::event::{Event, ReplyToken};
use std::time::Duration;

/// Long lines fill a page quickly.
fn line(number: u64) -> String {
    format!("{number:0900}")
}

/// No more checkpoints: they would need space of their own.
fn without_checkpoints(version: u32) -> Config {
    let config = config();
    let limits = Limits {
        checkpoint_log_bytes: u64::MAX,
        checkpoint_interval: Duration::from_secs(1 << 30),
        ..config.limits
    };
    Config { version, limits, ..config }
}

fn used(storage: &mut MemoryStorage) -> u64 {
    storage.list().expect("memory does not fail").iter().map(|file| file.bytes).sum()
}

/// A service that took requests until its disk was full: the first has the key `first`. And how many it took.
fn filled() -> (World, u64) {
    let mut world = World::new(without_checkpoints(1));
    world.request(0, key("first"), &line(0));
    world.settle();
    let used = used(&mut world.storage);
    world.storage.limit_space(Some(used));
    for number in 1..200 {
        world.say(number, &line(number));
        world.settle();
        match world.reply(number) {
            Some(Reply::Answer { .. }) => {}
            Some(Reply::Unavailable { reason: Unavailable::DiskFull }) => return (world, number),
            other => panic!("{other:?}"),
        }
    }
    panic!("the disk is never full");
}

fn refused_for_want_of_space(world: &mut World, token: u64) {
    world.say(token, &line(token));
    world.settle();
    assert_eq!(world.reply(token), Some(Reply::Unavailable { reason: Unavailable::DiskFull }));
}

#[test]
fn it_is_read_and_answers_duplicates_until_there_is_space_and_then_goes_on() {
    let (world, taken) = filled();
    let mut world = World::open(world.killed(), without_checkpoints(1), Memo::default())
        .expect("it starts on a full disk");
    let end = world.report.end;
    assert_eq!(world.process.journal().end(), end, "there is no room for the first record of this life");
    world.settle();
    assert!(matches!(world.process.journal().health(), Health::Full { .. }));
    assert_eq!(world.recovery.replayed, taken);
    assert_eq!(world.process.handler().lines.len() as u64, taken);

    world.request(1000, key("first"), &line(0));
    world.settle();
    assert_eq!(world.answer(1000), (format!("1:{}", line(0)), true));
    world.step(Event::Query { token: ReplyToken(1001), body: Vec::new() });
    world.settle();
    let Some(Reply::Read { answer, .. }) = world.reply(1001) else { panic!("a read is answered") };
    assert_eq!(answer.body, taken.to_string().as_bytes());
    refused_for_want_of_space(&mut world, 1002);

    // Killed again and again it comes to the same: a life that could not begin has used nothing up.
    for _ in 0..3 {
        world = world.kill(without_checkpoints(1)).expect("it starts on a full disk");
        assert_eq!((world.report.end, world.process.journal().end()), (end, end));
        world.settle();
    }
    assert!(world.other.iter().any(|effect| matches!(effect, Effect::Wake(_))), "it asks again by the clock");
    refused_for_want_of_space(&mut world, 1003);

    world.storage.limit_space(None);
    world.now = world.now.after(Duration::from_secs(2));
    world.step(Event::Tick);
    world.settle();
    assert_eq!(world.process.journal().health(), Health::Good);
    world.say(1004, &line(1004));
    world.settle();
    assert_eq!(world.answer(1004).0, format!("{}:{}", taken + 1, line(1004)));
    let world = world.crash(without_checkpoints(1)).expect("it recovers");
    assert_eq!(world.process.handler().lines.len() as u64, taken + 1);
}

/// The record that says which version a life is waits for space with everything behind it: until then the old version may come back,
/// and afterwards it may not.
#[test]
fn the_version_of_a_life_stands_before_its_first_delivery() {
    let (world, taken) = filled();
    let mut world = World::open(world.killed(), without_checkpoints(1), Memo::default())
        .expect("it starts on a full disk");
    world.settle();
    world.storage.limit_space(None);
    world.step(Event::Tick);
    world.settle();
    world.say(1, "one more");
    world.settle();
    assert_eq!(world.process.handler().lines.len() as u64, taken + 1);
    let refused =
        world.crash(without_checkpoints(2)).err().expect("deliveries of version 1 are not replayed by 2");
    assert!(refused.to_string().contains("was made by version 1"), "{refused}");
}
