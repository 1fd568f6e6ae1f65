//! Causal logging against a model of whole clusters: random traffic, sessions that break, up to `f` nodes down at a time, also
//! during the recovery of others. The oracle is the condition of Alvisi and Marzullo (1998), and that every recovered node
//! has what it ever called recoverable and what any survivor depends on.

mod node;
mod steps;
mod world;

use std::ops::Range;
use world::{Broken, Reached, World};

const STEPS: usize = 700;

fn run(n: usize, f: u8, seed: u64, broken: Broken, reached: &mut Reached) -> Result<(), String> {
    let mut world = World::new(n, f, seed, broken);
    let verdict = world.run(STEPS);
    for (what, times) in world.reached {
        *reached.entry(what).or_default() += times;
    }
    verdict.map_err(|what| format!("{n} nodes, f = {f}, seed {seed}: {what}"))
}

fn survive(seeds: Range<u64>) -> Reached {
    let mut reached = Reached::new();
    for seed in seeds {
        for (n, f) in [(2, 1), (3, 1), (5, 1), (3, 2), (4, 2), (5, 2), (5, 3)] {
            if let Err(what) = run(n, f, seed, Broken::Nothing, &mut reached) {
                panic!("{what}");
            }
        }
    }
    reached
}

#[test]
fn up_to_f_failures_at_any_moment_lose_nothing_that_anyone_depends_on() {
    // Beside the first ones those that once found a fault.
    let mut reached = survive(0..30);
    for seeds in [81..82, 117..118, 975..976, 1244..1245] {
        for (what, times) in survive(seeds) {
            *reached.entry(what).or_default() += times;
        }
    }
    for rare in [
        "crash",
        "crash while another is down",
        "crash in recovery",
        "tail lost",
        "replayed",
        "remembered",
        "retold",
        "held",
        "carry",
        "again",
        "covered",
        "not yet",
        "input too long",
        "input given back",
        "input behind a hole",
    ] {
        assert!(reached.contains_key(rare), "the schedule never comes to: {rare}");
    }
}

#[test]
fn every_broken_rule_is_noticed() {
    for (broken, n, f, seeds) in [
        (Broken::NothingAttached, 4, 2, 0..50),
        (Broken::OneCopyShort, 4, 2, 0..50),
        (Broken::NotYetIgnored, 4, 2, 0..150),
        (Broken::NothingCollected, 4, 2, 0..50),
        (Broken::OthersNotSaved, 4, 2, 0..300),
        (Broken::BarrierIgnored, 4, 2, 0..100),
        (Broken::NotFenced, 4, 2, 0..150),
        // It takes three that fail, and shows about once in a thousand histories.
        (Broken::AnswersTooEarly, 5, 3, 1_150..1_250),
    ] {
        let noticed = seeds.into_iter().find_map(|seed| {
            let run = std::panic::catch_unwind(|| run(n, f, seed, broken, &mut Reached::new()));
            match run {
                Ok(Ok(())) => None,
                Ok(Err(what)) => Some(what),
                Err(_) => Some(format!("seed {seed}: an invariant of the machine")),
            }
        });
        assert!(noticed.is_some(), "{broken:?} goes unnoticed");
    }
}

/// Some three minutes with `cargo test -p mainstay-recovery --test causal -- --ignored`.
#[test]
#[ignore = "a long campaign: 21,000 histories"]
fn up_to_f_failures_in_many_histories() {
    survive(10_000..13_000);
}
