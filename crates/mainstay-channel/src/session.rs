//! One session of a link: from a connection's first frame to its end. Everything here is forgotten with it.

use crate::hello::{Hello, Window};
use mainstay_types::determinant::Point;
use mainstay_types::id::{Incarnation, NodeId, Ssn};
use std::collections::VecDeque;

use crate::refusal::Refusal;

/// The two halves of an open session.
#[derive(Debug)]
pub(crate) struct Session {
    /// The life of the peer.
    pub(crate) incarnation: Incarnation,
    /// The highest state of this node that the peer depended on when it greeted.
    pub(crate) seen: Point,
    pub(crate) sending: Sending,
    pub(crate) receiving: Receiving,
}

/// What was sent in this session.
#[derive(Debug)]
pub(crate) struct Sending {
    window: Window,
    /// The highest message that the peer has or was sent.
    sent: Ssn,
    /// The highest message that the peer's history holds.
    received: Ssn,
    /// Bytes of the bodies above `received` and up to `sent`.
    in_flight_bytes: u64,
    /// The peer collects: it delivers nothing before it has everything, so the window must not bind.
    pub(crate) peer_collects: bool,
    /// What the peer held when it was last told that it pins memory here: until it covers that, it has the checkpoint ahead that it was
    /// asked for.
    pub(crate) told_pinned: Ssn,
}

impl Sending {
    pub(crate) fn new(window: Window, theirs: &Hello) -> Self {
        Self {
            window,
            sent: theirs.received,
            received: theirs.received,
            in_flight_bytes: 0,
            peer_collects: theirs.collecting,
            told_pinned: Ssn(0),
        }
    }

    pub(crate) fn sent(&self) -> Ssn {
        self.sent
    }

    pub(crate) fn received(&self) -> Ssn {
        self.received
    }

    pub(crate) fn in_flight_messages(&self) -> u64 {
        self.sent.0 - self.received.0
    }

    /// Whether the window lets a body of that length through.
    pub(crate) fn admits(&self, body_bytes: usize) -> bool {
        self.peer_collects || admits(self.window, self.in_flight_messages(), self.in_flight_bytes, body_bytes)
    }

    pub(crate) fn send(&mut self, body_bytes: usize) {
        self.sent = self.sent.next();
        self.in_flight_bytes += body_bytes as u64;
    }

    /// Takes window credit. `body_bytes` tells the length of a message that is still retained.
    pub(crate) fn credit(&mut self, ssn: Ssn, body_bytes: impl Fn(Ssn) -> usize) {
        while self.received < ssn {
            self.received = self.received.next();
            self.in_flight_bytes -= body_bytes(self.received) as u64;
        }
    }
}

/// What arrived in this session.
#[derive(Debug)]
pub(crate) struct Receiving {
    window: Window,
    /// Longest body that may come, in bytes.
    message_bytes_max: u32,
    /// The highest message that arrived, or that the peer was told we have.
    arrived: Ssn,
    /// The highest that the peer was told is received.
    told_received: Ssn,
    /// The highest that the peer was told is covered.
    told_covered: Ssn,
    /// Lengths of the bodies above `told_received` and up to `arrived`.
    lengths: VecDeque<u32>,
    /// Their sum, in bytes.
    bytes: u64,
    /// We collect from the peer, and it has not said yet that it told everything.
    collects: bool,
    /// The peer recovers, and has not said yet that it sent everything again.
    peer_recovers: bool,
    /// We collected in this session, so that the peer sends beyond the window until both are over.
    unbound: bool,
    /// A duplicate came: what we have is to be told again.
    tell_again: bool,
}

/// What is to be told about what arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Acknowledgement {
    pub(crate) received: Option<Ssn>,
    pub(crate) covered: Option<Ssn>,
    /// The peer may be waiting for it.
    pub(crate) urgent: bool,
}

impl Receiving {
    pub(crate) fn new(window: Window, message_bytes_max: u32, told: &Greeting, peer_recovers: bool) -> Self {
        Self {
            window,
            message_bytes_max,
            arrived: told.received,
            told_received: told.received,
            told_covered: told.covered,
            lengths: VecDeque::new(),
            bytes: 0,
            collects: told.collecting,
            peer_recovers,
            unbound: told.collecting,
            tell_again: false,
        }
    }

    /// The next number, unless the message was delivered before the session began.
    pub(crate) fn expected(&self) -> Ssn {
        self.arrived.next()
    }

    /// Takes in the arrival of the next message.
    pub(crate) fn arrive(&mut self, from: NodeId, body_bytes: u32) -> Result<(), Refusal> {
        let waiting = self.arrived.0 - self.told_received.0;
        if !self.unbound && !admits(self.window, waiting, self.bytes, body_bytes as usize) {
            return Err(Refusal::Overrun {
                node: from,
                ssn: self.expected(),
                messages_max: self.window.messages_max,
                bytes_max: self.window.bytes_max,
            });
        }
        self.arrived = self.arrived.next();
        self.lengths.push_back(body_bytes);
        self.bytes += u64::from(body_bytes);
        Ok(())
    }

    /// The peer told everything that it holds. Returns whether it was asked to.
    pub(crate) fn collected(&mut self) -> bool {
        let asked = std::mem::take(&mut self.collects);
        self.unbound &= self.peer_recovers;
        asked
    }

    /// The peer was recovering when it greeted, and has not said since that it is recovered.
    pub(crate) fn awaits_recovery(&self) -> bool {
        self.peer_recovers
    }

    /// The peer sent everything again that it ever sent. Returns whether it was to.
    pub(crate) fn peer_recovered(&mut self) -> bool {
        let recovered = std::mem::take(&mut self.peer_recovers);
        self.unbound &= self.collects;
        recovered
    }

    pub(crate) fn tell_again(&mut self) {
        self.tell_again = true;
    }

    /// What the peer is owed, given what this node holds and covers. Only what it sent in this session, or was greeted
    /// with, can be acknowledged in it.
    pub(crate) fn owed(&self, delivered: Ssn, covered: Ssn) -> Acknowledgement {
        let received = delivered.min(self.arrived);
        let covered = covered.min(received);
        let received = (received > self.told_received || self.tell_again).then_some(received);
        // Half a window of messages, or so many bytes that a body of the longest kind might not fit beside twice as many.
        let room = self.window.bytes_max.saturating_sub(u64::from(self.message_bytes_max));
        let many = self.lengths.len() * 2 >= self.window.messages_max as usize
            || self.bytes.saturating_mul(2) > room;
        Acknowledgement {
            received,
            covered: (covered > self.told_covered || self.tell_again).then_some(covered),
            urgent: self.tell_again || (received.is_some() && many),
        }
    }

    /// The peer was told.
    pub(crate) fn told(&mut self, told: Acknowledgement) {
        while told.received.is_some_and(|received| self.told_received < received) {
            let bytes =
                self.lengths.pop_front().expect("every message above the last one told has its length here");
            self.bytes -= u64::from(bytes);
            self.told_received = self.told_received.next();
        }
        self.told_covered = told.covered.unwrap_or(self.told_covered);
        self.tell_again = false;
    }
}

/// What we said in our greeting, until the peer's comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Greeting {
    pub(crate) received: Ssn,
    pub(crate) covered: Ssn,
    pub(crate) collecting: bool,
}

/// The first message is always let through: a body longer than the window must not block the link for ever.
fn admits(window: Window, messages: u64, bytes: u64, body_bytes: usize) -> bool {
    messages == 0
        || (messages < u64::from(window.messages_max) && bytes + body_bytes as u64 <= window.bytes_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window { messages_max: 4, bytes_max: 100 };

    fn receiving() -> Receiving {
        Receiving::new(WINDOW, 80, &Greeting { received: Ssn(0), covered: Ssn(0), collecting: false }, false)
    }

    /// Were credit given only from half the bytes on, a sender with 20 of 100 bytes on their way and a body of 90 in hand
    /// would wait for a receiver that sees no hurry.
    #[test]
    fn credit_is_urgent_as_soon_as_the_longest_body_might_not_fit() {
        let mut receiving = receiving();
        receiving.arrive(NodeId(1), 5).expect("it fits");
        assert!(!receiving.owed(Ssn(1), Ssn(0)).urgent);
        receiving.arrive(NodeId(1), 16).expect("it fits");
        let owed = receiving.owed(Ssn(2), Ssn(0));
        assert!(owed.urgent);
        receiving.told(owed);
        assert_eq!(receiving.owed(Ssn(2), Ssn(0)).received, None);
    }

    #[test]
    fn the_window_binds_in_messages_and_in_bytes_and_lets_one_through() {
        let mut crowded = receiving();
        for _ in 0..4 {
            crowded.arrive(NodeId(1), 1).expect("four messages fit");
        }
        assert!(matches!(crowded.arrive(NodeId(1), 1), Err(Refusal::Overrun { ssn: Ssn(5), .. })));
        let mut heavy = receiving();
        heavy.arrive(NodeId(1), 200).expect("the first is always let through");
        assert!(matches!(heavy.arrive(NodeId(1), 1), Err(Refusal::Overrun { .. })));
    }

    #[test]
    fn only_what_arrived_in_the_session_is_acknowledged() {
        let mut receiving = receiving();
        receiving.arrive(NodeId(1), 1).expect("it fits");
        let owed = receiving.owed(Ssn(9), Ssn(9));
        assert_eq!((owed.received, owed.covered), (Some(Ssn(1)), Some(Ssn(1))));
    }
}
