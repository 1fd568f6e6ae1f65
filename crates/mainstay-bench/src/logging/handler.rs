//! The handler of every node that is measured: a ring, in which each node tells the next what it was told, and the node that
//! was asked to keeps a number of messages going round and notes how long each took.

use mainstay_process::handler::{Answer, Context, Handler, RequestId, RestoreError};
use mainstay_types::id::NodeId;
use mainstay_types::time::Time;
use serde::{Deserialize, Serialize};
use std::io;

/// Bytes at the front of each message that say which one it is.
pub(super) const NUMBER_BYTES: usize = 4;

/// Most messages that one load sends round: their times are kept in memory.
pub(super) const MESSAGES_MAX: u32 = 1 << 20;

/// What a ring is asked to do: the body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Load {
    /// Messages sent round in all.
    pub(super) messages: u32,
    /// How many of them are on their way at the same time.
    pub(super) window: u32,
    /// Bytes of each, [`NUMBER_BYTES`] at least.
    pub(super) bytes: u32,
}

impl Load {
    /// Whether there is something to do, and within bounds.
    pub(super) fn is_fit(&self) -> bool {
        (1..=MESSAGES_MAX).contains(&self.messages)
            && (1..=self.messages).contains(&self.window)
            && self.bytes as usize >= NUMBER_BYTES
    }

    /// Message `number`.
    pub(super) fn message(&self, number: u32) -> Vec<u8> {
        let mut body = vec![b'x'; self.bytes as usize];
        body[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        body
    }
}

/// The number of a message; nothing if it is none of these.
pub(super) fn number_of(body: &[u8]) -> Option<u32> {
    body.first_chunk::<NUMBER_BYTES>().map(|bytes| u32::from_le_bytes(*bytes))
}

/// What was measured: the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lap {
    /// From the first message's sending to the last one's return, in nanoseconds.
    pub(super) elapsed_ns: u64,
    /// From each message's sending to its return, in nanoseconds, in the order of return.
    pub(super) latency_ns: Vec<u64>,
}

/// A node of a ring.
#[derive(Debug)]
pub(super) struct RingNode {
    next: NodeId,
    under_way: Option<UnderWay>,
}

/// The load that this node was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct UnderWay {
    request: RequestId,
    load: Load,
    /// When each message was sent, by its number.
    sent: Vec<Time>,
    latency_ns: Vec<u64>,
}

impl RingNode {
    /// A node that tells `next`.
    pub(super) fn new(next: NodeId) -> Self {
        Self { next, under_way: None }
    }
}

impl UnderWay {
    fn send(&mut self, to: NodeId, context: &mut Context<'_>) {
        let number = u32::try_from(self.sent.len()).expect("no more than MESSAGES_MAX");
        self.sent.push(context.now());
        context.tell(to, self.load.message(number));
    }
}

impl Handler for RingNode {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        let load = serde_json::from_slice(body).ok().filter(Load::is_fit);
        let (Some(load), None) = (load, &self.under_way) else {
            return Some(Answer { status: 409, body: b"\"no load, or one is under way\"".to_vec() });
        };
        let mut under_way = UnderWay {
            request: context.request(),
            load,
            sent: Vec::with_capacity(load.messages as usize),
            latency_ns: Vec::with_capacity(load.messages as usize),
        };
        for _ in 0..load.window {
            under_way.send(self.next, context);
        }
        self.under_way = Some(under_way);
        None
    }

    fn message(&mut self, _: NodeId, body: &[u8], context: &mut Context<'_>) {
        let Some(under_way) = &mut self.under_way else {
            context.tell(self.next, body);
            return;
        };
        let sent = number_of(body).and_then(|number| under_way.sent.get(number as usize));
        let sent = *sent.expect("only what was sent comes back");
        under_way.latency_ns.push(context.now().0 - sent.0);
        let messages = under_way.load.messages as usize;
        if under_way.sent.len() < messages {
            under_way.send(self.next, context);
        }
        if under_way.latency_ns.len() == messages {
            let elapsed_ns = context.now().0 - under_way.sent[0].0;
            let lap = Lap { elapsed_ns, latency_ns: std::mem::take(&mut under_way.latency_ns) };
            let body = serde_json::to_vec(&lap).expect("numbers are JSON");
            context.answer(under_way.request, Answer { status: 200, body });
            self.under_way = None;
        }
    }

    fn query(&self, _: &[u8]) -> Answer {
        Answer { status: 200, body: self.under_way.is_some().to_string().into_bytes() }
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        serde_json::to_writer(into, &self.under_way).map_err(io::Error::from)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.under_way =
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
        assert!(load.is_fit());
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
            assert!(!unfit.is_fit(), "{unfit:?}");
        }
    }
}
