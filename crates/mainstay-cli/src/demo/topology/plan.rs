//! Which nodes are killed, in which order, at which moment, and what dies with them: drawn from the seed before anything
//! starts.

use super::NODES;
use crate::demo::draw::Draw;
use crate::demo::plan::{Moment, due_after};

/// One strike: nodes that go down together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Strike {
    /// Which nodes, counted from 0.
    pub(crate) nodes: Vec<usize>,
    /// When.
    pub(crate) moment: Moment,
    /// Whether what their memory held goes with them, as if their machines had lost power.
    pub(crate) machine: bool,
    /// How many requests must have been answered before; 0 for a strike that follows at once upon the one before.
    pub(crate) after_answered: u64,
    /// How long to wait within the moment, as a fraction of what it usually lasts.
    pub(crate) delay: f64,
}

/// All strikes of a demo, spread over its requests: `kills` nodes go down, at most `down_max` at the same time.
#[must_use]
pub(crate) fn plan(seed: u64, kills: u64, requests: u64, down_max: usize) -> Vec<Strike> {
    let mut draw = Draw::new(seed, u64::MAX);
    let mut plan = Vec::new();
    let mut planned = 0;
    let mut machines = 0_u64;
    while planned < kills {
        let mut deck = deck(&mut draw, down_max);
        if plan.is_empty() {
            // Even a demo of few kills shows what the policy can bear: the last hand is the hardest.
            let hardest = deck.pop().expect("the deck has hands");
            deck.insert(0, hardest);
        }
        for hand in deck {
            for (place, (mut nodes, moment)) in hand.into_iter().enumerate() {
                nodes.truncate(usize::try_from(kills - planned).unwrap_or(usize::MAX));
                if nodes.is_empty() {
                    return plan;
                }
                let after_answered = if place == 0 { due_after(planned, kills, requests) } else { 0 };
                planned += nodes.len() as u64;
                machines += 1;
                // Now and then only the process dies.
                let machine = !machines.is_multiple_of(4);
                plan.push(Strike { nodes, moment, machine, after_answered, delay: draw.fraction() });
            }
        }
    }
    plan
}

type Card = (Vec<usize>, Moment);

/// Hands of strikes that follow upon each other, in a random order but for the last: a kill within recovery needs one before.
fn deck(draw: &mut Draw, down_max: usize) -> Vec<Vec<Card>> {
    let mut nodes: Vec<usize> = (0..NODES).collect();
    draw.shuffle(&mut nodes);
    let [a, b, c] = nodes[..] else { unreachable!("there are three nodes") };
    let one = |node, moment| (vec![node], moment);
    let mut deck = vec![
        vec![one(a, Moment::Working)],
        vec![one(b, Moment::Working)],
        vec![one(c, Moment::Working)],
        vec![one(a, Moment::Checkpointing)],
        vec![one(b, Moment::Working), one(b, Moment::Recovering)],
    ];
    if down_max > 1 {
        // The second goes down before the first is up again.
        deck.push(vec![one(c, Moment::Working), one(a, Moment::Recovering)]);
    }
    draw.shuffle(&mut deck);
    deck.push(if down_max > 1 {
        vec![(vec![a, b], Moment::Working), one(a, Moment::Recovering)]
    } else {
        vec![one(c, Moment::Working), one(c, Moment::Recovering)]
    });
    deck
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_as_many_kills_as_asked_for_within_the_requests_and_never_too_many_nodes_at_once() {
        for (seed, kills, down_max) in [(1, 6, 1), (2, 6, 2), (3, 1, 2), (4, 100, 1), (5, 101, 2), (6, 0, 1)]
        {
            let plan = plan(seed, kills, 5_000, down_max);
            assert_eq!(plan.iter().map(|strike| strike.nodes.len() as u64).sum::<u64>(), kills);
            assert!(
                plan.iter().all(|strike| strike.nodes.len() <= down_max && strike.after_answered < 5_000)
            );
            assert_eq!(plan, super::plan(seed, kills, 5_000, down_max));
        }
    }

    #[test]
    fn even_six_kills_show_a_kill_in_recovery_and_two_at_once_where_that_is_borne() {
        for seed in 0..20 {
            for down_max in [1, 2] {
                let plan = plan(seed, 6, 300, down_max);
                assert!(plan.iter().any(|strike| strike.moment == Moment::Recovering), "seed {seed}");
                assert_eq!(plan[0].nodes.len(), down_max, "seed {seed}");
                for pair in plan.windows(2) {
                    let follows = pair[1].moment == Moment::Recovering;
                    assert_eq!(pair[1].after_answered == 0, follows, "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn one_in_four_takes_the_process_alone() {
        let plan = plan(1, 40, 5_000, 1);
        assert_eq!(plan.iter().filter(|strike| !strike.machine).count(), 10);
    }
}
