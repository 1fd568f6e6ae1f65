//! One connection of a client: its commands are begun as they come, as far as they touch different keys, and answered in their order.

use crate::command::{ReadReply, Together, WriteReply};
use crate::gateway::feed::Subscriptions;
use crate::gateway::naming::{Named, Naming};
use crate::gateway::scan::Scan;
use crate::gateway::transaction::Transaction;
use crate::replies::join;
use crate::resp::{Protocol, Reply};
use bytes::Bytes;
use mainstay_region::operation::Operation;
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The thread of operations that a connection numbers itself: neither that of named ones, 0, nor one under which numbers are taken, which is odd.
const OWN: ThreadId = ThreadId(2);

/// What is done about one key; or about many, and then the part has the connection for itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    Read(ReadReply),
    Write(Operation, WriteReply, Option<Named>),
    Scan(Scan),
}

/// What came on a connection and was not begun yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Came {
    Command(Vec<Bytes>),
    /// Bytes that are no command, and why not: the last of the connection.
    Unreadable(String),
}

/// A part of a command: one key's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) session: u64,
    /// The command's number in its session.
    pub(crate) command: u64,
    /// The part's place in the command.
    pub(crate) place: usize,
    pub(crate) key: Vec<u8>,
    pub(crate) task: Task,
    /// When it came.
    pub(crate) since: Time,
}

#[derive(Debug)]
enum Slot {
    Ready(Reply),
    Waits(Vec<Option<Reply>>, Together),
}

/// The connection.
#[derive(Debug, Default)]
pub(crate) struct Session {
    pub(crate) protocol: Protocol,
    pub(crate) versions: bool,
    /// What the client calls it; empty: nothing.
    pub(crate) name: Bytes,
    /// What was said of its next write.
    pub(crate) naming: Naming,
    pub(crate) closing: bool,
    /// What comes behind a command that is done while nothing else of the connection is under way.
    pub(crate) waiting: VecDeque<Came>,
    /// What waits is being begun: whoever ends something meanwhile need not.
    pub(crate) proceeding: bool,
    /// Such a command is under way.
    pub(crate) alone: bool,
    /// What it is told of.
    pub(crate) subscriptions: Subscriptions,
    /// Commands behind `MULTI`.
    pub(crate) transaction: Option<Transaction>,
    /// Keys, and which version they had when they were watched.
    pub(crate) watched: Vec<(Vec<u8>, Option<Version>)>,
    /// A key that was to be watched is not: `EXEC` cannot say whether it changed.
    pub(crate) watch_refused: bool,
    /// Commands that are not answered yet, in their order.
    slots: VecDeque<Slot>,
    /// The number of the first of them.
    first: u64,
    /// What their answers hold, as far as they are there.
    answer_bytes: usize,
    /// Parts by key; the first of each is under way.
    keys: BTreeMap<Vec<u8>, VecDeque<Part>>,
    /// Parts that wait for a client number, or for room in the window.
    pub(crate) parked: VecDeque<Part>,
    /// It waits for a number.
    pub(crate) wants_number: bool,
    /// The number under which this connection's own operations are known.
    pub(crate) number: Option<ClientId>,
    sequence: Sequence,
    under_way: BTreeSet<Sequence>,
    /// When the last operation ended under that number.
    used: Time,
}

impl Session {
    /// Takes a command of `parts` parts, to be answered by [`Self::answer`]; returns its number.
    pub(crate) fn take(&mut self, parts: usize, together: Together) -> u64 {
        self.slots.push_back(Slot::Waits(vec![None; parts], together));
        self.first + self.slots.len() as u64 - 1
    }

    /// Takes a command that is answered already.
    pub(crate) fn take_answered(&mut self, reply: Reply) {
        self.answer_bytes += reply.bytes();
        self.slots.push_back(Slot::Ready(reply));
    }

    /// What the answers that are not written yet hold, in bytes.
    pub(crate) fn answer_bytes(&self) -> usize {
        self.answer_bytes
    }

    /// Every watch is over.
    pub(crate) fn watch_nothing(&mut self) {
        (self.watched, self.watch_refused) = (Vec::new(), false);
    }

    /// Queues a part behind those of the same key; `true` if it may begin.
    pub(crate) fn queue(&mut self, part: &Part) -> bool {
        let queue = self.keys.entry(part.key.clone()).or_default();
        queue.push_back(part.clone());
        queue.len() == 1
    }

    /// A part is answered: the one of the same key that may begin now.
    pub(crate) fn unqueue(&mut self, key: &[u8]) -> Option<Part> {
        let queue = self.keys.get_mut(key)?;
        queue.pop_front();
        let next = queue.front().cloned();
        if next.is_none() {
            self.keys.remove(key);
        }
        next
    }

    /// Answers one part of a command.
    pub(crate) fn answer(&mut self, command: u64, place: usize, reply: Reply) {
        let slot =
            command.checked_sub(self.first).and_then(|at| self.slots.get_mut(usize::try_from(at).ok()?));
        let Some(slot) = slot else { return };
        let Slot::Waits(replies, together) = slot else { return };
        self.answer_bytes += reply.bytes();
        replies[place] = Some(reply);
        if replies.iter().all(Option::is_some) {
            let replies: Vec<Reply> = std::mem::take(replies).into_iter().flatten().collect();
            let parts_bytes: usize = replies.iter().map(Reply::bytes).sum();
            let joined = join(replies, *together);
            self.answer_bytes = self.answer_bytes + joined.bytes() - parts_bytes;
            *slot = Slot::Ready(joined);
        }
    }

    /// Writes the answers that are due, in the order of their commands; returns how many they are.
    pub(crate) fn put_answers(&mut self, out: &mut Vec<u8>) -> usize {
        let mut answered = 0;
        while let Some(Slot::Ready(reply)) = self.slots.front() {
            reply.put(self.protocol, out);
            self.answer_bytes -= reply.bytes();
            self.slots.pop_front();
            self.first += 1;
            answered += 1;
        }
        answered
    }

    /// Whether every command is answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.is_empty()
    }

    /// The identity of the connection's next own operation; `None` while it has no number, or too many are under way: all of them
    /// must be among the `window` last, which the region remembers. A number that was not used for `idle_max_ns` is given up.
    pub(crate) fn next_operation(&mut self, now: Time, window: u64, idle_max_ns: u64) -> Option<OperationId> {
        if self.under_way.is_empty() && now.0.saturating_sub(self.used.0) > idle_max_ns {
            self.number = None;
        }
        let client = self.number?;
        let next = self.sequence.next();
        let oldest = self.under_way.first().copied().unwrap_or(next);
        if next.0 - oldest.0 >= window {
            return None;
        }
        self.sequence = next;
        self.under_way.insert(next);
        Some(OperationId { client, thread: OWN, sequence: next })
    }

    /// Gives the connection a number, under which it begins to count anew.
    pub(crate) fn number(&mut self, now: Time, number: ClientId) {
        self.number = Some(number);
        self.wants_number = false;
        self.sequence = Sequence::default();
        self.under_way.clear();
        self.used = now;
    }

    /// An operation under the connection's number has ended.
    pub(crate) fn ended(&mut self, now: Time, id: OperationId) {
        if self.number == Some(id.client) {
            self.under_way.remove(&id.sequence);
            self.used = now;
        }
    }
}
