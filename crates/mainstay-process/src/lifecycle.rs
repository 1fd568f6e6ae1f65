//! Checkpoints, the clean stop, and when to be woken.

use crate::checkpoint::Saved;
use crate::effect::Effect;
use crate::event::CheckpointEvent;
use crate::handler::Handler;
use crate::newest::Newest;
use crate::port::OutputState;
use crate::process::Process;
use mainstay_journal::journal::Health;
use mainstay_journal::memory::PageMemory;
use mainstay_types::id::Lsn;
use mainstay_types::rules::Rule;
use std::time::Duration;

/// How often a full disk is asked again, for the journal or for what is moved out of memory.
const FULL_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How far a life is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Alive, but what other nodes remember of its past is still being gathered: nothing new is delivered.
    Collecting,
    /// What can be recovered is, and the others are told; but more was lost than a policy survives: nothing new is delivered before all agree
    /// on a line.
    Agreeing,
    Running,
    /// Letting out what is held, then a checkpoint, then the seal.
    Stopping {
        checkpoint_asked: bool,
        seal: Option<Lsn>,
    },
    Stopped,
    /// This process gives itself up, after a panic of the handler or to go back behind what another node lost: every further event is ignored.
    Abandoned,
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Where a replay of this moment's state would begin.
    pub(crate) fn replay_from(&self) -> Lsn {
        self.logged.front().map_or(self.journal.end(), |first| first.appended.lsn)
    }

    pub(crate) fn checkpoint(&mut self, out: &mut Vec<Effect>) {
        let executed = self.history.tables.executed;
        if self.life != Life::Abandoned
            && !self.waits_for_others()
            && self.line.in_hand.is_empty()
            && !matches!(self.journal.health(), Health::Poisoned { .. } | Health::Sealed)
            && self.schedule.due(self.journal.end(), executed, self.now, &self.config.limits)
        {
            let lsn = self.replay_from();
            self.checkpoint_begins();
            self.history.newest = self.history.newest.map(|_| Newest::after(executed));
            self.schedule.begin(lsn, self.journal.end(), executed, self.now);
            out.push(Effect::SaveCheckpoint { lsn });
            if !self.config.rules.keep(Rule::TrimAfterCheckpoint) {
                self.journal.trim(lsn, &mut self.scratch.disk);
            }
        }
        if self.checkpoint_may_be_published()
            && let Some(lsn) = self.schedule.publishable(self.recoverable_anywhere())
        {
            out.push(Effect::PublishCheckpoint { lsn });
        }
    }

    pub(crate) fn checkpoint_event(&mut self, event: CheckpointEvent) {
        match event {
            CheckpointEvent::Saved { lsn, state_hash, bytes } => {
                self.schedule.saved(lsn, Saved { state_hash, bytes });
            }
            CheckpointEvent::Published { lsn, oldest } => {
                self.schedule.published(lsn, oldest);
                self.complete_checkpoint();
            }
            CheckpointEvent::Failed { .. } => {
                self.stats.checkpoints_failed += 1;
                self.schedule.failed();
            }
        }
    }

    /// Once it is in the directory, and at level peers in the region.
    pub(crate) fn complete_checkpoint(&mut self) {
        if let Some((oldest, bytes)) = self.schedule.complete(self.kept_checkpoint()) {
            self.stats.checkpoints += 1;
            self.checkpoint_published();
            self.stats.checkpoint_bytes = bytes;
            if oldest > self.journal.first() {
                self.journal.trim(oldest, &mut self.scratch.disk);
            }
        }
    }

    pub(crate) fn stop(&mut self, out: &mut Vec<Effect>) {
        let Life::Stopping { checkpoint_asked, seal } = self.life else {
            return;
        };
        if matches!(self.journal.health(), Health::Poisoned { .. } | Health::Full { .. }) {
            self.life = Life::Stopped;
            out.push(Effect::Stopped);
            return;
        }
        if let Some(sealed) = seal {
            // The region has the seal too: a life elsewhere knows that this one ended as it should.
            if self.journal.durable() >= sealed && self.kept().is_none_or(|kept| kept >= sealed) {
                self.life = Life::Stopped;
                out.push(Effect::Stopped);
            }
            return;
        }
        let outbox = &self.history.tables.outbox;
        // An at-most-once output in flight would be in doubt in the next life: its answer is worth waiting for.
        let in_flight =
            outbox.iter().any(|(_, output)| output.intended && output.state != OutputState::InDoubt);
        // At a line none is: `Process::is_quiet`.
        let in_flight = in_flight && !self.ends_here();
        if !self.backlog.is_empty() || !self.logged.is_empty() || !self.gate.is_empty() || in_flight {
            return;
        }
        let executed = self.history.tables.executed;
        if !checkpoint_asked && self.schedule.idle() {
            self.life = Life::Stopping { checkpoint_asked: true, seal: None };
            if !self.schedule.current(executed) {
                self.schedule.force();
                self.checkpoint(out);
                return;
            }
        }
        if self.schedule.idle() && self.journal.durable() == self.journal.end() && !self.journal.flushing() {
            // A journal with no free page seals after the next completion.
            if let Ok(appended) = self.journal.seal(&mut self.scratch.disk) {
                self.life = Life::Stopping { checkpoint_asked: true, seal: Some(appended.end) };
            }
        }
    }

    /// Whether nothing is delivered in this life any more: its last checkpoint has been asked for, or it ends at a line.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.life, Life::Stopping { checkpoint_asked: true, .. }) || self.ends_here()
    }

    pub(crate) fn set_wake(&mut self, out: &mut Vec<Effect>) {
        // A closing life takes no timer any more, nor does a poisoned journal; the next life does.
        if self.is_closing() || matches!(self.journal.health(), Health::Poisoned { .. }) {
            return;
        }
        let tables = &self.history.tables;
        let retries = matches!(self.journal.health(), Health::Full { .. }) || self.spill_is_paused();
        let retry = retries.then(|| self.now.after(FULL_RETRY_INTERVAL));
        // One that is due while this life collects, or delivers anew what was undone, is taken when it has: nothing is to be woken for before that.
        let waits = self.is_collecting() || !self.line.in_hand.is_empty();
        let checkpoint = self.schedule.next(tables.executed, &self.config.limits).filter(|_| !waits);
        // A due timer that waits for the journal goes on when the journal does, not by the clock.
        // So does one that waits for the region.
        let unkept = self.keeps_too_little();
        let timer =
            tables.timers.iter().find(|&(due, number)| due > self.now || !unkept && !self.waits(number));
        let unread = self.has_unread().then_some(self.now);
        let times = [timer.map(|(due, _)| due), checkpoint, retry, unread, self.blocked_until()];
        let next = times.into_iter().flatten().min();
        if let Some(next) = next
            && self.wake.is_none_or(|wake| next < wake)
        {
            self.wake = Some(next);
            out.push(Effect::Wake(next));
        }
    }
}
