//! What ends a life of a node, and begins the next: checkpoints, crashes, rollbacks, replay.

use super::{Checkpoint, Input, Record, Violation, World, node_id};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId};

impl World<'_> {
    pub(super) fn take_checkpoint(&mut self, node: usize) {
        let this = &mut self.nodes[node];
        let mut bytes = Vec::new();
        this.logging.save(&mut bytes);
        this.taken = Some(Checkpoint { index: this.states.len() - 1, records: this.journal.len(), bytes });
    }

    pub(super) fn publish_checkpoint(&mut self, node: usize) -> Result<(), Violation> {
        let this = &mut self.nodes[node];
        let covered = this.logging.checkpoint_may_cover().0 as usize;
        let Some(taken) = this.taken.take_if(|taken| taken.index <= covered) else { return Ok(()) };
        this.logging.checkpointed(DeliveryIndex(taken.index as u64));
        this.published = Some(taken);
        self.reached.checkpoints += 1;
        self.ask_again(node)
    }

    pub(super) fn crash(&mut self, node: usize) -> Result<(), Violation> {
        self.cut_off(node);
        let this = &mut self.nodes[node];
        this.up = false;
        let tail = this.journal.len() - this.durable + 1;
        // Now and then a part of what was not flushed arrived all the same.
        let arrived = if self.draw(3) == 0 { self.draw(tail) } else { 0 };
        let records = self.nodes[node].durable + arrived;
        let this = &mut self.nodes[node];
        this.journal.truncate(records);
        let delivery = |record: &&Record| matches!(record, Record::Delivery { .. });
        let kept = this.journal.iter().filter(delivery).count();
        let lost: Vec<usize> = this.states.drain(kept + 1..).map(|state| state.id).collect();
        self.reached.states_lost += lost.len() as u64;
        self.truth.lose(&lost);
        self.forget_above(node, kept)
    }

    /// What the node had beyond delivery `kept` is gone: nothing of it may have left.
    fn forget_above(&mut self, node: usize, kept: usize) -> Result<(), Violation> {
        let this = &mut self.nodes[node];
        if this.released.last_key_value().is_some_and(|(&index, _)| index > kept) {
            return Err(Violation::ReleasedUndone);
        }
        if this.published.as_ref().is_some_and(|checkpoint| checkpoint.index > kept) {
            return Err(Violation::CheckpointUndone);
        }
        this.outputs.split_off(&(kept + 1));
        this.taken = None;
        this.states.truncate(kept + 1);
        for (log, &length) in this.log.iter_mut().zip(&this.states[kept].sent) {
            log.truncate(length);
        }
        Ok(())
    }

    pub(super) fn roll_back(&mut self, node: usize, keep: usize) -> Result<(), Violation> {
        self.reached.rollbacks += 1;
        let states = &self.nodes[node].states;
        let (kept, first) = (states[keep].id, states.get(keep + 1).map(|state| state.id));
        let mut known = Vec::new();
        self.nodes[node].logging.known_losses(&mut known);
        if !self.truth.losses_known(kept, &known).is_empty() {
            return Err(Violation::OrphanKept);
        }
        let first = first.expect("a rollback gives up something");
        let causes = self.truth.losses_known(first, &known);
        if self.truth.losses(first).is_empty() {
            return Err(Violation::RolledBackUnneeded);
        }
        if causes.is_empty() {
            return Err(Violation::RolledBackWithoutCause);
        }
        if causes.into_iter().any(|crash| !self.rolled_back_for.insert((node, crash))) {
            return Err(Violation::RolledBackAgain);
        }
        self.cut_off(node);
        let this = &mut self.nodes[node];
        let cut = this
            .journal
            .iter()
            .position(
                |record| matches!(record, Record::Delivery { place, .. } if place.delivery.0 > keep as u64),
            )
            .expect("what is rolled back was delivered");
        self.reached.rollbacks_of_safe_states += u64::from(this.durable > cut);
        this.journal.truncate(cut);
        self.forget_above(node, keep)?;
        let mut losses = Vec::new();
        self.nodes[node].logging.known_losses(&mut losses);
        if self.draw(2) == 0 {
            self.replay(node)?;
            self.nodes[node].logging.learn_losses(&losses).map_err(Violation::Refused)?;
        }
        self.begin_life(node)
    }

    pub(super) fn start(&mut self, node: usize) -> Result<(), Violation> {
        self.replay(node)?;
        self.nodes[node].up = true;
        self.begin_life(node)
    }

    /// From the checkpoint and the journal alone.
    fn replay(&mut self, node: usize) -> Result<(), Violation> {
        let all: Vec<NodeId> = (0..self.nodes.len()).map(node_id).collect();
        let this = &mut self.nodes[node];
        this.logging = (self.make)(node_id(node), &all);
        let (mut from, mut index) = (0, 0);
        if let Some(checkpoint) = &this.published {
            this.logging.restore(&checkpoint.bytes).map_err(Violation::Refused)?;
            (from, index) = (checkpoint.records, checkpoint.index);
        }
        let (states, log, journal) = (this.states.clone(), this.log.clone(), this.journal.clone());
        this.states.truncate(index + 1);
        for (log, &length) in this.log.iter_mut().zip(&this.states[index].sent) {
            log.truncate(length);
        }
        for (at, record) in journal.iter().enumerate().skip(from) {
            match record {
                Record::Life { losses } => {
                    self.nodes[node].logging.learn_losses(losses).map_err(Violation::Refused)?;
                }
                Record::Delivery { place, input } => {
                    if let Input::Message { from, ssn, sent } = input {
                        let logging = &mut self.nodes[node].logging;
                        logging.replaying(node_id(*from), *ssn, &sent.stamp).map_err(Violation::Refused)?;
                    }
                    let id = states[place.delivery.0 as usize].id;
                    self.execute(node, *place, input, at + 1, id);
                    self.reached.replayed += 1;
                }
            }
        }
        if self.nodes[node].log == log { Ok(()) } else { Err(Violation::ReplayDiffers) }
    }

    fn begin_life(&mut self, node: usize) -> Result<(), Violation> {
        let this = &mut self.nodes[node];
        this.life += 1 + super::mix(this.life) % 2;
        let last = DeliveryIndex(this.states.len() as u64 - 1);
        let mut wishes = Vec::new();
        this.logging.recovered(Incarnation(this.life), last, &mut wishes);
        let mut losses = Vec::new();
        this.logging.known_losses(&mut losses);
        this.journal.push(Record::Life { losses });
        this.durable = this.journal.len();
        this.logging.safe(Lsn(this.durable as u64));
        self.perform(node, wishes)
    }
}
