//! What is done to the nodes, in which order: drawn from the seed before anything starts.

use super::NODES;
use crate::demo::draw::Draw;
use crate::demo::plan::due_after;

/// One blow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Blow {
    /// These nodes are killed at the same time, and started again.
    Kill(Vec<usize>),
    /// This node and the others hear nothing of each other for a while.
    Cut(usize),
}

/// A blow and its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Planned {
    pub(crate) blow: Blow,
    /// How many requests must have been answered before.
    pub(crate) after_answered: u64,
}

/// All blows: `kills` kills, each node in turn and then two at once, over and over, and a cut after each round; at least one cut.
#[must_use]
pub(crate) fn plan(seed: u64, kills: u64, requests: u64) -> Vec<Planned> {
    let mut draw = Draw::new(seed, u64::MAX);
    let mut blows = Vec::new();
    let mut left = kills;
    while left > 0 {
        let mut order: Vec<usize> = (0..NODES).collect();
        draw.shuffle(&mut order);
        let pair = order[..2].to_vec();
        draw.shuffle(&mut order);
        for nodes in order.iter().map(|&node| vec![node]).chain([pair]) {
            let nodes: Vec<usize> = nodes.into_iter().take(usize::try_from(left).unwrap_or(NODES)).collect();
            left -= nodes.len() as u64;
            if !nodes.is_empty() {
                blows.push(Blow::Kill(nodes));
            }
        }
        if left > 0 {
            blows.push(Blow::Cut(order[0]));
        }
    }
    if !blows.iter().any(|blow| matches!(blow, Blow::Cut(_))) {
        blows.push(Blow::Cut(usize::try_from(draw.below(NODES as u64)).expect("an index fits")));
    }
    let count = blows.len() as u64;
    let planned = |(index, blow)| Planned { blow, after_answered: due_after(index, count, requests) };
    (0..).zip(blows).map(planned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_kills_each_node_then_two_at_once_and_every_plan_has_a_cut() {
        for seed in 0..20 {
            for kills in [0, 1, 5, 12] {
                let plan = plan(seed, kills, 1000);
                let killed: usize = plan
                    .iter()
                    .map(|planned| match &planned.blow {
                        Blow::Kill(nodes) => nodes.len(),
                        Blow::Cut(_) => 0,
                    })
                    .sum();
                assert_eq!(killed as u64, kills);
                assert!(plan.iter().any(|planned| matches!(planned.blow, Blow::Cut(_))));
                assert!(plan.iter().all(|planned| planned.after_answered < 1000));
            }
            let first: Vec<Blow> =
                plan(seed, 5, 1000).into_iter().take(4).map(|planned| planned.blow).collect();
            let sizes: Vec<usize> =
                first.iter().map(|blow| if let Blow::Kill(nodes) = blow { nodes.len() } else { 0 }).collect();
            assert_eq!(sizes, [1, 1, 1, 2], "seed {seed}");
        }
    }
}
