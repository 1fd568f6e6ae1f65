//! Who is killed, in which order, and at which moment: drawn from the seed before anything starts.

use super::draw::Draw;
use super::requests::CLIENTS;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// One process of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// The ledger.
    Service,
    /// The receiver that drops a key it has seen.
    ReceiverOnce,
    /// The receiver that does not.
    ReceiverAgain,
    /// A client.
    Client(usize),
    /// The process that starts all of these again; they die with it.
    Supervisor,
}

/// Not the name of a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no part of the demo")]
pub(crate) struct UnknownRole {
    /// What was given.
    pub(crate) given: String,
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(given: &str) -> Result<Self, UnknownRole> {
        let clients = (0..CLIENTS).map(Self::Client);
        [Self::Service, Self::ReceiverOnce, Self::ReceiverAgain, Self::Supervisor]
            .into_iter()
            .chain(clients)
            .find(|role| role.name() == given)
            .ok_or_else(|| UnknownRole { given: given.to_owned() })
    }
}

/// When a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Moment {
    /// At work.
    Working,
    /// While it recovers from the kill before.
    Recovering,
    /// While a checkpoint is being written.
    Checkpointing,
}

/// One kill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kill {
    /// Whom.
    pub(crate) role: Role,
    /// When.
    pub(crate) moment: Moment,
    /// How many requests must have been answered before; 0 for a kill that follows at once upon the one before.
    pub(crate) after_answered: u64,
    /// How long to wait within the moment, as a fraction of what it usually lasts.
    pub(crate) delay: f64,
}

/// All kills of a demo, spread over its requests.
#[must_use]
pub(crate) fn plan(seed: u64, kills: u64, requests: u64) -> Vec<Kill> {
    let mut draw = Draw::new(seed, u64::MAX);
    let mut plan = Vec::new();
    while (plan.len() as u64) < kills {
        let mut deck = deck(&mut draw);
        if plan.is_empty() {
            // Even a demo of few kills shows each moment.
            let first =
                deck.iter().position(|hand| hand.starts_with(&[SERVICE_CHECKPOINTING, SERVICE_RECOVERING]));
            deck.swap(0, first.expect("the deck has such a hand"));
            let second = deck.iter().position(|hand| *hand == [SERVICE_WORKING]);
            deck.swap(1, second.expect("the deck has such a hand"));
        }
        for hand in deck {
            for (place, (role, moment)) in hand.into_iter().enumerate() {
                let index = plan.len() as u64;
                let after_answered = if place == 0 { due_after(index, kills, requests) } else { 0 };
                plan.push(Kill { role, moment, after_answered, delay: draw.fraction() });
            }
        }
    }
    plan.truncate(usize::try_from(kills).expect("a demo has fewer kills than memory"));
    plan
}

/// How many of `requests` must have been answered before kill number `index` of `kills`. Half an interval in: the first kill
/// meets a service that has done something.
#[must_use]
pub(crate) fn due_after(index: u64, kills: u64, requests: u64) -> u64 {
    let spread = u128::from(requests) * (2 * u128::from(index) + 1) / (2 * u128::from(kills) + 1);
    u64::try_from(spread).expect("not above the requests").max(1)
}

type Card = (Role, Moment);

const SERVICE_WORKING: Card = (Role::Service, Moment::Working);
const SERVICE_RECOVERING: Card = (Role::Service, Moment::Recovering);
const SERVICE_CHECKPOINTING: Card = (Role::Service, Moment::Checkpointing);

/// Hands of kills that follow upon each other, in a random order: a kill within recovery needs one before it.
fn deck(draw: &mut Draw) -> Vec<Vec<Card>> {
    let mut deck = vec![
        vec![SERVICE_WORKING],
        vec![SERVICE_WORKING],
        vec![SERVICE_WORKING],
        vec![SERVICE_WORKING, SERVICE_RECOVERING],
        vec![SERVICE_WORKING, SERVICE_RECOVERING, SERVICE_RECOVERING],
        vec![SERVICE_CHECKPOINTING],
        vec![SERVICE_CHECKPOINTING],
        vec![SERVICE_CHECKPOINTING, SERVICE_RECOVERING],
        vec![(Role::ReceiverOnce, Moment::Working)],
        vec![(Role::ReceiverAgain, Moment::Working)],
        vec![(Role::Supervisor, Moment::Working)],
    ];
    for _ in 0..2 {
        let client = usize::try_from(draw.below(CLIENTS as u64)).expect("an index fits");
        deck.push(vec![(Role::Client(client), Moment::Working)]);
    }
    draw.shuffle(&mut deck);
    deck
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_every_role_and_moment_and_the_service_mostly() {
        for seed in 0..50 {
            let plan = plan(seed, 40, 10_000);
            assert_eq!(plan.len(), 40);
            let service = plan.iter().filter(|kill| kill.role == Role::Service).count();
            assert!(service * 2 > plan.len(), "seed {seed}: {service} of 40");
            for role in [Role::ReceiverOnce, Role::ReceiverAgain, Role::Supervisor] {
                assert!(plan.iter().any(|kill| kill.role == role), "seed {seed}: no {role:?}");
            }
            assert!(plan.iter().any(|kill| matches!(kill.role, Role::Client(_))), "seed {seed}");
        }
    }

    #[test]
    fn even_three_kills_show_each_moment() {
        for seed in 0..50 {
            let plan = plan(seed, 3, 100);
            for moment in [Moment::Working, Moment::Recovering, Moment::Checkpointing] {
                assert!(plan.iter().any(|kill| kill.moment == moment), "seed {seed}: no {moment:?}");
            }
        }
    }

    #[test]
    fn a_kill_within_recovery_follows_upon_a_kill_of_the_service_and_all_lie_within_the_requests() {
        for seed in 0..50 {
            let plan = plan(seed, 200, 5_000);
            for pair in plan.windows(2) {
                if pair[1].moment == Moment::Recovering {
                    assert_eq!((pair[0].role, pair[1].after_answered), (Role::Service, 0), "seed {seed}");
                }
            }
            assert!(plan.iter().all(|kill| kill.after_answered < 5_000), "seed {seed}");
            assert_eq!(plan, super::plan(seed, 200, 5_000));
        }
    }
}
