//! Names of writes: what `MAINSTAY.ID` said of a connection's next write, and which command each name stands for.
//!
//! A region knows an operation by its name alone, in the shard of its key. That a name is not given to two commands is looked after here, as far as this
//! node was told both: the one whose key is in another shard would be done, the other would be told the first one's answer.

use crate::command::Identity;
use crate::resp::Reply;
use bytes::Bytes;
use mainstay_types::id::{ClientId, Sequence};
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};

/// Names whose commands a node remembers; beyond, the oldest are forgotten.
const NAMES_MAX: usize = 1 << 16;

/// What was said of the next write of a connection. Only a write uses it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Naming {
    /// Nothing.
    #[default]
    Unnamed,
    /// This is its name.
    Named(Identity),
    /// A name that was refused: without one it could be done twice.
    Refused,
}

/// A write with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub(crate) identity: Identity,
    /// The command that it stands for.
    pub(crate) print: u64,
}

impl Naming {
    /// Gives the name to a write of this print.
    pub(crate) fn take(&mut self, print: u64) -> Result<Option<Named>, Reply> {
        match std::mem::take(self) {
            Self::Unnamed => Ok(None),
            Self::Named(identity) => Ok(Some(Named { identity, print })),
            Self::Refused => Err(Reply::Error(
                "ERR the MAINSTAY.ID before it was refused, and without a name it might be done twice; nothing was done"
                    .to_owned(),
            )),
        }
    }
}

/// Tells commands apart by their words: what is made of them may differ from one time to the next, as the end of a value does.
pub(crate) fn print(words: &[Bytes]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (at, word) in words.iter().enumerate() {
        hasher.write_usize(word.len());
        match at {
            0 => hasher.write(&word.to_ascii_uppercase()),
            _ => hasher.write(word),
        }
    }
    hasher.finish()
}

/// The print of several commands as one.
pub(crate) fn join(earlier: u64, print: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(earlier);
    hasher.write_u64(print);
    hasher.finish()
}

/// Which commands names stand for, as far as this node was told of them lately.
#[derive(Debug, Default)]
pub(crate) struct Names {
    prints: HashMap<(ClientId, Sequence), u64>,
    /// The oldest first.
    order: VecDeque<(ClientId, Sequence)>,
}

impl Names {
    /// Whether this name stands for this command, as it does from now on if it was new.
    pub(crate) fn stands_for(&mut self, named: &Named) -> bool {
        let name = (named.identity.client, named.identity.sequence);
        if let Some(&print) = self.prints.get(&name) {
            return print == named.print;
        }
        self.prints.insert(name, named.print);
        self.order.push_back(name);
        if self.order.len() > NAMES_MAX {
            let oldest = self.order.pop_front().expect("there are many");
            self.prints.remove(&oldest);
        }
        true
    }

    /// Nothing was done: the name may stand for another command.
    pub(crate) fn forget(&mut self, client: ClientId, sequence: Sequence) {
        let name = (client, sequence);
        self.prints.remove(&name);
        // Else its old place would end it too early when it stands for something again. It was told lately.
        if let Some(at) = self.order.iter().rposition(|&of| of == name) {
            self.order.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(sequence: u64, command: &'static [u8]) -> Named {
        let words: Vec<Bytes> = command.split(|&byte| byte == b' ').map(Bytes::from_static).collect();
        let identity = Identity { client: ClientId(7), sequence: Sequence(sequence), again: false };
        Named { identity, print: print(&words) }
    }

    #[test]
    fn a_name_stands_for_one_command_until_nothing_was_done() {
        let mut names = Names::default();
        assert!(names.stands_for(&named(1, b"INCR n")));
        assert!(names.stands_for(&named(1, b"incr n")), "it is the same");
        assert!(!names.stands_for(&named(1, b"INCR m")));
        assert!(!names.stands_for(&named(1, b"IN CRn")));
        names.forget(ClientId(7), Sequence(1));
        assert!(names.stands_for(&named(1, b"INCR m")));
        assert_eq!(names.order.len(), 1);
    }

    #[test]
    fn names_beyond_the_limit_are_forgotten_the_oldest_first() {
        let mut names = Names::default();
        let last = NAMES_MAX as u64 + 1;
        for sequence in 1..=last {
            assert!(names.stands_for(&named(sequence, b"INCR n")));
        }
        assert_eq!((names.prints.len(), names.order.len()), (NAMES_MAX, NAMES_MAX));
        assert!(!names.stands_for(&named(2, b"INCR m")) && names.stands_for(&named(1, b"INCR m")));
    }
}
