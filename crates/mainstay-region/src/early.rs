//! What comes of a view before this copy has begun it: others have, a moment earlier.
//!
//! It is kept until then, as if it had been on its way for longer. Dropped, an entry would be sent again when the stamper's patience ends, and an
//! operation when its client's does: both are much longer than copies begin apart.

use crate::change::Awaited;
use crate::effect::Effect;
use crate::message::{Body, Freshness, Message, Party, Query};
use crate::region::{Phase, Region};
use mainstay_types::time::Time;

/// Messages of the view that is to begin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Early {
    /// Each with what it counts.
    messages: Vec<(Party, Message, usize)>,
    /// What all count, in bytes.
    bytes: usize,
}

impl Early {
    /// Drops what one has said who is gone.
    pub(crate) fn forget(&mut self, gone: Party) {
        self.messages.retain(|(from, ..)| *from != gone);
        self.bytes = self.messages.iter().map(|(.., bytes)| bytes).sum();
    }

    /// How many there are, and what they count, in bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.messages.len(), self.bytes)
    }
}

impl Region {
    /// Keeps a message of the view that is to begin with this copy; gives back any other, and what there is no room for: a client must hear that it was not
    /// taken in, since it takes what is answered behind a subscription for a sign that this one holds.
    pub(crate) fn keep_early(&mut self, from: Party, message: Message) -> Option<Message> {
        // A view that this copy was asked to report of, or is not in, never begins here.
        let awaits =
            |awaited: &Awaited| awaited.copies.view == message.view && awaited.copies.has(awaited.me);
        if !self.awaited.as_ref().is_some_and(awaits) || message.view <= self.wedged {
            return Some(message);
        }
        let Some(bytes) = kept_bytes(from, &message.body) else { return Some(message) };
        if self.early.messages.first().is_some_and(|(_, first, _)| first.view != message.view) {
            self.early = Early::default();
        }
        let (limits, (count, all)) = (&self.config.limits, self.early.size());
        if count >= limits.early_messages_max || all + bytes > limits.early_bytes_max {
            return Some(message);
        }
        self.early.bytes += bytes;
        self.early.messages.push((from, message, bytes));
        None
    }

    /// Takes in what was kept, once its view has begun.
    pub(crate) fn take_early(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.phase != Phase::Serving || self.early.messages.is_empty() {
            return;
        }
        for (from, message, _) in std::mem::take(&mut self.early).messages {
            // Of another view it is refused, as ever.
            self.received(now, from, message, out);
        }
    }
}

/// Bytes of keys and values in what is worth keeping, and [`crate::log::ENTRY_BYTES`] for each entry. What is said again with each tick, or answers what a copy
/// asks that has begun, is not.
fn kept_bytes(from: Party, body: &Body) -> Option<usize> {
    match (from, body) {
        (
            Party::Client(_),
            Body::Operate { operation, .. }
            | Body::Payload { operation, .. }
            | Body::Tagged { operation, .. }
            | Body::Unversioned { operation, .. },
        )
        | (Party::Member(_), Body::Forwarded { operation, .. }) => Some(operation.bytes()),
        // One at the stamper is refused while the view begins, for want of a lease: soon better than late.
        (Party::Client(_), Body::Read { query, freshness: Freshness::Any, .. }) => Some(match query {
            Query::Get { key } => key.len(),
            Query::Scan { prefix, after } | Query::Keys { prefix, after, .. } => {
                prefix.len() + after.as_ref().map_or(0, Vec::len)
            }
        }),
        (Party::Client(_), Body::VersionRequest { .. } | Body::Inspect { .. } | Body::Subscribe { .. })
        | (Party::Member(_), Body::Stamp { .. }) => Some(0),
        (Party::Member(_), Body::Entries { entries, .. }) => {
            Some(entries.iter().map(|numbered| numbered.entry.counted_bytes()).sum())
        }
        _ => None,
    }
}
