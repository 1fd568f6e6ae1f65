//! What each start and each life refuses, by name: regions that lost something, directories that lost something, starts that never came to their end.

use super::*;
use mainstay_journal::storage::Storage;
use mainstay_types::id::Lsn;

fn refused(begun: Result<Life, (KeptError, MemoryStorage)>) -> (KeptError, MemoryStorage) {
    match begun {
        Ok(_) => panic!("it begins"),
        Err(refused) => refused,
    }
}

pub(crate) fn begun(begun: Result<Life, (KeptError, MemoryStorage)>) -> Life {
    begun.map_err(|(error, _)| error).expect("it begins")
}

/// Asks for `names`, and has the region keep all.
pub(crate) fn live(life: &mut Life, names: std::ops::Range<u64>) {
    for name in names {
        life.ask(name, name);
    }
    life.keep_all().expect("the region answers");
}

pub(crate) fn killed(mut life: Life) -> MemoryStorage {
    life.hand_over();
    life.world.killed()
}

pub(crate) fn lines(life: &Life) -> usize {
    life.world.process.handler().lines.len()
}

/// Gives `to` the note of `from`, as a copy of a directory made behind our back has it.
fn copy_note(from: &MemoryStorage, to: &mut MemoryStorage) {
    let note = from.bytes("keep").expect("it was kept").to_vec();
    to.remove("keep").expect("it was kept");
    to.create("keep", 0).expect("the name is free");
    to.write("keep", 0, &note).expect("memory is large");
    to.sync("keep").expect("memory does not fail");
    to.sync_directory().expect("memory does not fail");
}

#[test]
fn a_region_that_lost_its_end_is_noticed_and_given_it_again() {
    let (region, config) = (Region::new(1), peers(1));
    let mut life = first_life(&region, config.clone());
    live(&mut life, 0..3);
    let before = region.borrow().entries.clone();
    live(&mut life, 3..6);
    region.borrow_mut().entries = before;
    assert_eq!(life.turn(true), Err(Trouble::Lost), "nothing is written on behind a wrong end");
    let mut life = begun(begin(killed(life), Link::to(&region), wish(2), config.clone()));
    live(&mut life, 6..7);
    let entries = region.borrow().entries.clone();
    assert_eq!(lines(&revive(entries, config)), 7);
}

#[test]
fn a_directory_that_is_behind_is_refused() {
    let (region, config) = (Region::new(2), peers(2));
    let mut life = first_life(&region, config.clone());
    live(&mut life, 0..3);
    life = begun(begin(killed(life), Link::to(&region), wish(2), config.clone()));
    let mut behind = life.world.storage.clone();
    live(&mut life, 3..6);
    copy_note(&killed(life), &mut behind);
    let before = region.borrow().entries.clone();
    for anew in [false, true] {
        let wish = Wish { anew, ..wish(3) };
        let (error, _) = refused(begin(behind.clone(), Link::to(&region), wish, config.clone()));
        assert!(matches!(error, KeptError::Behind { .. }), "whatever was asked for: {error}");
        assert_eq!(region.borrow().entries, before, "nothing was changed");
    }
    assert_eq!(lines(&begun(begin(MemoryStorage::default(), Link::to(&region), wish(4), config))), 6);
}

#[test]
fn what_the_region_is_given_while_a_directory_is_kept_anew_is_not_given_up() {
    let (mut behind, mut begins) = (0, 0);
    for seed in 0..60 {
        let (region, config) = (Region::new(seed), peers(seed));
        let mut life = first_life(&region, config.clone());
        live(&mut life, 0..3);
        let before = life.world.copied();
        life.ask(3, 3);
        life.keeper.store_mut().delays = true;
        assert!(life.turn(false).is_err_and(|trouble| trouble.is_passing()), "it is on its way");
        let value = |entries: &Entries, what: &str| {
            entries
                .iter()
                .find(|(key, _)| key.ends_with(what.as_bytes()))
                .map(|(_, (value, _))| value.clone())
        };
        let [owner, end] = ["/owner", "/end"].map(|what| value(&region.borrow().entries, what));
        region.borrow_mut().history = Some(Vec::new());
        // A copy that lacks it is kept anew: it arrives at any question of that start, or too late.
        let anew = Wish { anew: true, ..wish(2) };
        match begin(before, Link::to(&region), anew, config.clone()) {
            Ok(_) => {
                let history = region.borrow_mut().history.take().expect("it is recorded");
                let is_done =
                    |entries: &Entries| value(entries, "/owner") == owner && value(entries, "/end") != end;
                assert!(!history.iter().any(is_done), "seed {seed}: what the region had taken is given up");
                begins += 1;
            }
            Err((error, _)) => {
                assert!(matches!(error, KeptError::Behind { .. }), "{error}");
                behind += 1;
                assert_eq!(
                    lines(&begun(begin(MemoryStorage::default(), Link::to(&region), wish(3), config))),
                    4
                );
            }
        }
    }
    assert!(behind > 5 && begins > 5, "{behind} are behind, {begins} begin");
}

#[test]
fn a_region_that_ends_before_the_directory_begins_is_refused_and_kept_anew() {
    let (region, config) = (Region::new(3), peers(3));
    let mut life = first_life(&region, config.clone());
    live(&mut life, 0..2);
    let before = region.borrow().entries.clone();
    for round in 0..8 {
        for number in 0..12 {
            life.world.say(1000 * round + number, &format!("say {round} {number} {}", "z".repeat(500)));
        }
        life.world.step(Event::CheckpointNow);
        life.keep_all().expect("the region answers");
    }
    assert!(life.world.process.journal().first() > Lsn::ZERO, "it was trimmed");
    region.borrow_mut().entries = before;
    let (error, storage) = refused(begin(killed(life), Link::to(&region), wish(2), config.clone()));
    assert!(matches!(error, KeptError::Gap { .. }), "{error}");
    let anew = Wish { anew: true, ..wish(3) };
    let mut life = begun(begin(storage, Link::to(&region), anew, config.clone()));
    live(&mut life, 40..41);
    let entries = region.borrow().entries.clone();
    assert_eq!(lines(&revive(entries, config)), 2 + 8 * 12 + 1);
}

#[test]
fn a_directory_with_other_records_in_the_same_place_is_refused() {
    let (region, config) = (Region::new(4), peers(4));
    let mut life = first_life(&region, config.clone());
    live(&mut life, 0..3);
    life = begun(begin(killed(life), Link::to(&region), wish(2), config.clone()));
    live(&mut life, 0..0);
    // Two that go on from the same place, one of them without the region.
    let mut other = World::open(life.world.storage.clone(), config.clone(), Memo::default()).expect("a copy");
    live(&mut life, 3..5);
    for name in 5..9 {
        other.say(name, &format!("say other {name} {}", "z".repeat(300)));
    }
    other.settle();
    let mut other = other.killed();
    copy_note(&killed(life), &mut other);
    let (error, _) = refused(begin(other, Link::to(&region), wish(3), config));
    assert!(matches!(error, KeptError::Differs { .. }), "{error}");
}

#[test]
fn a_start_that_never_came_to_its_end_leaves_nothing_to_the_next_one() {
    let config = peers(5);
    let mut past = World::new(config.clone());
    for name in 0..30 {
        past.say(name, &format!("say past {name}"));
    }
    past.settle();
    let past = past.killed();
    let new = Wish { new: true, ..wish(1) };
    let mut unbegun = 0;
    for left in 0.. {
        let region = Region::new(left);
        let link = Link { left: Some(left), ..Link::to(&region) };
        let Err((error, again)) = begin(past.clone(), link, new, config.clone()) else { break };
        assert!(matches!(error, KeptError::Trouble { .. }), "{error}");
        let known = region.borrow().entries.keys().any(|key| key.ends_with(b"/owner"));
        if !known {
            let (said, world) = leave(again.clone(), Link::to(&region), config.clone());
            assert_eq!((said, world.storage.bytes("keep")), (Ok(()), None), "nobody knows it");
        }
        let entries = region.borrow().entries.clone();
        // The same directory goes on with it when it is told the same.
        let new = Wish { new: true, ..wish(2) };
        let mut life = begun(begin(again, Link::to(&Region::with(entries.clone(), 7)), new, config.clone()));
        live(&mut life, 0..1);
        assert_eq!(lines(&life), 31);
        // Once the region has heard of it, one that does not know it has lost it.
        let (error, _) = refused(begin(killed(life), Link::to(&Region::new(left)), new, config.clone()));
        assert!(matches!(error, KeptError::RegionLost { .. }), "{error}");
        // Another one has nothing of the first.
        let region = Region::with(entries, 8);
        if known {
            unbegun += 1;
            let (error, _) =
                refused(begin(MemoryStorage::default(), Link::to(&region), wish(3), config.clone()));
            assert!(matches!(error, KeptError::Unbegun { .. }), "{error}");
        }
        let anew = Wish { anew: true, new: !known, ..wish(4) };
        let mut life = begun(begin(MemoryStorage::default(), Link::to(&region), anew, config.clone()));
        live(&mut life, 0..4);
        let entries = region.borrow().entries.clone();
        let revived = revive(entries, config.clone());
        assert_eq!(lines(&revived), 4, "{:?}", revived.world.process.handler().lines);
    }
    assert!(unbegun > 3, "{unbegun} of them had begun");
}

#[test]
fn a_question_is_answered_by_nothing_but_what_was_asked_behind_it() {
    let (region, config) = (Region::new(6), peers(6));
    let mut life = first_life(&region, config.clone());
    live(&mut life, 0..2);
    // A turn that never comes to the region.
    let before = life.keeper.acknowledged().confirmed;
    life.keeper.confirm(before + 1);
    life.keeper.save(Lsn(1 << 40));
    let turned = life.keeper.turn(&mut life.world.storage, false);
    assert!(matches!(turned, Err(Trouble::Checkpoint(_))), "{turned:?}");
    assert_eq!(life.keeper.acknowledged().confirmed, before);
    // It is in nobody's way.
    life.ask(3, 3);
    life.hand_over();
    let turned = life.keeper.turn(&mut life.world.storage, false);
    assert_eq!((turned, life.keeper.acknowledged().confirmed), (Ok(true), before + 1));
    // Replaced: what it asks from now on is answered in the negative.
    life.keeper.confirm(before + 2);
    let _after = begun(begin(MemoryStorage::default(), Link::to(&region), wish(2), config));
    let turned = life.keeper.turn(&mut life.world.storage, true);
    assert!(matches!(turned, Err(Trouble::Taken(_))), "{turned:?}");
    assert_eq!(life.keeper.acknowledged().confirmed, before + 1);
}

/// Leaves with a directory, which is opened at another level.
fn leave(storage: MemoryStorage, link: Link, config: Config) -> (Result<(), KeptError>, World) {
    let config = Config { level: Level::Process, ..config };
    let mut world = World::open(storage, config, Memo::default()).expect("it recovers");
    let World { storage, catalog, report, .. } = &mut world;
    let left = match Shelf::find(link, NAME, SMALL) {
        Ok(mut shelf) => shelf.leave(&mut Directory { storage, catalog, report }, wish(3)),
        Err(trouble) => Err(KeptError::Trouble { name: NAME.to_owned(), trouble }),
    };
    (left, world)
}

/// A region that has something, and the directory of the last life there.
fn with_a_past(seed: u64, config: &Config) -> (Rc<RefCell<Region>>, MemoryStorage) {
    let region = Region::new(seed);
    let mut life = first_life(&region, config.clone());
    live(&mut life, 0..9);
    let storage = killed(life);
    (region, storage)
}

#[test]
fn leaving_comes_to_its_end_wherever_it_is_cut_off() {
    let config = peers(8);
    let (mut cut, mut lost) = (0, 0);
    for seed in 0..600 {
        let (region, storage) = with_a_past(seed, &config);
        // Cut off after so many questions; or every answer may be lost, and what was asked for be done or not.
        let (left, faults) = if seed < 20 { (Some(seed), 0) } else { (None, 15) };
        let (said, world) = leave(storage, Link { left, faults, ..Link::to(&region) }, config.clone());
        let owned = region.borrow().entries.keys().any(|key| key.ends_with(b"/owner"));
        cut += u32::from(said.is_err());
        lost += u32::from(said.is_err() && !owned);
        assert!(said.is_err() || !owned);
        let (said, world) = leave(world.killed(), Link::to(&region), config.clone());
        assert_eq!((said, world.storage.bytes("keep")), (Ok(()), None), "seed {seed}");
        // Not noted any more: nothing is asked but whether somebody else is that process.
        assert_eq!(leave(world.killed(), Link::to(&region), config.clone()).0, Ok(()), "seed {seed}");
        let (error, _) = refused(begin(MemoryStorage::default(), Link::to(&region), wish(4), config.clone()));
        assert!(matches!(error, KeptError::Unknown { .. }), "seed {seed}: {error}");
    }
    assert!(cut > 200 && lost > 3, "{cut} were cut off, {lost} of them when it was done");
}

#[test]
fn what_was_kept_before_somebody_left_fills_nobody_when_he_comes_back() {
    let config = peers(9);
    let mut unbegun = 0;
    for left in 0.. {
        let (region, storage) = with_a_past(left, &config);
        let (said, mut world) = leave(storage, Link::to(&region), config.clone());
        assert_eq!(said, Ok(()));
        for name in 20..23 {
            world.say(name, &format!("say {name}"));
        }
        world.settle();
        let new = Wish { new: true, ..wish(5) };
        let link = Link { left: Some(left), ..Link::to(&region) };
        let Err((_, again)) = begin(world.killed(), link, new, config.clone()) else {
            let entries = region.borrow().entries.clone();
            let kept = |key: &&Vec<u8>| String::from_utf8_lossy(key).contains("/log/");
            assert_eq!(lines(&revive(entries, config.clone())), 12);
            let mut life = begun(begin(MemoryStorage::default(), Link::to(&region), wish(6), config));
            let before = region.borrow().entries.keys().filter(kept).count();
            live(&mut life, 23..24);
            let after = region.borrow().entries.keys().filter(kept).count();
            assert!(after < before, "what was kept before is removed: {before} pieces, {after} of them now");
            break;
        };
        if region.borrow().entries.keys().any(|key| key.ends_with(b"/owner")) {
            unbegun += 1;
            let elsewhere = begin(MemoryStorage::default(), Link::to(&region), wish(6), config.clone());
            let (error, _) = refused(elsewhere);
            assert!(matches!(error, KeptError::Unbegun { .. }), "{error}");
            let life = begun(begin(again, Link::to(&region), new, config.clone()));
            assert_eq!(lines(&life), 12);
        }
    }
    assert!(unbegun > 2, "{unbegun} of them had begun");
}

#[test]
fn nobody_leaves_with_a_directory_that_has_nothing() {
    let config = peers(10);
    let (region, _) = with_a_past(10, &config);
    let find = || Shelf::find(Link::to(&region), NAME, SMALL).expect("the region answers");
    let said = find().refuse_leaving_empty(&mut MemoryStorage::default());
    assert!(matches!(said, Err(KeptError::LeavesEmpty { .. })), "{said:?}");
    // Half filled: it is noted, and has no journal yet; nor is one that was made since the one that is kept.
    let half = Link { left: Some(9), ..Link::to(&region) };
    let (_, mut half) = refused(begin(MemoryStorage::default(), half, wish(2), config.clone()));
    assert!(half.bytes("keep").is_some() && is_empty(&half));
    let said = find().refuse_leaving_empty(&mut half);
    assert!(matches!(said, Err(KeptError::LeavesEmpty { .. })), "{said:?}");
    let before = region.borrow().entries.clone();
    let (said, world) = leave(half, Link::to(&region), config.clone());
    assert!(matches!(said, Err(KeptError::LeavesEmpty { .. })), "{said:?}");
    let made = world.killed();
    let (said, world) = leave(made, Link::to(&region), config.clone());
    assert!(matches!(said, Err(KeptError::Elsewhere { .. } | KeptError::Behind { .. })), "{said:?}");
    let anew = Wish { anew: true, ..wish(3) };
    let (error, _) = refused(begin(world.killed(), Link::to(&region), anew, config.clone()));
    assert!(matches!(error, KeptError::Elsewhere { .. } | KeptError::Behind { .. }), "{error}");
    assert_eq!(region.borrow().entries, before, "nothing was changed");
    assert_eq!(lines(&begun(begin(MemoryStorage::default(), Link::to(&region), wish(4), config))), 9);
}

#[test]
fn a_directory_that_lost_its_superblock_and_was_never_kept_is_not_filled() {
    let config = peers(11);
    let (region, _) = with_a_past(11, &config);
    let mut other = World::new(config.clone());
    other.say(1, "say something that was never kept");
    other.settle();
    let mut other = other.killed();
    other.remove("superblock").expect("it is there");
    let files = other.list().expect("it lists");
    let before = region.borrow().entries.clone();
    let (error, mut left) = refused(begin(other, Link::to(&region), wish(2), config));
    assert!(matches!(error, KeptError::Leftover { .. }), "{error}");
    assert_eq!((left.list().expect("it lists"), &region.borrow().entries), (files, &before));
}

#[test]
fn who_leaves_fills_nobody_and_who_was_replaced_may_not_leave() {
    let (region, config) = (Region::new(7), peers(7));
    let mut life = first_life(&region, config.clone());
    live(&mut life, 0..3);
    let replaced = killed(life);
    let mut life = begun(begin(MemoryStorage::default(), Link::to(&region), wish(2), config.clone()));
    live(&mut life, 3..4);
    let last = killed(life);
    let leave = |storage: MemoryStorage| leave(storage, Link::to(&region), config.clone());
    assert!(matches!(leave(replaced).0, Err(KeptError::Elsewhere { .. })));
    let (left, world) = leave(last);
    assert_eq!((left, world.storage.bytes("keep")), (Ok(()), None));
    let (error, _) = refused(begin(MemoryStorage::default(), Link::to(&region), wish(4), config.clone()));
    assert!(matches!(error, KeptError::Unknown { .. }), "{error}");
    let again = Wish { new: true, ..wish(5) };
    let mut life = begun(begin(world.killed(), Link::to(&region), again, config.clone()));
    live(&mut life, 4..5);
    let entries = region.borrow().entries.clone();
    assert_eq!(lines(&revive(entries, config)), 5);
}

/// Whether a write of a life is done that arrives when another start has just become the owner, and has read nothing yet.
fn late_write_is_done(fences: bool) -> bool {
    let (region, config) = (Region::new(8), peers(8));
    let mut life = first_life(&region, config.clone());
    live(&mut life, 0..2);
    (region.borrow_mut().fences, region.borrow_mut().holds_late) = (fences, true);
    life.ask(3, 3);
    life.keeper.store_mut().delays = true;
    assert!(life.turn(false).is_err_and(|trouble| trouble.is_passing()), "nobody heard of it");
    let owner = |region: &Rc<RefCell<Region>>| {
        let entries = &region.borrow().entries;
        entries.iter().find(|(key, _)| key.ends_with(b"/owner")).map(|(_, (value, _))| value.clone())
    };
    let first = owner(&region);
    for left in 0.. {
        let link = Link { left: Some(left), ..Link::to(&region) };
        assert!(begin(MemoryStorage::default(), link, wish(left), config.clone()).is_err());
        if owner(&region) != first {
            break;
        }
    }
    let before = region.borrow().entries.clone();
    region.borrow_mut().arrive();
    before != region.borrow().entries
}

#[test]
fn what_a_life_sent_before_it_was_replaced_is_not_done_afterwards() {
    assert!(!late_write_is_done(true));
    assert!(late_write_is_done(false), "without the fence it would be: the scenario shows something");
}

#[test]
fn a_directory_that_is_to_have_further_ones_is_refused_before_it_takes_over() {
    let config = peers(14);
    let (region, storage) = with_a_past(14, &config);
    let before = region.borrow().entries.clone();
    let striped = |drawn| Wish { striped: true, ..wish(drawn) };
    let empty = begin(MemoryStorage::default(), Link::to(&region), striped(2), config.clone());
    let (error, mut left) = refused(empty);
    assert!(matches!(error, KeptError::Striped { .. }), "{error}");
    assert_eq!((left.list().expect("it lists"), &region.borrow().entries), (Vec::new(), &before));
    // One that has its journal has its stripes, too; and so has one that begins.
    assert_eq!(lines(&begun(begin(storage, Link::to(&region), striped(3), config.clone()))), 9);
    let new = Wish { new: true, ..striped(4) };
    begun(begin(MemoryStorage::default(), Link::to(&Region::new(14)), new, config));
}
