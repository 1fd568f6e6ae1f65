//! A process whose log a region keeps, the machine that gives it the log, and a region that fails in every way: machines are lost at any step.

mod region;
mod scenarios;
mod taking;

use self::region::{Entries, Link, Region};
use crate::support::{Drawn, Memo, World, config};
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_process::config::{Config, Limits};
use mainstay_process::effect::{Effect, Reply};
use mainstay_process::event::{Event, Identity, ReplyToken};
use mainstay_process::kept::attach::{Directory, Wish};
use mainstay_process::kept::keeper::Keeper;
use mainstay_process::kept::manifest::Sizes;
use mainstay_process::kept::shelf::Shelf;
use mainstay_process::kept::{KeptError, Trouble};
use mainstay_types::level::Level;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Small, so that records take several writes, and each checkpoint several keys.
const SMALL: Sizes = Sizes { piece_bytes: 256, write_bytes_max: 512, chunk_bytes: 1500, stretches_max: 7 };

const NAME: &str = "shop";

fn peers(seed: u64) -> Config {
    let limits = Limits { checkpoint_log_bytes: 3000, ..config().limits };
    Config { level: Level::Peers, limits, entropy: seed, ..config() }
}

fn wish(drawn: u64) -> Wish<'static> {
    Wish { region: "data", new: false, anew: false, striped: false, drawn }
}

/// A process with a machine that keeps its log.
struct Life {
    world: World,
    keeper: Keeper<Link>,
}

fn is_empty(storage: &MemoryStorage) -> bool {
    storage.bytes("superblock").is_none()
}

/// Opens a directory, filled first if it is empty, and attaches. What is left of it if not.
#[expect(clippy::result_large_err, reason = "what is left is a disk in memory, and begun with again")]
fn begin(
    storage: MemoryStorage,
    link: Link,
    wish: Wish<'_>,
    config: Config,
) -> Result<Life, (KeptError, MemoryStorage)> {
    let in_trouble = |trouble| KeptError::Trouble { name: NAME.to_owned(), trouble };
    match Shelf::find(link, NAME, SMALL) {
        Ok(shelf) => begin_found(shelf, storage, wish, config),
        Err(trouble) => Err((in_trouble(trouble), storage)),
    }
}

/// The same, by what was found before.
#[expect(clippy::result_large_err, reason = "what is left is a disk in memory, and begun with again")]
fn begin_found(
    mut shelf: Shelf<Link>,
    mut storage: MemoryStorage,
    wish: Wish<'_>,
    config: Config,
) -> Result<Life, (KeptError, MemoryStorage)> {
    if is_empty(&storage)
        && let Err(error) = shelf.fill_empty(&mut storage, wish)
    {
        return Err((error, storage));
    }
    let mut world = World::open(storage, config, Memo::default()).expect("what is there recovers");
    let World { storage, catalog, report, .. } = &mut world;
    if let Err(error) = shelf.attach(&mut Directory { storage, catalog, report }, wish) {
        return Err((error, world.killed()));
    }
    Ok(Life { world, keeper: Keeper::new(shelf) })
}

impl Life {
    /// Hands over what the process has asked for.
    fn hand_over(&mut self) {
        let Self { world, keeper } = self;
        let known = (keeper.end().0 - world.report.end.0) as usize;
        let mut ends: Vec<_> = world.given_ends.iter().copied().filter(|end| *end > keeper.end()).collect();
        keeper.append(&mut world.given[known..].to_vec(), &mut ends);
        for effect in std::mem::take(&mut world.other) {
            if let Effect::Confirm { number } = effect {
                keeper.confirm(number);
            }
        }
        if let Some(lsn) = world.published.take() {
            keeper.save(lsn);
        }
    }

    /// One turn of the keeper, and what the process hears of it.
    fn turn(&mut self, look: bool) -> Result<bool, Trouble> {
        self.hand_over();
        let turned = self.keeper.turn(&mut self.world.storage, look);
        let said = self.keeper.acknowledged();
        let (to, confirmed, checkpoint) = (said.kept, said.confirmed, said.checkpoint);
        self.world.step(Event::Kept { to, confirmed, checkpoint });
        turned
    }

    /// Until the region has all.
    fn keep_all(&mut self) -> Result<(), Trouble> {
        for _ in 0..10_000 {
            self.world.settle();
            match self.turn(false) {
                Ok(false) => return Ok(()),
                Err(trouble) if !trouble.is_passing() => return Err(trouble),
                _ => {}
            }
        }
        panic!("it comes to no end");
    }

    /// What was answered since the last time, by request.
    fn answers(&mut self) -> Vec<(u64, String)> {
        let said = std::mem::take(&mut self.world.replies).into_iter();
        said.map(|(token, reply)| match reply {
            Reply::Answer { answer, .. } => {
                (token % 1000, String::from_utf8(answer.body.clone()).expect("answers are text"))
            }
            Reply::Read { .. } => (READ, String::new()),
            other => panic!("{other:?}"),
        })
        .collect()
    }

    fn ask(&mut self, token: u64, name: u64) {
        let body = format!("say {name} {}", "y".repeat(name as usize * 19));
        self.world.request(1000 * token + name, Identity::Key(name.to_le_bytes().to_vec()), &body);
    }

    fn check(&self, answered: &BTreeMap<u64, String>, told: &str) {
        let lines = &self.world.process.handler().lines;
        for (name, answer) in answered {
            let (place, line) = answer.split_once(':').expect("a place and a line");
            let place: usize = place.parse().expect("a place");
            assert_eq!(
                lines.get(place - 1).map(String::as_str),
                Some(line),
                "{told}: request {name} is lost"
            );
            assert_eq!(lines.iter().filter(|other| *other == line).count(), 1, "{told}: {name} is doubled");
        }
    }
}

const READ: u64 = 999;

fn first_life(region: &Rc<RefCell<Region>>, config: Config) -> Life {
    let wish = Wish { new: true, ..wish(1) };
    begin(MemoryStorage::default(), Link::to(region), wish, config)
        .map_err(|(error, _)| error)
        .expect("it is new")
}

/// A machine with an empty disk, from what a region has.
fn revive(entries: Entries, config: Config) -> Life {
    let region = Region::with(entries, 1);
    let revived = begin(MemoryStorage::default(), Link::to(&region), wish(77), config);
    revived.map_err(|(error, _)| error).expect("what the region has makes a directory")
}

#[test]
fn every_state_of_the_region_fills_a_directory_that_opens_and_has_all_that_was_acknowledged() {
    let mut states = 0;
    for seed in 0..6 {
        let (region, config) = (Region::new(seed), peers(seed));
        let mut random = Drawn(seed ^ 0xabc);
        let mut life = first_life(&region, config.clone());
        let mut answered = BTreeMap::new();
        region.borrow_mut().history = Some(Vec::new());
        for token in 0..60 {
            for _ in 0..random.below(4) {
                life.ask(token, random.below(60));
            }
            if random.below(3) == 0 {
                life.world.settle();
            }
            if random.below(12) == 0 {
                // Killed: in its directory again, in a start of its own.
                life.hand_over();
                let storage = life.world.killed();
                let link = Link::to(&region);
                life = begin(storage, link, wish(token), config.clone())
                    .map_err(|(error, _)| error)
                    .expect("its own");
            }
            for _ in 0..random.below(6) {
                life.turn(false).expect("the region answers");
                let history = region.borrow_mut().history.replace(Vec::new());
                for entries in history.into_iter().flatten() {
                    states += 1;
                    // What had been acknowledged before this write; what it brings is acknowledged behind it.
                    revive(entries, config.clone()).check(&answered, &format!("seed {seed}, state {states}"));
                }
                answered.extend(life.answers());
            }
        }
        life.keep_all().expect("the region answers");
        answered.extend(life.answers());
        let entries = region.borrow().entries.clone();
        revive(entries, config).check(&answered, "at the end");
    }
    assert!(states > 500, "{states} states");
}

/// Requests, faults of the region, kills and losses of machines at every step, with or without a fence; what was seen that must not be.
fn campaign(seed: u64, fences: bool) -> Result<u64, String> {
    let (region, config) = (Region::new(seed), peers(seed));
    region.borrow_mut().fences = fences;
    let mut random = Drawn(seed ^ 0xfee1);
    let mut answered: BTreeMap<u64, String> = BTreeMap::new();
    let mut life = first_life(&region, config.clone());
    // Cut off and replaced, and not aware of it.
    let mut stale: Option<Life> = None;
    let mut losses = 0;
    for step in 0..160 {
        life.keeper.store_mut().faults = 15;
        match random.below(24) {
            0..8 => life.ask(step, random.below(30)),
            8 => life.world.step(Event::Query { token: ReplyToken(READ), body: Vec::new() }),
            9..12 => life.world.settle(),
            12..19 => {
                life.world.step(Event::Drained);
                match life.turn(random.below(3) == 0) {
                    Err(trouble) if !trouble.is_passing() => {
                        return Err(format!("the owner stops: {trouble}"));
                    }
                    _ => {}
                }
            }
            19..21 => {
                // A replaced life wakes up for a while, with requests before its door.
                if let Some(old) = &mut stale {
                    old.ask(step, random.below(30));
                    old.world.step(Event::Query { token: ReplyToken(READ), body: Vec::new() });
                    old.world.step(Event::Drained);
                    for _ in 0..3 {
                        old.world.settle();
                        drop(old.turn(true));
                    }
                    if let Some((name, said)) = old.answers().first() {
                        return Err(format!("a life that was replaced answers {name}: {said}"));
                    }
                }
            }
            21 => {
                // Killed at any write or question of the next start: until one comes through.
                life.hand_over();
                let mut storage = life.world.killed();
                life = loop {
                    let left = Some(random.below(60)).filter(|_| random.below(2) == 0);
                    let link = Link { faults: random.below(2), left, ..Link::to(&region) };
                    match begin(storage, link, wish(random.below(u64::MAX)), config.clone()) {
                        Ok(life) => break life,
                        Err((KeptError::Trouble { trouble, .. }, left)) if trouble.is_passing() => {
                            storage = left;
                        }
                        Err((error, _)) => return Err(format!("its own directory: {error}")),
                    }
                };
                life.keeper.store_mut().left = None;
                stale = None;
            }
            _ => {
                // Another machine takes over; attempts at it are lost at any step, with or without what they had filled.
                let mut storage = MemoryStorage::default();
                let after = loop {
                    let left = Some(random.below(60)).filter(|_| random.below(2) == 0);
                    let link = Link { faults: random.below(2), left, ..Link::to(&region) };
                    match begin(storage, link, wish(random.below(u64::MAX)), config.clone()) {
                        Ok(life) => break life,
                        Err((KeptError::Trouble { trouble, .. }, left)) if trouble.is_passing() => {
                            storage = if random.below(2) == 0 { left } else { MemoryStorage::default() };
                        }
                        // An attempt that was given up, by a machine that is lost, has come through late.
                        Err((KeptError::Elsewhere { .. }, left)) if is_empty(&left) => {
                            storage = MemoryStorage::default();
                        }
                        Err((error, _)) => return Err(format!("another directory: {error}")),
                    }
                };
                // What had left before is true for good; nothing is heard of it any more.
                answered.extend(life.answers().into_iter().filter(|(name, _)| *name != READ));
                stale = Some(std::mem::replace(&mut life, after));
                life.keeper.store_mut().left = None;
                losses += 1;
            }
        }
        for (name, text) in life.answers() {
            let first = answered.entry(name).or_insert_with(|| text.clone());
            if name != READ && *first != text {
                return Err(format!("request {name} was answered {first:?}, then {text:?}"));
            }
        }
        answered.remove(&READ);
    }
    life.keeper.store_mut().faults = 0;
    life.keep_all().map_err(|trouble| trouble.to_string())?;
    answered.extend(life.answers().into_iter().filter(|(name, _)| *name != READ));
    let entries = region.borrow().entries.clone();
    let revived = revive(entries, config);
    let lines = &revived.world.process.handler().lines;
    for (name, answer) in &answered {
        let line = answer.split_once(':').map(|(_, line)| line);
        if lines.iter().filter(|other| Some(other.as_str()) == line).count() != 1 {
            return Err(format!("request {name} is lost or doubled"));
        }
    }
    Ok(losses)
}

#[test]
fn nothing_is_lost_or_doubled_wherever_machines_and_answers_are_lost() {
    let mut losses = 0;
    for seed in 0..250 {
        losses += campaign(seed, true).unwrap_or_else(|seen| panic!("seed {seed}: {seen}"));
    }
    assert!(losses > 1000, "{losses} losses");
}

#[test]
fn a_region_that_does_not_look_at_the_owner_is_noticed() {
    let caught = std::panic::catch_unwind(|| (0..100).any(|seed| campaign(seed, false).is_err()));
    assert!(!matches!(caught, Ok(false)), "without the fence nothing went wrong: the campaign sees nothing");
}
