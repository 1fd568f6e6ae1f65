//! A node's part in a consistent snapshot of its cluster, without stopping (Chandy and Lamport 1985; Lai and Yang 1987).
//!
//! ```text
//!          asked for, or heard of in a greeting or a marker         saved             can never be undone          published
//!   idle ──────────────────────────────────────────────> cutting ──────> saved ───────────────────────> publishing ───> final
//!     │     record, marker on every session, the state of                  │
//!     │     this moment to a file                                          └── a later one begins, the disk fails: missed
//!     └── while this life collects or stops: missed
//! ```
//! The part is the state at the end of the step in which the node heard of the snapshot, and nothing that it reads later in that
//! session is in it. It is final when what it knows is durable and can never be taken back, which is when a checkpoint could be
//! published. docs/snapshots.md says why the parts of all nodes are one line.

use crate::checkpoint::remove_partial;
use crate::effect::Effect;
use crate::event::SnapshotEvent;
use crate::handler::Handler;
use crate::lifecycle::Life;
use crate::part;
use crate::process::{INSTANCE, Process};
use crate::record::marked;
use bytes::Bytes;
use mainstay_channel::frame::Frame;
use mainstay_journal::journal::{AppendError, Health};
use mainstay_journal::memory::PageMemory;
use mainstay_journal::storage::{Storage, StorageError};
use mainstay_types::id::{DeliveryIndex, Lsn, NodeId};
use mainstay_types::rules::Rule;
use mainstay_types::snapshot::SnapshotId;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How many missed snapshots a node remembers to tell why.
const MISSED_KEPT: usize = 8;

/// How far this node is with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum PartState {
    /// It has not heard of it.
    Unknown,
    /// Its part is taken, and may still be lost or taken back.
    Pending,
    /// Its part is a file, and can never be undone.
    Final,
    /// It has no part in it: the snapshot fails, and another one can be begun.
    Missed {
        /// Why.
        why: Missed,
    },
}

/// Why a node has no part in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Missed {
    /// It was collecting what other nodes remember of its past.
    #[error("it was recovering")]
    Recovering,
    /// It was stopping.
    #[error("it was stopping")]
    Stopping,
    /// It crashed before its part was final.
    #[error("it crashed before its part was final")]
    Crashed,
    /// A later one had begun.
    #[error("a later one had begun")]
    Superseded,
    /// Its journal took no record just then, or its part could not be written.
    #[error("its disk could not take it")]
    Disk,
    /// A sync of its journal had failed: nothing of it becomes durable any more before a restart.
    #[error("a sync of its journal failed, and it was not restarted")]
    Poisoned,
    /// It stands alone: there is no cluster to take a snapshot of.
    #[error("it is no node of a cluster")]
    StandsAlone,
}

/// What a node knows of snapshots.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    /// To be cut at the end of this step.
    due: Option<SnapshotId>,
    /// Missed, and not in the journal yet.
    unrecorded: Option<SnapshotId>,
    taking: Option<Taking>,
    /// Whose parts are files.
    finished: Vec<SnapshotId>,
    missed: VecDeque<(SnapshotId, Missed)>,
    /// Frames that came behind a marker in the step that read it.
    unread: Vec<(NodeId, Bytes)>,
}

#[derive(Debug)]
struct Taking {
    snapshot: SnapshotId,
    executed: DeliveryIndex,
    /// The end of the journal at the cut.
    knows: Lsn,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Saving,
    Saved,
    Publishing,
}

impl Snapshots {
    /// What a life finds: its directory holds the parts that are final. What it took part in besides is lost.
    pub(crate) fn recover(
        storage: &mut dyn Storage,
        took_part: Option<SnapshotId>,
    ) -> Result<Self, StorageError> {
        remove_partial(storage, part::PREFIX)?;
        let finished = part::present(storage)?;
        let mut snapshots = Self { finished, ..Self::default() };
        if let Some(snapshot) = took_part.filter(|snapshot| *snapshot != SnapshotId::NONE)
            && !snapshots.finished.contains(&snapshot)
        {
            snapshots.miss(snapshot, Missed::Crashed);
        }
        Ok(snapshots)
    }

    /// The highest one that is on file.
    pub(crate) fn newest(&self) -> SnapshotId {
        self.finished.last().copied().unwrap_or(SnapshotId::NONE)
    }

    fn miss(&mut self, snapshot: SnapshotId, why: Missed) {
        self.missed.push_back((snapshot, why));
        if self.missed.len() > MISSED_KEPT {
            self.missed.pop_front();
        }
    }

    /// Up to where the journal must become durable for the part under way to be final.
    pub(crate) fn wants_durable(&self) -> Option<u64> {
        self.taking.as_ref().filter(|taking| taking.phase != Phase::Publishing).map(|taking| taking.knows.0)
    }

    /// The last delivery that the part under way knows, if that is above `may_cover`.
    pub(crate) fn waits(&self, may_cover: DeliveryIndex) -> Option<DeliveryIndex> {
        self.taking.as_ref().map(|taking| taking.executed).filter(|&executed| executed > may_cover)
    }

    /// What a connection brought counts no more when it ends.
    pub(crate) fn forget_unread(&mut self, peer: NodeId) {
        self.unread.retain(|(from, _)| *from != peer);
    }

    pub(crate) fn read_later(&mut self, peer: NodeId, rest: Bytes) {
        self.unread.push((peer, rest));
    }

    /// Whether nothing more may be read in this step.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some()
    }
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// The snapshot that would begin here now: asked for by [`crate::event::Event::TakeSnapshot`].
    ///
    /// # Errors
    /// [`Missed`]: why this node could not take part; another one may, or this one later.
    pub fn next_snapshot(&self) -> Result<SnapshotId, Missed> {
        let cluster = self.config.cluster.as_ref().ok_or(Missed::StandsAlone)?;
        self.may_cut()?;
        // What this node is blocked for has a name already, and no cut.
        let known = self.known_snapshot().max(self.blocked_for().unwrap_or(SnapshotId::NONE));
        Ok(SnapshotId { number: known.number + 1, initiator: cluster.me, life: self.incarnation })
    }

    /// How far this node is with `snapshot`.
    #[must_use]
    pub fn part_of(&self, snapshot: SnapshotId) -> PartState {
        let Snapshots { due, taking, finished, missed, .. } = &self.snapshots;
        if finished.contains(&snapshot) {
            return PartState::Final;
        }
        if *due == Some(snapshot) || taking.as_ref().is_some_and(|taking| taking.snapshot == snapshot) {
            return PartState::Pending;
        }
        match missed.iter().find(|(missed, _)| *missed == snapshot) {
            Some(&(_, why)) => PartState::Missed { why },
            None if snapshot <= self.known_snapshot() => PartState::Missed { why: Missed::Superseded },
            None => PartState::Unknown,
        }
    }

    pub(crate) fn known_snapshot(&self) -> SnapshotId {
        self.history.links.as_ref().map_or(SnapshotId::NONE, |links| links.channel.snapshot())
    }

    pub(crate) fn may_cut(&self) -> Result<(), Missed> {
        match self.life {
            Life::Collecting | Life::Agreeing => Err(Missed::Recovering),
            // What is in hand is in no state yet, and its senders have dropped it.
            _ if !self.line.in_hand.is_empty() => Err(Missed::Recovering),
            Life::Stopping { .. } | Life::Stopped | Life::Abandoned => Err(Missed::Stopping),
            Life::Running => match self.journal.health() {
                Health::Good => Ok(()),
                Health::Full { .. } => Err(Missed::Disk),
                Health::Poisoned { .. } => Err(Missed::Poisoned),
                Health::Sealed => Err(Missed::Stopping),
            },
        }
    }

    /// Somebody has taken part in `snapshot`: so does this node, before it takes in anything that came after that.
    pub(crate) fn hear_of(&mut self, snapshot: SnapshotId) {
        if snapshot <= self.known_snapshot() || self.snapshots.due.is_some_and(|due| due >= snapshot) {
            return;
        }
        match self.may_cut() {
            Ok(()) => self.snapshots.due = Some(snapshot),
            // What it takes in now came after the cut of others: it must not cut later.
            Err(why) => self.miss_snapshot(snapshot, why),
        }
    }

    /// Whether the state of a cut for `snapshot` has been handed out to be saved, or is a file.
    pub(crate) fn has_cut(&self, snapshot: SnapshotId) -> bool {
        let Snapshots { taking, finished, .. } = &self.snapshots;
        finished.contains(&snapshot) || taking.as_ref().is_some_and(|taking| taking.snapshot == snapshot)
    }

    fn miss_snapshot(&mut self, snapshot: SnapshotId, why: Missed) {
        self.snapshots.miss(snapshot, why);
        if why == Missed::Disk {
            self.snapshots.unrecorded = Some(snapshot);
        }
        if let Some(links) = &mut self.history.links {
            links.channel.take_part(snapshot);
        }
    }

    /// A snapshot that was missed because the journal took no record gets it in front of the next delivery that the journal takes.
    pub(crate) fn record_missed(&mut self) {
        if let Some(snapshot) = self.snapshots.unrecorded {
            let record = marked::encode(snapshot);
            let appended = self.journal.append(marked::KIND, INSTANCE, &[&record], &mut self.scratch.disk);
            if appended.is_ok() {
                self.snapshots.unrecorded = None;
            }
        }
    }

    /// The end of a step is the place of the cut: the state that is saved is the one that the step leaves.
    pub(crate) fn cut(&mut self, round_ends: bool, out: &mut Vec<Effect>) {
        if !round_ends && !self.config.rules.keep(Rule::CutBeforeDelivery) {
            return;
        }
        let Some(snapshot) = self.snapshots.due.take() else { return };
        if let Err(why) = self.may_cut() {
            return self.miss_snapshot(snapshot, why);
        }
        // In front of everything that this life delivers from now on: what a recovery finds of that, it finds behind this.
        let record = marked::encode(snapshot);
        let appended = self.journal.append(marked::KIND, INSTANCE, &[&record], &mut self.scratch.disk);
        match appended {
            Ok(_) => {}
            Err(AppendError::Stalled) => {
                // A page will be written; nothing more is read until then.
                self.snapshots.due = Some(snapshot);
                return;
            }
            Err(AppendError::Poisoned { .. }) => return self.miss_snapshot(snapshot, Missed::Poisoned),
            Err(_) => return self.miss_snapshot(snapshot, Missed::Disk),
        }
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        links.channel.take_part(snapshot);
        sessions.put_for_all(&Frame::Marker { snapshot });
        let (executed, knows) = (self.history.tables.executed, self.journal.end());
        let taking = Taking { snapshot, executed, knows, phase: Phase::Saving };
        if let Some(Taking { snapshot, phase, .. }) = self.snapshots.taking.replace(taking) {
            match phase {
                // Discarded when it is written.
                Phase::Saving => self.snapshots.miss(snapshot, Missed::Superseded),
                Phase::Saved => {
                    self.snapshots.miss(snapshot, Missed::Superseded);
                    out.push(Effect::DiscardSnapshot { snapshot });
                }
                // It is as good as there.
                Phase::Publishing => {}
            }
        }
        out.push(Effect::SaveSnapshot { snapshot });
    }

    /// Publishes the part under way when nothing in it can be undone any more.
    pub(crate) fn finish_snapshot(&mut self, out: &mut Vec<Effect>) {
        let Some(links) = &self.history.links else { return };
        let may_cover = links.logging.checkpoint_may_cover();
        if let Some(taking) = &mut self.snapshots.taking
            && taking.phase == Phase::Saved
            && self.journal.durable() >= taking.knows
            && may_cover >= taking.executed
        {
            taking.phase = Phase::Publishing;
            out.push(Effect::PublishSnapshot { snapshot: taking.snapshot });
        }
    }

    pub(crate) fn snapshot_event(&mut self, event: SnapshotEvent, out: &mut Vec<Effect>) {
        let Snapshots { taking, finished, .. } = &mut self.snapshots;
        let under_way = |taking: &Option<Taking>, snapshot| {
            taking.as_ref().is_some_and(|taking| taking.snapshot == snapshot)
        };
        match event {
            SnapshotEvent::Saved { snapshot } => match taking {
                Some(taking) if taking.snapshot == snapshot => taking.phase = Phase::Saved,
                _ => out.push(Effect::DiscardSnapshot { snapshot }),
            },
            SnapshotEvent::Published { snapshot } => {
                if under_way(taking, snapshot) {
                    *taking = None;
                }
                finished.push(snapshot);
                finished.sort_unstable();
                finished.drain(..finished.len().saturating_sub(part::KEPT));
                self.stats.snapshots += 1;
            }
            SnapshotEvent::Failed { snapshot } => {
                if under_way(taking, snapshot) {
                    *taking = None;
                    self.snapshots.miss(snapshot, Missed::Disk);
                }
            }
        }
    }

    /// Takes up the frames that the step before left, now that the cut is made.
    pub(crate) fn read_on(&mut self, out: &mut Vec<Effect>) {
        if self.snapshots.is_due() {
            return;
        }
        for (peer, rest) in std::mem::take(&mut self.snapshots.unread) {
            self.take_frames(peer, &rest, out);
        }
    }

    /// Whether the next step has frames to read that no event will bring.
    pub(crate) fn has_unread(&self) -> bool {
        !self.snapshots.unread.is_empty() && !self.snapshots.is_due()
    }
}
