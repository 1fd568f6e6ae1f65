//! Optimistic logging against the truth: what was released is never undone, orphans vanish, nobody rolls back in vain or twice;
//! and each rule, when it is broken, is missed.

mod broken;
mod truth;
mod world;

use broken::{Broken, Fault};
use mainstay_recovery::logging::Malformed;
use mainstay_recovery::optimistic::Optimistic;
use world::{Reached, Violation, World};

const STEPS: usize = 500;

#[test]
fn what_was_released_is_never_undone_and_nobody_rolls_back_in_vain_or_twice() {
    let mut total = Reached::default();
    for seed in 0..1500 {
        let mut world = World::new(seed, &|me, all| Box::new(Optimistic::new(me, all)));
        let outcome = world.run(STEPS);
        assert_eq!(outcome, Ok(()), "seed {seed}");
        let reached = world.reached;
        total.states_lost += reached.states_lost;
        total.rollbacks += reached.rollbacks;
        total.rollbacks_of_safe_states += reached.rollbacks_of_safe_states;
        total.orphans_dropped += reached.orphans_dropped;
        total.postponed += reached.postponed;
        total.released += reached.released;
        total.checkpoints += reached.checkpoints;
        total.replayed += reached.replayed;
    }
    for (what, count) in [
        ("states lost", total.states_lost),
        ("rollbacks", total.rollbacks),
        ("rollbacks of states that were safe", total.rollbacks_of_safe_states),
        ("orphans dropped", total.orphans_dropped),
        ("messages postponed", total.postponed),
        ("outputs released", total.released),
        ("checkpoints", total.checkpoints),
        ("deliveries replayed", total.replayed),
    ] {
        assert!(count >= 10, "{what}: only {count}");
    }
}

/// Whether breaking a rule leads to such a violation within some seeds.
fn caught(fault: Fault, expected: impl Fn(&Violation) -> bool) -> bool {
    (0..300).any(|seed| {
        let make: &world::Make = &move |me, all| Box::new(Broken::new(fault, me, all));
        World::new(seed, make).run(STEPS).is_err_and(|violation| expected(&violation))
    })
}

#[test]
fn a_stamp_must_name_what_is_depended_on_through_others() {
    // The protocol itself notices afterwards that something left that cannot be taken back.
    let undone = |violation: &Violation| matches!(violation, Violation::Refused(Malformed::Retracted { .. }));
    assert!(caught(Fault::DirectDependenciesOnly, undone));
}

#[test]
fn an_output_must_wait_for_other_journals_too() {
    assert!(caught(Fault::OwnJournalSuffices, |violation| *violation == Violation::ReleasedUndone));
}

#[test]
fn causes_must_be_told_with_their_consequences() {
    assert!(caught(Fault::OwnLivesOnly, |violation| *violation == Violation::RolledBackWithoutCause));
}

#[test]
fn known_losses_must_survive_a_crash() {
    let again = [Violation::RolledBackAgain, Violation::RolledBackWithoutCause];
    assert!(caught(Fault::LossesForgotten, |violation| again.contains(violation)));
}

#[test]
fn losses_must_be_told() {
    let unknown = |violation: &Violation| {
        matches!(violation, Violation::Refused(Malformed::NeverReached { what: "life", .. }))
    };
    assert!(caught(Fault::LivesUntold, unknown));
}

#[test]
fn a_rollback_must_go_far_enough() {
    assert!(caught(Fault::KeepsOneTooMany, |violation| *violation == Violation::OrphanKept));
}

#[test]
fn a_rollback_must_go_no_further() {
    assert!(caught(Fault::KeepsOneTooFew, |violation| *violation == Violation::RolledBackUnneeded));
}
