//! What the clients ask for, and of which node: the same for the same seed, so that the audit need not trust them.

use super::NODES;
use super::ring::Request;
use crate::demo::draw::Draw;

/// Accounts that all requests share.
const ACCOUNTS: u64 = 5;

/// Request number `number` of a client, and the node that it is asked of, also when it is repeated. Numbers begin at 0.
#[must_use]
pub(crate) fn request(seed: u64, client: usize, number: u64) -> (usize, Request) {
    let mut draw = Draw::new(seed, (client as u64) << 40 | number);
    let node = usize::try_from(draw.below(NODES as u64)).expect("an index fits");
    let account = format!("account-{}", draw.below(ACCOUNTS));
    (node, Request { client: client as u64, number, account, amount: draw.below(1000) })
}

/// What a repetition of it is recognised by.
#[must_use]
pub(crate) fn key(seed: u64, client: usize, number: u64) -> String {
    format!("demo-{seed}-client-{client}-request-{number}")
}
