//! What waits for a record to be durable: every message that leaves after a record was changed, whatever it says.
//!
//! One rule for all, instead of a list of messages that need it: nothing leaves while something that it might depend on can still be lost.

use crate::effect::Effect;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    asked: u64,
    durable: u64,
    waiting: VecDeque<(u64, Effect)>,
}

impl Outbox {
    /// The ticket of the next record.
    pub(crate) fn ticket(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// Whether the record of that ticket is durable.
    pub(crate) fn is_durable(&self, ticket: u64) -> bool {
        ticket <= self.durable
    }

    /// Whether nothing waits for a record, and what is held next leaves at once.
    pub(crate) fn is_clear(&self) -> bool {
        self.is_durable(self.asked)
    }

    /// Gives the effect back if it may leave now, or keeps it.
    pub(crate) fn hold(&mut self, effect: Effect, waiting_max: usize) -> Option<Effect> {
        if self.is_clear() {
            return Some(effect);
        }
        if let Some(earlier) = self.waiting.iter().position(|(_, waiting)| replaces(&effect, waiting)) {
            self.waiting.remove(earlier);
        }
        let sends = self.waiting.iter().position(|(_, waiting)| matches!(waiting, Effect::Send { .. }));
        if let (true, Some(oldest)) = (self.waiting.len() >= waiting_max, sends) {
            self.waiting.remove(oldest);
        }
        self.waiting.push_back((self.asked, effect));
        None
    }

    /// Notes how far records are durable.
    pub(crate) fn persisted(&mut self, ticket: u64) {
        self.durable = self.durable.max(ticket.min(self.asked));
    }

    /// The next effect that may leave.
    pub(crate) fn release(&mut self) -> Option<Effect> {
        let (ticket, _) = self.waiting.front()?;
        if !self.is_durable(*ticket) {
            return None;
        }
        self.waiting.pop_front().map(|(_, effect)| effect)
    }
}

/// Whether what waits is not needed any more with `later`: of one kind of message to one receiver the last says all. Else a disk that takes long makes
/// as many of them, with all that a report has, as the receiver has asked meanwhile.
fn replaces(later: &Effect, waiting: &Effect) -> bool {
    match (later, waiting) {
        (Effect::Send { to, message }, Effect::Send { to: same, message: earlier }) => {
            to == same && message.body.name() == earlier.body.name()
        }
        _ => false,
    }
}
