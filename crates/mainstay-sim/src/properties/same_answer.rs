//! The same request gets the same answer, whichever life gives it.

use super::{Property, Violation};
use mainstay_process::handler::Answer;
use mainstay_types::id::Lsn;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const SOURCE: &str =
    "IETF Idempotency-Key draft, section 2; linearizable RPC: Lee et al. 2015 (RIFL), section 3";

/// The first answer to every call.
#[derive(Debug, Default)]
pub(crate) struct SameAnswer {
    first: BTreeMap<u64, (Lsn, Arc<Answer>)>,
}

/// Whether an answer is the first to its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repetition {
    First,
    Same,
    /// The key had expired and the request was delivered anew.
    Anew,
}

impl SameAnswer {
    /// Takes note of the answer to `call`, made by the delivery at `lsn`.
    pub(crate) fn answered(
        &mut self,
        call: u64,
        lsn: Lsn,
        answer: &Arc<Answer>,
    ) -> Result<Repetition, Violation> {
        match self.first.get(&call) {
            None => {
                self.first.insert(call, (lsn, Arc::clone(answer)));
                Ok(Repetition::First)
            }
            // That a second delivery was allowed is for another property to say.
            Some((first, _)) if *first != lsn => {
                self.first.insert(call, (lsn, Arc::clone(answer)));
                Ok(Repetition::Anew)
            }
            Some((_, first)) if first == answer => Ok(Repetition::Same),
            Some((_, first)) => {
                let what = format!("call {call} was answered {first:?} first and {answer:?} now");
                Err(Violation::new(Property::SameAnswer, what))
            }
        }
    }

    /// A failure beyond what was promised happened.
    pub(crate) fn forget(&mut self) {
        self.first.clear();
    }
}
