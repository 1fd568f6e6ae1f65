//! Level peers: what leaves waits for the region that keeps the log, and a process comes back from nothing but what that has.

use crate::support::{Drawn, Memo, World, config, key};
use mainstay_journal::fill::{Filling, Origin, read_bytes};
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::reader::ReadError;
use mainstay_journal::storage::Storage;
use mainstay_process::checkpoint;
use mainstay_process::config::{Config, Limits};
use mainstay_process::effect::{Effect, Limit, Reply};
use mainstay_process::event::{Event, Identity, ReplyToken};
use mainstay_process::port::Guarantee;
use mainstay_recovery::policy::Policy;
use mainstay_types::id::Lsn;
use mainstay_types::level::Level;
use std::collections::BTreeMap;
use std::time::Duration;

fn peers() -> Config {
    Config { level: Level::Peers, ..config() }
}

/// What the region has: the log from a page on, and a checkpoint.
#[derive(Clone, Default)]
struct Region {
    log: Vec<u8>,
    checkpoint: Option<(Lsn, Vec<u8>)>,
}

impl Region {
    fn end(&self) -> Lsn {
        Lsn(self.log.len() as u64)
    }

    fn checkpoint_lsn(&self) -> Lsn {
        self.checkpoint.as_ref().map_or(Lsn::ZERO, |(lsn, _)| *lsn)
    }

    /// Takes so much of what it was asked to keep, behind what the directory had when it was opened.
    fn take(&mut self, world: &mut World, to: Lsn) {
        let opened = world.report.end;
        let read = read_bytes::<ReadError>(
            &mut world.storage,
            &world.catalog,
            (self.end(), opened),
            4096,
            |bytes| {
                self.log.extend_from_slice(bytes);
                Ok(())
            },
        );
        read.expect("it is in the segments");
        let [from, to] = [self.end(), to].map(|lsn| (lsn.0 - opened.0) as usize);
        self.log.extend_from_slice(&world.given[from..to.max(from)]);
    }

    /// Takes all, and says so.
    fn acknowledge(&mut self, world: &mut World) {
        let end = world.process.journal().end();
        self.take(world, end);
        world.step(Event::Kept { to: self.end(), confirmed: 0, checkpoint: self.checkpoint_lsn() });
    }

    /// Has the newest checkpoint, which its log has reached.
    fn take_checkpoint(&mut self, world: &mut World) {
        let files = world.storage.list().expect("it lists");
        let newest = files
            .iter()
            .filter_map(|file| Some((checkpoint::parse_name(&file.name)?, file)))
            .max_by_key(|(lsn, _)| *lsn);
        let Some((lsn, file)) = newest.filter(|(lsn, _)| *lsn <= self.end()) else { return };
        let mut bytes = vec![0; file.bytes as usize];
        world.storage.read(&file.name, 0, &mut bytes).expect("it is there");
        self.checkpoint = Some((lsn, bytes));
    }

    /// A machine with an empty disk.
    fn fill(&self, world: &World) -> MemoryStorage {
        let mut storage = MemoryStorage::default();
        let geometry = world.report.geometry;
        let mut first = Lsn::ZERO;
        if let Some((lsn, bytes)) = &self.checkpoint {
            let name = checkpoint::final_name(*lsn);
            storage.create(&name, 0).expect("the name is new");
            storage.write(&name, 0, bytes).expect("memory is large");
            first = geometry.page_start(geometry.page_of(*lsn));
        }
        let of = Origin { store: world.report.store, geometry, generation: world.report.generation, first };
        let mut filling = Filling::begin(&mut storage, of).expect("it is empty");
        filling.put(&self.log[first.0 as usize..]).expect("memory is large");
        assert_eq!(filling.finish().expect("these are pages"), self.end());
        storage
    }

    /// The machine is lost: the process begins elsewhere.
    fn revive(&self, world: &World, config: Config) -> World {
        World::open(self.fill(world), config, Memo::default()).expect("it recovers")
    }
}

fn begun(config: Config) -> (World, Region) {
    let (mut world, mut region) = (World::new(config), Region::default());
    region.acknowledge(&mut world);
    (world, region)
}

fn asked_to_confirm(world: &mut World) -> Option<u64> {
    let mut asked = world.other.iter().filter_map(|effect| match effect {
        Effect::Confirm { number } => Some(*number),
        _ => None,
    });
    let last = asked.next_back();
    world.other.retain(|effect| !matches!(effect, Effect::Confirm { .. }));
    last
}

#[test]
fn an_answer_waits_for_the_region_and_for_no_disk() {
    for policy in [Policy::Deferred, Policy::Immediate] {
        let (mut world, mut region) = begun(Config { policy, ..peers() });
        world.request(1, key("a"), "say one");
        world.step(Event::Drained);
        assert_eq!((world.writes_asked(), world.replies.len()), (0, 0), "{policy}");
        let end = world.process.journal().end();
        world.step(Event::Kept { to: Lsn(end.0 - 8), confirmed: u64::MAX, checkpoint: Lsn::ZERO });
        assert!(world.replies.is_empty(), "{policy}: its record is not there yet");
        region.acknowledge(&mut world);
        assert_eq!(world.answer(1), ("1:say one".to_owned(), false), "{policy}");
        world.step(Event::Drained);
        assert_eq!(world.writes_asked(), 0, "{policy}");
    }
}

#[test]
fn an_output_leaves_when_the_region_has_its_delivery() {
    let (mut world, mut region) = begun(peers());
    assert_eq!(world.process.config().ports[0].guarantee, Guarantee::Deduplicated);
    world.say(1, "send once hello");
    world.step(Event::Drained);
    assert!(world.outputs.is_empty());
    region.acknowledge(&mut world);
    assert_eq!(world.outputs.len(), 1);
    let key = world.outputs[0].key.clone();
    // Sent again by whoever comes after it, under the same key.
    let mut after = region.revive(&world, peers());
    region.acknowledge(&mut after);
    assert_eq!(
        after.outputs.iter().map(|output| (&*output.key, output.again)).collect::<Vec<_>>(),
        [(&*key, true)]
    );
}

#[test]
fn what_reveals_a_state_waits_for_a_question_that_was_asked_after_it_came() {
    let (mut world, mut region) = begun(peers());
    world.request(1, key("a"), "say one");
    region.acknowledge(&mut world);
    world.answer(1);
    assert_eq!(asked_to_confirm(&mut world), None, "a record that was kept is an answer to that");
    for token in [2, 3] {
        if token == 2 {
            world.step(Event::Query { token: ReplyToken(token), body: Vec::new() });
        } else {
            world.request(token, key("a"), "say one");
        }
        // An answer to an earlier question, on its way when this came.
        world.step(Event::Kept { to: region.end(), confirmed: u64::MAX, checkpoint: Lsn::ZERO });
        world.step(Event::Drained);
        let number = asked_to_confirm(&mut world).expect("a question");
        world.step(Event::Kept { to: region.end(), confirmed: number - 1, checkpoint: Lsn::ZERO });
        assert!(world.replies.is_empty());
        world.step(Event::Drained);
        assert_eq!(asked_to_confirm(&mut world), None, "one question for all that waits");
        world.step(Event::Kept { to: region.end(), confirmed: number, checkpoint: Lsn::ZERO });
        assert_eq!(world.replies.len(), 1);
        world.replies.clear();
    }
}

#[test]
fn at_the_limit_nothing_more_is_taken() {
    let limits = Limits { unkept_bytes_max: 2000, ..peers().limits };
    let (mut world, mut region) = begun(Config { limits, ..peers() });
    let long = format!("say {}", "x".repeat(900));
    for token in 1..=3 {
        world.say(token, &long);
    }
    world.say(4, "say no");
    assert_eq!(world.reply(4), Some(Reply::Busy { limit: Limit::Unkept }));
    assert!(world.process.unkept_bytes() > 2000);
    region.acknowledge(&mut world);
    assert_eq!((world.process.unkept_bytes(), world.replies.len()), (0, 3));
    world.say(5, "say yes");
    region.acknowledge(&mut world);
    assert_eq!(world.answer(5).0, "4:say yes");
}

#[test]
fn timers_wait_while_too_much_is_not_kept() {
    let limits = Limits { unkept_bytes_max: 1000, ..peers().limits };
    let (mut world, mut region) = begun(Config { limits, ..peers() });
    for token in 0..3 {
        world.say(token, "timer 5");
    }
    region.acknowledge(&mut world);
    world.say(4, &format!("say {}", "x".repeat(1000)));
    let (end, woken) = (world.process.journal().end(), world.other.len());
    world.now = world.now.after(Duration::from_millis(10));
    world.step(Event::Tick);
    world.settle();
    assert_eq!(world.process.journal().end(), end, "no timer is taken");
    let wakes = |effect: &&Effect| matches!(effect, Effect::Wake(at) if *at <= world.now);
    assert_eq!(world.other[woken..].iter().filter(wakes).count(), 0, "nor is it woken for one");
    region.acknowledge(&mut world);
    assert!(world.other.iter().any(|effect| matches!(effect, Effect::Wake(at) if *at <= world.now)));
    world.step(Event::Tick);
    region.acknowledge(&mut world);
    let fired = world.process.handler().lines.iter().filter(|line| line.starts_with("timer 7 at")).count();
    assert_eq!(fired, 3, "{:?}", world.process.handler().lines);
}

#[test]
fn nothing_is_trimmed_and_nobody_told_before_the_region_has_the_checkpoint() {
    let limits = Limits { checkpoint_log_bytes: 3000, ..peers().limits };
    let (mut world, mut region) = begun(Config { limits, ..peers() });
    let files = |world: &mut World| {
        let files = world.storage.list().expect("it lists");
        files.iter().filter(|file| checkpoint::parse_name(&file.name).is_some()).count()
    };
    for token in 0..60 {
        world.say(token, &format!("say {token} {}", "x".repeat(500)));
        world.settle();
        assert_eq!(files(&mut world), 0, "it knows what the region does not have");
    }
    for token in 60..120 {
        region.acknowledge(&mut world);
        world.say(token, &format!("say {token} {}", "x".repeat(500)));
        world.settle();
    }
    assert_eq!(files(&mut world), 1, "the next one waits for this");
    assert_eq!((world.process.stats().checkpoints, world.process.journal().first()), (0, Lsn::ZERO));
    for round in 0..3 {
        region.take_checkpoint(&mut world);
        region.acknowledge(&mut world);
        assert_eq!(world.process.stats().checkpoints, round + 1);
        for token in 0..60 {
            world.say(token, &format!("say {token} {}", "x".repeat(500)));
            world.settle();
            region.acknowledge(&mut world);
        }
    }
    assert!(world.process.journal().first() > Lsn::ZERO);
    let kept = region.checkpoint_lsn();
    assert!(world.process.journal().first() <= kept, "the region's is in the directory too");
}

#[test]
fn a_clean_stop_waits_until_the_region_has_the_seal() {
    let (mut world, mut region) = begun(peers());
    world.say(1, "say one");
    region.acknowledge(&mut world);
    world.step(Event::Stop);
    let stopped = |world: &World| world.other.iter().any(|effect| matches!(effect, Effect::Stopped));
    for _ in 0..4 {
        world.settle();
        region.acknowledge(&mut world);
    }
    assert!(!stopped(&world), "the region has the log, and not the last checkpoint");
    region.take_checkpoint(&mut world);
    region.acknowledge(&mut world);
    for _ in 0..4 {
        world.settle();
        let end = world.process.journal().end();
        region.take(&mut world, end);
    }
    assert!(!stopped(&world), "the region has not said that it has the seal");
    region.acknowledge(&mut world);
    assert!(stopped(&world));
    let after = region.revive(&world, Config { version: 2, ..peers() });
    assert!(after.report.sealed, "a new version may begin");
}

/// Requests, repetitions, checkpoints and losses of the machine in every order; the region has at least what it has acknowledged, and a part of the rest.
#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_doubled_when_machines_are_lost() {
    let (mut losses, mut checkpoints) = (0, 0);
    for seed in 0..300 {
        let mut random = Drawn(seed);
        let limits = Limits { checkpoint_log_bytes: 3000, ..peers().limits };
        let config = Config { limits, entropy: seed, ..peers() };
        let (mut world, mut region) = begun(config.clone());
        let mut answered: BTreeMap<u64, String> = BTreeMap::new();
        let mut token = 0;
        for _ in 0..120 {
            match random.below(20) {
                0..10 => {
                    token += 1;
                    let name = random.below(40);
                    let body = format!("say {name} {}", "y".repeat(name as usize * 7));
                    world.request(1000 * token + name, Identity::Key(name.to_le_bytes().to_vec()), &body);
                }
                10..14 => {
                    let end = world.process.journal().end();
                    region.take(&mut world, end);
                    world.step(Event::Drained);
                    let confirmed = asked_to_confirm(&mut world).unwrap_or(0);
                    world.step(Event::Kept {
                        to: region.end(),
                        confirmed,
                        checkpoint: region.checkpoint_lsn(),
                    });
                }
                14..17 => world.settle(),
                17 => {
                    let before = region.checkpoint.as_ref().map(|(lsn, _)| *lsn);
                    region.take_checkpoint(&mut world);
                    checkpoints += u32::from(region.checkpoint.as_ref().map(|(lsn, _)| *lsn) != before);
                }
                18 => {
                    // Killed, and back in its directory: the region is given what it lacks.
                    let end = world.process.journal().end();
                    region.take(&mut world, end);
                    world = world.kill(config.clone()).expect("it recovers");
                    assert!(world.report.end >= end, "a page may have been filled up");
                    region.acknowledge(&mut world);
                }
                _ => {
                    if random.below(2) == 0 {
                        let end = world.process.journal().end();
                        region.take(&mut world, end);
                    }
                    world = region.revive(&world, config.clone());
                    region.acknowledge(&mut world);
                    losses += 1;
                }
            }
            for (token, reply) in std::mem::take(&mut world.replies) {
                let Reply::Answer { answer, .. } = reply else { panic!("{seed}: {reply:?}") };
                let text = String::from_utf8(answer.body.clone()).expect("answers are text");
                let first = answered.entry(token % 1000).or_insert_with(|| text.clone());
                assert_eq!(*first, text, "seed {seed}: request {}", token % 1000);
            }
        }
        region.acknowledge(&mut world);
        world = region.revive(&world, config);
        let lines = &world.process.handler().lines;
        for (name, answer) in &answered {
            let (place, line) = answer.split_once(':').expect("a place and a line");
            let place: usize = place.parse().expect("a place");
            assert_eq!(lines.get(place - 1).map(String::as_str), Some(line), "seed {seed}: request {name}");
            assert_eq!(lines.iter().filter(|other| *other == line).count(), 1, "seed {seed}: doubled");
        }
    }
    assert!(losses > 500 && checkpoints > 100, "{losses} losses, {checkpoints} checkpoints");
}
