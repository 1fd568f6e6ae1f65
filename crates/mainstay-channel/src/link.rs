//! One link: everything between this node and one peer, in both directions.

use crate::hello::{Hello, Identity, Window};
use crate::limits::Limits;
use crate::refusal::Refusal;
use crate::sender_log::SenderLog;
use crate::session::{Acknowledgement, Greeting, Receiving, Sending, Session};
use mainstay_types::determinant::Point;
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId, Ssn, StoreId};

/// The link to one peer. Its cursors and its log outlive the node in checkpoints; its session does not outlive a connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: NodeId,
    pub(crate) log: SenderLog,
    /// The gate let everything up to this leave.
    pub(crate) released: Ssn,
    /// The highest message that the history recovered by this life emitted.
    pub(crate) recovered: Ssn,
    /// The highest message of the peer that was delivered.
    pub(crate) delivered: Ssn,
    /// The highest message of the peer that this node's journal still has, though its delivery was undone: it is not asked for again.
    pub(crate) in_hand: Ssn,
    /// The highest message of the peer that is never needed again.
    pub(crate) covered: Ssn,
    /// The highest state of the peer that a delivered message came from.
    pub(crate) seen: Point,
    /// The highest state of this node that the peer said, in this life, that it depends on.
    pub(crate) told_seen: Point,
    /// Where lives of the peer ended, as it said last in this life of this node.
    pub(crate) peer_ends: Vec<(Incarnation, DeliveryIndex)>,
    /// The first life of the peer that has said, recovered, that it has heard of the recovery of this life.
    pub(crate) heard_by: Option<Incarnation>,
    /// Whether the peer has said, in this life of this node, that it is recovered.
    pub(crate) rejoined: bool,
    /// The highest life of the peer that spoke or is depended on.
    pub(crate) incarnation: Incarnation,
    /// The peer's directory, once it is known.
    pub(crate) store: Option<StoreId>,
    pub(crate) stage: Stage,
    /// The highest message sent in this life.
    sent_ever: Ssn,
    pub(crate) stats: Stats,
}

/// How far the session is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// There is no connection.
    Apart,
    /// We greeted.
    Greeting(Greeting),
    /// Both greeted.
    Open(Session),
}

/// What a link has done in this life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages sent, every sending counted.
    pub sent: u64,
    /// Messages sent that had been sent before in this life.
    pub resent: u64,
    /// Messages that arrived and had been delivered before.
    pub duplicates: u64,
    /// Sessions in which both sides greeted.
    pub sessions: u64,
}

impl Link {
    pub(crate) fn new(peer: NodeId) -> Self {
        Self {
            peer,
            log: SenderLog::default(),
            released: Ssn(0),
            recovered: Ssn(0),
            delivered: Ssn(0),
            in_hand: Ssn(0),
            covered: Ssn(0),
            seen: Point::default(),
            told_seen: Point::default(),
            peer_ends: Vec::new(),
            heard_by: None,
            rejoined: false,
            incarnation: Incarnation(0),
            store: None,
            stage: Stage::Apart,
            sent_ever: Ssn(0),
            stats: Stats::default(),
        }
    }

    pub(crate) fn greet(&mut self, collecting: bool) -> Greeting {
        let received = self.delivered.max(self.in_hand);
        let greeting = Greeting { received, covered: self.covered, collecting };
        self.stage = Stage::Greeting(greeting);
        greeting
    }

    /// Whether the peer may be talked to at all. Changes nothing.
    pub(crate) fn check(&self, own: &Identity, theirs: &Hello) -> Result<(), Refusal> {
        let Identity { cluster, node, store, incarnation } = theirs.identity;
        assert_eq!(node, self.peer, "the link was found by this name");
        if cluster != own.cluster {
            return Err(Refusal::OtherCluster { node, expected: own.cluster, found: cluster });
        }
        if theirs.to != own.node {
            return Err(Refusal::Misaddressed { meant: theirs.to, reached: own.node });
        }
        if let Some(expected) = self.store.filter(|expected| *expected != store) {
            return Err(Refusal::OtherStore { node, expected, found: store });
        }
        if incarnation < self.incarnation {
            return Err(Refusal::Fenced { node, seen: self.incarnation, found: incarnation });
        }
        Ok(())
    }

    /// Opens the session. Returns whether this life of the peer is new.
    pub(crate) fn open(
        &mut self,
        theirs: &Hello,
        limits: &Limits,
        may_be_ahead: bool,
    ) -> Result<bool, Refusal> {
        let node = self.peer;
        let Stage::Greeting(greeting) = self.stage else {
            return Err(Refusal::OutOfTurn { node, what: "Hello", when: "in the middle of a session" });
        };
        if theirs.message_bytes_max < limits.message_bytes_max {
            let (ours, theirs) = (limits.message_bytes_max, theirs.message_bytes_max);
            return Err(Refusal::MessageLimit { node, ours, theirs });
        }
        if theirs.received < self.log.covered() {
            return Err(Refusal::Forgot { node, covered: self.log.covered(), received: theirs.received });
        }
        if !may_be_ahead {
            self.check_not_ahead(theirs.received)?;
        }
        self.log.cover(theirs.covered);
        // What the peer has had left in an earlier life; the peer may need it again before this life can let it leave.
        self.released = self.released.max(theirs.received.min(self.log.appended()));
        let reborn = theirs.identity.incarnation > self.incarnation;
        self.incarnation = theirs.identity.incarnation;
        self.store = Some(theirs.identity.store);
        self.stats.sessions += 1;
        let window = Window::of(limits, theirs);
        self.stage = Stage::Open(Session {
            incarnation: self.incarnation,
            seen: theirs.seen,
            sending: Sending::new(window, theirs),
            receiving: Receiving::new(window, limits.message_bytes_max, &greeting, theirs.collecting),
        });
        Ok(reborn)
    }

    /// Whether the peer holds only what this node's history sent.
    pub(crate) fn check_not_ahead(&self, received: Ssn) -> Result<(), Refusal> {
        let (node, appended) = (self.peer, self.log.appended());
        match received > appended {
            true => Err(Refusal::Ahead { node, received, appended }),
            false => Ok(()),
        }
    }

    pub(crate) fn session(&mut self, what: &'static str) -> Result<&mut Session, Refusal> {
        match &mut self.stage {
            Stage::Open(session) => Ok(session),
            Stage::Apart | Stage::Greeting(_) => {
                Err(Refusal::OutOfTurn { node: self.peer, what, when: "before its greeting" })
            }
        }
    }

    /// The peer acknowledges. Window credit; returns how far it goes.
    pub(crate) fn credit(&mut self, what: &'static str, ssn: Ssn) -> Result<(), Refusal> {
        let node = self.peer;
        let Self { log, stage, .. } = self;
        let Stage::Open(Session { sending, .. }) = stage else {
            return Err(Refusal::OutOfTurn { node, what, when: "before its greeting" });
        };
        if ssn > sending.sent() {
            return Err(Refusal::NeverSent { node, acknowledged: ssn, sent: sending.sent() });
        }
        sending.credit(ssn, |ssn| {
            log.entry(ssn).expect("what was sent in this session and is not covered is retained").body.len()
        });
        Ok(())
    }

    /// The next message that may be sent now, counted as sent.
    #[inline]
    pub(crate) fn next_to_send(&mut self) -> Option<Ssn> {
        let Stage::Open(Session { sending, .. }) = &mut self.stage else { return None };
        let next = next_in(&self.log, self.released, sending)?;
        sending.send(self.log.entry(next).expect("next_in saw it").body.len());
        self.stats.sent += 1;
        self.stats.resent += u64::from(next <= self.sent_ever);
        self.sent_ever = self.sent_ever.max(next);
        Some(next)
    }

    /// Whether a message may be sent now.
    #[inline]
    pub(crate) fn has_to_send(&self) -> bool {
        match &self.stage {
            Stage::Open(Session { sending, .. }) => next_in(&self.log, self.released, sending).is_some(),
            Stage::Apart | Stage::Greeting(_) => false,
        }
    }

    #[inline]
    pub(crate) fn owed(&self) -> Option<Acknowledgement> {
        match &self.stage {
            Stage::Open(Session { receiving, .. }) => Some(receiving.owed(self.delivered, self.covered)),
            Stage::Apart | Stage::Greeting(_) => None,
        }
    }

    /// What the peer pins, in memory or outside, if it is so much that the peer should be told: when a checkpoint of it would give some back, and
    /// again when it has made that one and it was not enough.
    #[inline]
    pub(crate) fn pinned(&self, limits: &Limits) -> Option<u64> {
        let Stage::Open(Session { sending, .. }) = &self.stage else { return None };
        let (bytes, covered) = (self.log.bytes() + self.log.spilled_bytes(), self.log.covered());
        let helps = sending.received() > covered && covered >= sending.told_pinned;
        (helps && bytes > limits.log_bytes_max / 2).then_some(bytes)
    }
}

#[inline]
fn next_in(log: &SenderLog, released: Ssn, sending: &Sending) -> Option<Ssn> {
    let next = sending.sent().next();
    let entry = (next <= released).then(|| log.entry(next)).flatten()?;
    sending.admits(entry.body.len()).then_some(next)
}
