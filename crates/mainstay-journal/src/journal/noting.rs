//! What is noted where kill -9 cannot reach it: the delivery that is being made, and what its owner wants.

use super::Journal;
use crate::memory::PageMemory;
use crate::open::{Attempt, Note};
use crate::ring;
use mainstay_types::id::Lsn;

impl<M: PageMemory> Journal<M> {
    /// Notes, where kill -9 cannot reach it, that the record at `lsn` is being delivered. Returns how many attempts
    /// that makes, earlier lives included.
    pub fn begin_attempt(&mut self, lsn: Lsn) -> u32 {
        let before = self.attempt.filter(|attempt| attempt.lsn == lsn).map_or(0, |attempt| attempt.attempts);
        let attempts = before.saturating_add(1);
        self.attempt = Some(Attempt { lsn, attempts });
        ring::write_attempt(self.memory.control_mut(), self.attempt);
        attempts
    }

    /// Notes an attempt of an earlier life as the last one again.
    pub fn resume_attempt(&mut self, attempt: Attempt) {
        self.attempt = Some(attempt);
        ring::write_attempt(self.memory.control_mut(), self.attempt);
    }

    /// Notes something, or nothing, where kill -9 cannot reach it, in the place of what was noted before.
    pub fn note(&mut self, note: Option<Note>) {
        ring::write_note(self.memory.control_mut(), note, self.generation);
    }

    /// Notes that the delivery ended well: a later life must not count its own deaths at this record against it.
    pub fn end_attempt(&mut self) {
        self.attempt = self.attempt.map(|attempt| Attempt { attempts: 0, ..attempt });
        ring::write_attempt(self.memory.control_mut(), self.attempt);
    }
}
