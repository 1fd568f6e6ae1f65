//! What is done to the nodes, in which order: drawn from the seed before anything starts.

use super::NODES;
use crate::demo::draw::Draw;
use crate::demo::plan::due_after;

/// One blow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Blow {
    /// These nodes are killed at the same time, and started again.
    Kill(Vec<usize>),
    /// The first node and the others hear nothing of each other for a while; the second is killed meanwhile.
    Cut(usize, Option<usize>),
    /// This node is stopped with SIGSTOP until the others go on without it, and then goes on itself.
    Stop(usize),
    /// This node is killed, started, and killed again before it is back.
    KillJoining(usize),
}

impl Blow {
    fn kills(&self) -> u64 {
        match self {
            Self::Kill(nodes) => nodes.len() as u64,
            Self::Cut(_, killed) => u64::from(killed.is_some()),
            Self::Stop(_) => 0,
            Self::KillJoining(_) => 2,
        }
    }
}

/// A blow and its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Planned {
    pub(crate) blow: Blow,
    /// How many requests must have been answered before.
    pub(crate) after_answered: u64,
}

/// All blows: `kills` kills, in rounds of each node in turn, two at once, one while it comes back, one during a cut, and all at once; in each round
/// also a cut and a stop, and at least one of each in all.
#[must_use]
pub(crate) fn plan(seed: u64, kills: u64, requests: u64) -> Vec<Planned> {
    let mut draw = Draw::new(seed, u64::MAX);
    let mut blows: Vec<Blow> = Vec::new();
    let mut left = kills;
    while left > 0 || blows.is_empty() {
        let mut order: Vec<usize> = (0..NODES).collect();
        let mut drawn = || {
            draw.shuffle(&mut order);
            order.clone()
        };
        let mut round: Vec<Blow> = drawn().into_iter().map(|node| Blow::Kill(vec![node])).collect();
        round.push(Blow::Kill(drawn()[..2].to_vec()));
        round.push(Blow::Cut(drawn()[0], None));
        round.push(Blow::Stop(drawn()[0]));
        round.push(Blow::Kill(drawn()));
        round.push(Blow::KillJoining(drawn()[0]));
        let pair = drawn();
        round.push(Blow::Cut(pair[0], Some(pair[1])));
        for mut blow in round {
            if blow.kills() > left {
                blow = match blow {
                    Blow::Kill(nodes) => {
                        Blow::Kill(nodes.into_iter().take(usize::try_from(left).unwrap_or(NODES)).collect())
                    }
                    Blow::Cut(node, _) => Blow::Cut(node, None),
                    Blow::KillJoining(node) => Blow::Kill(vec![node; usize::from(left > 0)]),
                    Blow::Stop(node) => Blow::Stop(node),
                };
            }
            left -= blow.kills();
            if blow != Blow::Kill(Vec::new()) {
                blows.push(blow);
            }
        }
    }
    let count = blows.len() as u64;
    let planned = |(index, blow)| Planned { blow, after_answered: due_after(index, count, requests) };
    (0..).zip(blows).map(planned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_every_kind_of_blow_and_no_plan_more_kills_than_asked_for() {
        for seed in 0..20 {
            for kills in [0, 1, 4, 5, 8, 11, 30] {
                let plan = plan(seed, kills, 1000);
                let killed: u64 = plan.iter().map(|planned| planned.blow.kills()).sum();
                assert_eq!(killed, kills);
                assert!(plan.iter().any(|planned| matches!(planned.blow, Blow::Cut(..))));
                assert!(plan.iter().any(|planned| matches!(planned.blow, Blow::Stop(_))));
                assert!(plan.iter().all(|planned| planned.after_answered < 1000));
            }
            let whole: Vec<u64> = plan(seed, 11, 1000).iter().map(|planned| planned.blow.kills()).collect();
            assert_eq!(whole, [1, 1, 1, 2, 0, 0, 3, 2, 1], "seed {seed}");
        }
    }
}
