//! Client numbers: given in order over the whole group and never twice, since one number fences all clients that a region has forgotten.
//!
//! The region itself counts them. A node reads the count, then sets it further by a block if nobody else did meanwhile (compare and set); what
//! it has won it gives out. The operation that wins a block needs an identity too: the block's last number, with a thread drawn at random.

use crate::command::OWN_KEYS;
use mainstay_region::operation::{Operation, Outcome};
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use mainstay_types::operation::OperationId;
use std::ops::Range;

/// Numbers that a node takes at once.
const BLOCK: u64 = 1024;

/// What a node does about numbers just now.
#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Reading,
    /// Setting the count further; what is won if it succeeds.
    Taking(OperationId, Range<u64>),
}

/// The numbers of one node.
#[derive(Debug)]
pub(crate) struct Numbers {
    free: Range<u64>,
    state: State,
    /// Tells this life of the node from others.
    thread: ThreadId,
}

impl Numbers {
    pub(crate) fn new(thread: ThreadId) -> Self {
        Self { free: 0..0, state: State::Idle, thread }
    }

    /// The key of the count.
    pub(crate) fn key() -> Vec<u8> {
        [OWN_KEYS, b"clients"].concat()
    }

    /// The next number, if there is one here.
    pub(crate) fn next(&mut self) -> Option<ClientId> {
        self.free.next().map(ClientId)
    }

    /// Gives up what is left of the block: the region has forgotten clients with higher numbers.
    pub(crate) fn forget(&mut self) {
        self.free = 0..0;
    }

    /// Whether the count is to be read now; then it is being read.
    pub(crate) fn begin(&mut self) -> bool {
        let begin = self.state == State::Idle;
        if begin {
            self.state = State::Reading;
        }
        begin
    }

    /// The count was not read, or what was tried did not come to an end.
    pub(crate) fn failed(&mut self) {
        self.state = State::Idle;
    }

    /// The count was read: the operation that takes the next block.
    pub(crate) fn read(&mut self, value: Option<Vec<u8>>) -> Option<(OperationId, Operation)> {
        let text = value.as_deref().map(|value| str::from_utf8(value).ok());
        let count: u64 = match text {
            None => 0,
            Some(text) => text.and_then(|text| text.parse().ok())?,
        };
        let last = count.checked_add(BLOCK)?;
        let id = OperationId { client: ClientId(last), thread: self.thread, sequence: Sequence(1) };
        self.state = State::Taking(id, count + 1..last);
        let value_after = Some(last.to_string().into_bytes());
        Some((id, Operation::CompareAndSet { key: Self::key(), expected: value, value: value_after }))
    }

    /// Whether this operation takes a block.
    pub(crate) fn takes(&self, id: OperationId) -> bool {
        matches!(&self.state, State::Taking(taking, _) if *taking == id)
    }

    /// The operation that takes a block has ended, with this outcome if one is known.
    pub(crate) fn taken(&mut self, outcome: Option<Outcome>) {
        if let State::Taking(_, block) = std::mem::replace(&mut self.state, State::Idle)
            && outcome == Some(Outcome::Written)
        {
            self.free = block;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_given_out_only_if_it_was_won() {
        let mut numbers = Numbers::new(ThreadId(9));
        assert!(numbers.begin() && !numbers.begin());
        let (id, operation) = numbers.read(None).expect("a missing count is 0");
        let won =
            Operation::CompareAndSet { key: Numbers::key(), expected: None, value: Some(b"1024".to_vec()) };
        assert_eq!((id.client, operation), (ClientId(1024), won));
        numbers.taken(Some(Outcome::Differs));
        assert_eq!(numbers.next(), None);
        assert!(numbers.begin());
        let (id, _) = numbers.read(Some(b"1024".to_vec())).expect("it is a count");
        assert!(numbers.takes(id));
        numbers.taken(Some(Outcome::Written));
        assert_eq!(numbers.next(), Some(ClientId(1025)));
        assert_eq!(numbers.free.end, 2048, "the last number is the identity of what took the block");
    }
}
