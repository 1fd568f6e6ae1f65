//! When checkpoints are taken, and how far the present one is.

use crate::checkpoint::Saved;
use crate::config::Limits;
use mainstay_types::id::{DeliveryIndex, Lsn};
use mainstay_types::time::Time;

/// The checkpoint machine.
///
/// ```text
///          due                saved              journal durable up to it          published
///   Idle ───────> Saving ─────────────> Saved ───────────────────────> Publishing ──────────> Idle (trim)
///                   └── failed: Idle, next one by schedule ──────────────────┤ at level peers:  ^
///                                                                            └──> Published ────┘ the region has it
/// ```
/// It is published only when the journal is durable up to what it knows: it must never know deliveries that the journal
/// could lose. At level peers nothing is trimmed, nobody is told and no other one begins before the region has it: what that
/// lacks, this directory must have.
#[derive(Debug)]
pub(crate) struct Schedule {
    phase: Phase,
    last_lsn: Lsn,
    last_executed: DeliveryIndex,
    last_time: Time,
    /// Deliveries in the checkpoint being taken.
    taking: DeliveryIndex,
    forced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Saving { lsn: Lsn, knows: Lsn },
    Saved { lsn: Lsn, knows: Lsn, saved: Saved },
    Publishing { lsn: Lsn, saved: Saved },
    Published { lsn: Lsn, oldest: Lsn, saved: Saved },
}

impl Schedule {
    pub(crate) fn new(last_lsn: Lsn, last_executed: DeliveryIndex, now: Time) -> Self {
        Self {
            phase: Phase::Idle,
            last_lsn,
            last_executed,
            last_time: now,
            taking: last_executed,
            forced: false,
        }
    }

    /// What a recovery would begin with: the place, and the deliveries it knows.
    pub(crate) fn last(&self) -> (Lsn, DeliveryIndex) {
        (self.last_lsn, self.last_executed)
    }

    /// Asks for one as soon as none is under way, even if nothing was delivered since the last.
    pub(crate) fn force(&mut self) {
        self.forced = true;
    }

    /// Whether one should begin now.
    pub(crate) fn due(&self, end: Lsn, executed: DeliveryIndex, now: Time, limits: &Limits) -> bool {
        self.phase == Phase::Idle
            && (self.forced
                || executed > self.last_executed
                    && (end.0 - self.last_lsn.0 >= limits.checkpoint_log_bytes
                        || now.since(self.last_time) >= limits.checkpoint_interval))
    }

    /// When the clock alone makes the next one due.
    pub(crate) fn next(&self, executed: DeliveryIndex, limits: &Limits) -> Option<Time> {
        (self.phase == Phase::Idle && executed > self.last_executed)
            .then(|| self.last_time.after(limits.checkpoint_interval))
    }

    /// `knows` is the end of the journal: the tables remember requests up to there, though replay begins at `lsn` because
    /// some of them were not executed.
    pub(crate) fn begin(&mut self, lsn: Lsn, knows: Lsn, executed: DeliveryIndex, now: Time) {
        assert_eq!(self.phase, Phase::Idle, "one checkpoint at a time");
        self.phase = Phase::Saving { lsn, knows };
        self.forced = false;
        self.taking = executed;
        self.last_time = now;
    }

    pub(crate) fn saved(&mut self, lsn: Lsn, saved: Saved) {
        if let Phase::Saving { lsn: saving, knows } = self.phase
            && saving == lsn
        {
            self.phase = Phase::Saved { lsn, knows, saved };
        }
    }

    /// The position to publish, once, when the journal is durable up to it.
    pub(crate) fn publishable(&mut self, durable: Lsn) -> Option<Lsn> {
        match self.phase {
            Phase::Saved { lsn, knows, saved } if durable >= knows => {
                self.phase = Phase::Publishing { lsn, saved };
                Some(lsn)
            }
            _ => None,
        }
    }

    /// Up to where the journal must become durable for the checkpoint to go on.
    pub(crate) fn wants_durable(&self) -> Option<Lsn> {
        match self.phase {
            Phase::Saving { knows, .. } | Phase::Saved { knows, .. } => Some(knows),
            Phase::Idle | Phase::Publishing { .. } | Phase::Published { .. } => None,
        }
    }

    /// It is in the directory, which needs nothing below `oldest` any more.
    pub(crate) fn published(&mut self, lsn: Lsn, oldest: Lsn) {
        if let Phase::Publishing { lsn: publishing, saved } = self.phase
            && publishing == lsn
        {
            self.phase = Phase::Published { lsn, oldest, saved };
        }
    }

    /// Whether the published one is wherever it has to be: the region that keeps them, if there is one, has those up to `kept`.
    /// Returns once what nothing is needed below, and the length of its file.
    pub(crate) fn complete(&mut self, kept: Option<Lsn>) -> Option<(Lsn, u64)> {
        match self.phase {
            Phase::Published { lsn, oldest, saved } if kept.is_none_or(|kept| kept >= lsn) => {
                self.phase = Phase::Idle;
                self.last_lsn = lsn;
                self.last_executed = self.taking;
                Some((oldest, saved.bytes))
            }
            _ => None,
        }
    }

    pub(crate) fn failed(&mut self) {
        self.phase = Phase::Idle;
    }

    pub(crate) fn idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Whether the last checkpoint knows everything that was executed.
    pub(crate) fn current(&self, executed: DeliveryIndex) -> bool {
        self.idle() && !self.forced && self.last_executed == executed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LIMITS: fn() -> Limits = || Limits {
        checkpoint_log_bytes: 100,
        checkpoint_interval: Duration::from_nanos(1000),
        ..Limits::default()
    };

    #[test]
    fn due_by_size_by_time_and_never_without_deliveries() {
        let schedule = Schedule::new(Lsn(0), DeliveryIndex(0), Time(0));
        assert!(!schedule.due(Lsn(500), DeliveryIndex(0), Time(5000), &LIMITS()));
        assert!(schedule.due(Lsn(100), DeliveryIndex(1), Time(1), &LIMITS()));
        assert!(!schedule.due(Lsn(99), DeliveryIndex(1), Time(1), &LIMITS()));
        assert!(schedule.due(Lsn(1), DeliveryIndex(1), Time(1000), &LIMITS()));
    }

    #[test]
    fn published_only_behind_the_durable_mark_and_once() {
        let mut schedule = Schedule::new(Lsn(0), DeliveryIndex(0), Time(0));
        schedule.begin(Lsn(64), Lsn(80), DeliveryIndex(3), Time(10));
        assert_eq!(schedule.publishable(Lsn(100)), None, "it is not saved yet");
        schedule.saved(Lsn(64), Saved { state_hash: 1, bytes: 9 });
        assert_eq!(schedule.publishable(Lsn(79)), None);
        assert_eq!(schedule.publishable(Lsn(80)), Some(Lsn(64)));
        assert_eq!(schedule.publishable(Lsn(80)), None);
        schedule.published(Lsn(64), Lsn(8));
        assert_eq!(schedule.complete(None), Some((Lsn(8), 9)));
        assert_eq!(schedule.complete(None), None);
        assert!(schedule.current(DeliveryIndex(3)));
    }

    #[test]
    fn not_over_before_the_region_has_it() {
        let mut schedule = Schedule::new(Lsn(0), DeliveryIndex(0), Time(0));
        schedule.begin(Lsn(64), Lsn(80), DeliveryIndex(3), Time(10));
        schedule.saved(Lsn(64), Saved { state_hash: 1, bytes: 9 });
        assert_eq!(schedule.complete(Some(Lsn(64))), None, "it is not in the directory yet");
        assert_eq!(schedule.publishable(Lsn(80)), Some(Lsn(64)));
        schedule.published(Lsn(64), Lsn(8));
        assert_eq!(schedule.complete(Some(Lsn(63))), None);
        assert!(!schedule.idle() && !schedule.due(Lsn(900), DeliveryIndex(9), Time(9000), &LIMITS()));
        assert_eq!(schedule.complete(Some(Lsn(64))), Some((Lsn(8), 9)));
    }

    #[test]
    fn a_failed_one_is_tried_again_by_schedule() {
        let mut schedule = Schedule::new(Lsn(0), DeliveryIndex(0), Time(0));
        schedule.begin(Lsn(64), Lsn(80), DeliveryIndex(3), Time(10));
        schedule.failed();
        assert!(!schedule.due(Lsn(64), DeliveryIndex(3), Time(11), &LIMITS()));
        assert!(schedule.due(Lsn(64), DeliveryIndex(3), Time(1010), &LIMITS()));
    }
}
