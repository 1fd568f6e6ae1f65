//! What the links know of a consistent line after a loss: who depends on what, who is in session with whom, and which messages need not
//! be asked for again because the journal still has them.

use crate::channel::Channel;
use crate::hello::{Hello, Orphan, add_end};
use crate::link::Stage;
use crate::refusal::Refusal;
use crate::session::Session;
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId, Ssn};

impl Channel {
    /// This life has emitted again everything that its recovered history holds, and goes on; [`Self::ended`] comes before. Returns the
    /// peers that hold, or depend on, more of it than that: their sessions are ended, and what they hold is lost here.
    #[must_use = "a peer that is ahead is an orphan and must be told"]
    pub fn recovered(&mut self) -> Vec<Refusal> {
        (self.recovering, self.collecting) = (false, false);
        let mut ahead = Vec::new();
        for link in &mut self.links {
            link.log.recovered();
            link.recovered = link.log.appended();
            if self.orphans_roll_back {
                continue;
            }
            let Stage::Open(Session { sending, seen, .. }) = &link.stage else { continue };
            let lost = Orphan::of(*seen, &self.ends).map(|lost| lost.refuse_peer(link.peer));
            if let Some(refusal) = lost.or_else(|| link.check_not_ahead(sending.received()).err()) {
                link.stage = Stage::Apart;
                ahead.push(refusal);
            }
        }
        ahead
    }

    /// Whether the gate has let everything leave for `peer` that an earlier life may have let leave: what this life recovered.
    #[must_use]
    pub fn has_released_recovered(&self, peer: NodeId) -> bool {
        let link = self.link(peer);
        link.released.max(link.log.covered()) >= link.recovered
    }

    /// A life of this node ended, and deliveries up to `last` were recovered of it: every peer is told in every greeting.
    pub fn ended(&mut self, incarnation: Incarnation, last: DeliveryIndex) {
        add_end(&mut self.ends, incarnation, last);
    }

    /// Whether the history depends on a delivery that `peer` lost, if its lives ended as `ends` says.
    #[must_use]
    pub fn depends_on_lost(&self, peer: NodeId, ends: &[(Incarnation, DeliveryIndex)]) -> Option<Orphan> {
        Orphan::of(self.link(peer).seen, ends)
    }

    /// A peer that lost what the history depends on, and where its lives ended: as far as greetings, and who recovered since, have told.
    #[must_use]
    pub fn orphaned_by(&self) -> Option<(NodeId, &[(Incarnation, DeliveryIndex)])> {
        let lost = self.links.iter().find(|link| Orphan::of(link.seen, &link.peer_ends).is_some())?;
        Some((lost.peer, &lost.peer_ends))
    }

    /// The journal still has the messages of `peer` behind the last one delivered and up to `ssn`, from deliveries that were undone: they are
    /// not asked for in the sessions that begin from now on.
    pub fn hold_in_hand(&mut self, peer: NodeId, ssn: Ssn) {
        self.link_mut(peer).in_hand = ssn;
    }

    /// This life began with a crash: what it kept for its peers in memory is lost until they, recovered, have greeted it.
    pub fn began_with_a_crash(&mut self) {
        self.crashed = true;
    }

    /// Whether this life waits for all nodes to agree on a line: said in every greeting from now on.
    pub fn agreeing(&mut self, agreeing: bool) {
        self.agreeing = agreeing;
    }

    pub(crate) fn note_told(&mut self, peer: NodeId, theirs: &Hello) {
        let link = self.link_mut(peer);
        link.told_seen = theirs.seen;
        link.peer_ends.clone_from(&theirs.ends);
    }

    /// `peer`, which is recovered, has told again in this session what this life is to keep for it.
    pub fn rejoined(&mut self, peer: NodeId) {
        self.link_mut(peer).rejoined = true;
    }

    /// `peer`, which is recovered, has heard that this life is.
    ///
    /// # Errors
    /// [`Refusal`], if this life still recovers.
    pub fn heard(&mut self, peer: NodeId) -> Result<(), Refusal> {
        if self.recovering {
            return Err(Refusal::OutOfTurn {
                node: peer,
                what: "Heard",
                when: "before the recovery was over",
            });
        }
        let link = self.link_mut(peer);
        let life = link.session("Heard")?.incarnation;
        link.heard_by.get_or_insert(life);
        Ok(())
    }

    /// Whether `peer` has said so.
    #[must_use]
    pub fn is_heard_by(&self, peer: NodeId) -> bool {
        self.link(peer).heard_by.is_some()
    }

    /// Whether `peer` may say how far its replay has come.
    ///
    /// # Errors
    /// [`Refusal`], if it was not recovering when it greeted, or has recovered since.
    pub fn check_recovers(&self, peer: NodeId) -> Result<(), Refusal> {
        match &self.link(peer).stage {
            Stage::Open(session) if session.receiving.awaits_recovery() => Ok(()),
            Stage::Open(_) | Stage::Apart | Stage::Greeting(_) => {
                Err(Refusal::OutOfTurn { node: peer, what: "Passive", when: "while it was not recovering" })
            }
        }
    }

    /// Peers that were recovered when they heard that this life is, ascending, each with the first of its lives that did.
    #[must_use]
    pub fn outlived(&self) -> Vec<(NodeId, Incarnation)> {
        self.links.iter().filter_map(|link| Some((link.peer, link.heard_by?))).collect()
    }

    /// Whether a session with `peer` is open, and `peer` is recovered for all that it has said.
    #[must_use]
    pub fn is_recovered(&self, peer: NodeId) -> bool {
        matches!(&self.link(peer).stage, Stage::Open(session) if !session.receiving.awaits_recovery())
    }

    /// Whether a peer said in this life that it depends on what this node has lost.
    #[must_use]
    pub fn has_orphans(&self) -> bool {
        self.links.iter().any(|link| Orphan::of(link.told_seen, &self.ends).is_some())
    }

    /// This life, and those that a session is open with, ascending by node. Not those that recover: what they lost is not known yet.
    #[must_use]
    pub fn lives(&self) -> Vec<(NodeId, Incarnation)> {
        let in_session = |link: &crate::link::Link| match &link.stage {
            Stage::Open(session) if !session.receiving.awaits_recovery() => {
                Some((link.peer, session.incarnation))
            }
            Stage::Open(_) | Stage::Apart | Stage::Greeting(_) => None,
        };
        let mut lives: Vec<_> = self.links.iter().filter_map(in_session).collect();
        lives.push((self.identity.node, self.identity.incarnation));
        lives.sort_unstable();
        lives
    }

    /// Whether it is another node of the list.
    #[must_use]
    pub fn is_peer(&self, node: NodeId) -> bool {
        self.find(node).is_some()
    }

    /// Whether `lives` names every node of the cluster.
    #[must_use]
    pub fn is_everyone(&self, lives: &[(NodeId, Incarnation)]) -> bool {
        lives.len() == self.links.len() + 1
    }
}
