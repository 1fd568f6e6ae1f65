//! A node's side of a blocking snapshot (Tamir and Séquin 1984): it begins nothing new until the channels are empty and all have cut.
//!
//! ```text
//!           Begin                          Release, or the limit in time, or a crash
//!   goes on ──────> blocked ─────────────────────────────────────────────────────────> goes on with what was held
//!                     │ requests, timers: held     messages: delivered, and what they lead to is sent
//!                     │ outcomes of outputs: held while the node is quiet
//!                     └── StopHere, once its part is final ──> a clean stop that delivers nothing more
//! ```
//! Whether the channels are empty only somebody who hears all nodes can say: [`crate::coordinator`]. Who that is may die at any moment:
//! no node waits for its word longer than [`crate::config::Limits::block_max`].

use crate::effect::{Effect, Limit, Reply, Unavailable};
use crate::event::BlockEvent;
use crate::handler::Handler;
use crate::history::History;
use crate::intake::Pending;
use crate::lifecycle::Life;
use crate::port::{Guarantee, OutputState};
use crate::process::Process;
use crate::record::delivery::Delivery;
use crate::snapshot::{Missed, PartState};
use mainstay_journal::memory::PageMemory;
use mainstay_types::id::{NodeId, Ssn};
use mainstay_types::snapshot::SnapshotId;
use mainstay_types::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What a blocked node holds.
#[derive(Debug)]
pub(crate) struct Blocked {
    snapshot: SnapshotId,
    until: Time,
    /// Inputs from outside, in the order of arrival. Requests among them are limited by `blocked_requests_max`, the rest by the timers and
    /// outputs that lead to them.
    held: VecDeque<Pending>,
    /// This life ends here: it delivers nothing more.
    ends: bool,
}

impl Blocked {
    fn requests(&self) -> usize {
        self.held.iter().filter(|pending| pending.token.is_some()).count()
    }
}

/// Why a node does not block for a snapshot. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBlocked {
    /// It can take no part in any snapshot now.
    #[error(transparent)]
    Missed(#[from] Missed),
    /// It knows of a snapshot as high.
    #[error("it knows of snapshot {known} already")]
    Known {
        /// The highest that it knows of.
        known: SnapshotId,
    },
    /// It is blocked for another one.
    #[error("it is blocked for snapshot {by}")]
    Blocked {
        /// Which.
        by: SnapshotId,
    },
}

/// What a node says of the snapshot that it is to be blocked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockReport {
    /// Who speaks.
    pub node: NodeId,
    /// Whether it has been blocked for this snapshot, in this life, without a gap since it was asked to.
    pub blocked: bool,
    /// Deliveries that wait for the journal, or for their records to be safe.
    pub waiting: usize,
    /// Outputs that are sent at most once and have no outcome yet: a stop in the middle of one would leave it in doubt.
    pub at_most_once: usize,
    /// Its links to all other nodes.
    pub links: Vec<Counted>,
    /// Whether it has cut.
    pub cut: bool,
    /// How far its part is.
    pub part: PartState,
}

/// The messages between a node and one other, as that node counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The other.
    pub peer: NodeId,
    /// The last message to it that a delivery has led to, whether it has left or not.
    pub sent: Ssn,
    /// The last message of it that was delivered.
    pub received: Ssn,
}

impl BlockReport {
    /// Whether the node does nothing more unless a message comes.
    #[must_use]
    pub fn quiet(&self) -> bool {
        self.waiting == 0 && self.at_most_once == 0
    }
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Whether this node would block for `snapshot` now: asked for by [`BlockEvent::Begin`].
    ///
    /// # Errors
    /// [`NotBlocked`].
    pub fn may_block(&self, snapshot: SnapshotId) -> Result<(), NotBlocked> {
        if let Some(blocked) = &self.blocked {
            return Err(NotBlocked::Blocked { by: blocked.snapshot });
        }
        if self.config.cluster.is_none() {
            return Err(Missed::StandsAlone.into());
        }
        self.may_cut()?;
        let known = self.known_snapshot();
        if snapshot <= known {
            return Err(NotBlocked::Known { known });
        }
        Ok(())
    }

    /// What this node says of `snapshot`; `None` if it stands alone.
    #[must_use]
    pub fn block_report(&self, snapshot: SnapshotId) -> Option<BlockReport> {
        let (cluster, links) = self.config.cluster.as_ref().zip(self.history.links.as_ref())?;
        let counted = |&peer: &NodeId| Counted {
            peer,
            sent: links.channel.appended(peer),
            received: links.channel.delivered_up_to(peer),
        };
        Some(BlockReport {
            node: cluster.me,
            blocked: self.is_blocked_for(snapshot),
            waiting: self.backlog.len() + self.logged.len(),
            at_most_once: self.at_most_once().count(),
            links: links.nodes.iter().map(counted).collect(),
            cut: self.has_cut(snapshot),
            part: self.part_of(snapshot),
        })
    }

    /// Whether this node is blocked for `snapshot`.
    #[must_use]
    pub fn is_blocked_for(&self, snapshot: SnapshotId) -> bool {
        self.blocked.as_ref().is_some_and(|blocked| blocked.snapshot == snapshot)
    }

    /// The snapshot that this node is blocked for.
    pub(crate) fn blocked_for(&self) -> Option<SnapshotId> {
        self.blocked.as_ref().map(|blocked| blocked.snapshot)
    }

    /// Inputs that wait for the end of the block.
    pub(crate) fn held_back(&self) -> impl Iterator<Item = &Pending> {
        self.blocked.iter().flat_map(|blocked| &blocked.held)
    }

    pub(crate) fn block_event(&mut self, event: BlockEvent, out: &mut Vec<Effect>) {
        match event {
            BlockEvent::Begin { snapshot } if self.may_block(snapshot).is_ok() => {
                let until = self.now.after(self.config.limits.block_max);
                self.blocked = Some(Blocked { snapshot, until, held: VecDeque::new(), ends: false });
            }
            BlockEvent::Renew { snapshot } if self.is_blocked_for(snapshot) => {
                let until = self.now.after(self.config.limits.block_max);
                self.blocked.as_mut().expect("it was just seen").until = until;
            }
            BlockEvent::Release { snapshot } if self.is_blocked_for(snapshot) && !self.ends_here() => {
                self.unblock();
            }
            BlockEvent::StopHere { snapshot }
                if self.is_blocked_for(snapshot)
                    && self.life == Life::Running
                    && self.part_of(snapshot) == PartState::Final =>
            {
                self.stop_here(out);
            }
            // A coordinator that comes too late, or twice.
            BlockEvent::Begin { .. }
            | BlockEvent::Renew { .. }
            | BlockEvent::Release { .. }
            | BlockEvent::StopHere { .. } => {}
        }
    }

    /// Goes on with what was held, in the order of arrival.
    pub(crate) fn unblock(&mut self) {
        if let Some(blocked) = self.blocked.take() {
            self.backlog.extend(blocked.held);
        }
    }

    pub(crate) fn unblock_if_over(&mut self) {
        if self.blocked.as_ref().is_some_and(|blocked| !blocked.ends && blocked.until <= self.now) {
            self.unblock();
        }
    }

    /// When the block is over, whatever happens.
    pub(crate) fn blocked_until(&self) -> Option<Time> {
        self.blocked.as_ref().map(|blocked| blocked.until)
    }

    /// Whether this life ends at the line that it cut: nothing may be delivered any more.
    pub(crate) fn ends_here(&self) -> bool {
        self.blocked.as_ref().is_some_and(|blocked| blocked.ends)
    }

    /// A clean stop in the state of the cut. Requests that wait are refused: nothing of them is done. Timers are due again in the next life,
    /// which also takes up the outputs whose outcomes were held; none of them is one that may be sent at most once.
    fn stop_here(&mut self, out: &mut Vec<Effect>) {
        let Some(blocked) = &mut self.blocked else { return };
        blocked.ends = true;
        for token in blocked.held.drain(..).filter_map(|pending| pending.token) {
            out.push(Effect::Reply { token, reply: Reply::Unavailable { reason: Unavailable::Stopping } });
        }
        let snapshot = blocked.snapshot;
        if let Some(links) = &mut self.history.links {
            links.channel.stop_at(snapshot);
        }
        // What it says of the line is for the next life.
        self.schedule.force();
        self.life = Life::Stopping { checkpoint_asked: false, seal: None };
    }

    /// Keeps what must wait for the end of the block; gives back what goes on.
    pub(crate) fn hold_back(&mut self, pending: Pending, out: &mut Vec<Effect>) -> Option<Pending> {
        let held = match &pending.delivery {
            _ if self.blocked.is_none() => false,
            Delivery::Message { .. } => false,
            // Until the node is quiet, what its outputs come to is part of what it has to finish.
            Delivery::Settled { .. } => self.is_quiet(),
            _ => true,
        };
        let limit = self.config.limits.blocked_requests_max;
        match &mut self.blocked {
            Some(blocked) if held => match pending.token {
                Some(token) if blocked.requests() >= limit => {
                    self.stats.refused += 1;
                    out.push(Effect::Reply { token, reply: Reply::Busy { limit: Limit::Blocked } });
                }
                _ => blocked.held.push_back(pending),
            },
            _ => return Some(pending),
        }
        None
    }

    /// A message has woken the node: what its outputs come to may be waited for again.
    pub(crate) fn take_up_outcomes(&mut self) {
        if self.blocked.is_none() || self.is_quiet() {
            return;
        }
        let Some(blocked) = &mut self.blocked else { return };
        let is_outcome = |pending: &Pending| matches!(pending.delivery, Delivery::Settled { .. });
        let (outcomes, held) = std::mem::take(&mut blocked.held).into_iter().partition(is_outcome);
        blocked.held = held;
        self.backlog.extend::<VecDeque<_>>(outcomes);
    }

    fn is_quiet(&self) -> bool {
        self.backlog.is_empty() && self.logged.is_empty() && self.at_most_once().next().is_none()
    }

    fn at_most_once(&self) -> impl Iterator<Item = ()> + '_ {
        let is_once = |guarantee| guarantee == Guarantee::AtMostOnce;
        let outbox = self
            .config
            .ports
            .iter()
            .any(|port| is_once(port.guarantee))
            .then(|| self.history.tables.outbox.iter());
        outbox.into_iter().flatten().filter_map(move |(_, pending)| {
            let open = pending.state != OutputState::InDoubt;
            (open && History::<H>::guarantee(pending, &self.config).is_some_and(is_once)).then_some(())
        })
    }
}
