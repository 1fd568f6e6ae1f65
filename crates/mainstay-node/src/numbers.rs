//! Client numbers: given in order over the whole group and never twice, since one number fences all clients that a region has forgotten.
//!
//! The region itself counts them. A node reads the count, then sets it further by a block if nobody else did meanwhile (compare and set); what
//! it has won it gives out. The operation that wins a block needs an identity too: the block's last number, with a thread drawn at random.

use crate::command::OWN_KEYS;
use mainstay_region::blob::Blob;
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
    /// Numbers above it were not given out when the count was last read.
    counted: u64,
    state: State,
    /// Tells this life of the node from others.
    thread: ThreadId,
}

impl Numbers {
    pub(crate) fn new(thread: ThreadId) -> Self {
        Self { free: 0..0, counted: 0, state: State::Idle, thread }
    }

    /// The key of the count.
    pub(crate) fn key() -> Vec<u8> {
        [OWN_KEYS, b"clients"].concat()
    }

    /// The next number, if there is one here.
    pub(crate) fn next(&mut self) -> Option<ClientId> {
        self.free.next().map(ClientId)
    }

    /// Whether a number was given out by some node; `None` if that cannot be said before the count is read again.
    pub(crate) fn given(&self, client: ClientId) -> Option<bool> {
        // The last number of a block is the identity of what took it.
        if client.0.is_multiple_of(BLOCK) || self.free.contains(&client.0) {
            return Some(false);
        }
        (client.0 <= self.counted).then_some(true)
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

    /// The count was read.
    pub(crate) fn read(&mut self, value: Option<&[u8]>) {
        self.state = State::Idle;
        self.counted = self.counted.max(count(value).unwrap_or(0));
    }

    /// The operation that takes the next block, after what was read.
    pub(crate) fn take(&mut self, value: Option<Blob>) -> Option<(OperationId, Operation)> {
        let count = count(value.as_deref())?;
        let last = count.checked_add(BLOCK)?;
        let id = OperationId { client: ClientId(last), thread: self.thread, sequence: Sequence(1) };
        self.state = State::Taking(id, count + 1..last);
        let value_after = Some(last.to_string().as_str().into());
        Some((id, Operation::CompareAndSet { key: Self::key().into(), expected: value, value: value_after }))
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
            self.counted = self.counted.max(block.end);
            self.free = block;
        }
    }
}

fn count(value: Option<&[u8]>) -> Option<u64> {
    value.map_or(Some(0), |value| str::from_utf8(value).ok()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_given_out_only_if_it_was_won() {
        let mut numbers = Numbers::new(ThreadId(9));
        assert!(numbers.begin() && !numbers.begin());
        let (id, operation) = numbers.take(None).expect("a missing count is 0");
        let won = Operation::CompareAndSet {
            key: Numbers::key().into(),
            expected: None,
            value: Some(b"1024".into()),
        };
        assert_eq!((id.client, operation), (ClientId(1024), won));
        numbers.taken(Some(Outcome::Differs));
        assert_eq!(numbers.next(), None);
        assert!(numbers.begin());
        let (id, _) = numbers.take(Some(b"1024".into())).expect("it is a count");
        assert!(numbers.takes(id));
        numbers.taken(Some(Outcome::Written));
        assert_eq!(numbers.next(), Some(ClientId(1025)));
        assert_eq!(numbers.free.end, 2048, "the last number is the identity of what took the block");
    }

    #[test]
    fn what_nobody_was_given_is_told_from_what_another_node_may_have_given() {
        let mut numbers = Numbers::new(ThreadId(9));
        assert_eq!(numbers.given(ClientId(5)), None, "the count was never read");
        assert!(numbers.begin());
        numbers.read(Some(b"2048"));
        let given = |numbers: &Numbers, number| numbers.given(ClientId(number));
        assert_eq!([5, 2047, 2049].map(|number| given(&numbers, number)), [Some(true), Some(true), None]);
        assert_eq!([0, 1024, 2048].map(|number| given(&numbers, number)), [Some(false); 3]);
        assert!(numbers.begin());
        numbers.take(Some(b"2048".into())).expect("it is a count");
        numbers.taken(Some(Outcome::Written));
        let first = numbers.next().expect("a block was won").0;
        assert_eq!([first, first + 1].map(|number| given(&numbers, number)), [Some(true), Some(false)]);
    }
}
