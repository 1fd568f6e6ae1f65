//! How often a delivery was tried, where kill -9 cannot reach it, so that one that always fails is given up in the end.
//!
//! The journal counts attempts at one record. A message of another node has no record under a policy that keeps messages in their senders'
//! memory; it is counted under its sender and number, in a range of LSNs that no journal reaches. Its place is no name for it: one that failed was told nobody,
//! and the next life may put other deliveries there.

use crate::handler::Handler;
use crate::process::Process;
use crate::record::quarantined::Quarantined;
use mainstay_journal::memory::PageMemory;
use mainstay_journal::open::{Attempt, UNRECORDED};
use mainstay_types::id::{DeliveryIndex, Lsn, NodeId, Ssn};

/// What stands for the LSN of a message without a record, wherever attempts and verdicts name one. Nodes whose numbers differ by a multiple of
/// 16,384 are not told apart.
pub(crate) fn lsn_of_message(from: NodeId, ssn: Ssn) -> Lsn {
    Lsn(UNRECORDED.0 | u64::from(from.0 & 0x3FFF) << 48 | (ssn.0 & 0xFFFF_FFFF_FFFF))
}

/// The same for an input of this node that only other nodes remember.
pub(crate) fn lsn_of_input(index: DeliveryIndex) -> Lsn {
    Lsn(UNRECORDED.0 | 1 << 62 | index.0)
}

/// The message without a record whose delivery an earlier life did not survive, if there is one.
pub(crate) fn suspect(attempt: Option<Attempt>) -> Option<Attempt> {
    attempt.filter(|attempt| attempt.lsn >= UNRECORDED && attempt.attempts > 0)
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Notes that the delivery named `lsn` is being tried, and says how often it was by now.
    pub(crate) fn begin_attempt(&mut self, lsn: Lsn) -> u32 {
        if let Some(suspect) = self.suspect.filter(|suspect| suspect.lsn == lsn) {
            self.journal.resume_attempt(suspect);
        }
        self.journal.begin_attempt(lsn)
    }

    /// Notes that it ended well. A message that an earlier life did not survive stays the one that is counted until it is tried again: what
    /// comes before it in this life must not make it new.
    pub(crate) fn end_attempt(&mut self, lsn: Lsn) {
        self.journal.end_attempt();
        match self.suspect {
            Some(suspect) if suspect.lsn == lsn => self.suspect = None,
            Some(suspect) => self.journal.resume_attempt(suspect),
            None => {}
        }
    }

    /// The verdict on a message that was tried as often as it may be, for the caller to have recorded.
    pub(crate) fn given_up(&mut self, lsn: Lsn) -> Option<Quarantined> {
        let limit = self.config.limits.handler_attempts_max;
        let Attempt { lsn, attempts } =
            self.suspect.take_if(|suspect| suspect.lsn == lsn && suspect.attempts >= limit)?;
        Some(Quarantined { lsn, attempts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_record_is_never_taken_for_a_record_or_for_one_another() {
        let names = [
            lsn_of_message(NodeId(1), Ssn(7)),
            lsn_of_message(NodeId(2), Ssn(7)),
            lsn_of_message(NodeId(0x3FFF), Ssn(8)),
            lsn_of_input(DeliveryIndex(7)),
            lsn_of_input(DeliveryIndex(8)),
        ];
        assert!(names.iter().all(|name| *name >= UNRECORDED));
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), names.len());
        let at = |lsn, attempts| suspect(Some(Attempt { lsn, attempts }));
        assert!(at(names[0], 1).is_some());
        assert_eq!((at(names[0], 0), at(Lsn(640), 1), suspect(None)), (None, None, None));
    }
}
