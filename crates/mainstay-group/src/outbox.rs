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

    /// Gives the effect back if it may leave now, or keeps it.
    pub(crate) fn hold(&mut self, effect: Effect, waiting_max: usize) -> Option<Effect> {
        if self.is_durable(self.asked) {
            return Some(effect);
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
