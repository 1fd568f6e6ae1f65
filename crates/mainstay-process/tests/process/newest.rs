//! The newest deliveries, of which no record speaks yet: that a handler does something else in their replay is found as well.

use crate::support::{Memo, World, config};
use mainstay_process::config::Config;
use mainstay_process::event::Event;
use mainstay_process::recover::RecoverError;
use mainstay_recovery::policy::Policy;

fn elsewhere() -> Memo {
    Memo { world: 5000, ..Memo::default() }
}

/// kill -9, then a start with a handler that sees another world.
fn killed(world: World, policy: Policy) -> Result<World, RecoverError> {
    World::open(world.killed(), Config { policy, ..config() }, elsewhere())
}

#[test]
fn the_last_delivery_before_a_kill_is_compared_with_what_it_did() {
    let mut world = World::new(config());
    world.say(1, "a");
    world.say(2, "diverge");
    world.settle();
    let storage = world.killed();
    let error = World::open(storage.clone(), config(), elsewhere()).err().expect("it diverges");
    let RecoverError::Diverged { delivery, recorded, now, .. } = &error else { panic!("got {error}") };
    assert_eq!((delivery.0, recorded.status, now.status), (2, 200, 200));
    assert_ne!(recorded, now);

    // What it did is known still in the life after, as long as nothing else was delivered there.
    let world = World::open(storage, config(), Memo::default()).expect("the same handler does the same");
    assert_eq!(world.recovery.replayed, 2);
    let storage = world.killed();
    assert!(matches!(
        World::open(storage.clone(), config(), elsewhere()),
        Err(RecoverError::Diverged { .. })
    ));

    let mut world = World::open(storage, config(), Memo::default()).expect("the same handler does the same");
    world.say(3, "b");
    world.settle();
    let error = killed(world, Policy::Deferred).err().expect("it diverges");
    let RecoverError::Diverged { delivery, .. } = &error else { panic!("got {error}") };
    assert_eq!(delivery.0, 2, "the record of the third says it");
}

#[test]
fn one_that_was_logged_together_with_later_ones_is_compared_too() {
    let config = || Config { policy: Policy::Immediate, ..config() };
    let mut world = World::new(config());
    for (number, text) in (1..).zip(["a", "diverge", "b", "c"]) {
        world.say(number, text);
    }
    world.settle();
    let error = killed(world, Policy::Immediate).err().expect("it diverges");
    let RecoverError::DivergedBefore { first, delivery, .. } = &error else { panic!("got {error}") };
    assert_eq!((first.0, delivery.0), (1, 4));
    assert!(error.to_string().contains("Nothing was changed"), "{error}");
}

#[test]
fn one_that_is_noted_ended_well_and_is_not_tried_again_when_its_attempt_is_gone() {
    const ATTEMPT_CELL: std::ops::Range<usize> = 1536..1560;
    let mut world = World::new(config());
    world.say(1, "panic-elsewhere");
    world.settle();
    let storage = world.copied_with(|control| control[ATTEMPT_CELL].fill(0));
    let error = World::open(storage, config(), elsewhere()).err().expect("it did not panic before");
    assert!(matches!(error, RecoverError::PanicsInReplay { .. }), "got {error}");
}

#[test]
fn what_a_checkpoint_has_is_not_replayed_and_what_came_after_is_compared() {
    let mut world = World::new(config());
    world.say(1, "diverge");
    world.settle();
    world.step(Event::CheckpointNow);
    world.settle();
    let storage = world.killed();
    let mut world = World::open(storage, config(), elsewhere()).expect("nothing is replayed");
    assert_eq!(world.recovery.replayed, 0);
    world.say(2, "a");
    world.say(3, "diverge");
    world.settle();
    let error = World::open(world.killed(), config(), Memo { world: 6000, ..Memo::default() })
        .err()
        .expect("it diverges");
    let RecoverError::Diverged { delivery, .. } = &error else { panic!("got {error}") };
    assert_eq!(delivery.0, 3);
}

#[test]
fn after_a_power_loss_nothing_is_known_of_the_last_one() {
    let mut world = World::new(config());
    world.say(1, "diverge");
    world.settle();
    let world = world.crash_with(config(), elsewhere()).expect("no record speaks of it");
    assert_eq!(world.recovery.replayed, 1);
    // From then on it is what this life made of it.
    assert!(World::open(world.killed(), config(), elsewhere()).is_ok());
}
