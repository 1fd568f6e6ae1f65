//! At level peers: what the region that keeps the log is asked for, and what it has acknowledged.
//!
//! ```text
//!   records of this step ── Keep ──> the region, in order ── Kept { to } ─────────> mark Kept: answers, outputs, messages
//!   a read, a repetition ── Confirm, at the end of the round ── Kept { confirmed } ──> mark Confirmed: it leaves
//! ```
//! What a record was appended for waits until the region has it; the region takes it from the present life alone. What waits for no new record
//! (a read, the answer to a repetition) could otherwise be said by a life that was cut off and has been replaced meanwhile: the region is asked after it
//! came.

use crate::effect::{Effect, Reply};
use crate::handler::Handler;
use crate::process::Process;
use mainstay_journal::memory::PageMemory;
use mainstay_types::id::{Incarnation, Lsn};
use mainstay_types::level::Level;
use mainstay_types::mark::{After, Mark};

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    /// The region has been asked to keep all below.
    asked: Lsn,
    /// It has acknowledged all below.
    pub(crate) kept: Lsn,
    /// The last question whether this life is the present one, and the last that was answered.
    confirm: u64,
    confirmed: u64,
    /// A recovery from the region would begin with this checkpoint.
    checkpoint: Lsn,
}

impl Keeping {
    /// For a life whose journal was kept up to `kept` before it began. Its questions have numbers of its own: an answer to those of an earlier
    /// life may still come.
    pub(crate) fn new(kept: Lsn, life: Incarnation) -> Self {
        let confirm = life.0 << 32;
        Self { asked: kept, kept, confirm, confirmed: confirm, checkpoint: Lsn::ZERO }
    }
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Up to where the region has acknowledged the log; nothing at other levels.
    #[must_use]
    pub fn kept(&self) -> Option<Lsn> {
        (self.config.level == Level::Peers).then_some(self.keeping.kept)
    }

    /// Bytes of the log that wait for the region; none at other levels.
    #[must_use]
    pub fn unkept_bytes(&self) -> u64 {
        self.kept().map_or(0, |kept| self.journal.end().0.saturating_sub(kept.0))
    }

    /// Whether so much waits that nothing more is taken.
    pub(crate) fn keeps_too_little(&self) -> bool {
        self.unkept_bytes() > self.config.limits.unkept_bytes_max
    }

    /// The checkpoint with which a recovery from the region would begin; nothing at other levels.
    pub(crate) fn kept_checkpoint(&self) -> Option<Lsn> {
        self.kept().map(|_| self.keeping.checkpoint)
    }

    /// Up to where a recovery would have the log, here and from the region.
    pub(crate) fn recoverable_anywhere(&self) -> Lsn {
        let durable = self.journal.durable();
        self.kept().map_or(durable, |kept| kept.min(durable))
    }

    pub(crate) fn kept_event(&mut self, to: Lsn, confirmed: u64, checkpoint: Lsn) {
        self.keeping.kept = self.keeping.kept.max(to.min(self.keeping.asked));
        self.keeping.confirmed = self.keeping.confirmed.max(confirmed.min(self.keeping.confirm));
        self.keeping.checkpoint = self.keeping.checkpoint.max(checkpoint);
        self.complete_checkpoint();
    }

    /// The values of the two marks.
    pub(crate) fn keeping_marks(&self) -> [(Mark, u64); 2] {
        [(Mark::Kept, self.keeping.kept.0), (Mark::Confirmed, self.keeping.confirmed)]
    }

    /// What a reply waits for besides: where it is made of what had been there before the request came, that this life is still the present one.
    /// Otherwise the region says so when it takes the request's record.
    pub(crate) fn confirmed_after(&self, after: After, reply: &Reply) -> After {
        let has_record = matches!(
            reply,
            Reply::Answer { replayed: false, .. } | Reply::Registered { .. } | Reply::Resolved
        );
        if self.config.level == Level::Peers && !has_record {
            after.and(Mark::Confirmed, self.keeping.confirm + 1)
        } else {
            after
        }
    }

    /// At the end of a step: its records.
    pub(crate) fn keep(&mut self, round_ends: bool, out: &mut Vec<Effect>) {
        if self.config.level != Level::Peers {
            return;
        }
        let (from, to) = (self.keeping.asked, self.journal.end());
        if to > from {
            self.keeping.asked = to;
            out.push(Effect::Keep { from, to });
        }
        if round_ends && self.gate.outstanding(Mark::Confirmed) > Some(self.keeping.confirm) {
            self.keeping.confirm += 1;
            out.push(Effect::Confirm { number: self.keeping.confirm });
        }
    }
}
