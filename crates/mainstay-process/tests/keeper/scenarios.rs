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

fn begun(begun: Result<Life, (KeptError, MemoryStorage)>) -> Life {
    begun.map_err(|(error, _)| error).expect("it begins")
}

/// Asks for `names`, and has the region keep all.
fn live(life: &mut Life, names: std::ops::Range<u64>) {
    for name in names {
        life.ask(name, name);
    }
    life.keep_all().expect("the region answers");
}

fn killed(mut life: Life) -> MemoryStorage {
    life.hand_over();
    life.world.killed()
}

fn lines(life: &Life) -> usize {
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
    let (error, _) = refused(begin(behind, Link::to(&region), wish(3), config.clone()));
    assert!(matches!(error, KeptError::Behind { .. }), "{error}");
    assert_eq!(region.borrow().entries, before, "nothing was changed");
    assert_eq!(lines(&begun(begin(MemoryStorage::default(), Link::to(&region), wish(4), config))), 6);
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
        let entries = region.borrow().entries.clone();
        // The same directory goes on with it, at least if it is told to.
        let anew = Wish { anew: true, ..wish(2) };
        let mut life = begun(begin(again, Link::to(&Region::with(entries.clone(), 7)), anew, config.clone()));
        live(&mut life, 0..1);
        assert_eq!(lines(&life), 31);
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

#[test]
fn who_leaves_fills_nobody_and_who_was_replaced_may_not_leave() {
    let (region, config) = (Region::new(7), peers(7));
    let mut life = first_life(&region, config.clone());
    live(&mut life, 0..3);
    let replaced = killed(life);
    let mut life = begun(begin(MemoryStorage::default(), Link::to(&region), wish(2), config.clone()));
    live(&mut life, 3..4);
    let last = killed(life);
    let mut leave = |storage: MemoryStorage| {
        let config = Config { level: Level::Process, ..config.clone() };
        let mut world = World::open(storage, config, Memo::default()).expect("it recovers");
        let mut shelf = Shelf::find(Link::to(&region), NAME, SMALL).expect("the region answers");
        let World { storage, catalog, report, .. } = &mut world;
        let left = shelf.leave(&mut Directory { storage, catalog, report }, wish(3));
        (left, world)
    };
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
