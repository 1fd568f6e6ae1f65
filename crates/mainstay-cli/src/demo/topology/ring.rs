//! The service of the demo with several nodes: every node folds every request into a hash chain.
//!
//! A request is folded where it is asked, at the next node, at the one after that, and once more where it was asked, which then
//! answers with all four folds. Each fold covers what its account's chain was there, what the fold before it was, and its place
//! among all folds of its node. Nothing commutes: the answers alone show in which order each node did what, and whether it
//! depended on something that was lost or done twice.

use super::NODES;
use crate::ledger::Chain;
use mainstay_process::handler::{Answer, Context, Handler, RequestId, RestoreError};
use mainstay_types::id::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use xxhash_rust::xxh3::xxh3_128;

/// Folds of one request: one at each node, and one more where it comes back to.
pub(crate) const FOLDS: usize = NODES + 1;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Who asks.
    pub(crate) client: u64,
    /// Which of the client's requests.
    pub(crate) number: u64,
    /// The account concerned.
    pub(crate) account: String,
    /// Anything.
    pub(crate) amount: u64,
}

/// What one node made of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fold {
    /// The node, counted from 0.
    pub(crate) node: usize,
    /// The place of this fold among all folds of the node; the first is 1.
    pub(crate) place: u64,
    /// The account's chain at the node, after it.
    pub(crate) chain: Chain,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    /// The folds, in the order in which they were made.
    pub(crate) folds: Vec<Fold>,
}

/// What goes from node to node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Message {
    /// What the node that was asked knows the request by.
    asked: RequestId,
    request: Request,
    folds: Vec<Fold>,
}

/// All chains of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chains {
    /// Folds made.
    pub(crate) folds: u64,
    /// The last link of each account's chain.
    pub(crate) accounts: BTreeMap<String, Chain>,
}

impl Chains {
    /// Folds a request into its account's chain. `before` are the folds that other nodes made of it.
    pub(crate) fn fold(&mut self, node: usize, request: &Request, before: &[Fold]) -> Fold {
        self.folds += 1;
        let chain = self.accounts.entry(request.account.clone()).or_default();
        let mut link = chain.0.to_le_bytes().to_vec();
        serde_json::to_writer(&mut link, &(request, before, node, self.folds))
            .expect("a vector takes every byte of plain data");
        *chain = Chain(xxh3_128(&link));
        Fold { node, place: self.folds, chain: *chain }
    }
}

/// The number of a node in the list of nodes.
#[must_use]
pub(crate) fn node_id(node: usize) -> NodeId {
    NodeId(u32::try_from(node + 1).expect("there are few nodes"))
}

/// One node of the ring.
#[derive(Debug)]
pub(crate) struct Ring {
    node: usize,
    chains: Chains,
}

impl Ring {
    /// Node number `node`, which has folded nothing yet.
    #[must_use]
    pub(crate) fn new(node: usize) -> Self {
        Self { node, chains: Chains::default() }
    }

    fn fold_and_tell(&mut self, mut message: Message, context: &mut Context<'_>) {
        let fold = self.chains.fold(self.node, &message.request, &message.folds);
        message.folds.push(fold);
        if message.folds.len() == FOLDS {
            let body = json(&Receipt { folds: message.folds });
            context.answer(message.asked, Answer { status: 200, body });
        } else {
            context.tell(node_id((self.node + 1) % NODES), json(&message));
        }
    }
}

impl Handler for Ring {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        let request = match serde_json::from_slice(body) {
            Ok(request) => request,
            Err(error) => return Some(Answer { status: 400, body: json(&error.to_string()) }),
        };
        self.fold_and_tell(Message { asked: context.request(), request, folds: Vec::new() }, context);
        None
    }

    fn message(&mut self, _: NodeId, body: &[u8], context: &mut Context<'_>) {
        let message = serde_json::from_slice(body).expect("only this handler sends messages");
        self.fold_and_tell(message, context);
    }

    fn query(&self, _: &[u8]) -> Answer {
        Answer { status: 200, body: json(&self.chains) }
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        Ok(serde_json::to_writer(into, &self.chains)?)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let unreadable = |error: serde_json::Error| RestoreError { reason: error.to_string() };
        self.chains = serde_json::from_slice(bytes).map_err(unreadable)?;
        Ok(())
    }
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers and text are JSON")
}
