//! What another machine does between what a start finds in the region and its taking over.

use super::scenarios::{begun, killed, lines, live};
use super::*;

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
