//! What the clients of the demo ask for: the same for the same seed, so that the audit need not trust them.

use super::draw::Draw;
use crate::ledger::Command;

/// How many client processes there are. Even ones use the Rust client, odd ones plain HTTP with an `Idempotency-Key`.
pub(crate) const CLIENTS: usize = 4;

/// Accounts that each client opens with its first requests.
pub(crate) const ACCOUNTS_PER_CLIENT: usize = 2;

/// How many of `requests` client number `client` makes.
#[must_use]
pub(crate) fn share(requests: u64, client: usize) -> u64 {
    let clients = CLIENTS as u64;
    requests / clients + u64::from((client as u64) < requests % clients)
}

/// Request number `number` of a client; numbers begin at 0.
#[must_use]
pub(crate) fn request(seed: u64, client: usize, number: u64) -> Command {
    if number < ACCOUNTS_PER_CLIENT as u64 {
        return Command::Open { account: account(client * ACCOUNTS_PER_CLIENT + number as usize) };
    }
    let mut draw = Draw::new(seed, (client as u64) << 40 | number);
    let any = |draw: &mut Draw| account(draw.below((CLIENTS * ACCOUNTS_PER_CLIENT) as u64) as usize);
    let name = any(&mut draw);
    // Withdrawals and transfers ask for more than deposits bring, so that some are refused, and which ones depends on
    // the order of all.
    match draw.below(10) {
        0..4 => Command::Deposit { account: name, amount: 1 + draw.below(100) },
        4..6 => Command::Withdraw { account: name, amount: 1 + draw.below(250) },
        _ => Command::Transfer { from: name, to: any(&mut draw), amount: 1 + draw.below(150) },
    }
}

fn account(number: usize) -> String {
    format!("account-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Ledger, Outcome};

    #[test]
    fn shares_add_up() {
        for requests in [0, 1, 7, 8, 1001] {
            assert_eq!((0..CLIENTS).map(|client| share(requests, client)).sum::<u64>(), requests);
        }
    }

    #[test]
    fn some_requests_are_refused_and_the_order_decides_which() {
        let run = |clients: &[usize]| {
            let mut ledger = Ledger::default();
            let mut outcomes = Vec::new();
            for number in 0..100 {
                for &client in clients {
                    outcomes.push(ledger.execute(&request(7, client, number)).0.outcome);
                }
            }
            (ledger, outcomes)
        };
        let (forth, outcomes) = run(&[0, 1, 2, 3]);
        let (back, _) = run(&[3, 2, 1, 0]);
        assert!(outcomes.contains(&Outcome::InsufficientFunds));
        assert_ne!(forth, back);
    }
}
