//! What another machine does between what a start finds in the region and its taking over.

use super::scenarios::{begun, killed, lines, live};
use super::*;
use mainstay_journal::storage::Storage;
use mainstay_process::checkpoint::final_name;
use mainstay_types::id::Lsn;
use std::cell::Cell;
use std::collections::BTreeSet;

#[test]
fn a_life_that_begins_in_place_while_another_machine_takes_over_is_known_there() {
    for named in [false, true] {
        let (region, config) = (Region::new(12), peers(12));
        let mut life = first_life(&region, config.clone());
        live(&mut life, 0..3);
        // Found in its first life; in the next one it is replaced.
        let found = Shelf::find(Link::to(&region), NAME, SMALL).expect("the region answers");
        life.hand_over();
        let Life { world, mut keeper } = life;
        let first = world.report.generation;
        let world = World::open(world.killed(), config.clone(), Memo::default()).expect("it recovers");
        let second = world.report.generation;
        assert!(second > first);
        if named {
            keeper.enter_life(second.0);
        }
        let mut life = Life { world, keeper };
        if named {
            live(&mut life, 3..5);
        }
        let after = begin_found(found, MemoryStorage::default(), wish(2), config.clone());
        let mut after = begun(after);
        let third = after.world.report.generation;
        assert_eq!(third > second, named, "no number of a life that was heard of is used again: {third:?}");
        assert_eq!(lines(&after), if named { 5 } else { 3 });
        live(&mut after, 5..6);
        assert!(matches!(life.turn(true), Err(Trouble::Taken(_))));
        let entries = region.borrow().entries.clone();
        assert_eq!(lines(&revive(entries, config.clone())), lines(&after));
        drop(begun(begin(killed(after), Link::to(&region), wish(3), config)));
    }
}

/// A directory that was never kept, in which so many commands were handled.
fn past(config: &Config, commands: u64) -> MemoryStorage {
    let mut past = World::new(config.clone());
    for name in 0..commands {
        past.say(name, &format!("say past {name}"));
    }
    past.settle();
    past.killed()
}

/// While a directory's past is given to the region, after each of its questions, another machine finds what is there; `empty` or with a past of its
/// own it is to be kept anew, when the first has come to its end and has answered. How often the first had not come to its end when it was found.
fn found_while_it_is_given(empty: bool) -> u32 {
    let config = peers(13);
    let mut unbegun = 0;
    for after in 0.. {
        let region = Region::new(13);
        let found: Rc<Cell<Option<Shelf<Link>>>> = Rc::default();
        let find = {
            let (found, region) = (Rc::clone(&found), Rc::clone(&region));
            move || found.set(Some(Shelf::find(Link::to(&region), NAME, SMALL).expect("it answers")))
        };
        let link = Link { between: Some((after, Box::new(find))), ..Link::to(&region) };
        let new = Wish { new: true, ..wish(1) };
        let mut life = begun(begin(past(&config, 30), link, new, config.clone()));
        let Some(found) = found.take() else { break };
        live(&mut life, 0..2);
        let before = region.borrow().entries.clone();
        let storage = if empty { MemoryStorage::default() } else { past(&config, 40) };
        let anew = Wish { anew: true, ..wish(2) };
        match begin_found(found, storage, anew, config.clone()) {
            // What it had found was whole.
            Ok(filled) => assert_eq!((empty, lines(&filled)), (true, 32), "after {after} questions"),
            Err((error, _)) => {
                assert!(matches!(error, KeptError::Elsewhere { .. }), "after {after} questions: {error}");
                assert_eq!(region.borrow().entries, before, "after {after} questions: nothing was changed");
                live(&mut life, 2..3);
                unbegun += 1;
                let entries = region.borrow().entries.clone();
                assert_eq!(lines(&revive(entries, config.clone())), 33);
            }
        }
    }
    unbegun
}

#[test]
fn nothing_is_taken_by_keeping_anew_from_a_start_that_comes_to_its_end_meanwhile() {
    for empty in [true, false] {
        let unbegun = found_while_it_is_given(empty);
        assert!(unbegun > 3, "{unbegun} were found before the end");
    }
}

#[test]
fn a_checkpoint_that_cannot_be_read_hides_no_later_owner_and_holds_up_no_later_one() {
    for case in 0..6 {
        let (region, config) = (Region::new(15), peers(15));
        let mut life = first_life(&region, config.clone());
        live(&mut life, 0..9);
        life.world.step(Event::CheckpointNow);
        life.world.settle();
        let lsn = life.world.published.expect("it is published");
        life.hand_over();
        let said = |life: &Life| life.keeper.acknowledged().checkpoint;
        assert!(said(&life) < lsn, "the region lacks it");
        // It is begun in half of the cases; then its file is not there.
        if case % 2 == 1 {
            assert_eq!(life.turn(false), Ok(true));
        }
        let file = final_name(lsn);
        life.world.storage.rename(&file, "away").expect("it is there");
        assert!(matches!(life.turn(false), Err(Trouble::Checkpoint(_))));
        assert!(life.keeper.is_stuck() && !life.keeper.has_work(), "case {case}");
        // Tried again with each look, and in nobody's way.
        assert!(matches!(life.turn(true), Err(Trouble::Checkpoint(_))));
        life.ask(10, 10);
        life.world.settle();
        assert_eq!((life.turn(false), life.answers().pop().map(|(name, _)| name)), (Ok(true), Some(10)));
        if case < 2 {
            let _after = begun(begin(MemoryStorage::default(), Link::to(&region), wish(2), config));
            assert!(matches!(life.turn(true), Err(Trouble::Taken(_))), "case {case}");
            continue;
        }
        // It can be read again; or a later life has published another one.
        let lsn = if case < 4 { lsn } else { Lsn(lsn.0 + 1) };
        life.world.storage.rename("away", &final_name(lsn)).expect("it is there");
        life.keeper.save(lsn);
        assert_eq!(life.turn(true), Ok(true));
        life.keep_all().expect("the region answers");
        assert_eq!((life.keeper.is_stuck(), said(&life)), (false, lsn), "case {case}");
    }
}

#[test]
fn starts_without_a_checkpoint_between_them_are_not_listed_without_end() {
    let (region, mut config) = (Region::new(16), peers(16));
    config.limits.checkpoint_log_bytes = 1 << 20;
    let mut life = first_life(&region, config.clone());
    let mut most = 0;
    for name in 0..40 {
        live(&mut life, name..name + 1);
        let starts: BTreeSet<String> = region
            .borrow()
            .entries
            .keys()
            .filter_map(|key| std::str::from_utf8(key).expect("it is text").split_once("/log/"))
            .map(|(start, _)| start.to_owned())
            .collect();
        most = most.max(starts.len());
        life = begun(begin(killed(life), Link::to(&region), wish(name + 2), config.clone()));
    }
    assert_eq!(most, SMALL.stretches_max);
    let entries = region.borrow().entries.clone();
    assert_eq!(lines(&revive(entries, config)), 40);
}
