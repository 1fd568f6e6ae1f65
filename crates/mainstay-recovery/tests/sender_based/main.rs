//! Sender-based and hybrid logging in a model: a crash at every step, and long histories with many crashes.

mod node;
mod world;

use mainstay_recovery::policy::Policy;
use mainstay_types::id::NodeId;
use node::Broken;
use world::{Reached, Violation, World};

const SENDER_BASED: [Policy; 3] = [Policy::SenderBased; 3];
const CLUSTERS: [&[Policy]; 4] = [
    &SENDER_BASED,
    &[Policy::Hybrid, Policy::Hybrid, Policy::Hybrid],
    &[Policy::SenderBased, Policy::Hybrid, Policy::Deferred],
    &[Policy::SenderBased, Policy::SenderBased],
];

/// One crash, of one node, before one step; what happens besides is the same for every step.
fn crash_at(step: u64, victim: NodeId, seed: u64, policies: &[Policy]) -> Result<Reached, Violation> {
    let mut world = World::new(seed, policies, None);
    for now in 0..240 {
        if now == step {
            world.crash(victim);
        }
        if now == step + 10 {
            world.restart(victim)?;
        }
        world.step()?;
    }
    world.settle()?;
    Ok(world.reached)
}

/// Many crashes, one at a time: the next comes when all run.
fn history(seed: u64, policies: &[Policy], broken: Option<Broken>) -> Result<Reached, Violation> {
    let mut world = World::new(seed, policies, broken);
    let mut down = None;
    for _ in 0..1500 {
        let victim = NodeId(world.below(policies.len() as u64) as u32);
        match (down, world.below(60)) {
            (None, 0) if world.all_run() => {
                world.crash(victim);
                down = Some(victim);
            }
            (Some(id), 0..6) => {
                world.restart(id)?;
                down = None;
            }
            _ => world.step()?,
        }
    }
    world.settle()?;
    Ok(world.reached)
}

#[test]
fn a_crash_of_any_node_at_any_step_leaves_no_orphan_and_loses_nothing() {
    for policies in CLUSTERS {
        for step in 0..200 {
            for victim in (0..policies.len() as u32).map(NodeId) {
                let outcome = crash_at(step, victim, 1, policies);
                assert!(outcome.is_ok(), "{policies:?} step {step} {victim}: {outcome:?}");
            }
        }
    }
}

#[test]
fn many_crashes_one_after_the_other_leave_no_orphan_and_lose_nothing() {
    let mut sum = Reached::default();
    for policies in CLUSTERS {
        for seed in 0..100 {
            let reached = history(seed, policies, None);
            let reached =
                reached.unwrap_or_else(|violation| panic!("{policies:?} seed {seed}: {violation:?}"));
            sum.crashes += reached.crashes;
            sum.outputs += reached.outputs;
            sum.messages += reached.messages;
            sum.rode_along += reached.rode_along;
            sum.stale_places += reached.stale_places;
        }
    }
    // The branches that matter were reached.
    assert!(sum.crashes > 2_000 && sum.outputs > 10_000 && sum.messages > 40_000, "{sum:?}");
    assert!(sum.rode_along > 1_000 && sum.stale_places > 100, "{sum:?}");
}

#[test]
fn every_rule_left_out_is_noticed() {
    for broken in [
        Broken::MessagesWait,
        Broken::OnlyTheKeeperMayReceive,
        Broken::RidesAlong,
        Broken::NewLivesAreTold,
        Broken::Collects,
    ] {
        let noticed = (0..200).any(|seed| history(seed, &SENDER_BASED, Some(broken)).is_err());
        assert!(noticed, "nothing is the worse without {broken:?}");
    }
}
