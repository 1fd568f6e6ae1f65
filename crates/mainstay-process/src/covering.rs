//! Who is told that its messages are needed no more: senders, by this node's safe records or by its checkpoints.
//!
//! ```text
//!   delivered ── its record is safe, and the delivery cannot be taken back ──> Covered, to its sender
//!       └─────── a durable checkpoint knows the delivery ─────────────────────────^
//! ```

use crate::handler::Handler;
use crate::process::Process;
use mainstay_journal::memory::PageMemory;
use mainstay_recovery::policy::Policy;
use mainstay_types::id::{DeliveryIndex, Lsn, NodeId, Ssn};
use mainstay_types::level::Level;
use std::collections::VecDeque;

/// What senders still keep for this node.
#[derive(Debug, Default)]
pub(crate) struct Covering {
    /// Messages delivered whose senders are told so once their records are safe, in the order of delivery.
    coverable: VecDeque<Coverable>,
    /// What the checkpoint being taken knows: the last delivery, and of each peer the last message.
    checkpointing: Option<(DeliveryIndex, Vec<(NodeId, Ssn)>)>,
}

#[derive(Debug)]
struct Coverable {
    end: Lsn,
    index: DeliveryIndex,
    from: NodeId,
    ssn: Ssn,
}

impl Covering {
    /// The last delivery that the checkpoint being taken knows, if that is above `may_cover`.
    pub(crate) fn checkpoint_waits(&self, may_cover: DeliveryIndex) -> Option<DeliveryIndex> {
        self.checkpointing.as_ref().map(|(executed, _)| *executed).filter(|&executed| executed > may_cover)
    }
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// A message was delivered: its sender is told once its record is safe, or a checkpoint covers it.
    pub(crate) fn received(&mut self, from: NodeId, ssn: Ssn, index: DeliveryIndex, end: Lsn) {
        let Some(sessions) = &mut self.sessions else { return };
        let policy = self.config.policy;
        if policy.journals_messages() {
            sessions.covering.coverable.push_back(Coverable { end, index, from, ssn });
        } else if policy == Policy::Unlogged {
            // Nothing of it will ever be safer than it is.
            sessions.covering.coverable.push_back(Coverable { end: Lsn::ZERO, index, from, ssn });
        }
    }

    /// The LSN up to which records are safe at the level.
    pub(crate) fn safe_lsn(&self) -> Lsn {
        match self.config.level {
            Level::Memory | Level::Process => self.journal.end(),
            Level::Disk => self.journal.durable(),
            Level::Peers => self.keeping.kept,
        }
    }

    /// At the end of a step: a sender hears of it with the next frames in any case.
    pub(crate) fn cover_senders(&mut self) {
        let safe = self.safe_lsn();
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        let may_stay = links.logging.checkpoint_may_cover();
        let coverable = &mut sessions.covering.coverable;
        while let Some(first) = coverable.front()
            && first.end <= safe
            && first.index <= may_stay
        {
            links.channel.cover(first.from, first.ssn);
            coverable.pop_front();
        }
    }

    pub(crate) fn checkpoint_begins(&mut self) {
        let executed = self.history.tables.executed;
        if let Some((links, sessions)) = self.history.links.as_ref().zip(self.sessions.as_mut()) {
            sessions.covering.checkpointing = Some((executed, links.channel.cursors().collect()));
        }
    }

    pub(crate) fn checkpoint_published(&mut self) {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        let Some((executed, cursors)) = sessions.covering.checkpointing.take() else { return };
        links.logging.checkpointed(executed);
        for (node, ssn) in cursors {
            links.channel.cover(node, ssn);
        }
    }

    /// Whether the checkpoint under way may be published: it must know nothing that may have to be taken back.
    pub(crate) fn checkpoint_may_be_published(&self) -> bool {
        let Some((links, sessions)) = self.history.links.as_ref().zip(self.sessions.as_ref()) else {
            return true;
        };
        sessions.covering.checkpoint_waits(links.logging.checkpoint_may_cover()).is_none()
    }
}
