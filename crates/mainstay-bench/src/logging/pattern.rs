//! Who tells whom: the patterns of messages that are measured, the same for recoverable processes and for bare sockets. The
//! node in place 0, the *head*, begins each operation and sees it end.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Messages of a stream that are confirmed together.
pub(super) const CONFIRMED_TOGETHER: u32 = 16;

/// A pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Pattern {
    /// Each node tells the next, the last one the head.
    Ring,
    /// The head tells the next node, which confirms every [`CONFIRMED_TOGETHER`]th message.
    Stream,
    /// The head tells all others, and each of them answers.
    Fan,
    /// Every node tells every other once: the head all others, these each other, and, once told by all, the head.
    Everybody,
}

impl Pattern {
    /// Whom the head tells: places.
    pub(super) fn first(self, nodes: usize) -> Range<usize> {
        match self {
            Self::Ring | Self::Stream => 1..2,
            Self::Fan | Self::Everybody => 1..nodes,
        }
    }

    /// Messages that an operation takes.
    pub(super) fn messages(self, nodes: usize) -> usize {
        match self {
            Self::Ring => nodes,
            Self::Stream => 1,
            Self::Fan => 2 * (nodes - 1),
            Self::Everybody => nodes * (nodes - 1),
        }
    }

    /// Of what the number of operations, and how many may be under way, must be multiples.
    pub(super) fn step(self) -> u32 {
        match self {
            Self::Stream => CONFIRMED_TOGETHER,
            Self::Ring | Self::Fan | Self::Everybody => 1,
        }
    }
}

/// What a node counts, by the number of the operation, until it is told nothing more of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Heard(BTreeMap<u32, usize>);

impl Heard {
    /// Counts one; true, and forgotten, when these were all.
    fn one_of(&mut self, all: usize, number: u32) -> bool {
        if all == 1 {
            return true;
        }
        let count = self.0.entry(number).or_default();
        *count += 1;
        let complete = *count == all;
        if complete {
            self.0.remove(&number);
        }
        complete
    }
}

/// A node's place in a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) pattern: Pattern,
    /// Which of the nodes it is.
    pub(super) node: usize,
    /// How many there are.
    pub(super) nodes: usize,
}

impl Place {
    /// A node other than the head was told about operation `number` by the node in place `from`: whom it tells.
    pub(super) fn told(self, from: usize, number: u32, heard: &mut Heard, mut tell: impl FnMut(usize)) {
        match self.pattern {
            Pattern::Ring => tell((self.node + 1) % self.nodes),
            Pattern::Stream => {
                if (number + 1).is_multiple_of(CONFIRMED_TOGETHER) {
                    tell(0);
                }
            }
            Pattern::Fan => tell(0),
            Pattern::Everybody => {
                if from == 0 {
                    (1..self.nodes).filter(|other| *other != self.node).for_each(&mut tell);
                }
                if heard.one_of(self.nodes - 1, number) {
                    tell(0);
                }
            }
        }
    }

    /// The head was told about operation `number`: which ones have ended thereby.
    pub(super) fn came_back(self, number: u32, heard: &mut Heard) -> Range<u32> {
        match self.pattern {
            Pattern::Ring => number..number + 1,
            Pattern::Stream => (number + 1).saturating_sub(CONFIRMED_TOGETHER)..number + 1,
            Pattern::Fan | Pattern::Everybody => {
                let ended = heard.one_of(self.nodes - 1, number);
                number..number + u32::from(ended)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Plays operations through in one thread: how many messages each took, and that each ended once.
    fn play(pattern: Pattern, nodes: usize, operations: u32) -> usize {
        let place = |node| Place { pattern, node, nodes };
        let mut heard = vec![Heard::default(); nodes];
        let mut under_way: VecDeque<(usize, usize, u32)> =
            (0..operations).flat_map(|number| pattern.first(nodes).map(move |to| (0, to, number))).collect();
        let (mut messages, mut ended) = (0, vec![0; operations as usize]);
        while let Some((from, to, number)) = under_way.pop_front() {
            messages += 1;
            if to == 0 {
                place(0).came_back(number, &mut heard[0]).for_each(|number| ended[number as usize] += 1);
            } else {
                place(to).told(from, number, &mut heard[to], |next| under_way.push_back((to, next, number)));
            }
        }
        assert_eq!(ended, vec![1; operations as usize], "{pattern:?}");
        assert!(heard.iter().all(|heard| heard.0.is_empty()), "{pattern:?}: nothing is counted for ever");
        messages
    }

    #[test]
    fn every_operation_ends_once_and_takes_the_messages_it_says() {
        for (pattern, nodes) in [
            (Pattern::Ring, 2),
            (Pattern::Ring, 3),
            (Pattern::Fan, 4),
            (Pattern::Everybody, 3),
            (Pattern::Everybody, 4),
        ] {
            assert_eq!(play(pattern, nodes, 10), 10 * pattern.messages(nodes), "{pattern:?}");
        }
        let stream = 2 * CONFIRMED_TOGETHER;
        assert_eq!(play(Pattern::Stream, 2, stream), stream as usize + 2);
    }
}
