//! The handler of every node that is measured: each tells on what it was told, as the pattern says, and the head, when it was
//! asked to, keeps a number of operations under way and notes how long each took.

use super::pattern::{Heard, Pattern, Place};
use mainstay_process::handler::{Answer, Context, Handler, RequestId, RestoreError};
use mainstay_types::id::NodeId;
use mainstay_types::time::Time;
use serde::{Deserialize, Serialize};
use std::io;

/// Bytes at the front of each message that say which one it is.
pub(super) const NUMBER_BYTES: usize = 4;

/// Most operations of one load: their times are kept in memory.
pub(super) const MESSAGES_MAX: u32 = 1 << 20;

/// What the head is asked to do: the body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Load {
    /// Operations in all.
    pub(super) messages: u32,
    /// How many of them are under way at the same time.
    pub(super) window: u32,
    /// Bytes of each message, [`NUMBER_BYTES`] at least.
    pub(super) bytes: u32,
}

impl Load {
    /// Whether there is something to do, and within bounds.
    pub(super) fn is_fit(&self, pattern: Pattern) -> bool {
        (1..=MESSAGES_MAX).contains(&self.messages)
            && (1..=self.messages).contains(&self.window)
            && self.messages.is_multiple_of(pattern.step())
            && self.window.is_multiple_of(pattern.step())
            && self.bytes as usize >= NUMBER_BYTES
    }

    /// A message about operation `number`.
    pub(super) fn message(&self, number: u32) -> Vec<u8> {
        let mut body = vec![b'x'; self.bytes as usize];
        body[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        body
    }
}

/// The number of the operation that a message is about; nothing if it is no such message.
pub(super) fn number_of(body: &[u8]) -> Option<u32> {
    body.first_chunk::<NUMBER_BYTES>().map(|bytes| u32::from_le_bytes(*bytes))
}

/// What was measured: the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lap {
    /// From the first operation's beginning to the last one's end, in nanoseconds.
    pub(super) elapsed_ns: u64,
    /// From each operation's beginning to its end, in nanoseconds, in the order of ending.
    pub(super) latency_ns: Vec<u64>,
}

/// A node that is measured.
#[derive(Debug)]
pub(super) struct Measured {
    place: Place,
    state: State,
}

/// What a node remembers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    heard: Heard,
    under_way: Option<UnderWay>,
}

/// The load that this node, the head, was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct UnderWay {
    request: RequestId,
    load: Load,
    /// When each operation began, by its number.
    sent: Vec<Time>,
    latency_ns: Vec<u64>,
}

impl Measured {
    /// A node in that place.
    pub(super) fn new(place: Place) -> Self {
        Self { place, state: State::default() }
    }
}

/// The number of the node in a place.
pub(super) fn node_id(place: usize) -> NodeId {
    NodeId(u32::try_from(place + 1).expect("patterns are small"))
}

fn place_of(node: NodeId) -> usize {
    node.0 as usize - 1
}

impl UnderWay {
    fn begin(&mut self, place: Place, context: &mut Context<'_>) {
        let number = u32::try_from(self.sent.len()).expect("no more than MESSAGES_MAX");
        self.sent.push(context.now());
        for to in place.pattern.first(place.nodes) {
            context.tell(node_id(to), self.load.message(number));
        }
    }
}

impl Handler for Measured {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        let load = serde_json::from_slice(body).ok().filter(|load: &Load| load.is_fit(self.place.pattern));
        let (Some(load), None) = (load, &self.state.under_way) else {
            return Some(Answer { status: 409, body: b"\"no load, or one is under way\"".to_vec() });
        };
        let mut under_way = UnderWay {
            request: context.request(),
            load,
            sent: Vec::with_capacity(load.messages as usize),
            latency_ns: Vec::with_capacity(load.messages as usize),
        };
        for _ in 0..load.window {
            under_way.begin(self.place, context);
        }
        self.state.under_way = Some(under_way);
        None
    }

    fn message(&mut self, from: NodeId, body: &[u8], context: &mut Context<'_>) {
        let number = number_of(body).expect("only what is measured is sent");
        let State { heard, under_way } = &mut self.state;
        let Some(of_head) = under_way else {
            self.place.told(place_of(from), number, heard, |to| context.tell(node_id(to), body));
            return;
        };
        let messages = of_head.load.messages as usize;
        for number in self.place.came_back(number, heard) {
            let sent = *of_head.sent.get(number as usize).expect("only what was sent comes back");
            of_head.latency_ns.push(context.now().0 - sent.0);
            if of_head.sent.len() < messages {
                of_head.begin(self.place, context);
            }
        }
        if of_head.latency_ns.len() == messages {
            let elapsed_ns = context.now().0 - of_head.sent[0].0;
            let lap = Lap { elapsed_ns, latency_ns: std::mem::take(&mut of_head.latency_ns) };
            let body = serde_json::to_vec(&lap).expect("numbers are JSON");
            context.answer(of_head.request, Answer { status: 200, body });
            *under_way = None;
        }
    }

    fn query(&self, _: &[u8]) -> Answer {
        Answer { status: 200, body: self.state.under_way.is_some().to_string().into_bytes() }
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        serde_json::to_writer(into, &self.state).map_err(io::Error::from)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.state =
            serde_json::from_slice(bytes).map_err(|error| RestoreError { reason: error.to_string() })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_carries_its_number_and_has_the_asked_length() {
        let load = Load { messages: 3, window: 2, bytes: 10 };
        assert!(load.is_fit(Pattern::Ring));
        assert!(!load.is_fit(Pattern::Stream), "a stream is confirmed in steps");
        let message = load.message(2);
        assert_eq!((message.len(), number_of(&message)), (10, Some(2)));
        assert_eq!(number_of(&message[..3]), None);
        for unfit in [
            Load { messages: 0, ..load },
            Load { window: 0, ..load },
            Load { window: 4, ..load },
            Load { bytes: 3, ..load },
            Load { messages: MESSAGES_MAX + 1, ..load },
        ] {
            assert!(!unfit.is_fit(Pattern::Ring), "{unfit:?}");
        }
    }
}
